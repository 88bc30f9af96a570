"""Sends the chunks of a run to the workers of a cluster, and collects their results."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gradeline.engine.components import WorkerObserver
from gradeline.engine.execute import RUN, Spending, Stop
from gradeline.engine.lifecycle import ExecutedCases, ExecutionResult, RunLock, run_under_lock
from gradeline.engine.pipeline import RunTask, spent_before
from gradeline.engine.plan import CompletedCase, Planned, Work
from gradeline.engine.prepare import PreparedRun
from gradeline.engine.ray.chunks import LANES, Chunk, ChunkQueue, chunk_limit, shares
from gradeline.engine.ray.cluster import Cluster, joined, require_ray
from gradeline.engine.ray.worker import ActorCallLeases, CallLeases, ChunkWorker, OpenedWorker, RunJob, WorkerReport
from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.model import Run, Storage, Usage, digest_of

if TYPE_CHECKING:
    from pathlib import Path

_log = logging.getLogger("gradeline")

_POLL_S = 0.5
_MOST_TRIES = 5
"""Attempts of a chunk until it counts as the cause of the deaths of workers."""
_REFUSED_TRIES = 1
"""Retries of a chunk whose calls are all refused; another worker's call may succeed meanwhile."""
_PAUSE_SECONDS = 1.0
"""Seconds before a chunk that could not be stored is retried; doubled each time."""
_CLOSING_SECONDS = 3.0
_LONG_WAIT_S = 20.0
"""Seconds without a worker after which a message says what the run waits for."""


class RayEngine:
    """Executes runs on a cluster, which it joins with the first run."""

    def __init__(
        self,
        store: str,
        address: str | None = None,
        workers: int | None = None,
        tell: Callable[[str], None] = _log.info,
        *,
        at_once: int = 1,
    ) -> None:
        """``store`` is the URL that workers write to; ``tell`` reports messages for a person.

        ``at_once`` runs share the workers: each has its own part, so that none waits for another.
        """
        require_shared(store)
        require_ray()
        self._store = store
        self._address = address
        self._workers = workers
        self._tell = tell
        self._stack = ExitStack()
        self._cluster: Cluster | None = None
        self._call_leases: dict[str, ActorCallLeases] = {}
        self._wanted_parts = at_once
        self._free_parts: list[int] = []
        self.at_once = at_once
        """Maximum runs with workers of their own; known when the cluster is joined."""

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster; a local one ends."""
        self._cluster = None
        self._call_leases.clear()
        self._stack.close()

    def join(self, folder: Path | None = None) -> Cluster:
        """Join the cluster once; ``folder`` is sent to its nodes."""
        if self._cluster is None:
            if self._address is None:
                self._tell("starting a Ray cluster on this machine")
            self._cluster = self._stack.enter_context(joined(self._address, folder, self._workers))
            self._free_parts = list(shares(self._cluster.workers, self._wanted_parts))
            self.at_once = len(self._free_parts)
            processes = f"{self._cluster.workers} worker{'s' if self._cluster.workers > 1 else ''}"
            nodes = f"{self._cluster.nodes} node{'s' if self._cluster.nodes > 1 else ''}"
            self._tell(f"Ray: {processes} on {nodes}")
        return self._cluster

    async def __call__(
        self, storage: Storage, prepared: PreparedRun, task: RunTask, stop: Stop | None = None
    ) -> ExecutionResult:
        """Execute what is missing of a run, as `run_local` does."""
        cluster = self.join(prepared.suite.folder if self._address is not None else None)

        async def work_through(lock: RunLock, run: Run, stop: Stop) -> ExecutedCases:
            taken = task._replace(run=run, before=storage.counts(run.id))
            job = RunJob.of(prepared, taken, run, self._store, lock.remote_writer(), shipped=cluster.shipped)
            with self._part() as workers:
                leases = self._leases_for(run, task)
                async with WorkerGroup(
                    storage, taken, job, workers, stop, self._tell, prepared.observer, leases
                ) as workers_of_run:
                    return ExecutedCases(await workers_of_run.work_through())

        return await run_under_lock(storage, task, stop, work_through)

    def _leases_for(self, run: Run, task: RunTask) -> ActorCallLeases | None:
        """The rate limit of this agent for all runs; it outlives this run."""
        rate = task.limits.rate
        if rate is None or not task.calls_agent:
            return None
        place = run.target.get("url") or run.target.get("base_url") or run.target.get("fingerprint")
        name = f"rate-{digest_of(f'{place} {rate.calls} {rate.per}')}"
        leases = self._call_leases.setdefault(name, ActorCallLeases(name, rate))
        leases.find()
        return leases

    @contextmanager
    def _part(self) -> Iterator[int]:
        """The number of workers of a run; if all parts are taken 1, which waits for a free processor."""
        part = max(self._free_parts, default=0)
        if not part:
            yield 1
            return
        self._free_parts.remove(part)
        try:
            yield part
        finally:
            self._free_parts.append(part)


def require_shared(store: str) -> None:
    """`ConfigError` if workers on other nodes could not write to the store."""
    if not store.startswith(("postgresql", "postgres:", "postgres+")):
        reason = (
            "the workers of a cluster write to the store from several machines, which requires a PostgreSQL store;"
            " select one with: --store postgresql://user@host/database"
        )
        raise ConfigError(Problem("--engine ray", reason))


class WorkerGroup:
    """The workers of one run; one that dies is replaced."""

    def __init__(
        self,
        storage: Storage,
        task: RunTask,
        job: RunJob,
        workers: int,
        stop: Stop,
        tell: Callable[[str], None],
        observer: WorkerObserver,
        leases: CallLeases | None = None,
    ) -> None:
        import ray  # joined by now

        self._ray: Any = ray
        self._task = task
        self._job = job
        self._stop = stop
        self._tell = tell
        self._observer = observer
        self._shares = shares(task.limits.concurrency, workers)
        self._spending: Spending = spent_before(storage, task)
        number = len(self._shares)
        limit = chunk_limit(task, number)
        self._chunks = ChunkQueue(task.plan(storage), self._take_note, number, task.limits.concurrency, limit)
        self._done: Counter[Work] = Counter()
        self._workers_of_run: list[Any] = []
        self._leases = leases
        self._stop_sent = False
        self._fault: Exception | None = None
        self._spent: str | None = None
        """Why no more calls are planned; the planned ones are made."""

    async def __aenter__(self) -> WorkerGroup:
        self._worker_class = self._ray.remote(ChunkWorker).options(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._job_ref = self._ray.put(self._job)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the workers; a slow one is killed."""
        closing = [asyncio.ensure_future(_value(worker.close.remote())) for worker in self._workers_of_run]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING_SECONDS)
        for task in closing:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # a worker that is gone needs no closing
        for worker in self._workers_of_run:
            self._ray.kill(worker)

    async def work_through(self) -> Counter[Work]:
        """Execute everything that is planned, until the run is stopped."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._keep_at_work(share)) for share in self._shares]
            polling = group.create_task(self._poll())
            await self._chunks.over.wait()
            await self._collect_all()
            for task in (*tasks, polling):
                task.cancel()
        if self._fault is not None:
            raise self._fault
        if self._spent is not None:
            self._stop.set(self._spent)
        return self._done

    def _take_note(self, planned: Planned) -> str | None:
        """Count stored cases and calls; the reason if the plan must end."""
        if planned.work is Work.REUSE:
            self._done[Work.REUSE] += 1
            self._task.on_progress(CompletedCase(planned, None, {}))
        elif planned.work is Work.RERUN:
            self._spent = self._spending.begin()
        return self._spent or self._stop.reason

    async def _keep_at_work(self, share: int) -> None:
        """Keep one worker busy as long as there is work; replace it if it dies."""
        without_store = 0
        while not self._chunks.over.is_set():
            worker = self._worker_class.remote(self._job_ref, share, self._leases)
            self._workers_of_run.append(worker)
            try:
                opened = await self._opened(worker)
                if opened.problems:
                    await self._fail(
                        ConfigError([_at(opened, problem, self._job.shipped) for problem in opened.problems])
                    )
                elif opened.lost_store is None:
                    _log.info("worker %s on %s", opened.process, opened.node)
                    async with asyncio.TaskGroup() as lanes:
                        for _ in range(LANES):
                            lanes.create_task(self._feed(worker))
                    return
                elif without_store < _MOST_TRIES:
                    await self._pause(f"node {opened.node}: {opened.lost_store}", without_store)
                else:
                    await self._fail(StoreError(f"node {opened.node}: {opened.lost_store}"))
            except* self._ray.exceptions.RayActorError as died:
                await self._worker_died(died.exceptions[0])
            without_store += 1
            self._workers_of_run.remove(worker)
            self._ray.kill(worker)

    async def _opened(self, worker: Any) -> OpenedWorker:
        """The worker when it is opened; a message is reported if that takes long."""
        opening = asyncio.ensure_future(_value(worker.open.remote()))
        done, _ = await asyncio.wait({opening}, timeout=_LONG_WAIT_S)
        if not done:
            self._tell("waiting for a free processor in the cluster")
        opened: OpenedWorker = await opening
        return opened

    async def _feed(self, worker: Any) -> None:
        """Send one chunk after the other to a worker."""
        while (chunk := await self._chunks.take()) is not None:
            _log.debug("chunk %d: %d cases", chunk.number, len(chunk.planned))
            try:
                done = await _value(worker.work.remote(chunk))
            except BaseException:
                await self._chunks.give_back(chunk)
                raise
            _log.debug("chunk %d: %.1f s", chunk.number, done.seconds)
            for reason in done.deaths:
                self._observer.worker_died(reason)
            for _ in range(done.refusals):
                self._observer.address_refused()
            if done.lost_store is not None:
                await self._try_again(chunk, done.lost_store)
                continue
            self._done.update(done.work)
            if done.refused is not None and await self._given_another_try(chunk, done.refused):
                continue
            if done.faults:
                await self._fail(ConfigError(done.faults))
            elif done.stopped is not None:
                self._stop.set(done.stopped)
                await self._end()
            await self._chunks.done(chunk, done.seconds)

    async def _given_another_try(self, chunk: Chunk, refusal: str) -> bool:
        """True if the chunk is retried: another worker's calls may succeed meanwhile. If not, the run has failed.

        Each try looks into the store for calls that succeeded (see `Pipeline`).
        """
        if self._stop.reason is None and chunk.tries < _REFUSED_TRIES:
            await self._stop.sleep(_PAUSE_SECONDS)  # for calls in flight of other workers
            await self._chunks.give_back(chunk)
            return True
        self._stop.set(refusal, failed=True)
        await self._end()
        return False

    async def _try_again(self, chunk: Chunk, reason: str) -> None:
        if chunk.tries >= _MOST_TRIES:
            await self._fail(StoreError(reason))
        else:
            await self._pause(reason, chunk.tries)
        await self._chunks.give_back(chunk)

    async def _pause(self, reason: str, tries: int) -> None:
        self._tell(f"{reason}; will be retried")
        await self._stop.sleep(_PAUSE_SECONDS * 2**tries)

    async def _worker_died(self, error: Exception) -> None:
        """A worker died: its chunks go to another, unless they are the cause."""
        if isinstance(error, self._ray.exceptions.ActorDiedError) and error.actor_init_failed:
            await self._fail(_cannot_begin(error))
            return
        self._observer.worker_died("ray_worker")
        worst = self._chunks.most_tried
        if worst is not None and worst.tries >= _MOST_TRIES:
            first, last = worst.cases
            reason = (
                f"{_MOST_TRIES} workers died over the cases {first!r} to {last!r}; check their memory use and the"
                f" logs of the cluster. The last message: {' '.join(str(error).split())[:300]}"
            )
            await self._fail(ConfigError(Problem("--engine ray", reason)))
            return
        self._tell("a worker died; its chunks are repeated")

    async def _fail(self, fault: Exception) -> None:
        self._fault = self._fault or fault
        self._stop.set(str(fault))
        await self._end()

    async def _poll(self) -> None:
        # a cancellation may be lost in a wait that ends at the same moment, so it is not all that ends this
        while not self._chunks.over.is_set():
            await self._stop.sleep(_POLL_S)
            await self._collect_all()
            if self._stop.reason is not None:
                await self._end()
                await asyncio.sleep(_POLL_S)

    async def _collect_all(self) -> None:
        await asyncio.gather(*(self._collect(worker) for worker in list(self._workers_of_run)))

    async def _collect(self, worker: Any) -> None:
        try:
            report: WorkerReport = await asyncio.wait_for(_value(worker.report.remote()), _POLL_S)
        except (TimeoutError, self._ray.exceptions.RayError):
            return  # the worker is starting or ending
        if report.tally.done:
            self._task.on_progress(report.tally)
        answered = report.tally.done - report.tally.reused - report.tally.errors
        if report.tally.cost is not None or answered > 0:
            spent = self._spending.paid(Usage(cost=report.tally.cost), RUN) or self._spending.over()
            if spent is not None:
                self._stop.set(spent)
        if report.stopped is not None:
            self._stop.set(report.stopped)

    async def _end(self) -> None:
        """Let the workers finish their calls in flight."""
        await self._chunks.end()
        if not self._stop_sent and self._stop.reason is not None:
            self._stop_sent = True
            for worker in self._workers_of_run:
                with suppress(self._ray.exceptions.RayError):
                    worker.stop.remote(self._stop.reason)


def _at(opened: OpenedWorker, problem: Problem, shipped: bool) -> Problem:
    sent = (
        "; only the suite's folder is sent to the nodes: put it there, or install it on every node" if shipped else ""
    )
    return Problem(problem.path, f"on node {opened.node}: {problem.message}{sent}")


def _cannot_begin(error: Exception) -> ConfigError:
    message = " ".join(str(error).split())
    if "No module named 'gradeline" in message:
        reason = "a node of the cluster lacks gradeline; install it there: pip install 'gradeline[ray]'"
    else:
        reason = f"no worker could be started: {message[-500:]}"
    return ConfigError(Problem("--engine ray", reason))


async def _value(ref: Any) -> Any:
    """The result of a Ray reference."""
    return await ref

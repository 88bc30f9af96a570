"""Hands out the chunks of a run to the workers of a cluster, and hears what became of them."""

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

_HEARD_EVERY = 0.5
_MOST_TRIES = 5
"""How often a chunk is begun before it is taken for the cause."""
_REFUSED_TRIES = 1
"""How often a chunk whose calls are all refused is tried again, for a success of another worker to show."""
_PAUSE_SECONDS = 1.0
"""Before a chunk is tried again that could not be stored; doubled each time."""
_CLOSING_SECONDS = 3.0
_TOO_LONG = 20.0
"""After so long without a worker a person is told what is waited for."""


class RayEngine:
    """Runs suites on a cluster, which it joins when the first one is ready to run."""

    def __init__(
        self,
        store: str,
        address: str | None = None,
        workers: int | None = None,
        tell: Callable[[str], None] = _log.info,
        *,
        at_once: int = 1,
    ) -> None:
        """``store`` is the URL that workers write to; ``tell`` is for what a person should hear of.

        ``at_once`` runs share the workers: each has a part of its own, so that none waits for another's end.
        """
        require_shared(store)
        require_ray()
        self._store = store
        self._address = address
        self._workers = workers
        self._tell = tell
        self._stack = ExitStack()
        self._cluster: Cluster | None = None
        self._lessors: dict[str, ActorCallLeases] = {}
        self._wanted_parts = at_once
        self._free_parts: list[int] = []
        self.at_once = at_once
        """Runs that have workers of their own side by side; known when the cluster is joined."""

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster; one of this machine ends."""
        self._cluster = None
        self._lessors.clear()
        self._stack.close()

    def join(self, folder: Path | None = None) -> Cluster:
        """Join the cluster, unless that is done; ``folder`` is sent to its nodes."""
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
        """Do what is missing of a run, as `run_local` does."""
        cluster = self.join(prepared.suite.folder if self._address is not None else None)

        async def work_through(lock: RunLock, run: Run, stop: Stop) -> ExecutedCases:
            taken = task._replace(run=run, before=storage.counts(run.id))
            job = RunJob.of(prepared, taken, run, self._store, lock.remote_writer(), shipped=cluster.shipped)
            with self._part() as workers:
                lessor = self._lessor(run, task)
                async with WorkerGroup(
                    storage, taken, job, workers, stop, self._tell, prepared.observer, lessor
                ) as fleet:
                    return ExecutedCases(await fleet.work_through())

        return await run_under_lock(storage, task, stop, work_through)

    def _lessor(self, run: Run, task: RunTask) -> ActorCallLeases | None:
        """One for all who call this agent so often, whatever run they belong to; kept beyond the run's end."""
        rate = task.limits.rate
        if rate is None or not task.calls_agent:
            return None
        place = run.target.get("url") or run.target.get("base_url") or run.target.get("fingerprint")
        name = f"rate-{digest_of(f'{place} {rate.calls} {rate.per}')}"
        lessor = self._lessors.setdefault(name, ActorCallLeases(name, rate))
        lessor.find()
        return lessor

    @contextmanager
    def _part(self) -> Iterator[int]:
        """How many workers a run has; where all parts are taken one, which waits for a free processor."""
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
    """`ConfigError` where workers elsewhere could not write to the store."""
    if not store.startswith(("postgresql", "postgres:", "postgres+")):
        reason = (
            "the workers of a cluster write to the store all at once and from other machines, which only a PostgreSQL"
            " store can take; name one with: --store postgresql://user@host/database"
        )
        raise ConfigError(Problem("--engine ray", reason))


class WorkerGroup:
    """The workers of one run: as many as are wanted, a new one for each that dies."""

    def __init__(
        self,
        storage: Storage,
        task: RunTask,
        job: RunJob,
        workers: int,
        stop: Stop,
        tell: Callable[[str], None],
        observer: WorkerObserver,
        lessor: CallLeases | None = None,
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
        self._crew: list[Any] = []
        self._lessor = lessor
        self._told_to_stop = False
        self._fault: Exception | None = None
        self._spent: str | None = None
        """Why no more calls are planned; those that are planned are made."""

    async def __aenter__(self) -> WorkerGroup:
        self._worker_class = self._ray.remote(ChunkWorker).options(
            num_cpus=1, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )
        self._job_ref = self._ray.put(self._job)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Let the workers go; a slow one is ended."""
        closing = [asyncio.ensure_future(_value(worker.close.remote())) for worker in self._crew]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSING_SECONDS)
        for task in closing:
            if not task.done():
                task.cancel()
            elif not task.cancelled():
                task.exception()  # a worker that is gone needs no closing
        for worker in self._crew:
            self._ray.kill(worker)

    async def work_through(self) -> Counter[Work]:
        """Have everything done that is planned, or what of it is done when the run is to end."""
        async with asyncio.TaskGroup() as group:
            crew = [group.create_task(self._keep_at_work(share)) for share in self._shares]
            listening = group.create_task(self._listen())
            await self._chunks.over.wait()
            await self._hear_all()
            for task in (*crew, listening):
                task.cancel()
        if self._fault is not None:
            raise self._fault
        if self._spent is not None:
            self._stop.set(self._spent)
        return self._done

    def _take_note(self, planned: Planned) -> str | None:
        """Count what needs no work and what is spent; why no more is to be done."""
        if planned.work is Work.REUSE:
            self._done[Work.REUSE] += 1
            self._task.on_progress(CompletedCase(planned, None, {}))
        elif planned.work is Work.RERUN:
            self._spent = self._spending.begin()
        return self._spent or self._stop.reason

    async def _keep_at_work(self, share: int) -> None:
        """Have one worker at work as long as there is work, in the place of a dead one another."""
        without_store = 0
        while not self._chunks.over.is_set():
            worker = self._worker_class.remote(self._job_ref, share, self._lessor)
            self._crew.append(worker)
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
                await self._mourn(died.exceptions[0])
            without_store += 1
            self._crew.remove(worker)
            self._ray.kill(worker)

    async def _opened(self, worker: Any) -> OpenedWorker:
        """The worker, ready or not; somebody is told where it is long waited for."""
        opening = asyncio.ensure_future(_value(worker.open.remote()))
        done, _ = await asyncio.wait({opening}, timeout=_TOO_LONG)
        if not done:
            self._tell("waiting for a free processor in the cluster")
        opened: OpenedWorker = await opening
        return opened

    async def _feed(self, worker: Any) -> None:
        """Give a worker one chunk after the other."""
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
        """Whether another worker's calls may show that the provider takes them; if not, the run has failed.

        Each try looks into the store for calls that succeeded (see `Pipeline`).
        """
        if self._stop.reason is None and chunk.tries < _REFUSED_TRIES:
            await self._stop.sleep(_PAUSE_SECONDS)  # for calls in flight elsewhere
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
        self._tell(f"{reason}; tried again soon")
        await self._stop.sleep(_PAUSE_SECONDS * 2**tries)

    async def _mourn(self, error: Exception) -> None:
        """A worker died: what it had in hand goes to another, unless it is what kills them."""
        if isinstance(error, self._ray.exceptions.ActorDiedError) and error.actor_init_failed:
            await self._fail(_cannot_begin(error))
            return
        self._observer.worker_died("ray_worker")
        worst = self._chunks.most_tried
        if worst is not None and worst.tries >= _MOST_TRIES:
            first, last = worst.cases
            reason = (
                f"{_MOST_TRIES} workers died over the cases {first!r} to {last!r}; see what they do to memory, and the"
                f" logs of the cluster. The last one said: {' '.join(str(error).split())[:300]}"
            )
            await self._fail(ConfigError(Problem("--engine ray", reason)))
            return
        self._tell("a worker died; what it had in hand is done again")

    async def _fail(self, fault: Exception) -> None:
        self._fault = self._fault or fault
        self._stop.set(str(fault))
        await self._end()

    async def _listen(self) -> None:
        # a cancellation may be lost in a wait that ends at the same moment, so it is not all that ends this
        while not self._chunks.over.is_set():
            await self._stop.sleep(_HEARD_EVERY)
            await self._hear_all()
            if self._stop.reason is not None:
                await self._end()
                await asyncio.sleep(_HEARD_EVERY)

    async def _hear_all(self) -> None:
        await asyncio.gather(*(self._hear(worker) for worker in list(self._crew)))

    async def _hear(self, worker: Any) -> None:
        try:
            heard: WorkerReport = await asyncio.wait_for(_value(worker.hear.remote()), _HEARD_EVERY)
        except (TimeoutError, self._ray.exceptions.RayError):
            return  # it begins, or ends
        if heard.tally.done:
            self._task.on_progress(heard.tally)
        answered = heard.tally.done - heard.tally.reused - heard.tally.errors
        if heard.tally.cost is not None or answered > 0:
            spent = self._spending.paid(Usage(cost=heard.tally.cost), RUN) or self._spending.over()
            if spent is not None:
                self._stop.set(spent)
        if heard.stopped is not None:
            self._stop.set(heard.stopped)

    async def _end(self) -> None:
        """Let the workers finish what is in flight."""
        await self._chunks.end()
        if not self._told_to_stop and self._stop.reason is not None:
            self._told_to_stop = True
            for worker in self._crew:
                with suppress(self._ray.exceptions.RayError):
                    worker.stop.remote(self._stop.reason)


def _at(opened: OpenedWorker, problem: Problem, shipped: bool) -> Problem:
    sent = (
        "; only the suite's folder is sent to the nodes: put it there, or install it on every node" if shipped else ""
    )
    return Problem(problem.path, f"on node {opened.node}: {problem.message}{sent}")


def _cannot_begin(error: Exception) -> ConfigError:
    told = " ".join(str(error).split())
    if "No module named 'gradeline" in told:
        reason = "a node of the cluster lacks gradeline; install it there: pip install 'gradeline[ray]'"
    else:
        reason = f"no worker could be started: {told[-500:]}"
    return ConfigError(Problem("--engine ray", reason))


async def _value(ref: Any) -> Any:
    """What a worker answers."""
    return await ref

"""A pool of worker processes that survives whatever user code does.

Jobs wait in one queue. An idle worker gets a batch of as many jobs as it finishes in about two milliseconds: cheap
graders share the cost of a message, slow ones are not batched. A worker that hangs or dies costs one task: the one
that its progress record names. Its other jobs return to the head of the queue, and a warm spare takes its place.
When jobs wait while every worker is busy with a slow task (code that calls a server), the pool grows up to its maximum
size.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple

from msgspec.structs import replace

from gradeline.errors import ConfigError, Fault, Problem, grade_policy
from gradeline.model import ErrorInfo, clean_text, quote
from gradeline.usercode.loader import TARGET, CodeSpec, LoadError, LoadFailure, LoadFault, Manifest
from gradeline.usercode.process_control import GRADER_MEMORY, OomKillCounter
from gradeline.usercode.protocol import (
    BatchResults,
    CodeLoaded,
    Job,
    LoadCode,
    Position,
    RunBatch,
    RunSetup,
    SetupDone,
    Task,
    TaskResult,
    WorkerReply,
    encode,
)
from gradeline.usercode.worker_process import WorkerProcess, load_crashed, load_timed_out


class WorkerLimits(NamedTuple):
    """Limits for a worker process of user code."""

    memory: int = GRADER_MEMORY
    """Maximum address space of a worker in bytes; 0: no limit."""
    load_seconds: float = 30.0
    setup_seconds: float = 300.0
    calls_per_worker: int = 50_000
    """Tasks after which a worker is replaced, between two batches."""


_BATCH_SECONDS = 0.002
_MAX_BATCH = 64
_BATCHES_PER_WORKER = 2
"""Maximum number of batches sent to a worker: it starts the next one without waiting for the engine."""
_QUEUED_JOBS_PER_WORKER = 256
"""Maximum number of queued jobs for each worker; `run` waits while the queue is full."""
_CHECK_SECONDS = 0.02
_SLOW_TASK_SECONDS = 0.05
"""Task duration in seconds from which the pool adds workers."""
_MAX_FAILED_LOADS = 3


def _is_encodable(pending: _PendingJob) -> bool:
    """True if the job can be encoded; otherwise its tasks get an error as their result."""
    try:
        encode(pending.remaining())
    except (OverflowError, TypeError, ValueError) as fault:
        case = quote(pending.job.sample.case_key)
        error = ErrorInfo("bad_reply", f"case {case} cannot be sent to a worker process: {fault}", Fault.INFRASTRUCTURE)
        pending.set_results([TaskResult(error=error)] * len(pending.unfinished))
        return False
    return True


class _PendingJob:
    """A job without all results yet: they arrive as its tasks finish or fail."""

    __slots__ = ("future", "job", "results", "suspect", "unfinished")

    def __init__(self, job: Job, future: asyncio.Future[list[TaskResult]]) -> None:
        self.job = job
        self.future = future
        self.results: list[TaskResult | None] = [None] * len(job.tasks)
        self.unfinished = list(range(len(job.tasks)))
        self.suspect = False
        """A worker ended while it had this job, and it is unknown which job did it: it now gets a worker of its own."""

    def remaining(self) -> Job:
        """The job, reduced to the tasks that still have to run."""
        return self.job if len(self.unfinished) == len(self.job.tasks) else self.job.part(self.unfinished)

    def set_results(self, results: Iterable[TaskResult]) -> None:
        for index, result in zip(self.unfinished, results, strict=True):
            self.results[index] = result
        self.unfinished = []
        self._resolve_if_done()

    def fail_task(self, task: int, error: ErrorInfo, output: str | None) -> None:
        """Report an error for one of the tasks that were sent, and for the tasks that read from it."""
        index = self.unfinished[task]
        lost = {index} | {other for other in self.unfinished if self.job.tasks[other].extract == index}
        for other in lost:
            self.results[other] = TaskResult(error=error, output=output if other == index else None)
        self.unfinished = [other for other in self.unfinished if other not in lost]
        self._resolve_if_done()

    def _resolve_if_done(self) -> None:
        if not self.unfinished and not self.future.done():
            self.future.set_result([result for result in self.results if result is not None])


class _SentBatch:
    """A batch that a worker has: its jobs without results, and how many jobs it began with."""

    __slots__ = ("count", "id", "pending")

    def __init__(self, batch: int, pending: list[_PendingJob]) -> None:
        self.id = batch
        self.pending = pending
        self.count = len(pending)


class _WorkerExitedError(Exception):
    """A worker ended before it replied."""


class _Worker:
    """A worker process and its unfinished batches. The warm spare has loaded the code and takes no jobs yet."""

    def __init__(self, process: WorkerProcess, *, spare: bool) -> None:
        self.process = process
        self.spare = spare
        self.ready = False
        self.retired = False
        self.sent: deque[_SentBatch] = deque()
        self.calls = 0
        self.overdue: Position | None = None

    @property
    def exclusive(self) -> bool:
        """It has a suspect job, which must run without others."""
        return bool(self.sent) and self.sent[0].pending[0].suspect


class WorkerPool:
    """Runs jobs in worker processes. Use it with ``async with``; `start` loads the code."""

    def __init__(
        self,
        spec: CodeSpec | None = None,
        *,
        size: int | None = None,
        max_size: int | None = None,
        limits: WorkerLimits | None = None,
        on_death: Callable[[str], None] | None = None,
    ) -> None:
        """``size``: workers at the start. ``max_size``: workers once tasks are slow (default: ``size``).

        ``on_death`` is called with the reason when a worker ends unexpectedly: ``timeout``, ``bad_reply`` or
        ``crashed``.
        """
        self._spec = spec
        self._size = size or min(4, os.cpu_count() or 1)
        self._max_size = max(self._size, max_size or 0)
        self._tasks_are_slow = True
        """True until a job was quick: while tasks are slow, a worker gets one batch at a time."""
        self._limits = limits or WorkerLimits()
        self._workers: dict[WorkerProcess, _Worker] = {}
        self._queue: deque[_PendingJob] = deque()
        self._queue_slots = asyncio.Semaphore(_QUEUED_JOBS_PER_WORKER * self._size)
        self._manifest: Manifest | None = None
        self._started: asyncio.Future[Manifest] | None = None
        self._setting_up: asyncio.Future[SetupDone] | None = None
        self._failure: ConfigError | None = None
        self._failed_loads = 0
        self._hung: list[LoadFailure] = []
        self._seconds_per_job = _BATCH_SECONDS
        self._batches = 0
        self._dispatch_scheduled = False
        self._check_timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._oom_kills = OomKillCounter()
        self._on_death = on_death

    async def __aenter__(self) -> WorkerPool:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> Manifest:
        """Load the code; `ConfigError` names all faults."""
        if sys.platform == "win32":
            reason = "code from files runs in worker processes, which need Linux or macOS; on Windows run it in WSL"
            raise ConfigError(Problem(self._folder(), reason))
        self._started = asyncio.get_running_loop().create_future()
        self._spawn()
        try:
            manifest = await self._started
        except BaseException:
            await self.close()
            raise
        for _ in range(self._size - 1):
            self._spawn()
        self._spawn(spare=True)
        return manifest

    async def set_up(self, suite: dict[str, Any]) -> str | None:
        """Call the setup function once, in one worker; returns its output. `ConfigError` where it fails."""
        worker = next(worker for worker in self._workers.values() if worker.ready)
        self._setting_up = asyncio.get_running_loop().create_future()
        worker.process.send(RunSetup(suite))
        self._schedule_check()
        try:
            done = await asyncio.wait_for(self._setting_up, self._limits.setup_seconds)
        except (TimeoutError, _WorkerExitedError) as error:
            worker.process.kill("timeout")
            reason = str(error) or f"took longer than {self._limits.setup_seconds:g} s"
            raise ConfigError(Problem(self._setup_reference(), reason)) from None
        finally:
            self._setting_up = None
        if done.error is not None:
            raise ConfigError(Problem(self._setup_reference(), f"{done.error.type}: {done.error.message}"))
        return done.output

    async def run(self, job: Job) -> list[TaskResult]:
        """The results of a job's tasks, in their order. Waits while the queue is full.

        The first job starts the pool where `start` was not called.
        """
        if not job.tasks:
            return []
        if self._started is None:
            await self.start()
        elif not self._started.done():
            await asyncio.shield(self._started)
        async with self._queue_slots:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise RuntimeError("the pool is closed")
            pending = _PendingJob(job, asyncio.get_running_loop().create_future())
            self._queue.append(pending)
            if len(self._queue) == 1 and any(self._available(idle=True)):
                self._dispatch()
            else:
                self._schedule_dispatch()
            return await pending.future

    async def close(self) -> None:
        """Kill every worker with its child processes, and cancel the jobs that wait."""
        self._closing = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        workers = list(self._workers.values())
        for worker in workers:
            worker.process.kill("closed")
        for worker in workers:
            await worker.process.wait()
            for sent in worker.sent:
                self._queue.extend(sent.pending)
        for pending in self._queue:
            pending.future.cancel()
        self._queue.clear()

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, the warm spare included."""
        return [process.pid for process in self._workers]

    @property
    def waiting(self) -> int:
        """The number of jobs in the queue."""
        return len(self._queue)

    # Sending jobs

    def _schedule_dispatch(self) -> None:
        """Send what is queued at the end of this turn of the event loop."""
        if not self._dispatch_scheduled:
            self._dispatch_scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._dispatch_scheduled = False
        available = list(self._available())
        for load in range(1 if self._tasks_are_slow else _BATCHES_PER_WORKER):
            for worker in available:
                if not self._queue:
                    break
                if len(worker.sent) == load and not worker.exclusive:
                    self._send(worker, share=-(-len(self._queue) // len(available)))
        self._schedule_check()

    def _available(self, *, idle: bool = False) -> Iterator[_Worker]:
        for worker in self._workers.values():
            if not worker.spare and worker.ready and not worker.retired and not (idle and worker.sent):
                yield worker

    def _send(self, worker: _Worker, share: int) -> None:
        count = min(len(self._queue), share, _MAX_BATCH, max(1, int(_BATCH_SECONDS / self._seconds_per_job)))
        pending: list[_PendingJob] = []
        while self._queue and len(pending) < count:
            if self._queue[0].suspect and (pending or worker.sent):
                break
            job = self._queue.popleft()
            if not job.future.done():  # the caller may have been cancelled
                pending.append(job)
            if job.suspect:
                break
        if not pending:
            return
        self._batches += 1
        jobs = [job.remaining() for job in pending]
        try:
            worker.process.send(RunBatch(self._batches, jobs))
        except (OverflowError, TypeError, ValueError):
            self._queue.extendleft(reversed([job for job in pending if _is_encodable(job)]))
            self._send(worker, share)
            return
        worker.sent.append(_SentBatch(self._batches, pending))
        worker.calls += sum(len(job.tasks) for job in jobs)

    # Receiving results

    def _on_reply(self, process: WorkerProcess, reply: WorkerReply) -> None:
        worker = self._workers[process]
        if isinstance(reply, BatchResults):
            self._batch_done(worker, reply)
        elif isinstance(reply, CodeLoaded):
            self._code_loaded(worker, reply.manifest)
        elif self._setting_up is not None and not self._setting_up.done():
            self._setting_up.set_result(reply)

    def _batch_done(self, worker: _Worker, reply: BatchResults) -> None:
        if not worker.sent or worker.sent[0].id != reply.batch or len(reply.results) > len(worker.sent[0].pending):
            worker.process.kill("bad_reply")  # user code wrote into the pipe
            return
        sent = worker.sent[0]
        for job, results in zip(sent.pending, reply.results, strict=False):
            if len(results) != len(job.unfinished):
                worker.process.kill("bad_reply")
                return
            took = sum(result.latency_ms or 0.0 for result in results) / 1000
            self._seconds_per_job += 0.1 * (max(took, 1e-6) - self._seconds_per_job)
            self._tasks_are_slow = self._seconds_per_job > _SLOW_TASK_SECONDS or took > _SLOW_TASK_SECONDS
            job.set_results(results)
        del sent.pending[: len(reply.results)]
        if not sent.pending:
            worker.sent.popleft()
        if worker.calls >= self._limits.calls_per_worker and not worker.retired:
            worker.retired = True
            self._replace_worker()
        if worker.retired and not worker.sent:
            worker.process.dismiss()
        if self._queue:
            self._schedule_dispatch()

    def _code_loaded(self, worker: _Worker, manifest: Manifest) -> None:
        self._failed_loads = 0
        if manifest.faults or self._hung:
            known = {(fault.file, fault.line, fault.message) for fault in manifest.faults}
            hung = [
                fault for fault in map(_fault_of, self._hung) if (fault.file, fault.line, fault.message) not in known
            ]
            self._fail_all(LoadError([*hung, *manifest.faults]))
            return
        if self._manifest is None:
            self._manifest = manifest
        elif manifest != self._manifest:
            location = _changed_file(self._manifest, manifest)
            self._fail_all(ConfigError(Problem(location, "changed while it was in use; run again")))
            return
        worker.ready = True
        if self._started is not None and not self._started.done():
            self._started.set_result(manifest)
        self._schedule_dispatch()

    def _fail_all(self, error: ConfigError) -> None:
        """Nothing more can run: every waiting job fails with the error."""
        self._failure = error
        if self._started is not None and not self._started.done():
            self._started.set_exception(error)
        sent = [job for worker in self._workers.values() for batch in worker.sent for job in batch.pending]
        waiting = [*self._queue, *sent]
        self._queue.clear()
        for job in waiting:
            if not job.future.done():
                job.future.set_exception(error)

    # Time limits and ends of workers

    def _check_workers(self) -> None:
        self._check_timer = None
        for worker in list(self._workers.values()):
            worker.process.cut_output()
            if worker.sent:
                self._check_deadline(worker)
        self._add_workers()
        self._schedule_check()

    def _schedule_check(self) -> None:
        """Check the workers again soon, while one of them loads code, runs the setup or runs jobs."""
        busy = self._setting_up is not None or any(one.sent or not one.ready for one in self._workers.values())
        if busy and self._check_timer is None and not self._closing:
            self._check_timer = asyncio.get_running_loop().call_later(_CHECK_SECONDS, self._check_workers)

    def _add_workers(self) -> None:
        """Start more workers where jobs wait behind slow tasks: double the number, at most one per waiting job."""
        active = [worker for worker in self._workers.values() if not worker.spare and not worker.retired]
        room = min(self._max_size - len(active), len(self._queue), len(active))
        if room <= 0 or self._failure is not None or not all(worker.ready and worker.sent for worker in active):
            return
        since = [worker.process.position.since for worker in active]
        if min(since) > 0.0 and monotonic() - max(since) > _SLOW_TASK_SECONDS:
            self._tasks_are_slow = True
            for _ in range(room):
                self._spawn()

    def _check_deadline(self, worker: _Worker) -> None:
        position = worker.process.position
        task = self._task_at(worker, position)
        if task is not None and monotonic() - position.since > task.timeout:
            worker.overdue = position
            worker.process.kill("timeout")

    def _task_at(self, worker: _Worker, position: Position) -> Task | None:
        job = self._job_at(worker, position)
        if job is None or not 0 <= position.task < len(job.unfinished):
            return None
        return job.job.tasks[job.unfinished[position.task]]

    def _job_at(self, worker: _Worker, position: Position) -> _PendingJob | None:
        """The job that a worker runs. The first jobs of a batch are removed as their results arrive."""
        if not worker.sent or worker.sent[0].id != position.batch:
            return None
        sent = worker.sent[0]
        index = position.job - (sent.count - len(sent.pending))
        return sent.pending[index] if 0 <= index < len(sent.pending) else None

    def _on_exit(self, process: WorkerProcess) -> None:
        worker = self._workers.pop(process)
        if self._setting_up is not None and not self._setting_up.done():
            self._setting_up.set_exception(_WorkerExitedError(process.end_with_output))
        if self._closing:
            for sent in worker.sent:
                self._queue.extend(sent.pending)
            return
        if self._on_death is not None and process.killed_for != "closed" and not worker.retired:
            self._on_death(process.killed_for or "crashed")
        self._reclaim_jobs(worker)
        if self._failure is not None:
            return
        if not worker.ready and process.killed_for != "closed":
            self._failed_loads += 1
            if self._manifest is None or self._failed_loads >= _MAX_FAILED_LOADS:
                self._load_failed(process)
                return
        if not worker.spare and not worker.retired:
            self._replace_worker()
        elif worker.spare:
            self._spawn(spare=True)

    def _reclaim_jobs(self, worker: _Worker) -> None:
        """Fail the task at which a worker ended, and queue its other jobs again.

        After a bad reply the worker's position does not show which task wrote into the pipe: all its jobs run again,
        each in a worker of its own.
        """
        unfinished = [job for sent in worker.sent for job in sent.pending]
        position = worker.overdue or worker.process.position
        at = self._job_at(worker, position)
        certain = worker.process.killed_for != "bad_reply" and at is not None
        if certain and at is not None and 0 <= position.task < len(at.unfinished):
            self._fail_task(at, position, worker.process)
        elif len(unfinished) == 1 and unfinished[0].suspect:
            known = at is unfinished[0] and 0 <= position.task < len(unfinished[0].unfinished)
            self._fail_task(unfinished[0], position if known else Position(-1, -1, 0, 0.0), worker.process)
        else:
            for job in unfinished:
                job.suspect = True
        self._queue.extendleft(job for job in reversed(unfinished) if job.unfinished)
        worker.sent.clear()
        self._schedule_dispatch()

    def _fail_task(self, job: _PendingJob, position: Position, process: WorkerProcess) -> None:
        task = job.job.tasks[job.unfinished[position.task]]
        turns = len(job.job.sample.input) if isinstance(job.job.sample.input, list) else 1
        turn = f"turn {position.turn + 1} of {turns}: " if task.role == TARGET and turns > 1 else ""
        job.fail_task(position.task, self._task_error(process, task, turn), process.printed)

    def _task_error(self, process: WorkerProcess, task: Task, turn: str) -> ErrorInfo:
        """Why the task that a worker ran has no result."""
        kind, reason = process.end_of_task(task, self._limits.memory, self._oom_kills)
        trace = process.native_traceback
        first_line = "" if trace is None else f"; {trace.partition(chr(10))[0]}"
        message = clean_text(f"{turn}{task.reference} {reason}{first_line}").text
        return ErrorInfo(kind, message, grade_policy(kind).fault, trace)

    def _replace_worker(self) -> None:
        """The warm spare takes the place of a worker that ended or will end."""
        spare = next((worker for worker in self._workers.values() if worker.spare), None)
        if spare is None:
            self._spawn()
        else:
            spare.spare = False
            self._spawn(spare=True)
        self._schedule_dispatch()

    def _spawn(self, *, spare: bool = False) -> None:
        process = WorkerProcess(self._limits.memory, self._on_reply, self._on_exit)
        worker = self._workers[process] = _Worker(process, spare=spare)
        process.send(LoadCode(self._spec))
        self._schedule_check()
        asyncio.get_running_loop().call_later(self._limits.load_seconds, self._check_load_time, worker)

    def _check_load_time(self, worker: _Worker) -> None:
        if worker.ready or worker.process not in self._workers or self._failure is not None:
            return
        worker.process.kill_with_traceback("load_timeout")

    def _load_failed(self, process: WorkerProcess) -> None:
        """A worker hung or died while it loaded code: load the other files, to report all faults or to continue.

        A pool continues without a file that ended the process. It fails for one that hung, which would cost the time
        limit at each start of a worker.
        """
        spec = self._spec or CodeSpec("", ())
        if process.killed_for == "load_timeout":
            failed = load_timed_out(spec, process.loading, process.output_tail, self._limits.load_seconds)
            self._hung.append(failed)
        else:
            failed = load_crashed(spec, process.loading, process.output_tail, process.exit_text)
        again = self._manifest is not None or not failed.source or failed.source in {one.source for one in spec.failed}
        if again or len(spec.failed) >= _MAX_FAILED_LOADS or len(self._hung) > 1:
            self._fail_all(LoadError([_fault_of(failed)]))
            return
        self._spec = replace(spec, failed=(*spec.failed, failed))
        self._spawn()

    def _folder(self) -> str:
        return self._spec.folder if self._spec is not None else ""

    def _setup_reference(self) -> str:
        return (self._spec.setup if self._spec is not None else None) or "setup"


def _fault_of(failed: LoadFailure) -> LoadFault:
    return LoadFault("", failed.file, failed.line, failed.message)


def _changed_file(before: Manifest, after: Manifest) -> str:
    known = {(entry.role, entry.reference): entry for entry in before.entries}
    for entry in after.entries:
        if known.get((entry.role, entry.reference)) != entry:
            return entry.file
    return next((entry.file for entry in before.entries), "the suite's code")

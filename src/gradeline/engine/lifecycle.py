"""Executes a planned run: it is claimed, its cases are executed and graded, and its end is stored.

Also the event loop of a run, and calls between code with and without an event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from threading import Event, Thread
from time import perf_counter
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from gradeline.engine.definition import how_to_continue, now
from gradeline.engine.early_stopping import early_stopping
from gradeline.engine.execute import INTERRUPTED_REASON, Stop
from gradeline.engine.pipeline import Pipeline, RunTask
from gradeline.engine.plan import ProgressCallback, Work
from gradeline.engine.prepare import PreparedRun, ReadSamples
from gradeline.errors import ConfigError, Outcome, Problem, StoreError
from gradeline.failpoints import failpoint
from gradeline.model import Counts, Run, Storage
from gradeline.model.protocols import StoreWriter
from gradeline.store.database import SharedStorage
from gradeline.store.leases import HEARTBEAT_S, this_process, write_heartbeat

T = TypeVar("T")

WriterFactory: TypeAlias = "Callable[[Storage], StoreWriter]"
"""Creates the writer for the rows of one run; it can be sent to other processes."""


class RunClaimedError(ConfigError):
    """Another process executes the run; there is nothing to fix."""


class RunLock(Protocol):
    """Claims a run, so that one process works on it."""

    def begin(self) -> Run:
        """Claim the run; `ConfigError` if another process has it."""

    def writer(self) -> StoreWriter:
        """Writes the rows of the run."""

    def remote_writer(self) -> WriterFactory:
        """Writes them from another process, as long as the claim holds."""

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:
        """Release the run with these fields changed; ``cause`` is the error that ended it."""


class ProcessLock:
    """Claims a run for this process as long as that lives."""

    def __init__(self, storage: Storage, run: Run) -> None:
        self._storage = storage
        self._run = run
        self._heartbeat: _Heartbeat | None = None

    def begin(self) -> Run:
        me, wanted = this_process(), self._run
        run = self._storage.claim_run(wanted.id, me, wanted.owner) or self._storage.claim_run(wanted.id, me, me)
        if run is None:
            problem = Problem(wanted.id, "was claimed by another process at the same moment, and runs there")
            raise RunClaimedError(problem)
        if isinstance(self._storage, SharedStorage):
            self._heartbeat = _Heartbeat(self._storage, run.id)
        return run

    def writer(self) -> StoreWriter:
        return self._storage.writer()

    def remote_writer(self) -> WriterFactory:
        return partial(_writer_for_owner, run=self._run.id, owner=this_process())

    def end(self, cause: BaseException | None = None, **changes: Any) -> Run:  # noqa: ARG002 - the changes have it
        if self._heartbeat is not None:
            self._heartbeat.stop()
        return self._storage.update_run(self._run.id, **changes)


class _Heartbeat:
    """Writes that this process lives, for readers on other hosts. In a thread: user code may block the event loop."""

    def __init__(self, storage: SharedStorage, run: str) -> None:
        self._database = storage.database
        self._run = run
        self._stopped = Event()
        self._thread = Thread(target=self._beat, name="gradeline-heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            with suppress(StoreError):  # the run's own rows report what is wrong with the store
                self._database.transact(lambda transaction: write_heartbeat(transaction.run, self._run))


def _writer_for_owner(storage: Storage, *, run: str, owner: str) -> StoreWriter:
    found = storage.get_run(run)
    if found is None or found.owner != owner:
        raise ConfigError(Problem(run, "is now executed by another process"))
    return storage.writer()


Phase = Literal["initialise", "execute", "grade", "aggregate"]

_log = logging.getLogger("gradeline.run")
_messages = logging.getLogger("gradeline")


class ExecutedCases(NamedTuple):
    """The number of cases by the work they needed, and the seconds from the first to the last.

    The seconds are None if other processes did the work, which report only the whole.
    """

    done: Counter[Work]
    execute_s: float | None = None
    grade_s: float | None = None


def log_initialised(run: Run, seconds: float) -> None:
    """The suite, its code, graders and target are ready, and the run is claimed."""
    _log_phase(run, "initialise", {"graders": len(run.graders)}, seconds)


def log_executed(run: Run, executed: ExecutedCases, counts: Counts, seconds: float) -> None:
    """All cases are executed and graded, or the run was stopped. ``seconds`` is the time of both together."""
    failed = sum(number for status, number in counts.responses.items() if status != "success")
    figures = {
        "called": executed.done[Work.RERUN],
        "reused": executed.done[Work.REUSE] + executed.done[Work.REGRADE],
        "failed": failed,
    }
    _log_phase(run, "execute", figures, seconds if executed.execute_s is None else executed.execute_s)
    outcomes: Counter[str] = Counter({outcome.value: 0 for outcome in Outcome})
    for column in counts.graders.values():
        outcomes.update(column.outcomes)
    _log_phase(run, "grade", outcomes, seconds if executed.grade_s is None else executed.grade_s)


def log_aggregated(run: Run, counts: Counts, seconds: float) -> None:
    """The run has ended, and its results are counted."""
    figures = {"responses": sum(counts.responses.values()), "graders": len(run.graders)}
    _log_phase(run, "aggregate", figures, seconds, run.status)


def _log_phase(run: Run, phase: Phase, figures: Mapping[str, int], seconds: float, status: str | None = None) -> None:
    if not _log.isEnabledFor(logging.INFO):
        return
    data = {"run": run.id, "phase": phase, **figures, "seconds": round(seconds, 6)}
    parts = [] if status is None else [status]
    parts += [f"{number} {name}" for name, number in figures.items()]
    if status is not None:
        data["status"] = status
    _log.info("run %s: %s: %s in %.3f s", run.id, phase, ", ".join(parts), seconds, extra={"gradeline_phase": data})


ExecuteCases: TypeAlias = "Callable[[RunLock, Run, Stop], Awaitable[ExecutedCases]]"
"""Executes and grades what is missing of a run; all of it is stored when this returns."""


class ExecutionResult(NamedTuple):
    """A run that ended, or was stopped."""

    run: Run
    work: dict[Work, int]
    """Number of cases by the work they needed."""
    stopped: str | None = None
    """Why it ended early."""


async def run_under_lock(storage: Storage, task: RunTask, stop: Stop | None, execute: ExecuteCases) -> ExecutionResult:
    """Claim the run, execute its cases, and store how it ended."""
    started = perf_counter()
    lock = task.lock or ProcessLock(storage, task.run)
    run = lock.begin()
    claimed = perf_counter()
    log_initialised(run, task.prepared_s + claimed - started)
    failpoint("run-saved")
    stop = stop or Stop()
    try:
        executed = await execute(lock, run, stop)
        if (stop.reason is None or stop.decided) and any(grader.judges for grader in run.graders.values()):
            from gradeline.engine.anchors import judge_anchors_after  # few runs have a judge

            await judge_anchors_after(storage, task, run, stop)
    except BaseException as error:
        cause = error
        while isinstance(cause, BaseExceptionGroup):  # the first error ended the others
            cause = cause.exceptions[0]
        interrupted = isinstance(cause, asyncio.CancelledError | KeyboardInterrupt)
        status = "cancelled" if interrupted else "failed"
        with suppress(StoreError):  # most likely the cause itself, which is raised
            lock.end(cause, status=status, error_message=f"{type(cause).__name__}: {cause}"[:2000])
        raise cause from None
    failpoint("run-ending")
    done, ended = executed.done, perf_counter()
    if stop.reason is None or stop.decided:
        early = run.early if task.looks is None else task.looks.last()
        # if the comparison was decided before, only the cases up to there are counted in ``done``
        total = sum(storage.counts(run.id).responses.values()) if stop.decided else done.total()
        run = lock.end(status="completed", total=total, completed_at=now(), early=early)
    else:
        run = lock.end(status="failed" if stop.failed else "cancelled", error_message=stop.reason[:2000])
    failpoint("run-ended")
    counts = storage.counts(run.id)
    log_executed(run, executed, counts, ended - claimed)
    log_aggregated(run, counts, perf_counter() - ended)
    return ExecutionResult(run, dict(done), None if stop.decided else stop.reason)


async def run_local(storage: Storage, task: RunTask, stop: Stop | None = None) -> ExecutionResult:
    """Execute what is missing of a run in this process. ``stop`` ends it early: calls in flight are finished."""

    async def execute(lock: RunLock, run: Run, stop: Stop) -> ExecutedCases:
        claimed = task._replace(run=run, before=storage.counts(run.id))
        planned = claimed.plan(storage)
        async with lock.writer() as writer:
            pipeline = Pipeline(storage, writer, claimed, stop)
            await pipeline.execute(planned)
        return ExecutedCases(pipeline.done, pipeline.clock.execute_s, pipeline.clock.grade_s)

    return await run_under_lock(storage, task, stop, execute)


class RunSpec(NamedTuple):
    """A planned run: its row in the store, and what `execute_run` needs to execute it."""

    run: Run
    prepared: PreparedRun
    resources: AsyncExitStack
    """What planning opened; closed when the run has been executed or its plan is dropped."""
    is_stored: bool = False
    """False: `execute_run` stores the run first."""
    changes: Mapping[str, Any] = {}
    """Fields of a stored run that change before it is executed."""
    samples: ReadSamples | None = None
    """Reads the cases, if they are not in the suite's dataset."""
    clustered: ReadSamples | None = None
    """Cases with stored responses, whose clusters are stored too."""
    retry_failed: bool = True
    fail_fast: bool = False

    def task(self, run: Run) -> RunTask:
        task = self.prepared.task(run)._replace(retry_failed=self.retry_failed, fail_fast=self.fail_fast)
        if run.parent is not None:
            task = task._replace(retry_failed=False, calls_agent=False)
        return task if self.samples is None else task._replace(samples=self.samples)


class Engine(Protocol):
    """Executes the cases of a run: in this process, or on a cluster."""

    async def __call__(
        self, storage: Storage, prepared: PreparedRun, task: RunTask, stop: Stop | None = None
    ) -> ExecutionResult: ...


async def local_engine(
    storage: Storage,
    prepared: PreparedRun,  # noqa: ARG001 - the task has all that this engine needs
    task: RunTask,
    stop: Stop | None = None,
) -> ExecutionResult:
    return await run_local(storage, task, stop)


class RunObserver(NamedTuple):
    """Callbacks for warnings and progress, and a way to stop."""

    warn: Callable[[str], None] = lambda _: None
    progress: Callable[[PreparedRun, Run], AbstractContextManager[ProgressCallback]] = lambda *_: nullcontext(
        lambda _: None
    )
    """Called for each run; the callback that it returns is called for each case."""
    stop: Stop | None = None
    store: str | None = None
    """The store as the user wrote it, for the commands in messages."""
    note: Callable[[str], None] = lambda _: None
    """Called with the progress of a download."""

    @property
    def failed(self) -> bool:
        """True if the run was stopped by a problem that a person must fix."""
        return self.stop is not None and self.stop.failed

    def warn_all(self, warnings: Iterable[str]) -> None:
        for warning in warnings:
            self.warn(warning)


NO_OBSERVER = RunObserver()


async def execute_run(
    storage: Storage,
    spec: RunSpec,
    lock: RunLock | None = None,
    observer: RunObserver = NO_OBSERVER,
    engine: Engine = local_engine,
) -> ExecutionResult:
    """Execute a planned run to its end. ``lock`` claims it; None: for this process."""
    prepared = spec.prepared
    async with spec.resources:
        await prepared.start()
        run = _store(storage, spec)
        with observer.progress(prepared, run) as advance:
            task = spec.task(run)._replace(lock=lock, on_progress=advance)
            try:
                with early_stopping(storage, task, observer.stop) as (task, stop):
                    return await engine(storage, prepared, task, stop)
            except RunClaimedError:
                raise
            except ConfigError:
                observer.warn(f"when this is fixed, {how_to_continue(run.id, storage, observer.store)}")
                raise


def _store(storage: Storage, spec: RunSpec) -> Run:
    """Store the run, if it is new, or its changes.

    A new run belongs to this process: if that dies before the run begins, the run is interrupted and not pending.
    """
    run = spec.run
    if not spec.is_stored:
        run = msgspec.structs.replace(run, owner=this_process())
        storage.save_run(run)
    elif spec.changes:
        run = storage.update_run(run.id, **spec.changes)
    if spec.clustered is not None:
        storage.put_clusters(run.id, ((one.case_key, one.cluster) for one in spec.clustered() if one.cluster))
    return run


class RunLoop(asyncio.SelectorEventLoop):
    """Passes context variables on to threads, as `asyncio.to_thread` does: what a plugin runs there stays guarded."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        if executor is None or isinstance(executor, concurrent.futures.ThreadPoolExecutor):
            return super().run_in_executor(executor, copy_context().run, func, *args)
        return super().run_in_executor(executor, func, *args)


INTERRUPTED_TASKS_S = 2.0
"""Seconds that tasks may take to clean up after Ctrl-C."""


def run_event_loop(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, but Ctrl-C prints no traceback of the task that it interrupts, and does not wait for a task
    that cannot end."""
    with asyncio.Runner(loop_factory=RunLoop) as runner:
        loop = runner.get_loop()
        loop.set_exception_handler(_report)
        try:
            return runner.run(main)
        except KeyboardInterrupt:
            # an interrupt within asyncio may leave behind what a task then awaits for ever while it is cancelled: the
            # runner cancels such a task a second time, and does not wait before that
            if tasks := asyncio.all_tasks(loop):
                for task in tasks:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(tasks, timeout=INTERRUPTED_TASKS_S))
            raise


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An interrupt in a task also ends the loop, which raises it in the caller: the task need not report it."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


class _Running(NamedTuple):
    loop: asyncio.AbstractEventLoop
    task: asyncio.Task[object]
    stop: Stop

    def finish(self) -> None:
        self.loop.call_soon_threadsafe(self.stop.set, INTERRUPTED_REASON)
        _messages.warning("interrupted: calls in flight are finished; interrupt again to stop now")

    def cancel(self) -> None:
        self.loop.call_soon_threadsafe(self.task.cancel)


def wait_for(work: Callable[[Stop], Coroutine[object, object, T]]) -> T:
    """The value of a coroutine, which runs in a thread with its own event loop, so that any code can call this.

    The first `KeyboardInterrupt` sets the stop, the second cancels the coroutine; it is raised when that has ended.
    """
    outcome: concurrent.futures.Future[T] = concurrent.futures.Future()
    started: concurrent.futures.Future[_Running] = concurrent.futures.Future()

    async def main() -> T:
        stop = Stop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that runs is in a task
        started.set_result(_Running(asyncio.get_running_loop(), task, stop))
        return await work(stop)

    def run_main() -> None:
        try:
            value = run_event_loop(main())
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    _start_thread(run_main)
    try:
        concurrent.futures.wait([outcome])
    except KeyboardInterrupt:
        running = started.result()
        for interrupt in (running.finish, running.cancel):
            with suppress(KeyboardInterrupt):
                with suppress(RuntimeError):  # it has ended meanwhile
                    interrupt()
                concurrent.futures.wait([outcome])
                break
        raise
    return outcome.result()


async def call_in_thread(function: Callable[[], T]) -> T:
    """The value of a function that may block. A cancelled call is not waited for: its thread ends with the process."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def call() -> None:
        try:
            value = function()
        except BaseException as error:
            # neither can be the exception of a future: a coroutine takes both for an order to end
            ends = isinstance(error, StopIteration | GeneratorExit)
            reported = RuntimeError(f"{type(error).__name__}: {error}") if ends else error
            settle(lambda: outcome.set_exception(reported))
        else:
            settle(lambda: outcome.set_result(value))

    def settle(set_outcome: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(lambda: None if outcome.done() else set_outcome())

    _start_thread(call)
    return await outcome


def _start_thread(function: Callable[[], None]) -> None:
    """A daemon thread: a function that hangs must not keep the process from ending."""
    Thread(target=copy_context().run, args=(function,), name="gradeline", daemon=True).start()

"""What every run goes through, wherever its cases are worked on: taken, planned, worked through, ended."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter
from typing import Literal, NamedTuple, TypeAlias

from gradeline.engine.aggregate import Summary, summarise
from gradeline.engine.execute import Stop
from gradeline.engine.ownership import ProcessLock, RunLock
from gradeline.engine.pipeline import Pipeline, RunTask
from gradeline.engine.plan import Work
from gradeline.errors import Outcome, StoreError
from gradeline.failpoints import failpoint
from gradeline.model import Counts, Run, Storage

Phase = Literal["initialise", "execute", "grade", "aggregate"]

_log = logging.getLogger("gradeline.run")


class ExecutedCases(NamedTuple):
    """What was done of a run, and how many seconds passed from the first to the last of it.

    None: the cases were worked on elsewhere, and only the whole is known.
    """

    done: Counter[Work]
    execute_s: float | None = None
    grade_s: float | None = None


def log_initialised(run: Run, seconds: float) -> None:
    """The suite, its code, graders and target are ready, and the run is claimed."""
    _log_phase(run, "initialise", {"graders": len(run.graders)}, seconds)


def log_worked(run: Run, worked: ExecutedCases, counts: Counts, seconds: float) -> None:
    """All cases are executed and graded, or the run was stopped. ``seconds`` is what both took together."""
    failed = sum(number for status, number in counts.responses.items() if status != "success")
    executed = {
        "called": worked.done[Work.RERUN],
        "reused": worked.done[Work.REUSE] + worked.done[Work.REGRADE],
        "failed": failed,
    }
    _log_phase(run, "execute", executed, seconds if worked.execute_s is None else worked.execute_s)
    outcomes: Counter[str] = Counter({outcome.value: 0 for outcome in Outcome})
    for column in counts.graders.values():
        outcomes.update(column.outcomes)
    _log_phase(run, "grade", outcomes, seconds if worked.grade_s is None else worked.grade_s)


def log_aggregated(run: Run, counts: Counts, seconds: float) -> None:
    """The run is ended and summed up."""
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
"""Does what is missing of a run, and counts what it did; all of that is stored when it returns."""


class ExecutionResult(NamedTuple):
    """A run that ended, or was stopped."""

    run: Run
    summary: Summary
    work: dict[Work, int]
    """How many cases were reused, regraded and rerun."""
    stopped: str | None = None
    """Why it ended early."""


async def run_under_lock(
    storage: Storage, task: RunTask, stop: Stop | None, work_through: ExecuteCases
) -> ExecutionResult:
    """Take the run, work through it, and say how it ended."""
    started = perf_counter()
    keeper = task.keeper or ProcessLock(storage, task.run)
    run = keeper.begin()
    begun = perf_counter()
    log_initialised(run, task.prepared_s + begun - started)
    failpoint("run-saved")
    stop = stop or Stop()
    try:
        worked = await work_through(keeper, run, stop)
    except BaseException as error:
        cause = error
        while isinstance(cause, BaseExceptionGroup):  # the first fault ended the others
            cause = cause.exceptions[0]
        interrupted = isinstance(cause, asyncio.CancelledError | KeyboardInterrupt)
        status = "cancelled" if interrupted else "failed"
        with suppress(StoreError):  # most likely the cause itself, which is told
            keeper.end(cause, status=status, error_message=f"{type(cause).__name__}: {cause}"[:2000])
        raise cause from None
    failpoint("run-ending")
    done, ended = worked.done, perf_counter()
    if stop.reason is None or stop.decided:
        early = run.early if task.looks is None else task.looks.last()
        # of a run that was decided before, only the cases up to then are gone through again
        total = sum(storage.counts(run.id).responses.values()) if stop.decided else done.total()
        run = keeper.end(status="completed", total=total, completed_at=now(), early=early)
    else:
        run = keeper.end(status="failed" if stop.failed else "cancelled", error_message=stop.reason[:2000])
    failpoint("run-ended")
    counts = storage.counts(run.id)
    log_worked(run, worked, counts, ended - begun)
    summary = summarise(run, counts)
    log_aggregated(run, counts, perf_counter() - ended)
    return ExecutionResult(run, summary, dict(done), None if stop.decided else stop.reason)


def now() -> str:
    """The time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


async def run_local(storage: Storage, task: RunTask, stop: Stop | None = None) -> ExecutionResult:
    """Do what is missing of a run. ``stop`` ends it early: what is in flight is finished and stored."""

    async def work_through(keeper: RunLock, run: Run, stop: Stop) -> ExecutedCases:
        taken = task._replace(run=run, before=storage.counts(run.id))
        planned = taken.plan(storage)
        async with keeper.writer() as writer:
            pipeline = Pipeline(storage, writer, taken, stop)
            await pipeline.work_through(planned)
        return ExecutedCases(pipeline.done, pipeline.clock.execute_s, pipeline.clock.grade_s)

    return await run_under_lock(storage, task, stop, work_through)

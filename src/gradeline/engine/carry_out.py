"""What every run goes through, wherever its cases are worked on: taken, planned, worked through, ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import perf_counter
from typing import NamedTuple, TypeAlias

from gradeline.engine.aggregate import Summary, summarise
from gradeline.engine.keeper import Keeper, ProcessKeeper
from gradeline.engine.phases import Worked, log_aggregated, log_initialised, log_worked
from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import Work
from gradeline.engine.stop import Stop
from gradeline.errors import StoreError
from gradeline.failpoints import failpoint
from gradeline.model import Run, Storage

WorkThrough: TypeAlias = "Callable[[Keeper, Run, Stop], Awaitable[Worked]]"
"""Does what is missing of a run, and counts what it did; all of that is stored when it returns."""


class RunResult(NamedTuple):
    """A run that ended, or was stopped."""

    run: Run
    summary: Summary
    work: dict[Work, int]
    """How many cases were reused, regraded and rerun."""
    stopped: str | None = None
    """Why it ended early."""


async def carry_out(storage: Storage, task: RunTask, stop: Stop | None, work_through: WorkThrough) -> RunResult:
    """Take the run, work through it, and say how it ended."""
    started = perf_counter()
    keeper = task.keeper or ProcessKeeper(storage, task.run)
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
    return RunResult(run, summary, dict(done), None if stop.decided else stop.reason)


def now() -> str:
    """The time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

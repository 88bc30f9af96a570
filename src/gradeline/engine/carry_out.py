"""What every run goes through, wherever its cases are worked on: taken, planned, worked through, ended."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

from gradeline.engine.aggregate import Summary, summarise
from gradeline.engine.keeper import Keeper, ProcessKeeper
from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import Work
from gradeline.engine.stop import Stop
from gradeline.errors import StoreError
from gradeline.failpoints import failpoint
from gradeline.model import Run, Storage

_log = logging.getLogger("gradeline")

WorkThrough: TypeAlias = "Callable[[Keeper, Run, Stop], Awaitable[Counter[Work]]]"
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
    keeper = task.keeper or ProcessKeeper(storage, task.run)
    run = keeper.begin()
    failpoint("run-saved")
    stop = stop or Stop()
    try:
        done = await work_through(keeper, run, stop)
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
    if stop.reason is None:
        run = keeper.end(status="completed", total=done.total(), completed_at=now())
    else:
        run = keeper.end(status="cancelled", error_message=stop.reason)
    failpoint("run-ended")
    work = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
    _log.info("run %s: %s, %s", run.id, run.status, work)
    return RunResult(run, summarise(run, storage.counts(run.id)), dict(done), stop.reason)


def now() -> str:
    """The time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

"""A run in this process: the four phases as one pipeline.

So many coroutines share the plan; each takes the next case, asks, stores, grades, stores. The
agent's slots are fewer than they, so that slow grading keeps no agent waiting, and the plan is
read only as fast as they take from it: memory stays flat whatever the size of the dataset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from gradeline.engine.aggregate import Summary, summarise
from gradeline.engine.conclude import FAIL_FAST
from gradeline.engine.execute import Budget, Executor, Pace, Spending
from gradeline.engine.grade import Graded, GraderUse, Grading
from gradeline.engine.keeper import Keeper, ProcessKeeper
from gradeline.engine.plan import Planned, Work, plan
from gradeline.engine.stop import Stop
from gradeline.errors import ConfigError, Outcome, StoreError
from gradeline.failpoints import failpoint
from gradeline.model import AskingGrader, Response, Run, Sample, Storage, Target, quote
from gradeline.model.protocols import StoreWriter
from gradeline.usercode.pool import WorkerPool

_log = logging.getLogger("gradeline")

_GRADING = 64
"""Cases that may be in grading beyond those that wait for the agent."""
_REUSED_AT_ONCE = 256


class CaseDone(NamedTuple):
    """A (case, repeat) that is done with."""

    planned: Planned
    response: Response | None
    """None where all was there already."""
    graded: Mapping[str, Graded]


class RunTask(NamedTuple):
    """All that a run needs beside the store."""

    run: Run
    samples: Callable[[], Iterable[Sample]]
    """Gives the cases in the order of the dataset, each time anew."""
    target: Target
    graders: tuple[GraderUse, ...]
    pace: Pace = Pace()
    pool: WorkerPool | None = None
    retry_failed: bool = True
    """Ask again where the call failed."""
    asking: bool = True
    """False: what was not answered is left out; a regrade never asks."""
    fail_fast: bool = False
    """End at the first case that does not pass."""
    on_progress: Callable[[CaseDone], None] = lambda _: None
    keeper: Keeper | None = None
    """None: the run is kept for this process."""


class RunResult(NamedTuple):
    """A run that ended, or was stopped."""

    run: Run
    summary: Summary
    work: dict[Work, int]
    """How many cases were reused, regraded and rerun."""
    stopped: str | None = None
    """Why it ended early."""


async def run_local(storage: Storage, task: RunTask, stop: Stop | None = None) -> RunResult:
    """Do what is missing of a run. ``stop`` ends it early: what is in flight is finished and stored."""
    keeper = task.keeper or ProcessKeeper(storage, task.run)
    run = keeper.begin()
    failpoint("run-saved")
    done: Counter[Work] = Counter()
    stop = stop or Stop()
    fingerprints = {use.key: use.fingerprint for use in task.graders}
    stored = storage.keys_of(run.id)
    asking = {use.key for use in task.graders if isinstance(use.grader, AskingGrader)}
    planned = plan(
        run.id, task.samples(), run.repeats, fingerprints, stored, retry_failed=task.retry_failed, asking=asking
    )
    if not task.asking:
        planned = (one for one in planned if one.work is not Work.RERUN)
    _log.info("run %s: planned", run.id)
    try:
        async with keeper.writer() as writer:
            pipeline = _Pipeline(storage, writer, task, done, stop)
            async with asyncio.TaskGroup() as group:
                for _ in range(task.pace.concurrency + _GRADING):
                    group.create_task(pipeline.work(planned))
            await writer.flush()
            if pipeline.fault is not None:
                raise pipeline.fault
    except BaseException as error:
        # the first fault ended the others
        cause = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        interrupted = isinstance(cause, asyncio.CancelledError | KeyboardInterrupt)
        status = "cancelled" if interrupted else "failed"
        with suppress(StoreError):  # most likely the cause itself, which is told
            keeper.end(cause, status=status, error_message=f"{type(cause).__name__}: {cause}"[:2000])
        raise cause from None
    failpoint("run-ending")
    if stop.reason is None:
        run = keeper.end(status="completed", total=sum(done.values()), completed_at=now())
    else:
        run = keeper.end(status="cancelled", error_message=stop.reason)
    failpoint("run-ended")
    work = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
    _log.info("run %s: %s, %s", run.id, run.status, work)
    return RunResult(run, summarise(run, storage.counts(run.id)), dict(done), stop.reason)


class _Pipeline:
    def __init__(self, storage: Storage, writer: StoreWriter, task: RunTask, done: Counter[Work], stop: Stop) -> None:
        self._storage = storage
        self._writer = writer
        spending = Spending(task.pace.budget, *_spent(storage, task))
        self._executor = Executor(task.target, storage, writer, task.pace, spending, stop)
        self._grading = Grading(task.graders, task.pool)
        self._task = task
        self._done = done
        self._stop = stop
        self._spending = spending
        self.fault: ConfigError | None = None
        """What keeps every case from being asked or graded until a person has fixed it."""

    async def work(self, planned: Iterable[Planned]) -> None:
        """Take cases from the shared plan until there are no more."""
        for one in planned:
            if one.work is Work.REUSE:
                case = CaseDone(one, None, {})
                if self._done[Work.REUSE] % _REUSED_AT_ONCE == 0:
                    await asyncio.sleep(0)  # a long row of them must not keep everybody else waiting
            else:
                worked = await self._tried(one)
                if worked is None:
                    return
                case = worked
            self._done[one.work] += 1
            self._task.on_progress(case)
            if self._task.fail_fast:
                self._stop_at_failure(case)
            if self._stop.reason is not None:
                return

    async def _tried(self, planned: Planned) -> CaseDone | None:
        """The case, unless the run ends here: what is in flight elsewhere is paid for, and is finished."""
        try:
            return await self._case(planned)
        except ConfigError as error:
            self.fault = self.fault or error
            self._stop.set(str(error))
            return None

    async def _case(self, planned: Planned) -> CaseDone | None:
        """Ask, store, grade, store; None where the run was stopped before it was asked, or judged."""
        stored = self._storage.get_response(planned.key) if planned.work is Work.REGRADE else None
        response = await self._executor.execute(planned) if stored is None else stored
        if response is None:
            return None
        spent = self._spending.over() if self._grading.asks(planned.graders) else None
        if spent is not None:
            self._stop.set(spent)
            return None
        graded = await self._grading.grade(planned.sample, response, planned.graders, planned.key.repeat)
        for one in graded.values():
            self._spending.paid(one.grade.usage)
        failpoint("graded")
        await self._writer.post_grades(planned.key, graded)
        failpoint("grade-queued")
        return CaseDone(planned, response, graded)

    def _stop_at_failure(self, case: CaseDone) -> None:
        name = f"case {quote(case.planned.key.case)}"
        if case.response is not None and case.response.error is not None:
            self._stop.set(f"{FAIL_FAST}{name}: the call failed ({case.response.error.type})")
        for key, one in case.graded.items():
            if one.grade.outcome in (Outcome.FAIL, Outcome.ERROR):
                self._stop.set(f"{FAIL_FAST}{name}: {key} is {one.grade.outcome.value}")


def _spent(storage: Storage, task: RunTask) -> tuple[int, float]:
    """The calls that this run made before, and what they cost."""
    budget = task.pace.budget
    if budget == Budget():
        return 0, 0.0
    calls, cost = 0, 0.0
    for measure in storage.measures(task.run.id):
        calls += 1
        cost += measure.cost or 0.0
        cost += sum(grade.cost or 0.0 for grade in measure.grades.values())
    return calls, cost


def now() -> str:
    """The time as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

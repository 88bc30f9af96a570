"""One case after the other: ask, store, grade, store.

So many coroutines share a plan; each takes the next case from it. The agent's slots are fewer than they, so that
slow grading keeps no agent waiting, and the plan is read only as fast as they take from it: memory stays flat
whatever the size of the dataset.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gradeline.engine.conclude import FAIL_FAST
from gradeline.engine.execute import Budget, Executor, Pace, Slots, Spending
from gradeline.engine.grade import GraderUse, Grading
from gradeline.engine.keeper import Keeper
from gradeline.engine.plan import Planned, Work, plan
from gradeline.engine.stop import Stop
from gradeline.engine.tally import Advance, CaseDone
from gradeline.errors import ConfigError, Outcome
from gradeline.failpoints import failpoint
from gradeline.model import AskingGrader, Run, Sample, Storage, Target, quote
from gradeline.model.protocols import StoreWriter
from gradeline.usercode.pool import WorkerPool

_GRADING = 64
"""Cases that may be in grading beyond those that wait for the agent."""
_REUSED_AT_ONCE = 256
_TURNS_APART = 25
"""Turns of the event loop from one first question to the next, where answers take longer than that."""


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
    on_progress: Advance = lambda _: None
    keeper: Keeper | None = None
    """None: the run is kept for this process."""
    slots: Slots | None = None
    """Where several tasks share them; None: those of the pace."""

    def plan(self, storage: Storage) -> Iterator[Planned]:
        """What has to be done, in the order of the dataset, beside what the store has of it."""
        run = self.run
        planned = plan(
            run.id,
            self.samples(),
            run.repeats,
            self.fingerprints,
            storage.keys_of(run.id),
            retry_failed=self.retry_failed,
            asking=self.asking_graders,
        )
        return planned if self.asking else (one for one in planned if one.work is not Work.RERUN)

    @property
    def fingerprints(self) -> dict[str, str]:
        return {use.key: use.fingerprint for use in self.graders}

    @property
    def asking_graders(self) -> set[str]:
        """The graders that ask models."""
        return {use.key for use in self.graders if isinstance(use.grader, AskingGrader)}


class Pipeline:
    """Works through the cases of a run."""

    def __init__(self, storage: Storage, writer: StoreWriter, task: RunTask, stop: Stop) -> None:
        self._storage = storage
        self._writer = writer
        spending = spent_before(storage, task)
        slots = task.slots or Slots.of(task.pace)
        self._executor = Executor(task.target, storage, writer, slots, spending, stop, cache=task.pace.cache)
        self._grading = Grading(task.graders, task.pool)
        self._task = task
        self.done: Counter[Work] = Counter()
        """How many cases were reused, regraded and rerun."""
        self._stop = stop
        self._spending = spending
        self._fault: ConfigError | None = None

    async def work_through(self, planned: Iterator[Planned]) -> None:
        """Do all that is planned, or what of it is done when the run is to end; all of that is then stored.

        Raises `ConfigError` for what keeps every case from being asked or graded until a person has fixed it.
        """
        beyond = _GRADING if self._grading.waits else 0
        async with asyncio.TaskGroup() as group:
            group.create_task(self._work(planned))
            await asyncio.sleep(0)
            # calls that begin together end together, and keep each other waiting ever after (see `event_loop`)
            apart = _TURNS_APART if self._executor.asking else 0
            for _ in range(self._task.pace.concurrency + beyond - 1):
                for _ in range(apart):
                    await asyncio.sleep(0)
                group.create_task(self._work(planned))
        await self._writer.flush()
        if self._fault is not None:
            raise self._fault

    async def _work(self, planned: Iterator[Planned]) -> None:
        """Take cases from the shared plan until there are no more."""
        advance, fail_fast, stop = self._task.on_progress, self._task.fail_fast, self._stop
        for one in planned:
            if one.work is Work.REUSE:
                case = CaseDone(one, None, {})
                if self.done[Work.REUSE] % _REUSED_AT_ONCE == 0:
                    await asyncio.sleep(0)  # a long row of them must not keep everybody else waiting
            else:
                try:
                    worked = await self._case(one)
                except ConfigError as error:  # what is in flight elsewhere is paid for, and is finished
                    self._fault = self._fault or error
                    self._stop.set(str(error))
                    return
                if worked is None:
                    return
                case = worked
            self.done[one.work] += 1
            advance(case)
            if fail_fast:
                self._stop_at_failure(case)
            if stop.reason is not None:
                return

    async def _case(self, planned: Planned) -> CaseDone | None:
        """Ask, store, grade, store; None where the run was stopped before it was asked, or judged."""
        stored = self._storage.get_response(planned.key) if planned.work is Work.REGRADE else None
        response = await self._executor.execute(planned) if stored is None else stored
        if response is None:
            return None
        graded = self._grading.grade_now(planned.sample, response, planned.graders)
        if graded is None:
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


def spent_before(storage: Storage, task: RunTask) -> Spending:
    """The run's budget, and what of it earlier calls have spent."""
    budget = task.pace.budget
    if budget == Budget():
        return Spending(budget)
    calls, cost = 0, 0.0
    for measure in storage.measures(task.run.id):
        calls += 1
        cost += measure.cost or 0.0
        cost += sum(grade.cost or 0.0 for grade in measure.grades.values())
    return Spending(budget, calls, cost)

"""Executes the cases of a run: call the agent, store the response, grade it, store the grades.

Several tasks share one plan, and each takes the next case from it. There are more tasks than calls in flight, so that
slow grading does not delay the agent. The plan is read only as fast as tasks take from it, so memory does not grow with
the dataset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from gradeline.engine.aggregate import run_cost
from gradeline.engine.definition import FAIL_FAST, RunBudget
from gradeline.engine.execute import AGENT, CallLimits, CallSlots, Executor, Spending, Stop
from gradeline.engine.grade import CaseRefusedError, GraderUse, Grading, storable
from gradeline.engine.plan import CompletedCase, Graded, Planned, ProgressCallback, Work, plan
from gradeline.errors import UNSURE, ConfigError, Outcome, ProviderRefusedError, StoreError
from gradeline.failpoints import failpoint
from gradeline.model import AsyncGrader, EarlyStopping, Grade, ResponseKey, Run, Sample, Storage, Target, quote
from gradeline.model.protocols import StoreWriter
from gradeline.model.run import Counts
from gradeline.usercode.pools import CodeRunner

if TYPE_CHECKING:
    from gradeline.adapters.costs import Price
    from gradeline.engine.lifecycle import RunLock

_log = logging.getLogger("gradeline")

_GRADING = 64
"""Maximum cases in grading, in addition to the calls in flight."""
_REUSED_AT_ONCE = 256
_MODEL_KEYS = frozenset({"usage", "judges"})
"""Metadata keys of a grade for which a model was called."""


@runtime_checkable
class Refusable(Protocol):
    """A target or a grader that calls a provider which may refuse it."""

    def resume_access(self, *, succeeded: bool, failed: int | None = None) -> None:
        """Report whether calls of the run to the provider succeeded; ``failed`` is their number in a resumed run."""


class InterimLooks(Protocol):
    """The interim looks at a run that may stop early."""

    def last(self) -> EarlyStopping:
        """The last look, when all cases are finished."""


class RunTask(NamedTuple):
    """Everything an engine needs to execute a run, except the store."""

    run: Run
    samples: Callable[[], Iterable[Sample]]
    """Reads the cases in the order of the dataset, anew on each call."""
    target: Target
    graders: tuple[GraderUse, ...]
    limits: CallLimits = CallLimits()
    pool: CodeRunner | None = None
    retry_failed: bool = True
    """Call the agent again for cases whose call failed."""
    calls_agent: bool = True
    """False: cases without a response are left out, as in a regrade."""
    fail_fast: bool = False
    """Stop at the first case that does not pass."""
    on_progress: ProgressCallback = lambda _: None
    looks: InterimLooks | None = None
    """The looks that may stop it before all cases are run."""
    lock: RunLock | None = None
    """None: the run is claimed for this process."""
    before: Counts | None = None
    """The counts of the run when this process claimed it."""
    slots: CallSlots | None = None
    """Slots that several tasks share; None: as ``limits`` says."""
    prepared_s: float = 0.0
    """Seconds spent on preparing the run."""
    price: Price | None = None
    """The user's price for the target's tokens."""

    def plan(self, storage: Storage) -> Iterator[Planned]:
        """What each case needs, in the order of the dataset."""
        run = self.run
        planned = plan(
            run.id,
            self.samples(),
            run.repeats,
            self.fingerprints,
            storage.keys_of(run.id),
            retry_failed=self.retry_failed,
            model_graders=self.model_graders,
            turn_graders=self.turn_fingerprints,
        )
        return planned if self.calls_agent else (one for one in planned if one.work is not Work.RERUN)

    @property
    def fingerprints(self) -> dict[str, str]:
        return {use.key: use.fingerprint for use in self.graders}

    @property
    def turn_fingerprints(self) -> dict[str, str]:
        """By grader, the fingerprint of a grade that joins the turns of a conversation."""
        return {use.key: use.turn_fingerprint for use in self.graders}

    @property
    def refusable_judges(self) -> dict[str, Refusable]:
        """The graders whose providers may refuse the caller."""
        found: dict[str, Refusable] = {}
        for use in self.graders:
            grader: object = use.grader
            if isinstance(grader, Refusable):
                found[use.key] = grader
        return found

    @property
    def model_graders(self) -> set[str]:
        """The graders that call models."""
        return {use.key for use in self.graders if isinstance(use.grader, AsyncGrader)}


class Pipeline:
    """Executes and grades the cases of a run."""

    def __init__(self, storage: Storage, writer: StoreWriter, task: RunTask, stop: Stop) -> None:
        self._storage = storage
        self._writer = writer
        spending = spent_before(storage, task)
        slots = task.slots or CallSlots.of(task.limits)
        self._executor = Executor(
            task.target, storage, writer, slots, spending, stop, cache=task.limits.cache, price=task.price
        )
        self._grading = Grading(task.graders, task.pool)
        self._task = task
        self.done: Counter[Work] = Counter()
        """Number of cases by the work they needed."""
        self.clock = PhaseClock()
        self._stop = stop
        self._spending = spending
        self._fault: ConfigError | None = None
        if task.refusable_judges or isinstance(task.target, Refusable):
            resume_access(task, storage.counts(task.run.id))

    async def execute(self, planned: Iterator[Planned]) -> None:
        """Do all that is planned, or what is done when the run is stopped; all of that is stored on return.

        Raises `ConfigError` for a case that a person must fix. A provider that refuses the caller ends the run as any
        other stop does: it has failed, and can be resumed.
        """
        beyond = _GRADING if self._grading.waits else 0
        async with asyncio.TaskGroup() as group:
            for _ in range(self._task.limits.concurrency + beyond):
                group.create_task(self._work(planned))
        await self._writer.flush()
        if self._fault is not None:
            raise self._fault

    async def _work(self, planned: Iterator[Planned]) -> None:
        """Take cases from the shared plan until there are no more."""
        advance, fail_fast, stop = self._task.on_progress, self._task.fail_fast, self._stop
        for one in planned:
            if one.work is Work.REUSE:
                case = CompletedCase(one, None, {})
            else:
                try:
                    worked = await self._case(one)
                except ProviderRefusedError as error:
                    self._stop.set(str(error), failed=True)
                    return
                except ConfigError as error:  # calls in flight are paid for, and are finished
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
            if one.work is Work.REUSE and self.done[Work.REUSE] % _REUSED_AT_ONCE == 0:
                await asyncio.sleep(0)  # many of them in a row must not block other tasks

    async def _case(self, planned: Planned) -> CompletedCase | None:
        """Call, store, grade, store; None if the run was stopped before the call or the judge."""
        stored = self._storage.get_response(planned.key) if planned.work is Work.REGRADE else None
        response = await self._executor.execute(planned) if stored is None else stored
        if response is None:
            return None
        clock = self.clock
        if stored is None:
            clock.executed = perf_counter()
        if clock.grading is None:
            clock.grading = perf_counter()
        graded = self._grading.grade_now(planned.sample, response, planned.graders)
        paid = graded is None and self._grading.asks(planned.graders)
        if graded is None:
            spent = self._spending.over() if paid else None
            if spent is not None:
                self._stop.set(spent)
                return None
            try:
                graded = await self._grading.grade(
                    planned.sample, response, planned.graders, planned.key.repeat, self._earlier(planned)
                )
            except CaseRefusedError as error:  # stored, with what other judges were paid for: `resume` counts refusals
                self._stop.set(str(error), failed=True)
                graded = error.graded
            for key, one in graded.items():
                self._count(key, one.grade)
        failpoint("graded")
        stored_grades = await self._store_grades(planned.key, graded, paid=paid)
        clock.graded = perf_counter()
        failpoint("grade-queued")
        return CompletedCase(planned, response, stored_grades)

    def _earlier(self, planned: Planned) -> dict[str, Graded]:
        """The stored grades of a response, if graders read them."""
        if planned.work is not Work.REGRADE or not self._grading.reads_grades:
            return {}
        record = self._storage.get_record(planned.key)
        if record is None:
            return {}
        return {key: Graded(record.submissions.get(key), grade) for key, grade in record.grades.items()}

    def _count(self, key: str, grade: Grade) -> None:
        """Count what a judge cost; one that was not called cost nothing."""
        if grade.usage is None and _MODEL_KEYS.isdisjoint(grade.metadata):
            return
        unknown = self._spending.paid(grade.usage, key)
        if unknown is not None:
            self._stop.set(unknown)

    async def _store_grades(
        self, key: ResponseKey, graded: Mapping[str, Graded], *, paid: bool
    ) -> Mapping[str, Graded]:
        """Store the grades; returns them as stored.

        Grades of models, which cost money, are committed when this returns; others soon after: they are free to redo.
        """
        store = self._writer.put_grades if paid else self._writer.post_grades
        try:
            stored = store(key, graded)
        except (AttributeError, TypeError, ValueError, OverflowError, RecursionError):  # a grade cannot be encoded
            graded = storable(graded)
            stored = store(key, graded)
        try:
            await stored
        except StoreError as error:
            self._stop.set(str(error))  # nothing more may be paid that cannot be stored
            raise
        return graded

    def _stop_at_failure(self, case: CompletedCase) -> None:
        name = f"case {quote(case.planned.key.case)}"
        if case.response is not None and case.response.error is not None:
            self._stop.set(f"{FAIL_FAST}{name}: the call failed ({case.response.error.type})")
        for key, one in case.graded.items():
            unsure = one.grade.error is not None and one.grade.error.type == UNSURE
            if one.grade.outcome in (Outcome.FAIL, Outcome.ERROR) and not unsure:
                self._stop.set(f"{FAIL_FAST}{name}: {key} is {one.grade.outcome.value}")


def resume_access(task: RunTask, now: Counts) -> None:
    """Tell the target and the judges how many of their calls the run has stored; a refusal that stopped it counts."""
    before = task.before
    if isinstance(task.target, Refusable):
        asked = 0 if before is None else sum(before.responses.values())
        failed = asked - before.responses["success"] if before is not None and asked else None
        task.target.resume_access(succeeded=bool(now.responses["success"]), failed=failed)
    is_graded = before is not None and any(sum(one.outcomes.values()) for one in before.graders.values())
    for key, judge in task.refusable_judges.items():
        failed = _graded(before, key, "error") if before is not None and is_graded else None
        judge.resume_access(succeeded=bool(_graded(now, key, "pass", "fail")), failed=failed)


def _graded(counts: Counts, key: str, *outcomes: str) -> int:
    found = counts.graders.get(key)
    return 0 if found is None else sum(found.outcomes[outcome] for outcome in outcomes)


def paid_parts(target: Target, graders: Iterable[GraderUse], *, calls_agent: bool = True) -> dict[str, bool | None]:
    """Everything that costs money, by name: True if its price is known, None if only its responses can show that."""
    pricing = getattr(target, "pricing", "reported") if calls_agent else "free"
    agent = {} if pricing == "free" else {AGENT: {"priced": True, "unpriced": False}.get(pricing)}
    return agent | {use.key: not unpriced_of(use) for use in graders if _calls_models(use)}


def _calls_models(use: GraderUse) -> bool:
    """Whether its calls may cost something: programs and servers have neither models nor prices."""
    return isinstance(use.grader, AsyncGrader) and bool(use.grader.judges or unpriced_of(use))


def unpriced_of(use: GraderUse) -> tuple[str, ...]:
    """The judges of a grader without a known price."""
    found: tuple[str, ...] = getattr(use.grader, "unpriced", ())
    return found


def spent_before(storage: Storage, task: RunTask) -> Spending:
    """The run's budget with what earlier calls spent."""
    budget = task.limits.budget
    if budget == RunBudget():
        return Spending(budget)
    cost = run_cost(storage, task.run.id)
    parts = paid_parts(task.target, task.graders, calls_agent=task.calls_agent)
    if cost.unknown and budget.cost is not None and AGENT in parts:
        _log.warning("no cost is known for %d stored responses: they do not count towards the budget", cost.unknown)
    priced = [name for name, known in parts.items() if known]
    return Spending(budget, cost.calls, cost.total, priced, [name for name, known in parts.items() if known is False])


class PhaseClock:
    """When cases were executed and graded."""

    __slots__ = ("began", "executed", "graded", "grading")

    def __init__(self) -> None:
        self.began = self.executed = self.graded = perf_counter()
        self.grading: float | None = None
        """When the first response could be graded."""

    @property
    def execute_s(self) -> float:
        return self.executed - self.began

    @property
    def grade_s(self) -> float:
        return 0.0 if self.grading is None else self.graded - self.grading

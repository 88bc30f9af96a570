"""Grades responses with built-in graders, user code and judges.

Built-ins run in this process. User code, and built-ins that could take too long, run in workers: one message has a
sample with all its tasks. Judges are called concurrently.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.plan import (
    Graded,
    Turn,
    by_turn_fingerprint,
    is_by_turn,
    joined_grade,
    joined_submission,
    turns_of,
)
from gradeline.errors import (
    BadReplyError,
    CaseLeftOut,
    DataError,
    GraderError,
    MissingDataError,
    NeedsIsolationError,
    Outcome,
    Problem,
    ProviderRefusedError,
)
from gradeline.extractors import DeclaredExtractor
from gradeline.extractors import create as create_extractor
from gradeline.graders import DeclaredGrader, run_async_grader, run_grader
from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.graders.case_values import sample_value
from gradeline.graders.grading import EMPTY_SUBMISSION, error_grade, result_grade, skipped_grade
from gradeline.model import (
    AsyncGrader,
    ErrorInfo,
    Extractor,
    Grade,
    GradeContext,
    GraderProtocol,
    Record,
    Response,
    Sample,
    clean_text,
    quote,
    to_json,
)
from gradeline.model.config import canonical_options
from gradeline.model.context import copy_response, is_own_class
from gradeline.model.fingerprint import fingerprint
from gradeline.model.response import total_usage
from gradeline.model.run import TurnRule
from gradeline.model.text import quote_typed, scalar_text
from gradeline.suite.case_condition import CaseCondition
from gradeline.usercode import pools
from gradeline.usercode.pools import CodeRunner
from gradeline.usercode.process_control import GRADER_MEMORY
from gradeline.usercode.protocol import Job, Task, TaskResult

_SCALAR = str | int | float
_AHEAD = 512
"""Maximum cases that are graded at the same time."""


class UserGrader(NamedTuple):
    """A custom grader: its reference for workers, and its fingerprint."""

    reference: str
    fingerprint: str
    timeout: float = 5.0
    kind: str = "tool"
    memory: int = GRADER_MEMORY


class UserReward(NamedTuple):
    """A custom function that computes one score from the grades of all other graders."""

    reference: str
    fingerprint: str
    timeout: float = 5.0
    kind: str = "reward"


class UserExtractor(NamedTuple):
    """A custom extractor with its options."""

    reference: str
    fingerprint: str
    config: Mapping[str, Any] = {}
    timeout: float = 5.0
    memory: int = GRADER_MEMORY


_NONE: Mapping[str, Graded] = MappingProxyType({})

Baseline = Callable[[Sample, int], Response]
"""The response of the baseline to a case and repeat; `MissingDataError` if there is none."""


class GraderUse(NamedTuple):
    """A grader of a run with its extractor and its pass threshold."""

    key: str
    grader: UserGrader | UserReward | GraderProtocol
    extractor: UserExtractor | Extractor
    pass_threshold: float | None = None
    baseline: Baseline | None = None
    """The responses to compare with, for a grader that needs them."""
    turns: TurnRule = "all"
    """When a conversation that is graded turn by turn passes."""
    noise: float = 0.0
    """Smaller changes of a score count as same in comparisons; scores do not change."""
    when: CaseCondition | None = None
    """The cases that the grader applies to; None: all."""
    expected: str | None = None
    """The value of the case, as ``$metadata.key``, that replaces its ground truth for this grader."""
    inputs: Mapping[str, str] = {}
    """The columns whose grades the grader reads, with their fingerprints."""

    @property
    def fingerprint(self) -> str:
        """Covers everything that decides scores and passes: the grader's own fingerprint if nothing is configured."""
        return self._fingerprint_with(self.grader.fingerprint)

    @property
    def judge_fingerprint(self) -> str:
        """As ``fingerprint``, without what a judge learned from labels, and without a baseline run."""
        return self._fingerprint_with(getattr(self.grader, "judge_fingerprint", self.grader.fingerprint))

    def _fingerprint_with(self, own: str) -> str:
        rule = () if self.turns == "all" else (self.turns,)
        selection = {
            "when": None if self.when is None else self.when.written,
            "expected": self.expected,
            "inputs": dict(self.inputs),
        }
        chosen = {key: value for key, value in selection.items() if value}
        usual = self.pass_threshold is None and not rule and not chosen
        if usual and self.extractor.fingerprint == _whole_answer().fingerprint:
            return own
        config = dict(self.extractor.config) if isinstance(self.extractor, UserExtractor) else {}
        parts = (*rule, chosen) if chosen else rule
        return fingerprint("column", own, self.extractor.fingerprint, config, self.pass_threshold, *parts)

    @property
    def turn_fingerprint(self) -> str:
        """The fingerprint of a grade that joins the turns of a conversation.

        With ``expected`` only the expected value decides whether turns are graded apart, so there is one fingerprint.
        """
        return self.fingerprint if self.expected is not None else by_turn_fingerprint(self.fingerprint)


def _reads_grades(use: GraderUse) -> bool:
    if isinstance(use.grader, UserGrader):
        return False
    return isinstance(use.grader, UserReward) or "grades" in use.grader.needs


def expecting(sample: Sample, reference: str | None, path: str) -> Sample:
    """The case with another expected value: a list with one item for each turn as it is, other data as JSON.

    Raises `MissingDataError` if the case does not have the value.
    """
    if reference is None:
        return sample
    found = sample_value(reference, sample, path)
    if found is None:
        raise MissingDataError(f"{path}: {reference} is null in this case")
    if isinstance(found, list) and isinstance(sample.input, list) and len(found) == len(sample.input):
        turns = [scalar_text(item) for item in found if isinstance(item, _SCALAR)]
        if len(turns) == len(found):
            return msgspec.structs.replace(sample, ground_truth=turns)
    text = scalar_text(found) if isinstance(found, _SCALAR) else msgspec.json.encode(found).decode()
    return msgspec.structs.replace(sample, ground_truth=text)


@cache
def _whole_answer() -> Extractor:
    return create_extractor(DEFAULT_EXTRACTOR)


class CaseRefusedError(ProviderRefusedError):
    """A provider refuses every call of a judge; ``graded`` has the grades of the case's judges and that error."""

    def __init__(self, problems: Sequence[Problem], graded: dict[str, Graded]) -> None:
        super().__init__(problems)
        self.graded = graded


class Grading:
    """Grades many responses with the same graders. Without a pool only built-ins can be used.

    A grader that reads the grades of others comes after them: ``uses`` are in such an order.
    """

    def __init__(self, uses: Sequence[GraderUse], pool: CodeRunner | None) -> None:
        self._uses = {use.key: use for use in uses}
        self._renamed = {use.key: use.fingerprint for use in uses if use.fingerprint != use.grader.fingerprint}
        self._by_turn = {use.key: use.turn_fingerprint for use in uses}
        self._inputs = {use.key: self._inputs_of(use) for use in uses if _reads_grades(use)}
        self._judges = {use.key: use.grader for use in uses if isinstance(use.grader, AsyncGrader)}
        self._pool = pool
        self._keys = tuple(self._uses)
        self._all = list(self._uses.values())
        self._depends_on_case = any(use.when is not None or use.expected is not None for use in uses)
        self._plain = not (self._renamed or self._inputs or self._judges or self._depends_on_case)
        """True if every grade is returned as its grader made it."""
        self._instant = self._plain and not self.waits

    def _inputs_of(self, use: GraderUse) -> tuple[str, ...]:
        """The columns that a grader reads: those that it names; for a reward all others."""
        if not isinstance(use.grader, UserReward):
            return tuple(use.inputs)
        return tuple(key for key, other in self._uses.items() if not isinstance(other.grader, UserReward))

    @property
    def waits(self) -> bool:
        """True if a grade may come from a model or a worker."""
        return any(
            isinstance(use.grader, UserGrader | UserReward | AsyncGrader) or isinstance(use.extractor, UserExtractor)
            for use in self._all
        )

    @property
    def reads_grades(self) -> bool:
        """True if a grader reads the grades of others."""
        return bool(self._inputs)

    def asks(self, keys: Iterable[str]) -> bool:
        """True if one of these graders calls a model, which may cost money."""
        return not self._judges.keys().isdisjoint(keys)

    def grade_now(self, sample: Sample, response: Response, keys: Iterable[str]) -> dict[str, Graded] | None:
        """As `grade`, if no model and no worker is needed; else None."""
        if not self._instant or response.error is not None or is_by_turn(sample):
            return None
        done: dict[str, Graded] = {}
        for use in self._all if keys == self._keys else [self._uses[key] for key in keys]:
            graded = _grade_here(use, sample, response)
            if not isinstance(graded, Graded):
                return None
            done[use.key] = graded
        return done

    async def grade(
        self,
        sample: Sample,
        response: Response,
        keys: Iterable[str] | None = None,
        repeat: int = 0,
        earlier: Mapping[str, Graded] = _NONE,
    ) -> dict[str, Graded]:
        """The grades by all graders, or by those named; a failed call is ``skipped``.

        Graders that read a grade which changes are called too. ``earlier`` are grades of the response that are stored:
        those by the same graders are read and not made again. Raises `ConfigError` if no model can be called until a
        person fixes the configuration; a `CaseRefusedError` has the grades of the other judges.
        """
        if self._plain and response.error is None and not is_by_turn(sample):
            uses = self._all if keys is None or keys == self._keys else [self._uses[key] for key in keys]
            return await self._whole(sample, response, uses)
        wanted = set(self._keys if keys is None else keys)
        known = self._same_graders(sample, earlier)
        for key, inputs in self._inputs.items():
            if wanted.intersection(inputs):
                wanted.add(key)
        for key in reversed(self._inputs):
            if key in wanted:
                wanted.update(name for name in self._inputs[key] if name not in known)
        first = [use for use in self._all if use.key in wanted and use.key not in self._inputs]
        done = await self._for_case(sample, response, first, repeat)
        for key in self._inputs:
            if key not in wanted:
                continue
            others = {name: done.get(name) or known[name] for name in self._inputs[key]}
            done |= await self._from_grades(self._uses[key], sample, response, others)
        return {key: done[key] for key in self._keys if key in done}

    def _same_graders(self, sample: Sample, earlier: Mapping[str, Graded]) -> dict[str, Graded]:
        """The earlier grades that these graders would make again."""
        by_turn = is_by_turn(sample)
        return {
            key: one
            for key, one in earlier.items()
            if key in self._uses
            and one.grade.fingerprint == (self._by_turn[key] if by_turn else self._uses[key].fingerprint)
        }

    async def _for_case(
        self, sample: Sample, response: Response, uses: Sequence[GraderUse], repeat: int
    ) -> dict[str, Graded]:
        """The grades by graders that read no other grades, each with the case as it sees it."""
        if not self._depends_on_case:
            return await self._signed_grades(sample, response, uses, repeat)
        done, views = self._views(sample, response, uses)
        refusals: list[CaseRefusedError] = []
        graded = await asyncio.gather(
            *(self._signed_grades(view, response, some, repeat) for view, some in views), return_exceptions=True
        )
        for one in graded:
            if isinstance(one, CaseRefusedError):
                refusals.append(one)
                done |= one.graded
            elif isinstance(one, BaseException):
                raise one
            else:
                done |= one
        if refusals:
            raise CaseRefusedError(refusals[0].problems, done)
        return {use.key: done[use.key] for use in uses}

    def _views(
        self, sample: Sample, response: Response, uses: Sequence[GraderUse]
    ) -> tuple[dict[str, Graded], list[tuple[Sample, list[GraderUse]]]]:
        """The grades that the case alone decides, and the other graders by the case as they see it."""
        decided: dict[str, Graded] = {}
        views: dict[str | None, tuple[Sample, list[GraderUse]]] = {}
        for use in uses:
            try:
                if use.when is not None and not use.when.holds(sample):
                    raise CaseLeftOut(Outcome.NOT_APPLICABLE, f"applies only when {use.when}")
                reference = use.expected if response.error is None else None  # a failed call is not graded
                if reference not in views:
                    views[reference] = (expecting(sample, reference, f"{use.key}.expected"), [])
                views[reference][1].append(use)
            except GraderError as error:
                decided[use.key] = Graded(None, self._signed_error(use, error, by_turn=is_by_turn(sample)))
        return decided, list(views.values())

    def _signed_error(self, use: GraderUse, error: GraderError, *, by_turn: bool) -> Grade:
        return error_grade(use.grader.kind, self._by_turn[use.key] if by_turn else use.fingerprint, error)

    async def _signed_grades(
        self, sample: Sample, response: Response, uses: Sequence[GraderUse], repeat: int
    ) -> dict[str, Graded]:
        by_turn = is_by_turn(sample)
        if response.error is not None:
            return self._signed({use.key: Graded(None, _skipped(use)) for use in uses}, by_turn=by_turn)
        try:
            return self._signed(await self._direct(sample, response, uses, repeat), by_turn=by_turn)
        except CaseRefusedError as error:
            error.graded = self._signed(error.graded, by_turn=by_turn)
            raise

    async def _from_grades(
        self, use: GraderUse, sample: Sample, response: Response, others: Mapping[str, Graded]
    ) -> dict[str, Graded]:
        """The grade by a grader that reads the grades of others."""
        done, views = self._views(sample, response, [use])
        for view, _ in views:
            if response.error is not None:
                graded = Graded(None, _skipped(use))
            elif isinstance(use.grader, UserReward):
                graded = await self._rewarded(use, use.grader, view, response, others)
            elif isinstance(use.grader, UserGrader):
                raise TypeError(f"{use.key}: custom graders do not read the grades of others")
            else:
                ctx = GradeContext(view, "", response, grades={key: one.grade for key, one in others.items()})
                graded = Graded(None, run_grader(use.grader, ctx, pass_threshold=use.pass_threshold))
            done |= self._signed({use.key: graded}, by_turn=is_by_turn(sample))
        return done

    def _signed(self, graded: dict[str, Graded], *, by_turn: bool) -> dict[str, Graded]:
        names = self._by_turn if by_turn else self._renamed
        for key in names.keys() & graded.keys():
            one = graded[key]
            grade = msgspec.structs.replace(one.grade, fingerprint=names[key])
            graded[key] = Graded(one.submission, grade)
        return graded

    async def _direct(
        self, sample: Sample, response: Response, uses: Sequence[GraderUse], repeat: int
    ) -> dict[str, Graded]:
        judges = [use for use in uses if use.key in self._judges]
        if not judges:
            return await self._without_calls(sample, response, uses)
        others = [use for use in uses if use.key not in self._judges]
        calls = [asyncio.ensure_future(self._call_judge(use, sample, response, repeat)) for use in judges]
        without_calls = asyncio.ensure_future(self._without_calls(sample, response, others))
        # all are awaited, since they are paid: a refused one must not leave the others running
        await asyncio.gather(without_calls, *calls, return_exceptions=True)
        refusal: Sequence[Problem] = ()
        done: dict[str, Graded] = {}
        try:
            for use, one in zip(judges, calls, strict=True):
                try:
                    done[use.key] = one.result()
                except ProviderRefusedError as error:
                    refusal = error.problems
                    done[use.key] = Graded(None, _error(use, error))
            if refusal:
                raise CaseRefusedError(refusal, done)
            done |= without_calls.result()
        finally:
            del without_calls, calls  # an error raised here holds this frame, and the frame must not hold the error
        return {use.key: done[use.key] for use in uses}

    async def _without_calls(self, sample: Sample, response: Response, uses: Sequence[GraderUse]) -> dict[str, Graded]:
        if not is_by_turn(sample):
            return await self._whole(sample, response, uses)
        try:
            parts = turns_of(sample, response)
        except MissingDataError as error:
            whole = [use for use in uses if isinstance(use.grader, GraderProtocol) and not use.grader.reads_submission]
            unknown = {use.key: Graded(None, _error(use, error)) for use in uses}
            return unknown | await self._whole(sample, response, whole)
        turns = [await self._whole(*turn, uses) for turn in parts]
        return {use.key: _joined(use, [turn[use.key] for turn in turns]) for use in uses}

    async def _call_judge(self, use: GraderUse, sample: Sample, response: Response, repeat: int) -> Graded:
        baseline: Response | None = None
        if "baseline" in self._judges[use.key].needs:
            try:
                baseline = _baseline(use, sample, repeat)
            except GraderError as error:
                return Graded(None, _error(use, error))
        if not is_by_turn(sample):
            return await self._call_judge_once(use, Turn(sample, response), baseline)
        try:
            turns = turns_of(sample, response)
            others = [None] * len(turns) if baseline is None else _baseline_turns(sample, baseline)
        except MissingDataError as error:
            return Graded(None, _error(use, error))
        graded = [await self._call_judge_once(use, turn, other) for turn, other in zip(turns, others, strict=True)]
        return _joined(use, graded)

    async def _call_judge_once(self, use: GraderUse, turn: Turn, baseline: Response | None) -> Graded:
        submission = await self._extracted(use, turn)
        if isinstance(submission, Grade):
            return Graded(None, submission)
        other = None if baseline is None else await self._extracted(use, Turn(turn.sample, baseline))
        if isinstance(other, Grade):
            return Graded(submission, other)
        ctx = GradeContext(turn.sample, submission, turn.response, baseline, baseline_submission=other)
        return Graded(submission, await run_async_grader(self._judges[use.key], ctx, pass_threshold=use.pass_threshold))

    async def _extracted(self, use: GraderUse, turn: Turn) -> str | Grade:
        """The submission, or the grade of an extractor that failed."""
        try:
            submission = _submission(use, turn.response)
        except Exception as error:
            return _error(use, error)
        if isinstance(submission, str):
            return submission
        (result,) = await self._workers(use.key).run(Job(turn.sample, (submission,), turn.response))
        if result.text is None:
            return to_grade(result, use.grader.kind, use.grader.fingerprint)
        return result.text

    async def _whole(self, sample: Sample, response: Response, uses: Sequence[GraderUse]) -> dict[str, Graded]:
        done: dict[str, Graded] = {}
        remote: dict[str, list[Task]] = {}
        for use in uses:
            graded = _grade_here(use, sample, response)
            if isinstance(graded, Graded):
                done[use.key] = graded
            else:
                remote[use.key] = graded
        if not remote:
            return done
        done |= await self._grade_in_worker(sample, response, remote)
        return {use.key: done[use.key] for use in uses}

    async def _rewarded(
        self, use: GraderUse, reward: UserReward, sample: Sample, response: Response, others: Mapping[str, Graded]
    ) -> Graded:
        others = {key: one for key, one in others.items() if one.grade.outcome is not Outcome.NOT_APPLICABLE}
        missing = [key for key, one in others.items() if one.grade.score is None]
        if missing:
            error = MissingDataError(f"{', '.join(missing)} gave no score, so there is nothing to reward")
            return Graded(None, _error(use, error))
        config: dict[str, Any] = {
            "grades": {
                key: {
                    "score": one.grade.score,
                    "rationale": one.grade.rationale,
                    "metadata": one.grade.metadata,
                    "passed": one.grade.passed,
                }
                for key, one in others.items()
            },
            "submissions": {key: one.submission for key, one in others.items()},
        }
        task = Task("reward_composer", reward.reference, config=config, timeout=reward.timeout)
        (result,) = await self._workers(use.key).run(Job(sample, (task,), response))
        return Graded(None, to_grade(result, use.grader.kind, use.grader.fingerprint, use.pass_threshold))

    async def _grade_in_worker(
        self, sample: Sample, response: Response, remote: Mapping[str, list[Task]]
    ) -> dict[str, Graded]:
        tasks: list[Task] = []
        for own in remote.values():
            tasks += [task if task.extract is None else _shifted(task, len(tasks)) for task in own]
        results = iter(await self._workers(*remote).run(Job(sample, tuple(tasks), response)))
        return {key: _from_results(self._uses[key], own, [next(results) for _ in own]) for key, own in remote.items()}

    def _workers(self, *keys: str) -> CodeRunner:
        if self._pool is None:
            raise RuntimeError(f"{', '.join(keys)} need worker processes, and there is no pool")
        return self._pool


def _grade_here(use: GraderUse, sample: Sample, response: Response) -> Graded | list[Task]:
    """The grade, if this process can compute it, else the tasks for a worker."""
    if isinstance(use.grader, UserReward):
        raise TypeError(f"{use.key}: a reward is made of the other grades")
    try:
        submission = _submission(use, response)
    except Exception as error:
        return Graded(None, _error(use, error))
    if isinstance(submission, Task):
        if not isinstance(use.grader, UserGrader | DeclaredGrader):
            raise TypeError(f"{use.key}: a grader of this kind cannot follow an extractor that runs in a worker")
        return [submission, _grading_task(use, "", extract=0)]
    if isinstance(use.grader, UserGrader):
        return [_grading_task(use, submission)] if submission else Graded(submission, _empty(use))
    ctx = GradeContext(sample, submission, response)
    submission = ctx.submission
    grade = run_grader(use.grader, ctx, pass_threshold=use.pass_threshold, isolate=False)
    if grade.error is None or grade.error.type != NeedsIsolationError.type:
        return Graded(submission, grade)
    return [_grading_task(use, submission)] if isinstance(use.grader, DeclaredGrader) else Graded(submission, grade)


def _submission(use: GraderUse, response: Response) -> str | Task:
    """The submission, if this process can extract it, else the task for a worker."""
    if isinstance(use.extractor, UserExtractor):
        own = use.extractor
        return Task("extractor", own.reference, config=dict(own.config), timeout=own.timeout, memory=own.memory)
    extractor = use.extractor
    if not is_own_class(type(extractor)):
        return _extracted_by_plugin(extractor, response)
    try:
        return extractor.extract(response)
    except NeedsIsolationError:
        if not isinstance(extractor, DeclaredExtractor):
            raise
        options = canonical_options(extractor.options)
        return Task("builtin-extractor", extractor.kind, config=options, timeout=pools.DEADLINE_S)


def _extracted_by_plugin(extractor: Extractor, response: Response) -> str:
    """The submission by a plugin's extractor, which gets a copy of the response."""
    try:
        text: object = extractor.extract(copy_response(response))
    except SystemExit as error:
        raise BadReplyError(f"extractor {extractor.kind!r} raised SystemExit({quote(error.code)})") from error
    if not isinstance(text, str):
        raise BadReplyError(f"extractor {extractor.kind!r} returned {quote_typed(text)}; return a string")
    return clean_text(str.__str__(text)).text


def _baseline(use: GraderUse, sample: Sample, repeat: int) -> Response:
    if use.baseline is None:
        raise MissingDataError("there is no baseline to compare with")
    return use.baseline(sample, repeat)


def _baseline_turns(sample: Sample, baseline: Response) -> list[Response]:
    try:
        return [turn.response for turn in turns_of(sample, baseline)]
    except MissingDataError as error:
        raise MissingDataError(f"the baseline's response: {error}") from None


def _joined(use: GraderUse, turns: Sequence[Graded]) -> Graded:
    return Graded(
        joined_submission([turn.submission for turn in turns]),
        joined_grade([turn.grade for turn in turns], use.turns, use.pass_threshold),
    )


def _from_results(use: GraderUse, tasks: Sequence[Task], results: Sequence[TaskResult]) -> Graded:
    if len(tasks) == 1:
        return Graded(
            tasks[0].submission, to_grade(results[0], use.grader.kind, use.grader.fingerprint, use.pass_threshold)
        )
    extracted, graded = results
    if extracted.text is None:
        return Graded(None, to_grade(extracted, use.grader.kind, use.grader.fingerprint))
    if not extracted.text:
        return Graded("", _empty(use))
    return Graded(extracted.text, to_grade(graded, use.grader.kind, use.grader.fingerprint, use.pass_threshold))


def _grading_task(use: GraderUse, submission: str, extract: int | None = None) -> Task:
    if isinstance(use.grader, UserGrader):
        own = use.grader
        return Task("grader", own.reference, submission, extract, timeout=own.timeout, memory=own.memory)
    if not isinstance(use.grader, DeclaredGrader):
        raise TypeError(f"{use.key}: a grader of this kind cannot run in a worker")
    options = canonical_options(use.grader.options)
    return Task("builtin-grader", use.grader.kind, submission, extract, options, pools.DEADLINE_S)


def _shifted(task: Task, by: int) -> Task:
    """The task with its index shifted: the task that it reads from is right before it."""
    return msgspec.structs.replace(task, extract=by)


def _empty(use: GraderUse) -> Grade:
    return Grade(use.grader.kind, use.grader.fingerprint, Outcome.FAIL, 0.0, False, EMPTY_SUBMISSION)


def _skipped(use: GraderUse) -> Grade:
    return skipped_grade(use.grader.kind, use.grader.fingerprint)


def _error(use: GraderUse, error: Exception) -> Grade:
    return error_grade(use.grader.kind, use.grader.fingerprint, error)


def to_grade(result: TaskResult, kind: str, fingerprint: str, pass_threshold: float | None = None) -> Grade:
    """A worker's result as a grade."""
    error: Exception | ErrorInfo | None = result.error
    latency_ms, output = result.latency_ms, result.output
    if result.result is not None:
        try:
            return result_grade(kind, fingerprint, result.result, pass_threshold, latency_ms=latency_ms, output=output)
        except DataError as fault:
            error = fault
    if error is None:
        raise ValueError("a worker's result has neither a grade nor an error")
    return error_grade(kind, fingerprint, error, latency_ms, output=output)


def storable(graded: Mapping[str, Graded]) -> dict[str, Graded]:
    """The grades, with an error instead of each grade that cannot be stored."""
    return {key: one if (why := _unstorable(one)) is None else _not_stored(one, why) for key, one in graded.items()}


def _unstorable(one: Graded) -> Exception | None:
    try:
        to_json(one.grade)
        total_usage([one.grade.usage])
        (one.submission or "").encode()
    except Exception as error:
        return error
    return None


def _not_stored(one: Graded, why: Exception) -> Graded:
    error = BadReplyError(f"the grade cannot be stored: {type(why).__name__}: {why}")
    return Graded(None, error_grade(one.grade.kind, one.grade.fingerprint, error))


class SubmittedCase(NamedTuple):
    """A sample with the submission to grade."""

    sample: Sample
    submission: str


async def grade_cases(
    pool: CodeRunner, graders: Mapping[str, UserGrader | GraderProtocol], cases: Iterable[SubmittedCase], run: str
) -> AsyncIterator[Record]:
    """The records of the cases, in order; several cases are graded at the same time."""
    whole = _whole_answer()
    grading = Grading([GraderUse(key, grader, whole) for key, grader in graders.items()], pool)
    ahead: deque[asyncio.Task[Record]] = deque()
    try:
        for case in cases:
            ahead.append(asyncio.create_task(_grade_case(grading, case, run)))
            if len(ahead) >= _AHEAD:
                yield await ahead.popleft()
        while ahead:
            yield await ahead.popleft()
    finally:
        for task in ahead:
            task.cancel()


async def _grade_case(grading: Grading, case: SubmittedCase, run: str) -> Record:
    response = Response(text=case.submission)
    return as_record(run, case.sample, response, await grading.grade(case.sample, response))


def as_record(run: str, sample: Sample, response: Response, graded: Mapping[str, Graded], repeat: int = 0) -> Record:
    """The join of a response and its grades."""
    submissions = {key: one.submission for key, one in graded.items() if one.submission is not None}
    grades = {key: one.grade for key, one in graded.items()}
    return Record(run, sample.case_key, repeat, sample, response, submissions, grades)


async def grade_once(
    grader: GraderProtocol,
    extractor: Extractor,
    sample: Sample,
    response: Response,
    pass_threshold: float | None = None,
) -> Graded:
    """The grade of one response, as in a run; workers start only for graders that could take too long."""
    use = GraderUse(grader.kind, grader, extractor, pass_threshold)
    return (await Grading([use], pools.ISOLATED).grade(sample, response))[use.key]

"""Judges anchors again: a few at the end of each run that uses their judge, and says what changed since.

Anchors are chosen and frozen by `gradeline.trust.anchors`; the decision is `gradeline.verdict.drift`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from statistics import fmean
from typing import NamedTuple

import msgspec

from gradeline.engine.anchor_records import anchors_in_use, checks_of, save_check
from gradeline.engine.anchor_text import headline
from gradeline.engine.execute import Spending, Stop
from gradeline.engine.grade import GraderUse, Grading
from gradeline.engine.pipeline import RunTask, spent_before
from gradeline.errors import Outcome, ProviderRefusedError
from gradeline.failpoints import failpoint
from gradeline.model import AsyncGrader, Response, Run, Sample, Storage
from gradeline.model.anchors import (
    Anchor,
    AnchorCheck,
    AnchorScore,
    AnchorSet,
    ProcessEvidence,
    reference_key,
)
from gradeline.model.observation import utc_text
from gradeline.model.response import known_cost
from gradeline.usercode.pools import CodeRunner
from gradeline.verdict.drift import (
    CaseDifferences,
    Drift,
    DriftLook,
    FrozenAnswer,
    ProcessState,
    anchors_of_run,
    case_differences,
    detect_drift,
)

MAX_REFERENCE = 5_000
"""Maximum cases of the reference run that are stored."""
_MAX_ERROR = 300

_log = logging.getLogger("gradeline")


class JudgedAnchors(NamedTuple):
    """Scores of anchors, in the order in which they arrived."""

    scores: list[AnchorScore]
    refusal: ProviderRefusedError | None = None
    """Why the provider refuses every call, after which none were made."""


class AnchorJudge(NamedTuple):
    """A grader that judges anchors, and the limits of its calls."""

    use: GraderUse
    pool: CodeRunner | None
    concurrency: int = 15
    spending: Spending | None = None
    stop: Stop | None = None

    async def judge(
        self, anchors: Sequence[Anchor], done: Callable[[int, AnchorScore], None] = lambda *_: None
    ) -> JudgedAnchors:
        """Judge these anchors again.

        Ends early if the run is stopped, the budget is spent, or the provider refuses every call. ``done`` is called
        with the position and the score of each.
        """
        limit = asyncio.Semaphore(max(1, self.concurrency))
        scores: list[AnchorScore] = []
        refusal: ProviderRefusedError | None = None

        async def judge_one(position: int, anchor: Anchor) -> None:
            nonlocal refusal
            async with limit:
                if refusal is not None or self._ended:
                    return
                try:
                    score = await self._score(anchor)
                except ProviderRefusedError as error:
                    refusal = ProviderRefusedError(error.problems)
                    return
            scores.append(score)
            done(position, score)

        async with asyncio.TaskGroup() as group:
            for position, anchor in enumerate(anchors):
                group.create_task(judge_one(position, anchor))
        return JudgedAnchors(scores, refusal)

    @property
    def _ended(self) -> bool:
        if self.stop is not None and self.stop.reason is not None and not self.stop.decided:
            return True
        return self.spending is not None and self.spending.over() is not None

    async def _score(self, anchor: Anchor) -> AnchorScore:
        use = self.use._replace(baseline=_stored_baseline(anchor.baseline))
        graded = await Grading([use], self.pool).grade(anchor.sample, anchor.response, (use.key,), anchor.repeat)
        grade = graded[use.key].grade
        if self.spending is not None:
            self.spending.paid(grade.usage, use.key)
        error = None
        if grade.score is None:
            error = grade.outcome.value if grade.error is None else f"{grade.error.type}: {grade.error.message}"
        cost = None if grade.usage is None else grade.usage.cost
        return AnchorScore(name=anchor.name, score=grade.score, error=error and error[:_MAX_ERROR], cost=cost)


def _stored_baseline(baseline: Response | None) -> Callable[[Sample, int], Response] | None:
    return None if baseline is None else lambda _sample, _repeat: baseline


def can_be_anchored(use: GraderUse) -> bool:
    """Whether a grader's scores come from calls of a judge, and from nothing but the case and the response."""
    return isinstance(use.grader, AsyncGrader) and bool(use.grader.judges) and not use.inputs


def drift_of(anchors: AnchorSet, checks: Sequence[AnchorCheck]) -> Drift:
    """What changed since the anchors were frozen, by these checks."""
    frozen = {one.name: FrozenAnswer(one.scores, one.weight) for one in anchors.anchors}
    return detect_drift(frozen, map(_look, checks))


def _look(check: AnchorCheck) -> DriftLook:
    scores = [(one.name, one.score) for one in check.scores if one.score is not None]
    return DriftLook(check.at, scores, CaseDifferences(check.cases, check.reference_error))


def next_anchors(anchors: AnchorSet, checks: Sequence[AnchorCheck], number: int) -> list[Anchor]:
    """The anchors whose turn it is: those that were judged least often, in an order that the set's seed decides."""
    judged = Counter(score.name for check in checks for score in check.scores)
    order = list(anchors.anchors)
    Random(anchors.seed).shuffle(order)  # noqa: S311 - a reproducible order
    return sorted(order, key=lambda one: judged[one.name])[:number]


def concluded(anchors: AnchorSet, checks: Sequence[AnchorCheck], check: AnchorCheck) -> AnchorCheck:
    """The check with its answer, which takes all earlier checks into account."""
    drift = drift_of(anchors, [*checks, check])
    return msgspec.structs.replace(
        check,
        answer=drift.answer,
        onset=drift.onset,
        judge=_evidence(drift.judge),
        system=_evidence(drift.system),
        changed=drift.changed,
        judged=drift.anchors,
        shift=drift.shift,
        moved=drift.moved,
    )


def _evidence(state: ProcessState) -> ProcessEvidence:
    return ProcessEvidence(evidence=state.evidence, alarm=state.alarm, onset=state.onset)


def new_check(anchors: AnchorSet, scores: Sequence[AnchorScore], judge_fingerprint: str) -> AnchorCheck:
    """A check of now with these scores, without an answer yet."""
    cost = None if any(one.cost is None for one in scores) else known_cost(one.cost for one in scores)
    return AnchorCheck(
        set=anchors.id,
        at=utc_text(datetime.now(UTC)),
        judge_fingerprint=judge_fingerprint,
        scores=tuple(scores),
        calls=len(scores),
        cost=cost,
    )


def is_frozen_grader(anchors: AnchorSet, use: GraderUse) -> bool:
    """Whether a grader is the one that the anchors were frozen with; it may compare with another baseline run."""
    if use.judge_fingerprint != anchors.judge_fingerprint:
        return False
    needs_baseline = isinstance(use.grader, AsyncGrader) and "baseline" in use.grader.needs
    return needs_baseline or use.fingerprint == anchors.fingerprint


def found_judge(checks: Sequence[AnchorCheck]) -> bool:
    """Whether the judge was found to have changed: nothing more is to be learned, and a calibration may settle it."""
    return bool(checks) and checks[-1].answer == "judge"


async def judge_anchors_after(storage: Storage, task: RunTask, run: Run, stop: Stop) -> list[AnchorCheck]:
    """Judge a few anchors again at the end of a run: at most one for 20 of its judge's calls.

    Done once per run and grader, and no more once the judge was found to have changed. The calls count towards the
    run's budget; one that fails is missing, never a change.
    """
    found: list[AnchorCheck] = []
    for use in task.graders:
        anchors = anchors_in_use(storage, run.suite, use.key) if can_be_anchored(use) else None
        if anchors is None or not is_frozen_grader(anchors, use):
            continue
        checks = checks_of(storage, anchors)
        if any(check.run == run.id for check in checks) or anchors.run == run.id or found_judge(checks):
            continue
        chosen = next_anchors(
            anchors, checks, anchors_of_run(_judge_calls(storage, run, use.key), len(anchors.anchors))
        )
        judge = AnchorJudge(use, task.pool, task.limits.concurrency, spent_before(storage, task), stop)
        judged = await judge.judge(chosen)
        failpoint("anchors-judged")
        cases = CaseDifferences() if anchors.variant != run.variant else _differences(storage, run, anchors)
        check = msgspec.structs.replace(
            new_check(anchors, judged.scores, use.judge_fingerprint),
            run=run.id,
            cases=cases.counts,
            reference_error=cases.reference_error,
        )
        found.append(concluded(anchors, checks, check))
        save_check(storage, anchors, found[-1])
        if found[-1].answer != "none" and (not checks or checks[-1].answer != found[-1].answer):
            _log.warning("%s: %s (gradeline anchors show)", use.key, headline(found[-1]))
    return found


def _judge_calls(storage: Storage, run: Run, key: str) -> int:
    counts = storage.counts(run.id).graders.get(key)
    asked = (Outcome.PASS, Outcome.FAIL, Outcome.ERROR)
    return 0 if counts is None else sum(counts.outcomes.get(outcome, 0) for outcome in asked)


def case_scores(
    storage: Storage, run: Run, key: str, reference: Mapping[str, float] | None = None
) -> tuple[dict[str, float], dict[str, str]]:
    """The mean score of each case of a run by a grader, and the clusters of cases, both by `reference_key`.

    With a reference, not many more cases than that has: all that are in it, and some of the others.
    """
    others = MAX_REFERENCE
    scores: dict[str, list[float]] = {}
    clusters: dict[str, str] = {}
    for measure in storage.measures(run.id, digests=True):
        grade = measure.grades.get(key)
        if grade is None or grade.score is None:
            continue
        case = reference_key(measure.case, measure.digest)
        if reference is not None and case not in reference and case not in scores:
            others -= 1
            if others < 0:
                continue
        scores.setdefault(case, []).append(grade.score)
        if measure.cluster is not None:
            clusters[case] = measure.cluster
    return {case: fmean(found) for case, found in scores.items()}, clusters


def _differences(storage: Storage, run: Run, anchors: AnchorSet) -> CaseDifferences:
    scores, clusters = case_scores(storage, run, anchors.grader, anchors.reference)
    if len(anchors.reference) == MAX_REFERENCE:  # it may be a part of its run: others are not new cases
        scores = {case: score for case, score in scores.items() if case in anchors.reference} or scores
    return case_differences(anchors.reference, scores, clusters)


def limited_reference(scores: Mapping[str, float], seed: int) -> dict[str, float]:
    """The scores of a reference run that are stored: all, or a random part of a large run."""
    if len(scores) <= MAX_REFERENCE:
        return dict(scores)
    chosen = Random(seed).sample(sorted(scores), MAX_REFERENCE)  # noqa: S311 - a reproducible choice
    return {case: scores[case] for case in chosen}

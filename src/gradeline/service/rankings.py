"""Three or more runs as the API shows them: ranks with ties, costs, and the difference of every pair."""

from __future__ import annotations

from msgspec import Struct

from gradeline.engine.many import ComparedRun, ManyComparison, RunScore, compare_many
from gradeline.model import Run, Storage
from gradeline.service.comparisons import Comparability
from gradeline.verdict.comparison import MARGIN, Decision
from gradeline.verdict.ranking import PairDifference


class EvaluationScore(Struct, frozen=True, kw_only=True):
    """One evaluation by one grader, over the cases that have a score in every evaluation."""

    mean: float | None
    low: float | None
    high: float | None
    rank_best: int | None
    """The best rank that it may have; the same as the worst where it is certain."""
    rank_worst: int | None
    scored: int
    """Of its own cases, how many have a score."""
    total: int


class RankedEvaluation(Struct, frozen=True, kw_only=True):
    """An evaluation of several, and what its own answers cost and took."""

    evaluation_id: str
    name: str
    cost_per_case: float | None
    """What the agent's answer to a case costs; null where the cost of any answer is unknown."""
    cost_unknown: int
    """Answers whose cost is unknown."""
    latency_ms: dict[str, float] | None
    on_front: bool | None
    """Whether no other is as good for less, or better for as much; null where its mean or its cost is unknown."""
    scores: dict[str, EvaluationScore]


class EvaluationPair(Struct, frozen=True, kw_only=True):
    """Candidate minus baseline; the interval holds with 95 % for all pairs together."""

    baseline_id: str
    candidate_id: str
    difference: float
    low: float
    high: float
    p_value: float
    p_adjusted: float
    """By Holm, over all pairs."""
    decision: Decision
    winner_id: str | None
    """The one that is better for certain; null where the two are tied."""


class RankedEvaluations(Struct, frozen=True, kw_only=True):
    """Several evaluations ranked. Those that are not comparable have no scores and no pairs, unless forced."""

    comparability: Comparability
    margin: float
    cases: int
    """The cases that all evaluations have, and that are the same there."""
    left_out: int
    """Cases that some evaluations do not have."""
    edited: tuple[str, ...]
    primary: tuple[str, ...]
    """The graders that decide; the first of them makes the order and the front."""
    noise: dict[str, float]
    """By grader: a smaller change of a case between two evaluations counts as same, in pairs and ranks."""
    warnings: tuple[str, ...]
    """What to know of the cases and graders of the evaluations."""
    best: tuple[str, ...]
    """The evaluations that may be the best: no other is better for certain."""
    sentence: str | None
    evaluations: tuple[RankedEvaluation, ...]
    """The highest mean first."""
    pairs: dict[str, tuple[EvaluationPair, ...]]


def ranked(storage: Storage, runs: list[Run], *, margin: float = MARGIN, force: bool = False) -> RankedEvaluations:
    """The comparison of three or more stored runs."""
    found = compare_many(storage, runs, margin=margin, force=force)
    return RankedEvaluations(
        comparability=Comparability(found.comparable, found.reasons),
        margin=margin,
        cases=found.cases,
        left_out=found.left_out,
        edited=found.edited,
        primary=found.primary,
        noise={key: grader.noise for key, grader in found.graders.items()},
        warnings=found.warnings,
        best=tuple(one.run.id for one in found.best),
        sentence=found.sentence,
        evaluations=tuple(_evaluation(found, one) for one in found.ordered),
        pairs={key: tuple(map(_pair, grader.pairs)) for key, grader in found.graders.items()},
    )


def _evaluation(found: ManyComparison, one: ComparedRun) -> RankedEvaluation:
    return RankedEvaluation(
        evaluation_id=one.run.id,
        name=one.run.name,
        cost_per_case=one.cost_per_case,
        cost_unknown=one.cost_unknown,
        latency_ms=one.latency_ms,
        on_front=one.on_front,
        scores={key: _score(grader.runs[one.run.id]) for key, grader in found.graders.items()},
    )


def _score(score: RunScore) -> EvaluationScore:
    low, high = score.mean_ci or (None, None)
    best, worst = score.rank or (None, None)
    return EvaluationScore(
        mean=score.mean, low=low, high=high, rank_best=best, rank_worst=worst, scored=score.scored, total=score.total
    )


def _pair(pair: PairDifference) -> EvaluationPair:
    low, high = pair.difference_ci
    return EvaluationPair(
        baseline_id=pair.baseline,
        candidate_id=pair.candidate,
        difference=pair.difference,
        low=low,
        high=high,
        p_value=pair.p_value,
        p_adjusted=pair.p_adjusted,
        decision=pair.decision,
        winner_id=pair.winner,
    )

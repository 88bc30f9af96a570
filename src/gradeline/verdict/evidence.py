"""Input of gates and comparisons: the scores of a grader in one run, and paired over two runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from math import fsum
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import msgspec

from gradeline.model.observation import CalibrationState
from gradeline.stats import mcnemar, percentile, score_interval
from gradeline.stats.paired import MIN_CLUSTERS

if TYPE_CHECKING:  # that module imports this one
    from gradeline.verdict.corrected_difference import LabelledPairs

AgentErrors = Literal["exclude", "fail"]
"""Exclude failed agent calls, or count them as a score of 0."""

NO_NOISE: Mapping[str, float] = MappingProxyType({})
"""No noise thresholds: every change counts."""


class ScoreColumn(NamedTuple):
    """One grader's scores, and the number of expected grades.

    ``cases`` is the case of each score; if empty, every score belongs to a different case.
    ``failed_cases`` is the case of each failed call, for gates that count those as 0.
    ``passes`` is 1 for each score whose grade passes, else 0; see `passes_of`.
    ``clusters`` maps the number of a case to its cluster; if empty, every case is a separate cluster.
    """

    scores: Sequence[float]
    total: int
    failed_calls: int = 0
    cases: Sequence[int] = ()
    failed_cases: Sequence[int] = ()
    passes: Sequence[int] = ()
    clusters: Sequence[int] = ()


RepeatScores: TypeAlias = tuple[float | None, ...]
"""The scores of a case's repeats; None is a failed agent call. Grades missing for another reason are left out."""


class Look(NamedTuple):
    """The number of an interim look at a run, and the error rate over all looks."""

    number: int
    alpha: float


class PairedScores(NamedTuple):
    """One grader's scores of a baseline's cases, in that run and in a candidate, case by case.

    A case that the candidate does not have has no repeats there. ``added`` are cases that only the candidate has;
    ``edited`` ones differ between the runs. Neither is compared. ``clusters`` names the cluster of each case, None for
    a case without one; it is empty if no case has one. With a ``look``, one of the runs ended early or could have:
    these are the cases up to its last look, and the interval is that of the look. A change of a case's score
    below ``noise`` counts as same. ``not_applicable`` counts the cases that are left out because the grader does not
    apply to them. ``labels`` has the cases with what people say about them, if anyone labelled any.
    """

    cases: Sequence[str]
    baseline: Sequence[RepeatScores]
    candidate: Sequence[RepeatScores]
    added: Sequence[str] = ()
    edited: Sequence[str] = ()
    clusters: Sequence[str | None] = ()
    look: Look | None = None
    noise: float = 0.0
    not_applicable: int = 0
    labels: LabelledPairs | None = None


def case_score(repeats: RepeatScores, agent_errors: AgentErrors = "exclude") -> float | None:
    """The mean over the repeats of a case, None without a score. With ``fail``, a failed call counts as 0."""
    if agent_errors == "fail":
        scores = [score or 0.0 for score in repeats]
    elif len(repeats) == 1:
        return repeats[0]
    else:
        scores = [score for score in repeats if score is not None]
    return fsum(scores) / len(scores) if scores else None


def count_failed_calls(column: ScoreColumn, agent_errors: AgentErrors) -> ScoreColumn:
    """The column for a gate; with ``fail``, each failed call is added as a score of 0."""
    failed = column.failed_calls
    if agent_errors == "exclude" or not failed:
        return column
    passes = [*passes_of(column), *repeat(0, failed)]
    scores = [*column.scores, *repeat(0.0, failed)]
    if not column.cases and not column.failed_cases:
        return column._replace(scores=scores, passes=passes)
    placed = column.failed_cases[:failed]
    # a call of an unknown case is a separate cluster, with a number that no case has
    unplaced = range(-1, len(placed) - failed - 1, -1)
    return column._replace(scores=scores, cases=[*cases_of(column), *placed, *unplaced], passes=passes)


def passes_of(column: ScoreColumn) -> Sequence[int]:
    """Whether each score passes: as graded or, if that is unknown, only with a full score."""
    if len(column.passes) == len(column.scores):
        return column.passes
    return [int(score >= 1.0) for score in column.scores]


def cases_of(column: ScoreColumn) -> Sequence[int]:
    """The case of each score."""
    return column.cases or range(len(column.scores))


class Clustering(NamedTuple):
    """A number of cases, and of their clusters."""

    cases: int
    clusters: int

    def __str__(self) -> str:
        noun = "cluster" if self.clusters == 1 else "clusters"
        return f"{self.cases:,} case{'s' * (self.cases != 1)} in {self.clusters:,} {noun}"

    @property
    def shortage(self) -> str | None:
        """Why the clusters are too few to decide anything, and what to do; None otherwise."""
        if self.clusters == self.cases or self.clusters >= MIN_CLUSTERS:
            return None
        return f"{self}, and fewer than {MIN_CLUSTERS} clusters decide nothing; add cases of other clusters"


def clustering_of(column: ScoreColumn) -> Clustering | None:
    """The clusters of the cases with a score; None if the run has no clusters."""
    if not column.clusters:
        return None
    return Clustering(len(set(cases_of(column))), len(set(groups_of(column))))


def groups_of(column: ScoreColumn) -> Sequence[int]:
    """The group of each score: its cluster, else its case. Groups are independent of each other."""
    return groups_of_cases(column, cases_of(column))


def groups_of_cases(column: ScoreColumn, cases: Sequence[int]) -> Sequence[int]:
    """The group of each of these cases: its cluster, else the case itself."""
    if not column.clusters:
        return cases
    # a call of an unknown case is a separate cluster, with a number that no cluster has
    return [column.clusters[case] if case >= 0 else case for case in cases]


MIN_FLIPS = 8
"""With fewer flips a preference cannot be distinguished from chance: 7 of 7 to one side have a p of 0.016."""
POSITION_BIAS_ALPHA = 0.01

OrderVerdict = Literal["position_biased", "not_flagged", "not_enough_flips"]


class OrderFinding(msgspec.Struct, frozen=True):
    """What both orders of a pairwise judge say about the judge."""

    decided: int
    """Cases whose two orders name different winners, and which have no score for it."""
    of: int
    """Cases with a verdict in both orders."""
    first: int
    """Of those decided, the ones in favour of the answer shown first."""
    second: int
    p: float | None
    """Of the two-sided exact sign test; None where nothing was decided by the order."""
    verdict: OrderVerdict
    sentence: str


def order_finding(first: int, second: int, scored: int) -> OrderFinding:
    """The finding on a judge whose orders agreed in ``scored`` cases."""
    decided = first + second
    p = mcnemar(first, second).exact if decided else None
    verdict: OrderVerdict = "not_enough_flips"
    if p is not None and decided >= MIN_FLIPS:
        verdict = "position_biased" if p < POSITION_BIAS_ALPHA else "not_flagged"
    sentence = f"order decided {decided} of {decided + scored}"
    if p is not None:
        sentence += f" (shown first {first}, second {second}; p {_short(p)})"
    return OrderFinding(decided, decided + scored, first, second, p, verdict, sentence + _ENDINGS[verdict])


_ENDINGS: dict[OrderVerdict, str] = {
    "position_biased": ": the judge is position biased",
    "not_flagged": "",
    "not_enough_flips": ": not enough flips to tell",
}


def _short(p: float) -> str:
    """``0.29``, ``0.0042``, ``2e-6``."""
    if p >= 0.0001:
        return f"{p:.2g}"
    mantissa, _, exponent = f"{p:.0e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


class JudgeDoubt(NamedTuple):
    """Why a judge is not calibrated."""

    state: CalibrationState = "uncalibrated"
    reason: str = ""
    needed_by: str | None = None
    """The option of the grader that promises what only a calibrated judge can; no gate passes without."""

    @property
    def sentence(self) -> str:
        """``its judge is not calibrated (expired: the prompt changed since 2026-11-19)``."""
        if self.state == "uncalibrated":
            return "its judge is not calibrated"
        return f"its judge is not calibrated ({self.state}: {self.reason})"


Aggregation = Literal["avg_score", "accuracy", "min", "max", "median", "p50", "p95", "p99"]
Range = tuple[float, float]

_PERCENTILES = {"min": 0.0, "median": 0.5, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}


def aggregate(kind: Aggregation, scores: Sequence[float], passes: Sequence[int]) -> float:
    """The number that a gate compares; accuracy is the fraction that passes."""
    if kind == "avg_score":
        return fsum(scores) / len(scores)
    if kind == "accuracy":
        return sum(passes) / len(scores)
    return percentile(sorted(scores), _PERCENTILES[kind])


def interval_of(values: Sequence[float], groups: Sequence[int] = (), confidence: float = 0.95) -> Range | None:
    """The interval of the mean of scores, or of the share of passes; None for one group.

    Values of one group, such as the repeats of a case or the cases of a cluster, are not independent.
    """
    interval = score_interval(values, groups if len(set(groups)) < len(groups) else None, confidence)
    return None if interval is None else (interval.low, interval.high)

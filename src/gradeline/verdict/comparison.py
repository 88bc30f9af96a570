"""Is the candidate better, not worse, worse, or is it undecided? Decisions over the scores of the same cases."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Literal, NamedTuple

import msgspec

from gradeline.stats import cases_to_decide, holm
from gradeline.stats.changes import ALPHA, Range, Weighed, changes_of, weigh
from gradeline.verdict.comparing import SLACK

Decision = Literal["better", "not_worse", "worse", "undecided"]

MARGIN = 0.02
"""How much worse on average is still not worse, where nothing else is said."""

_GROWTH = 1.05
_MOST_CASES = 100_000_000


class PairedCases(NamedTuple):
    """A grader's mean score of each case in two runs. ``missing`` are cases without a score in one of them, or in
    both; ``edited`` are cases that were not the same, and are left out."""

    cases: Sequence[str]
    baseline: Sequence[float]
    candidate: Sequence[float]
    missing: Sequence[str] = ()
    edited: Sequence[str] = ()


class GraderComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What one grader says of candidate against baseline.

    The means are over the cases that have a score in both runs, of which there are improved + worse + same. None
    stands where there is no such case. ``cases_to_decide`` is how many cases in all would settle it, about.
    """

    baseline: float | None
    candidate: float | None
    difference: float | None
    difference_ci: Range | None
    test: str | None
    p_value: float | None
    p_adjusted: float | None = None
    """By Holm, over the graders of the comparison: for whoever claims several differences at once."""
    improved: int
    worse: int
    same: int
    missing: int
    decision: Decision
    cases_to_decide: int | None
    changed: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    improved_cases: tuple[str, ...] = ()
    worse_cases: tuple[str, ...] = ()
    missing_cases: tuple[str, ...] = ()

    @property
    def pairs(self) -> int:
        """The cases that were compared."""
        return self.improved + self.worse + self.same

    def to_data(self) -> dict[str, Any]:
        """As ``--json`` prints it: of the lists of cases, `changed` and `edited`."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return {key: value for key, value in shown.items() if not key.endswith("_cases")}


def compare_cases(pairs: PairedCases, margin: float = MARGIN) -> GraderComparison:
    """The decision on one grader's scores."""
    if not pairs.cases:
        return GraderComparison(
            baseline=None,
            candidate=None,
            difference=None,
            difference_ci=None,
            test=None,
            p_value=None,
            improved=0,
            worse=0,
            same=0,
            missing=len(pairs.missing),
            decision="undecided",
            cases_to_decide=None,
            edited=tuple(pairs.edited),
            missing_cases=tuple(pairs.missing),
        )
    changes = changes_of(pairs.baseline, pairs.candidate)
    changed = [(case, change) for case, change in zip(pairs.cases, changes, strict=True) if change]
    improved = tuple(case for case, change in changed if change > 0.0)
    worse = tuple(case for case, change in changed if change < 0.0)
    found = weigh(changes, pass_or_fail=_pass_or_fail(pairs.baseline) and _pass_or_fail(pairs.candidate))
    difference = fsum(changes) / len(changes)
    interval, p = found.interval(found.cases), found.p
    decision = decide_difference(difference, interval, p, margin)
    return GraderComparison(
        baseline=fsum(pairs.baseline) / len(changes),
        candidate=fsum(pairs.candidate) / len(changes),
        difference=difference,
        difference_ci=interval,
        test=found.test,
        p_value=p,
        improved=len(improved),
        worse=len(worse),
        same=len(changes) - len(changed),
        missing=len(pairs.missing),
        decision=decision,
        cases_to_decide=_cases_to_decide(found, changes, margin) if decision == "undecided" else None,
        changed=tuple(case for case, _ in changed),
        edited=tuple(pairs.edited),
        improved_cases=improved,
        worse_cases=worse,
        missing_cases=tuple(pairs.missing),
    )


def decide_difference(difference: float, interval: Range, p: float, margin: float) -> Decision:
    """The one rule: without a significant difference there is neither better nor worse.

    A loss that certainly lies within the margin is not worse, significant or not: that is what a margin is for.
    """
    significant = p <= ALPHA
    if significant and difference > 0.0:
        return "better"
    if interval[0] >= -margin - SLACK:
        return "not_worse"
    return "worse" if significant else "undecided"


def adjusted(graders: Mapping[str, GraderComparison]) -> dict[str, GraderComparison]:
    """The same with the p-values that hold for all graders together."""
    ps = {key: grader.p_value for key, grader in graders.items() if grader.p_value is not None}
    raised = dict(zip(ps, holm(ps.values()), strict=True))
    return {key: msgspec.structs.replace(grader, p_adjusted=raised.get(key)) for key, grader in graders.items()}


def worst_of(decisions: Iterable[Decision]) -> Decision:
    """The decision over several graders: the one that asks for a person first."""
    found: Collection[Decision] = set(decisions)
    order: tuple[Decision, ...] = ("worse", "undecided", "not_worse", "better")
    return next((decision for decision in order if decision in found), "undecided")


def _pass_or_fail(scores: Sequence[float]) -> bool:
    return {0.0, 1.0}.issuperset(scores)


def _cases_to_decide(found: Weighed, changes: Sequence[float], margin: float) -> int | None:
    """How many cases like these would settle it, in all; None where no number of them would.

    The normal formula is a start; from there on the interval itself is asked, because with few changes it is wider.
    """
    mean = fsum(changes) / len(changes)
    variance = fsum((change - mean) ** 2 for change in changes) / len(changes)
    start = cases_to_decide(_or_zero(mean), variance, _or_zero(margin))
    if start is None or start > _MOST_CASES:
        return None
    cases = max(start, found.cases + 1)
    while not _settled(found.interval(cases), margin):
        cases = int(cases * _GROWTH) + 1
        if cases > _MOST_CASES:
            return None
    return cases


def _or_zero(number: float) -> float:
    return number if abs(number) > SLACK else 0.0


def _settled(interval: Range, margin: float) -> bool:
    low, high = interval
    return low > 0.0 or high < 0.0 or low >= -margin - SLACK

"""Rank several runs over the same cases by one grader: which runs are better than others, and which are tied.

Every pair of runs is compared case by case. Holm's adjustment over all pairs keeps the probability of separating any
two equally good runs at 5 %. A run's best rank is one more than the number of runs that are significantly better; its
worst rank excludes those that are significantly worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

import msgspec

from gradeline.stats import holm
from gradeline.stats.distributions import student_quantile
from gradeline.stats.paired import ALPHA, Range
from gradeline.verdict.evidence import PairedScores
from gradeline.verdict.paired_decision import ComparisonRule, Decision, compare_cases, decide_difference, hides_loss


class PairDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of runs: candidate minus baseline over the cases that have a score in every run."""

    baseline: str
    candidate: str
    difference: float
    difference_ci: Range
    """Simultaneous 95 % interval over all pairs of the grader."""
    p_value: float
    p_adjusted: float
    """Adjusted by Holm over all pairs of the grader."""
    decision: Decision
    winner: str | None
    """The significantly better run; None for a tie."""


def compare_pairs(
    pair_of: Callable[[str, str], PairedScores], coverage: Mapping[str, float], rule: ComparisonRule
) -> tuple[PairDifference, ...]:
    """Compare every pair of runs, in the order of ``coverage``.

    ``pair_of`` returns the scores of two runs on the cases that have a score in every run; there is at least one.
    A run whose ``coverage`` is below the floor is neither better nor not worse than another, because the missing
    answers may be bad ones.
    """
    runs = list(combinations(coverage, 2))
    found = [compare_cases(pair_of(*pair), rule) for pair in runs]
    adjusted = holm([one.p_value if one.p_value is not None else 1.0 for one in found])
    ratio = interval_scale(len(runs), found[0].pairs)
    pairs = []
    for (baseline, candidate), one, p in zip(runs, found, adjusted, strict=True):
        difference, interval = one.difference or 0.0, one.difference_ci or (-1.0, 1.0)
        wide = widen(difference, interval, ratio)
        decision = decide_difference(difference, wide, p, rule.margin)
        of_means = (one.candidate or 0.0) - (one.baseline or 0.0)
        if decision in ("better", "not_worse") and _is_thin(coverage[candidate], rule):
            decision = "undecided"
        if hides_loss(decision, of_means, one.noise, rule.margin):
            decision = "undecided"
        ahead, gain = (candidate, of_means) if difference > 0.0 else (baseline, -of_means)
        certain = p <= ALPHA and difference != 0.0 and not _is_thin(coverage[ahead], rule)
        certain = certain and not hides_loss("better", gain, one.noise, rule.margin)
        pairs.append(
            PairDifference(
                baseline=baseline,
                candidate=candidate,
                difference=difference,
                difference_ci=wide,
                p_value=1.0 if one.p_value is None else one.p_value,
                p_adjusted=p,
                decision=decision,
                winner=ahead if certain else None,
            )
        )
    return tuple(pairs)


def interval_scale(pairs: int, cases: int) -> float:
    """The factor that widens 95 % intervals so that those of all pairs hold simultaneously (Bonferroni).

    It is the ratio of Student's quantiles for 5 % / pairs and for 5 %.
    """
    freedom = max(1, cases - 1)
    return student_quantile(1.0 - ALPHA / (2.0 * pairs), freedom) / student_quantile(1.0 - ALPHA / 2.0, freedom)


def widen(difference: float, interval: Range, ratio: float) -> Range:
    """An interval with both distances scaled, within -1..1."""
    low, high = interval
    return max(-1.0, difference - ratio * (difference - low)), min(1.0, difference + ratio * (high - difference))


def rank_ranges(runs: Sequence[str], pairs: Sequence[PairDifference]) -> dict[str, tuple[int, int]]:
    """The best and worst possible rank of each run."""
    better = dict.fromkeys(runs, 0)
    worse = dict.fromkeys(runs, 0)
    for pair in pairs:
        if pair.winner is not None:
            loser = pair.baseline if pair.winner == pair.candidate else pair.candidate
            better[loser] += 1
            worse[pair.winner] += 1
    return {run: (1 + better[run], len(runs) - worse[run]) for run in runs}


def pareto_front(points: Mapping[str, tuple[float | None, float | None]]) -> dict[str, bool | None]:
    """Whether each run is Pareto-optimal in mean and cost: no other run dominates it.

    ``points`` are (mean, cost per case). None for a run with an unknown value.
    """
    known = {run: (mean, cost) for run, (mean, cost) in points.items() if mean is not None and cost is not None}

    def dominated(run: str) -> bool:
        mean, cost = known[run]
        return any(
            other_mean >= mean and other_cost <= cost and (other_mean, other_cost) != (mean, cost)
            for other_mean, other_cost in known.values()
        )

    return {run: None if run not in known else not dominated(run) for run in points}


def _is_thin(coverage: float, rule: ComparisonRule) -> bool:
    return coverage < rule.coverage_floor - 1e-12

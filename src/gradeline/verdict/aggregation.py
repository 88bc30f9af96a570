"""One number out of many scores, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum
from typing import Literal

from gradeline.stats import Interval, mean_interval, percentile, wilson

Aggregation = Literal["avg_score", "accuracy", "min", "max", "median", "p50", "p95", "p99"]
Range = tuple[float, float]

_PERCENTILES = {"min": 0.0, "median": 0.5, "p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
_NO_SPREAD = 1e-9


def aggregate(kind: Aggregation, scores: Sequence[float], passes: Callable[[float], bool]) -> float:
    """The number that a gate compares; accuracy is the fraction that passes."""
    if kind == "avg_score":
        return fsum(scores) / len(scores)
    if kind == "accuracy":
        return sum(map(passes, scores)) / len(scores)
    return percentile(sorted(scores), _PERCENTILES[kind])


def perfect(score: float) -> bool:
    """Whether a case passes, where nothing else is said."""
    return score >= 1.0


def share_interval(passed: Sequence[bool], cases: Sequence[int] = ()) -> Range | None:
    """Where the share that passes lies, 95 %; None where one case alone tells nothing of it."""
    if _repeats(cases):
        return score_interval([float(each) for each in passed], cases)
    return None if len(passed) < 2 else _within(wilson(sum(passed), len(passed)), 0.0, 1.0)


def score_interval(scores: Sequence[float], cases: Sequence[int] = ()) -> Range | None:
    """Where the mean score lies, 95 %; the repeats of a case are one witness, not several."""
    clusters = cases if _repeats(cases) else None
    groups = len(scores) if clusters is None else len(set(clusters))
    if groups < 2:
        return None
    interval = mean_interval(scores, clusters)
    low, high = min(0.0, min(scores)), max(1.0, max(scores))
    if interval.se is None or interval.se > _NO_SPREAD:
        return _within(interval, low, high)
    # scores that are all the same show no spread, which does not make a few of them certain
    spread = wilson(min(groups, max(0, round(interval.estimate * groups))), groups)
    return min(spread.low, interval.low), max(spread.high, interval.high)


def _repeats(cases: Sequence[int]) -> bool:
    return len(set(cases)) < len(cases)


def _within(interval: Interval, low: float, high: float) -> Range:
    return max(low, interval.low), min(high, interval.high)

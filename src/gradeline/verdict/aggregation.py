"""One number out of many scores, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Literal

from gradeline.stats import percentile, score_interval

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

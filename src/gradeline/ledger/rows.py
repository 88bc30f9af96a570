"""What the ledger says of an adapter in a task family, and how sure that is."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from gradeline.model.observation import ObservationSums
from gradeline.stats import Interval, moments_interval, wilson

_NOTHING = 1e-9
"""What is left of a spread of 0 when it comes out of sums."""


class QualityRow(NamedTuple):
    """One adapter in one task family."""

    task_family: str
    adapter: str
    """The candidate's."""
    n: int
    """The observations that have a score."""
    mean: float | None
    """Of the scores; None where there is none."""
    interval: Interval | None
    """95 % of the mean, within 0..1; one score alone says nothing of its uncertainty."""
    coverage: float
    """The share of all observations that have a score."""
    age: float
    """Seconds since the latest observation, with a score or without."""


def row_of(sums: ObservationSums, now: datetime) -> QualityRow:
    """The row of these sums, seen from now."""
    mean = _mean(sums) if sums.scored else None
    # a clock that runs ahead of this one makes nothing younger than new
    age = max(0.0, (now - datetime.fromisoformat(sums.latest)).total_seconds())
    return QualityRow(
        sums.task_family,
        sums.candidate_adapter,
        sums.scored,
        None if mean is None else mean.estimate,
        None if mean is None or mean.n < 2 else _within_scores(mean),
        sums.scored / sums.total,
        age,
    )


def _mean(sums: ObservationSums) -> Interval:
    """As a run's summary has it: scores of 0 and 1 are a proportion, and a few that agree are not certain."""
    bound = wilson(round(sums.score_sum), sums.scored)
    if abs(sums.score_sum - sums.score_squares) < _NOTHING:
        return bound
    mean = moments_interval(sums.scored, sums.score_sum, sums.score_squares)
    if mean.se is None or mean.se > _NOTHING:
        return mean
    low, high = min(bound.low, mean.estimate), max(bound.high, mean.estimate)
    return Interval(low, high, estimate=mean.estimate, n=mean.n)


def _within_scores(mean: Interval) -> Interval:
    return Interval(max(0.0, mean.low), min(1.0, mean.high), estimate=mean.estimate, se=mean.se, n=mean.n)

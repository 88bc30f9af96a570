"""What the ledger says of an adapter in a task family, and how sure that is."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from gradeline.model.observation import ObservationSums
from gradeline.stats import Interval, score_sums_interval


class QualityRow(NamedTuple):
    """One adapter in one task family, as one judge found it against one baseline."""

    task_family: str
    adapter: str
    """The candidate's."""
    n: int
    """The cases that have a score: a case counts once, however often it was observed."""
    mean: float | None
    """Of the cases' mean scores; None where there is none."""
    interval: Interval | None
    """95 % of the mean over cases, within 0..1; one case alone says nothing of its uncertainty."""
    coverage: float
    """The share of all observations that have a score."""
    age: float
    """Seconds since the latest observation, with a score or without."""
    baseline_adapter: str
    grader_id: str
    """The judge."""
    observations: int
    """With a score or without."""


def row_of(sums: ObservationSums, now: datetime) -> QualityRow:
    """The row of these sums, seen from now."""
    # a clock that runs ahead of this one makes nothing younger than new
    age = max(0.0, (now - datetime.fromisoformat(sums.latest)).total_seconds())
    return QualityRow(
        sums.task_family,
        sums.candidate_adapter,
        sums.cases,
        sums.score_sum / sums.cases if sums.cases else None,
        score_sums_interval(sums.cases, sums.score_sum, sums.score_squares) if sums.cases else None,
        sums.scored / sums.total,
        age,
        sums.baseline_adapter,
        sums.grader_id,
        sums.total,
    )

"""The evaluations of one suite over time, as the API shows them."""

from __future__ import annotations

from msgspec import Struct

from gradeline.engine.trend import Change, TrendPoint, trend
from gradeline.model import Storage


class SuiteTrendPoint(Struct, frozen=True, kw_only=True):
    """One evaluation of the series."""

    evaluation_id: str
    name: str
    started_at: str | None
    mean: float | None
    low: float | None
    high: float | None
    scored: int
    total: int
    cost: float | None
    """What the agent's answers cost, as far as that is known; null where nothing is."""
    cost_unknown: int
    """Answers whose cost is unknown, and not in the sum."""
    latency_ms: dict[str, float] | None
    segment: int
    """Means compare only within a segment: a new one begins where the grader changed."""
    changes: tuple[Change, ...]
    """What changed since the one before."""
    reasons: tuple[str, ...]


class SuiteTrend(Struct, frozen=True, kw_only=True):
    """The newest evaluations of a suite by one grader, the oldest first."""

    suite: str
    grader: str
    runs: int
    """All evaluations of the suite that have the grader."""
    points: tuple[SuiteTrendPoint, ...]


def suite_trend(storage: Storage, suite: str, grader: str | None, last: int) -> SuiteTrend:
    """The trend of stored runs; `ConfigError` for an unknown suite or grader."""
    found = trend(storage, suite, grader=grader, last=last)
    return SuiteTrend(suite=found.suite, grader=found.grader, runs=found.runs, points=tuple(map(_point, found.points)))


def _point(point: TrendPoint) -> SuiteTrendPoint:
    low, high = point.mean_ci or (None, None)
    return SuiteTrendPoint(
        evaluation_id=point.run.id,
        name=point.run.name,
        started_at=point.run.started_at,
        mean=point.mean,
        low=low,
        high=high,
        scored=point.scored,
        total=point.total,
        cost=point.cost["agent"],
        cost_unknown=point.cost_unknown,
        latency_ms=point.latency_ms,
        segment=point.segment,
        changes=point.changes,
        reasons=point.reasons,
    )

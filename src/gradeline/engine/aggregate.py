"""What a run comes to: counts from the store, with how sure they are."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gradeline.errors import Outcome
from gradeline.model import Counts, GraderCounts, Run
from gradeline.stats import Interval, moments_interval, wilson


class GraderSummary(msgspec.Struct, frozen=True):
    """One grader's column: every number with its denominator."""

    kind: str
    fingerprint: str
    mean: float | None
    mean_ci: tuple[float, float] | None
    pass_rate: float | None
    pass_rate_ci: tuple[float, float] | None
    scored: int
    total: int
    passed: int
    failed: int
    errors: int
    skipped: int


class Summary(msgspec.Struct, frozen=True):
    """A run in numbers."""

    responses: dict[str, int]
    coverage: float
    """The least share of all grades that have a score, over the graders."""
    sentence: str
    graders: dict[str, GraderSummary]


def summarise(run: Run, counts: Counts) -> Summary:
    """The summary of a run's counts; what has no grade yet is in the total and nowhere else."""
    answered = sum(counts.responses.values())
    total = answered if run.total is None else run.total
    graders = {
        key: _grader_summary(grader.kind, grader.fingerprint, counts.graders.get(key), total)
        for key, grader in run.graders.items()
    }
    shares = [column.scored / column.total for column in graders.values() if column.total]
    return Summary(counts.responses, min(shares, default=0.0), _sentence(counts.responses, graders), graders)


def _grader_summary(kind: str, fingerprint: str, counts: GraderCounts | None, total: int) -> GraderSummary:
    outcomes: Mapping[str, int] = counts.outcomes if counts is not None else {}
    passed, failed = outcomes.get(Outcome.PASS, 0), outcomes.get(Outcome.FAIL, 0)
    scored = passed + failed
    mean = moments_interval(scored, counts.score_sum, counts.score_squares) if counts is not None and scored else None
    rate = wilson(passed, scored) if scored else None
    return GraderSummary(
        kind=kind,
        fingerprint=fingerprint,
        mean=None if mean is None else mean.estimate,
        mean_ci=_shown(mean),
        pass_rate=None if rate is None else rate.estimate,
        pass_rate_ci=_shown(rate),
        scored=scored,
        total=total,
        passed=passed,
        failed=failed,
        errors=outcomes.get(Outcome.ERROR, 0),
        skipped=outcomes.get(Outcome.SKIPPED, 0),
    )


def _shown(interval: Interval | None) -> tuple[float, float] | None:
    """An interval of scores: they lie in 0..1, so it does too; one score alone has none."""
    if interval is None or interval.n < 2:
        return None
    return max(0.0, interval.low), min(1.0, interval.high)


def _sentence(responses: Mapping[str, int], graders: Mapping[str, GraderSummary]) -> str:
    graded = max((column.scored for column in graders.values()), default=0)
    parts = [f"{graded} responses graded"]
    errors = sum(column.errors for column in graders.values())
    failed = sum(count for status, count in responses.items() if status != "success")
    if errors:
        parts.append(f"{errors} grader errors")
    if failed:
        parts.append(f"{failed} failed calls")
    return ", ".join(parts)

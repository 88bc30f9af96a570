"""What a run comes to: counts from the store, with how sure they are."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gradeline.engine.latency import Latencies
from gradeline.errors import Outcome
from gradeline.model import Counts, GraderCounts, Measure, Run, RunGrader
from gradeline.stats import Interval, mean_interval, moments_interval, wilson
from gradeline.verdict import Column


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
    self_reported_errors: int = 0
    judges: tuple[str, ...] = ()
    """The models whose word the scores are."""


class Summary(msgspec.Struct, frozen=True):
    """A run in numbers."""

    cases: int
    repeats: int
    responses: dict[str, int]
    coverage: float
    """The least share of all grades that have a score, over the graders."""
    sentence: str
    graders: dict[str, GraderSummary]
    latency_ms: dict[str, float] | None = None
    """Mean and percentiles of the calls that were answered; None where none was."""
    cost: dict[str, float | None] = msgspec.field(default_factory=lambda: {"agent": None, "judge": None})
    """What was told; None is unknown, not free."""


class Measured(NamedTuple):
    """What only the rows themselves tell: each grader's scores, how long the agent took, what it cost."""

    columns: dict[str, Column]
    latencies: Latencies
    self_reported: Counter[str]
    passes: dict[str, array[int]]
    """Of each score whether it passes, as 0 or 1."""
    cost: float | None
    """What the agent's answers cost: the sum of what is known; None where nothing is."""
    judge_cost: float | None


def measure(run: Run, measures: Iterable[Measure]) -> Measured:
    """One pass over a run; eight bytes are kept of a score, some more where cases are repeated."""
    scores = {key: array("d") for key in run.graders}
    cases = {key: array("q") for key in run.graders}
    passes = {key: array("b") for key in run.graders}
    failed = array("q")
    latencies = Latencies()
    self_reported: Counter[str] = Counter()
    cost: float | None = None
    judge_cost: float | None = None
    repeated = run.repeats > 1
    count = 0
    case, last = -1, None
    for one in measures:
        count += 1
        if one.case != last:
            case, last = case + 1, one.case
        if one.status != "success":
            failed.append(case)
        elif one.latency_ms is not None:
            latencies.add(one.latency_ms)
        if one.cost is not None:
            cost = (cost or 0.0) + one.cost
        for key, grade in one.grades.items():
            if grade.cost is not None:
                judge_cost = (judge_cost or 0.0) + grade.cost
            if grade.score is not None and key in scores:
                scores[key].append(grade.score)
                self_reported[key] += grade.self_reported_error
                if repeated:  # else each score has a case of its own
                    cases[key].append(case)
                    passes[key].append(grade.outcome is Outcome.PASS)
    total = count if run.total is None else run.total
    failed_cases = failed if repeated else array("q")
    columns = {key: Column(values, total, len(failed), cases[key], failed_cases) for key, values in scores.items()}
    return Measured(columns, latencies, self_reported, passes, cost, judge_cost)


def complete(summary: Summary, measured: Measured) -> Summary:
    """The summary with what the records tell beside the counts."""
    columns = {
        key: msgspec.structs.replace(
            column, self_reported_errors=measured.self_reported[key], **_by_case(summary, key, measured)
        )
        for key, column in summary.graders.items()
    }
    return msgspec.structs.replace(
        summary,
        graders=columns,
        latency_ms=measured.latencies.summary(),
        cost={"agent": measured.cost, "judge": measured.judge_cost},
    )


def _by_case(summary: Summary, key: str, measured: Measured) -> dict[str, tuple[float, float] | None]:
    """The intervals where cases are repeated: answers to one question say less than answers to as many questions."""
    column = measured.columns[key]
    if summary.repeats == 1 or not column.scores:
        return {}
    return {
        "mean_ci": _shown(_clustered(column.scores, column.cases)),
        "pass_rate_ci": _shown(_clustered(measured.passes[key], column.cases)),
    }


def _clustered(values: Sequence[float], cases: Sequence[int]) -> Interval:
    interval = mean_interval(values, clusters=cases)
    if interval.se is not None and interval.se > 1e-9:
        return interval
    # cases that all agree show no spread, which does not make a few of them certain
    number = len(set(cases))
    bound = wilson(round(interval.estimate * number), number)
    low, high = min(bound.low, interval.estimate), max(bound.high, interval.estimate)
    return Interval(low, high, estimate=interval.estimate, n=number)


def summarise(run: Run, counts: Counts) -> Summary:
    """The summary of a run's counts; what has no grade yet is in the total and nowhere else."""
    answered = sum(counts.responses.values())
    total = answered if run.total is None else run.total
    graders = {key: _grader_summary(grader, counts.graders.get(key), total) for key, grader in run.graders.items()}
    shares = [column.scored / column.total for column in graders.values() if column.total]
    return Summary(
        -(-total // run.repeats),
        run.repeats,
        counts.responses,
        min(shares, default=0.0),
        _sentence(counts.responses, graders),
        graders,
    )


def _grader_summary(grader: RunGrader, counts: GraderCounts | None, total: int) -> GraderSummary:
    outcomes: Mapping[str, int] = counts.outcomes if counts is not None else {}
    passed, failed = outcomes.get(Outcome.PASS, 0), outcomes.get(Outcome.FAIL, 0)
    scored = passed + failed
    mean = _mean(scored, counts) if counts is not None and scored else None
    rate = wilson(passed, scored) if scored else None
    return GraderSummary(
        kind=grader.kind,
        fingerprint=grader.fingerprint,
        judges=grader.judges,
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


def _mean(scored: int, counts: GraderCounts) -> Interval:
    """Scores of 0 and 1 are a proportion, and get its interval: a few that are all the same are not certain."""
    if abs(counts.score_sum - counts.score_squares) < 1e-9:
        return wilson(round(counts.score_sum), scored)
    mean = moments_interval(scored, counts.score_sum, counts.score_squares)
    if mean.se is not None and mean.se > 1e-9:
        return mean
    bound = wilson(round(counts.score_sum), scored)
    return Interval(min(bound.low, mean.estimate), max(bound.high, mean.estimate), estimate=mean.estimate, n=scored)


def _shown(interval: Interval | None) -> tuple[float, float] | None:
    """An interval of scores: they lie in 0..1, so it does too; one score alone has none."""
    if interval is None or interval.n < 2:
        return None
    return max(0.0, interval.low), min(1.0, interval.high)


def _sentence(responses: Mapping[str, int], graders: Mapping[str, GraderSummary]) -> str:
    graded = max((column.scored for column in graders.values()), default=0)
    parts = [f"{_number(graded, 'response')} graded"]
    errors = sum(column.errors for column in graders.values())
    failed = sum(count for status, count in responses.items() if status != "success")
    if errors:
        parts.append(_number(errors, "grader error"))
    if failed:
        parts.append(_number(failed, "failed call"))
    return ", ".join(parts)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""What a run comes to: counts from the store, with how sure they are."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gradeline.engine.latency import Latencies
from gradeline.errors import Outcome
from gradeline.model import Columns, Counts, GradeColumns, GraderCounts, ResponseColumns, Run, RunGrader
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


def measure(run: Run, pages: Iterable[Columns]) -> Measured:
    """One pass over a run; eight bytes are kept of a score, some more where cases are repeated.

    The pages are those of `Storage.columns`, ``named`` where cases are repeated.
    """
    latencies = Latencies()
    columns = _Scores(run)
    failed = 0
    count = 0
    cost: float | None = None
    judge_cost: float | None = None
    for responses, grades in pages:
        count += len(responses.statuses)
        if responses.statuses.count("success") == len(responses.statuses):
            latencies.extend(_known(responses.latencies_ms))
        else:
            answered = zip(responses.statuses, responses.latencies_ms, strict=True)
            latencies.extend([ms for status, ms in answered if status == "success" and ms is not None])
            failed += sum(status != "success" for status in responses.statuses)
        cost = _added(cost, responses.costs)
        judge_cost = _added(judge_cost, grades.costs)
        columns.add(responses, grades)
    total = count if run.total is None else run.total
    return Measured(columns.of(total, failed), latencies, columns.self_reported, columns.passes, cost, judge_cost)


class _Scores:
    """The scores of each grader, page by page."""

    def __init__(self, run: Run) -> None:
        self._repeated = run.repeats > 1
        self._scores = {key: array("d") for key in run.graders}
        self._cases = {key: array("q") for key in run.graders}
        self._failed_cases = array("q")
        self.passes = {key: array("b") for key in run.graders}
        self.self_reported: Counter[str] = Counter()
        self._case = -1
        self._last = ""

    def of(self, total: int, failed: int) -> dict[str, Column]:
        return {
            key: Column(scores, total, failed, self._cases[key], self._failed_cases)
            for key, scores in self._scores.items()
        }

    def add(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        if any(grades.self_reported_errors):
            told = zip(grades.graders, grades.scores, grades.self_reported_errors, strict=True)
            self.self_reported.update(key for key, score, error in told if error and score is not None)
        if self._repeated:  # else each score has a case of its own
            self._add_cases(responses, grades)
        elif len(self._scores) == 1 and grades.graders.count(*self._scores) == len(grades.graders):
            for scores in self._scores.values():
                scores.extend(_known(grades.scores))
        else:
            for key, score in zip(grades.graders, grades.scores, strict=True):
                if score is not None and key in self._scores:
                    self._scores[key].append(score)

    def _add_cases(self, responses: ResponseColumns, grades: GradeColumns) -> None:
        numbers: dict[str, int] = {}
        for case, status in zip(responses.cases, responses.statuses, strict=True):
            if self._case < 0 or case != self._last:
                self._case, self._last = self._case + 1, case
            numbers[case] = self._case
            if status != "success":
                self._failed_cases.append(self._case)
        rows = zip(grades.cases, grades.graders, grades.outcomes, grades.scores, strict=True)
        for case, key, outcome, score in rows:
            if score is not None and key in self._scores and case in numbers:
                self._scores[key].append(score)
                self._cases[key].append(numbers[case])
                self.passes[key].append(outcome == Outcome.PASS)


def _known(values: Sequence[float | None]) -> Sequence[float]:
    """Those that are there."""
    return [value for value in values if value is not None]


def _added(total: float | None, costs: Sequence[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    if costs.count(None) == len(costs):
        return total
    return sum(_known(costs), total or 0.0)


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

"""One pass over a run's records for a page: the cases worth reading, the kinds of errors, how scores and times lie.

Memory is bounded whatever the run: of each group of cases the worst are kept, their texts cut.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from gradeline.errors import Outcome
from gradeline.model import ErrorInfo, Grade, Record, Response
from gradeline.report.formatting import truncate

CaseGroupName = Literal["failed", "errors", "calls", "low"]
"""Cases that a grader failed; without a fail, those a grader broke on; failed calls; passes short of a full score."""

SCORE_BINS = 20
LATENCY_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
LATENCY_EDGES = tuple(step * 10.0**power for power in range(-1, 6) for step in LATENCY_STEPS)
"""In milliseconds, from a tenth to some minutes: waiting times spread over decades."""

_MOST_ERROR_KINDS = 200
_TYPE = 80
_EXAMPLE = 300
_MOST_TURNS = 20
_MOST_CALLS = 20
_CALL = 500


class ReportedGrade(NamedTuple):
    """A grade of a case worth reading. ``submission`` is there where it is not the whole answer."""

    grader: str
    outcome: str
    score: float | None
    rationale: str | None
    error: ErrorInfo | None
    submission: str | None
    output: str | None = None
    """What the grader's code printed."""


class ReportedCase(NamedTuple):
    """A case worth reading, its texts cut, its grades in the order of the run's graders."""

    case: str
    repeat: int
    input: tuple[str, ...]
    expected: tuple[str, ...]
    answer: str | None
    tool_calls: tuple[str, ...]
    error: ErrorInfo | None
    latency_ms: float | None
    grades: tuple[ReportedGrade, ...]
    output: str | None = None
    """What the agent's code printed."""


class CaseGroup(NamedTuple):
    """The worst cases of a kind, and how many there are of it in all."""

    cases: list[ReportedCase]
    total: int

    @property
    def left_out(self) -> int:
        return self.total - len(self.cases)


class ErrorKind(NamedTuple):
    """Where an error arose (a grader's key, or None for the agent's call), what it was, and whose fault."""

    grader: str | None
    type: str
    fault: str


class ErrorCount(NamedTuple):
    """How often a kind of error came, and the first one's message."""

    kind: ErrorKind
    times: int
    example: str


class Overview(NamedTuple):
    """What one pass over the records tells beside the summary."""

    groups: dict[CaseGroupName, CaseGroup]
    errors: list[ErrorCount]
    scores: dict[str, list[int]]
    """Per grader how many scores fall into each of ``SCORE_BINS`` equal parts of 0..1."""
    latencies: list[int]
    """How many answered calls fall below the first of ``LATENCY_EDGES``, between each two, and above the last."""


def scan_records(
    records: Iterable[Record], graders: Iterable[str], limits: Mapping[CaseGroupName, int], longest: int
) -> Overview:
    """Read the records once. ``limits`` says how many cases of a group are kept, ``longest`` how much of a text."""
    scores = {key: [0] * SCORE_BINS for key in graders}
    worst = {name: _Worst(limit, tuple(scores), longest) for name, limit in limits.items()}
    errors = _Errors()
    latencies = [0] * (len(LATENCY_EDGES) + 1)
    for record in records:
        errors.take(record)
        if record.response.error is None and record.response.latency_ms is not None:
            latencies[bisect_right(LATENCY_EDGES, record.response.latency_ms)] += 1
        for key, grade in record.grades.items():
            if grade.score is not None and key in scores:
                scores[key][_bin_of(grade.score)] += 1
        group = _group_of(record)
        if group is not None and group in worst:
            worst[group].take(record)
    return Overview({name: one.group() for name, one in worst.items()}, errors.tallies(), scores, latencies)


def _bin_of(score: float) -> int:
    return min(SCORE_BINS - 1, int(score * SCORE_BINS + 1e-9))


def _group_of(record: Record) -> CaseGroupName | None:
    if record.response.error is not None:
        return "calls"
    outcomes = {grade.outcome for grade in record.grades.values()}
    if Outcome.FAIL in outcomes:
        return "failed"
    if Outcome.ERROR in outcomes:
        return "errors"
    scores = [grade.score for grade in record.grades.values() if grade.score is not None]
    return "low" if scores and min(scores) < 1.0 else None


class _Worst:
    """Keeps the cases with the lowest scores; of equal ones the first."""

    def __init__(self, limit: int, graders: tuple[str, ...], longest: int) -> None:
        self._limit = limit
        self._graders = graders
        self._longest = longest
        self._heap: list[tuple[float, float, int, ReportedCase]] = []
        self._count = 0

    def take(self, record: Record) -> None:
        self._count += 1
        lowest, mean = _badness(record)
        # negated: the best of the kept lies on top, ready to be replaced; counts differ, so cases are never compared
        rank = (-lowest, -mean, -self._count)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, (*rank, self._seen(record)))
        elif self._heap and rank > self._heap[0][:3]:
            heapq.heapreplace(self._heap, (*rank, self._seen(record)))

    def group(self) -> CaseGroup:
        return CaseGroup(
            [entry[3] for entry in sorted(self._heap, key=lambda entry: entry[:3], reverse=True)], self._count
        )

    def _seen(self, record: Record) -> ReportedCase:
        ordered = {key: record.grades[key] for key in self._graders if key in record.grades}
        grades = (_grade_seen(record, key, grade, self._longest) for key, grade in ordered.items())
        return _case_seen(record, tuple(grades), self._longest)


def _badness(record: Record) -> tuple[float, float]:
    """The lowest score and the mean of all; a case without scores ranks by its place alone."""
    scores = [grade.score for grade in record.grades.values() if grade.score is not None]
    return (min(scores), sum(scores) / len(scores)) if scores else (0.0, 0.0)


class _Errors:
    """Counts errors by kind; past many kinds the rest is one, because user code can invent names without end."""

    def __init__(self) -> None:
        self._counts: dict[ErrorKind, int] = {}
        self._examples: dict[ErrorKind, str] = {}

    def take(self, record: Record) -> None:
        for kind, message in _errors_of(record):
            if kind not in self._counts and len(self._counts) >= _MOST_ERROR_KINDS:
                kind = ErrorKind(kind.grader, "other types", kind.fault)
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._examples.setdefault(kind, truncate(message, _EXAMPLE))

    def tallies(self) -> list[ErrorCount]:
        """The most frequent first."""
        tallies = [ErrorCount(kind, count, self._examples[kind]) for kind, count in self._counts.items()]
        return sorted(tallies, key=lambda one: (-one.times, one.kind.grader or "", one.kind.type, one.kind.fault))


def _errors_of(record: Record) -> Iterator[tuple[ErrorKind, str]]:
    if record.response.error is not None:
        error = record.response.error
        yield ErrorKind(None, truncate(error.type, _TYPE), error.fault), error.message
    for key, grade in record.grades.items():
        if grade.error is not None:
            yield ErrorKind(key, truncate(grade.error.type, _TYPE), grade.error.fault), grade.error.message


def _case_seen(record: Record, grades: tuple[ReportedGrade, ...], longest: int) -> ReportedCase:
    response, sample = record.response, record.sample
    return ReportedCase(
        record.case,
        record.repeat,
        _turns(sample.input, longest),
        _turns(sample.ground_truth, longest),
        None if response.text is None else truncate(response.text, longest),
        tuple(_calls(response)),
        _cut_error(response.error, longest),
        response.latency_ms,
        grades,
        None if response.output is None else truncate(response.output, longest),
    )


def _grade_seen(record: Record, key: str, grade: Grade, longest: int) -> ReportedGrade:
    submission = record.submissions.get(key)
    if submission == record.response.text:
        submission = None
    return ReportedGrade(
        key,
        grade.outcome,
        grade.score,
        None if grade.rationale is None else truncate(grade.rationale, longest),
        _cut_error(grade.error, longest),
        None if submission is None else truncate(submission, longest),
        None if grade.output is None else truncate(grade.output, longest),
    )


def _turns(text: str | list[str] | None, longest: int) -> tuple[str, ...]:
    if text is None or isinstance(text, str):
        return () if text is None else (truncate(text, longest),)
    turns = [truncate(turn, longest // max(1, min(len(text), _MOST_TURNS))) for turn in text[:_MOST_TURNS]]
    if len(text) > _MOST_TURNS:
        turns.append(f"… ({len(text) - _MOST_TURNS:,} more turns)")
    return tuple(turns)


def _calls(response: Response) -> Iterator[str]:
    if response.trajectory is None:
        return
    for index, call in enumerate(response.trajectory.tool_calls()):
        if index == _MOST_CALLS:
            yield "… (more calls)"
            return
        yield truncate(f"{call.name} {call.arguments}", _CALL)


def _cut_error(error: ErrorInfo | None, longest: int) -> ErrorInfo | None:
    if error is None:
        return None
    traceback = None if error.traceback is None else truncate(error.traceback, longest)
    return ErrorInfo(error.type, truncate(error.message, longest), error.fault, traceback)

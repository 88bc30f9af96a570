"""One pass over a run's records for a report: the worst cases, the kinds of errors, histograms of scores and latency.

Memory is bounded: only the worst cases of each group are stored, with truncated texts.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from gradeline.errors import Outcome
from gradeline.model import Document, ErrorInfo, Grade, Record, Response
from gradeline.report.formatting import truncate

CaseGroupName = Literal["failed", "errors", "calls", "low"]
"""Cases with a failed grade; otherwise cases with a grader error; failed calls; passed cases with a score below 1."""

SCORE_BINS = 20
LATENCY_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
LATENCY_EDGES = tuple(step * 10.0**power for power in range(-1, 6) for step in LATENCY_STEPS)
"""Bin edges in milliseconds, from 0.1 ms to some minutes."""

_MOST_ERROR_KINDS = 200
_TYPE = 80
_EXAMPLE = 300
_MOST_TURNS = 20
_MOST_CALLS = 20
_CALL = 500
_MOST_DOCUMENTS = 10
_DOCUMENT = 1_000


class ReportedGrade(NamedTuple):
    """A grade of a reported case. ``submission`` is None if it is the whole answer."""

    grader: str
    outcome: str
    score: float | None
    rationale: str | None
    error: ErrorInfo | None
    submission: str | None
    output: str | None = None
    """Output printed by the grader's code."""


class ReportedCase(NamedTuple):
    """A case for the report, with truncated texts and its grades in the order of the run's graders."""

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
    """Output printed by the agent's code."""
    documents: tuple[str, ...] | None = None
    """What the agent retrieved; None if that is unknown."""


class CaseGroup(NamedTuple):
    """The worst cases of a group, and the size of the group."""

    cases: list[ReportedCase]
    total: int

    @property
    def left_out(self) -> int:
        return self.total - len(self.cases)


class ErrorKind(NamedTuple):
    """Source (a grader's key, or None for the agent's call), type and fault of an error."""

    grader: str | None
    type: str
    fault: str


class ErrorCount(NamedTuple):
    """Number of errors of a kind, and the message of the first one."""

    kind: ErrorKind
    times: int
    example: str


class Overview(NamedTuple):
    """Data for a report in addition to the summary."""

    groups: dict[CaseGroupName, CaseGroup]
    errors: list[ErrorCount]
    scores: dict[str, list[int]]
    """Per grader the number of scores in each of ``SCORE_BINS`` equal bins of 0..1."""
    latencies: list[int]
    """Number of answered calls below the first of ``LATENCY_EDGES``, between each two, and above the last."""


def scan_records(
    records: Iterable[Record], graders: Iterable[str], limits: Mapping[CaseGroupName, int], longest: int
) -> Overview:
    """Read the records once. ``limits`` is the maximum of cases per group, ``longest`` that of characters per text."""
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
    """A heap of the cases with the lowest scores; among equal ones the first are stored."""

    def __init__(self, limit: int, graders: tuple[str, ...], longest: int) -> None:
        self._limit = limit
        self._graders = graders
        self._longest = longest
        self._heap: list[tuple[float, float, int, ReportedCase]] = []
        self._count = 0

    def take(self, record: Record) -> None:
        self._count += 1
        lowest, mean = _severity(record)
        # negated: the best case is on top, to be replaced first; counts are unique, so cases are never compared
        rank = (-lowest, -mean, -self._count)
        if len(self._heap) < self._limit:
            heapq.heappush(self._heap, (*rank, self._report(record)))
        elif self._heap and rank > self._heap[0][:3]:
            heapq.heapreplace(self._heap, (*rank, self._report(record)))

    def group(self) -> CaseGroup:
        return CaseGroup(
            [entry[3] for entry in sorted(self._heap, key=lambda entry: entry[:3], reverse=True)], self._count
        )

    def _report(self, record: Record) -> ReportedCase:
        ordered = {key: record.grades[key] for key in self._graders if key in record.grades}
        grades = (_reported_grade(record, key, grade, self._longest) for key, grade in ordered.items())
        return _reported_case(record, tuple(grades), self._longest)


def _severity(record: Record) -> tuple[float, float]:
    """The lowest score and the mean of all scores; 0 without scores."""
    scores = [grade.score for grade in record.grades.values() if grade.score is not None]
    return (min(scores), sum(scores) / len(scores)) if scores else (0.0, 0.0)


class _Errors:
    """Counts errors by kind; beyond a maximum the rest is one kind, because user code may use any number of names."""

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
        """Sorted by frequency, the most frequent first."""
        tallies = [ErrorCount(kind, count, self._examples[kind]) for kind, count in self._counts.items()]
        return sorted(tallies, key=lambda one: (-one.times, one.kind.grader or "", one.kind.type, one.kind.fault))


def _errors_of(record: Record) -> Iterator[tuple[ErrorKind, str]]:
    if record.response.error is not None:
        error = record.response.error
        yield ErrorKind(None, truncate(error.type, _TYPE), error.fault), error.message
    for key, grade in record.grades.items():
        if grade.error is not None:
            yield ErrorKind(key, truncate(grade.error.type, _TYPE), grade.error.fault), grade.error.message


def _reported_case(record: Record, grades: tuple[ReportedGrade, ...], longest: int) -> ReportedCase:
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
        None if response.documents is None else tuple(_documents(response.documents)),
    )


def _reported_grade(record: Record, key: str, grade: Grade, longest: int) -> ReportedGrade:
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


def _documents(documents: Sequence[Document]) -> Iterator[str]:
    for number, document in enumerate(documents[:_MOST_DOCUMENTS], 1):
        known = [] if document.id is None else [document.id]
        known += [] if document.score is None else [f"score {document.score:.4g}"]
        heading = f"{number}. {', '.join(known)}" if known else f"{number}."
        yield truncate(f"{heading}\n{document.text}", _DOCUMENT)
    if len(documents) > _MOST_DOCUMENTS:
        yield f"… ({len(documents) - _MOST_DOCUMENTS:,} more documents)"


def _cut_error(error: ErrorInfo | None, longest: int) -> ErrorInfo | None:
    if error is None:
        return None
    traceback = None if error.traceback is None else truncate(error.traceback, longest)
    return ErrorInfo(error.type, truncate(error.message, longest), error.fault, traceback)

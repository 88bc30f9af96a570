"""A run as a table for spreadsheets: CSV by RFC 4180."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from json import dumps
from typing import IO, NamedTuple

from gradeline.errors import Outcome
from gradeline.model import ErrorInfo, Grade, Record, RunGrader
from gradeline.model.text import clean_text, escape_formula


class ResultRow(NamedTuple):
    """What one grader said of one response. ``grade`` is None where it has said nothing yet."""

    record: Record
    grader: str
    kind: str
    grade: Grade | None

    @property
    def outcome(self) -> Outcome | None:
        """None where an answer waits to be graded; a failed call is skipped, whether or not a grade says so."""
        if self.grade is not None:
            return self.grade.outcome
        return None if self.record.response.error is None else Outcome.SKIPPED

    @property
    def error(self) -> ErrorInfo | None:
        """Why there is no score: the grader's error, or that of the agent's call."""
        own = None if self.grade is None else self.grade.error
        return self.record.response.error if own is None else own


def result_rows(records: Iterable[Record], graders: Mapping[str, RunGrader] | None = None) -> Iterator[ResultRow]:
    """The rows of records. With a run's graders, each has its row in every record, graded or not.

    Without them a record has the rows of its grades, and one without a grader where it has none.
    """
    for record in records:
        if graders is not None:
            for key, grader in graders.items():
                yield ResultRow(record, key, grader.kind, record.grades.get(key))
        elif record.grades:
            for key, grade in record.grades.items():
                yield ResultRow(record, key, grade.kind, grade)
        else:
            yield ResultRow(record, "", "", None)


COLUMNS = (
    "run",
    "case",
    "repeat",
    "grader",
    "kind",
    "outcome",
    "score",
    "passed",
    "rationale",
    "error_type",
    "error_message",
    "fault",
    "response_status",
    "latency_ms",
    "input",
    "expected",
    "submission",
    "text",
)
_NO_GRADE = _NO_ERROR = ("", "", "")


def write_csv(file: IO[str], records: Iterable[Record], graders: Mapping[str, RunGrader] | None = None) -> None:
    """One row per (case, repeat, grader), in constant memory; with a run's graders, also for grades still missing.

    Open the file with ``newline=""``. A text that a spreadsheet would take for a formula gets an apostrophe in
    front. An empty cell is what is not known: an error has no score, and what waits for its grade no outcome.
    """
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow(COLUMNS)
    table.writerows(_cells(row) for row in result_rows(records, graders))


def _cells(row: ResultRow) -> tuple[str, ...]:
    record, grade, error = row.record, row.grade, row.error
    response, sample = record.response, record.sample
    return (
        cell_text(record.run),
        cell_text(record.case),
        str(record.repeat),
        cell_text(row.grader),
        cell_text(row.kind),
        row.outcome or "",
        *(_NO_GRADE if grade is None else (_number(grade.score), _flag(grade.passed), cell_text(grade.rationale))),
        *(_NO_ERROR if error is None else (cell_text(error.type), cell_text(error.message), error.fault)),
        response.status,
        _number(response.latency_ms),
        cell_text(sample.input),
        cell_text(sample.ground_truth),
        cell_text(record.submissions.get(row.grader)),
        cell_text(response.text),
    )


def cell_text(value: str | list[str] | None) -> str:
    """A text that no spreadsheet takes for a formula; empty where there is none."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else dumps(value, ensure_ascii=False)
    if not text.isascii():  # half a surrogate pair cannot be written as UTF-8
        text = clean_text(text).text
    return escape_formula(text)


def _number(value: float | None) -> str:
    return "" if value is None else str(value)


def _flag(value: bool | None) -> str:
    return "" if value is None else "true" if value else "false"

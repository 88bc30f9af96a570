"""A run as a table for spreadsheets: CSV by RFC 4180."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from gradeline.engine.ranking import ScoreMatrix
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import ErrorInfo, Grade, Record, RunGrader, quote
from gradeline.model.text import clean_text, escape_formula
from gradeline.report.parquet import write_rows


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


PARQUET = ".parquet"
_COLUMNS = {"case": "VARCHAR", "grader": "VARCHAR", "compared": "BOOLEAN"}


def matrix_writer(path: Path) -> Callable[[IO[str], ScoreMatrix], None]:
    """What writes the text format that the name of the file ends with; `write_matrix_parquet` writes the other one."""
    found = _WRITERS.get(path.suffix.lower())
    if found is None:
        reason = f"invalid file name {quote(path.name)}: end it with {', '.join(_WRITERS)} or {PARQUET}"
        raise ConfigError(Problem("--output", reason))
    return found


def write_matrix_parquet(path: Path, matrix: ScoreMatrix) -> None:
    """The same columns as in CSV, typed and with nothing defused; see `gradeline.report.parquet.write_rows`."""
    columns = {**_COLUMNS, **dict.fromkeys(_run_columns(matrix), "DOUBLE")}
    write_rows(path, columns, ((case, grader, compared, *scores) for case, grader, compared, scores in matrix.rows()))


def _run_columns(matrix: ScoreMatrix) -> list[str]:
    """Distinct for runs of the same name."""
    return [f"{run.name} ({run.id})" for run in matrix.runs]


def _write_csv(file: IO[str], matrix: ScoreMatrix) -> None:
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow([*_COLUMNS, *map(cell_text, _run_columns(matrix))])
    for case, grader, compared, scores in matrix.rows():
        numbers = ("" if score is None else str(score) for score in scores)
        table.writerow([cell_text(case), cell_text(grader), "true" if compared else "false", *numbers])


def _write_jsonl(file: IO[str], matrix: ScoreMatrix) -> None:
    file.writelines(f"{line}\n" for line in _lines(matrix))


def _write_json(file: IO[str], matrix: ScoreMatrix) -> None:
    runs = msgspec.json.encode({run.id: run.name for run in matrix.runs}).decode()
    file.write(f'{{"runs": {runs}, "rows": [\n')
    for number, line in enumerate(_lines(matrix)):
        file.write(line if number == 0 else f",\n{line}")
    file.write("\n]}\n")


def _lines(matrix: ScoreMatrix) -> Iterator[str]:
    encoder = msgspec.json.Encoder()
    ids = [run.id for run in matrix.runs]
    for case, grader, compared, scores in matrix.rows():
        row: dict[str, Any] = {"case": case, "grader": grader, "compared": compared}
        yield encoder.encode({**row, "scores": dict(zip(ids, scores, strict=True))}).decode()


_WRITERS: dict[str, Callable[[IO[str], ScoreMatrix], None]] = {
    ".csv": _write_csv,
    ".json": _write_json,
    ".jsonl": _write_jsonl,
}

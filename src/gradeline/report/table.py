"""Runs as tables: CSV (RFC 4180) and Parquet of one run, and the score matrix of several runs."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from errno import EIO
from importlib import import_module
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, TypeAlias, cast

import msgspec

from gradeline.analysis.ranking import ScoreMatrix
from gradeline.errors import ConfigError, Outcome, Problem
from gradeline.model import ErrorInfo, Grade, Record, RunGrader, quote
from gradeline.model.label import ReferenceLabel
from gradeline.model.text import clean_text, escape_formula
from gradeline.suite.parquet import DuckDB


class TableRow(NamedTuple):
    """One response with the grade of one grader; ``grade`` is None while the response is not graded."""

    record: Record
    grader: str
    kind: str
    grade: Grade | None

    @property
    def outcome(self) -> Outcome | None:
        """None until the response is graded; a failed call counts as skipped even without a grade."""
        if self.grade is not None:
            return self.grade.outcome
        return None if self.record.response.error is None else Outcome.SKIPPED

    @property
    def error(self) -> ErrorInfo | None:
        """Why there is no score: the grader's error, or that of the agent's call."""
        own = None if self.grade is None else self.grade.error
        return self.record.response.error if own is None else own


def result_rows(records: Iterable[Record], graders: Mapping[str, RunGrader] | None = None) -> Iterator[TableRow]:
    """The rows of records, one per grader of ``graders``, graded or not.

    Without ``graders`` a record has one row per grade, or a single row without a grader if it has none.
    """
    for record in records:
        if graders is not None:
            for key, grader in graders.items():
                yield TableRow(record, key, grader.kind, record.grades.get(key))
        elif record.grades:
            for key, grade in record.grades.items():
                yield TableRow(record, key, grade.kind, grade)
        else:
            yield TableRow(record, "", "", None)


COLUMN_TYPES = {
    "run": "VARCHAR",
    "case": "VARCHAR",
    "repeat": "INTEGER",
    "grader": "VARCHAR",
    "kind": "VARCHAR",
    "outcome": "VARCHAR",
    "score": "DOUBLE",
    "passed": "BOOLEAN",
    "rationale": "VARCHAR",
    "error_type": "VARCHAR",
    "error_message": "VARCHAR",
    "fault": "VARCHAR",
    "response_status": "VARCHAR",
    "latency_ms": "DOUBLE",
    "input": "VARCHAR",
    "expected": "VARCHAR",
    "submission": "VARCHAR",
    "text": "VARCHAR",
    "tags": "VARCHAR[]",
    "metadata": "JSON",
}
"""The columns of a run with their types in DuckDB."""
VARIANT_COLUMN = {"variant": "VARCHAR"}
"""The last column of a run with a variant."""
LABEL_TYPES = {"label": "VARCHAR", "label_score": "DOUBLE", "label_category": "VARCHAR", "label_raters": "INTEGER"}
"""The columns of a run with labels: what people say about the grader's question, and how many of them."""
TableLabels: TypeAlias = Mapping[tuple[str, int, str], ReferenceLabel]
"""The labels of a run by case, repeat and grader."""
CSV_COLUMNS = tuple(name for name in COLUMN_TYPES if name not in ("tags", "metadata"))
_NO_GRADE = _NO_ERROR = ("", "", "")


def write_csv(
    file: IO[str],
    records: Iterable[Record],
    graders: Mapping[str, RunGrader] | None = None,
    variant: str | None = None,
    labels: TableLabels | None = None,
) -> None:
    """One row per (case, repeat, grader), in constant memory; with a run's graders, also for grades still missing.

    Open the file with ``newline=""``. Text that a spreadsheet would run as a formula is prefixed with an apostrophe.
    Unknown values are empty cells: an error has no score, a missing grade no outcome. A run with a variant has a
    column more, one with labels those of `LABEL_TYPES`.
    """
    last = () if variant is None else (cell_text(variant),)
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow((*CSV_COLUMNS, *(LABEL_TYPES if labels else ()), *(VARIANT_COLUMN if last else ())))
    table.writerows(
        (*_csv_cells(row), *(map(_csv_cell, _label_cells(row, labels)) if labels else ()), *last)
        for row in result_rows(records, graders)
    )


def _csv_cells(row: TableRow) -> tuple[str, ...]:
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


def _label_cells(row: TableRow, labels: TableLabels) -> tuple[str | float | int | None, ...]:
    """The values of the columns `LABEL_TYPES`."""
    found = labels.get((row.record.case, row.record.repeat, row.grader))
    if found is None:
        return (None,) * len(LABEL_TYPES)
    verdict = None if found.passed is None else "pass" if found.passed else "fail"
    return verdict, found.score, found.category, found.raters


def _csv_cell(value: str | float | int | None) -> str:
    return cell_text(value) if isinstance(value, str) else "" if value is None else str(value)


def cell_text(value: str | list[str] | None) -> str:
    """Text as a cell of a spreadsheet, formulas escaped; None is empty."""
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
_MATRIX_COLUMNS = {"case": "VARCHAR", "grader": "VARCHAR", "compared": "BOOLEAN"}


def matrix_writer(path: Path) -> Callable[[IO[str], ScoreMatrix], None]:
    """The writer of the text format that the file's suffix names; for Parquet use `write_matrix_parquet`."""
    found = _WRITERS.get(path.suffix.lower())
    if found is None:
        reason = f"invalid file name {quote(path.name)}: end it with {', '.join(_WRITERS)} or {PARQUET}"
        raise ConfigError(Problem("--output", reason))
    return found


def write_matrix_parquet(path: Path, matrix: ScoreMatrix) -> None:
    """The same columns as in CSV, typed, without escapes; see `write_rows`."""
    columns = {**_MATRIX_COLUMNS, **dict.fromkeys(_run_columns(matrix), "DOUBLE")}
    write_rows(path, columns, ((case, grader, compared, *scores) for case, grader, compared, scores in matrix.rows()))


def _run_columns(matrix: ScoreMatrix) -> list[str]:
    """Column names with the run's ID, so that runs of the same name stay distinct."""
    return [f"{run.name} ({run.id})" for run in matrix.runs]


def _write_csv(file: IO[str], matrix: ScoreMatrix) -> None:
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow([*_MATRIX_COLUMNS, *map(cell_text, _run_columns(matrix))])
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


_GROUP_MB = 8
"""Maximum size of a row group: writers hold a whole one in memory, readers skip whole ones."""
_SHORTEST_LINE = 1_000_000
"""Minimum for DuckDB's maximum object size, which sets the size of its buffers."""
_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "memory_limit": "256MB",
    # groups are bounded by their bytes only without it; a single thread keeps the order by itself
    "preserve_insertion_order": "false",
    "threads": "1",
}


def write_parquet(
    path: Path,
    records: Iterable[Record],
    graders: Mapping[str, RunGrader],
    variant: str | None = None,
    labels: TableLabels | None = None,
) -> None:
    """One row per (case, repeat, grader), as in CSV but typed and without escapes, in constant memory.

    See `write_rows` for requirements and errors.
    """
    columns = COLUMN_TYPES | (LABEL_TYPES if labels else {}) | (VARIANT_COLUMN if variant is not None else {})
    last = () if variant is None else (variant,)
    rows = result_rows(records, graders)
    write_rows(
        path, columns, ((*_parquet_cells(row), *(_label_cells(row, labels) if labels else ()), *last) for row in rows)
    )


def write_rows(path: Path, columns: Mapping[str, str], cells: Iterable[Sequence[object]]) -> None:
    """Write a Parquet file: ``columns`` maps names to DuckDB types, ``cells`` are the rows.

    The rows pass through a temporary file next to ``path``, which is removed in any case; after a failure ``path``
    may be incomplete. Raises `ConfigError` without DuckDB, `OSError` if it cannot write.
    """
    duckdb = require_duckdb()
    with TemporaryDirectory(prefix=".gradeline-parquet-", dir=path.parent) as name:
        folder = Path(name)
        rows_file = folder / "rows.jsonl"
        longest = _write_lines(rows_file, cells)
        connection = duckdb.connect(":memory:", config={**_SETTINGS, "temp_directory": str(folder / "spill")})
        try:
            connection.execute(_statement(rows_file, path, columns, longest))
        except duckdb.Error as error:
            raise OSError(EIO, str(error).partition("\n")[0], str(path)) from None
        finally:
            connection.close()


def require_duckdb() -> DuckDB:
    """The DuckDB module; `ConfigError` with the command to install it."""
    try:
        return cast("DuckDB", import_module("duckdb"))
    except ImportError:
        raise ConfigError(
            Problem("format", "'parquet' needs DuckDB: pip install 'gradeline[export]', or use another format")
        ) from None


def _write_lines(path: Path, cells: Iterable[Sequence[object]]) -> int:
    """Write the rows as JSON lines; returns the length of the longest line."""
    encoder = msgspec.json.Encoder()
    longest = 0
    with path.open("wb") as file:
        for row in cells:
            numbered = {_key(number): cell for number, cell in enumerate(row)}
            longest = max(longest, file.write(encoder.encode(numbered) + b"\n"))
    return longest


def _key(number: int) -> str:
    """A column's key in the temporary file; real column names may contain anything, so they appear only quoted."""
    return f"c{number}"


def _statement(source: Path, made: Path, columns: Mapping[str, str], longest: int) -> str:
    types = ", ".join(f"'{_key(number)}': '{kind}'" for number, kind in enumerate(columns.values()))
    named = ", ".join(f"{_key(number)} AS {_identifier(name)}" for number, name in enumerate(columns))
    return (
        f"COPY (SELECT {named} FROM read_json({_text_literal(source)}, format = 'newline_delimited',"  # noqa: S608 - quoted
        f" maximum_object_size = {max(longest, _SHORTEST_LINE) + 1}, columns = {{{types}}}))"
        f" TO {_text_literal(made)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE_BYTES '{_GROUP_MB}MB')"
    )


def _text_literal(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _parquet_cells(row: TableRow) -> tuple[object, ...]:
    """In the order of `COLUMN_TYPES`."""
    record, grade, error = row.record, row.grade, row.error
    response, sample = record.response, record.sample
    cells = {
        "run": record.run,
        "case": record.case,
        "repeat": record.repeat,
        "grader": row.grader,
        "kind": row.kind,
        "outcome": row.outcome,
        "score": None if grade is None else grade.score,
        "passed": None if grade is None else grade.passed,
        "rationale": None if grade is None else grade.rationale,
        "error_type": None if error is None else error.type,
        "error_message": None if error is None else error.message,
        "fault": None if error is None else error.fault,
        "response_status": response.status,
        "latency_ms": response.latency_ms,
        "input": _text(sample.input),
        "expected": None if sample.ground_truth is None else _text(sample.ground_truth),
        "submission": record.submissions.get(row.grader),
        "text": response.text,
        "tags": sample.tags,
        "metadata": {} if grade is None else grade.metadata,
    }
    return tuple(cells[name] for name in COLUMN_TYPES)


def _text(value: str | list[str]) -> str:
    """The turns of a conversation as one string."""
    return value if isinstance(value, str) else "\n\n".join(value)

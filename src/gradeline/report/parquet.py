"""Rows as a Parquet file, by DuckDB where it is installed (the extra ``export``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from errno import EIO
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, cast

import msgspec

from gradeline.errors import ConfigError, Problem
from gradeline.model import Record, RunGrader
from gradeline.report.table import ResultRow, result_rows

COLUMNS = {
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
_GROUP_MB = 8
"""What a group of rows may come to: a whole one is held in memory, and readers skip whole ones."""
_SHORTEST_LINE = 1_000_000
"""DuckDB takes room for several of the longest lines that it is told of."""
_SETTINGS = {
    "autoinstall_known_extensions": "false",
    "memory_limit": "256MB",
    # groups are bounded by their bytes only without it; a single thread keeps the order by itself
    "preserve_insertion_order": "false",
    "threads": "1",
}


class _Connection(Protocol):
    def execute(self, statement: str) -> object: ...

    def close(self) -> None: ...


class _DuckDB(Protocol):
    Error: type[Exception]

    def connect(self, database: str, *, config: dict[str, str]) -> _Connection: ...


def write_parquet(path: Path, records: Iterable[Record], graders: Mapping[str, RunGrader]) -> None:
    """One row per (case, repeat, grader), as in CSV but typed and with nothing defused, in constant memory.

    See `write_rows` for what it needs and raises.
    """
    write_rows(path, COLUMNS, map(_cells, result_rows(records, graders)))


def write_rows(path: Path, columns: Mapping[str, str], cells: Iterable[Sequence[object]]) -> None:
    """A Parquet file with these columns, by name their DuckDB type, and a row for each of ``cells``.

    The rows go through a file next to ``path``, so that twice the room is needed for a moment. Whatever fails, that
    file is gone afterwards; one at ``path`` may be there in part. `ConfigError` where DuckDB is not installed,
    `OSError` where it cannot write.
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


def require_duckdb() -> _DuckDB:
    """DuckDB, or `ConfigError` that says how to get it."""
    try:
        return cast("_DuckDB", import_module("duckdb"))
    except ImportError:
        raise ConfigError(
            Problem("format", "'parquet' needs DuckDB: pip install 'gradeline[export]', or take another format")
        ) from None


def _write_lines(path: Path, cells: Iterable[Sequence[object]]) -> int:
    """Gives the length of the longest line."""
    encoder = msgspec.json.Encoder()
    longest = 0
    with path.open("wb") as file:
        for row in cells:
            numbered = {_key(number): cell for number, cell in enumerate(row)}
            longest = max(longest, file.write(encoder.encode(numbered) + b"\n"))
    return longest


def _key(number: int) -> str:
    """A column within the file of rows: the names of columns may hold anything, and appear only as identifiers."""
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


def _cells(row: ResultRow) -> tuple[object, ...]:
    """In the order of `COLUMNS`."""
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
    return tuple(cells[name] for name in COLUMNS)


def _text(value: str | list[str]) -> str:
    """The turns of a conversation as one text."""
    return value if isinstance(value, str) else "\n\n".join(value)

"""A run as a Parquet file, by DuckDB where it is installed (the extra ``export``)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, cast

import msgspec

from gradeline.model import Record, RunGrader
from gradeline.report.rows import Row, rows
from gradeline.service.failures import ApiError, Code
from gradeline.service.result_shapes import text_of
from gradeline.service.streams import Chunks

_CHUNK = 256 * 1024
_COLUMNS = {
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


class _Connection(Protocol):
    def execute(self, statement: str) -> object: ...

    def close(self) -> None: ...


class _DuckDB(Protocol):
    def connect(self, database: str, *, config: dict[str, str]) -> _Connection: ...


def parquet_chunks(records: Iterable[Record], graders: Mapping[str, RunGrader], done: Callable[[], None]) -> Chunks:
    """The bytes of the file: one row per (case, repeat, grader), as in CSV but typed and with nothing defused.

    It is whole on disk before the first byte is given; ``done`` is called at the end, whatever that is.
    """
    with ExitStack() as opened:
        opened.callback(done)
        duckdb = _duckdb()
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="gradeline-parquet-")))
        made = _made(duckdb, folder, records, graders)
        return Chunks(_read(made, opened.pop_all()))


def _duckdb() -> _DuckDB:
    try:
        return cast("_DuckDB", import_module("duckdb"))
    except ImportError:
        raise ApiError(
            Code.INVALID_INPUT,
            "Parameter 'format' is 'parquet', which this server cannot write: install DuckDB there with"
            " pip install 'gradeline[export]', or take another format",
        ) from None


def _made(duckdb: _DuckDB, folder: Path, records: Iterable[Record], graders: Mapping[str, RunGrader]) -> Path:
    rows_file, made = folder / "rows.jsonl", folder / "results.parquet"
    encoder = msgspec.json.Encoder()
    with rows_file.open("wb") as file:
        for row in rows(records, graders):
            file.write(encoder.encode(_cells(row)) + b"\n")
    config = {
        "autoinstall_known_extensions": "false",
        "memory_limit": "256MB",
        "temp_directory": str(folder / "spill"),
        "threads": "1",
    }
    connection = duckdb.connect(":memory:", config=config)
    try:
        columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _COLUMNS.items())
        connection.execute(
            f"COPY (SELECT * FROM read_json({_quoted(rows_file)}, format = 'newline_delimited',"  # noqa: S608 - own paths
            f" maximum_object_size = 100000000, columns = {{{columns}}}))"
            f" TO {_quoted(made)} (FORMAT parquet, COMPRESSION zstd)"
        )
    finally:
        connection.close()
    rows_file.unlink()
    return made


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _cells(row: Row) -> dict[str, object]:
    record, grade, error = row.record, row.grade, row.error
    response, sample = record.response, record.sample
    return {
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
        "input": text_of(sample.input),
        "expected": None if sample.ground_truth is None else text_of(sample.ground_truth),
        "submission": record.submissions.get(row.grader),
        "text": response.text,
        "tags": sample.tags,
        "metadata": {} if grade is None else grade.metadata,
    }


def _read(path: Path, opened: ExitStack) -> Generator[bytes, None, None]:
    with opened, path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk

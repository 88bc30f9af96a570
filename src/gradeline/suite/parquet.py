"""Rows of Parquet files, streamed by DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from gradeline.model import quote
from gradeline.suite.cases import DatasetError
from gradeline.suite.problems import SourcePosition, problem_at
from gradeline.suite.table_values import BinaryValueError, plain_value

PARQUET = ".parquet"
_BATCH = 500
_SETTINGS = {"autoinstall_known_extensions": "false", "memory_limit": "512MB", "threads": "1"}
_GLOB = re.compile(r"[*?\[]")
_BINARY = re.compile(r"\b(BLOB|BIT|GEOMETRY)\b")
_ZONED = "TIMESTAMP WITH TIME ZONE"


class _Result(Protocol):
    def fetchmany(self, size: int) -> list[tuple[Any, ...]]: ...

    def fetchall(self) -> list[tuple[Any, ...]]: ...


class DuckDBConnection(Protocol):
    def execute(self, statement: str, parameters: Sequence[str] = ()) -> _Result: ...

    def close(self) -> None: ...


class DuckDB(Protocol):
    """The part of the module ``duckdb`` that is used; the package is optional."""

    Error: type[Exception]

    def connect(self, database: str, *, config: dict[str, str]) -> DuckDBConnection: ...


def parquet_rows(
    path: Path, choose: Callable[[Sequence[str]], Sequence[str]] = lambda names: names
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows with their numbers from one, in constant memory; `DatasetError` if they cannot be read.

    ``choose`` gets the names of all columns and returns those to read; other columns are not touched.
    """
    with _connection(path) as connection:
        source = [_GLOB.sub(r"[\g<0>]", str(path))]  # DuckDB would take the path as a pattern
        described = connection.execute("DESCRIBE SELECT * FROM read_parquet(?)", source).fetchall()
        types = {str(name): str(kind) for name, kind, *_ in described}
        names = list(choose(list(types)))
        for name in names:
            if _BINARY.search(types[name]):
                raise _binary(path, 1, name, types[name])
        if not names:
            names = list(types)[:1]
        selected = ", ".join(_selected(name, types[name]) for name in names)
        found = connection.execute(f"SELECT {selected} FROM read_parquet(?)", source)  # noqa: S608 - names are quoted
        number = 0
        while rows := found.fetchmany(_BATCH):
            for row in rows:
                number += 1
                yield number, _row(path, number, names, row)


def _row(path: Path, number: int, names: Sequence[str], row: tuple[Any, ...]) -> dict[str, Any]:
    data = {}
    for name, value in zip(names, row, strict=True):
        try:
            data[name] = plain_value(value)
        except BinaryValueError:
            raise _binary(path, number, name, "binary") from None
    return data


def _selected(name: str, kind: str) -> str:
    """The column as selected: timestamps with a time zone as text, which needs no package for time zones."""
    quoted = '"' + name.replace('"', '""') + '"'
    return f"CAST({quoted} AS {kind.replace(_ZONED, 'VARCHAR')}) AS {quoted}" if _ZONED in kind else quoted


def _binary(path: Path, row: int, name: str, kind: str) -> DatasetError:
    reason = (
        f"the column is binary ({kind}), and a case is text; leave it out by listing the columns you need:"
        " columns: {input: …, ground_truth: …, metadata: {…}}"
    )
    return DatasetError(problem_at(SourcePosition(str(path), row), (name,), reason))


@contextmanager
def _connection(path: Path) -> Iterator[DuckDBConnection]:
    try:
        duckdb = cast("DuckDB", import_module("duckdb"))
    except ImportError:
        reason = "Parquet files need DuckDB: pip install 'gradeline[export]', or convert the file to .jsonl"
        raise DatasetError(problem_at(SourcePosition(str(path)), (), reason)) from None
    connection = duckdb.connect(":memory:", config=dict(_SETTINGS))
    try:
        with suppress(duckdb.Error):  # a build without time zones has no other than UTC
            connection.execute("SET TimeZone = 'UTC'")
        yield connection
    except duckdb.Error as error:
        reason = f"cannot be read as Parquet: {quote(str(error).partition(chr(10))[0])}"
        raise DatasetError(problem_at(SourcePosition(str(path)), (), reason)) from None
    finally:
        connection.close()

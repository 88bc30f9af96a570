"""Many rows in few statements.

Each statement lets go of the interpreter's lock and must wait to get it back; sixty rows in one
leave the event loop its time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from gradeline.store.rows import ResponseRow, Row

_CHUNKS = (64, 32, 16, 8, 4, 2, 1)
"""Rows of a statement: few sizes, so that each is prepared once."""


class _Table(NamedTuple):
    name: str
    columns: str
    conflict: str

    @property
    def width(self) -> int:
        return self.columns.count(",") + 1


_SAMPLES = _Table(
    "samples",
    "run, case_key, position, sample",
    "(run, case_key) DO UPDATE SET position = excluded.position, sample = excluded.sample"
    " WHERE sample IS NOT excluded.sample OR position IS NOT excluded.position",
)
_RESPONSES = _Table(
    "responses",
    "run, case_key, repeat, status, response, latency_ms, cost, cache_key, digest",
    "(run, case_key, repeat) DO UPDATE SET status = excluded.status, response = excluded.response,"
    " latency_ms = excluded.latency_ms, cost = excluded.cost, cache_key = excluded.cache_key,"
    " digest = excluded.digest"
    " WHERE response IS NOT excluded.response OR digest IS NOT excluded.digest",
)
_GRADES = _Table(
    "grades",
    "run, case_key, repeat, grader, fingerprint, outcome, units, squares, grade, submission, score, reported_error,"
    " cost",
    "(run, case_key, repeat, grader) DO UPDATE SET fingerprint = excluded.fingerprint, outcome = excluded.outcome,"
    " units = excluded.units, squares = excluded.squares, grade = excluded.grade, submission = excluded.submission,"
    " score = excluded.score, reported_error = excluded.reported_error, cost = excluded.cost",
)
_PLACE_LAST = """
    INSERT INTO samples (run, case_key, position, sample)
    VALUES (?1, ?2, coalesce((SELECT max(position) + 1 FROM samples WHERE run = ?1), 0), ?3)
    ON CONFLICT (run, case_key) DO UPDATE SET sample = excluded.sample WHERE sample IS NOT excluded.sample"""


def put_rows(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Store the rows, each over what was there. A row that cannot be stored fails them all."""
    responses = [row for row in rows if isinstance(row, ResponseRow)]
    for row in responses:
        if row.position is None:
            connection.execute(_PLACE_LAST, (row.run, row.case, row.sample))
    placed = [(row.run, row.case, row.position, row.sample) for row in responses if row.position is not None]
    put_samples(connection, placed)
    _put(connection, _RESPONSES, [row[:9] for row in responses])
    _put(connection, _GRADES, [row for row in rows if not isinstance(row, ResponseRow)])


def put_samples(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, int, str]]) -> None:
    """Store cases as (run, case, position, sample)."""
    _put(connection, _SAMPLES, rows)


def _put(connection: sqlite3.Connection, table: _Table, rows: Sequence[Sequence[Any]]) -> None:
    for chunk in _chunks(rows):
        connection.execute(_statement(table, len(chunk)), tuple(chain.from_iterable(chunk)))


def _chunks(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    start = 0
    for size in _CHUNKS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@cache
def _statement(table: _Table, rows: int) -> str:
    values = ", ".join([f"({', '.join('?' * table.width)})"] * rows)
    return f"INSERT INTO {table.name} ({table.columns}) VALUES {values} ON CONFLICT {table.conflict}"  # noqa: S608 - made of constants

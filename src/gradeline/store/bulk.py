"""Many rows in few statements.

Each statement is begun and ended, lets go of the interpreter's lock and must wait to get it back: sixty rows in one
statement take a fifth less of the processor than as many statements.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from gradeline.errors import StoreError
from gradeline.store.rows import ResponseRow, Row, unsaved_run

_BAD_ROW = (sqlite3.IntegrityError, sqlite3.DataError, ValueError, OverflowError)
_CHUNKS = (64, 32, 16, 8)
"""Rows of a statement: few sizes, so that each is prepared once; but one statement for the last few."""


class _Table(NamedTuple):
    name: str
    columns: str
    keys: int
    """So many of the columns, from the first, tell rows apart."""
    update: str
    """What becomes of a row that is there already."""

    @property
    def key(self) -> str:
        return ", ".join(self.columns.split(", ")[: self.keys])

    @property
    def width(self) -> int:
        return self.columns.count(",") + 1


_SAMPLES = _Table(
    "samples",
    "run, case_key, position, sample",
    2,
    "UPDATE SET position = excluded.position, sample = excluded.sample"
    " WHERE sample IS NOT excluded.sample OR position IS NOT excluded.position",
)
_RESPONSES = _Table(
    "responses",
    "run, case_key, repeat, status, response, latency_ms, cost, cache_key, digest",
    3,
    "UPDATE SET status = excluded.status, response = excluded.response,"
    " latency_ms = excluded.latency_ms, cost = excluded.cost, cache_key = excluded.cache_key,"
    " digest = excluded.digest"
    " WHERE response IS NOT excluded.response OR digest IS NOT excluded.digest",
)
_GRADES = _Table(
    "grades",
    "run, case_key, repeat, grader, fingerprint, outcome, units, squares, grade, submission, score, reported_error,"
    " cost",
    4,
    "UPDATE SET fingerprint = excluded.fingerprint, outcome = excluded.outcome,"
    " units = excluded.units, squares = excluded.squares, grade = excluded.grade, submission = excluded.submission,"
    " score = excluded.score, reported_error = excluded.reported_error, cost = excluded.cost",
)
_CLUSTERS = _Table(
    "clusters",
    "run, case_key, cluster",
    2,
    "UPDATE SET cluster = excluded.cluster WHERE cluster IS NOT excluded.cluster",
)
_PLACE_LAST = """
    INSERT INTO samples (run, case_key, position, sample)
    VALUES (?1, ?2, coalesce((SELECT max(position) + 1 FROM samples WHERE run = ?1), 0), ?3)
    ON CONFLICT (run, case_key) DO UPDATE SET sample = excluded.sample WHERE sample IS NOT excluded.sample"""


_RESPONSE_COUNT = itemgetter(0, 3)
"""What a response is counted by: run and status."""
_GRADE_COUNT = itemgetter(0, 3, 5, 6, 7)
"""What a grade is counted by: run, grader and outcome; then its score in units, and the square of that."""
_COUNT_RESPONSES = """
    INSERT INTO response_counts (run, status, count) VALUES (?, ?, ?)
    ON CONFLICT (run, status) DO UPDATE SET count = count + excluded.count"""
_COUNT_GRADES = """
    INSERT INTO grade_counts (run, grader, outcome, count, units, squares) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, grader, outcome) DO UPDATE SET
        count = count + excluded.count, units = units + excluded.units, squares = squares + excluded.squares"""


def put_rows(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Store the rows, each over what was there. A row that cannot be stored fails them all."""
    responses = [row for row in rows if isinstance(row, ResponseRow)]
    if responses:
        for row in responses:
            if row.position is None:
                connection.execute(_PLACE_LAST, (row.run, row.case, row.sample))
        placed = [(row.run, row.case, row.position, row.sample) for row in responses if row.position is not None]
        put_samples(connection, placed)
        put_clusters(connection, [(row.run, row.case, row.cluster) for row in responses if row.cluster is not None])
        _put_responses(connection, [row[:9] for row in responses])
    if len(responses) < len(rows):
        _put_grades(connection, [row for row in rows if not isinstance(row, ResponseRow)])


def put_samples(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, int, str]]) -> None:
    """Store cases as (run, case, position, sample)."""
    _replace(connection, _SAMPLES, rows)


def put_clusters(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, str]]) -> None:
    """Store the clusters of cases as (run, case, cluster)."""
    _replace(connection, _CLUSTERS, rows)


def _put_responses(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    new, others = _put_new(connection, _RESPONSES, rows)
    for place, number in Counter(map(_RESPONSE_COUNT, new)).items():
        connection.execute(_COUNT_RESPONSES, (*place, number))
    _replace(connection, _RESPONSES, others)


def _put_grades(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    new, others = _put_new(connection, _GRADES, rows)
    # most scores of a batch are one of a few
    for (*place, units, squares), number in Counter(map(_GRADE_COUNT, new)).items():
        connection.execute(_COUNT_GRADES, (*place, number, number * units, number * squares))
    _replace(connection, _GRADES, others)


def _put_new(
    connection: sqlite3.Connection, table: _Table, rows: Sequence[tuple[Any, ...]]
) -> tuple[Sequence[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Store the rows that are new. Gives them, since nothing counts them yet, and those that are not.

    A row that takes another's place is counted by its table's triggers; for each new one as well that took a fifth of
    a commit.
    """
    stored, others = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for chunk in _chunks(rows):
        done = connection.execute(_statement(table, len(chunk), "NOTHING"), tuple(chain.from_iterable(chunk)))
        if done.rowcount == len(chunk):
            stored += chunk
            continue
        # what one statement inserts has the row numbers before its last one
        last = done.lastrowid or 0
        found = connection.execute(
            f"SELECT {table.key} FROM {table.name} WHERE rowid > ? AND rowid <= ?",  # noqa: S608 - made of constants
            (last - done.rowcount, last),
        )
        keys = set(found) if done.rowcount else set()
        for row in chunk:
            key = row[: table.keys]
            (stored if key in keys else others).append(row)
            keys.discard(key)  # the same a second time takes the place of the first
    return stored, others


def _replace(connection: sqlite3.Connection, table: _Table, rows: Sequence[tuple[Any, ...]]) -> None:
    for chunk in _chunks(rows):
        connection.execute(_statement(table, len(chunk), table.update), tuple(chain.from_iterable(chunk)))


def _chunks(rows: Sequence[tuple[Any, ...]]) -> Sequence[Sequence[tuple[Any, ...]]]:
    if len(rows) <= _CHUNKS[-1]:
        return (rows,) if rows else ()
    chunks = []
    start = 0
    for size in _CHUNKS:
        while len(rows) - start >= size:
            chunks.append(rows[start : start + size])
            start += size
    return (*chunks, *_chunks(rows[start:]))


@cache
def _statement(table: _Table, rows: int, otherwise: str) -> str:
    values = ", ".join([f"({', '.join('?' * table.width)})"] * rows)
    return f"INSERT INTO {table.name} ({table.columns}) VALUES {values} ON CONFLICT ({table.key}) DO {otherwise}"  # noqa: S608 - made of constants


def put_acceptable_rows(
    connection: sqlite3.Connection, rows: Sequence[Row], begin: Callable[[], None]
) -> list[StoreError | None]:
    """Store the rows, or say of each why it cannot be: a bad row costs the others of its batch nothing.

    They are the first thing in their transaction: a bad row begins it anew, since a savepoint for all of them
    would make every batch pay for the few that need one.
    """
    try:
        put_rows(connection, rows)
    except _BAD_ROW as error:
        connection.execute("ROLLBACK")
        begin()
        if len(rows) == 1:
            return [_refusal(rows[0], error)]
        return [_put_row(connection, row) for row in rows]
    return [None] * len(rows)


def _put_row(connection: sqlite3.Connection, row: Row) -> StoreError | None:
    connection.execute("SAVEPOINT one")
    try:
        put_rows(connection, [row])
    except _BAD_ROW as error:
        connection.execute("ROLLBACK TO one")
        return _refusal(row, error)
    finally:
        connection.execute("RELEASE one")
    return None


def _refusal(row: Row, error: Exception) -> StoreError:
    if isinstance(error, sqlite3.IntegrityError):
        return unsaved_run(row.run)
    return StoreError(f"cannot store {row.run}/{row.case}/{row.repeat}: {error}")

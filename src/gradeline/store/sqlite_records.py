"""Reading and writing a run's records (samples, responses, grades) in SQLite.

Rows are written many to a statement: each statement releases and re-acquires the interpreter's lock, and sixty rows in
one use a fifth less CPU than sixty statements. They are read page by page, each page starting where the one before
ended: between pages no read is open that would block checkpoints, and each page may be fetched by another thread.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gradeline.errors import ORDER_DECIDED, SETTLED_ERRORS, UNSURE, Outcome, StoreError
from gradeline.model.observation import Observation
from gradeline.model.record import ResponseKey
from gradeline.model.run import Columns, GradeColumns, GradeMeasure, Measure, ResponseColumns
from gradeline.store.rows import (
    OBSERVATION_COLUMNS,
    OBSERVATION_FIELDS,
    RecordRow,
    ResponseRow,
    observation_row,
    unsaved_run,
)

if TYPE_CHECKING:
    from gradeline.store.sqlite_connections import SqliteConnectionPool

_BAD_ROW = (sqlite3.IntegrityError, sqlite3.DataError, ValueError, OverflowError)
_CHUNKS = (64, 32, 16, 8)
"""Rows in a statement: few sizes, so that each is prepared once, and one statement for the last few."""
_PAGE_ROWS = 200
_PAGE_CHARS = 4_000_000
_MEASURES_AT_ONCE = 1000
COLUMNS_AT_ONCE = 2000
_CASES_AT_ONCE = 500
"""In one statement; older builds of SQLite take 999 values at most."""
START = (-1, "", -1)
"""Position, case and repeat before the first result."""
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


class _Table(NamedTuple):
    name: str
    columns: str
    key_columns: int
    """The first N columns are the primary key."""
    update: str
    """What to do with a row that exists."""

    @property
    def key(self) -> str:
        return ", ".join(self.columns.split(", ")[: self.key_columns])

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
_APPEND_SAMPLE = """
    INSERT INTO samples (run, case_key, position, sample)
    VALUES (?1, ?2, coalesce((SELECT max(position) + 1 FROM samples WHERE run = ?1), 0), ?3)
    ON CONFLICT (run, case_key) DO UPDATE SET sample = excluded.sample WHERE sample IS NOT excluded.sample"""
_RESPONSE_COUNT = itemgetter(0, 3)
"""The columns a response is counted by: run and status."""
_GRADE_COUNT = itemgetter(0, 3, 5, 6, 7)
"""The columns a grade is counted by (run, grader, outcome), then its score in units and the square of it."""
_COUNT_RESPONSES = """
    INSERT INTO response_counts (run, status, count) VALUES (?, ?, ?)
    ON CONFLICT (run, status) DO UPDATE SET count = count + excluded.count"""
_COUNT_GRADES = """
    INSERT INTO grade_counts (run, grader, outcome, count, units, squares) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (run, grader, outcome) DO UPDATE SET
        count = count + excluded.count, units = units + excluded.units, squares = squares + excluded.squares"""

_JOINED = """
    SELECT samples.position, samples.case_key, responses.repeat, {columns}
    FROM samples JOIN responses ON responses.run = samples.run AND responses.case_key = samples.case_key
    WHERE samples.run = ?1"""
_PAGE = f"""{_JOINED} AND samples.position >= ?2
        AND (samples.position, samples.case_key, responses.repeat) > (?2, ?3, ?4)
    ORDER BY samples.position, samples.case_key, responses.repeat LIMIT ?5"""
_MEASURE_PAGE = """
    SELECT page.*, grades.grader, grades.outcome, grades.score, grades.reported_error, grades.cost
    FROM ({page}) AS page LEFT JOIN grades
        ON grades.run = ?6 AND grades.case_key = page.case_key AND grades.repeat = page.repeat
    ORDER BY page.position, page.case_key, page.repeat, grades.grader"""
_MEASURED = "responses.status, responses.latency_ms, responses.cost"
_KEYS = "responses.status, responses.digest"
SAMPLE_PAGE = """
    SELECT position, case_key, sample FROM samples WHERE run = ? AND (position, case_key) > (?, ?)
    ORDER BY position, case_key LIMIT ?"""
RECORD_PAGE = _PAGE.format(columns="samples.sample, responses.response")
KEY_PAGE = _PAGE.format(columns=_KEYS)
_MEASURES = _MEASURE_PAGE.format(page=_PAGE.format(columns=f"{_MEASURED}, ''"))
_MEASURES_WITH_DIGESTS = _MEASURE_PAGE.format(page=_PAGE.format(columns=f"{_MEASURED}, responses.digest"))
_AFTER = "FROM responses WHERE run = ?1 AND (case_key, repeat) > (?2, ?3)"
_COLUMNS_END = f"""
    SELECT * FROM (SELECT case_key, repeat {_AFTER} ORDER BY case_key, repeat LIMIT 1 OFFSET ?4 - 1)
    UNION ALL SELECT * FROM (SELECT case_key, repeat {_AFTER} ORDER BY case_key DESC, repeat DESC LIMIT 1) LIMIT 1
    """  # noqa: S608 - made of constants
_IN_PAGE = "WHERE run = ?1 AND (case_key, repeat) > (?2, ?3) AND (case_key, repeat) <= (?4, ?5)"
_RESPONSE_COLUMNS = f"SELECT {{columns}} FROM responses {_IN_PAGE} ORDER BY case_key, repeat"  # noqa: S608 - made of constants
_GRADE_COLUMNS = f"SELECT {{columns}} FROM grades {_IN_PAGE} ORDER BY case_key, repeat, grader"  # noqa: S608 - made of constants
_NAMED_RESPONSE_COLUMNS = _RESPONSE_COLUMNS.format(columns="case_key, status, latency_ms, cost")
_PLACED_RESPONSE_COLUMNS = """
    SELECT responses.case_key, status, latency_ms, cost, responses.digest, position FROM responses
    JOIN samples ON samples.run = responses.run AND samples.case_key = responses.case_key
    WHERE responses.run = ?1
        AND (responses.case_key, repeat) > (?2, ?3) AND (responses.case_key, repeat) <= (?4, ?5)
    ORDER BY responses.case_key, repeat"""
_NAMED_GRADE_COLUMNS = _GRADE_COLUMNS.format(columns="case_key, grader, outcome, score, reported_error, cost")
_UNNAMED_RESPONSE_COLUMNS = _RESPONSE_COLUMNS.format(columns="status, latency_ms, cost")
_UNNAMED_GRADE_COLUMNS = _GRADE_COLUMNS.format(columns="grader, score, reported_error, cost")
GRADES = "SELECT grader, grade, submission FROM grades WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY grader"
_ORDER_DECIDED = f"json_extract(grade, '$.error.type') IS '{ORDER_DECIDED}'"
_SETTLED = f"coalesce(json_extract(grade, '$.error.type'), '') IN {SETTLED_ERRORS!r}"
_FINGERPRINTS = f"""
    SELECT grader, fingerprint, outcome = 'error' AND NOT {_SETTLED} FROM grades
    WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY grader"""  # noqa: S608 - made of constants
ORDER_COUNTS = f"""
    SELECT grader, coalesce(sum(favoured IS 'first'), 0), coalesce(sum(favoured IS 'second'), 0) FROM (
        SELECT grader, json_extract(grade, '$.metadata.favoured') AS favoured FROM grades
        WHERE run = ? AND outcome = 'error' AND {_ORDER_DECIDED})
    GROUP BY grader"""  # noqa: S608 - made of constants
SELECTIVE_COUNTS = f"""
    SELECT grader, sum(second), sum(unsure) FROM (
        SELECT grader, outcome <> 'error' AND json_extract(grade, '$.metadata.selective.decided') IS 'second' AS second,
            outcome = 'error' AND json_extract(grade, '$.error.type') IS '{UNSURE}' AS unsure
        FROM grades WHERE run = ?) AS decided
    GROUP BY grader HAVING sum(second) + sum(unsure) > 0"""  # noqa: S608 - made of constants


def put_rows(connection: sqlite3.Connection, rows: Sequence[RecordRow]) -> None:
    """Insert or replace rows. One that cannot be stored fails them all."""
    responses = [row for row in rows if isinstance(row, ResponseRow)]
    if responses:
        for row in responses:
            if row.position is None:
                connection.execute(_APPEND_SAMPLE, (row.run, row.case, row.sample))
        placed = [(row.run, row.case, row.position, row.sample) for row in responses if row.position is not None]
        put_samples(connection, placed)
        put_clusters(connection, [(row.run, row.case, row.cluster) for row in responses if row.cluster is not None])
        _put_responses(connection, [row[:9] for row in responses])
    if len(responses) < len(rows):
        _put_grades(connection, [row for row in rows if not isinstance(row, ResponseRow)])


def put_samples(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, int, str]]) -> None:
    """Insert or replace cases given as (run, case, position, sample)."""
    _upsert(connection, _SAMPLES, rows)


def put_clusters(connection: sqlite3.Connection, rows: Sequence[tuple[str, str, str]]) -> None:
    """Insert or replace the clusters of cases given as (run, case, cluster)."""
    _upsert(connection, _CLUSTERS, rows)


def _put_responses(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    new, existing = _insert_new(connection, _RESPONSES, rows)
    for key, number in Counter(map(_RESPONSE_COUNT, new)).items():
        connection.execute(_COUNT_RESPONSES, (*key, number))
    _upsert(connection, _RESPONSES, existing)


def _put_grades(connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    new, existing = _insert_new(connection, _GRADES, rows)
    # a batch has few distinct scores
    for (*key, units, squares), number in Counter(map(_GRADE_COUNT, new)).items():
        connection.execute(_COUNT_GRADES, (*key, number, number * units, number * squares))
    _upsert(connection, _GRADES, existing)


def _insert_new(
    connection: sqlite3.Connection, table: _Table, rows: Sequence[tuple[Any, ...]]
) -> tuple[Sequence[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Insert the rows whose key is new. Returns those, which the caller must count, and the others.

    Replaced rows are counted by triggers; doing so for new rows too took a fifth of a commit.
    """
    new, existing = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for chunk in _chunks(rows):
        cursor = connection.execute(_statement(table, len(chunk), "NOTHING"), tuple(chain.from_iterable(chunk)))
        if cursor.rowcount == len(chunk):
            new += chunk
            continue
        # the rows that one statement inserts have consecutive row ids
        last = cursor.lastrowid or 0
        inserted = connection.execute(
            f"SELECT {table.key} FROM {table.name} WHERE rowid > ? AND rowid <= ?",  # noqa: S608 - made of constants
            (last - cursor.rowcount, last),
        )
        keys = set(inserted) if cursor.rowcount else set()
        for row in chunk:
            key = row[: table.key_columns]
            (new if key in keys else existing).append(row)
            keys.discard(key)  # a second row with the same key replaces the first
    return new, existing


def _upsert(connection: sqlite3.Connection, table: _Table, rows: Sequence[tuple[Any, ...]]) -> None:
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
def _statement(table: _Table, rows: int, on_conflict: str) -> str:
    values = ", ".join([f"({', '.join('?' * table.width)})"] * rows)
    return f"INSERT INTO {table.name} ({table.columns}) VALUES {values} ON CONFLICT ({table.key}) DO {on_conflict}"  # noqa: S608 - made of constants


def put_valid_rows(
    connection: sqlite3.Connection, rows: Sequence[RecordRow], begin: Callable[[], None]
) -> list[StoreError | None]:
    """Store the rows that can be stored, and return for each its error or None.

    They must be the first statements of the transaction: a bad row rolls it back and begins it again, because a
    savepoint would make every batch pay for the few that need one.
    """
    try:
        put_rows(connection, rows)
    except _BAD_ROW as error:
        connection.execute("ROLLBACK")
        begin()
        if len(rows) == 1:
            return [_row_error(rows[0], error)]
        return [_put_row(connection, row) for row in rows]
    return [None] * len(rows)


def _put_row(connection: sqlite3.Connection, row: RecordRow) -> StoreError | None:
    connection.execute("SAVEPOINT one")
    try:
        put_rows(connection, [row])
    except _BAD_ROW as error:
        connection.execute("ROLLBACK TO one")
        return _row_error(row, error)
    finally:
        connection.execute("RELEASE one")
    return None


def _row_error(row: RecordRow, error: Exception) -> StoreError:
    if isinstance(error, sqlite3.IntegrityError):
        return unsaved_run(row.run)
    return StoreError(f"cannot store {row.run}/{row.case}/{row.repeat}: {error}")


class JoinedRow(NamedTuple):
    """A response with two of its columns and its grades."""

    key: ResponseKey
    first: str
    second: str
    grades: list[Any]


def read_records(pool: SqliteConnectionPool, run: str, source: str, start: tuple[int, str, int]) -> Iterator[JoinedRow]:
    """Sample, response and grades as stored, in order; ``source`` is the run whose responses are read."""
    return _read_joined(pool, RECORD_PAGE, GRADES, run, source, start)


def read_keys(
    pool: SqliteConnectionPool, run: str, source: str, cases: Sequence[str] | None = None
) -> Iterator[JoinedRow]:
    """Status, digest and fingerprints in order, of all cases or of some."""
    if cases is None:
        return _read_joined(pool, KEY_PAGE, _FINGERPRINTS, run, source, START)
    return iter(_read_keys_of_cases(pool, run, source, cases))


def _read_joined(
    pool: SqliteConnectionPool, page_statement: str, grades: str, run: str, source: str, start: tuple[int, str, int]
) -> Iterator[JoinedRow]:
    cursor = start
    while True:
        page = []
        size = 0
        with pool.reading() as connection:
            rows = connection.execute(page_statement, (source, *cursor, _PAGE_ROWS))
            for position, case, repeat, first, second in rows:
                found = connection.execute(grades, (run, case, repeat)).fetchall()
                page.append(JoinedRow(ResponseKey(run, case, repeat), first, second, found))
                cursor = (position, case, repeat)
                size += len(first) + len(second)
                if size > _PAGE_CHARS:
                    break
            rows.close()
        if not page:
            return
        yield from page


def _read_keys_of_cases(pool: SqliteConnectionPool, run: str, source: str, cases: Sequence[str]) -> list[JoinedRow]:
    distinct = list(dict.fromkeys(cases))
    with pool.reading() as connection:
        rows: list[tuple[int, str, int, str, str]] = []
        for start in range(0, len(distinct), _CASES_AT_ONCE):
            chunk = distinct[start : start + _CASES_AT_ONCE]
            rows += connection.execute(_keys_of_cases(len(chunk)), (source, *chunk))
        rows.sort(key=lambda row: row[:3])  # Python compares strings as SQLite does, by code points
        return [
            JoinedRow(
                ResponseKey(run, case, repeat),
                status,
                digest,
                connection.execute(_FINGERPRINTS, (run, case, repeat)).fetchall(),
            )
            for _, case, repeat, status, digest in rows
        ]


@cache
def _keys_of_cases(number: int) -> str:
    return f"{_JOINED.format(columns=_KEYS)} AND samples.case_key IN ({', '.join('?' * number)})"


def read_measures(
    pool: SqliteConnectionPool, run: str, source: str, clusters: Mapping[str, str], *, digests: bool
) -> Iterator[Measure]:
    statement = _MEASURES_WITH_DIGESTS if digests else _MEASURES
    cursor = START
    # a page ends between responses, never between the grades of one
    while rows := pool.read(statement, source, *cursor, _MEASURES_AT_ONCE, run):
        yield from _measures(rows, clusters)
        cursor = rows[-1][:3]


def _measures(rows: Iterable[Sequence[Any]], clusters: Mapping[str, str]) -> Iterator[Measure]:
    """Consecutive rows of one response become one measure."""
    key: tuple[str, int] | None = None
    measure: Measure | None = None
    for _, case, repeat, status, latency_ms, cost, digest, grader, outcome, score, reported, paid in rows:
        if (case, repeat) != key:
            if measure is not None:
                yield measure
            key = (case, repeat)
            measure = Measure(case, repeat, status, latency_ms, cost, {}, digest, clusters.get(case))
        if measure is not None and grader is not None:
            measure.grades[grader] = GradeMeasure(_OUTCOMES[outcome], score, bool(reported), paid)
    if measure is not None:
        yield measure


def read_columns(pool: SqliteConnectionPool, run: str, source: str, *, named: bool, digests: bool) -> Iterator[Columns]:
    cursor = ("", -1)
    while end := pool.read(_COLUMNS_END, source, *cursor, COLUMNS_AT_ONCE):
        page = (*cursor, *end[0])
        if digests or named:
            statement = _PLACED_RESPONSE_COLUMNS if digests else _NAMED_RESPONSE_COLUMNS
            responses = ResponseColumns(*_transposed(pool.read(statement, source, *page)))
            grades = GradeColumns(*_transposed(pool.read(_NAMED_GRADE_COLUMNS, run, *page)))
        else:
            responses = ResponseColumns((), *_transposed(pool.read(_UNNAMED_RESPONSE_COLUMNS, source, *page)))
            graders, *numbers = _transposed(pool.read(_UNNAMED_GRADE_COLUMNS, run, *page)) or ((), (), (), ())
            grades = GradeColumns((), graders, (), *numbers)
        yield Columns(responses, grades)
        cursor = end[0]


def _transposed(rows: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(zip(*rows, strict=True))


_KEYS_AT_ONCE = 500
_INSERT_OBSERVATION = (
    f"INSERT INTO observations ({OBSERVATION_COLUMNS}) VALUES ({', '.join('?' * (len(OBSERVATION_FIELDS) + 1))})"  # noqa: S608 - made of constants
    " ON CONFLICT (idempotency_key) DO NOTHING"
)


def put_observations(connection: sqlite3.Connection, observations: Sequence[Observation]) -> list[int]:
    """Insert the observations whose key is new, and return the id of each key. Within a transaction."""
    connection.executemany(_INSERT_OBSERVATION, map(observation_row, observations))
    keys = iter(dict.fromkeys(one.idempotency_key for one in observations))
    ids: dict[str, int] = {}
    while some := list(islice(keys, _KEYS_AT_ONCE)):
        places = ", ".join("?" * len(some))
        statement = f"SELECT idempotency_key, id FROM observations WHERE idempotency_key IN ({places})"  # noqa: S608
        ids.update(connection.execute(statement, some))
    return [ids[one.idempotency_key] for one in observations]

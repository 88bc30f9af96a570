"""Many rows in few statements: each column goes as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import asyncpg

from gradeline.errors import StoreError
from gradeline.store.postgres_errors import BAD_ROW, RowsRefused, told
from gradeline.store.rows import ResponseRow, Row, unsaved_run

if TYPE_CHECKING:
    from gradeline.store.postgres_link import Connection

_PART_CHARS = 8_000_000
"""What goes in one statement: the server takes no more than a gigabyte, and keeps it in memory."""

_PLACED = """
    INSERT INTO samples (run, case_key, position, sample)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS new (run, case_key, position, sample)
    WHERE NOT EXISTS (
        SELECT FROM samples WHERE samples.run = new.run AND samples.case_key = new.case_key
            AND samples.position = new.position AND samples.sample = new.sample OFFSET 0)
    ON CONFLICT (run, case_key) DO UPDATE SET position = excluded.position, sample = excluded.sample"""
"""The condition is there because a conflict writes to the row, even where it changes nothing. Its offset keeps it from
being planned as a join: a plan that was made when the table was empty would read all of it for every batch."""
_LAST = """
    INSERT INTO samples (run, case_key, position, sample)
    SELECT run, case_key, turn + coalesce((SELECT max(position) + 1 FROM samples WHERE samples.run = new.run), 0),
        sample
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS new (run, case_key, turn, sample)
    ON CONFLICT (run, case_key) DO UPDATE SET sample = excluded.sample
    WHERE samples.sample IS DISTINCT FROM excluded.sample"""
_CLUSTERS = """
    INSERT INTO clusters AS known (run, case_key, cluster)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
    ON CONFLICT (run, case_key) DO UPDATE SET cluster = excluded.cluster
    WHERE known.cluster IS DISTINCT FROM excluded.cluster"""
_RESPONSES = """
    INSERT INTO responses AS known
        (run, case_key, repeat, status, response, latency_ms, cost, cache_key, digest)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::float8[], $7::float8[],
        $8::text[], $9::text[])
    ON CONFLICT (run, case_key, repeat) DO UPDATE SET status = excluded.status, response = excluded.response,
        latency_ms = excluded.latency_ms, cost = excluded.cost, cache_key = excluded.cache_key,
        digest = excluded.digest
    WHERE known.response IS DISTINCT FROM excluded.response OR known.digest IS DISTINCT FROM excluded.digest"""
_GRADES = """
    INSERT INTO grades
        (run, case_key, repeat, grader, fingerprint, outcome, units, squares, grade, submission, score, reported_error,
        cost)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[],
        $8::bigint[], $9::text[], $10::text[], $11::float8[], $12::integer[], $13::float8[])
    ON CONFLICT (run, case_key, repeat, grader) DO UPDATE SET fingerprint = excluded.fingerprint,
        outcome = excluded.outcome, units = excluded.units, squares = excluded.squares, grade = excluded.grade,
        submission = excluded.submission, score = excluded.score, reported_error = excluded.reported_error,
        cost = excluded.cost"""


class _Part:
    """Rows that go together: none of them is about what another one is about."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str], tuple[int | None, str]] = {}
        self.clusters: dict[tuple[str, str], tuple[str, str, str]] = {}
        self.responses: dict[tuple[str, str, int], ResponseRow] = {}
        self.grades: dict[tuple[str, str, int, str], Row] = {}
        self._graded: set[tuple[str, str, int]] = set()
        self._chars = 0

    def takes(self, row: Row) -> bool:
        """Whether the row's turn may come together with those that are here."""
        if self._chars > _PART_CHARS:
            return False
        if isinstance(row, ResponseRow):
            return row[:3] not in self.responses and row[:3] not in self._graded
        return row[:4] not in self.grades

    def add(self, row: Row) -> None:
        if isinstance(row, ResponseRow):
            position, _ = self.samples.get(row[:2], (None, ""))
            self.samples[row[:2]] = (position if row.position is None else row.position, row.sample)
            self.responses[row[:3]] = row
            if row.cluster is not None:
                self.clusters[row[:2]] = (row.run, row.case, row.cluster)
            self._chars += len(row.response) + len(row.sample)
        else:
            self.grades[row[:4]] = row
            self._graded.add(row[:3])
            self._chars += len(row.grade) + len(row.submission or "")


async def put_rows(connection: Connection, rows: Sequence[Row]) -> None:
    """Store the rows, each over what was there, as if one after the other. `RowsRefused` where one cannot be."""
    try:
        for part in _parts(rows):
            await _put_part(connection, part)
    except BAD_ROW as error:
        raise RowsRefused from error


async def put_acceptable_rows(connection: Connection, rows: Sequence[Row]) -> list[StoreError | None]:
    """Store the rows, or say of each why it cannot be: a bad row costs the others nothing."""
    try:
        async with connection.transaction():
            await put_rows(connection, rows)
    except RowsRefused as refused:
        if len(rows) == 1:
            return [_refusal(rows[0], refused.__cause__ or refused)]
        middle = len(rows) // 2
        first = await put_acceptable_rows(connection, rows[:middle])
        return first + await put_acceptable_rows(connection, rows[middle:])
    return [None] * len(rows)


async def put_samples(connection: Connection, rows: Sequence[tuple[str, str, int, str]]) -> None:
    """Store cases as (run, case, position, sample)."""
    known = {row[:2]: row for row in rows}
    await _put(connection, _PLACED, [known[key] for key in sorted(known)])


async def put_clusters(connection: Connection, rows: Sequence[tuple[str, str, str]]) -> None:
    """Store the clusters of cases as (run, case, cluster), each case once."""
    await _put(connection, _CLUSTERS, sorted(rows))


def _parts(rows: Sequence[Row]) -> Iterator[_Part]:
    part = _Part()
    for row in rows:
        if not part.takes(row):
            yield part
            part = _Part()
        part.add(row)
    yield part


async def _put_part(connection: Connection, part: _Part) -> None:
    """In the order of the keys: two writers of the same rows then wait for each other, and do not block each other."""
    cases = [(*key, place, sample) for key, (place, sample) in part.samples.items()]
    last = [case for case in cases if case[2] is None]
    await _put(connection, _PLACED, sorted(case for case in cases if case[2] is not None))
    await _put(connection, _LAST, sorted((run, case, turn, sample) for turn, (run, case, _, sample) in enumerate(last)))
    await put_clusters(connection, list(part.clusters.values()))
    await _put(connection, _RESPONSES, [part.responses[key][:9] for key in sorted(part.responses)])
    await _put(connection, _GRADES, [part.grades[key] for key in sorted(part.grades)])


async def _put(connection: Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
    if rows:
        await connection.execute(statement, *map(list, zip(*rows, strict=True)))


def _refusal(row: Row, error: BaseException) -> StoreError:
    if isinstance(error, asyncpg.ForeignKeyViolationError):
        return unsaved_run(row.run)
    return StoreError(f"cannot store {row.run}/{row.case}/{row.repeat}: {told(error)}")

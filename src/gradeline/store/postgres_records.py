"""Reading and writing a run's records (samples, responses, grades) in PostgreSQL.

Rows are written many to a statement, each column as one array. They are read page by page, each page starting where
the one before ended; a record's grades come in the same statement as its response, so that both are consistent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import asyncpg

from gradeline.errors import ORDER_DECIDED, SETTLED_ERRORS, UNSURE, StoreError
from gradeline.model.observation import Observation
from gradeline.store.postgres_connections import BAD_ROW, RowsRefusedError, error_text
from gradeline.store.rows import (
    OBSERVATION_COLUMNS,
    OBSERVATION_FIELDS,
    RecordRow,
    ResponseRow,
    observation_row,
    unsaved_run,
)

if TYPE_CHECKING:
    from gradeline.store.postgres_connections import Connection

_PART_CHARS = 8_000_000
"""Characters in one statement: the server accepts a gigabyte at most, and holds it in memory."""

_INSERT_SAMPLES = """
    INSERT INTO samples (run, case_key, position, sample)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS new (run, case_key, position, sample)
    WHERE NOT EXISTS (
        SELECT FROM samples WHERE samples.run = new.run AND samples.case_key = new.case_key
            AND samples.position = new.position AND samples.sample = new.sample OFFSET 0)
    ON CONFLICT (run, case_key) DO UPDATE SET position = excluded.position, sample = excluded.sample"""
"""The condition avoids conflicts that change nothing, which would still write to the row. Its offset keeps it from
being planned as a join: a plan made while the table was empty would scan the whole table for every batch."""
_APPEND_SAMPLES = """
    INSERT INTO samples (run, case_key, position, sample)
    SELECT run, case_key, turn + coalesce((SELECT max(position) + 1 FROM samples WHERE samples.run = new.run), 0),
        sample
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[]) AS new (run, case_key, turn, sample)
    ON CONFLICT (run, case_key) DO UPDATE SET sample = excluded.sample
    WHERE samples.sample IS DISTINCT FROM excluded.sample"""
_INSERT_CLUSTERS = """
    INSERT INTO clusters AS known (run, case_key, cluster)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[])
    ON CONFLICT (run, case_key) DO UPDATE SET cluster = excluded.cluster
    WHERE known.cluster IS DISTINCT FROM excluded.cluster"""
_INSERT_RESPONSES = """
    INSERT INTO responses AS known
        (run, case_key, repeat, status, response, latency_ms, cost, cache_key, digest)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::float8[], $7::float8[],
        $8::text[], $9::text[])
    ON CONFLICT (run, case_key, repeat) DO UPDATE SET status = excluded.status, response = excluded.response,
        latency_ms = excluded.latency_ms, cost = excluded.cost, cache_key = excluded.cache_key,
        digest = excluded.digest
    WHERE known.response IS DISTINCT FROM excluded.response OR known.digest IS DISTINCT FROM excluded.digest"""
_INSERT_GRADES = """
    INSERT INTO grades
        (run, case_key, repeat, grader, fingerprint, outcome, units, squares, grade, submission, score, reported_error,
        cost)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[],
        $8::bigint[], $9::text[], $10::text[], $11::float8[], $12::integer[], $13::float8[])
    ON CONFLICT (run, case_key, repeat, grader) DO UPDATE SET fingerprint = excluded.fingerprint,
        outcome = excluded.outcome, units = excluded.units, squares = excluded.squares, grade = excluded.grade,
        submission = excluded.submission, score = excluded.score, reported_error = excluded.reported_error,
        cost = excluded.cost"""


class _RowBatch:
    """Rows that can be written together: no two have the same key."""

    def __init__(self) -> None:
        self.samples: dict[tuple[str, str], tuple[int | None, str]] = {}
        self.clusters: dict[tuple[str, str], tuple[str, str, str]] = {}
        self.responses: dict[tuple[str, str, int], ResponseRow] = {}
        self.grades: dict[tuple[str, str, int, str], RecordRow] = {}
        self._graded: set[tuple[str, str, int]] = set()
        self._chars = 0

    def accepts(self, row: RecordRow) -> bool:
        """Whether the row can be written together with those of the batch."""
        if self._chars > _PART_CHARS:
            return False
        if isinstance(row, ResponseRow):
            return row[:3] not in self.responses and row[:3] not in self._graded
        return row[:4] not in self.grades

    def add(self, row: RecordRow) -> None:
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


async def put_rows(connection: Connection, rows: Sequence[RecordRow]) -> None:
    """Insert or replace rows, as if one after the other; `RowsRefusedError` if one cannot be stored."""
    try:
        for batch in _batches(rows):
            await _put_batch(connection, batch)
    except BAD_ROW as error:
        raise RowsRefusedError from error


async def put_valid_rows(connection: Connection, rows: Sequence[RecordRow]) -> list[StoreError | None]:
    """Store the rows that can be stored, and return for each its error or None."""
    try:
        async with connection.transaction():
            await put_rows(connection, rows)
    except RowsRefusedError as refused:
        if len(rows) == 1:
            return [_row_error(rows[0], refused.__cause__ or refused)]
        middle = len(rows) // 2
        first = await put_valid_rows(connection, rows[:middle])
        return first + await put_valid_rows(connection, rows[middle:])
    return [None] * len(rows)


async def put_samples(connection: Connection, rows: Sequence[tuple[str, str, int, str]]) -> None:
    """Insert or replace cases given as (run, case, position, sample)."""
    known = {row[:2]: row for row in rows}
    await _put(connection, _INSERT_SAMPLES, [known[key] for key in sorted(known)])


async def put_clusters(connection: Connection, rows: Sequence[tuple[str, str, str]]) -> None:
    """Insert or replace the clusters of cases given as (run, case, cluster), each case once."""
    await _put(connection, _INSERT_CLUSTERS, sorted(rows))


def _batches(rows: Sequence[RecordRow]) -> Iterator[_RowBatch]:
    batch = _RowBatch()
    for row in rows:
        if not batch.accepts(row):
            yield batch
            batch = _RowBatch()
        batch.add(row)
    yield batch


async def _put_batch(connection: Connection, batch: _RowBatch) -> None:
    """In the order of the keys, so that two writers of the same rows wait for each other instead of deadlocking."""
    cases = [(*key, position, sample) for key, (position, sample) in batch.samples.items()]
    last = [case for case in cases if case[2] is None]
    await _put(connection, _INSERT_SAMPLES, sorted(case for case in cases if case[2] is not None))
    await _put(
        connection,
        _APPEND_SAMPLES,
        sorted((run, case, turn, sample) for turn, (run, case, _, sample) in enumerate(last)),
    )
    await put_clusters(connection, list(batch.clusters.values()))
    await _put(connection, _INSERT_RESPONSES, [batch.responses[key][:9] for key in sorted(batch.responses)])
    await _put(connection, _INSERT_GRADES, [batch.grades[key] for key in sorted(batch.grades)])


async def _put(connection: Connection, statement: str, rows: Sequence[Sequence[object]]) -> None:
    if rows:
        await connection.execute(statement, *map(list, zip(*rows, strict=True)))


def _row_error(row: RecordRow, error: BaseException) -> StoreError:
    if isinstance(error, asyncpg.ForeignKeyViolationError):
        return unsaved_run(row.run)
    return StoreError(f"cannot store {row.run}/{row.case}/{row.repeat}: {error_text(error)}")


PAGE_ROWS = 500
MEASURES_AT_ONCE = 2000
PAGE_BYTES = 4_000_000
START = (-1, "", -1)

_JOINED = """
    SELECT samples.position, samples.case_key, responses.repeat, {columns}
    FROM samples CROSS JOIN LATERAL (
        SELECT * FROM responses WHERE responses.run = samples.run AND responses.case_key = samples.case_key OFFSET 0
    ) AS responses
    WHERE samples.run = $1"""
"""The offset makes the database go from case to case. Where the planner estimates that few are left, which happens long
before the end of a run, it would otherwise read and sort all responses for each page."""
_PAGE = f"""{_JOINED}
        AND (samples.position, samples.case_key) >= ($2, $3)
        AND (samples.position, samples.case_key, responses.repeat) > ($2, $3, $4)
    ORDER BY samples.position, samples.case_key, responses.repeat LIMIT $5"""
_WITH_GRADES = """
    SELECT page.*, found.* FROM ({page}) AS page LEFT JOIN LATERAL (
        SELECT {grades} FROM grades
        WHERE grades.run = {owner} AND grades.case_key = page.case_key AND grades.repeat = page.repeat
    ) AS found ON true
    ORDER BY page.position, page.case_key, page.repeat"""
_GRADES = """
    array_agg(grader ORDER BY grader) AS graders, array_agg(grade ORDER BY grader) AS grades,
    array_agg(submission ORDER BY grader) AS submissions"""
_BOUNDED = f"""
    SELECT position, case_key, repeat, sample, response FROM (
        SELECT *, sum(size) OVER (ORDER BY position, case_key, repeat ROWS UNBOUNDED PRECEDING) - size AS before FROM (
            {_PAGE.format(columns="sample, response, octet_length(sample)::bigint + octet_length(response) AS size")}
        ) AS sized
    ) AS bounded WHERE before < {PAGE_BYTES}"""  # noqa: S608 - made of constants

SAMPLE_PAGE = """
    SELECT position, case_key, sample FROM samples WHERE run = $1 AND (position, case_key) > ($2, $3)
    ORDER BY position, case_key LIMIT $4"""
RECORD_PAGE = _WITH_GRADES.format(page=_BOUNDED, grades=_GRADES, owner="$6")
"""Cut at `PAGE_BYTES`, so that large responses do not accumulate in memory."""
_KEYS = "responses.status, responses.digest"
_ORDER_DECIDED = f"CASE WHEN outcome = 'error' THEN grade::json #>> '{{error,type}}' = '{ORDER_DECIDED}' END"
_ERROR_TYPE = "CASE WHEN outcome = 'error' THEN grade::json #>> '{error,type}' END"
_SETTLED = f"{_ERROR_TYPE} IN {SETTLED_ERRORS!r}"
_FINGERPRINTS = f"""
    array_agg(grader ORDER BY grader) AS graders, array_agg(fingerprint ORDER BY grader) AS fingerprints,
    array_agg(grader) FILTER (WHERE outcome = 'error' AND ({_SETTLED}) IS NOT TRUE) AS errors"""
KEY_PAGE = _WITH_GRADES.format(page=_PAGE.format(columns=_KEYS), grades=_FINGERPRINTS, owner="$6")
KEYS_OF_CASES = _WITH_GRADES.format(
    page=f"{_JOINED.format(columns=_KEYS)} AND samples.case_key = ANY ($2::text[])", grades=_FINGERPRINTS, owner="$3"
)
MEASURE_PAGE = _WITH_GRADES.format(
    page=_PAGE.format(columns="responses.status, responses.latency_ms, responses.cost, responses.digest"),
    grades="""
        array_agg(grader ORDER BY grader) AS graders, array_agg(outcome ORDER BY grader) AS outcomes,
        array_agg(score ORDER BY grader) AS scores, array_agg(reported_error ORDER BY grader) AS reported,
        array_agg(cost ORDER BY grader) AS costs""",
    owner="$6",
)
COLUMNS_AT_ONCE = 10_000
RESPONSE_COLUMNS = """
    SELECT array_agg(case_key), array_agg(status), array_agg(latency_ms), array_agg(cost), array_agg(repeat) FROM (
        SELECT case_key, status, latency_ms, cost, repeat FROM responses
        WHERE run = $1 AND (case_key, repeat) > ($2, $3) ORDER BY case_key, repeat LIMIT $4) AS page"""
PLACED_RESPONSE_COLUMNS = """
    SELECT array_agg(case_key), array_agg(status), array_agg(latency_ms), array_agg(cost), array_agg(repeat),
        array_agg(digest), array_agg(position) FROM (
        SELECT responses.case_key, status, latency_ms, cost, repeat, responses.digest, samples.position FROM responses
        JOIN samples ON samples.run = responses.run AND samples.case_key = responses.case_key
        WHERE responses.run = $1 AND (responses.case_key, repeat) > ($2, $3)
        ORDER BY responses.case_key, repeat LIMIT $4) AS page"""
GRADE_COLUMNS = """
    SELECT array_agg(case_key), array_agg(grader), array_agg(outcome), array_agg(score), array_agg(reported_error),
        array_agg(cost) FROM (
        SELECT case_key, grader, outcome, score, reported_error, cost FROM grades
        WHERE run = $1 AND case_key BETWEEN $2 AND $4
            AND (case_key, repeat) > ($2, $3) AND (case_key, repeat) <= ($4, $5)
        ORDER BY case_key, repeat, grader) AS page"""
"""The condition on case_key only gives the planner a usable estimate of the rows between two cases."""
RECORD = f"""
    SELECT samples.sample, responses.response, found.* FROM responses JOIN samples USING (run, case_key)
    JOIN runs ON runs.id = responses.run LEFT JOIN LATERAL (
        SELECT {_GRADES} FROM grades WHERE grades.run = $4 AND grades.case_key = $2 AND grades.repeat = $3
    ) AS found ON true
    WHERE responses.run = $1 AND responses.case_key = $2 AND responses.repeat = $3"""  # noqa: S608 - made of constants
ORDER_COUNTS = f"""
    SELECT grader, count(*) FILTER (WHERE favoured = 'first'), count(*) FILTER (WHERE favoured = 'second') FROM (
        SELECT grader, grade::json #>> '{{metadata,favoured}}' AS favoured FROM grades
        WHERE run = $1 AND outcome = 'error' AND {_ORDER_DECIDED}) AS decided
    GROUP BY grader"""  # noqa: S608 - made of constants
SELECTIVE_COUNTS = f"""
    SELECT grader, count(*) FILTER (WHERE decided = 'second'), count(*) FILTER (WHERE type = '{UNSURE}') FROM (
        SELECT grader, {_ERROR_TYPE} AS type,
            CASE WHEN outcome <> 'error' THEN grade::json #>> '{{metadata,selective,decided}}' END AS decided
        FROM grades WHERE run = $1) AS decided
    GROUP BY grader HAVING count(*) FILTER (WHERE decided = 'second' OR type = '{UNSURE}') > 0"""  # noqa: S608 - made of constants


_LEDGER_LOCK = 0x67726C6F
"""The advisory lock of transactions that add to the ledger."""
_NUMBERS = ("score", "cost", "latency_ms")
_ARRAYS = ", ".join(
    [f"${place}::{'float8' if name in _NUMBERS else 'text'}[]" for place, name in enumerate(OBSERVATION_FIELDS, 1)]
    + [f"${len(OBSERVATION_FIELDS) + 1}::bigint[]"]
)
_INSERT_OBSERVATIONS = (
    f"INSERT INTO observations ({OBSERVATION_COLUMNS}) SELECT {OBSERVATION_COLUMNS}"  # noqa: S608 - made of constants
    f" FROM unnest({_ARRAYS}) WITH ORDINALITY AS new ({OBSERVATION_COLUMNS}, turn)"
    " ORDER BY turn ON CONFLICT (idempotency_key) DO NOTHING"
)
_OBSERVATION_IDS = "SELECT idempotency_key, id FROM observations WHERE idempotency_key = ANY($1::text[])"


async def put_observations(connection: Connection, observations: Sequence[Observation]) -> list[int]:
    """Insert the observations whose key is new, and return the id of each key. Within a transaction.

    One writer at a time, so that ids become visible in their order and a reader that continues after an id misses
    nothing.
    """
    if not observations:
        return []
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LEDGER_LOCK)
    await connection.execute(_INSERT_OBSERVATIONS, *map(list, zip(*map(observation_row, observations), strict=True)))
    keys = [one.idempotency_key for one in observations]
    ids = dict[str, int]((row[0], row[1]) for row in await connection.fetch(_OBSERVATION_IDS, keys))
    return [ids[key] for key in keys]

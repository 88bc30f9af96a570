"""The store in a PostgreSQL database, which processes on several machines may share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import asyncpg
import msgspec

from gradeline.errors import Outcome, StoreError
from gradeline.failpoints import failpoint
from gradeline.model.grade import Grade
from gradeline.model.observation import EVERYTHING, Observation, ObservationFilter, ObservationSums
from gradeline.model.record import GradeKey, Record, ResponseKey, from_json, to_json
from gradeline.model.response import Response
from gradeline.model.run import (
    Columns,
    Counts,
    GradeColumns,
    GradeMeasure,
    Measure,
    OrderCounts,
    ResponseColumns,
    Run,
    StoredKey,
)
from gradeline.model.sample import Sample, TestCase
from gradeline.store import postgres_schema
from gradeline.store.leases import BEAT, observed_run
from gradeline.store.maintenance import deletion_unfinished, remove_rows
from gradeline.store.observations import (
    observation_of_row,
    page_statement,
    put_in_postgres,
    sums_of_row,
    sums_statement,
)
from gradeline.store.postgres_connections import (
    LONG_SECONDS,
    SCHEMA,
    PostgresConnectionPool,
    PostgresDatabase,
    RowsRefusedError,
    numbered,
    read_url,
    run_in,
    take_time,
)
from gradeline.store.postgres_records import (
    COLUMNS_AT_ONCE,
    GRADE_COLUMNS,
    KEY_PAGE,
    KEYS_OF_CASES,
    MEASURE_PAGE,
    MEASURES_AT_ONCE,
    ORDER_COUNTS,
    PAGE_ROWS,
    PLACED_RESPONSE_COLUMNS,
    RECORD,
    RECORD_PAGE,
    RESPONSE_COLUMNS,
    SAMPLE_PAGE,
    START,
    put_clusters,
    put_rows,
    put_samples,
    put_valid_rows,
)
from gradeline.store.postgres_schema import NoStoreError, migrate, require_compatible, version_of
from gradeline.store.rows import (
    RecordRow,
    Tally,
    choose_run,
    counts_of,
    grade_row,
    new_id,
    parent_in_use,
    record_of,
    response_row,
    steps_back,
    unknown_case,
    unknown_parent,
    unknown_run,
    unsaved_run,
    validate_run,
    with_changes,
    with_owner,
)

if TYPE_CHECKING:
    from gradeline.store import StoreMode
    from gradeline.store.database import CommitHook, T, Transaction
    from gradeline.store.postgres_connections import Connection
    from gradeline.store.writer import Writer

RETRY_SECONDS = 5.0
_SAMPLES_AT_ONCE = 500
_CANDIDATES = 20
_LARGEST = 2**63 - 1
_BEAT = BEAT.replace("?", "$1")
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


class PostgresStorage:
    """`Storage` in a PostgreSQL database, in the schema ``gradeline``.

    Any number of processes may share it. Calls are retried for ``retry_seconds`` while the server restarts, as long as
    nothing was committed; then they raise `StoreError`, and later calls work again when the server is back.
    """

    def __init__(self, url: str, *, retry_seconds: float = RETRY_SECONDS, mode: StoreMode = "create") -> None:
        """Only ``mode`` "create" creates a store in a database without one; the others raise `NoStoreError`."""
        self._pool = PostgresConnectionPool(read_url(url), retry_seconds=retry_seconds)
        self.location = self._pool.location
        """The host and the database, without user and password."""
        self.note: str | None = None
        """A message for the user about how the store was opened."""
        try:
            before = self._pool.write(partial(self._prepare, create=mode == "create"))
            latest = len(postgres_schema.MIGRATIONS)
            if mode != "read":
                self._continue_deletion()
            elif before < latest:
                self.note = f"the store {self.location} was migrated from version {before} to {latest} to read it"
        except BaseException:
            self._pool.close()
            raise

    def __repr__(self) -> str:
        return f"PostgresStorage({self.location!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    @property
    def database(self) -> PostgresDatabase:
        """The database itself, for tables that other parts of the program add."""
        return PostgresDatabase(self._pool)

    def save_test_case(self, test_case: TestCase) -> str:
        if not test_case.id:
            test_case = msgspec.structs.replace(test_case, id=new_id())
        self._change(
            "INSERT INTO test_cases (id, test_case) VALUES ($1, $2)"
            " ON CONFLICT (id) DO UPDATE SET test_case = excluded.test_case, deleted = 0",
            test_case.id,
            to_json(test_case),
        )
        return test_case.id

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - part of the public protocol
        rows = self._read("SELECT test_case FROM test_cases WHERE id = $1 AND deleted = 0", id)
        return from_json(TestCase, rows[0][0]) if rows else None

    def list_test_cases(self) -> list[TestCase]:
        rows = self._read("SELECT test_case FROM test_cases WHERE deleted = 0 ORDER BY n")
        return [from_json(TestCase, row[0]) for row in rows]

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - part of the public protocol
        return self._change("UPDATE test_cases SET deleted = 1 WHERE id = $1 AND deleted = 0", id) > 0

    def save_run(self, run: Run) -> str:
        run = validate_run(run)
        self._pool.write(partial(_save_run, run=run))
        return run.id

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - part of the public protocol
        rows = self._read("SELECT run FROM runs WHERE id = $1", id)
        return observed_run(rows[0][0], self.database.read) if rows else None

    def find_run(self, reference: str) -> Run:
        back = steps_back(reference)
        if back is not None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT 1 OFFSET $1", back)
            found = observed_run(rows[0][0], self.database.read) if rows else None
        else:
            rows = self._read(
                "SELECT run FROM runs WHERE id = $1 OR name = $1 OR (id >= $1 AND id < $1 || chr(1114111))"
                " ORDER BY id = $1 DESC, name = $1 DESC, n DESC LIMIT $2",
                reference,
                _CANDIDATES,
            )
            found = choose_run(reference, self._observed(rows)) if reference else None
        if found is None:
            raise self._unknown_run(reference)
        return found

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        if before is None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT $1", limit)
        else:
            cursor = self._read("SELECT n FROM runs WHERE id = $1", before)
            if not cursor:
                raise self._unknown_run(before)
            rows = self._read("SELECT run FROM runs WHERE n < $1 ORDER BY n DESC LIMIT $2", cursor[0][0], limit)
        return self._observed(rows)

    def _observed(self, rows: Sequence[Any]) -> list[Run]:
        query = self.database.read
        return [observed_run(row[0], query) for row in rows]

    def update_run(self, id: str, **changes: Any) -> Run:  # noqa: A002 - part of the public protocol
        async def update(connection: Connection) -> Run | None:
            run = await _locked_run(connection, id)
            if run is not None:
                run = with_changes(run, changes)
                await _save_run(connection, run)
            return run

        run = self._pool.write(update) if _storable(id) else None
        if run is None:
            raise self._unknown_run(id)
        return run

    def claim_run(self, id: str, owner: str, previous: str | None) -> Run | None:  # noqa: A002 - part of the public protocol
        async def claim(connection: Connection) -> tuple[bool, Run | None]:
            known = await _locked_run(connection, id)
            run = None if known is None else with_owner(known, owner, previous)
            if run is not None:
                await _save_run(connection, run)
                await connection.execute(_BEAT, id)
            return known is not None, run

        found, run = self._pool.write(claim) if _storable(id) else (False, None)
        if not found:
            raise self._unknown_run(id)
        return run

    def delete_run(
        self,
        id: str,  # noqa: A002 - part of the public protocol
        hook: Callable[[Transaction], object] | None = None,
    ) -> bool:
        async def delete(connection: Connection) -> bool:
            # locked, so that it cannot become a parent any more
            await connection.execute("SELECT FROM runs WHERE id = $1 FOR UPDATE", id)
            children = await connection.fetch("SELECT id FROM runs WHERE parent = $1 AND id <> $1 ORDER BY n", id)
            if children:
                raise parent_in_use(id, [row[0] for row in children])
            await take_time(connection)
            # rows that reference the run are deleted with it; its records are removed in steps afterwards
            found = _row_count(await connection.execute("DELETE FROM runs WHERE id = $1", id, timeout=LONG_SECONDS)) > 0
            if found:
                await connection.execute("INSERT INTO deleted_runs (run) VALUES ($1)", id)
                if hook is not None:
                    await run_in(connection, hook)
            return found

        found = self._pool.write(delete) if _storable(id) else False
        self.finish_deletions()
        return found

    def finish_deletions(self) -> None:
        """Remove the remaining rows of deleted runs."""
        for run in self._unfinished_deletions():
            for _ in remove_rows(self._transact, run):
                pass

    def vacuum(self) -> None:
        """Remove the remaining rows of deleted runs, make the space of deleted rows reusable, and update the planner's
        statistics. Other processes can read and write meanwhile."""
        self.finish_deletions()
        names = self._read("SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY tablename", SCHEMA)
        for (name,) in names:
            self._pool.maintain(f'VACUUM (ANALYZE) {SCHEMA}."{name}"')

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        rows = ((run, sample.case_key, position, to_json(sample)) for position, sample in enumerate(samples, start))

        async def put(connection: Connection) -> None:
            try:
                await put_samples(connection, chunk)
            except asyncpg.ForeignKeyViolationError:
                raise unsaved_run(run) from None

        while chunk := list(islice(rows, _SAMPLES_AT_ONCE)):
            self._pool.write(put)

    def samples(self, run: str) -> Iterator[Sample]:
        self._require_run(run)
        cursor: tuple[int, str] = (-1, "")
        while rows := self._read(SAMPLE_PAGE, run, *cursor, _SAMPLES_AT_ONCE):
            yield from (from_json(Sample, row[2]) for row in rows)
            cursor = (rows[-1][0], rows[-1][1])

    def get_sample(self, run: str, case: str) -> Sample | None:
        rows = self._read(
            "SELECT sample FROM samples JOIN runs ON runs.id = samples.run WHERE samples.run = $1 AND case_key = $2",
            self._source(run),
            case,
        )
        return from_json(Sample, rows[0][0]) if rows else None

    def put_response(
        self,
        key: ResponseKey,
        response: Response,
        sample: Sample,
        position: int | None = None,
        cache_key: str | None = None,
    ) -> None:
        self._put(response_row(key, response, sample, position, cache_key))

    def cached_response(self, cache_key: str) -> Response | None:
        rows = self._read(
            "SELECT response FROM responses JOIN runs ON runs.id = responses.run"
            " WHERE cache_key = $1 AND status = 'success' LIMIT 1",
            cache_key,
        )
        return from_json(Response, rows[0][0]) if rows else None

    def get_response(self, key: ResponseKey) -> Response | None:
        rows = self._read(
            "SELECT response FROM responses JOIN runs ON runs.id = responses.run"
            " WHERE responses.run = $1 AND case_key = $2 AND repeat = $3",
            self._source(key.run),
            key.case,
            key.repeat,
        )
        return from_json(Response, rows[0][0]) if rows else None

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> None:
        self._put(grade_row(key, grade, submission))

    def get_record(self, key: ResponseKey) -> Record | None:
        rows = self._read(RECORD, self._source(key.run), key.case, key.repeat, key.run)
        return _record(key, tuple(rows[0])) if rows else None

    def records(self, run: str, after: ResponseKey | None = None) -> Iterator[Record]:
        self._require_run(run)
        source = self._source(run)
        start = START if after is None else self._position(source, after)
        pages = self._pages(RECORD_PAGE, run, source, start, PAGE_ROWS)
        return (_record(ResponseKey(run, row[1], row[2]), row[3:]) for row in pages)

    def keys_of(self, run: str, cases: Sequence[str] | None = None) -> Iterator[StoredKey]:
        self._require_run(run)
        source = self._source(run)
        if cases is None:
            rows = self._pages(KEY_PAGE, run, source, START, MEASURES_AT_ONCE)
        else:
            rows = iter(self._read(KEYS_OF_CASES, source, [case for case in cases if _storable(case)], run))
        return (
            StoredKey(
                ResponseKey(run, case, repeat),
                status,
                dict(zip(graders or (), fingerprints or (), strict=True)),
                digest,
                frozenset(errors or ()),
            )
            for _, case, repeat, status, digest, graders, fingerprints, errors in rows
        )

    def measures(self, run: str, *, digests: bool = False) -> Iterator[Measure]:
        self._require_run(run)
        pages = self._pages(MEASURE_PAGE, run, self._source(run), START, MEASURES_AT_ONCE)
        known = self.clusters(run) if digests else {}
        return (
            Measure(
                case, repeat, status, latency_ms, cost, _grades(*graded), digest if digests else "", known.get(case)
            )
            for _, case, repeat, status, latency_ms, cost, digest, *graded in pages
        )

    def put_clusters(self, run: str, clusters: Iterable[tuple[str, str]]) -> None:
        rows = [(run, case, cluster) for case, cluster in dict(clusters).items()]

        async def put(connection: Connection) -> None:
            await connection.execute("DELETE FROM clusters WHERE run = $1", run)
            try:
                await put_clusters(connection, rows)
            except asyncpg.ForeignKeyViolationError:
                raise unsaved_run(run) from None

        self._pool.write(put)

    def clusters(self, run: str) -> dict[str, str]:
        self._require_run(run)
        statement = "SELECT case_key, cluster FROM clusters WHERE run = $1"
        rows = self._read(statement, run) or self._read(statement, self._source(run))
        return {row["case_key"]: row["cluster"] for row in rows}

    def columns(self, run: str, *, named: bool = True, digests: bool = False) -> Iterator[Columns]:
        self._require_run(run)
        source = self._source(run)
        cursor = ("", -1)
        while True:
            statement = PLACED_RESPONSE_COLUMNS if digests else RESPONSE_COLUMNS
            ((cases, statuses, latencies, costs, repeats, *placed),) = self._read(
                statement, source, *cursor, COLUMNS_AT_ONCE
            )
            if cases is None:
                return
            end = cases[-1], repeats[-1]
            (graded,) = self._read(GRADE_COLUMNS, run, *cursor, *end)
            grades = GradeColumns() if graded[0] is None else GradeColumns(*graded)
            responses = ResponseColumns(cases, statuses, latencies, costs, *placed)
            if not named and not digests:  # not worth a statement of its own
                responses, grades = responses._replace(cases=()), grades._replace(cases=(), outcomes=())
            yield Columns(responses, grades)
            cursor = end

    def counts(self, run: str) -> Counts:
        self._require_run(run)
        responses = self._read("SELECT status, count FROM response_counts WHERE run = $1", self._source(run))
        grades = self._read(
            "SELECT grader, outcome, count, units, squares FROM grade_counts WHERE run = $1 AND count > 0", run
        )
        return counts_of(
            ((status, count) for status, count in responses),
            (
                Tally(grader, outcome, count, int(units), int(squares))
                for grader, outcome, count, units, squares in grades
            ),
        )

    def order_counts(self, run: str) -> dict[str, OrderCounts]:
        self._require_run(run)
        return {grader: OrderCounts(first, second) for grader, first, second in self._read(ORDER_COUNTS, run)}

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        return self._pool.write(partial(put_in_postgres, observations=observations))

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        statement, values = page_statement(where, after, limit)
        return [observation_of_row(tuple(row)) for row in self._read(numbered(statement), *values)]

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        statement, values = sums_statement(where)
        return [sums_of_row(tuple(row)) for row in self._read(numbered(statement), *values)]

    def writer(self, hook: CommitHook | None = None) -> Writer:
        """``hook`` is called in the transaction of each batch."""
        from gradeline.store.writer import Writer  # imports asyncio, which few commands need

        return Writer(self._commit if hook is None else partial(self._commit, hook=hook))

    def _commit(self, rows: Sequence[RecordRow], hook: CommitHook | None = None) -> list[StoreError | None]:
        try:
            errors = self._write_rows(_all_rows, rows, hook)
        except RowsRefusedError:
            errors = self._write_rows(put_valid_rows, rows, hook)
        failpoint("batch-committed")
        return errors

    def _write_rows(
        self,
        put: Callable[[Connection, Sequence[RecordRow]], Awaitable[list[StoreError | None]]],
        rows: Sequence[RecordRow],
        hook: CommitHook | None,
    ) -> list[StoreError | None]:
        async def act(connection: Connection) -> list[StoreError | None]:
            failpoint("batch-begun")
            errors = await put(connection, rows)
            if hook is not None:
                stored = [row for row, error in zip(rows, errors, strict=True) if error is None]
                await run_in(connection, lambda transaction: hook(transaction, stored))
            failpoint("batch-written")
            return errors

        # if rows that the hook has read change meanwhile, the batch must be retried
        return self._pool.write(act, isolation="read_committed" if hook is None else "repeatable_read")

    def _put(self, row: RecordRow) -> None:
        (error,) = self._commit([row])
        if error is not None:
            raise error

    def _pages(
        self, statement: str, run: str, source: str, start: tuple[int, str, int], size: int
    ) -> Iterator[asyncpg.Record]:
        """Rows in order. Between pages no connection is held, and each page may be fetched by another thread."""
        cursor = start
        while rows := self._read(statement, source, *cursor, size, run):
            yield from rows
            cursor = (rows[-1][0], rows[-1][1], rows[-1][2])

    def _source(self, run: str) -> str:
        """The run whose responses a run reads: itself, or the run it regrades."""
        seen = {run}
        source = run
        while True:
            # the counts are few; with the responses themselves the planner would scan a large run
            rows = self._read(
                "SELECT parent FROM runs WHERE id = $1"
                " AND NOT EXISTS (SELECT FROM response_counts WHERE run = $1 AND count > 0)",
                source,
            )
            if not rows or rows[0][0] is None or rows[0][0] in seen:
                return source
            source = rows[0][0]
            seen.add(source)

    def _position(self, source: str, key: ResponseKey) -> tuple[int, str, int]:
        rows = self._read("SELECT position FROM samples WHERE run = $1 AND case_key = $2", source, key.case)
        if not rows:
            raise unknown_case(key.run, key.case)
        return rows[0][0], key.case, key.repeat

    def _require_run(self, run: str) -> None:
        if not self._read("SELECT FROM runs WHERE id = $1", run):
            raise self._unknown_run(run)

    def _unknown_run(self, reference: str) -> Exception:
        return unknown_run(reference, self.list_runs(limit=6))

    def _read(self, statement: str, *values: object) -> list[asyncpg.Record]:
        """Values that the database cannot store match nothing."""
        return self._pool.read(statement, *values) if all(map(_storable, values)) else []

    def _change(self, statement: str, *values: object) -> int:
        """Run a statement in a transaction and return the number of rows."""

        async def change(connection: Connection) -> int:
            return _row_count(await connection.execute(statement, *values))

        return self._pool.write(change)

    def _transact(self, work: Callable[[Transaction], T]) -> T:
        return self._pool.write(partial(run_in, work=work))

    def _unfinished_deletions(self) -> list[str]:
        return [row[0] for row in self._read("SELECT run FROM deleted_runs")]

    def _continue_deletion(self) -> None:
        """Remove a few rows of a deletion that was interrupted; opening a store must not take long."""
        for run in self._unfinished_deletions()[:1]:
            with suppress(StoreError):  # the store is usable without it
                next(remove_rows(self._transact, run), None)

    async def _prepare(self, connection: Connection, *, create: bool) -> int:
        """Check and migrate the database; returns the version it had."""
        await require_compatible(connection, self.location)
        version = await version_of(connection)
        if not create and not version:
            raise NoStoreError(f"the database {self.location} holds no store yet")
        await migrate(connection)
        return version


async def _all_rows(connection: Connection, rows: Sequence[RecordRow]) -> list[StoreError | None]:
    await put_rows(connection, rows)
    return [None] * len(rows)


async def _locked_run(connection: Connection, run: str) -> Run | None:
    """The run, locked against changes until the end of the transaction. Rows may be added meanwhile."""
    row = await connection.fetchrow("SELECT run FROM runs WHERE id = $1 FOR NO KEY UPDATE", run)
    return None if row is None else from_json(Run, row[0])


async def _save_run(connection: Connection, run: Run) -> None:
    try:
        await connection.execute(
            "INSERT INTO runs (id, name, parent, run) VALUES ($1, $2, $3, $4)"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name, parent = excluded.parent, run = excluded.run",
            run.id,
            run.name,
            run.parent,
            to_json(run),
        )
    except asyncpg.ForeignKeyViolationError:
        raise unknown_parent(run) from None
    except asyncpg.ObjectInUseError:
        raise deletion_unfinished(run.id) from None


def _record(key: ResponseKey, row: Sequence[Any]) -> Record:
    sample, response, graders, grades, submissions = row
    found = zip(graders or (), grades or (), submissions or (), strict=True)
    return record_of(key, sample, response, list(found))


def _grades(
    graders: list[str] | None,
    outcomes: list[str] | None,
    scores: list[float | None] | None,
    reported: list[int] | None,
    costs: list[float | None] | None,
) -> dict[str, GradeMeasure]:
    rows = zip(graders or (), outcomes or (), scores or (), reported or (), costs or (), strict=True)
    return {
        grader: GradeMeasure(_OUTCOMES[outcome], score, bool(has_error), cost)
        for grader, outcome, score, has_error, cost in rows
    }


def _storable(value: object) -> bool:
    if isinstance(value, str):
        return "\0" not in value and (value.isascii() or _is_unicode(value))
    return not isinstance(value, int) or -_LARGEST <= value <= _LARGEST


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _row_count(tag: str) -> int:
    """The number of rows in a command tag such as ``UPDATE 3``."""
    return int(tag.rpartition(" ")[2])

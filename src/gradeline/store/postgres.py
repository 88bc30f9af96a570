"""The store in a PostgreSQL database, which processes on several machines may share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import asyncpg

from gradeline.errors import Outcome, StoreError
from gradeline.failpoints import failpoint
from gradeline.model.observation import Observation
from gradeline.model.record import Record, ResponseKey, from_json, to_json
from gradeline.model.run import (
    Columns,
    GradeColumns,
    GradeMeasure,
    Measure,
    ResponseColumns,
    Run,
    StoredKey,
)
from gradeline.model.sample import Sample
from gradeline.store import postgres_schema
from gradeline.store.baselines import require_no_baseline
from gradeline.store.leases import BEAT
from gradeline.store.maintenance import deletion_unfinished
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
    SELECTIVE_COUNTS,
    START,
    put_clusters,
    put_observations,
    put_rows,
    put_samples,
    put_valid_rows,
)
from gradeline.store.postgres_schema import NoStoreError, migrate, require_compatible, version_of
from gradeline.store.rows import (
    RecordRow,
    parent_in_use,
    record_of,
    unknown_parent,
    unsaved_run,
    validate_run,
    with_changes,
    with_owner,
)
from gradeline.store.sql_storage import SAMPLES_AT_ONCE, SqlStorage

if TYPE_CHECKING:
    from gradeline.store import StoreMode
    from gradeline.store.database import CommitHook, T, Transaction
    from gradeline.store.postgres_connections import Connection
    from gradeline.store.writer import Writer

RETRY_SECONDS = 5.0
_LARGEST = 2**63 - 1
_BEAT = BEAT.replace("?", "$1")
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


class PostgresStorage(SqlStorage):
    """`Storage` in a PostgreSQL database, in the schema ``gradeline``.

    Any number of processes may share it. Calls are retried for ``retry_seconds`` while the server restarts, as long as
    nothing was committed; then they raise `StoreError`, and later calls work again when the server is back.
    """

    ORDER_COUNTS = ORDER_COUNTS
    SELECTIVE_COUNTS = SELECTIVE_COUNTS

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

    def close(self) -> None:
        self._pool.close()

    @property
    def database(self) -> PostgresDatabase:
        return PostgresDatabase(self._pool)

    def save_run(self, run: Run) -> str:
        run = validate_run(run)
        self._pool.write(partial(_save_run, run=run))
        return run.id

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
            await run_in(connection, lambda transaction: require_no_baseline(transaction.run, id))
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

        while chunk := list(islice(rows, SAMPLES_AT_ONCE)):
            self._pool.write(put)

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

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        return self._pool.write(partial(put_observations, observations=observations))

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

    def _pages(
        self, statement: str, run: str, source: str, start: tuple[int, str, int], size: int
    ) -> Iterator[asyncpg.Record]:
        """Rows in order. Between pages no connection is held, and each page may be fetched by another thread."""
        cursor = start
        while rows := self._read(statement, source, *cursor, size, run):
            yield from rows
            cursor = (rows[-1][0], rows[-1][1], rows[-1][2])

    def _read(self, statement: str, *values: Any) -> list[Any]:
        return self._pool.read(numbered(statement), *values) if all(map(_storable, values)) else []

    def _change(self, statement: str, *values: Any) -> int:
        async def change(connection: Connection) -> int:
            return _row_count(await connection.execute(numbered(statement), *values))

        return self._pool.write(change)

    def _transact(self, work: Callable[[Transaction], T]) -> T:
        return self._pool.write(partial(run_in, work=work))

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

"""The store in one SQLite file: safe against kill -9 and power loss, and shared by several processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from gradeline.errors import StoreError
from gradeline.failpoints import failpoint
from gradeline.model.grade import Grade
from gradeline.model.observation import EVERYTHING, Observation, ObservationFilter, ObservationSums
from gradeline.model.record import GradeKey, Record, ResponseKey, from_json, to_json
from gradeline.model.response import Response
from gradeline.model.run import (
    Columns,
    Counts,
    Measure,
    OrderCounts,
    Run,
    StoredKey,
)
from gradeline.model.sample import Sample, TestCase
from gradeline.store.leases import BEAT, observed_run
from gradeline.store.maintenance import deletion_unfinished, hide_run, remove_rows
from gradeline.store.observations import observation_of_row, page_statement, put_in_sqlite, sums_of_row, sums_statement
from gradeline.store.rows import (
    RecordRow,
    Tally,
    choose_run,
    counts_of,
    grade_row,
    new_id,
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
from gradeline.store.sqlite_connections import (
    BUSY_SECONDS,
    SqliteConnectionPool,
    SqliteDatabase,
    SqliteTransaction,
)
from gradeline.store.sqlite_records import (
    GRADES,
    ORDER_COUNTS,
    SAMPLE_PAGE,
    START,
    put_clusters,
    put_samples,
    put_valid_rows,
    read_columns,
    read_keys,
    read_measures,
    read_records,
)

if TYPE_CHECKING:
    from gradeline.store.database import CommitHook, Transaction
    from gradeline.store.writer import Writer

_SAMPLES_AT_ONCE = 500
_CANDIDATES = 20


class SqliteStorage:
    """`Storage` in a SQLite file.

    Any number of processes may share it. After an I/O error nothing more is written until the store is opened again,
    because the state of the file is unknown.
    """

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS, read_only: bool = False) -> None:
        """``read_only``: the file exists, and nothing is written to it or created next to it."""
        self.path = Path(path)
        self._use(SqliteConnectionPool(self.path, busy_seconds, read_only=read_only))
        if not read_only:
            self._continue_deletion()

    def _use(self, pool: SqliteConnectionPool) -> None:
        self._pool = pool
        self._read = pool.read
        self.database = SqliteDatabase(pool)
        """The database itself, for tables that other parts of the program add."""
        self.note = pool.note
        """A message for the user about how the store was opened."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.close()

    def make_single_file(self) -> None:
        """Copy all data into the one file and remove the write-ahead log next to it, so that the file can be archived
        or moved. No other process may have the store open; the next one that opens it creates a log again."""
        self._pool.remove_log()

    def save_test_case(self, test_case: TestCase) -> str:
        if not test_case.id:
            test_case = msgspec.structs.replace(test_case, id=new_id())
        with self._pool.writing() as connection:
            connection.execute(
                "INSERT INTO test_cases (id, test_case) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET test_case = excluded.test_case, deleted = 0",
                (test_case.id, to_json(test_case)),
            )
        return test_case.id

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - part of the public protocol
        rows = self._read("SELECT test_case FROM test_cases WHERE id = ? AND NOT deleted", id)
        return from_json(TestCase, rows[0][0]) if rows else None

    def list_test_cases(self) -> list[TestCase]:
        rows = self._read("SELECT test_case FROM test_cases WHERE NOT deleted ORDER BY n")
        return [from_json(TestCase, text) for (text,) in rows]

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - part of the public protocol
        with self._pool.writing() as connection:
            done = connection.execute("UPDATE test_cases SET deleted = 1 WHERE id = ? AND NOT deleted", (id,))
            return done.rowcount > 0

    def save_run(self, run: Run) -> str:
        run = validate_run(run)
        with self._pool.writing() as connection:
            _save_run(connection, run)
        return run.id

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - part of the public protocol
        rows = self._read("SELECT run FROM runs WHERE id = ?", id)
        return observed_run(rows[0][0], self.database.read) if rows else None

    def find_run(self, reference: str) -> Run:
        back = steps_back(reference)
        if back is not None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT 1 OFFSET ?", back)
            found = observed_run(rows[0][0], self.database.read) if rows else None
        else:
            rows = self._read(
                "SELECT run FROM runs WHERE id = ?1 OR name = ?1 OR (id >= ?1 AND id < ?1 || char(0x10FFFF))"
                " ORDER BY id = ?1 DESC, name = ?1 DESC, n DESC LIMIT ?2",
                reference,
                _CANDIDATES,
            )
            found = choose_run(reference, self._observed(rows)) if reference else None
        if found is None:
            raise self._unknown_run(reference)
        return found

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        if before is None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT ?", limit)
        else:
            cursor = self._read("SELECT n FROM runs WHERE id = ?", before)
            if not cursor:
                raise self._unknown_run(before)
            rows = self._read("SELECT run FROM runs WHERE n < ? ORDER BY n DESC LIMIT ?", cursor[0][0], limit)
        return self._observed(rows)

    def _observed(self, rows: Sequence[tuple[str]]) -> list[Run]:
        query = self.database.read
        return [observed_run(text, query) for (text,) in rows]

    def update_run(self, id: str, **changes: Any) -> Run:  # noqa: A002 - part of the public protocol
        with self._pool.writing() as connection:
            row = connection.execute("SELECT run FROM runs WHERE id = ?", (id,)).fetchone()
            if row is not None:
                run = with_changes(from_json(Run, row[0]), changes)
                _save_run(connection, run)
                return run
        raise self._unknown_run(id)

    def claim_run(self, id: str, owner: str, previous: str | None) -> Run | None:  # noqa: A002 - part of the public protocol
        with self._pool.writing() as connection:
            row = connection.execute("SELECT run FROM runs WHERE id = ?", (id,)).fetchone()
            if row is not None:
                run = with_owner(from_json(Run, row[0]), owner, previous)
                if run is not None:
                    _save_run(connection, run)
                    connection.execute(BEAT, (id,))
                return run
        raise self._unknown_run(id)

    def delete_run(
        self,
        id: str,  # noqa: A002 - part of the public protocol
        hook: Callable[[Transaction], object] | None = None,
    ) -> bool:
        with self._pool.writing(foreign_keys=False) as connection:
            found = hide_run(connection, id)
            if found and hook is not None:
                hook(SqliteTransaction(connection))
        self.finish_deletions()
        return found

    def finish_deletions(self) -> None:
        """Remove the remaining rows of deleted runs."""
        for run in self._unfinished_deletions():
            for _ in remove_rows(self.database.transact, run):
                pass

    def vacuum(self) -> None:
        """Remove the remaining rows of deleted runs, and return free space to the file system.

        SQLite rewrites the whole file; meanwhile other processes can read but not write."""
        self.finish_deletions()
        self._pool.vacuum()

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        rows = ((run, sample.case_key, position, to_json(sample)) for position, sample in enumerate(samples, start))
        while chunk := list(islice(rows, _SAMPLES_AT_ONCE)):
            with self._pool.writing() as connection:
                try:
                    put_samples(connection, chunk)
                except sqlite3.IntegrityError:
                    raise unsaved_run(run) from None

    def samples(self, run: str) -> Iterator[Sample]:
        self._require_run(run)
        cursor: tuple[int, str] = (-1, "")
        while True:
            rows = self._read(SAMPLE_PAGE, run, *cursor, _SAMPLES_AT_ONCE)
            if not rows:
                return
            yield from (from_json(Sample, text) for _, _, text in rows)
            cursor = rows[-1][:2]

    def get_sample(self, run: str, case: str) -> Sample | None:
        source = self._source(run)
        rows = self._read(
            "SELECT sample FROM samples JOIN runs ON runs.id = samples.run WHERE samples.run = ? AND case_key = ?",
            source,
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
            " WHERE cache_key = ? AND status = 'success' LIMIT 1",
            cache_key,
        )
        return from_json(Response, rows[0][0]) if rows else None

    def get_response(self, key: ResponseKey) -> Response | None:
        rows = self._read(
            "SELECT response FROM responses JOIN runs ON runs.id = responses.run"
            " WHERE responses.run = ? AND case_key = ? AND repeat = ?",
            self._source(key.run),
            key.case,
            key.repeat,
        )
        return from_json(Response, rows[0][0]) if rows else None

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> None:
        self._put(grade_row(key, grade, submission))

    def get_record(self, key: ResponseKey) -> Record | None:
        rows = self._read(
            "SELECT samples.sample, responses.response FROM responses JOIN runs ON runs.id = responses.run"
            " JOIN samples ON samples.run = responses.run AND samples.case_key = responses.case_key"
            " WHERE responses.run = ? AND responses.case_key = ? AND repeat = ?",
            self._source(key.run),
            key.case,
            key.repeat,
        )
        if not rows:
            return None
        sample, response = rows[0]
        return record_of(key, sample, response, self._read(GRADES, *key))

    def records(self, run: str, after: ResponseKey | None = None) -> Iterator[Record]:
        self._require_run(run)
        source = self._source(run)
        start = START if after is None else self._position(source, after)
        return (
            record_of(key, sample, response, grades)
            for key, sample, response, grades in read_records(self._pool, run, source, start)
        )

    def keys_of(self, run: str, cases: Sequence[str] | None = None) -> Iterator[StoredKey]:
        self._require_run(run)
        return (
            StoredKey(
                key,
                status,
                {grader: fingerprint for grader, fingerprint, _ in grades},
                digest,
                frozenset(grader for grader, _, failed in grades if failed),
            )
            for key, status, digest, grades in read_keys(self._pool, run, self._source(run), cases)
        )

    def measures(self, run: str, *, digests: bool = False) -> Iterator[Measure]:
        self._require_run(run)
        clusters = self.clusters(run) if digests else {}
        return read_measures(self._pool, run, self._source(run), clusters, digests=digests)

    def put_clusters(self, run: str, clusters: Iterable[tuple[str, str]]) -> None:
        with self._pool.writing() as connection:
            connection.execute("DELETE FROM clusters WHERE run = ?", (run,))
            try:
                put_clusters(connection, [(run, case, cluster) for case, cluster in clusters])
            except sqlite3.IntegrityError:
                raise unsaved_run(run) from None

    def clusters(self, run: str) -> dict[str, str]:
        self._require_run(run)
        statement = "SELECT case_key, cluster FROM clusters WHERE run = ?"
        return dict(self._read(statement, run) or self._read(statement, self._source(run)))

    def columns(self, run: str, *, named: bool = True, digests: bool = False) -> Iterator[Columns]:
        self._require_run(run)
        return read_columns(self._pool, run, self._source(run), named=named, digests=digests)

    def counts(self, run: str) -> Counts:
        self._require_run(run)
        responses = self._read("SELECT status, count FROM response_counts WHERE run = ?", self._source(run))
        grades = self._read(
            "SELECT grader, outcome, count, units, squares FROM grade_counts WHERE run = ? AND count > 0", run
        )
        return counts_of(responses, (Tally(*row) for row in grades))

    def order_counts(self, run: str) -> dict[str, OrderCounts]:
        self._require_run(run)
        return {grader: OrderCounts(first, second) for grader, first, second in self._read(ORDER_COUNTS, run)}

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        with self._pool.writing() as connection:
            return put_in_sqlite(connection, observations)

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        statement, values = page_statement(where, after, limit)
        return [observation_of_row(row) for row in self._read(statement, *values)]

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        statement, values = sums_statement(where)
        return [sums_of_row(row) for row in self._read(statement, *values)]

    def writer(self, hook: CommitHook | None = None) -> Writer:
        """``hook`` is called in the transaction of each batch."""
        from gradeline.store.writer import Writer  # imports asyncio, which few commands need

        return Writer(partial(self._commit, hook=hook), partial(self._try_commit, hook=hook), self._pool.checkpoint)

    def _commit(
        self, rows: Sequence[RecordRow], hook: CommitHook | None = None, timeout: float | None = None
    ) -> list[StoreError | None]:
        with self._pool.writing(timeout=timeout) as connection:
            failpoint("batch-begun")
            errors = put_valid_rows(connection, rows, self._pool.begin)
            if hook is not None:
                stored = [row for row, error in zip(rows, errors, strict=True) if error is None]
                hook(SqliteTransaction(connection), stored)
            failpoint("batch-written")
        failpoint("batch-committed")
        return errors

    def _try_commit(self, rows: Sequence[RecordRow], hook: CommitHook | None = None) -> list[StoreError | None] | None:
        """As `_commit`; None where another thread or process is writing, and nothing was done."""
        with self._pool.try_write_lock() as acquired:
            if not acquired:
                return None
            try:
                return self._commit(rows, hook, timeout=0.0)
            except StoreError as error:
                if error.retryable:  # the lock was not acquired, so nothing was done
                    return None
                raise

    def _put(self, row: RecordRow) -> None:
        (error,) = self._commit([row])
        if error is not None:
            raise error

    def _source(self, run: str) -> str:
        """The run whose responses a run reads: itself, or the run it regrades."""
        seen = {run}
        source = run
        while True:
            rows = self._read(
                "SELECT parent FROM runs WHERE id = ?1"
                " AND NOT EXISTS (SELECT 1 FROM response_counts WHERE run = ?1 AND count > 0)",
                source,
            )
            if not rows or rows[0][0] is None or rows[0][0] in seen:
                return source
            source = rows[0][0]
            seen.add(source)

    def _position(self, source: str, key: ResponseKey) -> tuple[int, str, int]:
        rows = self._read("SELECT position FROM samples WHERE run = ? AND case_key = ?", source, key.case)
        if not rows:
            raise unknown_case(key.run, key.case)
        return rows[0][0], key.case, key.repeat

    def _require_run(self, run: str) -> None:
        if not self._read("SELECT 1 FROM runs WHERE id = ?", run):
            raise self._unknown_run(run)

    def _unknown_run(self, reference: str) -> Exception:
        return unknown_run(reference, self.list_runs(limit=6))

    def _continue_deletion(self) -> None:
        """Remove a few rows of a deletion that was interrupted; opening a store must not take long."""
        for run in self._unfinished_deletions()[:1]:
            with suppress(StoreError):  # another process may be writing
                next(remove_rows(self.database.transact, run), None)

    def _unfinished_deletions(self) -> list[str]:
        return [run for (run,) in self._read("SELECT run FROM deleted_runs")]


class InMemoryStorage(SqliteStorage):
    """A SQLite database in this process's memory, for tests and ``--store memory://``. It ends with the process."""

    def __init__(self) -> None:
        self._use(SqliteConnectionPool(None, BUSY_SECONDS))


def _save_run(connection: sqlite3.Connection, run: Run) -> None:
    try:
        connection.execute(
            "INSERT INTO runs (id, name, parent, run) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name, parent = excluded.parent, run = excluded.run",
            (run.id, run.name, run.parent, to_json(run)),
        )
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise deletion_unfinished(run.id) from None
        raise unknown_parent(run) from None

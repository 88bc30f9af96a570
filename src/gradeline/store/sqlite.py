"""The store in one SQLite file: safe against kill -9 and power loss, and shared by several processes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradeline.errors import StoreError
from gradeline.failpoints import failpoint
from gradeline.model.observation import Observation
from gradeline.model.record import Record, ResponseKey, from_json, to_json
from gradeline.model.run import (
    Columns,
    Measure,
    Run,
    StoredKey,
)
from gradeline.model.sample import Sample
from gradeline.store.leases import BEAT
from gradeline.store.maintenance import deletion_unfinished, hide_run
from gradeline.store.rows import (
    RecordRow,
    record_of,
    unknown_parent,
    unsaved_run,
    validate_run,
    with_changes,
    with_owner,
)
from gradeline.store.sql_storage import SAMPLES_AT_ONCE, SqlStorage
from gradeline.store.sqlite_connections import (
    BUSY_SECONDS,
    SqliteConnectionPool,
    SqliteDatabase,
    SqliteTransaction,
)
from gradeline.store.sqlite_records import (
    GRADES,
    ORDER_COUNTS,
    SELECTIVE_COUNTS,
    START,
    put_clusters,
    put_observations,
    put_samples,
    put_valid_rows,
    read_columns,
    read_keys,
    read_measures,
    read_records,
)

if TYPE_CHECKING:
    from gradeline.store.database import CommitHook, T, Transaction
    from gradeline.store.writer import Writer


class SqliteStorage(SqlStorage):
    """`Storage` in a SQLite file.

    Any number of processes may share it. After an I/O error nothing more is written until the store is opened again,
    because the state of the file is unknown.
    """

    ORDER_COUNTS = ORDER_COUNTS
    SELECTIVE_COUNTS = SELECTIVE_COUNTS

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS, read_only: bool = False) -> None:
        """``read_only``: the file exists, and nothing is written to it or created next to it."""
        self.path = Path(path)
        self._use(SqliteConnectionPool(self.path, busy_seconds, read_only=read_only))
        if not read_only:
            self._continue_deletion()

    def _use(self, pool: SqliteConnectionPool) -> None:
        self._pool = pool
        self.note = pool.note
        """A message for the user about how the store was opened."""

    @property
    def database(self) -> SqliteDatabase:
        return SqliteDatabase(self._pool)

    def close(self) -> None:
        self._pool.close()

    def make_single_file(self) -> None:
        """Copy all data into the one file and remove the write-ahead log next to it, so that the file can be archived
        or moved. No other process may have the store open; the next one that opens it creates a log again."""
        self._pool.remove_log()

    def save_run(self, run: Run) -> str:
        run = validate_run(run)
        with self._pool.writing() as connection:
            _save_run(connection, run)
        return run.id

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

    def vacuum(self) -> None:
        """Remove the remaining rows of deleted runs, and return free space to the file system.

        SQLite rewrites the whole file; meanwhile other processes can read but not write."""
        self.finish_deletions()
        self._pool.vacuum()

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        rows = ((run, sample.case_key, position, to_json(sample)) for position, sample in enumerate(samples, start))
        while chunk := list(islice(rows, SAMPLES_AT_ONCE)):
            with self._pool.writing() as connection:
                try:
                    put_samples(connection, chunk)
                except sqlite3.IntegrityError:
                    raise unsaved_run(run) from None

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

    def columns(self, run: str, *, named: bool = True, digests: bool = False) -> Iterator[Columns]:
        self._require_run(run)
        return read_columns(self._pool, run, self._source(run), named=named, digests=digests)

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        with self._pool.writing() as connection:
            return put_observations(connection, observations)

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

    def _read(self, statement: str, *values: Any) -> list[Any]:
        return self._pool.read(statement, *values)

    def _change(self, statement: str, *values: Any) -> int:
        with self._pool.writing() as connection:
            return connection.execute(statement, values).rowcount

    def _transact(self, work: Callable[[Transaction], T]) -> T:
        return self.database.transact(work)


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

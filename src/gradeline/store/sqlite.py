"""The store in one SQLite file: safe against kill -9 and power loss, and shared by several processes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock, RLock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from gradeline.errors import Outcome, StoreError
from gradeline.failpoints import failpoint
from gradeline.model.case import TestCase
from gradeline.model.codec import digest_of, from_json, to_json
from gradeline.model.grade import Grade
from gradeline.model.observation import EVERYTHING, Observation, ObservationFilter, ObservationSums
from gradeline.model.record import GradeKey, Record, ResponseKey
from gradeline.model.response import Response
from gradeline.model.run import Columns, Counts, GradeColumns, GradeMeasure, Measure, ResponseColumns, Run, StoredKey
from gradeline.model.sample import Sample
from gradeline.store.bulk import put_rows, put_samples
from gradeline.store.deletion import being_deleted, removing
from gradeline.store.migrations import APPLICATION_ID, MIGRATIONS, migrate, version_of
from gradeline.store.observations import (
    Cell,
    observation_of_row,
    page_of_observations,
    put_observations,
    sums_of,
    sums_statement,
)
from gradeline.store.rows import (
    Row,
    Tally,
    changed,
    checked,
    choose_run,
    claimed,
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
)
from gradeline.store.sqlite_pages import (
    BEGINNING,
    CASES_AT_ONCE,
    COLUMNS_AT_ONCE,
    COLUMNS_END,
    FINGERPRINTS,
    GRADE_COLUMNS,
    GRADES,
    KEY_PAGE,
    MEASURES,
    MEASURES_AT_ONCE,
    MEASURES_WITH_DIGESTS,
    PAGE_CHARS,
    PAGE_ROWS,
    RECORD_PAGE,
    RESPONSE_COLUMNS,
    SAMPLE_PAGE,
    UNNAMED_GRADE_COLUMNS,
    UNNAMED_RESPONSE_COLUMNS,
    keys_of_cases,
)

if TYPE_CHECKING:
    from gradeline.store.shared import Beside
    from gradeline.store.sqlite_database import SqliteDatabase
    from gradeline.store.writer import Writer

BUSY_SECONDS = 5.0
_IDLE_READERS = 4
T = TypeVar("T")

_SAMPLES_AT_ONCE = 500
_LOG_COMMITS = 16
"""So many make it worth while to fold the log in a quiet moment."""
_LOG_PAGES = 4000
"""So many (16 MB) are folded whatever the moment. A page that many commits write is then folded once for all of them:
with SQLite's thousand a sample takes a twentieth longer."""
_CANDIDATES = 20

_REMEDIES = {
    sqlite3.SQLITE_BUSY: "is locked by another process; try again when it is done, or end it",
    sqlite3.SQLITE_LOCKED: "is locked by another process; try again when it is done, or end it",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; free some space, then resume",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error; check it, then open the store again",
    sqlite3.SQLITE_READONLY: "cannot be written; make the file and its folder writable, or name another store",
    sqlite3.SQLITE_PERM: "cannot be written; make the file and its folder writable, or name another store",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; see that its folder exists and is writable, or name another store",
    sqlite3.SQLITE_NOTADB: "is not a gradeline store (no SQLite database); name another file",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a copy, or save what is left with `sqlite3 FILE .recover`",
}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_BAD_ROW = (sqlite3.IntegrityError, sqlite3.DataError, ValueError, OverflowError)
_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05)
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FATAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class SqliteStorage:
    """`Storage` in a SQLite file.

    One connection writes, under a lock and in transactions that take the file's write lock at
    once; a small pool reads beside it. After an I/O error nothing more is written until the store
    is opened anew: what the disk holds is unknown then.
    """

    def __init__(self, path: str | Path, *, busy_seconds: float = BUSY_SECONDS) -> None:
        self.path = Path(path)
        self._busy_seconds = busy_seconds
        self._write_lock = RLock()
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = Lock()
        self._refusal: str | None = None
        """Why nothing more is written."""
        self._in_log = 0
        """Commits since the log was folded into the file by us."""
        self._closed = False
        self._connection = self._opened()
        self._go_on_deleting()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._write_lock, self._readers_lock:
            self._closed = True
            self._refusal = f"the store {self.path} is closed"
            for connection in (self._connection, *self._readers):
                connection.close()
            self._readers.clear()

    @property
    def database(self) -> SqliteDatabase:
        """The database itself, for tables that stand beside those of runs."""
        from gradeline.store.sqlite_database import SqliteDatabase  # the service's alone

        return SqliteDatabase(self._reading, self._writing)

    def save_test_case(self, test_case: TestCase) -> str:
        if not test_case.id:
            test_case = msgspec.structs.replace(test_case, id=new_id())
        with self._writing() as connection:
            connection.execute(
                "INSERT INTO test_cases (id, test_case) VALUES (?, ?)"
                " ON CONFLICT (id) DO UPDATE SET test_case = excluded.test_case, deleted = 0",
                (test_case.id, to_json(test_case)),
            )
        return test_case.id

    def get_test_case(self, id: str) -> TestCase | None:  # noqa: A002 - the seed's name
        rows = self._read("SELECT test_case FROM test_cases WHERE id = ? AND NOT deleted", id)
        return from_json(TestCase, rows[0][0]) if rows else None

    def list_test_cases(self) -> list[TestCase]:
        rows = self._read("SELECT test_case FROM test_cases WHERE NOT deleted ORDER BY n")
        return [from_json(TestCase, text) for (text,) in rows]

    def delete_test_case(self, id: str) -> bool:  # noqa: A002 - the seed's name
        with self._writing() as connection:
            done = connection.execute("UPDATE test_cases SET deleted = 1 WHERE id = ? AND NOT deleted", (id,))
            return done.rowcount > 0

    def save_run(self, run: Run) -> str:
        run = checked(run)
        with self._writing() as connection:
            _save_run(connection, run)
        return run.id

    def get_run(self, id: str) -> Run | None:  # noqa: A002 - as the seed names it
        rows = self._read("SELECT run FROM runs WHERE id = ?", id)
        return from_json(Run, rows[0][0]) if rows else None

    def find_run(self, wanted: str) -> Run:
        back = steps_back(wanted)
        if back is not None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT 1 OFFSET ?", back)
            found = from_json(Run, rows[0][0]) if rows else None
        else:
            rows = self._read(
                "SELECT run FROM runs WHERE id = ?1 OR name = ?1 OR (id >= ?1 AND id < ?1 || char(0x10FFFF))"
                " ORDER BY id = ?1 DESC, name = ?1 DESC, n DESC LIMIT ?2",
                wanted,
                _CANDIDATES,
            )
            found = choose_run(wanted, [from_json(Run, text) for (text,) in rows]) if wanted else None
        if found is None:
            raise self._unknown_run(wanted)
        return found

    def list_runs(self, limit: int = 50, before: str | None = None) -> list[Run]:
        if before is None:
            rows = self._read("SELECT run FROM runs ORDER BY n DESC LIMIT ?", limit)
        else:
            place = self._read("SELECT n FROM runs WHERE id = ?", before)
            if not place:
                raise self._unknown_run(before)
            rows = self._read("SELECT run FROM runs WHERE n < ? ORDER BY n DESC LIMIT ?", place[0][0], limit)
        return [from_json(Run, text) for (text,) in rows]

    def update_run(self, id: str, **changes: Any) -> Run:  # noqa: A002 - as the seed names it
        with self._writing() as connection:
            row = connection.execute("SELECT run FROM runs WHERE id = ?", (id,)).fetchone()
            if row is not None:
                run = changed(from_json(Run, row[0]), changes)
                _save_run(connection, run)
                return run
        raise self._unknown_run(id)

    def claim_run(self, id: str, owner: str, previous: str | None) -> Run | None:  # noqa: A002 - as the seed names it
        with self._writing() as connection:
            row = connection.execute("SELECT run FROM runs WHERE id = ?", (id,)).fetchone()
            if row is not None:
                run = claimed(from_json(Run, row[0]), owner, previous)
                if run is not None:
                    _save_run(connection, run)
                return run
        raise self._unknown_run(id)

    def delete_run(self, id: str) -> bool:  # noqa: A002 - as the seed names it
        from gradeline.store.sqlite_deletion import hide_run  # runs are seldom deleted

        with self._writing(cascading=False) as connection:
            found = hide_run(connection, id)
        for run in self._half_deleted():
            for _ in removing(self.database.transact, run):
                pass
        return found

    def put_samples(self, run: str, samples: Iterable[Sample], start: int = 0) -> None:
        rows = ((run, sample.case_key, place, to_json(sample)) for place, sample in enumerate(samples, start))
        while chunk := list(islice(rows, _SAMPLES_AT_ONCE)):
            with self._writing() as connection:
                try:
                    put_samples(connection, chunk)
                except sqlite3.IntegrityError:
                    raise unsaved_run(run) from None

    def samples(self, run: str) -> Iterator[Sample]:
        self._require_run(run)
        place: tuple[int, str] = (-1, "")
        while True:
            rows = self._read(SAMPLE_PAGE, run, *place, _SAMPLES_AT_ONCE)
            if not rows:
                return
            yield from (from_json(Sample, text) for _, _, text in rows)
            place = rows[-1][:2]

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
        start = BEGINNING if after is None else self._place(source, after)
        return (
            record_of(key, sample, response, grades)
            for key, sample, response, grades in self._joined(RECORD_PAGE, GRADES, run, source, start)
        )

    def keys_of(self, run: str, cases: Sequence[str] | None = None) -> Iterator[StoredKey]:
        self._require_run(run)
        source = self._source(run)
        if cases is None:
            found = self._joined(KEY_PAGE, FINGERPRINTS, run, source, BEGINNING)
        else:
            found = iter(self._keys_of_cases(run, source, cases))
        return (
            StoredKey(
                key,
                status,
                {grader: print_ for grader, print_, _ in grades},
                _digest(asked),
                frozenset(grader for grader, _, outcome in grades if outcome == Outcome.ERROR.value),
            )
            for key, status, asked, grades in found
        )

    def measures(self, run: str, *, digests: bool = False) -> Iterator[Measure]:
        self._require_run(run)
        source = self._source(run)
        statement = MEASURES_WITH_DIGESTS if digests else MEASURES
        place = BEGINNING
        while True:
            # whole cases only: a page is cut by responses, never between the grades of one
            rows = self._read(statement, source, *place, MEASURES_AT_ONCE, run)
            if not rows:
                return
            yield from _measures(rows, digests)
            place = rows[-1][:3]

    def columns(self, run: str, *, named: bool = True) -> Iterator[Columns]:
        self._require_run(run)
        source = self._source(run)
        place = ("", -1)
        while end := self._read(COLUMNS_END, source, *place, COLUMNS_AT_ONCE):
            page = (*place, *end[0])
            if named:
                responses = ResponseColumns(*_columns(self._read(RESPONSE_COLUMNS, source, *page)))
                grades = GradeColumns(*_columns(self._read(GRADE_COLUMNS, run, *page)))
            else:
                responses = ResponseColumns((), *_columns(self._read(UNNAMED_RESPONSE_COLUMNS, source, *page)))
                graders, *numbers = _columns(self._read(UNNAMED_GRADE_COLUMNS, run, *page)) or ((), (), (), ())
                grades = GradeColumns((), graders, (), *numbers)
            yield Columns(responses, grades)
            place = end[0]

    def counts(self, run: str) -> Counts:
        self._require_run(run)
        responses = self._read("SELECT status, count FROM response_counts WHERE run = ?", self._source(run))
        grades = self._read(
            "SELECT grader, outcome, count, units, squares FROM grade_counts WHERE run = ? AND count > 0", run
        )
        return counts_of(responses, (Tally(*row) for row in grades))

    def put_observations(self, observations: Sequence[Observation]) -> list[int]:
        with self._writing() as connection:
            return put_observations(connection, observations)

    def observations(
        self, where: ObservationFilter = EVERYTHING, after: int = 0, limit: int = 1000
    ) -> list[Observation]:
        statement, values = page_of_observations(where, after, limit)
        return [observation_of_row(row) for row in self._read(statement, *values)]

    def observation_sums(self, where: ObservationFilter = EVERYTHING) -> list[ObservationSums]:
        statement, values = sums_statement(where)
        return sums_of(Cell(*row) for row in self._read(statement, *values))

    def writer(self, beside: Beside | None = None) -> Writer:
        """``beside`` is done in the transaction of each batch; see `gradeline.store.shared`."""
        from gradeline.store.writer import Writer  # asyncio is loaded only where it is used

        return Writer(partial(self._commit, beside=beside), partial(self._commit_now, beside=beside), self._fold_log)

    def _commit(
        self, rows: Sequence[Row], beside: Beside | None = None, patience: float | None = None
    ) -> list[StoreError | None]:
        with self._writing(patience=patience) as connection:
            failpoint("batch-begun")
            refusals = _put_rows(connection, rows, self._begin)
            if beside is not None:
                from gradeline.store.sqlite_database import SqliteTransaction  # the service's alone

                stored = [row for row, refusal in zip(rows, refusals, strict=True) if refusal is None]
                beside(SqliteTransaction(connection), stored)
            failpoint("batch-written")
        self._in_log += 1
        failpoint("batch-committed")
        return refusals

    def _commit_now(self, rows: Sequence[Row], beside: Beside | None = None) -> list[StoreError | None] | None:
        """As `_commit`; None where another thread or process is writing, and nothing was done."""
        if not self._write_lock.acquire(blocking=False):
            return None
        try:
            return self._commit(rows, beside, patience=0.0)
        except StoreError as error:
            if error.retryable:  # a transaction has its lock before it does anything
                return None
            raise
        finally:
            self._write_lock.release()

    def _fold_log(self) -> None:
        """Take what is in the log over into the file, before SQLite does so in the midst of a commit.

        The log is then written from its beginning; to sync what makes a file longer takes twice as long.
        """
        if self._in_log < _LOG_COMMITS or not self._write_lock.acquire(blocking=False):
            return
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
            self._in_log = 0
        except sqlite3.Error as error:
            self._failure(error, writing=True)  # the next commit is told, if it matters to it
        finally:
            self._write_lock.release()

    def _put(self, row: Row) -> None:
        (refusal,) = self._commit([row])
        if refusal is not None:
            raise refusal

    def _joined(
        self, pages: str, grades: str, run: str, source: str, start: tuple[int, str, int]
    ) -> Iterator[tuple[ResponseKey, str, str, list[Any]]]:
        """Responses in order, each with its grades. Page by page: between pages no read is open that would
        keep the log from being folded into the file, and each page may be fetched by another thread."""
        place = start
        while True:
            page = []
            size = 0
            with self._reading() as connection:
                rows = connection.execute(pages, (source, *place, PAGE_ROWS))
                for position, case, repeat, first, second in rows:
                    found = connection.execute(grades, (run, case, repeat)).fetchall()
                    page.append((ResponseKey(run, case, repeat), first, second, found))
                    place = (position, case, repeat)
                    size += len(first) + len(second)
                    if size > PAGE_CHARS:
                        break
                rows.close()
            if not page:
                return
            yield from page

    def _keys_of_cases(
        self, run: str, source: str, cases: Sequence[str]
    ) -> list[tuple[ResponseKey, str, str, list[Any]]]:
        wanted = list(dict.fromkeys(cases))
        with self._reading() as connection:
            rows: list[tuple[int, str, int, str, str]] = []
            for start in range(0, len(wanted), CASES_AT_ONCE):
                chunk = wanted[start : start + CASES_AT_ONCE]
                rows += connection.execute(keys_of_cases(len(chunk)), (source, *chunk))
            rows.sort(key=lambda row: row[:3])  # Python compares texts as SQLite does, by code points
            return [
                (
                    ResponseKey(run, case, repeat),
                    status,
                    asked,
                    connection.execute(FINGERPRINTS, (run, case, repeat)).fetchall(),
                )
                for _, case, repeat, status, asked in rows
            ]

    def _source(self, run: str) -> str:
        """Whose responses a run reads: its own, or those of the run it regrades."""
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

    def _place(self, source: str, key: ResponseKey) -> tuple[int, str, int]:
        rows = self._read("SELECT position FROM samples WHERE run = ? AND case_key = ?", source, key.case)
        if not rows:
            raise unknown_case(key.run, key.case)
        return rows[0][0], key.case, key.repeat

    def _require_run(self, run: str) -> None:
        if not self._read("SELECT 1 FROM runs WHERE id = ?", run):
            raise self._unknown_run(run)

    def _unknown_run(self, wanted: str) -> Exception:
        return unknown_run(wanted, self.list_runs(limit=6))

    def _read(self, statement: str, *values: object) -> list[Any]:
        with self._reading() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._readers_lock:
            if self._closed:
                raise StoreError(f"the store {self.path} is closed")
            connection = self._readers.pop() if self._readers else None
        try:
            if connection is None:
                connection = self._connected()
                connection.execute("PRAGMA query_only = ON")
            yield connection
        except sqlite3.Error as error:
            raise self._failure(error) from error
        finally:
            if connection is not None:
                self._give_back(connection)

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._readers_lock:
            if not self._closed and len(self._readers) < _IDLE_READERS:
                self._readers.append(connection)
                return
        connection.close()

    def _go_on_deleting(self) -> None:
        """A little of what an interrupted deletion left; whoever opens the store does not want to wait for more."""
        for run in self._half_deleted()[:1]:
            with suppress(StoreError):  # another process may be at it
                next(removing(self.database.transact, run), None)

    def _half_deleted(self) -> list[str]:
        return [run for (run,) in self._read("SELECT run FROM deleted_runs")]

    @contextmanager
    def _writing(self, *, cascading: bool = True, patience: float | None = None) -> Iterator[sqlite3.Connection]:
        """A transaction; all of it is stored, or nothing. Without ``cascading`` references are not looked after.

        ``patience`` is how many seconds other processes may keep it from beginning.
        """
        with self._write_lock:
            if self._refusal is not None:
                raise StoreError(self._refusal)
            connection = self._connection
            try:
                if not cascading:  # which cannot be changed within a transaction
                    connection.execute("PRAGMA foreign_keys = OFF")
                self._begin(patience)
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._failure(error, writing=True) from error
                raise
            finally:
                if not cascading:
                    connection.execute("PRAGMA foreign_keys = ON")

    def _begin(self, patience: float | None = None) -> None:
        """Take the file's write lock; SQLite itself could only be told beforehand how long to wait for others."""
        self._patiently(lambda: self._connection.execute("BEGIN IMMEDIATE"), patience)

    def _failure(self, error: sqlite3.Error, *, writing: bool = False) -> StoreError:
        code = _code(error)
        remedy = _REMEDIES.get(code)
        message = f"the store {self.path} {remedy} ({error})" if remedy else f"the store {self.path}: {error}"
        if writing and code in _FATAL:
            self._refusal = message
        return StoreError(message, retryable=code in _LOCKED)

    def _opened(self) -> sqlite3.Connection:
        self._require_place()
        connection = None
        try:
            connection = self._connected()
            self._require_ours(connection)
            self._use_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA busy_timeout = 0")
            self._patiently(partial(migrate, connection))
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._failure(error) from error
            raise
        return connection

    def _connected(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self.path, timeout=self._busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=64
        )

    def _require_place(self) -> None:
        """SQLite's own words for these are 'unable to open database file'."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the folder {self.path.parent} of the store cannot be made ({error.strerror}); name another store"
            ) from error
        if self.path.is_dir():
            raise StoreError(f"the store {self.path} is a folder; name a file in it, such as {self.path / 'store.db'}")
        for place, what in ((self.path, "the store"), (self.path.parent, "the folder of the store,")):
            if place.exists() and not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise StoreError(f"{what} {place} is read-only; make it writable, or name another store")

    def _require_ours(self, connection: sqlite3.Connection) -> None:
        """Refuse what is not to be touched, before anything is written."""
        # in this order: what another process makes of a fresh file meanwhile has tables and our mark at once
        empty = not connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone()
        found = connection.execute("PRAGMA application_id").fetchone()[0]
        if found != APPLICATION_ID and not (empty and found == 0):
            raise StoreError(f"{self.path} is a SQLite database of another program; name another file for the store")
        version = version_of(connection)
        if version > len(MIGRATIONS):
            raise StoreError(
                f"the store {self.path} was written by a newer gradeline (its schema is {version}, this one knows"
                f" {len(MIGRATIONS)}); upgrade with: pip install --upgrade gradeline"
            )

    def _use_log(self, connection: sqlite3.Connection) -> None:
        mode = self._patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        if mode != "wal":
            raise StoreError(
                f"the store {self.path} cannot use a write-ahead log on this file system; put it on a local disk"
            )

    def _patiently(self, act: Callable[[], T], seconds: float | None = None) -> T:
        """Do what other processes may keep from being done for a while."""
        began: float | None = None
        tries = 0
        while True:
            try:
                return act()
            except sqlite3.OperationalError as error:
                began = began or monotonic()
                patience = self._busy_seconds if seconds is None else seconds
                if _code(error) not in _LOCKED or monotonic() - began >= patience:
                    raise
            sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
            tries += 1


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary code; 0 for what Python's own module raises."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _save_run(connection: sqlite3.Connection, run: Run) -> None:
    try:
        connection.execute(
            "INSERT INTO runs (id, name, parent, run) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET name = excluded.name, parent = excluded.parent, run = excluded.run",
            (run.id, run.name, run.parent, to_json(run)),
        )
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise being_deleted(run.id) from None
        raise unknown_parent(run) from None


def _columns(rows: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...]:
    return tuple(zip(*rows, strict=True))


def _digest(asked: str) -> str:
    return digest_of(asked) if asked.startswith("{") else asked


def _measures(rows: Iterable[Sequence[Any]], digests: bool) -> Iterator[Measure]:
    """Rows of one response each, one after the other, as one measure each."""
    place: tuple[str, int] | None = None
    measure: Measure | None = None
    for _, case, repeat, status, latency_ms, cost, asked, grader, outcome, score, reported, paid in rows:
        if (case, repeat) != place:
            if measure is not None:
                yield measure
            place = (case, repeat)
            measure = Measure(case, repeat, status, latency_ms, cost, {}, _digest(asked) if digests else "")
        if measure is not None and grader is not None:
            measure.grades[grader] = GradeMeasure(_OUTCOMES[outcome], score, bool(reported), paid)
    if measure is not None:
        yield measure


def _put_rows(
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

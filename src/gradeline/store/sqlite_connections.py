"""Connections to a SQLite database: one writes, a few read. A database in memory has one connection for both.

A store opened read-only may be impossible or wrong to write to: nothing in it changes and nothing is created next to
it. Committed data in its write-ahead log is always read: where SQLite cannot use the log in place, a temporary copy of
both files is read. A store with an older schema is also read from a copy, which is migrated.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from gradeline.errors import StoreError
from gradeline.store import sqlite_schema
from gradeline.store.database import Row, T, Transaction, Value, newer_version

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

BUSY_SECONDS = 5.0
_IDLE_READERS = 4
CHECKPOINT_COMMITS = 16
"""Commits after which a quiet moment is used for a checkpoint."""
_CHECKPOINT_PAGES = 4000
"""Pages in the log (16 MB) at which a commit runs a checkpoint. A page that many commits write is then copied once:
with SQLite's default of 1000 a sample takes a twentieth longer."""

_LOCKED_MESSAGE = "is locked by another process; try again when it has finished, or stop it"
_READ_ONLY_MESSAGE = "cannot be written; make the file and its folder writable, or use another store"
_REMEDIES = {
    sqlite3.SQLITE_BUSY: _LOCKED_MESSAGE,
    sqlite3.SQLITE_LOCKED: _LOCKED_MESSAGE,
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full; free some space, then resume",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error; check it, then open the store again",
    sqlite3.SQLITE_READONLY: _READ_ONLY_MESSAGE,
    sqlite3.SQLITE_PERM: _READ_ONLY_MESSAGE,
    sqlite3.SQLITE_CANTOPEN: "cannot be opened; check that its folder exists and is writable, or use another store",
    sqlite3.SQLITE_NOTADB: "is not a gradeline store (not a SQLite database); use another file",
    sqlite3.SQLITE_CORRUPT: "is damaged; restore it from a backup, or recover what you can with"
    " `sqlite3 FILE .recover`",
}
_RETRY_DELAYS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05)
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FATAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class SqliteConnectionPool:
    """The connections of one store, for callers in any thread.

    Transactions take the file's write lock when they begin. After an I/O error nothing more is written until the store
    is opened again, because the state of the file is unknown.
    """

    def __init__(self, path: Path | None, busy_seconds: float, *, read_only: bool = False) -> None:
        """Without a path the database is in memory. ``read_only`` opens an existing file only and writes nothing."""
        self.path = path
        self._busy_seconds = busy_seconds
        self._source: _ReadSource | None = None
        self._write_lock = RLock()
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = Lock()
        self._write_error: str | None = None
        """Why nothing more can be written."""
        self._closed = False
        self.commits_in_log = 0
        """Commits since the last checkpoint of this pool."""
        self.connection = self._open_read_only(path) if path is not None and read_only else self._open()
        """The connection that writes."""

    @property
    def note(self) -> str | None:
        """A message for the user about how the store is read."""
        return None if self._source is None else self._source.note

    def close(self) -> None:
        with self._write_lock, self._readers_lock:
            self._closed = True
            self._write_error = f"the store {self._name} is closed"
            for connection in (self.connection, *self._readers):
                connection.close()
            self._readers.clear()
            if self._source is not None and self._source.copy is not None:
                self._source.copy.cleanup()

    def read(self, statement: str, *values: object) -> list[Any]:
        """The rows of a query."""
        with self.reading() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for this caller only."""
        try:
            if self.path is None:
                with self._write_lock:
                    self._require_open()
                    yield self.connection
            else:
                with self._reader() as connection:
                    yield connection
        except sqlite3.Error as error:
            raise self._failure(error) from error

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        with self._readers_lock:
            self._require_open()
            connection = self._readers.pop() if self._readers else None
        try:
            if connection is None:
                connection = self._connect()
                connection.execute("PRAGMA query_only = ON")
            yield connection
        finally:
            if connection is not None:
                self._release_reader(connection)

    def _release_reader(self, connection: sqlite3.Connection) -> None:
        with self._readers_lock:
            if not self._closed and len(self._readers) < _IDLE_READERS:
                self._readers.append(connection)
                return
        connection.close()

    @contextmanager
    def writing(self, *, foreign_keys: bool = True, timeout: float | None = None) -> Iterator[sqlite3.Connection]:
        """A transaction, committed on exit and rolled back on an exception. Without ``foreign_keys`` references are
        neither checked nor cascaded.

        ``timeout`` is how many seconds to wait for other processes' transactions.
        """
        with self._write_lock:
            self._require_writable()
            connection = self.connection
            try:
                if not foreign_keys:  # the setting cannot be changed within a transaction
                    connection.execute("PRAGMA foreign_keys = OFF")
                self.begin(timeout)
                yield connection
                connection.execute("COMMIT")
                self.commits_in_log += 1
            except BaseException as error:
                with suppress(sqlite3.Error):
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    raise self._failure(error, writing=True) from error
                raise
            finally:
                if not foreign_keys:
                    connection.execute("PRAGMA foreign_keys = ON")

    def begin(self, timeout: float | None = None) -> None:
        """Take the file's write lock. Not by SQLite's busy timeout, which is a setting of the whole connection."""
        self._retry_while_locked(lambda: self.connection.execute("BEGIN IMMEDIATE"), timeout)

    @contextmanager
    def try_write_lock(self) -> Iterator[bool]:
        """Whether no other thread is writing; if so, none can until the block ends."""
        acquired = self._write_lock.acquire(blocking=False)
        try:
            yield acquired
        finally:
            if acquired:
                self._write_lock.release()

    def checkpoint(self) -> None:
        """Copy the log into the file, before SQLite does so within a commit; skipped while another thread writes.

        The log is then overwritten from its start: syncing a file that grows takes twice as long.
        """
        if self.commits_in_log < CHECKPOINT_COMMITS:
            return
        with self.try_write_lock() as acquired:
            if not acquired:
                return
            try:
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self.commits_in_log = 0
            except sqlite3.Error as error:
                self._failure(error, writing=True)  # the next commit reports it if it is fatal

    def vacuum(self) -> None:
        """Rewrite the file without its free space."""
        with self._write_lock:
            self._require_writable()
            try:
                self._retry_while_locked(lambda: self.connection.execute("VACUUM"))
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self.commits_in_log = 0
            except sqlite3.Error as error:
                raise self._failure(error, writing=True) from error

    def remove_log(self) -> None:
        """Copy the log into the file and delete it."""
        with self._write_lock, self._readers_lock:
            while self._readers:
                self._readers.pop().close()
            try:
                self._retry_while_locked(lambda: self.connection.execute("PRAGMA journal_mode = DELETE").fetchone())
            except sqlite3.Error as error:
                raise self._failure(error, writing=True) from error

    @property
    def _name(self) -> object:
        return "memory://" if self.path is None else self.path

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"the store {self._name} is closed")

    def _require_writable(self) -> None:
        if self._write_error is not None:
            raise StoreError(self._write_error)

    def _failure(self, error: sqlite3.Error, *, writing: bool = False) -> StoreError:
        code = _error_code(error)
        remedy = _REMEDIES.get(code)
        message = f"the store {self._name} {remedy} ({error})" if remedy else f"the store {self._name}: {error}"
        if writing and code in _FATAL:
            self._write_error = message
        return StoreError(message, retryable=code in _LOCKED)

    def _open(self) -> sqlite3.Connection:
        if self.path is not None:
            _require_writable_folder(self.path)
        connection = None
        try:
            connection = self._connect()
            if self.path is not None:
                require_store(connection, self.path)
                self._use_log(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA busy_timeout = 0")
            self._retry_while_locked(lambda: sqlite_schema.migrate(connection))
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._failure(error) from error
            raise
        return connection

    def _open_read_only(self, path: Path) -> sqlite3.Connection:
        self._write_error = f"the store {path} is open for reading only"
        try:
            if path.is_dir():
                raise _is_folder(path)
            self._source = _read_source(path, self._busy_seconds)
            return self._connect()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _connect(self) -> sqlite3.Connection:
        if self._source is not None:
            return _connect_uri(self._source.uri, self._busy_seconds)
        return sqlite3.connect(
            ":memory:" if self.path is None else self.path,
            timeout=self._busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=64,
        )

    def _use_log(self, connection: sqlite3.Connection) -> None:
        mode = self._retry_while_locked(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        if mode != "wal":
            raise StoreError(
                f"the store {self.path} cannot use a write-ahead log on this file system; put it on a local disk"
            )

    def _retry_while_locked(self, action: Callable[[], T], timeout: float | None = None) -> T:
        """Retry while another process holds a lock on the file."""
        timeout = self._busy_seconds if timeout is None else timeout
        started: float | None = None
        attempts = 0
        while True:
            try:
                return action()
            except sqlite3.OperationalError as error:
                started = started or monotonic()
                if _error_code(error) not in _LOCKED or monotonic() - started >= timeout:
                    raise
            sleep(_RETRY_DELAYS[min(attempts, len(_RETRY_DELAYS) - 1)])
            attempts += 1


class SqliteDialect(NamedTuple):
    name: Literal["sqlite"] = "sqlite"
    serial: str = "INTEGER PRIMARY KEY AUTOINCREMENT"


class SqliteDatabase:
    """`Database` on the connections of a store."""

    dialect = SqliteDialect()

    def __init__(self, pool: SqliteConnectionPool) -> None:
        self._pool = pool

    def read(self, statement: str, *values: Value) -> list[Row]:
        return self._pool.read(statement, *values)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        with self._pool.writing() as connection:
            return work(SqliteTransaction(connection))

    def snapshot(self, work: Callable[[Transaction], T]) -> T:
        with self._pool.reading() as connection:
            connection.execute("BEGIN")
            try:
                return work(SqliteTransaction(connection))
            finally:
                connection.execute("ROLLBACK")

    def transact_in_bulk(self, work: Callable[[Transaction], T]) -> T:
        with self._pool.writing(foreign_keys=False) as connection, _bulk_transaction(connection) as transaction:
            return work(transaction)


class SqliteTransaction:
    """A transaction that is open on a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: Value) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()


class _BulkTransaction(SqliteTransaction):
    """Refuses statements after its end, when each would be committed by itself."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._lock = Lock()
        self._ended = False

    def run(self, statement: str, *values: Value) -> list[Row]:
        with self._lock:
            if self._ended:
                raise StoreError("the transaction has ended")
            return super().run(statement, *values)

    def end(self) -> None:
        with self._lock:
            self._ended = True


@contextmanager
def _bulk_transaction(connection: sqlite3.Connection) -> Iterator[SqliteTransaction]:
    """A transaction whose statements may come from another thread, which does not notice at once when the thread that
    began it was interrupted."""
    transaction = _BulkTransaction(connection)
    try:
        yield transaction
    finally:
        transaction.end()


class _ReadSource(NamedTuple):
    """The source of the data of a store that is opened read-only."""

    uri: str
    copy: TemporaryDirectory[str] | None = None
    """Deleted when the store is closed."""
    note: str | None = None


def _read_source(path: Path, busy_seconds: float) -> _ReadSource:
    """Raises `sqlite3.Error` if the existing file is not a database."""
    if not _has_access(path, os.R_OK):
        raise StoreError(f"the store {path} cannot be read; make the file readable, or use another store")
    source = _unmigrated_source(path)
    with closing(_connect_uri(source.uri, busy_seconds)) as connection:
        version = require_store(connection, path)
        latest = len(sqlite_schema.MIGRATIONS)
        if version == latest:
            return source
        migrated = _migrated_copy(connection, source)
    if not version:  # an empty file
        return migrated
    note = (
        f"the store {path} has an older schema (version {version}, latest {latest}): a temporary copy was read; the"
        " next run in it migrates it"
    )
    return migrated._replace(note=note)


def _unmigrated_source(path: Path) -> _ReadSource:
    log, index = (path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))
    if all(os.access(target, os.W_OK) for target in (path, path.parent)):
        return _ReadSource(_uri(path, "mode=rw"))  # the last connection to close removes the log
    if not log.exists() or not log.stat().st_size:
        # without a log no process has the store open; SQLite would try to create one
        return _ReadSource(_uri(path, "immutable=1"))
    uri = _uri(path, "mode=ro")
    try:
        if index.exists():
            with closing(_connect_uri(uri, 0.0)) as connection:
                _has_tables(connection)
            return _ReadSource(uri)
    except sqlite3.OperationalError:
        pass  # the log's index cannot be used from here
    return _copy_files(path, log)


def _copy_files(path: Path, log: Path) -> _ReadSource:
    import shutil  # 3 ms, and stores are rarely copied

    folder = _temporary_folder()
    copied = Path(folder.name) / "store.db"
    try:
        shutil.copyfile(path, copied)
        shutil.copyfile(log, copied.with_name("store.db-wal"))
    except OSError as error:
        folder.cleanup()
        raise StoreError(
            f"the store {path} has changes in {log.name} that cannot be copied to be read ({error.strerror});"
            " make its folder writable, or use another store"
        ) from error
    return _ReadSource(_uri(copied, "mode=rw"), folder)


def _migrated_copy(connection: sqlite3.Connection, source: _ReadSource) -> _ReadSource:
    folder = _temporary_folder()
    copied = Path(folder.name) / "store.db"
    try:
        with closing(sqlite3.connect(copied, isolation_level=None)) as new:
            connection.backup(new)
            new.execute("PRAGMA journal_mode = WAL")
            sqlite_schema.migrate(new)
    except BaseException:
        folder.cleanup()
        raise
    if source.copy is not None:
        source.copy.cleanup()
    return _ReadSource(_uri(copied, "mode=rw"), folder)


def _temporary_folder() -> TemporaryDirectory[str]:
    from tempfile import TemporaryDirectory  # imports shutil, as above

    return TemporaryDirectory(prefix="gradeline-reading-")


def _connect_uri(uri: str, busy_seconds: float) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def _uri(path: Path, option: str) -> str:
    return f"file:{quote(str(path.absolute()))}?{option}"


def require_store(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the schema; `StoreError` for the database of another program, or of a newer version."""
    # in this order: another process may create a store in an empty file meanwhile, with tables and ID in one commit
    empty = not _has_tables(connection)
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    if found != sqlite_schema.APPLICATION_ID and not (empty and found == 0):
        raise StoreError(f"{path} is a SQLite database of another program; use another file for the store")
    version = sqlite_schema.version_of(connection)
    if version > len(sqlite_schema.MIGRATIONS):
        raise newer_version(path, version, len(sqlite_schema.MIGRATIONS))
    return version


def _has_tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _require_writable_folder(path: Path) -> None:
    """SQLite reports all of these as 'unable to open database file'."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"the folder {path.parent} of the store cannot be created ({error.strerror}); use another store"
        ) from error
    if path.is_dir():
        raise _is_folder(path)
    for target, what in ((path, "the store"), (path.parent, "the folder of the store,")):
        if target.exists() and not _has_access(target, os.W_OK):
            raise StoreError(f"{what} {target} is read-only; make it writable, or use another store")


def _has_access(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _is_folder(path: Path) -> StoreError:
    return StoreError(f"the store {path} is a folder; name a file in it, such as {path / 'store.db'}")


def _error_code(error: sqlite3.Error) -> int:
    """SQLite's primary code; 0 for errors of Python's own module."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF

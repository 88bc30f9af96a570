"""Connections to a SQLite file: one writes, a few read beside it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock, RLock
from time import monotonic, sleep
from typing import Any, TypeVar

from gradeline.errors import StoreError
from gradeline.store.migrations import migrate
from gradeline.store.sqlite_reading import ReadingPlace, connect_uri, reading_place, require_store

T = TypeVar("T")

BUSY_SECONDS = 5.0
_IDLE_READERS = 4
LOG_COMMITS = 16
"""So many make it worth while to fold the log in a quiet moment."""
_LOG_PAGES = 4000
"""So many (16 MB) are folded whatever the moment. A page that many commits write is then folded once for all of them:
with SQLite's thousand a sample takes a twentieth longer."""

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
_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.025, 0.05)
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_FATAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Link:
    """The connections of one store, for callers in any thread.

    Transactions take the file's write lock at once. After an I/O error nothing more is written until the store is
    opened anew: what the disk holds is unknown then.
    """

    def __init__(self, path: Path, busy_seconds: float, *, reading: bool = False) -> None:
        """``reading``: nothing is written, and nothing but an existing file is opened."""
        self.path = path
        self._busy_seconds = busy_seconds
        self._place: ReadingPlace | None = None
        self._write_lock = RLock()
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = Lock()
        self._refusal: str | None = None
        """Why nothing more is written."""
        self._closed = False
        self.in_log = 0
        """Commits since the log was folded into the file by us."""
        self.connection = self._opened_for_reading() if reading else self._opened()
        """The one that writes."""

    @property
    def note(self) -> str | None:
        """What the user should know about how the store is read."""
        return None if self._place is None else self._place.note

    def close(self) -> None:
        with self._write_lock, self._readers_lock:
            self._closed = True
            self._refusal = f"the store {self.path} is closed"
            for connection in (self.connection, *self._readers):
                connection.close()
            self._readers.clear()
            if self._place is not None and self._place.copy is not None:
                self._place.copy.cleanup()

    def read(self, statement: str, *values: object) -> list[Any]:
        """The rows of a statement that changes nothing."""
        with self.reading() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection of one's own, for as long as it takes."""
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

    @contextmanager
    def writing(self, *, cascading: bool = True, patience: float | None = None) -> Iterator[sqlite3.Connection]:
        """A transaction; all of it is stored, or nothing. Without ``cascading`` references are not looked after.

        ``patience`` is how many seconds other processes may keep it from beginning.
        """
        with self._write_lock:
            if self._refusal is not None:
                raise StoreError(self._refusal)
            connection = self.connection
            try:
                if not cascading:  # which cannot be changed within a transaction
                    connection.execute("PRAGMA foreign_keys = OFF")
                self.begin(patience)
                yield connection
                connection.execute("COMMIT")
                self.in_log += 1
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

    def begin(self, patience: float | None = None) -> None:
        """Take the file's write lock; SQLite itself could only be told beforehand how long to wait for others."""
        self._patiently(lambda: self.connection.execute("BEGIN IMMEDIATE"), patience)

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Whether no other thread writes; then none does meanwhile."""
        free = self._write_lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._write_lock.release()

    def fold_log(self) -> None:
        """Take what is in the log over into the file, before SQLite does so in the midst of a commit.

        The log is then written from its beginning; to sync what makes a file longer takes twice as long. Where
        another thread writes, that is left for later.
        """
        if self.in_log < LOG_COMMITS:
            return
        with self.if_free() as free:
            if not free:
                return
            try:
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
                self.in_log = 0
            except sqlite3.Error as error:
                self._failure(error, writing=True)  # the next commit is told, if it matters to it

    def vacuum(self) -> None:
        """Write the file anew without what is free in it."""
        with self._write_lock:
            if self._refusal is not None:
                raise StoreError(self._refusal)
            try:
                self._patiently(lambda: self.connection.execute("VACUUM"))
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                self.in_log = 0
            except sqlite3.Error as error:
                raise self._failure(error, writing=True) from error

    def end_log(self) -> None:
        """Take what is in the log over into the file and remove the log."""
        with self._write_lock, self._readers_lock:
            while self._readers:
                self._readers.pop().close()
            try:
                self._patiently(lambda: self.connection.execute("PRAGMA journal_mode = DELETE").fetchone())
            except sqlite3.Error as error:
                raise self._failure(error, writing=True) from error

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
            require_store(connection, self.path)
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

    def _opened_for_reading(self) -> sqlite3.Connection:
        self._refusal = f"the store {self.path} is open for reading only"
        try:
            if self.path.is_dir():
                raise self._is_folder()
            self._place = reading_place(self.path, self._busy_seconds)
            return self._connected()
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._place is not None:
            return connect_uri(self._place.uri, self._busy_seconds)
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
            raise self._is_folder()
        for place, what in ((self.path, "the store"), (self.path.parent, "the folder of the store,")):
            if place.exists() and not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                raise StoreError(f"{what} {place} is read-only; make it writable, or name another store")

    def _is_folder(self) -> StoreError:
        return StoreError(f"the store {self.path} is a folder; name a file in it, such as {self.path / 'store.db'}")

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

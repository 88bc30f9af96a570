"""Opening a SQLite store to read it, where it may be impossible or wrong to write.

Nothing is created next to the store and nothing in it changes. What a write-ahead log holds is always read too: where
SQLite cannot use the log in place, a temporary copy of both files is read. The same holds for the schema of an earlier
version: the copy is migrated, not the store.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from gradeline.errors import StoreError
from gradeline.store.migrations import APPLICATION_ID, MIGRATIONS, migrate, version_of

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory


class ReadingPlace(NamedTuple):
    """Where the data of a store can be read."""

    uri: str
    copy: TemporaryDirectory[str] | None = None
    """Deleted when the store is closed."""
    note: str | None = None
    """What the user should know about it."""


def reading_place(path: Path, busy_seconds: float) -> ReadingPlace:
    """Where to read the store in that file, which exists. `sqlite3.Error` where it is not a database."""
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise StoreError(f"the store {path} cannot be read; make the file readable for you, or name another store")
    place = _in_place(path)
    with closing(connect_uri(place.uri, busy_seconds)) as connection:
        version = require_store(connection, path)
        if version == len(MIGRATIONS):
            return place
        copied = _copied(connection, place)
    note = None
    if version:
        note = (
            f"the store {path} has the schema of an earlier version ({version}, now {len(MIGRATIONS)}): a temporary"
            " copy was read; the next run in it updates it"
        )
    return copied._replace(note=note)


def connect_uri(uri: str, busy_seconds: float) -> sqlite3.Connection:
    """A connection that reads."""
    connection = sqlite3.connect(
        uri, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.execute("PRAGMA query_only = ON")
    return connection


def require_store(connection: sqlite3.Connection, path: Path) -> int:
    """The version of the schema; `StoreError` for the database of another program, or of a newer version."""
    # in this order: what another process makes of a fresh file meanwhile has tables and our mark at once
    empty = not _tables(connection)
    found = connection.execute("PRAGMA application_id").fetchone()[0]
    if found != APPLICATION_ID and not (empty and found == 0):
        raise StoreError(f"{path} is a SQLite database of another program; name another file for the store")
    version = version_of(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the store {path} was written by a newer gradeline (its schema is {version}, this one knows"
            f" {len(MIGRATIONS)}); upgrade with: pip install --upgrade gradeline"
        )
    return version


def _tables(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None


def _in_place(path: Path) -> ReadingPlace:
    log, index = (path.with_name(f"{path.name}-{suffix}") for suffix in ("wal", "shm"))
    if all(os.access(place, os.W_OK) for place in (path, path.parent)):
        return ReadingPlace(_uri(path, "mode=rw"))  # the last one to close the log removes it
    if not log.exists() or not log.stat().st_size:
        # without a log no process has the store open; SQLite would want to create one to read it
        return ReadingPlace(_uri(path, "immutable=1"))
    uri = _uri(path, "mode=ro")
    try:
        if index.exists():
            with closing(connect_uri(uri, 0.0)) as connection:
                _tables(connection)
            return ReadingPlace(uri)
    except sqlite3.OperationalError:
        pass  # the index cannot be used from here
    return _copy_of_files(path, log)


def _copy_of_files(path: Path, log: Path) -> ReadingPlace:
    import shutil  # 3 ms, and few stores are copied

    folder = _temporary_folder()
    copied = Path(folder.name) / "store.db"
    try:
        shutil.copyfile(path, copied)
        shutil.copyfile(log, copied.with_name("store.db-wal"))
    except OSError as error:
        folder.cleanup()
        raise StoreError(
            f"the store {path} has changes in {log.name} that cannot be copied to be read ({error.strerror});"
            " make its folder writable, or name another store"
        ) from error
    return ReadingPlace(_uri(copied, "mode=rw"), folder)


def _copied(connection: sqlite3.Connection, place: ReadingPlace) -> ReadingPlace:
    """A copy with the newest schema."""
    folder = _temporary_folder()
    copied = Path(folder.name) / "store.db"
    try:
        with closing(sqlite3.connect(copied, isolation_level=None)) as new:
            connection.backup(new)
            new.execute("PRAGMA journal_mode = WAL")
            migrate(new)
    except BaseException:
        folder.cleanup()
        raise
    if place.copy is not None:
        place.copy.cleanup()
    return ReadingPlace(_uri(copied, "mode=rw"), folder)


def _temporary_folder() -> TemporaryDirectory[str]:
    from tempfile import TemporaryDirectory  # with shutil, as above

    return TemporaryDirectory(prefix="gradeline-reading-")


def _uri(path: Path, option: str) -> str:
    return f"file:{quote(str(path.absolute()))}?{option}"

"""Stores for cases, runs, responses and grades: in memory, in a SQLite file or in PostgreSQL.

Each name is imported on first use, so that importing this package loads no database.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gradeline.errors import ConfigError, Problem
from gradeline.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from gradeline.errors import StoreError
    from gradeline.model.grade import Grade as Score
    from gradeline.model.protocols import Storage
    from gradeline.model.record import Record as EvaluationResult
    from gradeline.model.run import Counts, GraderCounts, Run, RunGrader, StoredKey
    from gradeline.model.run import Run as EvaluationRun
    from gradeline.model.sample import TestCase
    from gradeline.store.postgres import PostgresStorage
    from gradeline.store.rows import new_id
    from gradeline.store.sqlite import InMemoryStorage, SqliteStorage
    from gradeline.store.writer import Writer

__all__ = [
    "Counts",
    "EvaluationResult",
    "EvaluationRun",
    "GraderCounts",
    "InMemoryStorage",
    "PostgresStorage",
    "Run",
    "RunGrader",
    "Score",
    "SqliteStorage",
    "StoreError",
    "StoredKey",
    "TestCase",
    "Writer",
    "new_id",
    "open_storage",
]

_HOMES = {
    "Counts": "gradeline.model.run:Counts",
    "EvaluationResult": "gradeline.model.record:Record",
    "EvaluationRun": "gradeline.model.run:Run",
    "GraderCounts": "gradeline.model.run:GraderCounts",
    "InMemoryStorage": "gradeline.store.sqlite:InMemoryStorage",
    "PostgresStorage": "gradeline.store.postgres:PostgresStorage",
    "Run": "gradeline.model.run:Run",
    "RunGrader": "gradeline.model.run:RunGrader",
    "Score": "gradeline.model.grade:Grade",
    "SqliteStorage": "gradeline.store.sqlite:SqliteStorage",
    "StoreError": "gradeline.errors:StoreError",
    "StoredKey": "gradeline.model.run:StoredKey",
    "TestCase": "gradeline.model.sample:TestCase",
    "Writer": "gradeline.store.writer:Writer",
    "new_id": "gradeline.store.rows:new_id",
}

StoreMode = Literal["create", "existing", "read"]

_SCHEMES = "sqlite:///path, a path, postgresql://host/database, or memory://"
_NEEDS_EXTRA = "a PostgreSQL store needs the extra 'postgres': pip install 'gradeline[postgres]'"


def default_store() -> str:
    """The default store: ``GRADELINE_STORE``, or else ``.gradeline/store.db`` in the project folder."""
    return os.environ.get("GRADELINE_STORE") or str(project_folder() / ".gradeline" / "store.db")


def project_folder() -> Path:
    """The nearest parent folder with a store, or else the current folder."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".gradeline").is_dir()), here)


def open_storage(url: str | Path, *, mode: StoreMode = "create") -> Storage:
    """Open a store by URL: ``sqlite:///path`` (a fourth slash makes it absolute), a bare path,
    ``postgresql://user@host/database`` or ``memory://``.

    ``mode`` "existing" and "read" create nothing: without a store they open an empty one in memory. "read" also opens
    a store without write permission, and never writes.

    An invalid URL is a `ConfigError`, whose message never contains the URL (it may hold a password); a store that
    cannot be opened is a `StoreError`.
    """
    text = str(url)
    scheme, separator, rest = text.partition("://")
    if text == "memory://":
        return _empty()
    if ":memory:" in text or text in ("sqlite://", "sqlite:///"):
        raise _wrong("a SQLite store needs a file: sqlite:///path; for a store in memory, write memory://")
    if separator and scheme.partition("+")[0] in ("postgresql", "postgres"):
        return _postgres(text, mode)
    if separator and (scheme != "sqlite" or not rest.startswith("/")):
        raise _wrong(f"invalid store {scheme}://; write {_SCHEMES}")
    if not text.strip() or (text.startswith("sqlite:") and not separator):
        raise _wrong(f"invalid store {text!r}; write {_SCHEMES}")
    path = Path(rest[1:] if separator else text).expanduser()
    if mode != "create" and not path.exists():
        return _empty()
    from gradeline.store.sqlite import SqliteStorage  # loaded only if needed

    return SqliteStorage(path, read_only=mode == "read")


def _empty() -> Storage:
    from gradeline.store.sqlite import InMemoryStorage  # loaded only if needed

    return InMemoryStorage()


def _postgres(url: str, mode: StoreMode) -> Storage:
    try:
        from gradeline.store.postgres import PostgresStorage  # loaded only if needed
        from gradeline.store.postgres_schema import NoStoreError
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise _wrong(_NEEDS_EXTRA) from None
    try:
        return PostgresStorage(url, mode=mode)
    except NoStoreError:
        return _empty()


def _wrong(message: str) -> ConfigError:
    return ConfigError(Problem("store", message))


_resolve, __dir__ = lazy_exports(globals(), _HOMES)


def __getattr__(name: str) -> object:
    try:
        return _resolve(name)
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise ImportError(_NEEDS_EXTRA, name="asyncpg") from error

"""Where a command finds its store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gradeline.cli.settings import Settings
from gradeline.cli.terminal import say
from gradeline.errors import ConfigError, Problem
from gradeline.model import Storage
from gradeline.store import StoreMode, open_storage

if TYPE_CHECKING:
    from gradeline.store import PostgresStorage, SqliteStorage


@contextmanager
def open_store(settings: Settings, mode: StoreMode = "create") -> Iterator[Storage]:
    """The store that the call names, else that of the project folder; see `gradeline.store.open_storage`."""
    with open_storage(store_url(settings), mode=mode) as storage:
        note: str | None = getattr(storage, "note", None)
        if note is not None:
            say(f"note: {note}")
        yield storage


def in_database(storage: Storage) -> SqliteStorage | PostgresStorage:
    """The same store, where it is one in a database; else `ConfigError`."""
    from gradeline.store import SqliteStorage

    if isinstance(storage, SqliteStorage):
        return storage
    from gradeline.store import PostgresStorage  # which needs its driver

    if isinstance(storage, PostgresStorage):
        return storage
    raise ConfigError(Problem("store", f"{type(storage).__name__} is not a store in a database"))


def store_url(settings: Settings) -> str:
    """Where the store is that the call names, else that of the project folder. It may hold a password."""
    return settings.store or os.environ.get("GRADELINE_STORE") or str(_project_folder() / ".gradeline" / "store.db")


def store_file(settings: Settings) -> str | None:
    """The file of a SQLite store; None for another store, whose URL may hold a password."""
    scheme, separator, path = store_url(settings).partition("://")
    if separator:
        return path[1:] if scheme == "sqlite" else None
    return scheme


def _project_folder() -> Path:
    """The nearest folder upwards that has a store, else this one."""
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / ".gradeline").is_dir()), here)

"""The store that a command works on, and the service's tables in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gradeline.cli.options import CliSettings, current_settings
from gradeline.cli.terminal import print_message
from gradeline.errors import ConfigError, Problem

if TYPE_CHECKING:
    from gradeline.model import Storage
    from gradeline.service.audit import Recorder
    from gradeline.service.auth import ApiKeys
    from gradeline.service.secrets import Secrets
    from gradeline.service.settings import ServeSettings
    from gradeline.store import PostgresStorage, SqliteStorage, StoreMode
    from gradeline.store.database import Database


def store_url(settings: CliSettings) -> str:
    """The store that the command names, else the project's. The URL may hold a password."""
    from gradeline.store import default_store  # --help must not load the store

    return settings.store or default_store()


def store_file(settings: CliSettings) -> str | None:
    """The file of a SQLite store; None for other stores, whose URL may hold a password."""
    scheme, separator, path = store_url(settings).partition("://")
    if separator:
        return path[1:] if scheme == "sqlite" else None
    return scheme


@contextmanager
def open_store(settings: CliSettings, mode: StoreMode = "create") -> Iterator[Storage]:
    """The store of the command; see `gradeline.store.open_storage`."""
    from gradeline.store import open_storage

    with open_storage(store_url(settings), mode=mode) as storage:
        note: str | None = getattr(storage, "note", None)
        if note is not None:
            print_message(f"note: {note}")
        yield storage


def in_database(storage: Storage) -> SqliteStorage | PostgresStorage:
    """The same store, where it is in a database; else `ConfigError`."""
    from gradeline.store import SqliteStorage

    if isinstance(storage, SqliteStorage):
        return storage
    from gradeline.store import PostgresStorage  # needs its driver

    if isinstance(storage, PostgresStorage):
        return storage
    raise ConfigError(Problem("store", f"{type(storage).__name__} is not a store in a database"))


class ServiceStore(NamedTuple):
    """The service's tables of a store, for `gradeline keys` and `gradeline secrets`."""

    database: Database
    settings: ServeSettings

    def keys(self) -> ApiKeys:
        from gradeline.service.auth import ApiKeys

        return ApiKeys(self.database, self.settings)

    def secrets(self) -> Secrets:
        from gradeline.service.secrets import Secrets

        return Secrets(self.database, self.settings)

    def recorder(self, action: str) -> Recorder:
        """Records an action of the command line in the audit log."""
        from gradeline.service.audit import Audit
        from gradeline.service.auth import Caller, KeyScope

        return Audit(self.database).recorder(Caller(None, KeyScope.ADMIN, "command line"), action)


@contextmanager
def open_service_store(secret_key_file: Path | None) -> Iterator[ServiceStore]:
    """The store of the command, created if it does not exist."""
    with open_store(current_settings()) as storage:
        yield _service_store(storage, secret_key_file)


@contextmanager
def existing_service_store() -> Iterator[ServiceStore | None]:
    """The store of the command; None, and nothing is created, if it does not exist."""
    from gradeline.store import InMemoryStorage

    settings = current_settings()
    with open_store(settings, "existing") as storage:
        absent = isinstance(storage, InMemoryStorage) and store_url(settings) != "memory://"
        yield None if absent else _service_store(storage, None)


def _service_store(storage: Storage, secret_key_file: Path | None) -> ServiceStore:
    from gradeline.service.auth import read_secret_key
    from gradeline.service.service import database_of
    from gradeline.service.settings import ServeSettings

    return ServiceStore(database_of(storage), ServeSettings(secret_key=read_secret_key(secret_key_file)))

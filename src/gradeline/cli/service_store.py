"""A store as the commands that administer the service use it: `gradeline keys` and `gradeline secrets`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gradeline.cli.settings import current_settings

if TYPE_CHECKING:
    from gradeline.model import Storage
    from gradeline.service.audit import Recorder
    from gradeline.service.keys import Keys
    from gradeline.service.secrets import Secrets
    from gradeline.service.settings import ServeSettings
    from gradeline.store.database import Database

secret_key_option = click.option(
    "--secret-key-file",
    type=click.Path(path_type=Path),
    help="Holds the service's secret. Default: the variable GRADELINE_SECRET_KEY.",
)


class ServiceStore(NamedTuple):
    """The service's tables of a store."""

    database: Database
    settings: ServeSettings

    def keys(self) -> Keys:
        """The API keys of the store."""
        from gradeline.service.keys import Keys

        return Keys(self.database, self.settings)

    def secrets(self) -> Secrets:
        """The secrets of the store."""
        from gradeline.service.secrets import Secrets

        return Secrets(self.database, self.settings)

    def recorder(self, action: str) -> Recorder:
        """Writes to the audit log that the command line does this."""
        from gradeline.service.access import Scope
        from gradeline.service.audit import Audit
        from gradeline.service.caller import Caller

        return Audit(self.database).recorder(Caller(None, Scope.ADMIN, "command line"), action)


@contextmanager
def opened_service_store(secret_key_file: Path | None) -> Iterator[ServiceStore]:
    """The store of the command, which is created where it does not exist."""
    from gradeline.cli.stores import open_store

    with open_store(current_settings()) as storage:
        yield _service_store(storage, secret_key_file)


@contextmanager
def existing_service_store() -> Iterator[ServiceStore | None]:
    """The store of the command; None where it does not exist, and none is created."""
    from gradeline.cli.stores import open_store, store_url
    from gradeline.store import InMemoryStorage

    settings = current_settings()
    with open_store(settings, "existing") as storage:
        absent = isinstance(storage, InMemoryStorage) and store_url(settings) != "memory://"
        yield None if absent else _service_store(storage, None)


def _service_store(storage: Storage, secret_key_file: Path | None) -> ServiceStore:
    from gradeline.service.master import read_secret_key
    from gradeline.service.settings import ServeSettings
    from gradeline.service.state import database_of

    return ServiceStore(database_of(storage), ServeSettings(secret_key=read_secret_key(secret_key_file)))

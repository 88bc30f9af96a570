"""Whether a database holds a store of ours, and which version; brings it up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradeline.errors import StoreError
from gradeline.store.postgres_link import LONG_SECONDS, SCHEMA, take_time
from gradeline.store.postgres_migrations import MIGRATIONS

if TYPE_CHECKING:
    from gradeline.store.postgres_link import Connection
    from gradeline.store.postgres_migrations import Migration

_LOCK = 0x67726C6E
"""Of all advisory locks of the database, the one under which its schema changes."""
_OLDEST_SERVER = 12


class NoStoreError(StoreError):
    """The database holds no store, and none is to be created."""


async def version_of(connection: Connection) -> int:
    """How many migrations the store has seen."""
    if "schema_version" not in await _tables(connection):
        return 0
    return int(await connection.fetchval(f"SELECT version FROM {SCHEMA}.schema_version"))  # noqa: S608 - a constant


async def require_ours(connection: Connection, place: str) -> None:
    """Refuse what is not to be touched, before anything is written."""
    server = connection.get_server_version()
    if server.major < _OLDEST_SERVER:
        raise StoreError(
            f"the store {place} is on PostgreSQL {server.major}; gradeline needs {_OLDEST_SERVER} or newer"
        )
    encoding = await connection.fetchval("SELECT current_setting('server_encoding')")
    if encoding != "UTF8":
        raise StoreError(
            f"the database of the store {place} has the encoding {encoding}, which cannot hold every text;"
            " make another with: createdb --encoding UTF8 --template template0 NAME"
        )
    version = await version_of(connection)
    if version > len(MIGRATIONS):
        raise StoreError(
            f"the store {place} was written by a newer gradeline (its schema is {version}, this one knows"
            f" {len(MIGRATIONS)}); upgrade with: pip install --upgrade gradeline"
        )
    tables = await _tables(connection)
    if tables and "schema_version" not in tables:
        raise StoreError(
            f"the database of the store {place} has a schema {SCHEMA!r} of another program; name another database"
        )


async def migrate(connection: Connection, migrations: Sequence[Migration] | None = None) -> None:
    """Bring the store to the newest schema, all steps or none. Within a transaction.

    Another process may be at the same work: who gets the lock second finds it done.
    """
    steps = MIGRATIONS if migrations is None else migrations
    if await version_of(connection) >= len(steps):
        return
    await take_time(connection)
    await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK, timeout=LONG_SECONDS)
    version = await version_of(connection)
    if version == 0:
        if not await connection.fetchval("SELECT 1 FROM pg_namespace WHERE nspname = $1", SCHEMA):
            await connection.execute(f"CREATE SCHEMA {SCHEMA}")
        await connection.execute(f"CREATE TABLE {SCHEMA}.schema_version (version integer NOT NULL)")
        await connection.execute(f"INSERT INTO {SCHEMA}.schema_version VALUES (0)")  # noqa: S608 - a constant
    for step in steps[version:]:
        await step(connection)
    await connection.execute(f"UPDATE {SCHEMA}.schema_version SET version = $1", max(version, len(steps)))  # noqa: S608


async def _tables(connection: Connection) -> set[str]:
    """Asked of the catalogue: functions such as to_regclass may answer from before another process's commit."""
    rows = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", SCHEMA)
    return {row[0] for row in rows}

"""The first step of deleting a run in SQLite: what hides it."""

from __future__ import annotations

import sqlite3

from gradeline.store.deletion import TABLES
from gradeline.store.rows import parent_in_use


def hide_run(connection: sqlite3.Connection, run: str) -> bool:
    """Drop a run with all that refers to it but for its records; whether it was there.

    The connection must not look after references meanwhile, or it would delete the records too, in one go.
    """
    children = connection.execute("SELECT id FROM runs WHERE parent = ?1 AND id <> ?1 ORDER BY n", (run,))
    if names := [name for (name,) in children]:
        raise parent_in_use(run, names)
    if not connection.execute("DELETE FROM runs WHERE id = ?", (run,)).rowcount:
        return False
    for table, column in _referring(connection):
        connection.execute(f'DELETE FROM "{table}" WHERE "{column}" = ?', (run,))  # noqa: S608 - names of our tables
    connection.execute("INSERT INTO deleted_runs (run) VALUES (?)", (run,))
    return True


def _referring(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """The other tables that refer to runs, the service's among them, with the column that does."""
    found = connection.execute(
        """SELECT tables.name, reference."from"
        FROM sqlite_master AS tables, pragma_foreign_key_list(tables.name) AS reference
        WHERE tables.type = 'table' AND reference."table" = 'runs' AND tables.name <> 'runs'"""
    )
    return [(table, column) for table, column in found if table not in TABLES]

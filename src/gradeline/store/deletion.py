"""Deleting a run: it is gone from every list at once, and its rows go afterwards, some at a time.

A run of a million results is no long transaction then, which would keep other writers waiting and could not be ended
halfway. What is left of a run whose deletion was interrupted is named in ``deleted_runs``, and goes when a store is
opened or another run is deleted.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from gradeline.errors import StoreError
from gradeline.store.database import Transaction
from gradeline.store.rows import parent_in_use

ROWS_AT_ONCE = 10_000
"""Of one transaction; a case's own rows are not split."""
RECORD_TABLES = ("grade_history", "response_history", "grades", "responses", "clusters", "samples")
"""Those that grow with a run's cases. SQLite wants responses to go before their samples."""

_NEXT = {
    table: f"SELECT max(case_key) FROM (SELECT case_key FROM {table} WHERE run = ? AND case_key >= ?"  # noqa: S608 - of constants
    " ORDER BY case_key LIMIT ?) AS following"
    for table in RECORD_TABLES
}
_DELETE = {
    table: f"DELETE FROM {table} WHERE run = ? AND case_key >= ? AND case_key <= ?"  # noqa: S608 - of constants
    for table in RECORD_TABLES
}

Transact: TypeAlias = Callable[[Callable[[Transaction], Any]], Any]


def remove_rows(transact: Transact, run: str) -> Iterator[None]:
    """Removes the rows of a run that is gone from the lists; gives control back after each transaction.

    Several may be at it, and it may be left off at any point and begun again.
    """
    for table in RECORD_TABLES:
        after: str | None = ""
        while after is not None:
            after = transact(partial(_remove_some, run=run, table=table, after=after))
            if after is not None:
                yield
    transact(lambda transaction: transaction.run("DELETE FROM deleted_runs WHERE run = ?", run))


def _remove_some(transaction: Transaction, run: str, table: str, after: str) -> str | None:
    """Gives where to go on from: a search from the beginning would pass over what was just deleted, ever again."""
    ((last,),) = transaction.run(_NEXT[table], run, after, ROWS_AT_ONCE)
    if last is None:
        return None
    transaction.run(_DELETE[table], run, after, last)
    return str(last)


def deletion_unfinished(run: str) -> StoreError:
    """A run was saved under the id of one whose rows are not gone yet."""
    return StoreError(
        f"the run {run!r} was deleted and its rows are not all removed yet; delete_run({run!r}) finishes that,"
        " or take another id",
        retryable=True,
    )


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
    return [(table, column) for table, column in found if table not in RECORD_TABLES]

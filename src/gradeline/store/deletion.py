"""Deleting a run: it is gone from every list at once, and its rows go afterwards, some at a time.

A run of a million results is no long transaction then, which would keep other writers waiting and could not be ended
halfway. What is left of a run whose deletion was interrupted is named in ``deleted_runs``, and goes when a store is
opened or another run is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

from gradeline.errors import StoreError
from gradeline.store.database import Transaction

ROWS_AT_ONCE = 10_000
"""Of one transaction; a case's own rows are not split."""
TABLES = ("grade_history", "response_history", "grades", "responses", "clusters", "samples")
"""Those that grow with a run's cases. SQLite wants responses to go before their samples."""

_NEXT = {
    table: f"SELECT max(case_key) FROM (SELECT case_key FROM {table} WHERE run = ? AND case_key >= ?"  # noqa: S608 - of constants
    " ORDER BY case_key LIMIT ?) AS following"
    for table in TABLES
}
_DELETE = {
    table: f"DELETE FROM {table} WHERE run = ? AND case_key >= ? AND case_key <= ?"  # noqa: S608 - of constants
    for table in TABLES
}

Transact: TypeAlias = Callable[[Callable[[Transaction], Any]], Any]


def removing(transact: Transact, run: str) -> Iterator[None]:
    """Removes the rows of a run that is gone from the lists; gives control back after each transaction.

    Several may be at it, and it may be left off at any point and begun again.
    """
    for table in TABLES:
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


def being_deleted(run: str) -> StoreError:
    """A run was saved under the id of one whose rows are not gone yet."""
    return StoreError(
        f"the run {run!r} was deleted and its rows are not all removed yet; delete_run({run!r}) finishes that,"
        " or take another id",
        retryable=True,
    )

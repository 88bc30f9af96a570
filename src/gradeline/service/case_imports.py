"""Imports of many test cases, in batches so that other writers can work, and visible completely or not at all.

The rows of an import are first staged in a table of their own, in batches. A short transaction then marks the import as
complete, and its rows are moved to the test cases, again in batches. If the process dies before the mark, the staged
rows are removed. If it dies afterwards, the next start, or the next import of that size, moves the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from time import monotonic, sleep
from uuid import uuid4

from gradeline.errors import StoreError
from gradeline.service.errors import Code, ServiceError
from gradeline.store.database import Database, Dialect, Transaction
from gradeline.store.leases import LEASE_S, is_alive, seconds_between, this_process
from gradeline.store.queries import copy_test_cases, insert_rows, order_new_test_cases

BATCH = 1_000
"""Rows of one transaction."""
_PAUSE_SHARE = 0.25
"""Pause after a batch, as a share of its duration, for writers of other processes."""
_MAX_PAUSE_S = 0.1
_RETRY_FOR_S = 30.0
"""Time for which a complete import is retried while the store cannot be written."""
_RETRY_S = 1.0
_NOW = "CAST(CURRENT_TIMESTAMP AS TEXT)"

StoredCase = tuple[str, str]
"""The id of a case, and its stored form."""


def create_imports(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run(
        "CREATE TABLE case_imports (id TEXT PRIMARY KEY, owner TEXT NOT NULL, at TEXT NOT NULL,"
        " complete INTEGER NOT NULL, created_by TEXT)"
    )
    transaction.run(
        f"CREATE TABLE imported_cases (n {dialect.serial}, import TEXT NOT NULL, id TEXT NOT NULL,"
        " test_case TEXT NOT NULL)"
    )
    transaction.run("CREATE INDEX imported_cases_of_import ON imported_cases (import, n)")


class CaseImports:
    """The imports of a store that are in progress."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._owner = f"{this_process()}|{uuid4().hex[:8]}"
        self._in_progress: set[str] = set()

    def store(
        self, rows: Iterator[StoredCase], created_by: str | None, record: Callable[[Transaction, int], None]
    ) -> int:
        """Store all rows and return their number; ``record`` is called in the transaction that completes the import."""
        self.finish_abandoned()
        import_id = uuid4().hex
        self._in_progress.add(import_id)
        try:
            return self._import(import_id, rows, created_by, record)
        finally:
            self._in_progress.discard(import_id)

    def _import(
        self,
        import_id: str,
        rows: Iterator[StoredCase],
        created_by: str | None,
        record: Callable[[Transaction, int], None],
    ) -> int:
        self._database.transact(
            lambda transaction: transaction.run(
                f"INSERT INTO case_imports (id, owner, at, complete, created_by) VALUES (?, ?, {_NOW}, 0, ?)",  # noqa: S608
                import_id,
                self._owner,
                created_by,
            )
        )
        try:
            stored = self._stage(import_id, rows)
            self._database.transact(lambda transaction: _complete(transaction, import_id, stored, record))
        except BaseException:
            with suppress(StoreError):
                self._discard(import_id)
            raise
        self._publish_with_retries(import_id)
        return stored

    def finish_abandoned(self) -> None:
        """Finish complete imports whose process is gone, and remove the rows of incomplete ones."""
        for import_id, owner, at, now, complete in self._database.read(
            f"SELECT id, owner, at, {_NOW}, complete FROM case_imports"  # noqa: S608 - constants
        ):
            if self._is_active(import_id, owner, seconds_between(at, now)):
                continue
            if complete:
                self._publish(import_id)
            else:
                self._discard(import_id)

    def _is_active(self, import_id: str, owner: str, silent_s: float) -> bool:
        if owner == self._owner:
            return import_id in self._in_progress
        alive = is_alive(owner.partition("|")[0])
        return silent_s < LEASE_S if alive is None else alive

    def _stage(self, import_id: str, rows: Iterator[StoredCase]) -> int:
        stored = 0
        while chunk := list(islice(rows, BATCH)):
            began = monotonic()
            staged = [(import_id, case, text) for case, text in chunk]

            def work(transaction: Transaction, staged: list[tuple[str, str, str]] = staged) -> None:
                _require(transaction, import_id)
                insert_rows(transaction, "imported_cases", "import, id, test_case", staged)

            self._database.transact(work)
            stored += len(chunk)
            _let_others_write(began)
        return stored

    def _publish_with_retries(self, import_id: str) -> None:
        deadline = monotonic() + _RETRY_FOR_S
        while True:
            try:
                return self._publish(import_id)
            except StoreError:
                if monotonic() >= deadline:
                    raise
            sleep(_RETRY_S)

    def _publish(self, import_id: str) -> None:
        began = monotonic()
        while self._database.transact(lambda transaction: self._move_some(transaction, import_id)):
            _let_others_write(began)
            began = monotonic()

    def _move_some(self, transaction: Transaction, import_id: str) -> bool:
        """Move a batch; False if nothing is left."""
        found = transaction.run(
            f"UPDATE case_imports SET at = {_NOW} WHERE id = ? RETURNING created_by",  # noqa: S608 - constants
            import_id,
        )
        if not found:
            return False
        ((last,),) = transaction.run(
            "SELECT max(n) FROM (SELECT n FROM imported_cases WHERE import = ? ORDER BY n LIMIT ?) AS following",
            import_id,
            BATCH,
        )
        if last is None:
            transaction.run("DELETE FROM case_imports WHERE id = ?", import_id)
            return False
        order_new_test_cases(transaction)
        copy_test_cases(
            transaction,
            "SELECT imported_cases.id, test_case, created_by FROM imported_cases"
            " JOIN case_imports ON case_imports.id = import WHERE import = ? AND n <= ? ORDER BY n",
            import_id,
            last,
        )
        transaction.run("DELETE FROM imported_cases WHERE import = ? AND n <= ?", import_id, last)
        return True

    def _discard(self, import_id: str) -> None:
        """Remove an incomplete import, in batches."""

        def work(transaction: Transaction) -> bool:
            removed = transaction.run(
                "DELETE FROM imported_cases WHERE n IN"
                " (SELECT n FROM imported_cases WHERE import = ? ORDER BY n LIMIT ?) RETURNING n",
                import_id,
                BATCH,
            )
            if not removed:
                transaction.run("DELETE FROM case_imports WHERE id = ?", import_id)
            return bool(removed)

        while self._database.transact(work):
            pass


def _complete(
    transaction: Transaction, import_id: str, stored: int, record: Callable[[Transaction, int], None]
) -> None:
    _require(transaction, import_id)
    transaction.run("UPDATE case_imports SET complete = 1 WHERE id = ?", import_id)
    record(transaction, stored)


def _require(transaction: Transaction, import_id: str) -> None:
    """Lock the import until the transaction ends; another process may have removed it, believing this one dead."""
    statement = f"UPDATE case_imports SET at = {_NOW} WHERE id = ? RETURNING id"  # noqa: S608 - constants
    if not transaction.run(statement, import_id):
        raise ServiceError(Code.STORAGE_UNAVAILABLE, "The import took too long and was removed; nothing was stored")


def _let_others_write(began: float) -> None:
    sleep(min(_MAX_PAUSE_S, (monotonic() - began) * _PAUSE_SHARE))

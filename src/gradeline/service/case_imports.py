"""Imports of many test cases: stored in batches, so that other writers get their turn, and seen all or not at all.

The rows of an import are first put into a table of their own, some at a time. One short transaction then marks the
import complete, and from there its rows are moved to the other cases, again some at a time. Where the process dies
before the mark nothing of the file is ever seen, and what it left is removed. Where it dies after the mark, the next
start, or the next import of that size, moves the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from time import monotonic, sleep
from uuid import uuid4

from gradeline.errors import StoreError
from gradeline.service.failures import ApiError, Code
from gradeline.store.database import Database, Dialect, Transaction, Value
from gradeline.store.owner import LEASE_S, is_alive, seconds_between, this_process

BATCH = 1_000
"""Rows of one transaction."""
_ROWS_OF_STATEMENT = 500
_SHARE_OF_OTHERS = 0.25
"""Of the time of a batch, which writers of other processes get to take their turn."""
_LONGEST_PAUSE_S = 0.1
_PATIENCE_S = 30.0
"""How long a store that cannot be written is tried again once an import is complete."""
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


def insert_rows(transaction: Transaction, table: str, columns: str, rows: Iterable[tuple[Value, ...]]) -> None:
    """Add rows to one of our tables."""
    source = iter(rows)
    while chunk := list(islice(source, _ROWS_OF_STATEMENT)):
        places = ", ".join([f"({', '.join('?' * len(chunk[0]))})"] * len(chunk))
        values = [value for row in chunk for value in row]
        transaction.run(f"INSERT INTO {table} ({columns}) VALUES {places}", *values)  # noqa: S608 - made of constants


class CaseImports:
    """The imports of a store that are under way."""

    def __init__(self, database: Database, take_turn: Callable[[Transaction], None]) -> None:
        """``take_turn`` makes new cases be numbered in the order in which they are committed."""
        self._database = database
        self._take_turn = take_turn
        self._owner = f"{this_process()}|{uuid4().hex[:8]}"
        self._under_way: set[str] = set()

    def store(
        self, rows: Iterator[StoredCase], created_by: str | None, record: Callable[[Transaction, int], None]
    ) -> int:
        """Store all rows, and give their number; ``record`` is called in the transaction that decides it."""
        self.finish_abandoned()
        import_id = uuid4().hex
        self._under_way.add(import_id)
        try:
            return self._stored(import_id, rows, created_by, record)
        finally:
            self._under_way.discard(import_id)

    def _stored(
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
        self._publish_patiently(import_id)
        return stored

    def finish_abandoned(self) -> None:
        """Move the rest of complete imports whose process is gone, and remove what incomplete ones left."""
        for import_id, owner, at, now, complete in self._database.read(
            f"SELECT id, owner, at, {_NOW}, complete FROM case_imports"  # noqa: S608 - made of constants
        ):
            if self._is_worked_on(import_id, owner, seconds_between(at, now)):
                continue
            if complete:
                self._publish(import_id)
            else:
                self._discard(import_id)

    def _is_worked_on(self, import_id: str, owner: str, silent_s: float) -> bool:
        if owner == self._owner:
            return import_id in self._under_way
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

    def _publish_patiently(self, import_id: str) -> None:
        deadline = monotonic() + _PATIENCE_S
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
        """Move a batch; False when nothing is left."""
        found = transaction.run(
            f"UPDATE case_imports SET at = {_NOW} WHERE id = ? RETURNING created_by",  # noqa: S608 - made of constants
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
        self._take_turn(transaction)
        transaction.run(
            "INSERT INTO test_cases (id, test_case, created_by) SELECT imported_cases.id, test_case, created_by"
            " FROM imported_cases JOIN case_imports ON case_imports.id = import"
            " WHERE import = ? AND n <= ? ORDER BY n",
            import_id,
            last,
        )
        transaction.run("DELETE FROM imported_cases WHERE import = ? AND n <= ?", import_id, last)
        return True

    def _discard(self, import_id: str) -> None:
        """Remove an import that is not complete, some rows at a time."""

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
    """The import's row, locked until the transaction ends; another process may have taken this one for dead."""
    statement = f"UPDATE case_imports SET at = {_NOW} WHERE id = ? RETURNING id"  # noqa: S608 - made of constants
    if not transaction.run(statement, import_id):
        raise ApiError(Code.STORAGE_UNAVAILABLE, "The import took too long and was removed; nothing of it is stored")


def _let_others_write(began: float) -> None:
    sleep(min(_LONGEST_PAUSE_S, (monotonic() - began) * _SHARE_OF_OTHERS))

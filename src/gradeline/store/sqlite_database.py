"""The `Database` of a SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Lock
from typing import Literal, NamedTuple

from gradeline.errors import StoreError
from gradeline.store.database import Row, T, Transaction, Value


class SqliteDialect(NamedTuple):
    name: Literal["sqlite"] = "sqlite"
    serial: str = "INTEGER PRIMARY KEY AUTOINCREMENT"


class SqliteDatabase:
    """Uses the store's own connections: one writes, several read."""

    dialect = SqliteDialect()

    def __init__(
        self,
        reading: Callable[[], AbstractContextManager[sqlite3.Connection]],
        writing: Callable[..., AbstractContextManager[sqlite3.Connection]],
    ) -> None:
        """``writing`` takes ``cascading`` as `Link.writing` does."""
        self._reading = reading
        self._writing = writing

    def read(self, statement: str, *values: Value) -> list[Row]:
        with self._reading() as connection:
            return connection.execute(statement, values).fetchall()

    def transact(self, work: Callable[[Transaction], T]) -> T:
        with self._writing() as connection:
            return work(SqliteTransaction(connection))

    def snapshot(self, work: Callable[[Transaction], T]) -> T:
        with self._reading() as connection:
            connection.execute("BEGIN")
            try:
                return work(SqliteTransaction(connection))
            finally:
                connection.execute("ROLLBACK")

    def transact_in_bulk(self, work: Callable[[Transaction], T]) -> T:
        with self._writing(cascading=False) as connection, _ending(connection) as transaction:
            return work(transaction)


class SqliteTransaction:
    """A transaction that is open on a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: Value) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()


class _EndingTransaction(SqliteTransaction):
    """Refuses statements once it has ended: outside of a transaction each one would be committed by itself."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._lock = Lock()
        self._ended = False

    def run(self, statement: str, *values: Value) -> list[Row]:
        with self._lock:
            if self._ended:
                raise StoreError("the transaction has ended")
            return super().run(statement, *values)

    def end(self) -> None:
        with self._lock:
            self._ended = True


@contextmanager
def _ending(connection: sqlite3.Connection) -> Iterator[SqliteTransaction]:
    """A transaction whose statements may come from another thread, which does not notice at once that the one that
    began it was interrupted."""
    transaction = _EndingTransaction(connection)
    try:
        yield transaction
    finally:
        transaction.end()

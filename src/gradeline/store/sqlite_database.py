"""The `Database` of a SQLite store."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple

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
        writing: Callable[[], AbstractContextManager[sqlite3.Connection]],
    ) -> None:
        self._reading = reading
        self._writing = writing

    def read(self, statement: str, *values: Value) -> list[Row]:
        with self._reading() as connection:
            return connection.execute(statement, values).fetchall()

    def transact(self, work: Callable[[Transaction], T]) -> T:
        with self._writing() as connection:
            return work(SqliteTransaction(connection))


class SqliteTransaction:
    """A transaction that is open on a connection."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: Value) -> list[Row]:
        return self._connection.execute(statement, values).fetchall()

"""SQL that SQLite and PostgreSQL both understand, for tables that stand beside those of runs.

Statements have ``?`` for their values. They keep to what both databases know: TEXT, INTEGER, BIGINT and DOUBLE
PRECISION columns, ``INSERT … ON CONFLICT``, ``RETURNING``, row values; flags are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Value: TypeAlias = str | int | float | None
Row: TypeAlias = tuple[Any, ...]
Step: TypeAlias = "Callable[[Transaction, Dialect], None]"
"""One step from a version of some tables to the next; a released one is never edited."""


class Dialect(Protocol):
    """What the databases write differently."""

    @property
    def name(self) -> Literal["sqlite", "postgresql"]: ...

    @property
    def serial(self) -> str:
        """The column type of a key that counts upwards by itself."""


class Transaction(Protocol):
    """Statements of which all are stored, or none."""

    def run(self, statement: str, *values: Value) -> list[Row]:
        """Run a statement, give the rows that it gives."""


class Database(Protocol):
    """The database of a store. Synchronous and thread-safe; `StoreError` where it fails."""

    @property
    def dialect(self) -> Dialect: ...

    def read(self, statement: str, *values: Value) -> list[Row]:
        """The rows of a query."""

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Do the work in one transaction, committed when this returns; an exception undoes it.

        It may be done twice where another process was in the way, so it must change nothing but the database.
        """

    def snapshot(self, work: Callable[[Transaction], T]) -> T:
        """Read in one transaction, which sees the database as it was at its beginning. Other processes may write
        meanwhile; the work may be repeated where the connection was lost."""

    def transact_in_bulk(self, work: Callable[[Transaction], T]) -> T:
        """As `transact`, for work that writes a whole store: without the time limit of a statement and, in SQLite,
        without checking references after each row."""


def migrate(database: Database, part: str, steps: Sequence[Step]) -> None:
    """Bring the tables of one part of the program to their newest version; processes may do it at the same time."""

    def advance(transaction: Transaction) -> None:
        transaction.run("INSERT INTO parts (name, version) VALUES (?, 0) ON CONFLICT (name) DO NOTHING", part)
        # the row stays locked until the steps are committed
        ((version,),) = transaction.run("UPDATE parts SET version = version WHERE name = ? RETURNING version", part)
        for step in steps[version:]:
            step(transaction, database.dialect)
        transaction.run("UPDATE parts SET version = ? WHERE name = ?", max(version, len(steps)), part)

    database.transact(advance)

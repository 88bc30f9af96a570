"""SQL that SQLite and PostgreSQL both understand, for tables that other parts of the program add to a store.

Statements have ``?`` for their values. They use only what both databases support: TEXT, INTEGER, BIGINT and DOUBLE
PRECISION columns, ``INSERT … ON CONFLICT``, ``RETURNING``, row values; flags are 0 and 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

from gradeline.errors import StoreError
from gradeline.model import Storage
from gradeline.model.protocols import StoreWriter
from gradeline.store.rows import RecordRow

T = TypeVar("T")

Value: TypeAlias = str | int | float | None
Row: TypeAlias = tuple[Any, ...]
Step: TypeAlias = "Callable[[Transaction, Dialect], None]"
"""A migration step of one part's tables; a released one is never edited."""


class Dialect(Protocol):
    """Differences between the databases."""

    @property
    def name(self) -> Literal["sqlite", "postgresql"]: ...

    @property
    def serial(self) -> str:
        """The column type of an auto-increment key."""


class Transaction(Protocol):
    """Statements that are committed together or not at all."""

    def run(self, statement: str, *values: Value) -> list[Row]:
        """Run a statement and return its rows."""


class Database(Protocol):
    """The database of a store. Synchronous and thread-safe; raises `StoreError`."""

    @property
    def dialect(self) -> Dialect: ...

    def read(self, statement: str, *values: Value) -> list[Row]:
        """The rows of a query."""

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Do the work in one transaction, committed when this returns; an exception rolls it back.

        After a conflict with another process it is retried, so the work must change nothing but the database.
        """

    def snapshot(self, work: Callable[[Transaction], T]) -> T:
        """Read in one transaction, which sees the database as of its beginning while other processes may write. The
        work is retried if the connection is lost."""

    def transact_in_bulk(self, work: Callable[[Transaction], T]) -> T:
        """As `transact`, for writing a whole store: without statement timeout and, in SQLite, without checking foreign
        keys after each row."""


def newer_version(store: object, version: int, supported: int) -> StoreError:
    """The error for a store whose schema this program does not know."""
    return StoreError(
        f"the store {store} was written by a newer gradeline, or by one from before the first release (its schema has"
        f" version {version}, this one supports {supported}); upgrade with: pip install --upgrade gradeline, or use"
        " another store"
    )


def migrate(database: Database, part: str, steps: Sequence[Step]) -> None:
    """Migrate the tables of one part of the program to the latest version; safe to run in several processes at once."""

    def advance(transaction: Transaction) -> None:
        transaction.run("INSERT INTO parts (name, version) VALUES (?, 0) ON CONFLICT (name) DO NOTHING", part)
        # the row stays locked until the steps are committed
        ((version,),) = transaction.run("UPDATE parts SET version = version WHERE name = ? RETURNING version", part)
        for step in steps[version:]:
            step(transaction, database.dialect)
        transaction.run("UPDATE parts SET version = ? WHERE name = ?", max(version, len(steps)), part)

    database.transact(advance)


def parts_of(read: Callable[..., list[Row]]) -> dict[str, int]:
    """The parts of the program that have tables in this store, with the version of these."""
    return {str(part): int(version) for part, version in read("SELECT name, version FROM parts ORDER BY name")}


PAGE_ROWS = 500
PAGE_BYTES = 4_000_000
"""A page ends with the row that reaches this size."""

_SQLITE_COLUMNS = """
    SELECT tables.name, columns.name, columns.pk
    FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns
    WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"""
_POSTGRESQL_COLUMNS = """
    SELECT tables.relname, columns.attname, coalesce(array_position(keys.indkey::int2[], columns.attnum) + 1, 0)
    FROM pg_class AS tables JOIN pg_attribute AS columns ON columns.attrelid = tables.oid
        LEFT JOIN pg_index AS keys ON keys.indrelid = tables.oid AND keys.indisprimary
    WHERE tables.relnamespace = CAST(CAST(current_schema() AS text) AS regnamespace) AND tables.relkind = 'r'
        AND columns.attnum > 0 AND NOT columns.attisdropped"""
_SIZE = {"sqlite": "coalesce(length(CAST({} AS BLOB)), 0)", "postgresql": "coalesce(octet_length(CAST({} AS TEXT)), 0)"}


class Table(NamedTuple):
    """A table with its columns and primary key."""

    name: str
    columns: tuple[str, ...]
    """Sorted by name, because their order differs between databases."""
    key: tuple[str, ...]
    """The columns of its primary key, in the key's order."""


def tables_of(transaction: Transaction, dialect: Dialect) -> dict[str, Table]:
    """The tables of the store by name, including those of the service."""
    rows = transaction.run(_SQLITE_COLUMNS if dialect.name == "sqlite" else _POSTGRESQL_COLUMNS)
    columns: dict[str, list[tuple[str, int]]] = {}
    for table, column, position in rows:
        columns.setdefault(table, []).append((column, position))
    return {
        table: Table(
            table,
            tuple(sorted(column for column, _ in found)),
            tuple(column for column, _ in sorted((one for one in found if one[1]), key=lambda one: one[1])),
        )
        for table, found in sorted(columns.items())
    }


def pages_of(transaction: Transaction, dialect: Dialect, table: Table, where: str = "") -> Iterator[list[Row]]:
    """All rows of a table in key order, in pages of bounded size. ``where`` is an SQL condition."""
    if not table.key:
        raise StoreError(f"the table {table.name} has no primary key and cannot be read in pages")
    key_columns = [table.columns.index(column) for column in table.key]
    last: Sequence[Value] = ()
    while rows := transaction.run(_page(dialect, table, where, first=not last), *last):
        yield rows
        last = [rows[-1][column] for column in key_columns]


def _page(dialect: Dialect, table: Table, where: str, *, first: bool) -> str:
    columns, key = quoted(table.columns), quoted(table.key)
    size = " + ".join(_SIZE[dialect.name].format(f'"{column}"') for column in table.columns)
    conditions = [where] if where else []
    if not first:
        conditions.append(f"({key}) > ({', '.join('?' * len(table.key))})")
    condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = f'SELECT {columns}, {size} AS bytes FROM "{table.name}"{condition} ORDER BY {key} LIMIT {PAGE_ROWS}'  # noqa: S608 - our tables
    before = f"sum(bytes) OVER (ORDER BY {key} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before"
    return f"""
        SELECT {columns} FROM (SELECT {columns}, {before} FROM ({rows}) AS page) AS sized
        WHERE coalesce(before, 0) < {PAGE_BYTES} ORDER BY {key}"""  # noqa: S608 - our tables


def quoted(columns: Sequence[str]) -> str:
    """The columns as a quoted list for a statement."""
    return ", ".join(f'"{column}"' for column in columns)


CommitHook: TypeAlias = Callable[[Transaction, Sequence[RecordRow]], None]
"""Called in the transaction of each batch with its rows. What it writes is committed with them; if it raises
`StoreError`, nothing of the batch is stored."""


@runtime_checkable
class SharedStorage(Storage, Protocol):
    """`Storage` in a database."""

    @property
    def database(self) -> Database: ...

    def delete_run(
        self,
        id: str,  # noqa: A002 - part of the public protocol
        hook: Callable[[Transaction], object] | None = None,
    ) -> bool:
        """``hook`` is called in the transaction that hides the run, if the run exists."""

    def writer(self, hook: CommitHook | None = None) -> StoreWriter: ...

    def put_rows(self, rows: Sequence[RecordRow], hook: CommitHook) -> None:
        """Store the rows that can be stored in one transaction with what the hook writes; it gets those that were."""

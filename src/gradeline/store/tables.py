"""The tables of a store as its database describes them: names, columns, primary keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gradeline.errors import StoreError
from gradeline.store.database import Dialect, Row, Transaction, Value

PAGE_ROWS = 500
PAGE_BYTES = 4_000_000
"""A page of rows ends with the row that reaches it."""

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
    """A table with what is needed to read all of it in pages."""

    name: str
    columns: tuple[str, ...]
    """By name: their order differs between databases."""
    key: tuple[str, ...]
    """The columns of its primary key, in the key's order."""


def tables_of(transaction: Transaction, dialect: Dialect) -> dict[str, Table]:
    """The tables of the store by name, those of the service included."""
    rows = transaction.run(_SQLITE_COLUMNS if dialect.name == "sqlite" else _POSTGRESQL_COLUMNS)
    columns: dict[str, list[tuple[str, int]]] = {}
    for table, column, place in rows:
        columns.setdefault(table, []).append((column, place))
    return {
        table: Table(
            table,
            tuple(sorted(column for column, _ in found)),
            tuple(column for column, _ in sorted((one for one in found if one[1]), key=lambda one: one[1])),
        )
        for table, found in sorted(columns.items())
    }


def pages_of(transaction: Transaction, dialect: Dialect, table: Table, where: str = "") -> Iterator[list[Row]]:
    """All rows of a table with its columns in their order, in pages of a bounded size. ``where`` is a condition."""
    if not table.key:
        raise StoreError(f"the table {table.name} has no primary key and cannot be read in pages")
    key_places = [table.columns.index(column) for column in table.key]
    last: Sequence[Value] = ()
    while rows := transaction.run(_page(dialect, table, where, first=not last), *last):
        yield rows
        last = [rows[-1][place] for place in key_places]


def _page(dialect: Dialect, table: Table, where: str, *, first: bool) -> str:
    columns, key = quoted(table.columns), quoted(table.key)
    size = " + ".join(_SIZE[dialect.name].format(f'"{column}"') for column in table.columns)
    conditions = [where] if where else []
    if not first:
        conditions.append(f"({key}) > ({', '.join('?' * len(table.key))})")
    chosen = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    rows = f'SELECT {columns}, {size} AS bytes FROM "{table.name}"{chosen} ORDER BY {key} LIMIT {PAGE_ROWS}'  # noqa: S608 - our tables
    before = f"sum(bytes) OVER (ORDER BY {key} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before"
    return f"""
        SELECT {columns} FROM (SELECT {columns}, {before} FROM ({rows}) AS page) AS sized
        WHERE coalesce(before, 0) < {PAGE_BYTES} ORDER BY {key}"""  # noqa: S608 - our tables


def quoted(columns: Sequence[str]) -> str:
    """The columns as a statement lists them."""
    return ", ".join(f'"{column}"' for column in columns)

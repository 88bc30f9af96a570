"""Copy a whole store into another one, of the same database or another kind, and verify the copy.

The source is read in one snapshot: runs may continue in it, and nothing in it changes. The destination is written in
one transaction, which is committed after the rows of each table were counted and compared with the source by a
digest. An interrupted copy leaves the destination unchanged.

Rows are copied as stored, encrypted secrets included. Counters that triggers maintain are not copied but compared.
Remaining rows of deleted runs are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

import msgspec

from gradeline.errors import StoreError
from gradeline.model.files import atomic_path
from gradeline.model.record import digest_of
from gradeline.store.database import (
    Database,
    Dialect,
    Row,
    Step,
    Table,
    Transaction,
    Value,
    migrate,
    pages_of,
    parts_of,
    quoted,
    tables_of,
)
from gradeline.store.maintenance import RECORD_TABLES, check_store
from gradeline.store.sqlite import SqliteStorage

Parts: TypeAlias = Mapping[str, Sequence[Step]]
"""Migrations of tables that other parts of the program add, by the part's name; see `database.migrate`."""
Progress: TypeAlias = Callable[[str, int], None]
"""Called with a table and the number of its rows copied so far."""

_FIRST = ("runs", "samples", "responses")
"""Other tables reference these."""
_INTERNAL = frozenset(
    {
        "parts",
        "schema_version",
        "deleted_runs",
        "readiness",
        "case_totals",
        "observation_cases",
        "case_tags",
        "tag_counts",
    }
    | {"response_counts", "grade_counts", "response_shares", "grade_shares"}
)
"""Tables that the store maintains itself: versions, counters, the index of tags, deleted runs."""
_COUNTERS = {
    "response_counts": ("run", "status", "count"),
    "grade_counts": ("run", "grader", "outcome", "count", "units", "squares"),
    "observation_cases": (
        *("task_family", "candidate_adapter", "baseline_adapter", "grader_id", "grader_fingerprint"),
        *("calibration_state", "case_key", "observation", "total", "scored", "units", "latest"),
    ),
    "case_totals": ("name", "live"),
    "tag_counts": ("tag", "live"),
}
"""Counters and their columns. The first two are views in PostgreSQL."""
_COUNTED_BY_ROWS = ("response_counts", "grade_counts")
"""Counters that SQLite's triggers do not update for new rows."""
_NOT_ZERO = {"response_counts": "count <> 0", "grade_counts": "count <> 0", "tag_counts": "live <> 0"}
_SUMS = frozenset({"units", "squares"})
_VALUES_AT_ONCE = 8000
"""Maximum values of one statement; both databases accept four times as many."""
_ENCODER = msgspec.msgpack.Encoder()


class TableCopy(NamedTuple):
    """A table that was copied or compared."""

    name: str
    rows: int
    digest: str
    """Of the rows, independent of their order."""


class Backup(NamedTuple):
    """The tables of a backup, and faults of the source."""

    tables: list[TableCopy]
    faults: list[str]
    """Faults of the source; see `check_store`."""


class _Digest:
    """Digest of a set of rows in any order: the sum of the rows' digests."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._sum = 0
        self.rows = 0

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._sum += int.from_bytes(blake2b(_ENCODER.encode(row), digest_size=16).digest())
            self.rows += 1

    def result(self) -> TableCopy:
        return TableCopy(self._table, self.rows, f"{self._sum % (1 << 128):032x}")


class _DestinationError(Exception):
    """An error of the destination, wrapped so that the source does not handle it as its own."""


def copy_store(
    source: Database, destination: Database, parts: Parts, *, replace: bool = False, progress: Progress | None = None
) -> list[TableCopy]:
    """Copy everything and return the tables with rows.

    Raises `StoreError`, and stores nothing, if the destination has rows and ``replace`` is not set, or if the copy
    differs from the source.
    """
    progress = progress or (lambda _, __: None)
    with _up_to_date(source, parts) as current:
        for part in parts_of(current.read):
            migrate(destination, part, parts[part])
        return destination.transact_in_bulk(
            partial(_load, dialect=destination.dialect, source=current, replace=replace, progress=progress)
        )


def write_backup(source: Database, path: Path, parts: Parts, progress: Progress | None = None) -> Backup:
    """Copy the store into a new SQLite file, which is itself a store.

    The file gets its name once it is complete and was opened and checked. A damaged file is deleted; other faults are
    those of the source.
    """
    with atomic_path(path) as partial_path:
        try:
            with SqliteStorage(partial_path) as storage:
                copied = copy_store(source, storage.database, parts, progress=progress)
                storage.make_single_file()
            with SqliteStorage(partial_path, read_only=True) as storage:
                report = check_store(storage.database)
            if report.damaged:
                raise StoreError(f"the backup was damaged and deleted: {'; '.join(report.faults)}")
            _sync(partial_path)
        finally:
            _remove_log(partial_path)
    _sync(path.parent)
    return Backup(copied, report.faults)


def require_empty(transaction: Transaction, dialect: Dialect) -> None:
    """Raise `StoreError` if the store has rows."""
    tables = tables_of(transaction, dialect)
    full = [name for name in tables if name not in _INTERNAL and transaction.run(f'SELECT 1 FROM "{name}" LIMIT 1')]  # noqa: S608 - our tables
    if full:
        raise StoreError(
            f"the destination is not empty: it has rows in {', '.join(full[:3])}{' and others' if full[3:] else ''};"
            " name another store, or replace everything in it with --replace"
        )


@contextmanager
def _up_to_date(source: Database, parts: Parts) -> Iterator[Database]:
    """The source, or a migrated temporary copy if some of its tables have an earlier version."""
    found = parts_of(source.read)
    for part, version in found.items():
        if part not in parts or version > len(parts[part]):
            raise StoreError(
                f"the source has tables {part!r} of version {version}, this gradeline knows"
                f" {len(parts.get(part, ()))}; upgrade with: pip install --upgrade gradeline"
            )
    if all(version == len(parts[part]) for part, version in found.items()):
        yield source
        return
    as_found = {part: parts[part][:version] for part, version in found.items()}
    with TemporaryDirectory(prefix="gradeline-copy-") as folder, SqliteStorage(Path(folder) / "store.db") as storage:
        copy_store(source, storage.database, as_found)
        for part in found:
            migrate(storage.database, part, parts[part])
        yield storage.database


def _load(
    transaction: Transaction, *, dialect: Dialect, source: Database, replace: bool, progress: Progress
) -> list[TableCopy]:
    tables = tables_of(transaction, dialect)
    if dialect.name == "postgresql":  # in SQLite this transaction is the only writer
        transaction.run(f"LOCK TABLE {quoted(list(tables))} IN SHARE ROW EXCLUSIVE MODE")
    if replace:
        _clear(transaction, dialect, tables)
    else:
        require_empty(transaction, dialect)

    def copy(snapshot: Transaction) -> list[TableCopy]:
        return list(_copied(snapshot, source.dialect, transaction, dialect, tables, progress))

    try:
        copied = source.snapshot(copy)
    except _DestinationError as error:
        raise error.__cause__ or error from None
    if dialect.name == "postgresql":
        _advance_sequences(transaction)
    _require_references(transaction, dialect)
    for one in copied:
        found = _digest_in(transaction, dialect, one.name, tables)
        if found != one:
            raise StoreError(
                f"the copy of the table {one.name} differs from the source ({found.rows} rows, digest {found.digest};"
                f" in the source {one.rows} rows, digest {one.digest}); nothing was stored"
            )
    return [one for one in copied if one.rows]


def _copied(
    snapshot: Transaction,
    dialect: Dialect,
    destination: Transaction,
    destination_dialect: Dialect,
    tables: Mapping[str, Table],
    progress: Progress,
) -> Iterator[TableCopy]:
    found = tables_of(snapshot, dialect)
    names = [name for name in found if name not in _INTERNAL]
    for name in sorted(names, key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)):
        table = tables.get(name)
        if table is None or table.columns != found[name].columns:
            raise StoreError(f"the table {name} has other columns in the source than in the destination")
        digest = _Digest(name)
        for rows in _rows_of(snapshot, dialect, found[name]):
            _insert(destination, table, rows)
            digest.add(rows)
            progress(name, digest.rows)
        yield digest.result()
    for name, columns in _COUNTERS.items():
        if name not in found and name not in _COUNTED_BY_ROWS:  # of which PostgreSQL has views
            continue
        rows = _counters(snapshot, name)
        if destination_dialect.name == "sqlite" and name in _COUNTED_BY_ROWS:
            _insert(destination, Table(name, columns, ()), rows)
        digest = _Digest(name)
        digest.add(_comparable(rows, columns))
        yield digest.result()


def _digest_in(transaction: Transaction, dialect: Dialect, name: str, tables: Mapping[str, Table]) -> TableCopy:
    digest = _Digest(name)
    if name in _COUNTERS:
        digest.add(_comparable(_counters(transaction, name), _COUNTERS[name]))
    else:
        for rows in _rows_of(transaction, dialect, tables[name]):
            digest.add(rows)
    return digest.result()


def _rows_of(transaction: Transaction, dialect: Dialect, table: Table) -> Iterator[list[Row]]:
    # with a join to runs instead, SQLite would start each page at the beginning of a run
    condition = f"EXISTS (SELECT 1 FROM runs WHERE runs.id = {table.name}.run)" if table.name in RECORD_TABLES else ""  # noqa: S608 - our tables
    for rows in pages_of(transaction, dialect, table, condition):
        yield _with_digests(transaction, table, rows) if table.name == "responses" else rows


def _with_digests(transaction: Transaction, table: Table, rows: list[Row]) -> list[Row]:
    """The responses with the digests of their cases, which early versions of SQLite stores lack."""
    column = table.columns.index("digest")
    if all(row[column] is not None for row in rows):
        return rows
    run, case = table.columns.index("run"), table.columns.index("case_key")

    def completed(row: Row) -> Row:
        if row[column] is not None:
            return row
        ((sample,),) = transaction.run("SELECT sample FROM samples WHERE run = ? AND case_key = ?", row[run], row[case])
        return (*row[:column], digest_of(sample), *row[column + 1 :])

    return [completed(row) for row in rows]


def _counters(transaction: Transaction, name: str) -> list[Row]:
    condition = _NOT_ZERO.get(name, "1 = 1")
    rows = transaction.run(f'SELECT {quoted(_COUNTERS[name])} FROM "{name}" WHERE {condition}')  # noqa: S608 - our tables
    return [tuple(_number(value) for value in row) for row in rows]


def _number(value: Value | Decimal) -> Value:
    """Sums beyond 64 bits become floats, as in SQLite."""
    if isinstance(value, Decimal):
        value = int(value)
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


def _comparable(rows: Iterable[Row], columns: Sequence[str]) -> Iterator[Row]:
    """Counters with rounded sums: beyond 64 bits SQLite's are not exact."""
    sums = [column in _SUMS for column in columns]
    for row in rows:
        yield tuple(f"{value:.12g}" if is_sum else value for value, is_sum in zip(row, sums, strict=True))


def _insert(transaction: Transaction, table: Table, rows: Sequence[Row]) -> None:
    width = len(table.columns)
    at_once = max(1, _VALUES_AT_ONCE // width)
    for start in range(0, len(rows), at_once):
        chunk = rows[start : start + at_once]
        values = ", ".join([f"({', '.join('?' * width)})"] * len(chunk))
        statement = f'INSERT INTO "{table.name}" ({quoted(table.columns)}) VALUES {values}'  # noqa: S608 - our tables
        try:
            transaction.run(statement, *(value for row in chunk for value in row))
        except Exception as error:
            raise _DestinationError from error


def _clear(transaction: Transaction, dialect: Dialect, tables: Mapping[str, Table]) -> None:
    """Delete everything, append-only tables included, except the versions of the tables."""
    names = [name for name in tables if name not in ("parts", "schema_version", "case_totals")]
    if dialect.name == "postgresql":
        transaction.run("ALTER TABLE observations DISABLE TRIGGER USER")
        transaction.run(f"TRUNCATE {quoted(names)} RESTART IDENTITY")
        transaction.run("ALTER TABLE observations ENABLE TRIGGER USER")
    else:
        triggers = transaction.run("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        for name, _ in triggers:
            transaction.run(f'DROP TRIGGER "{name}"')
        for name in [*names, "sqlite_sequence"]:
            transaction.run(f'DELETE FROM "{name}"')  # noqa: S608 - our tables
        for _, statement in triggers:
            transaction.run(statement)
    transaction.run("UPDATE case_totals SET live = 0")


def _advance_sequences(transaction: Transaction) -> None:
    """Continue the sequences after the copied rows."""
    columns = transaction.run(
        "SELECT CAST(table_name AS text), CAST(column_name AS text) FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND column_default LIKE 'nextval(%'"
    )
    for table, column in columns:
        transaction.run(
            f'SELECT setval(pg_get_serial_sequence(?, ?), max("{column}")) FROM "{table}" HAVING max("{column}") > 0',  # noqa: S608 - our tables
            table,
            column,
        )


def _require_references(transaction: Transaction, dialect: Dialect) -> None:
    """Check foreign keys in SQLite; PostgreSQL has already checked them."""
    if dialect.name == "sqlite" and (rows := transaction.run("SELECT * FROM pragma_foreign_key_check LIMIT 1")):
        raise StoreError(
            f"a row of the table {rows[0][0]} refers to a row of {rows[0][2]} that the source does not have"
        )


def _remove_log(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""How much of a store each run takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradeline.store.database import Database, Dialect, Transaction
from gradeline.store.deletion import TABLES as ROWS_OF_RUNS
from gradeline.store.tables import tables_of

_SIZE = {"sqlite": "length(CAST({} AS BLOB))", "postgresql": "octet_length(CAST({} AS TEXT))"}


class RunUsage(NamedTuple):
    """What a run takes, without indexes and the databases' own overhead: an estimate, about half of the disk space."""

    id: str
    name: str
    rows: int
    bytes: int
    """Of its values as text."""


class StoreUsage(NamedTuple):
    """What a store takes."""

    bytes: int
    """On disk, with indexes, and in SQLite with the log."""
    free_bytes: int | None
    """Of these, what `vacuum` gives back in SQLite; PostgreSQL does not report it."""
    runs: list[RunUsage]
    """The largest first."""


def usage_of(database: Database) -> StoreUsage:
    """Reads every row of every run."""
    return database.snapshot(lambda transaction: _usage(transaction, database.dialect))


def size_of(transaction: Transaction, dialect: Dialect) -> tuple[int, int | None]:
    """Bytes of the store on disk, without SQLite's log, and those of them that are free."""
    if dialect.name == "sqlite":
        ((pages, free, size),) = transaction.run(
            "SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count,"
            " pragma_page_size"
        )
        return pages * size, free * size
    ((total,),) = transaction.run(
        "SELECT CAST(coalesce(sum(pg_total_relation_size(oid)), 0) AS BIGINT) FROM pg_class"
        " WHERE relkind = 'r' AND relnamespace = CAST(CAST(current_schema() AS text) AS regnamespace)"
    )
    return int(total), None


def usage_of_run(database: Database, run: str) -> RunUsage | None:
    """What one run takes; None where there is no such run. Reads the run's rows and no others."""
    return database.snapshot(lambda transaction: _usage_of_run(transaction, database.dialect, run))


def _usage_of_run(transaction: Transaction, dialect: Dialect, run: str) -> RunUsage | None:
    named = transaction.run("SELECT name FROM runs WHERE id = ?", run)
    if not named:
        return None
    parts = [(rows, size) for _, rows, size in _sizes(transaction, dialect, run)]
    return RunUsage(run, str(named[0][0]), sum(rows for rows, _ in parts), sum(size for _, size in parts))


def _usage(transaction: Transaction, dialect: Dialect) -> StoreUsage:
    names = {str(id_): str(name) for id_, name in transaction.run("SELECT id, name FROM runs")}
    rows, sizes = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    for run, number, size in _sizes(transaction, dialect):
        if run in names:
            rows[run] += number
            sizes[run] += size
    total, free = size_of(transaction, dialect)
    found = [RunUsage(run, name, rows[run], sizes[run]) for run, name in names.items()]
    return StoreUsage(total, free, sorted(found, key=lambda one: (-one.bytes, one.id)))


def _sizes(transaction: Transaction, dialect: Dialect, run: str | None = None) -> Iterator[tuple[str, int, int]]:
    """The run, the number of its rows and their bytes, for each table and each run; with ``run`` of that one only."""
    tables = tables_of(transaction, dialect)
    where, values = ("", ()) if run is None else ("WHERE run = ?", (run,))
    for table in (*ROWS_OF_RUNS, "run_events"):
        if table not in tables:  # a store that no service has used
            continue
        size = " + ".join(
            f"coalesce({_SIZE[dialect.name].format(chr(34) + column + chr(34))}, 0)" for column in tables[table].columns
        )
        for found, number, bytes_ in transaction.run(
            f"SELECT run, count(*), CAST(sum({size}) AS BIGINT) FROM {table} {where} GROUP BY run",  # noqa: S608 - our tables
            *values,
        ):
            yield str(found), int(number), int(bytes_)

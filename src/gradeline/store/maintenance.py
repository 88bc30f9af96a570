"""Check a whole store (file, references, counters, records) and measure its size."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import msgspec

from gradeline.errors import DataError, StoreError
from gradeline.model.grade import Grade
from gradeline.model.record import from_json
from gradeline.model.response import Response
from gradeline.model.run import Run
from gradeline.model.sample import Sample, TestCase
from gradeline.store.baselines import require_no_baseline
from gradeline.store.database import Database, Dialect, Row, Table, Transaction, pages_of, tables_of
from gradeline.store.rows import parent_in_use

_EXAMPLES = 5
_RECORDS: dict[str, tuple[str, type[msgspec.Struct]]] = {
    "test_cases": ("test_case", TestCase),
    "runs": ("run", Run),
    "samples": ("sample", Sample),
    "responses": ("response", Response),
    "response_history": ("response", Response),
    "grades": ("grade", Grade),
    "grade_history": ("grade", Grade),
}
_IN_STORE = "run IN (SELECT id FROM runs)"
_COUNTERS = {
    "response_counts": (
        "SELECT run, status, count FROM response_counts WHERE count <> 0",
        f"SELECT run, status, count(*) FROM responses WHERE {_IN_STORE} GROUP BY run, status",  # noqa: S608 - of constants
    ),
    "grade_counts": (
        "SELECT run, grader, outcome, count FROM grade_counts WHERE count <> 0",
        f"SELECT run, grader, outcome, count(*) FROM grades WHERE {_IN_STORE} GROUP BY run, grader, outcome",  # noqa: S608 - of constants
    ),
    "observation_cases": (
        "SELECT task_family, candidate_adapter, grader_id, CAST(sum(total) AS BIGINT) FROM observation_cases"
        " GROUP BY task_family, candidate_adapter, grader_id",
        "SELECT task_family, candidate_adapter, grader_id, count(*) FROM observations"
        " GROUP BY task_family, candidate_adapter, grader_id",
    ),
    "case_totals": (
        "SELECT live FROM case_totals",
        "SELECT count(*) FROM test_cases WHERE deleted = 0",
    ),
}
"""Queries of each counter, and of the rows that it counts."""
_LOST_CASES = """
    SELECT run, case_key FROM responses WHERE run IN (SELECT id FROM runs) AND NOT EXISTS (
        SELECT 1 FROM samples WHERE samples.run = responses.run AND samples.case_key = responses.case_key)
    LIMIT ?"""
_LOST_RESPONSES = """
    SELECT run, case_key, repeat, grader FROM grades
    WHERE run IN (SELECT run FROM response_counts WHERE count > 0) AND NOT EXISTS (
        SELECT 1 FROM responses WHERE responses.run = grades.run AND responses.case_key = grades.case_key
            AND responses.repeat = grades.repeat)
    LIMIT ?"""


class StoreReport(NamedTuple):
    """The result of a check."""

    rows: dict[str, int]
    """Rows by table."""
    faults: list[str]
    notes: list[str]
    """Observations that are not faults."""
    damaged: bool = False
    """The database file is damaged; nothing else was checked."""


def check_store(database: Database, progress: Callable[[str, int], None] | None = None) -> StoreReport:
    """Check everything in one snapshot, without changes; runs may continue meanwhile."""
    return database.snapshot(
        lambda transaction: _check(transaction, database.dialect, progress or (lambda _, __: None))
    )


def _check(transaction: Transaction, dialect: Dialect, progress: Callable[[str, int], None]) -> StoreReport:
    tables = tables_of(transaction, dialect)
    if dialect.name == "sqlite":
        damaged = [str(text) for (text,) in transaction.run("PRAGMA integrity_check(20)") if text != "ok"]
        if damaged:  # no data from such a file can be trusted
            return StoreReport({}, [f"the file is damaged: {text}" for text in damaged], [], damaged=True)
    faults = [*_lost_rows(transaction), *_wrong_counters(transaction)]
    rows: dict[str, int] = {}
    for name, table in tables.items():
        read = _read_records(transaction, dialect, table, faults)
        for rows[name] in read:
            progress(name, rows[name])
    left = [str(run) for (run,) in transaction.run("SELECT run FROM deleted_runs ORDER BY run")]
    notes = (
        [f"rows of {len(left)} deleted runs are still to be removed; `gradeline store vacuum` does it"] if left else []
    )
    return StoreReport(rows, faults, notes)


def _lost_rows(transaction: Transaction) -> Iterator[str]:
    for table in RECORD_TABLES:
        rows = transaction.run(
            f"SELECT DISTINCT run FROM {table} WHERE run NOT IN (SELECT id FROM runs)"  # noqa: S608 - of constants
            f" AND run NOT IN (SELECT run FROM deleted_runs) LIMIT {_EXAMPLES}"
        )
        yield from (f"{table} has rows of the run {run!r}, which does not exist" for (run,) in rows)
    for run, case in transaction.run(_LOST_CASES, _EXAMPLES):
        yield f"the run {run} has a response to {case!r} without its case"
    for run, case, repeat, grader in transaction.run(_LOST_RESPONSES, _EXAMPLES):
        yield f"the run {run} has a grade of {grader!r} without a response to {case!r}, repeat {repeat}"


def _wrong_counters(transaction: Transaction) -> Iterator[str]:
    for name, (counter, counted) in _COUNTERS.items():
        stored, found = _counts(transaction.run(counter)), _counts(transaction.run(counted))
        wrong = sorted(key for key in {*stored, *found} if stored.get(key, 0) != found.get(key, 0))
        for key in wrong[:_EXAMPLES]:
            group = f" for {', '.join(map(repr, key))}" if key else ""
            yield f"{name} has {stored.get(key, 0)}{group}, but there are {found.get(key, 0)} rows"


def _counts(rows: list[Row]) -> dict[tuple[str, ...], int]:
    return {tuple(map(str, key)): int(count) for *key, count in rows}


def _read_records(transaction: Transaction, dialect: Dialect, table: Table, faults: list[str]) -> Iterator[int]:
    """Yields the number of rows so far; a record that cannot be read is a fault."""
    column, kind = _RECORDS.get(table.name, ("", None))
    index = table.columns.index(column) if kind is not None else 0
    number = wrong = 0
    yield 0
    for rows in pages_of(transaction, dialect, table) if table.key else ():
        for row in rows if kind is not None else ():
            try:
                from_json(kind, row[index]) if kind is not None else None
            except DataError as error:
                wrong += 1
                if wrong <= _EXAMPLES:
                    key = ", ".join(f"{name} {row[table.columns.index(name)]!r}" for name in table.key)
                    faults.append(f"{table.name}, {key}: {error}")
        number += len(rows)
        yield number


_SIZE = {"sqlite": "length(CAST({} AS BLOB))", "postgresql": "octet_length(CAST({} AS TEXT))"}


class RunUsage(NamedTuple):
    """Size of a run without indexes and database overhead: an estimate, about half of the disk space."""

    id: str
    name: str
    rows: int
    bytes: int
    """Size of its values as text."""


class StoreUsage(NamedTuple):
    """Size of a store and its runs."""

    bytes: int
    """On disk, with indexes, and in SQLite with the write-ahead log."""
    free_bytes: int | None
    """Bytes that `vacuum` would free in SQLite; PostgreSQL does not report them."""
    runs: list[RunUsage]
    """Sorted by size, the largest first."""


def usage_of(database: Database) -> StoreUsage:
    """Size of the store and of each run; reads every row of every run."""
    return database.snapshot(lambda transaction: _usage(transaction, database.dialect))


def size_of(transaction: Transaction, dialect: Dialect) -> tuple[int, int | None]:
    """Bytes of the store on disk without SQLite's log, and how many of them are free."""
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
    """Size of one run; None if it does not exist. Reads only the run's rows."""
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
    """Run, number of rows and bytes for each table and run; with ``run`` only for that one."""
    tables = tables_of(transaction, dialect)
    where, values = ("", ()) if run is None else ("WHERE run = ?", (run,))
    for table in (*RECORD_TABLES, "run_events"):
        if table not in tables:  # only a service creates it
            continue
        size = " + ".join(
            f"coalesce({_SIZE[dialect.name].format(chr(34) + column + chr(34))}, 0)" for column in tables[table].columns
        )
        for found, number, bytes_ in transaction.run(
            f"SELECT run, count(*), CAST(sum({size}) AS BIGINT) FROM {table} {where} GROUP BY run",  # noqa: S608 - our tables
            *values,
        ):
            yield str(found), int(number), int(bytes_)


ROWS_AT_ONCE = 10_000
"""Rows of one transaction; the rows of one case are not split."""
RECORD_TABLES = ("grade_history", "response_history", "grades", "responses", "clusters", "samples")
"""Tables that grow with a run's cases. In SQLite responses must be deleted before their samples."""

_NEXT = {
    table: f"SELECT max(case_key) FROM (SELECT case_key FROM {table} WHERE run = ? AND case_key >= ?"  # noqa: S608 - of constants
    " ORDER BY case_key LIMIT ?) AS following"
    for table in RECORD_TABLES
}
_DELETE = {
    table: f"DELETE FROM {table} WHERE run = ? AND case_key >= ? AND case_key <= ?"  # noqa: S608 - of constants
    for table in RECORD_TABLES
}

Transact: TypeAlias = Callable[[Callable[[Transaction], Any]], Any]


def remove_rows(transact: Transact, run: str) -> Iterator[None]:
    """Remove the rows of a hidden run; yields after each transaction.

    It may be stopped at any point and restarted, and several processes may do it at once.
    """
    for table in RECORD_TABLES:
        after: str | None = ""
        while after is not None:
            after = transact(partial(_remove_some, run=run, table=table, after=after))
            if after is not None:
                yield
    transact(lambda transaction: transaction.run("DELETE FROM deleted_runs WHERE run = ?", run))


def _remove_some(transaction: Transaction, run: str, table: str, after: str) -> str | None:
    """Returns the key to continue from; starting over would scan the rows just deleted each time."""
    ((last,),) = transaction.run(_NEXT[table], run, after, ROWS_AT_ONCE)
    if last is None:
        return None
    transaction.run(_DELETE[table], run, after, last)
    return str(last)


def deletion_unfinished(run: str) -> StoreError:
    """The error for saving a run under the ID of a deleted one that still has rows."""
    return StoreError(
        f"the run {run!r} was deleted and its rows are not all removed yet; delete_run({run!r}) finishes that,"
        " or use another ID",
        retryable=True,
    )


def hide_run(connection: sqlite3.Connection, run: str) -> bool:
    """Delete a run and all rows that reference it except its records; returns whether it existed.

    Foreign keys must be disabled on the connection, or deleting the run would cascade to its records.
    """
    children = connection.execute("SELECT id FROM runs WHERE parent = ?1 AND id <> ?1 ORDER BY n", (run,))
    if names := [name for (name,) in children]:
        raise parent_in_use(run, names)
    require_no_baseline(lambda statement, *values: connection.execute(statement, values).fetchall(), run)
    if not connection.execute("DELETE FROM runs WHERE id = ?", (run,)).rowcount:
        return False
    for table, column in _referring(connection):
        connection.execute(f'DELETE FROM "{table}" WHERE "{column}" = ?', (run,))  # noqa: S608 - names of our tables
    connection.execute("INSERT INTO deleted_runs (run) VALUES (?)", (run,))
    return True


def _referring(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    """The other tables that reference runs, including those of the service, with the column."""
    found = connection.execute(
        """SELECT tables.name, reference."from"
        FROM sqlite_master AS tables, pragma_foreign_key_list(tables.name) AS reference
        WHERE tables.type = 'table' AND reference."table" = 'runs' AND tables.name <> 'runs'"""
    )
    return [(table, column) for table, column in found if table not in RECORD_TABLES]

"""Checks a whole store: the file itself, references, counters, and that every record can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from gradeline.errors import DataError
from gradeline.model.grade import Grade
from gradeline.model.record import from_json
from gradeline.model.response import Response
from gradeline.model.run import Run
from gradeline.model.sample import Sample, TestCase
from gradeline.store.database import Database, Dialect, Row, Table, Transaction, pages_of, tables_of
from gradeline.store.deletion import RECORD_TABLES as ROWS_OF_RUNS

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
"""What each counter says, and the rows that it counts."""
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
    """What a check found."""

    rows: dict[str, int]
    """Rows by table."""
    faults: list[str]
    notes: list[str]
    """Not faults, but worth knowing."""
    damaged: bool = False
    """Whether the database file itself is damaged; then nothing else was checked."""


def check_store(database: Database, progress: Callable[[str, int], None] | None = None) -> StoreReport:
    """Check everything in one snapshot; runs may go on meanwhile, and nothing is changed."""
    return database.snapshot(
        lambda transaction: _check(transaction, database.dialect, progress or (lambda _, __: None))
    )


def _check(transaction: Transaction, dialect: Dialect, progress: Callable[[str, int], None]) -> StoreReport:
    tables = tables_of(transaction, dialect)
    if dialect.name == "sqlite":
        damaged = [str(text) for (text,) in transaction.run("PRAGMA integrity_check(20)") if text != "ok"]
        if damaged:  # nothing that is read of such a file says anything
            return StoreReport({}, [f"the file is damaged: {text}" for text in damaged], [], damaged=True)
    faults = [*_lost_rows(transaction), *_wrong_counters(transaction, tables)]
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
    for table in ROWS_OF_RUNS:
        rows = transaction.run(
            f"SELECT DISTINCT run FROM {table} WHERE run NOT IN (SELECT id FROM runs)"  # noqa: S608 - of constants
            f" AND run NOT IN (SELECT run FROM deleted_runs) LIMIT {_EXAMPLES}"
        )
        yield from (f"{table} has rows of the run {run!r}, which does not exist" for (run,) in rows)
    for run, case in transaction.run(_LOST_CASES, _EXAMPLES):
        yield f"the run {run} has a response to {case!r} without its case"
    for run, case, repeat, grader in transaction.run(_LOST_RESPONSES, _EXAMPLES):
        yield f"the run {run} has a grade of {grader!r} without a response to {case!r}, repeat {repeat}"


def _wrong_counters(transaction: Transaction, tables: dict[str, Table]) -> Iterator[str]:
    for name, (counter, counted) in _COUNTERS.items():
        if name == "case_totals" and name not in tables:
            continue
        kept, found = _counts(transaction.run(counter)), _counts(transaction.run(counted))
        wrong = sorted(key for key in {*kept, *found} if kept.get(key, 0) != found.get(key, 0))
        for key in wrong[:_EXAMPLES]:
            place = f" for {', '.join(map(repr, key))}" if key else ""
            yield f"{name} has {kept.get(key, 0)}{place}, and there are {found.get(key, 0)} rows"


def _counts(rows: list[Row]) -> dict[tuple[str, ...], int]:
    return {tuple(map(str, key)): int(count) for *key, count in rows}


def _read_records(transaction: Transaction, dialect: Dialect, table: Table, faults: list[str]) -> Iterator[int]:
    """Gives the number of rows so far; a record that cannot be read is a fault."""
    column, kind = _RECORDS.get(table.name, ("", None))
    place = table.columns.index(column) if kind is not None else 0
    number = wrong = 0
    yield 0
    for rows in pages_of(transaction, dialect, table) if table.key else ():
        for row in rows if kind is not None else ():
            try:
                from_json(kind, row[place]) if kind is not None else None
            except DataError as error:
                wrong += 1
                if wrong <= _EXAMPLES:
                    key = ", ".join(f"{name} {row[table.columns.index(name)]!r}" for name in table.key)
                    faults.append(f"{table.name}, {key}: {error}")
        number += len(rows)
        yield number


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

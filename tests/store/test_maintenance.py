"""Checking a store: each kind of damage is named, and an intact store has no faults."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from full_store import fill

from gradeline.model import Response, ResponseKey, Sample
from gradeline.store import PostgresStorage, SqliteStorage, open_storage
from gradeline.store.database import SharedStorage
from gradeline.store.maintenance import check_store, usage_of, usage_of_run
from postgres_server import execute


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'store.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(url: str) -> Iterator[SharedStorage]:
    fill(url)
    with open_storage(url) as storage:
        assert isinstance(storage, SqliteStorage | PostgresStorage)
        yield storage


def change(url: str, statement: str) -> None:
    """Past the store, and past its triggers."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection, connection:
            triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for name, _ in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute(statement)
            for _, text in triggers:
                connection.execute(text)
    else:
        execute(f"{url}&options=-c%20session_replication_role%3Dreplica%20-c%20search_path%3Dgradeline", statement)


def test_a_valid_store_has_no_problems_and_its_rows_are_counted(store: SharedStorage) -> None:
    report = check_store(store.database)
    assert (report.faults, report.notes) == ([], [])
    expected = {
        "runs": 3,
        "samples": 12,
        "responses": 12,
        "grades": 13,
        "test_cases": 3,
        "observations": 5,
        "labels": 1,
    }
    assert {name: report.rows[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("DELETE FROM grades WHERE case_key = 'case-3'", r"grade_counts has 6 for '\w+', 'exact', 'pass', but there are 5 rows"),
        ("DELETE FROM samples WHERE case_key = 'case-2'", r"has a response to 'case-2' without its case"),
        ("UPDATE response_history SET run = 'lost' WHERE case_key = 'case-1' AND run IN (SELECT min(id) FROM runs WHERE name LIKE 'run%')", r"response_history has rows of the run 'lost'"),
        ("DELETE FROM responses WHERE case_key = 'case-4'", r"a grade of 'exact' without a response to 'case-4', repeat 0"),
        ("UPDATE responses SET response = '{\"text\":' WHERE case_key = 'case-5'", r"responses, run '\w+', case_key 'case-5', repeat 0: not a stored Response"),
        ("DELETE FROM observations WHERE idempotency_key = 'k1'", r"observation_cases has 5 for 'f', 'b', 'exact', but there are 4 rows"),
        ("UPDATE case_totals SET live = 7", r"case_totals has 7, but there are 2 rows"),
    ],
)  # fmt: skip
def test_each_kind_of_damage_is_named(store: SharedStorage, url: str, statement: str, fault: str) -> None:
    change(url, statement)
    faults = check_store(store.database).faults
    assert faults
    assert any(re.search(fault, one) for one in faults), faults


def test_a_damaged_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    fill(str(path), cases=30)
    with SqliteStorage(path) as storage:
        storage.make_single_file()
    with closing(sqlite3.connect(path)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_grades_1'")
    raw = bytearray(path.read_bytes())
    raw[(page - 1) * 4096 + 8 : page * 4096] = b"\xff" * 4088
    path.write_bytes(raw)
    with SqliteStorage(path, read_only=True) as storage:
        report = check_store(storage.database)
    assert report.damaged
    assert report.faults
    assert all(fault.startswith("the file is damaged: ") for fault in report.faults)


def test_the_size_of_a_run_grows_with_its_texts(store: SharedStorage) -> None:
    usage = usage_of(store.database)
    assert {run.name for run in usage.runs} == {"run 0", "run 1", "again"}
    assert usage.bytes > sum(run.bytes for run in usage.runs) > 0
    child = next(run for run in usage.runs if run.name == "again")
    parent = next(run for run in usage.runs if run.name == "run 0")
    assert child == usage.runs[-1]  # the largest is first
    assert child.rows == 1
    ((text,),) = store.database.read("SELECT grade FROM grades WHERE run = ?", child.id)
    assert len(text) < child.bytes < len(text) + 200
    ((responses,),) = store.database.read(
        "SELECT CAST(sum(length(response)) AS BIGINT) FROM responses WHERE run = ?", parent.id
    )
    assert parent.bytes > responses
    assert [usage_of_run(store.database, run.id) for run in usage.runs] == usage.runs
    assert usage_of_run(store.database, "absent") is None


def test_vacuum_reclaims_space_and_finishes_interrupted_deletions(store: SharedStorage, url: str) -> None:
    assert isinstance(store, SqliteStorage | PostgresStorage)
    change(url, "INSERT INTO deleted_runs (run) VALUES ('gone')")
    assert check_store(store.database).notes == [
        "rows of 1 deleted runs are still to be removed; `gradeline store vacuum` does it"
    ]
    large = ResponseKey(store.find_run("run 1").id, "large")
    store.put_response(large, Response(text="x" * 200_000), Sample(large.case, "q"))
    before = usage_of(store.database)
    for run in store.list_runs()[:2]:
        store.delete_run(run.id)
    store.vacuum()
    after = usage_of(store.database)
    report = check_store(store.database)
    assert (report.faults, report.notes) == ([], [])
    if isinstance(store, SqliteStorage):
        assert after.free_bytes == 0
        assert after.bytes < before.bytes
    else:  # the planner knows the number of rows
        assert execute(url, "SELECT reltuples FROM pg_class WHERE oid = 'gradeline.runs'::regclass") == [(1.0,)]

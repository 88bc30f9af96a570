"""Deleting a run: invisible at once, deleted in batches, and completed after an interruption."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Sample, Storage
from gradeline.store import PostgresStorage, Run, SqliteStorage, StoreError, maintenance, open_storage
from gradeline.store.database import SharedStorage
from gradeline.store.maintenance import RECORD_TABLES
from postgres_server import execute

CASES, REPEATS = 30, 2
GRADE = Grade("exact", "f", Outcome.PASS, 1.0, True)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path') / 'store.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(url: str) -> Iterator[SharedStorage]:
    with opened(url) as storage:
        yield storage


def opened(url: str) -> SharedStorage:
    storage = open_storage(url)
    assert isinstance(storage, SqliteStorage | PostgresStorage)
    return storage


def filled(store: Storage, id_: str = "", **fields: str) -> str:
    """A run with rows in every table, those of replaced answers too."""
    run = store.save_run(Run(id=id_, name="n", suite="s", **fields))
    for case in range(CASES):
        for repeat in range(REPEATS):
            key = ResponseKey(run, f"case-{case}", repeat)
            for text in ("first", "second"):
                store.put_response(key, Response(text=text), Sample(key.case, "q"), case, cache_key=f"{run}/{case}")
                store.put_grade(GradeKey(*key, "exact"), GRADE)
    return run


def rows_of(url: str, run: str) -> dict[str, int]:
    """How many rows each table has of a run, past the store."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            found = {
                table: connection.execute(f"SELECT count(*) FROM {table} WHERE run = ?", (run,)).fetchone()[0]
                for table in (*RECORD_TABLES, "deleted_runs", "response_counts", "grade_counts")
            }
    else:
        found = {
            table: int(str(execute(url, f"SELECT count(*) FROM gradeline.{table} WHERE run = $1", run)[0][0]))
            for table in (*RECORD_TABLES, "deleted_runs", "response_counts", "grade_counts")
        }
    return {table: number for table, number in found.items() if number}


def test_a_deleted_run_leaves_nothing_and_others_as_they_were(
    store: SharedStorage, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "ROWS_AT_ONCE", 7)
    run, other = filled(store), filled(store)
    before = rows_of(url, other), list(store.records(other)), store.counts(other)
    assert store.delete_run(run)
    assert rows_of(url, run) == {}
    assert (rows_of(url, other), list(store.records(other)), store.counts(other)) == before
    assert not store.delete_run(run)


def test_rows_are_deleted_in_batches(store: SharedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "ROWS_AT_ONCE", 7)
    run = filled(store)
    left = [sum(remaining_rows(store, run))]
    removed = maintenance._remove_some

    def noted(*arguments: object, **named: object) -> str | None:
        left.append(sum(remaining_rows(store, run)))
        return removed(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(maintenance, "_remove_some", noted)
    store.delete_run(run)
    steps = [one - following for one, following in pairwise(left)]
    assert max(steps) <= 7 + REPEATS - 1
    assert sum(remaining_rows(store, run)) == 0


def remaining_rows(store: SharedStorage, run: str) -> list[int]:
    return [store.database.read(f"SELECT count(*) FROM {table} WHERE run = ?", run)[0][0] for table in RECORD_TABLES]


DELETING = """
import os, signal, sys
from gradeline.store import maintenance, open_storage

maintenance.ROWS_AT_ONCE = 7
remove, left = maintenance._remove_some, int(sys.argv[3])

def killed(*arguments, **named):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return remove(*arguments, **named)

maintenance._remove_some = killed
open_storage(sys.argv[1]).delete_run(sys.argv[2])
"""


def kill_while_deleting(url: str, run: str, batches: int) -> None:
    done = subprocess.run([sys.executable, "-c", DELETING, url, run, str(batches)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("batches", [0, 1, 12])
def test_a_run_killed_between_batches_is_not_visible(store: SharedStorage, url: str, batches: int) -> None:
    run, other = filled(store), filled(store)
    kill_while_deleting(url, run, batches)
    assert rows_of(url, run)["deleted_runs"] == 1
    assert "responses" in rows_of(url, run)
    key = ResponseKey(run, "case-9")
    assert [one.id for one in store.list_runs()] == [other]
    assert (store.get_run(run), store.get_record(key), store.get_response(key)) == (None, None, None)
    assert (store.get_sample(run, "case-9"), store.cached_response(f"{run}/9")) == (None, None)
    for act in (store.records, store.keys_of, store.measures, store.counts, store.find_run):
        with pytest.raises(Exception, match="no run"):
            list(act(run))  # type: ignore[call-overload]


@pytest.mark.parametrize("go_on", ["another is deleted", "the store is opened", "it is deleted again"])
def test_an_interrupted_deletion_is_continued(store: SharedStorage, url: str, go_on: str) -> None:
    run, other = filled(store), filled(store)
    kill_while_deleting(url, run, 3)
    if go_on == "another is deleted":
        assert store.delete_run(other)
    elif go_on == "it is deleted again":
        assert not store.delete_run(run)
    else:
        for _ in RECORD_TABLES:  # a batch each time: opening a store does not wait for the whole deletion
            opened(url).close()
        opened(url).close()
    assert rows_of(url, run) == {}


def test_rows_for_a_run_that_is_being_deleted_are_refused(store: SharedStorage, url: str) -> None:
    run = filled(store)
    kill_while_deleting(url, run, 0)
    key = ResponseKey(run, "case-1")
    acts: list[Callable[[], None]] = [
        lambda: store.put_response(key, Response(text="third"), Sample(key.case, "q"), 1),
        lambda: store.put_response(ResponseKey(run, "new"), Response(text="a"), Sample("new", "q")),
        lambda: store.put_grade(GradeKey(*key, "exact"), GRADE),
        lambda: store.put_grade(GradeKey(*key, "other"), GRADE),
        lambda: store.put_samples(run, [Sample("new", "q")]),
    ]
    before = rows_of(url, run)
    for act in acts:
        with pytest.raises(StoreError, match=r"no run .* in the store"):
            act()
    assert rows_of(url, run) == before


def test_its_id_is_not_reused_before_its_rows_are_deleted(store: SharedStorage, url: str) -> None:
    run = filled(store, "mine")
    kill_while_deleting(url, run, 2)
    with pytest.raises(
        StoreError, match=r"'mine' was deleted and its rows are not all removed yet; delete_run"
    ) as message:
        store.save_run(Run(id="mine", name="n", suite="s"))
    assert message.value.retryable
    store.delete_run("mine")
    store.save_run(Run(id="mine", name="n", suite="s"))
    assert list(store.records("mine")) == []


def test_deleting_a_regraded_run_deletes_only_its_grades(store: SharedStorage, url: str) -> None:
    parent = filled(store)
    child = store.save_run(Run(name="n", suite="s", parent=parent))
    store.put_grade(GradeKey(child, "case-1", 0, "exact"), GRADE)
    before = rows_of(url, parent)
    assert store.delete_run(child)
    assert (rows_of(url, child), rows_of(url, parent)) == ({}, before)


def test_foreign_keys_are_enforced_again_after_a_deletion(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "store.db") as store:
        run = filled(store)
        store.delete_run(run)
        with pytest.raises(StoreError, match="no run"):
            store.put_grade(GradeKey(run, "case-1", 0, "exact"), GRADE)

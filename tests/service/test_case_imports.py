"""Imports of many cases: other writes continue, and after a crash all of a file is stored or nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from threading import Thread

import pytest

from gradeline.errors import StoreError
from gradeline.service import case_imports
from gradeline.service.case_imports import StoredCase
from gradeline.service.service import database_of
from gradeline.service.test_cases import TestCases
from gradeline.store import open_storage
from gradeline.store.database import Transaction

FIELDS = {"input": "q", "expected_output": "a"}


@pytest.fixture
def cases(store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestCases]:
    monkeypatch.setattr(case_imports, "BATCH", 10)
    monkeypatch.setattr("gradeline.service.test_cases.BATCH", 10)
    with open_storage(store) as storage:
        yield TestCases(database_of(storage))


def rows(number: int) -> Iterator[StoredCase]:
    return ((f"case-{n:04}", json.dumps({"id": f"case-{n:04}", **FIELDS, "schema": 1})) for n in range(number))


def ids(cases: TestCases) -> list[str]:
    return [case.id for case in cases.matching()]


def left_over(cases: TestCases) -> list[int]:
    return [cases._database.read(f"SELECT count(*) FROM {t}")[0][0] for t in ("case_imports", "imported_cases")]


def test_other_writes_continue_during_a_large_import(cases: TestCases) -> None:
    def slowly() -> Iterator[StoredCase]:
        for n, row in zip(count(), rows(35), strict=False):
            if n == 25:
                # another writer, while the import is under way: with one long transaction it would wait for the end
                writer = Thread(target=cases.create, args=(FIELDS,))
                writer.start()
                writer.join(20)
                seen.append(writer.is_alive())
            yield row

    seen: list[bool] = []
    recorded: list[int] = []
    assert cases.add_rows(slowly(), "me", lambda _, number: recorded.append(number)) == 35
    assert (seen, recorded) == ([False], [35])
    assert ids(cases)[1:] == [case for case, _ in rows(35)]  # the other one came first: it was there first
    assert cases.total() == 36
    assert left_over(cases) == [0, 0]


def test_imported_cases_belong_to_their_importer_in_any_number_of_batches(cases: TestCases) -> None:
    cases.add_rows(rows(3), "me")
    cases.add_rows(((f"{case}-2", text) for case, text in rows(25)), "me")
    found = cases._database.read("SELECT created_by, count(*) FROM test_cases GROUP BY created_by")
    assert found == [("me", 28)]


def test_a_fault_halfway_leaves_nothing(cases: TestCases) -> None:
    def broken() -> Iterator[StoredCase]:
        yield from rows(25)
        raise StoreError("the disk is full")

    with pytest.raises(StoreError, match="the disk is full"):
        cases.add_rows(broken())
    assert (ids(cases), cases.total(), left_over(cases)) == ([], 0, [0, 0])


def test_an_import_that_cannot_be_recorded_is_not_made(cases: TestCases) -> None:
    def unwritable(_: Transaction, __: int) -> None:
        raise StoreError("the audit log cannot be written")

    for number in (5, 25):
        with pytest.raises(StoreError, match="audit log"):
            cases.add_rows(rows(number), None, unwritable)
    assert (ids(cases), left_over(cases)) == ([], [0, 0])


_DYING = """
import os, signal, sys
from gradeline.service import case_imports, test_cases
from gradeline.service.service import database_of
from gradeline.store import open_storage
case_imports.BATCH = test_cases.BATCH = 10
point = sys.argv[2]
with open_storage(sys.argv[1]) as storage:
    cases = test_cases.TestCases(database_of(storage))
    def rows():
        for n in range(35):
            if point == "staging" and n == 25:
                os.kill(os.getpid(), signal.SIGKILL)
            yield f"case-{n:04}", '{"id": "case-%04d", "input": "q", "expected_output": "a", "schema": 1}' % n
    if point == "moving":
        move, moved = cases._imports._move_some, []
        def dying(transaction, id):
            moved.append(1)
            if len(moved) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return move(transaction, id)
        cases._imports._move_some = dying
    cases.add_rows(rows(), "me")
"""


@pytest.mark.parametrize(("point", "left", "after"), [("staging", 0, 0), ("moving", 20, 35)])
def test_after_a_kill_there_is_all_of_a_file_or_nothing(store: str, point: str, left: int, after: int) -> None:
    done = subprocess.run([sys.executable, "-c", _DYING, store, point], check=False)
    assert done.returncode == -signal.SIGKILL
    with open_storage(store) as storage:
        database = database_of(storage)
        assert database.read("SELECT count(*) FROM test_cases") == [(left,)]
        cases = TestCases(database)  # the next start of a service
        assert (len(ids(cases)), cases.total(), left_over(cases)) == (after, after, [0, 0])


def test_an_active_import_of_another_process_is_not_touched(cases: TestCases) -> None:
    def looked_at() -> Iterator[StoredCase]:
        yield from rows(25)
        TestCases(cases._database)  # another service on the same store starts
        assert left_over(cases)[0] == 1

    assert cases.add_rows(looked_at()) == 25
    assert len(ids(cases)) == 25

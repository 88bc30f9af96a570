"""Test cases and graders in PostgreSQL: each of their statements, once."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradeline.model.sample import TestCase
from gradeline.service.case_files import FileKind, import_cases
from gradeline.service.errors import ServiceError
from gradeline.service.requests import PageRequest
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings
from gradeline.service.test_cases import CaseFilter

sys.path.insert(0, str(Path(__file__).parent.parent))

from postgres_server import ENV, Database, Server, why_no_server

GOOD = {"input": "2 + 2?", "expected_output": "4"}
RULES = {"rules": [{"condition": "contains", "value": "please"}]}


@pytest.fixture
def settings() -> Iterator[ServeSettings]:
    if url := os.environ.get(ENV):
        database = Database(url)
        yield ServeSettings(store=database.url)
        database.drop()
        return
    if reason := why_no_server():
        pytest.skip(reason)
    server = Server()
    yield ServeSettings(store=server.url)
    server.stop()


def test_cases(service: Service) -> None:
    cases = service.cases
    first = cases.create({**GOOD, "tags": ["a_b"], "description": "ünï 🙂"})
    second = cases.create({**GOOD, "tags": ["axb"]})
    checks = [{"condition": "contains", "value": "ünï 🙂", "metric": "facts"}]
    assert cases.change(first.id, {"checks": checks}).checks == checks
    assert cases.change(second.id, {"checks": checks}).checks == checks
    assert cases.change(second.id, {"checks": None}).checks is None
    first = cases.get(first.id)
    assert (first.checks, first.tags) == (checks, ("a_b",))
    assert cases.change(first.id, {"input": "3 + 3?"}).input == "3 + 3?"
    assert cases.find([first.id, second.id, "nope"]).keys() == {first.id, second.id}
    page = cases.page(PageRequest.of(1))
    assert ([case.id for case in page.cases], page.total) == ([first.id], 2)
    following = cases.page(PageRequest(1, 0, page.next_cursor))
    assert ([case.id for case in following.cases], following.next_cursor) == ([second.id], None)
    assert [case.id for case in cases.page(PageRequest.of(9, 1)).cases] == [second.id]
    assert [case.id for case in cases.page(PageRequest.of(9), CaseFilter(tag="a_b")).cases] == [first.id]
    assert [case.id for case in cases.page(PageRequest.of(9), CaseFilter(q="ÜNÏ")).cases] == [first.id]
    cases.delete(first.id)
    with pytest.raises(ServiceError):
        cases.get(first.id)
    assert cases.total() == 1


def test_the_counter_follows_every_way_of_saving(service: Service) -> None:
    storage, cases = service.storage, service.cases
    case = storage.save_test_case(TestCase(id="", input="a", expected_output="b"))
    storage.save_test_case(TestCase(id=case, input="again", expected_output="b"))
    assert cases.total() == 1
    storage.delete_test_case(case)
    assert cases.total() == 0
    storage.save_test_case(TestCase(id=case, input="back", expected_output="b"))
    assert cases.total() == 1
    rows = b'{"input": "a", "expected_output": "b"}\n' * 1200
    assert import_cases(cases, io.BytesIO(rows), FileKind.JSONL) == 1200
    with pytest.raises(ServiceError):
        import_cases(cases, io.BytesIO(rows + b"{}"), FileKind.JSONL)
    assert cases.total() == 1201
    service.database.transact(lambda transaction: transaction.run("DELETE FROM test_cases WHERE id = ?", case))
    assert cases.total() == 1200


def test_writers_at_the_same_moment(service: Service) -> None:
    cases = service.cases
    case = cases.create(GOOD)
    changes = [{"input": "i"}, {"expected_output": "e"}, {"description": "d"}, {"tags": ["t"]}]
    with ThreadPoolExecutor(8) as threads:
        made = [threads.submit(cases.create, GOOD) for _ in range(30)]
        edits = [threads.submit(cases.change, case.id, fields) for fields in changes]
        for future in (*made, *edits):
            future.result()
    left = cases.get(case.id)
    assert (left.input, left.expected_output, left.description, left.tags) == ("i", "e", "d", ("t",))
    assert cases.total() == len(list(cases.matching())) == 31


def test_graders(service: Service) -> None:
    graders = service.graders
    first = graders.create({"id": "mine", "name": "Polite", "type": "custom-rules", "config": RULES})
    with pytest.raises(ServiceError):
        graders.create({"id": "mine", "name": "Polite", "type": "custom-rules", "config": RULES})
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: graders.change("mine", {"name": f"name {n}"}), range(6)))
    assert (graders.get("mine").version, graders.get("mine", 1)) == (7, first)
    assert [one.id for one in graders.page(PageRequest.of(1000)).graders][-1] == "mine"
    graders.delete("mine")
    assert graders.get("mine", 7).status == "deleted"

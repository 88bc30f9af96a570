"""Lists of test cases by tag: the cases of a naive scan, by an index that follows every way of saving a case."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeline.model import Storage
from gradeline.model.sample import TestCase
from gradeline.service.requests import PageRequest
from gradeline.service.test_cases import CaseFilter, TestCases, new_case
from gradeline.store import open_storage, queries
from gradeline.store.database import Database
from gradeline.store.queries import CaseTags

TAGS = (("red",), ("red", "dark-red"), (), ("blue",), ("dark-blue", "blue"), ("Red",), ("r%d", "r_d"), ("red", "blue"))
PARTS = ("red", "blue", "dark", "d", "Red", "r%d", "_", "%", "dark-red", "none", "e")


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    url = str(tmp_path / "store.db") if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with open_storage(url) as opened:
        yield opened


def database_of(storage: Storage) -> Database:
    database: Database = storage.database  # type: ignore[attr-defined]
    return database


def case(number: int, tags: tuple[str, ...]) -> TestCase:
    return TestCase(id=f"case-{number:03}", input=f"question {number}", expected_output="x", tags=tags)


def listed(cases: TestCases, wanted: CaseFilter, skip: int = 0) -> list[str]:
    """The ids of all pages."""
    page = cases.page(PageRequest.of(3, skip or None), wanted)
    found = [one.id for one in page.cases]
    while page.next_cursor is not None:
        page = cases.page(PageRequest.of(3, None, page.next_cursor), wanted)
        found += [one.id for one in page.cases]
    return found


def assert_lists_are_those_of_a_scan(cases: TestCases) -> None:
    every = list(cases.matching())
    for part in PARTS:
        expected = [one.id for one in every if any(part in tag for tag in one.tags)]
        for skip in (0, 2):
            assert listed(cases, CaseFilter(tag=part), skip) == expected[skip:]
        page = cases.page(PageRequest.of(1), CaseFilter(tag=part))
        assert (page.total, page.capped) == (len(expected), False)
        assert [one.id for one in cases.matching(CaseFilter(tag=part))] == expected
        with_text = [one.id for one in every if one.id in expected and "question 1" in one.input]
        assert listed(cases, CaseFilter(tag=part, q="QUESTION 1")) == with_text


def test_lists_follow_every_way_of_saving(storage: Storage) -> None:
    for number, tags in enumerate(TAGS):
        storage.save_test_case(case(number, tags))
    storage.delete_test_case("case-001")
    cases = TestCases(database_of(storage))
    assert_lists_are_those_of_a_scan(cases)
    cases.add(case(100 + number, TAGS[number % len(TAGS)]) for number in range(20))
    assert_lists_are_those_of_a_scan(cases)
    cases.change("case-101", {"tags": ["blue", "new", "blue"]})
    cases.change("case-102", {"input": "question 1 again"})
    cases.change("case-100", {"tags": None})
    cases.delete("case-103")
    storage.save_test_case(case(104, ("new", "red")))
    storage.save_test_case(case(1, ("back",)))
    assert_lists_are_those_of_a_scan(cases)
    assert listed(cases, CaseFilter(tag="back")) == ["case-001"]
    assert listed(cases, CaseFilter(tag="new")) == ["case-101", "case-104"]
    cases._database.transact(lambda transaction: transaction.run("DELETE FROM test_cases WHERE id = 'case-104'"))
    assert listed(cases, CaseFilter(tag="new")) == ["case-101"]
    live = cases._database.read("SELECT tag, live FROM tag_counts WHERE live <> 0 ORDER BY tag")
    counted = cases._database.read("SELECT tag, count(*) FROM case_tags GROUP BY tag ORDER BY tag")
    assert live == counted


def test_several_tags_are_counted_to_a_cap(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_MAX_COUNTED", 5)
    cases = TestCases(database_of(storage))
    cases.add(case(number, ("a", "ab") if number % 2 else ("ab",)) for number in range(5))
    page = cases.page(PageRequest.of(2), CaseFilter(tag="a"))
    assert (page.total, page.capped) == (5, False)
    cases.add(case(number, ("ac",)) for number in range(5, 8))
    page = cases.page(PageRequest.of(2), CaseFilter(tag="a"))
    assert (page.total, page.capped) == (5, True)
    cases.add(case(number, ("ac",)) for number in range(8, 12))
    page = cases.page(PageRequest.of(2), CaseFilter(tag="a"))
    assert (page.total, page.capped) == (5, True)
    assert cases.page(PageRequest.of(2), CaseFilter(tag="ac")).total == 7


def test_more_tags_than_are_merged_give_the_same_cases(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_MAX_MERGED", 1)
    cases = TestCases(database_of(storage))
    cases.add(case(number, TAGS[number % len(TAGS)]) for number in range(20))
    assert_lists_are_those_of_a_scan(cases)


def test_pages_are_read_by_the_index_of_tags(tmp_path: Path) -> None:
    with open_storage(str(tmp_path / "store.db")) as storage:
        database = database_of(storage)
        TestCases(database).add([new_case({"input": "a", "expected_output": "b", "tags": ["red", "dark-red"]})])
        tags = CaseTags(database)
        for part in ("dark", "red"):
            numbers, values = tags._numbers(tags.match(part), 0, 10)
            plan = [row[3] for row in database.read(f"EXPLAIN QUERY PLAN {numbers}", *values)]
            searched = [step for step in plan if "case_tags" in step]
            assert searched == ["SEARCH case_tags USING PRIMARY KEY (tag=? AND n>?)"] * len(tags.match(part).cases)
            assert not [step for step in plan if "ORDER BY" in step and "case_tags" in step]


def test_postgresql_reads_pages_by_the_index_of_tags(postgres_url: str) -> None:
    with open_storage(postgres_url) as storage:
        database = database_of(storage)
        cases = TestCases(database)
        cases.add(case(number, (f"part-{number % 5}", "all")) for number in range(3_000))
        database.transact(lambda transaction: transaction.run("ANALYZE case_tags, test_cases"))
        tags = CaseTags(database)
        for part in ("all", "part-"):
            numbers, values = tags._numbers(tags.match(part), 100, 10)
            plan = "\n".join(row[0] for row in database.read(f"EXPLAIN {numbers}", *values))
            assert "Index Only Scan using case_tags_pkey" in plan
            assert "Seq Scan" not in plan

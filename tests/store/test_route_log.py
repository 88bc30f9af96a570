"""Decisions of routes and their outcomes, in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gradeline.model.route import LoggedRequest, RequestOutcome
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.route_log import (
    ArmTotals,
    arm_totals,
    create_route_tables,
    judged_requests,
    put_outcomes,
    put_requests,
    requests_by_id,
    requests_of,
)

STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}
NOW = "2026-01-15T10:00:00.000000Z"
ROW = LoggedRequest("r1", "support", NOW, "billing ☃", "cheap", '{"cheap":0.5}', "cheap", 3, "", "[]", 0.25, 12.5)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


def test_a_store_without_routes_has_no_requests(store: SharedStorage) -> None:
    assert requests_of(store, "support") == []
    assert judged_requests(store, "support") == []
    assert arm_totals(store, "support") == []


def test_requests_are_added_once_and_read_in_pages(store: SharedStorage) -> None:
    database = create_route_tables(store)
    put_requests(database, [ROW, ROW._replace(id="r2"), ROW._replace(id="o", route="other")])
    put_requests(database, [ROW._replace(arm="strong"), ROW._replace(id="r3")])
    assert [row.id for row in requests_of(store, "support")] == ["r1", "r2", "r3"]
    page = requests_of(store, "support", limit=1)
    assert page[0]._replace(n=0) == ROW
    assert [row.id for row in requests_of(store, "support", after=page[0].n)] == ["r2", "r3"]
    assert requests_by_id(database, "support", ["r1", "o", "x"])["r1"]._replace(n=0) == ROW
    assert list(requests_by_id(database, "support", ["o", "r3"])) == ["r3"]


def test_the_latest_outcome_of_a_source_counts(store: SharedStorage) -> None:
    database = create_route_tables(store)
    put_requests(database, [ROW])
    first = RequestOutcome("r1", 1.0, "label", NOW)
    put_outcomes(database, [first, RequestOutcome("r1", 0.5, "judge:f", NOW), first._replace(score=0.0)])
    found = judged_requests(store, "support")
    assert [(one.outcome.source, one.outcome.score) for one in found] == [("judge:f", 0.5), ("label", 0.0)]
    assert found[0].request._replace(n=0) == ROW
    assert judged_requests(store, "support", after=found[-1].request.n) == []


def test_totals_tell_fallbacks_from_answers(store: SharedStorage) -> None:
    rows = [
        ROW,
        ROW._replace(id="r2", served_by="strong", cost=None),
        ROW._replace(id="r3", served_by=None),
        ROW._replace(id="r4", arm="strong", served_by="strong", cost=None),
    ]
    put_requests(create_route_tables(store), rows)
    assert arm_totals(store, "support") == [ArmTotals("cheap", 3, 1, 1, 0.5, 2), ArmTotals("strong", 1, 0, 0, None, 0)]

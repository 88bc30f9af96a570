"""The clusters of a run's cases, in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gradeline.errors import StoreError
from gradeline.model import Response, ResponseKey, Run, Sample, Storage, sample_digest
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage

STORES: dict[str, Callable[[pytest.FixtureRequest], Storage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Storage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


def put(store: Storage, run: str, case: str, cluster: str | None, text: str = "Paris") -> None:
    store.put_response(ResponseKey(run, case), Response(text=text), Sample(case, "q", cluster=cluster))


def test_a_case_is_stored_with_its_cluster(store: Storage) -> None:
    run = store.save_run(Run(name="r", suite="s"))
    for case, cluster in (("a", "doc ☃"), ("b", None), ("c", "doc ☃"), ("d", "other")):
        put(store, run, case, cluster)
    assert store.clusters(run) == {"a": "doc ☃", "c": "doc ☃", "d": "other"}
    assert [one.cluster for one in store.measures(run, digests=True)] == ["doc ☃", None, "doc ☃", "other"]
    assert [one.cluster for one in store.measures(run)] == [None] * 4
    assert [record.sample.cluster or None for record in store.records(run)] == ["doc ☃", None, "doc ☃", "other"]


def test_a_case_whose_cluster_changes_is_not_edited(store: Storage) -> None:
    run = store.save_run(Run(name="r", suite="s"))
    put(store, run, "a", None)
    before = [one.digest for one in store.keys_of(run)]
    put(store, run, "a", "doc")
    assert [one.digest for one in store.keys_of(run)] == before == [sample_digest(Sample("a", "q", cluster="x"))]
    assert store.clusters(run) == {"a": "doc"}
    put(store, run, "a", "other")
    assert store.clusters(run) == {"a": "other"}


def test_clusters_can_be_replaced(store: Storage) -> None:
    run = store.save_run(Run(name="r", suite="s"))
    put(store, run, "a", "doc")
    store.put_clusters(run, iter([("b", "x"), ("c", "x")]))
    assert store.clusters(run) == {"b": "x", "c": "x"}
    store.put_clusters(run, [])
    assert store.clusters(run) == {}
    with pytest.raises(StoreError, match="no run 'nowhere' in the store"):
        store.put_clusters("nowhere", [("a", "x")])


def test_a_regraded_run_has_its_parents_clusters_until_it_has_its_own(store: Storage) -> None:
    parent = store.save_run(Run(name="r", suite="s"))
    put(store, parent, "a", "doc")
    child = store.save_run(Run(name="again", suite="s", parent=parent))
    assert store.clusters(child) == {"a": "doc"}
    store.put_clusters(child, [("a", "topic")])
    assert [one.cluster for one in store.measures(child, digests=True)] == ["topic"]
    assert store.clusters(parent) == {"a": "doc"}


def test_a_deleted_run_takes_its_clusters_along(store: Storage) -> None:
    run = store.save_run(Run(id="one", name="r", suite="s"))
    put(store, run, "a", "doc")
    assert store.delete_run(run)
    assert store.save_run(Run(id="one", name="r", suite="s")) == run
    assert store.clusters(run) == {}

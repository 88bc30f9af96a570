"""Baselines with a name, in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Run, Storage
from gradeline.model.baseline import Baseline, check_baseline_name
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage

STORES: dict[str, Callable[[pytest.FixtureRequest], Storage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}
AT = "2026-01-02T03:04:05Z"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Storage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


def new_run(store: Storage, **fields: Any) -> Run:
    run = Run(**{"name": "nightly", "suite": "capitals", "status": "completed", **fields})
    found = store.get_run(store.save_run(run))
    assert found is not None
    return found


def named(name: str, run: Run, by: str = "me") -> Baseline:
    return Baseline(suite=run.suite, name=name, run=run.id, set_by=by, set_at=AT)


def test_a_baseline_is_stored_with_its_suite_and_who_and_when(store: Storage) -> None:
    run = new_run(store)
    assert store.set_baseline("main", run, by="Zoë ☃", at=AT) is None
    assert store.list_baselines() == [named("main", run, "Zoë ☃")]


def test_setting_a_name_again_replaces_its_run(store: Storage) -> None:
    old, new = new_run(store), new_run(store)
    store.set_baseline("main", old, by="me", at=AT)
    assert store.set_baseline("main", new, by="you", at=AT) == named("main", old)
    assert store.list_baselines() == [named("main", new, "you")]


def test_each_suite_has_its_own_baselines(store: Storage) -> None:
    capitals, rivers = new_run(store), new_run(store, suite="rivers")
    for run in (rivers, capitals):
        store.set_baseline("main", run, by="me", at=AT)
    store.set_baseline("alpha", rivers, by="me", at=AT)
    assert store.list_baselines() == [named("main", capitals), named("alpha", rivers), named("main", rivers)]
    assert store.list_baselines("rivers") == [named("alpha", rivers), named("main", rivers)]
    assert store.find_run("main", "capitals").id == capitals.id
    assert store.find_run("main", "rivers").id == rivers.id
    assert store.find_run("alpha").id == rivers.id
    with pytest.raises(ConfigError, match=r"'main' is set for several suites: 'capitals', 'rivers'; .* --suite"):
        store.find_run("main")


def test_a_reference_is_an_id_then_a_baseline_then_a_name_then_the_beginning_of_an_id(store: Storage) -> None:
    target, by_id = new_run(store), new_run(store, id="main")
    by_name = new_run(store, name="stable")
    store.set_baseline("main", target, by="me", at=AT)
    assert store.find_run("main").id == by_id.id
    assert store.find_run("stable").id == by_name.id
    store.set_baseline("stable", target, by="me", at=AT)
    assert store.find_run("stable").id == target.id
    store.set_baseline("mai", target, by="me", at=AT)
    assert store.find_run("mai").id == target.id
    store.clear_baseline("mai")
    assert store.find_run("mai").id == by_id.id


def test_the_baseline_of_another_suite_is_not_used(store: Storage) -> None:
    run = new_run(store)
    store.set_baseline("main", run, by="me", at=AT)
    with pytest.raises(
        ConfigError, match=r"no run 'main': the baseline 'main' is set for 'capitals', not for .*'rivers'"
    ):
        store.find_run("main", "rivers")
    by_name = new_run(store, name="main", suite="rivers")
    assert store.find_run("main", "rivers").id == by_name.id


def test_a_cleared_baseline_leaves_its_run(store: Storage) -> None:
    run = new_run(store)
    store.set_baseline("main", run, by="me", at=AT)
    assert store.clear_baseline("main") == named("main", run)
    assert store.list_baselines() == []
    assert store.get_run(run.id) == run
    with pytest.raises(ConfigError, match="no run 'main'"):
        store.find_run("main")


def test_clearing_needs_the_suite_where_several_have_the_name(store: Storage) -> None:
    runs = [new_run(store, suite=suite) for suite in ("capitals", "rivers")]
    for run in runs:
        store.set_baseline("main", run, by="me", at=AT)
    with pytest.raises(ConfigError, match="several suites"):
        store.clear_baseline("main")
    store.clear_baseline("main", "rivers")
    assert store.list_baselines() == [named("main", runs[0])]


def test_an_unknown_baseline_is_an_error_that_names_the_known_ones(store: Storage) -> None:
    store.set_baseline("main", new_run(store), by="me", at=AT)
    with pytest.raises(ConfigError, match="no baseline 'mian'; set one with"):
        store.clear_baseline("mian")
    with pytest.raises(ConfigError, match="no baseline 'main' of the suite 'rivers'; it is set for 'capitals'"):
        store.clear_baseline("main", "rivers")
    with pytest.raises(ConfigError, match="no baseline 'mian' of the suite 'capitals'; it has 'main'"):
        store.clear_baseline("mian", "capitals")


@pytest.mark.parametrize("status", ["pending", "running", "failed", "cancelled"])
def test_only_a_completed_run_is_a_baseline(store: Storage, status: str) -> None:
    run = new_run(store, status=status, owner="elsewhere:1:2")
    with pytest.raises(ConfigError, match=f"run {run.id} is {status}; a baseline is a completed run"):
        store.set_baseline("main", run, by="me", at=AT)
    assert store.list_baselines() == []


def test_a_deleted_run_cannot_become_a_baseline(store: Storage) -> None:
    run = new_run(store)
    store.delete_run(run.id)
    with pytest.raises(ConfigError, match=f"no run '{run.id}'; it was deleted"):
        store.set_baseline("main", run, by="me", at=AT)


def test_the_run_of_a_baseline_is_not_deleted(store: Storage) -> None:
    run = new_run(store)
    store.set_baseline("main", run, by="me", at=AT)
    with pytest.raises(
        ConfigError, match=f"run '{run.id}' is the baseline 'main' of the suite 'capitals'; set another"
    ):
        store.delete_run(run.id)
    assert store.get_run(run.id) == run
    store.clear_baseline("main")
    assert store.delete_run(run.id)


@pytest.mark.parametrize(
    "name", ["", "a b", "a/b", ".x", "-x", "ä", "x" * 101, "main\n", "main\0", "latest", "latest~1"]
)
def test_an_invalid_name_is_refused(store: Storage, name: str) -> None:
    with pytest.raises(ConfigError, match=r"baseline name|'latest' is always the newest"):
        store.set_baseline(name, new_run(store), by="me", at=AT)
    assert store.list_baselines() == []


@pytest.mark.parametrize("name", ["main", "v1.2", "release-2026_11", "7", "x" * 100])
def test_a_valid_name_is_accepted(name: str) -> None:
    assert check_baseline_name(name) == name

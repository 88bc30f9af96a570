"""Records about judges, in every store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from gradeline.errors import ConfigError
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.trust_records import TrustRecord, latest_record, put_record, records

STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}
RECORD = TrustRecord("calibration", "capitals ☃", "quality", "f1", "2026-01-15T10:00:00.000Z", '{"kappa": 0.7}')


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


def test_a_store_without_records_has_none(store: SharedStorage) -> None:
    assert latest_record(store, "calibration", suite="capitals") is None
    assert records(store, "calibration") == []


def test_the_latest_record_with_these_names_is_found(store: SharedStorage) -> None:
    first = put_record(store, RECORD)
    other = put_record(store, RECORD._replace(grader="tone"))
    second = put_record(store, RECORD._replace(judge="f2", body="{}"))
    probe = put_record(store, RECORD._replace(kind="probe"))
    assert len({first, other, second, probe}) == 4
    assert latest_record(store, "calibration", suite="capitals ☃", grader="quality") == RECORD._replace(
        judge="f2", body="{}", n=second
    )
    assert latest_record(store, "calibration", grader="quality", judge="f1") == RECORD._replace(n=first)
    assert latest_record(store, "calibration", suite="other") is None
    assert [one.n for one in records(store, "calibration")] == [first, other, second]


def test_records_are_read_in_pages(store: SharedStorage) -> None:
    numbers = [put_record(store, RECORD._replace(body=f'{{"n": {number}}}')) for number in range(5)]
    page = records(store, "calibration", limit=2)
    assert [one.n for one in page] == numbers[:2]
    assert [one.n for one in records(store, "calibration", after=page[-1].n)] == numbers[2:]


def test_threads_may_add_the_first_records_at_the_same_time(store: SharedStorage) -> None:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(put_record(store, RECORD))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 4


def test_another_kind_of_storage_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"store: expected a store in SQLite or PostgreSQL, got 'Odd'"):
        put_record(type("Odd", (), {})(), RECORD)

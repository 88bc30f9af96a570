"""The owner of a run: ``running`` means that a live process owns it, ``interrupted`` that its owner has ended."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from gradeline.engine import lifecycle
from gradeline.engine.lifecycle import ProcessLock
from gradeline.model import Run
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage, open_storage
from gradeline.store.database import SharedStorage
from gradeline.store.leases import LEASE_S, is_alive, this_process

ELSEWHERE = "another-host/1:12:345"


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    if request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path') / 'store.db'}"
    else:
        url = str(request.getfixturevalue("postgres_url"))
    with open_storage(url) as storage:
        assert isinstance(storage, SqliteStorage | PostgresStorage)
        yield storage


@pytest.fixture(scope="module")
def dead() -> str:
    """A process of this host that has ended."""
    script = "from gradeline.store.leases import this_process; print(this_process(), end='')"
    return subprocess.check_output([sys.executable, "-c", script], text=True)


def status(store: SharedStorage, run: str) -> str:
    """As returned by every reading method."""
    found = store.get_run(run)
    assert found is not None
    assert found.status == store.find_run(run).status == store.find_run("latest").status
    assert found.status == store.list_runs()[0].status
    return found.status


def saved(store: SharedStorage, stored: str, owner: str | None) -> str:
    return store.save_run(Run(name="n", suite="s", status=stored, owner=owner))  # type: ignore[arg-type]


class TestStatus:
    def test_a_run_of_this_process_is_running(self, store: SharedStorage) -> None:
        assert status(store, saved(store, "running", this_process())) == "running"

    def test_a_run_of_a_dead_process_is_interrupted(self, store: SharedStorage, dead: str) -> None:
        assert status(store, saved(store, "running", dead)) == "interrupted"

    def test_a_run_without_an_owner_is_interrupted(self, store: SharedStorage) -> None:
        assert status(store, saved(store, "running", None)) == "interrupted"

    def test_a_pending_run_of_a_dead_process_is_interrupted(self, store: SharedStorage, dead: str) -> None:
        assert status(store, saved(store, "pending", dead)) == "interrupted"
        assert status(store, saved(store, "pending", this_process())) == "pending"

    def test_a_run_in_the_queue_of_a_service_is_pending(self, store: SharedStorage) -> None:
        assert status(store, saved(store, "pending", None)) == "pending"

    @pytest.mark.parametrize("ended", ["completed", "failed", "cancelled"])
    def test_a_run_that_ended_stays_so(self, store: SharedStorage, dead: str, ended: str) -> None:
        assert status(store, saved(store, ended, dead)) == ended

    def test_a_process_elsewhere_is_judged_by_its_heartbeat(self, store: SharedStorage) -> None:
        run = saved(store, "running", "one")
        assert store.claim_run(run, ELSEWHERE, "one") is not None
        assert status(store, run) == "running"
        past = "UPDATE run_heartbeats SET at = ?"
        for seconds, expected in ((LEASE_S - 30, "running"), (LEASE_S + 30, "interrupted")):
            moment = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(time.time() - seconds))
            store.database.transact(lambda transaction, moment=moment: transaction.run(past, moment))  # type: ignore[misc]
            assert status(store, run) == expected

    def test_a_process_elsewhere_that_never_wrote_one_is_unknown_and_counts_as_alive(
        self, store: SharedStorage
    ) -> None:
        assert status(store, saved(store, "running", ELSEWHERE)) == "running"

    def test_reading_the_status_does_not_store_it(self, store: SharedStorage, dead: str) -> None:
        run = saved(store, "running", dead)
        assert store.update_run(run, seed=3).seed == 3
        assert store.database.read("SELECT run FROM runs")[0][0].count('"status":"running"') == 1

    def test_an_interrupted_run_can_be_claimed(self, store: SharedStorage, dead: str) -> None:
        run = saved(store, "running", dead)
        claimed = store.claim_run(run, this_process(), dead)
        assert claimed is not None
        assert status(store, run) == "running"

    def test_a_store_in_memory_reports_the_status(self, dead: str) -> None:
        with InMemoryStorage() as store:
            run = store.save_run(Run(name="n", suite="s", status="running", owner=dead))
            assert [one.status for one in (store.find_run(run), *store.list_runs())] == ["interrupted"] * 2


class TestHeartbeat:
    def test_it_is_renewed_while_a_run_is_claimed(self, store: SharedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(lifecycle, "HEARTBEAT_S", 0.01)
        process_lock = ProcessLock(store, Run(id=saved(store, "pending", None), name="n", suite="s"))
        run = process_lock.begin()
        for _ in range(2):
            store.database.transact(lambda transaction: transaction.run("DELETE FROM run_heartbeats"))
            while not store.database.read("SELECT run FROM run_heartbeats"):
                time.sleep(0.01)
        process_lock.end(status="completed")
        store.database.transact(lambda transaction: transaction.run("DELETE FROM run_heartbeats"))
        time.sleep(0.05)
        assert store.database.read("SELECT run FROM run_heartbeats") == []
        assert status(store, run.id) == "completed"

    def test_it_is_deleted_with_its_run(self, store: SharedStorage) -> None:
        run = saved(store, "pending", None)
        store.claim_run(run, ELSEWHERE, None)
        assert store.delete_run(run)
        assert store.database.read("SELECT run FROM run_heartbeats") == []


class TestAlive:
    def test_a_process_in_another_container_of_this_host_is_unknown(self) -> None:
        host, pid, start = this_process().rsplit(":", 2)
        if "/" not in host:
            pytest.skip("this system has no PID namespaces")
        assert is_alive(f"{host}0:{pid}:{start}") is None

    def test_an_owner_of_an_earlier_version_has_only_the_host_name(self, dead: str) -> None:
        for owner, alive in ((this_process(), True), (dead, False)):
            host, pid, start = owner.rsplit(":", 2)
            assert is_alive(f"{host.partition('/')[0]}:{pid}:{start}") is alive

    @pytest.mark.parametrize("owner", ["someone", "a:b:c", "::"])
    def test_an_owner_that_is_not_a_process_is_unknown(self, owner: str) -> None:
        assert is_alive(owner) is None

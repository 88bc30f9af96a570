"""Servers that are killed, stopped, frozen or run twice: every run ends, and nothing is lost or done twice."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from gradeline.service.settings import ServeSettings
from gradeline.store import SqliteStorage, open_storage
from gradeline.store.postgres import PostgresStorage

sys.path.insert(0, str(Path(__file__).parent))

from live import EchoAgent, Server, suite_of

CASES = 200
AT_ONCE = 10


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The location of a store that several servers share."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


def stored(store: str) -> dict[str, Any]:
    """The content of the database, read directly."""
    with open_storage(store) as storage:
        assert isinstance(storage, SqliteStorage | PostgresStorage)
        read = storage.database.read
        if isinstance(storage, SqliteStorage):
            assert read("PRAGMA integrity_check") == [("ok",)]
        events: dict[str, list[int]] = {}
        for run, n in read("SELECT run, n FROM run_events ORDER BY run, n"):
            events.setdefault(run, []).append(n)
        return {
            "responses": Counter(run for (run,) in read("SELECT run FROM responses")),
            "graded": set(read("SELECT run, case_key FROM grades")),
            "counted": dict(read("SELECT run, CAST(sum(count) AS BIGINT) FROM response_counts GROUP BY run")),
            "events": events,
        }


def start(server: Server, agent: EchoAgent, prefix: str, cases: int = CASES) -> str:
    found: str = server.data(
        "POST", "/api/evaluations", {"suite": suite_of(agent, cases, prefix=prefix, concurrency=AT_ONCE)}
    )["id"]
    return found


def test_three_runs_continue_by_themselves_after_a_kill(store: str) -> None:
    seen: list[tuple[str, str]] = []
    with EchoAgent(0.005) as agent:
        with Server(store) as server:
            runs = [start(server, agent, prefix) for prefix in "abc"]
            agent.wait_for(CASES)
            for event in server.events(runs[0], 0):
                if event.kind == "result":
                    seen.append((runs[0], event.data["test_case_id"]))
                if len(seen) == 20:
                    break
            server.kill()
        with Server(store) as server:
            ended = [server.until_ended(run) for run in runs]
            assert server.terminate() == 0
    whole = {"total": CASES, "answered": CASES, "graded": CASES, "errors": 0}
    assert [(run["status"], run["progress"]) for run in ended] == [("completed", whole)] * 3
    now = stored(store)
    assert now["responses"] == now["counted"] == dict.fromkeys(runs, CASES)
    assert set(seen) <= now["graded"]
    assert len(now["graded"]) == 3 * CASES
    assert all(ids == list(range(1, len(ids) + 1)) for ids in now["events"].values())
    assert agent.total <= 3 * CASES + 3 * AT_ONCE, "only what was in flight is asked again"
    assert len(agent.calls) == 3 * CASES


def test_two_servers_on_one_store_call_no_case_twice(store: str) -> None:
    with EchoAgent(0.002) as agent, Server(store) as one, Server(store) as two:
        runs = [start(server, agent, f"{n}") for n, server in enumerate((one, two) * 3)]
        ended = [two.until_ended(run) for run in runs]
        assert [run["status"] for run in ended] == ["completed"] * 6
        assert set(agent.calls.values()) == {1}
        assert agent.total == 6 * CASES
    assert stored(store)["responses"] == dict.fromkeys(runs, CASES)


def test_a_server_that_was_frozen_finds_its_run_taken_and_stores_nothing_more(store: str) -> None:
    with EchoAgent() as agent, Server(store, lease_s=0.5) as frozen, Server(store, lease_s=0.5) as other:
        agent.may_answer.clear()
        run = start(frozen, agent, "z", 40)
        agent.wait_for(AT_ONCE)
        owner = frozen if held_by(store) == frozen.pid else other
        heir = other if owner is frozen else frozen
        owner.signal(signal.SIGSTOP)
        agent.wait_for(2 * AT_ONCE)
        agent.may_answer.set()
        ended = heir.until_ended(run)
        owner.signal(signal.SIGCONT)
        # the one that was frozen answers again, and knows how the run ended
        assert owner.until_ended(run) == ended
        assert ended["status"] == "completed"
        after = start(owner, agent, "y", 5)
        assert owner.until_ended(after)["status"] == "completed"
    now = stored(store)
    assert now["responses"] == {run: 40, after: 5}
    assert all(ids == list(range(1, len(ids) + 1)) for ids in now["events"].values())
    assert agent.total <= 45 + AT_ONCE


def held_by(store: str) -> int:
    """The process that works on the only run."""
    with open_storage(store) as storage:
        assert isinstance(storage, SqliteStorage | PostgresStorage)
        ((owner,),) = storage.database.read("SELECT owner FROM jobs")
    return int(owner.split("|")[0].rsplit(":", 2)[1])


@pytest.mark.parametrize(
    "place",
    ["response-received", "response-stored:7", "batch-written:3", "batch-committed:3", "run-ending", "run-ended"],
)
def test_a_server_that_dies_at_any_step_loses_nothing(tmp_path: Path, place: str) -> None:
    store = str(tmp_path / "store.db")
    with EchoAgent() as agent:
        with Server(store, failpoint=place) as server:
            run = start(server, agent, "k", 30)
            server.wait()
        acknowledged = set(stored(store)["graded"])
        with Server(store) as server:
            assert server.until_ended(run)["progress"] == {"total": 30, "answered": 30, "graded": 30, "errors": 0}
    now = stored(store)
    assert now["responses"] == now["counted"] == {run: 30}
    assert acknowledged <= now["graded"]
    assert now["events"] == {run: list(range(1, len(now["events"][run]) + 1))}
    assert agent.total <= 30 + AT_ONCE


def test_a_stopping_server_releases_its_run(store: str) -> None:
    with EchoAgent() as agent:
        with Server(store) as server:
            agent.may_answer.clear()
            run = start(server, agent, "g", 30)
            agent.wait_for(AT_ONCE)
            # nothing is answered: the calls in flight are given up
            assert server.terminate() == 0
        agent.may_answer.set()
        with Server(store) as server:
            assert server.until_ended(run)["status"] == "completed"
    assert stored(store)["responses"] == {run: 30}
    assert agent.total <= 30 + AT_ONCE


def test_a_second_signal_to_a_server_that_stops_is_not_held_against_its_run(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    with EchoAgent() as agent, open_storage(store) as storage:
        assert isinstance(storage, SqliteStorage)
        agent.may_answer.clear()
        run = ""
        for servers in (1, 2):  # two deaths would quarantine it
            with Server(store) as server:
                run = run or start(server, agent, "q", 1)
                # a run without a call in flight would be released at once, and the server would end by itself
                agent.wait_for(servers)
                server.signal(signal.SIGTERM)
                while not storage.database.read("SELECT 1 FROM jobs WHERE wanted = 'stop'"):
                    time.sleep(0.02)
                server.signal(signal.SIGTERM)
                server.wait()
                assert server.returncode == 128 + signal.SIGTERM
        agent.may_answer.set()
        with Server(store) as server:
            assert server.until_ended(run)["status"] == "completed"


def test_calls_in_flight_when_a_server_stops_are_stored(store: str) -> None:
    with EchoAgent(0.05) as agent:
        with Server(store) as server:
            run = start(server, agent, "f", 100)
            agent.wait_for(20)
            assert server.terminate() == 0
        asked = agent.total
        assert asked < 100
        assert stored(store)["responses"] == {run: asked}
        with Server(store) as server:
            assert server.until_ended(run)["status"] == "completed"
        assert set(agent.calls.values()) == {1}


def test_a_draining_server_refuses_new_requests_and_finishes_those_in_flight(store: str) -> None:
    with EchoAgent() as agent:
        with Server(store, "--drain-seconds", "120") as server:
            agent.may_answer.clear()
            run = start(server, agent, "d", 30)
            agent.wait_for(AT_ONCE)
            server.signal(signal.SIGTERM)
            while server.call("GET", "/api/ready")[0] == 200:
                time.sleep(0.01)
            for method, path, body in (
                ("GET", "/api/ready", None),
                ("GET", "/api/evaluations", None),
                ("POST", "/api/evaluations", {"suite": suite_of(agent, 1)}),
            ):
                status, code, message, retry = server.error(method, path, body)
                assert (status, code, retry) == (503, "RATE_LIMITED", "5")
                assert "draining" in message
            assert server.call("GET", "/api/health")[0] == 200
            agent.may_answer.set()
            server.wait()
            assert server.returncode == 0
        assert stored(store)["responses"] == {run: AT_ONCE}
        with Server(store) as server:
            assert server.until_ended(run)["status"] == "completed"
    assert stored(store)["responses"] == {run: 30}
    assert set(agent.calls.values()) == {1}


def test_a_request_with_a_key_is_done_once_also_when_the_answer_was_lost_by_a_kill(store: str) -> None:
    key = {"Idempotency-Key": "once"}
    with EchoAgent() as agent:
        body = {"suite": suite_of(agent, 3)}
        with Server(store, failpoint="run-saved") as server, suppress(OSError, HTTPException):
            server.call("POST", "/api/evaluations", body, **key)  # the server dies while it answers, or just after
        with Server(store) as server:
            status, again = server.call("POST", "/api/evaluations", body, **key)
            assert (status, server.data("GET", "/api/evaluations")["total"]) == (201, 1)
            assert server.until_ended(again["data"]["id"])["status"] == "completed"
            assert set(agent.calls.values()) == {1}


def test_a_frozen_process_keeps_no_row_locked_beyond_its_lease(postgres_url: str) -> None:
    with open_storage(postgres_url) as storage:
        assert isinstance(storage, PostgresStorage)
        ((idle,),) = storage.database.read("SELECT setting FROM pg_settings WHERE name LIKE 'idle_in_trans%'")
    assert 0 < int(idle) < 1000 * ServeSettings(store=postgres_url).lease_s

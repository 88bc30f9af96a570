"""Faults under a running service (disk, database, file descriptors): it reports them, recovers and loses nothing."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gradeline.service.service import Service
from gradeline.store import SqliteStorage, open_storage
from gradeline.store.postgres import PostgresStorage

from .conftest import Call

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent))

from live import EchoAgent, Server, suite_of

from postgres_server import Server as Postgres

CASE = {"input": "q", "expected_output": "a"}
AT_ONCE = 10


def start(server: Server, agent: EchoAgent, cases: int, prefix: str = "q") -> str:
    suite = suite_of(agent, cases, prefix=prefix, concurrency=AT_ONCE)
    found: str = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
    return found


def stored(store: str) -> Counter[str]:
    """The number of answers of each run in the database."""
    with open_storage(store) as storage:
        assert isinstance(storage, SqliteStorage | PostgresStorage)
        return Counter(run for (run,) in storage.database.read("SELECT run FROM responses"))


def why_no_mounts() -> str | None:
    """Why no separate disk can be mounted; None if it can."""
    probe = [*_private_mounts(), "mount", "-t", "tmpfs", "none", "/mnt"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False) if shutil.which("unshare") else None
    return None if done is not None and done.returncode == 0 else "no file system can be mounted here (unshare -Urm)"


def _private_mounts() -> list[str]:
    return ["unshare", "--user", "--map-root-user", "--mount"]


def on_a_small_disk(folder: Path, size: str) -> list[str]:
    """Runs a program with a disk of this size in the folder, visible only to it."""
    return [*_private_mounts(), "sh", "-c", f'mount -t tmpfs -o size={size} none "$0" && exec "$@"', str(folder)]


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as opened, suppress(OSError):
        while True:
            opened.write(bytes(4096))


@pytest.mark.skipif(why_no_mounts() is not None, reason=str(why_no_mounts()))
def test_a_full_disk_is_reported_and_runs_continue_when_there_is_space_again(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    store = folder / "store.db"
    with EchoAgent() as agent, Server(store, through=on_a_small_disk(folder, "8m")) as server:
        agent.may_answer.clear()
        kept = server.data("POST", "/api/test-cases", CASE)["id"]
        run = start(server, agent, 100)
        agent.wait_for(AT_ONCE)
        inside = Path(f"/proc/{server.pid}/root") / folder.relative_to("/")
        fill(inside / "filler")
        agent.may_answer.set()
        large = {"input": "q" * 10_000, "expected_output": "a" * 10_000}
        refused = [server.call("POST", "/api/test-cases", large)[0] for _ in range(200)]
        assert set(refused) <= {201, 507}, "small rows may still find room in the log"
        status, code, message, wait = server.error("POST", "/api/test-cases", large)
        assert (status, code, wait) == (507, "STORAGE_UNAVAILABLE", "5")
        assert message.startswith("The store cannot grow: the disk is full.")
        assert server.call("GET", "/api/health")[0] == 200
        assert server.data("GET", f"/api/test-cases/{kept}")["input"] == "q", "what is there can be read"
        (inside / "filler").unlink()
        server.until_ready()
        ended = server.until_ended(run)
        assert (ended["status"], ended["progress"]["graded"]) == ("completed", 100)
        assert server.data("GET", "/api/test-cases?limit=1")["total"] == 1 + refused.count(201)
        assert set(agent.calls) == {f"q {n}" for n in range(100)}


class TestFailingSync:
    @staticmethod
    def under_strace(folder: Path) -> list[str]:
        # -D: the server, not strace, is the process that the test knows and ends
        options = ["-D", "-f", "-qq", "-o", str(folder / "trace"), "-e", "trace=fdatasync"]
        return ["strace", *options, "-e", "inject=fdatasync:error=EIO:when=40+"]

    @pytest.mark.skipif(shutil.which("strace") is None, reason="strace is absent (Debian: apt-get install strace)")
    def test_nothing_more_is_acknowledged_until_the_store_is_reopened(self, tmp_path: Path) -> None:
        store = tmp_path / "store.db"
        with Server(store):
            """Create the tables first, so that the fault happens during work."""
        with EchoAgent(0.01) as agent:
            acknowledged: list[str] = []
            with Server(store, through=self.under_strace(tmp_path)) as server:
                run = start(server, agent, 200)
                while (answer := server.call("POST", "/api/test-cases", CASE))[0] == 201:
                    acknowledged.append(answer[1]["data"]["id"])
                    assert len(acknowledged) < 500
                assert (answer[0], answer[1]["error"]["code"]) == (503, "STORAGE_UNAVAILABLE")
                assert server.call("POST", "/api/test-cases", CASE)[0] == 503
                assert (server.call("GET", "/api/ready")[0], server.call("GET", "/api/health")[0]) == (503, 200)
            with Server(store) as server:
                ended = server.until_ended(run)
                assert (ended["status"], ended["progress"]["graded"]) == ("completed", 200)
                assert all(server.call("GET", f"/api/test-cases/{case}")[0] == 200 for case in acknowledged)
        assert stored(str(store)) == {run: 200}


def test_a_database_that_crashes_is_found_again_and_nothing_is_lost(postgres_server: Postgres) -> None:
    with EchoAgent(0.01) as agent, Server(postgres_server.url) as server, ThreadPoolExecutor(2) as threads:
        runs = [start(server, agent, 100, prefix) for prefix in "ab"]
        agent.wait_for(50)
        postgres_server.halt("immediate")
        ready = threads.submit(server.error, "GET", "/api/ready")
        posted = threads.submit(server.error, "POST", "/api/test-cases", CASE)
        assert server.call("GET", "/api/health")[0] == 200
        assert ready.result()[:2] == (503, "STORAGE_UNAVAILABLE")
        status, code, _, wait = posted.result()
        assert (status, code, wait) == (503, "STORAGE_UNAVAILABLE", "5")
        postgres_server.start()
        server.until_ready()
        ended = [server.until_ended(run) for run in runs]
        whole = {"total": 100, "answered": 100, "graded": 100, "errors": 0}
        assert [(run["status"], run["progress"]) for run in ended] == [("completed", whole)] * 2
        assert server.call("POST", "/api/test-cases", CASE)[0] == 201
    assert stored(postgres_server.url) == dict.fromkeys(runs, 100)
    assert agent.total <= 200 + 2 * AT_ONCE, "only what was in flight is asked again"


def test_a_store_locked_by_another_process_is_reported_as_busy(service: Service, call: Call) -> None:
    connection = service.storage._pool.connection  # type: ignore[attr-defined]
    connection.execute("PRAGMA busy_timeout = 100")  # else each write waits for five seconds
    with EchoAgent(0.01) as agent:
        run = call("POST", "/api/evaluations", json={"suite": suite_of(agent, 100)}).data["id"]
        agent.wait_for(20)
        with closing(sqlite3.connect(service.settings.store, isolation_level=None, timeout=30)) as other:
            other.execute("BEGIN IMMEDIATE")
            refused = call("POST", "/api/test-cases", json=CASE)
            assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
            assert refused.error == {"code": "STORAGE_UNAVAILABLE", "message": "The store is busy; retry"}
            assert call("GET", "/api/ready").status == 503
            assert call("GET", "/api/test-cases").data["total"] == 0, "reading goes on"
            other.execute("ROLLBACK")
        assert call("POST", "/api/test-cases", json=CASE).status == 201
        ended = [event for event in follow(call, run) if event == "done"]
        assert ended == ["done"]
        shown = call("GET", f"/api/evaluations/{run}").data
        assert shown["progress"] == {"total": 100, "answered": 100, "graded": 100, "errors": 0}
    assert stored(service.settings.store) == {run: 100}


def follow(call: Call, run: str) -> list[str]:
    """The kinds of a run's events, once the stream has ended with the run."""
    text = call("GET", f"/api/evaluations/{run}/events").body
    return [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fifty_requests_with_one_key_make_one_run(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    store: str = str(tmp_path / "store.db") if kind == "sqlite" else request.getfixturevalue("postgres_url")

    def post(server: Server) -> tuple[int, str | None, Any]:
        connection, response = server._sent("POST", "/api/evaluations", body, {"Idempotency-Key": "once"})
        with closing(connection):
            replayed = response.getheader("Idempotent-Replayed")
            return response.status, replayed, json.loads(response.read())

    with EchoAgent() as agent, Server(store) as one, Server(store) as two, ThreadPoolExecutor(50) as threads:
        body = {"suite": suite_of(agent, 3)}
        answers = list(threads.map(post, [one, two] * 25))
        made = [answer for status, replayed, answer in answers if (status, replayed) == (201, None)]
        again = [answer for status, replayed, answer in answers if (status, replayed) == (201, "true")]
        busy = [answer for status, _, answer in answers if status == 409]
        assert (len(made), len(made) + len(again) + len(busy)) == (1, 50)
        run = made[0]["data"]["id"]
        assert {answer["data"]["id"] for answer in again} <= {run}
        assert {answer["error"]["code"] for answer in busy} <= {"CONFLICT"}
        assert post(two)[:2] == (201, "true")
        assert two.until_ended(run)["status"] == "completed"
        assert one.data("GET", "/api/evaluations")["total"] == 1
        assert set(agent.calls.values()) == {1}


def test_a_kill_while_it_drains_is_a_kill_like_any_other(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    with EchoAgent() as agent:
        with Server(store) as server:
            agent.may_answer.clear()
            run = start(server, agent, 30)
            agent.wait_for(AT_ONCE)
            readers = server.events(run)
            next(readers)
            server.signal(signal.SIGTERM)
            for _ in readers:
                """Wait until the stream is closed: from then on the server drains."""
            server.kill()
        agent.may_answer.set()
        with Server(store) as server:
            assert server.until_ended(run)["progress"] == {"total": 30, "answered": 30, "graded": 30, "errors": 0}
    assert stored(store) == {run: 30}
    assert agent.total <= 30 + AT_ONCE


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is absent (Debian: apt-get install strace)")
def test_a_kill_during_the_creation_of_tables_is_repaired_by_the_next_start(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    for nth in (1, 3, 5, 7, 9):
        options = ["-D", "-f", "-qq", "-o", str(tmp_path / "trace"), "-e", "trace=fdatasync"]
        with pytest.raises(AssertionError, match="it did not start"):
            Server(store, through=["strace", *options, "-e", f"inject=fdatasync:signal=SIGKILL:when={nth}"])
    with EchoAgent() as agent, Server(store) as server:
        run = start(server, agent, 5)
        assert server.until_ended(run)["progress"] == {"total": 5, "answered": 5, "graded": 5, "errors": 0}


def test_without_descriptors_callers_are_sent_away_and_it_recovers(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    # 24 of them are for callers that are served, 6 of one address, 12 for those who are sent away, the run and the
    # store need some 35
    with EchoAgent(0.01) as agent, Server(store, descriptors=96) as server:
        place = urlsplit(server.url)
        assert place.hostname is not None
        assert place.port is not None
        run = start(server, agent, 60)
        with ExitStack() as opened:

            def idle_from(network: int, number: int) -> list[socket.socket]:
                sources = [(f"127.0.{network}.{1 + n // 5}", 0) for n in range(number)]
                there = (place.hostname or "", place.port or 0)
                opening = (socket.create_connection(there, timeout=30, source_address=source) for source in sources)
                return [opened.enter_context(one) for one in opening]

            idle = idle_from(1, 28)
            status, code, message, wait = server.error("GET", "/api/test-cases")
            assert (status, code, wait) == (503, "RATE_LIMITED", "5")
            assert message == "Too many open connections; retry in 5 s"
            assert server.call("GET", "/api/health")[0] == 200
            # of still more not even the request is read, and what it works on has descriptors of its own
            more = idle_from(2, 40)
            assert more[-1].recv(1) == b""
            agent.wait_for(60)
            assert len(idle) == 28
        server.until_ready()
        assert server.until_ended(run)["progress"] == {"total": 60, "answered": 60, "graded": 60, "errors": 0}


def test_an_agent_that_is_down_ends_the_run_early_with_the_reason(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/ask"
    suite = {
        "name": "down",
        "target": {"kind": "http", "url": url, "retries": 0},
        "graders": {"exact": {"kind": "exact_match"}},
        "concurrency": 1,
        "dataset": [{"id": f"q{n}", "input": "q", "ground_truth": "q"} for n in range(60)],
    }
    with Server(tmp_path / "store.db") as server:
        run = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
        ended = server.until_ended(run)
    assert ended["status"] == "failed"
    assert "the agent cannot be reached: 20 calls in a row failed" in ended["error_message"]
    assert f"POST {url}: could not connect: Connection refused" in ended["error_message"]
    assert stored(str(tmp_path / "store.db"))[run] == 20

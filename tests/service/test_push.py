"""``gradeline push`` and ``upload_run`` to real servers, of which some, and some senders, are killed in the middle."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from gradeline.client import ApiError, AsyncClient, Client, ServiceUnreachableError, UploadProgress
from gradeline.errors import ConfigError
from gradeline.model import Run
from gradeline.model.baseline import Baseline
from gradeline.store import SqliteStorage, open_storage
from gradeline.store.database import SharedStorage
from gradeline_command import COMMAND, run_command, start_command

sys.path.insert(0, str(Path(__file__).parent))

from live import PATIENCE_S, Server, new_key, with_keys
from uploaded_runs import content_in, new_run

CASES = 1500
"""Three parts."""


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The store of the service."""
    if request.param == "sqlite":
        return str(tmp_path / "team.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def team(tmp_path: Path) -> str:
    return str(tmp_path / "team.db")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "local.db") as storage:
        yield storage


def push(folder: Path, server: str, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a push of the newest run."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GRADELINE_")}
    command = [COMMAND, "push", "latest", "--store", str(folder / "local.db"), "--to", server, *arguments]
    done = run_command(command, text=True, env={**variables, **environment})
    return done.returncode, done.stdout, done.stderr


def in_store(store: str, run: str) -> Any:
    with open_storage(store) as storage:
        assert isinstance(storage, SharedStorage)
        return content_in(storage, run)


def received(store: str) -> int:
    """The cases of the only upload that are stored."""
    with open_storage(store) as storage:
        assert isinstance(storage, SharedStorage)
        ((number,),) = storage.database.read("SELECT received FROM uploads")
        return int(number)


class Gate:
    """A proxy that stops forwarding after a number of connections, and holds those that follow."""

    def __init__(self, url: str, connections: int) -> None:
        self._target = urlsplit(url)
        self._left = connections
        self.holding = Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                self._open.append(caller)
                if not self._left:
                    self.holding.set()
                    continue
                self._left -= 1
                service = socket.create_connection((self._target.hostname or "", self._target.port or 0))
                self._open.append(service)
                Thread(target=_forward, args=(caller, service, urlsplit(self.url).netloc, self._target.netloc)).start()
                Thread(target=_forward, args=(service, caller)).start()


def _forward(source: socket.socket, sink: socket.socket, own: str = "", target: str = "") -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            # the service answers to its own address only
            sink.sendall(data.replace(f"Host: {own}".encode(), f"Host: {target}".encode()))
        sink.shutdown(socket.SHUT_WR)


def test_a_pushed_run_is_the_same_in_the_service_and_is_pushed_once(
    tmp_path: Path, store: str, local: SqliteStorage
) -> None:
    run = new_run(local, CASES)
    with Server(store) as server:
        code, out, err = push(tmp_path, server.url, "--set-baseline", "main")
        assert code == 0
        assert all(": sent " in line for line in err.splitlines()), "progress, after a second"
        page = f"{server.url}/#/runs/{run.id}"
        assert out == f"pushed {run.id} ({CASES + 1:,} cases) as the baseline main: {page}\n"
        code, out, _ = push(tmp_path, server.url, "--json")
        assert (code, json.loads(out)["url"], json.loads(out)["cases"]) == (0, page, CASES + 1)
        listed = server.data("GET", "/api/evaluations")["evaluations"]
        assert [(one["id"], one["baselines"]) for one in listed] == [(run.id, ["main"])]
    assert in_store(store, run.id) == content_in(local, run.id)


def test_a_push_whose_sender_is_killed_continues(tmp_path: Path, team: str, local: SqliteStorage) -> None:
    run = new_run(local, CASES)
    with Server(team) as server:
        with Gate(server.url, 2) as gate:
            command = [COMMAND, "push", run.id, "--store", str(tmp_path / "local.db"), "--to", gate.url]
            with start_command(command) as sender:
                assert gate.holding.wait(PATIENCE_S)
                sender.kill()
        stored = received(team)
        assert 0 < stored < CASES
        seen: list[UploadProgress] = []
        with Client(server.url) as client:
            client.upload_run(run.id, local, on_progress=seen.append)
        assert seen[0].received == stored, "nothing is sent twice"
    assert in_store(team, run.id) == content_in(local, run.id)


def test_ctrl_c_ends_a_push_with_one_line_and_it_can_be_repeated(
    tmp_path: Path, team: str, local: SqliteStorage
) -> None:
    run = new_run(local, CASES)
    with Server(team) as server:
        with Gate(server.url, 2) as gate:
            command = [COMMAND, "push", run.id, "--store", str(tmp_path / "local.db"), "--to", gate.url]
            with start_command(command) as sender:
                assert gate.holding.wait(PATIENCE_S)
                sender.send_signal(signal.SIGINT)
                out, err = sender.communicate(PATIENCE_S)
        assert (sender.returncode, out) == (130, "")
        assert err.splitlines()[-1] == "interrupted; push the run again to continue"
        assert push(tmp_path, server.url)[0] == 0
    assert in_store(team, run.id) == content_in(local, run.id)


@pytest.mark.parametrize("place", ["batch-begun:2", "batch-written:2", "batch-committed:2", "batch-written:4"])
def test_a_push_to_a_server_that_dies_at_any_step_continues(
    tmp_path: Path, store: str, local: SqliteStorage, place: str
) -> None:
    run = new_run(local, CASES)
    with Server(store, failpoint=place) as server:
        code, _, err = push(tmp_path, server.url)
        assert (code, "no response from" in err) == (4, True)
        server.wait()
    assert 0 < received(store) <= CASES
    with Server(store) as server:
        assert push(tmp_path, server.url)[0] == 0
    assert in_store(store, run.id) == content_in(local, run.id)


def test_several_pushes_of_one_run_at_once_store_it_once(store: str, local: SqliteStorage) -> None:
    run = new_run(local, CASES)
    failures: list[Exception] = []

    def upload(url: str) -> None:
        try:
            with Client(url) as client:
                client.upload_run(run.id, local)
        except ApiError as error:
            failures.append(error)

    with Server(store) as server:
        threads = [Thread(target=upload, args=(server.url,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert failures == []
        with Client(server.url) as client:
            assert client.upload_run(run.id, local).completed
    assert in_store(store, run.id) == content_in(local, run.id)


def test_the_asyncio_client_uploads_the_same(team: str, local: SqliteStorage) -> None:
    run = new_run(local, CASES)

    async def upload(url: str) -> tuple[bool, list[int]]:
        seen: list[UploadProgress] = []
        async with AsyncClient(url) as client:
            done = await client.upload_run("latest", local, on_progress=seen.append)
            assert await client.upload_run(run.id, local) == done
            with pytest.raises(ConfigError, match="no run 'nothing'"):
                await client.upload_run("nothing", local)
        return done.completed, [one.received for one in seen]

    with Server(team) as server:
        completed, seen = asyncio.run(upload(server.url))
    assert completed
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == CASES + 1
    assert in_store(team, run.id) == content_in(local, run.id)


def test_a_run_labelled_since_it_was_pushed_is_refused(tmp_path: Path, team: str, local: SqliteStorage) -> None:
    run = new_run(local)
    with Server(team) as server:
        assert push(tmp_path, server.url)[0] == 0
        local.put_clusters(run.id, [("case 0 é", "another")])
        code, _, err = push(tmp_path, server.url)
    assert (code, f"has a run {run.id} with other content" in err) == (4, True)


def test_the_runs_that_a_run_needs_are_pushed_first(tmp_path: Path, team: str, local: SqliteStorage) -> None:
    first = new_run(local)
    gate = {"kind": "regression", "baseline": first.id, "metric_key": "exact"}
    definition = json.dumps({"suite": "suite.yaml", "options": [], "rules": {"gate": gate}})
    second = new_run(local, definition=definition)
    child = local.save_run(Run(name="again", suite="capitals", status="completed", parent=second.id))
    with Server(team) as server:
        assert push(tmp_path, server.url)[0] == 0
        listed = server.data("GET", "/api/evaluations")["evaluations"]
        assert [one["id"] for one in listed] == [child, second.id]
        with Client(server.url) as client:
            client.upload_run(second.id, local)
        assert {one["id"] for one in server.data("GET", "/api/evaluations")["evaluations"]} == {
            *(first.id, second.id, child)
        }
        assert server.data("GET", f"/api/evaluations/{second.id}")["verdict"] is not None


def test_a_key_of_scope_run_pushes_and_no_other(tmp_path: Path, team: str, local: SqliteStorage) -> None:
    new_run(local)
    keys = {scope: new_key(team, scope)[1]["Authorization"].split()[1] for scope in ("read", "label", "run")}
    with Server(team, *with_keys(tmp_path)) as server:
        code, _, err = push(tmp_path, server.url)
        assert (code, "401" in err) == (4, True)
        for scope in ("read", "label"):
            code, _, err = push(tmp_path, server.url, GRADELINE_API_KEY=keys[scope])
            assert (code, "requires a key of scope 'run'" in err) == (4, True)
            assert keys[scope] not in err
        assert push(tmp_path, server.url, "--key-env", "TEAM", TEAM=keys["run"])[0] == 0


def test_a_run_larger_than_the_service_accepts_is_refused_with_the_remedy(
    tmp_path: Path, team: str, local: SqliteStorage
) -> None:
    new_run(local, CASES)
    with Server(team, "--max-upload-mb", "1") as server:
        code, _, err = push(tmp_path, server.url)
    assert code == 4
    assert (
        "this service accepts 1,000,000; its operator can raise the limit with gradeline serve --max-upload-mb" in err
    )
    with open_storage(team) as storage:
        assert storage.list_runs() == []


def test_secrets_of_the_sender_are_masked(tmp_path: Path, team: str, local: SqliteStorage) -> None:
    run = new_run(local, target={"kind": "http", "url": "https://agent.example/?key=sk-1234567890"})
    with Server(team) as server:
        assert push(tmp_path, server.url, AGENT_API_KEY="sk-1234567890", REGION="question")[0] == 0
        again = push(tmp_path, server.url, AGENT_API_KEY="sk-1234567890", PWD="/question")
        assert again[0] == 0, "a path is no secret"
    stored = in_store(team, run.id)
    assert stored[0].target == {"kind": "http", "url": "https://agent.example/?key=***"}
    assert "sk-1234" not in repr(stored)
    assert stored[1] == content_in(local, run.id)[1]


@pytest.mark.parametrize("status", ["running", "interrupted", "pending"])
def test_a_run_that_has_not_ended_is_not_pushed(tmp_path: Path, local: SqliteStorage, status: str) -> None:
    run = new_run(local)
    if status == "pending":
        local.update_run(run.id, status="pending")
    else:
        local.claim_run(run.id, "elsewhere:1:2" if status == "running" else "", None)
    code, _, err = push(tmp_path, "http://127.0.0.1:9")
    assert code == 2
    assert f"run {run.id} is {status}; finish it first with: gradeline resume {run.id}" in err


def test_a_service_that_is_not_there_is_one_line(tmp_path: Path, local: SqliteStorage) -> None:
    new_run(local)
    code, out, err = push(tmp_path, "http://127.0.0.1:9")
    assert (code, out) == (4, "")
    assert err.startswith("gradeline: no response from http://127.0.0.1:9:")
    code, _, err = push(tmp_path, "team.example")
    assert (code, "needs a scheme" in err) == (2, True)
    with Client("http://127.0.0.1:9") as client, pytest.raises(ServiceUnreachableError):
        client.upload_run("latest", local)


def test_a_baseline_is_found_by_its_name(tmp_path: Path, team: str, local: SqliteStorage) -> None:
    run = new_run(local)
    new_run(local)
    replaced: Baseline | None = local.set_baseline("main", run, by="me", at="2026-01-02T00:00:00Z")
    assert replaced is None
    with Server(team) as server, Client(server.url) as client:
        assert client.upload_run("main", tmp_path / "local.db", suite="capitals").run_id == run.id


SUITE = {
    "name": "capitals",
    "dataset": [{"id": f"case {number}", "input": "France", "ground_truth": "Paris"} for number in range(700)],
    "target": {"kind": "python", "function": "agent.py:answer"},
    "graders": {"exact": {"kind": "contains"}},
}


def run_with(folder: Path, store: str, *arguments: str, answer: str = "Paris") -> tuple[int, Any, str]:
    """Exit code, output and stderr of a run of the suite."""
    (folder / "suite.yaml").write_text(json.dumps(SUITE))
    (folder / "agent.py").write_text(f"def answer(text):\n    return {answer!r}\n")
    variables = {key: value for key, value in os.environ.items() if not key.startswith("GRADELINE_")}
    command = [COMMAND, "run", "suite.yaml", "--json", "--store", str(folder / store), *arguments]
    done = run_command(command, cwd=folder, text=True, env=variables)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_a_run_is_compared_with_a_baseline_of_the_service(tmp_path: Path, store: str) -> None:
    _, first, _ = run_with(tmp_path, "one.db")
    base = first["run"]["id"]
    with Server(store) as server:
        with Client(server.url) as client:
            client.upload_run("latest", tmp_path / "one.db")
            client.set_baseline("main", base)
        code, better, err = run_with(tmp_path, "two.db", "--baseline", f"{server.url}#main")
        assert (code, f"run '{base}'" in str(better["verdict"]["reasons"])) == (0, True)
        assert err.startswith(f"baseline main of {server.url}: {base}\n")
        code, worse, _ = run_with(tmp_path, "two.db", "--baseline", f"{server.url}#{base}", answer="Rome")
        assert (code, worse["verdict"]["result"]) == (1, "fail")
        code, _, err = run_with(tmp_path, "two.db", "--baseline", f"{server.url}#other")
        assert (code, "has no baseline 'other' of the suite 'capitals', and no such run" in err) == (2, True)
        assert run_with(tmp_path, "two.db", "--baseline", server.url)[0] == 2
        assert run_with(tmp_path, "two.db", "--baseline", "http://127.0.0.1:9#main")[0] == 4
    with open_storage(str(tmp_path / "one.db")) as one, open_storage(str(tmp_path / "two.db")) as two:
        assert isinstance(one, SharedStorage)
        assert isinstance(two, SharedStorage)
        assert content_in(two, base)[1:] == content_in(one, base)[1:]
        copied = two.get_run(base)
        assert copied is not None
        assert copied.definition is not None
        assert str(tmp_path) not in copied.definition
    command = [COMMAND, "regrade", base, "--store", str(tmp_path / "two.db")]
    refused = run_command(command, cwd=tmp_path, text=True)
    assert (refused.returncode, "was copied from another store, without its suite" in refused.stderr) == (2, True)
    assert run_command([*command, "--suite", "suite.yaml"], cwd=tmp_path, text=True).returncode == 0


def test_a_copied_run_is_the_same_with_its_parent_and_is_copied_once(
    tmp_path: Path, team: str, local: SqliteStorage
) -> None:
    parent = new_run(local, CASES)
    child = local.save_run(Run(name="again", suite="capitals", status="completed", parent=parent.id))

    async def download(url: str, run: str) -> str:
        async with AsyncClient(url) as client:
            return await client.download_run(run, tmp_path / "copy.db")

    with Server(team) as server:
        with Client(server.url) as client:
            client.upload_run(child, local)
            assert client.download_run(child, tmp_path / "copy.db") == child
        assert asyncio.run(download(server.url, child)) == child
        with pytest.raises(ApiError, match="No evaluation 'nothing'"):
            asyncio.run(download(server.url, "nothing"))
    for run in (parent.id, child):
        assert in_store(str(tmp_path / "copy.db"), run) == content_in(local, run)


def test_a_copy_that_was_interrupted_is_made_again(tmp_path: Path, team: str, local: SqliteStorage) -> None:
    run = new_run(local, CASES)
    with Server(team) as server, Client(server.url) as client:
        client.upload_run(run.id, local)
        with Gate(server.url, 3) as gate:
            command = [COMMAND, "run", "suite.yaml", "--store", str(tmp_path / "copy.db")]
            run_with(tmp_path, "other.db")
            with start_command([*command, "--baseline", f"{gate.url}#{run.id}"], cwd=tmp_path) as sender:
                assert gate.holding.wait(PATIENCE_S)
                sender.kill()
        with open_storage(str(tmp_path / "copy.db")) as storage:
            found = storage.get_run(run.id)
            assert found is not None
            assert found.status == "interrupted"
        client.download_run(run.id, tmp_path / "copy.db")
    assert in_store(str(tmp_path / "copy.db"), run.id) == content_in(local, run.id)


@pytest.mark.parametrize("owner", ["elsewhere:1:2", ""])
def test_a_run_of_this_store_that_has_not_ended_is_never_replaced_by_a_copy(
    tmp_path: Path, team: str, local: SqliteStorage, owner: str
) -> None:
    run = new_run(local)
    with Server(team) as server, Client(server.url) as client:
        client.upload_run(run.id, local)
        local.claim_run(run.id, owner, None)
        with pytest.raises(ConfigError, match="it is not a copy"):
            client.download_run(run.id, local)
    assert len(list(local.records(run.id))) == 10


def test_pages_of_a_copy_have_cursors_and_a_run_that_has_not_ended_has_none(team: str, local: SqliteStorage) -> None:
    run = new_run(local, CASES)
    with Server(team) as server:
        with Client(server.url) as client:
            client.upload_run(run.id, local)
        cases: list[str] = []
        page = server.data("GET", f"/api/uploads/{run.id}")
        while page["next_cursor"] is not None:
            assert 0 < len(page["cases"]) <= 500
            cases += page["cases"]
            page = server.data("GET", f"/api/uploads/{run.id}?cursor={page['next_cursor']}")
        cases += page["cases"]
        assert [json.loads(case)["position"] for case in cases] == list(range(CASES + 1))
        assert server.error("GET", f"/api/uploads/{run.id}?cursor=x")[0] == 400
        assert server.error("GET", "/api/uploads/nothing")[0] == 404


def test_a_job_is_compared_with_a_baseline_of_the_service_once_there_is_one(tmp_path: Path, team: str) -> None:
    (tmp_path / "suite.yaml").write_text(json.dumps({**SUITE, "graders": {"exact": {"kind": "contains"}}}))
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("GRADELINE_", "GITHUB_", "CI"))}

    def job(store: str, answer: str) -> tuple[int, Any, str]:
        (tmp_path / "agent.py").write_text(f"def answer(text):\n    return {answer!r}\n")
        command = [COMMAND, "ci", "suite.yaml", "--store", store, "--baseline", f"{server.url}#main"]
        done = run_command(command, cwd=tmp_path, text=True, env=variables)
        return done.returncode, json.loads((tmp_path / "gradeline-ci.json").read_text()), done.stderr

    with Server(team) as server:
        code, _, err = job("first.db", "Paris")
        assert (code, "has no baseline 'main' of the suite 'capitals'" in err) == (0, True)
        command = [COMMAND, "push", "latest", "--store", "first.db", "--to", server.url, "--set-baseline", "main"]
        assert run_command(command, cwd=tmp_path, env=variables).returncode == 0
        (base,) = server.data("GET", "/api/baselines")["baselines"]
        code, report, _ = job("second.db", "Rome")
    assert (code, report["runs"][0]["base"]) == (1, base["evaluation_id"])

"""A service whose runs are executed by a Ray cluster."""

from __future__ import annotations

import asyncio
import pickle
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from shutil import rmtree
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest

from gradeline.cli import run_cli as gradeline
from gradeline.engine.definition import RunOptions
from gradeline.engine.ray import cluster
from gradeline.engine.ray.worker import RunJob
from gradeline.errors import ConfigError, StoreError
from gradeline.model import Response, ResponseKey, Run
from gradeline.model.secrets import BoundSecret, SecretSet
from gradeline.service.auth import LOCAL_CALLER
from gradeline.service.claimed_run import ClaimedRun
from gradeline.service.run_access import ServiceEgress
from gradeline.service.runner import open_run_engine
from gradeline.service.service import build_service
from gradeline.service.settings import ServeSettings
from gradeline.service.suite_builder import EvaluationRequest
from gradeline.store import open_storage
from gradeline.store.postgres import PostgresStorage
from gradeline.suite.stored import stored_suite

sys.path.insert(0, str(Path(__file__).parent))

from live import EchoAgent, Server, suite_of

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install 'gradeline[ray]'")

CASES = 250
AT_ONCE = 10
RAY = ("--engine", "ray", "--ray-workers", "2")
SECRETS = {
    "agent": "planted-agent-secret-7d1f",
    "key": "planted-secret-key-of-the-service-0b52",
}
GRADER = """
from gradeline import GradeResult, grader

@grader
def says_it(sample, submission):
    return GradeResult(1.0 if submission == sample.ground_truth else 0.0)
"""


def start(server: Server, agent: EchoAgent, prefix: str, cases: int = CASES, **target: Any) -> str:
    suite = suite_of(agent, cases, prefix=prefix, concurrency=AT_ONCE)
    suite["target"] |= target
    found: str = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
    return found


def metrics_of(server: Server) -> str:
    with urlopen(f"{server.url}/api/metrics") as answer:
        return str(answer.read().decode())


def stored(store: str) -> dict[str, Any]:
    """The rows of each run, read directly from the database."""
    with open_storage(store) as storage:
        assert isinstance(storage, PostgresStorage)
        read = storage.database.read
        events: dict[str, list[int]] = {}
        for run, n in read("SELECT run, n FROM run_events ORDER BY run, n"):
            events.setdefault(run, []).append(n)
        return {
            "answered": Counter(run for (run,) in read("SELECT run FROM responses WHERE status = 'success'")),
            "responses": Counter(run for (run,) in read("SELECT run FROM responses")),
            "graded": Counter(run for (run,) in read("SELECT run FROM grades")),
            "gapless": all(ids == list(range(1, len(ids) + 1)) for ids in events.values()),
        }


@pytest.fixture
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a server's cluster; a short path, since the names of sockets are limited."""
    folder = Path(tempfile.mkdtemp(prefix="gl", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    rmtree(folder, ignore_errors=True)


class Redirecting(BaseHTTPRequestHandler):
    """Redirects every caller to a private address."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(307)
        self.send_header("Location", "http://10.255.255.1/ask")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def leading_astray() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirecting) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/ask"
        server.shutdown()


@needs_ray
def test_runs_share_the_cluster_without_leaking_data(
    postgres_url: str, scratch: Path, tmp_path: Path, leading_astray: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graders").mkdir()
    (tmp_path / "graders" / "own.py").write_text(GRADER)
    monkeypatch.setenv("GRADELINE_SECRET_KEY", SECRETS["key"])
    monkeypatch.chdir(tmp_path)
    options = (*RAY, "--runs-at-once", "2", "--graders-dir", "graders")
    with EchoAgent(0.005) as agent, Server(postgres_url, *options) as server:
        host = agent.url.removeprefix("http://").partition("/")[0]
        server.data("PUT", "/api/secrets/TOKEN", {"value": SECRETS["agent"], "host": host})
        rated = {"rate": {"calls": 100, "per": "second"}, "headers": {"Authorization": {"secret": "TOKEN"}}}
        agent.may_answer.clear()
        runs = [start(server, agent, prefix, **rated) for prefix in "ab"]
        agent.wait_for(2 * AT_ONCE)
        assert Counter(text[0] for text in agent.calls) == {"a": AT_ONCE, "b": AT_ONCE}, (
            "none waits for the other's end"
        )
        agent.may_answer.set()
        # the workers write the log, and the server's readers see it grow
        seen = list(server.events(runs[0], 0))
        assert [event.id for event in seen] == list(range(1, len(seen) + 1))
        assert Counter(event.kind for event in seen)["result"] == CASES
        assert seen[-1].data["status"] == "completed"
        whole = {"total": CASES, "answered": CASES, "graded": CASES, "errors": 0}
        assert [server.until_ended(run)["progress"] for run in runs] == [whole] * 2
        assert set(agent.calls.values()) == {1}
        assert agent.authorization == {SECRETS["agent"]}

        server.data("POST", "/api/test-cases", {"input": "hello", "expected_output": "hello", "tags": ["own"]})
        own = {"name": "own", "tag": "own", "agent_endpoint_url": agent.url, "grader_ids": ["says_it"]}
        graded = server.until_ended(server.data("POST", "/api/evaluations", own)["id"])
        (result,) = server.data("GET", f"/api/evaluations/{graded['id']}/results")["results"]
        assert [score["score_status"] for score in result["scores"]] == ["pass"]

        astray = server.until_ended(start(server, agent, "x", 3, url=leading_astray))
        assert (astray["status"], astray["progress"]["errors"]) == ("completed", 3)
        with open_storage(postgres_url) as storage:
            errors = {record.response.error for record in storage.records(astray["id"])}
        assert {(error.type, "refused by the egress policy" in error.message) for error in errors if error} == {
            ("connect", True)
        }

        assert 'gradeline_egress_refusals_total{place="connection"} 3' in metrics_of(server)

        files = [path for path in scratch.rglob("*") if path.is_file()]
        assert any(path.name.startswith("raylet") for path in files), "this is where the cluster has its files"
        assert [path for path in files if any(value.encode() in path.read_bytes() for value in SECRETS.values())] == []
        assert server.terminate() == 0
    assert list(scratch.iterdir()) == []


@needs_ray
def test_kill_stop_and_cancel_lose_and_duplicate_nothing(postgres_url: str, scratch: Path) -> None:
    with EchoAgent(0.01) as agent:
        with Server(postgres_url, *RAY) as server:
            killed = start(server, agent, "k")
            agent.wait_for(CASES // 3)
            server.kill()
        with Server(postgres_url, *RAY) as server:
            ended = server.until_ended(killed)
            assert (ended["status"], ended["progress"]["graded"]) == ("completed", CASES)
            assert len(agent.calls) == CASES
            assert agent.total <= CASES + AT_ONCE, "only what was in flight is asked again"

            agent.may_answer.clear()
            before = agent.total
            cancelled = start(server, agent, "c")
            agent.wait_for(before + AT_ONCE)
            server.data("POST", f"/api/evaluations/{cancelled}/cancel")
            assert server.until_ended(cancelled)["status"] == "cancelled"
            agent.may_answer.set()

            before = agent.total
            stopped = start(server, agent, "s")
            agent.wait_for(before + CASES // 3)
            assert server.terminate() == 0
            asked = {text for text in agent.calls if text.startswith("s ")}
            assert stored(postgres_url)["answered"][stopped] == len(asked), "what was in flight was finished"
        with Server(postgres_url) as server:
            assert server.until_ended(stopped)["status"] == "completed"
            assert {agent.calls[text] for text in agent.calls if text.startswith("s ")} == {1}
    assert stored(postgres_url) == {
        "answered": {killed: CASES, stopped: CASES},
        "responses": {killed: CASES, stopped: CASES},
        "graded": {killed: CASES, stopped: CASES},
        "gapless": True,
    }


def test_a_worker_can_store_nothing_more_when_another_server_has_the_run(postgres_url: str) -> None:
    settings = ServeSettings(store=postgres_url)
    service = build_service(settings)
    try:
        with EchoAgent() as agent:
            run = service.evaluations.start(EvaluationRequest(suite=suite_of(agent, 2)), LOCAL_CALLER)[0].id
        claim = service.runner.queue.claim()
        assert claim is not None
        held = ClaimedRun(service.storage, service.runner.queue, service.runner.log, claim)
        open_writer = pickle.loads(pickle.dumps(held.remote_writer()))
        with open_storage(postgres_url) as elsewhere:
            samples = {sample.case_key: sample for sample in elsewhere.samples(run)}

            async def store(case: str) -> None:
                async with open_writer(elsewhere) as writer:
                    await writer.put_response(ResponseKey(run, case, 0), Response(text="there"), samples[case])

            asyncio.run(store("q0"))
            service.runner.queue.release(claim)
            with pytest.raises(StoreError, match="was taken over by another process"):
                asyncio.run(store("q1"))
        assert [one.case for one in service.storage.records(run)] == ["q0"]
    finally:
        service.stop()


def test_the_egress_policy_is_sent_as_it_is_when_a_run_begins() -> None:
    local = True
    egress = ServiceEgress(["10.1.0.0/16"], local=lambda: local)
    at_home = pickle.loads(pickle.dumps(egress.current()))
    local = False
    with_keys = pickle.loads(pickle.dumps(egress.current()))
    places = ("127.0.0.1", "10.1.2.3", "10.2.0.1", "169.254.169.254", "93.184.215.14")
    assert [at_home.check("agent", place, 80) is None for place in places] == [True, True, False, False, True]
    assert [with_keys.check("agent", place, 80) for place in places] == [
        egress.check("agent", place, 80) for place in places
    ]
    assert with_keys.check("agent", "127.0.0.1", 80) is not None


def test_a_job_does_not_show_its_contents() -> None:
    document = {
        "name": "s",
        "dataset": [{"input": "x"}],
        "target": {"kind": "http", "url": "http://agent.test/", "headers": {"Authorization": {"secret": "TOKEN"}}},
        "graders": {"exact": {"kind": "exact_match"}},
    }
    job = RunJob(
        run=Run(id="a-run", name="r", suite="s", suite_digest="", target={}, graders={}),
        suite=stored_suite(document, secrets={"TOKEN": SECRETS["agent"]}),
        options=RunOptions(),
        baselines={},
        store=f"postgresql://me:{SECRETS['key']}@db/evals",
        environment={"OPENAI_API_KEY": SECRETS["key"]},
        policy=None,
        secrets=SecretSet([BoundSecret("TOKEN", SECRETS["agent"], ("agent.test",))]),
        shipped=False,
        retry_failed=False,
        calls_agent=True,
        fail_fast=False,
        open_writer=lambda storage: storage.writer(),
        target="",
        graders={},
    )
    assert repr(job) == str(job) == f"{job}" == "Job('a-run')"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--engine", "ray", "--store", "evals.db"), "requires a PostgreSQL store"),
        (("--engine", "ray", "--store", "memory://"), "requires a PostgreSQL store"),
        (("--ray-address", "10.0.0.1:6379"), "--ray-address: is for --engine ray"),
        (("--ray-workers", "2"), "--ray-workers: is for --engine ray"),
    ],
)
def test_impossible_settings_are_refused_before_serving(
    options: tuple[str, ...],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert gradeline(["serve", "--port", "0", *options]) == 2
    out, err = capsys.readouterr()
    assert (out, expected in " ".join(err.split())) == ("", True)
    assert list(tmp_path.iterdir()) == []


def test_missing_ray_is_reported_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda _: None)
    with (
        pytest.raises(ConfigError, match=r"Ray is not installed; install it with: pip install 'gradeline\[ray\]'"),
        open_run_engine(ServeSettings(store="postgresql://me@db/evals", engine="ray")),
    ):
        pass

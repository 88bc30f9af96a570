"""Plugins that open connections, as installed packages, in a real service: the egress policy holds for them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from live import PATIENCE_S, Server

SOURCE = '''
"""A target and two graders that connect to a place by many ways."""
import asyncio, socket, threading, urllib.request
from concurrent.futures import ThreadPoolExecutor
import aiohttp
from gradeline.errors import AgentError
from gradeline.graders import DeclaredGrader, Grader
from gradeline.model import Config, MeteredResult, Response
from gradeline.model import GradeResult
from gradeline.targets.base import DeclaredTarget, TargetConfig
from gradeline.transport import HttpRequest

def by_socket(place):
    host, _, port = place.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as made:
        made.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n")
        return made.makefile("rb").read().rpartition(b"\\r\\n")[2].decode()

def by_urllib(place):
    with urllib.request.urlopen(f"http://{place}/", timeout=5) as reply:
        return reply.read().decode()

def by_thread(place):
    found = []
    def connect():
        try:
            found.append(by_socket(place))
        except OSError as error:
            found.append(error)
    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]

def by_pool(place):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(by_urllib, place).result()

BLOCKING = {"socket": by_socket, "urllib": by_urllib, "thread": by_thread, "pool": by_pool}

async def connect(way, place, resources):
    if way == "aiohttp":
        async with aiohttp.ClientSession() as session, session.get(f"http://{place}/") as reply:
            return await reply.text()
    if way == "transport":
        async with resources.transport() as transport:
            return (await transport.request(HttpRequest("GET", f"http://{place}/", retries=0))).body.decode()
    if way == "to_thread":
        return await asyncio.to_thread(by_urllib, place)
    if way == "executor":
        return await asyncio.get_running_loop().run_in_executor(None, by_urllib, place)
    return BLOCKING[way](place)

class Target(DeclaredTarget[TargetConfig]):
    """Connects to the place that the input names."""
    kind = "dialer"
    name = "Dialer"
    def problems_with(self, sample):
        way, _, place = sample.input.partition(" ")
        if way == "check":
            by_socket(place)
        return []
    async def call(self, sample):
        way, _, place = sample.input.partition(" ")
        return Response(text=sample.input if way == "echo" else await connect(way, place, self.resources))

class Plain(Grader):
    """Connects to the place that the submission names."""
    def grade(self, actual, expected):
        _, way, place = actual.split(" ")
        return BLOCKING[way](place) == "reached"

class UrlConfig(Config, frozen=True):
    lookup: str | None = None

class Asking(DeclaredGrader[UrlConfig]):
    """The same, as a grader that waits."""
    kind = "dialing-judge"
    name = "Dialing judge"
    scoring_guide = "1.0 when reached."
    judges = ()
    def result(self, ctx):
        raise NotImplementedError
    async def agrade(self, ctx):
        _, way, place = ctx.submission.split(" ")
        return MeteredResult(GradeResult(1.0 if await connect(way, place, self.resources) == "reached" else 0.0))
'''
POINTS = """[gradeline.targets]
dialer = dialing_plugin:Target
[gradeline.graders]
dialing = dialing_plugin:Plain
dialing-judge = dialing_plugin:Asking
"""
BLOCKING = ("socket", "urllib", "thread", "pool")
WAYS = (*BLOCKING, "aiohttp", "transport", "to_thread", "executor")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, laid out as pip installs it."""
    folder = tmp_path_factory.mktemp("packages")
    (folder / "dialing_plugin.py").write_text(SOURCE)
    info = folder / "dialing_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: dialing-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return folder


class Listener(ThreadingHTTPServer):
    """Counts its connections."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Reached)
        self.connections = 0

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def verify_request(self, request: object, client_address: object) -> bool:
        self.connections += 1
        return True


class _Reached(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"reached")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening() -> Iterator[Listener]:
    with Listener() as listener:
        Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.05}).start()
        try:
            yield listener
        finally:
            listener.shutdown()


class Service:
    """A service with a key: loopback is only reachable if allowed."""

    def __init__(self, server: Server, key: str, denied: Listener, allowed: Listener) -> None:
        self._server = server
        self._headers = {"Authorization": f"Bearer {key}"}
        self.denied = denied
        self.allowed = allowed

    def start(self, suite: dict[str, Any]) -> tuple[int, Any]:
        return self._server.call("POST", "/api/evaluations", {"suite": {"name": "plugins", **suite}}, **self._headers)

    def results(self, suite: dict[str, Any]) -> dict[str, Any]:
        """The results of a run by case."""
        status, answer = self.start(suite)
        assert status < 300, answer
        run = answer["data"]["id"]
        path = f"/api/evaluations/{run}"
        ended = self._ended(path)
        assert ended["status"] == "completed", ended
        found = self._server.data("GET", f"{path}/results?limit=100", **self._headers)["results"]
        return {one["test_case_id"]: one for one in found}

    def _ended(self, path: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found: dict[str, Any] = self._server.data("GET", path, **self._headers)
            if found["status"] not in ("pending", "running"):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)


@pytest.fixture(scope="module")
def service(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    store = tmp_path_factory.mktemp("service") / "store.db"
    with pytest.MonkeyPatch.context() as patch, listening() as denied, listening() as allowed:
        patch.setenv("PYTHONPATH", str(package), prepend=os.pathsep)
        patch.setenv("GRADELINE_SECRET_KEY", "0123456789abcdef0123456789abcdef")
        made = subprocess.run(
            [sys.executable, "-m", "gradeline", "keys", "create", "--scope", "run", "--store", str(store)],
            capture_output=True,
            text=True,
            check=True,
        )
        key = next(word for word in made.stdout.split() if word.startswith("gl_"))
        allow = ("--allow-target", "dialer", "--allow-agent-net", f"127.0.0.1:{allowed.server_port}")
        with Server(store, *allow) as server:
            yield Service(server, key, denied, allowed)


def cases(places: dict[str, str], ways: tuple[str, ...], lead: str = "") -> list[dict[str, str]]:
    return [
        {"id": f"{way} {name}", "input": f"{lead}{way} {place}", "ground_truth": "reached"}
        for way in ways
        for name, place in places.items()
    ]


class TestTargets:
    def test_plugins_reach_only_allowed_addresses_with_any_client(self, service: Service) -> None:
        places = {"denied": service.denied.place, "metadata": "169.254.169.254:80", "allowed": service.allowed.place}
        before = service.allowed.connections
        results = service.results(
            {
                "target": {"kind": "dialer"},
                "graders": {"exact": {"kind": "exact_match"}},
                "dataset": cases(places, WAYS),
            }
        )
        for way in WAYS:
            for name in ("denied", "metadata"):
                result = results[f"{way} {name}"]
                assert result["response_status"] == "error", result
                assert "refused by the egress policy" in result["error_message"], result
            assert results[f"{way} allowed"]["agent_response"] == "reached", results[f"{way} allowed"]
        assert service.denied.connections == 0
        assert service.allowed.connections - before == len(WAYS)

    def test_checks_of_the_cases_reach_only_allowed_addresses(self, service: Service) -> None:
        suite = {"target": {"kind": "dialer"}, "graders": {"exact": {"kind": "exact_match"}}}
        status, _ = service.start({**suite, "dataset": cases({"denied": service.denied.place}, ("check",))})
        assert status == 500  # the plugin's own exception
        assert service.denied.connections == 0

    def test_an_url_among_their_options_is_checked_when_the_suite_is_sent(self, service: Service) -> None:
        status, answer = service.start(
            {
                "target": {"kind": "dialer", "model": f"http://{service.denied.place}/"},
                "graders": {"exact": {"kind": "exact_match"}},
                "dataset": cases({"a": "b"}, ("echo",)),
            }
        )
        assert (status, answer["error"]["code"]) == (400, "URL_NOT_ALLOWED")
        assert "target.model" in answer["error"]["message"]
        assert "loopback address" in answer["error"]["message"]


class TestGraders:
    def test_plugins_reach_only_allowed_addresses_with_any_client(self, service: Service) -> None:
        places = {"denied": service.denied.place, "allowed": service.allowed.place}
        for kind, ways in (("dialing", BLOCKING), ("dialing-judge", WAYS)):
            results = service.results(
                {
                    "target": {"kind": "dialer"},
                    "graders": {"dialing": {"kind": kind}},
                    "dataset": cases(places, ways, "echo "),
                }
            )
            for way in ways:
                (denied,) = results[f"{way} denied"]["scores"]
                (allowed,) = results[f"{way} allowed"]["scores"]
                assert denied["score_status"] == "error", (kind, way, denied)
                assert (allowed["score_status"], allowed["score_value"]) == ("pass", 1.0), (kind, way, allowed)
        assert service.denied.connections == 0

    def test_an_url_among_their_options_is_checked_when_the_suite_is_sent(self, service: Service) -> None:
        status, answer = service.start(
            {
                "target": {"kind": "dialer"},
                "graders": {"dialing": {"kind": "dialing-judge", "config": {"lookup": "http://169.254.169.254/"}}},
                "dataset": cases({"a": "b"}, ("echo",)),
            }
        )
        assert (status, answer["error"]["code"]) == (400, "URL_NOT_ALLOWED")
        assert "graders.dialing.config.lookup" in answer["error"]["message"]

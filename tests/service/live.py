"""A real agent and a real server for the tests of runs: the agent outlives the servers, and records every call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Condition, Event, Thread
from types import TracebackType
from typing import Any, NamedTuple, Self, cast
from urllib.parse import urlsplit

from gradeline.service.auth import ApiKeys, KeyScope
from gradeline.service.service import database_of
from gradeline.service.settings import ServeSettings
from gradeline.store import open_storage
from gradeline_command import COMMAND, start_command

PATIENCE_S = 60.0
SECRET_KEY = b"a secret key of live servers, long enough"


class EchoAgent:
    """Answers ``{"input": X}`` with ``{"response": X}``; those in ``failing`` with a 400."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.failing: set[str] = set()
        self.says = "{}"
        self.calls: Counter[str] = Counter()
        self.authorization: set[str | None] = set()
        self.received: list[str] = []
        """Every complete request in order."""
        self.may_answer = Event()
        self.may_answer.set()
        self._changed = Condition()
        self._server = _Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/ask"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def total(self) -> int:
        return sum(self.calls.values())

    def wait_for(self, calls: int) -> None:
        """Return after this number of calls in total."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.total >= calls, PATIENCE_S), f"only {self.total} calls came"

    def answer(self, text: str) -> tuple[int, bytes]:
        with self._changed:
            self.calls[text] += 1
            self._changed.notify_all()
        self.may_answer.wait(PATIENCE_S)
        time.sleep(self.seconds)
        if text in self.failing:
            return 400, b'{"error": "refused"}'
        return 200, json.dumps({"response": self.says.format(text)}).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, agent: EchoAgent) -> None:
        self.agent = agent
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore callers that were killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(raw)
        agent = cast(_Server, self.server).agent
        agent.received.append(f"{self.requestline}\n{self.headers}{raw.decode()}")
        agent.authorization.add(self.headers["Authorization"])
        status, body = agent.answer(asked["input"])
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


class Sse(NamedTuple):
    """An event as it came."""

    id: int
    kind: str
    data: Any


_LEASE = """
from gradeline.service import settings
plain = settings.ServeSettings
class ServeSettings(plain, frozen=True, kw_only=True):
    lease_s: float = {lease_s}
settings.ServeSettings = ServeSettings
"""
"""Sets another lease, which is not an option."""
_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({most}, {most}))
"""


class Server:
    """``gradeline serve`` in its own process."""

    def __init__(
        self,
        store: str | Path,
        *options: str,
        lease_s: float | None = None,
        failpoint: str | None = None,
        descriptors: int | None = None,
        through: Sequence[str] = (),
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``through`` is a program that sets a limit and then executes the server. ``log`` gets its log."""
        variables = {**os.environ, **(environment or {})}
        if failpoint is not None:
            variables["GRADELINE_FAILPOINT"] = failpoint
        setup = "" if lease_s is None else _LEASE.format(lease_s=lease_s)
        setup += "" if descriptors is None else _DESCRIPTORS.format(most=descriptors)
        with ExitStack() as opened:
            self._process = start_command(
                [*through, COMMAND, "serve", "--port", "0", "--store", str(store), *options],
                stderr=subprocess.DEVNULL if log is None else opened.enter_context(log.open("wb")),
                env=variables,
                setup=setup,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = [word for word in line.split() if word.startswith("http://")]
        if not found:
            self._process.kill()
            raise AssertionError(f"it did not start: {line!r} {self._process.communicate()}")
        self.url = found[0].rstrip("/.,")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._close()

    def terminate(self) -> int:
        """Stop it, and wait until it has ended."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._close()
        return self._process.returncode

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        self._process.wait(PATIENCE_S)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def _close(self) -> None:
        self._process.wait(PATIENCE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def call(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, Any]:
        """The status and the parsed body of an answer."""
        connection, response = self._sent(method, path, body, headers)
        try:
            raw = response.read()
            return response.status, json.loads(raw) if raw else None
        finally:
            connection.close()

    def data(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        """What is under ``data`` of a success."""
        status, answer = self.call(method, path, body, **headers)
        assert status < 300, answer
        return answer["data"]

    def error(self, method: str, path: str, body: object = None) -> tuple[int, str, str, str | None]:
        """Status, code, message and ``Retry-After`` of a failure."""
        connection, response = self._sent(method, path, body, {})
        try:
            failure = json.loads(response.read())["error"]
            return response.status, failure["code"], failure["message"], response.getheader("Retry-After")
        finally:
            connection.close()

    def until_ready(self) -> None:
        """Wait until it is ready."""
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def until_draining(self) -> None:
        """Wait until a server that was told to stop takes no more work."""
        deadline = time.monotonic() + PATIENCE_S
        while self._is_ready():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _is_ready(self) -> bool:
        try:
            return self.call("GET", "/api/ready")[0] == 200
        except OSError:
            return False

    def until(self, run: str, settled: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a state of the run, and return the run."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found: dict[str, Any] = self.data("GET", f"/api/evaluations/{run}")
            if settled(found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def until_ended(self, run: str) -> dict[str, Any]:
        """An ``interrupted`` run of the service has not ended: a server resumes it."""
        return self.until(run, lambda found: found["status"] in ("completed", "failed", "cancelled"))

    def events(self, run: str, last_id: int | None = None) -> Iterator[Sse]:
        """The events of a run until its stream ends; closing the iterator cuts the stream."""
        headers = {} if last_id is None else {"Last-Event-ID": str(last_id)}
        connection, response = self._sent("GET", f"/api/evaluations/{run}/events", None, headers)
        try:
            yield from _events(response)
        finally:
            connection.close()

    def _sent(
        self, method: str, path: str, body: object, headers: dict[str, str]
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE_S)
        raw = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers} if raw is not None else headers
        connection.request(method, path, raw, sent)
        return connection, connection.getresponse()


def new_key(store: str | Path, scope: str) -> tuple[str, dict[str, str]]:
    """The id of a new key of a store, and the headers of who has it."""
    with open_storage(str(store)) as storage:
        key, text = ApiKeys(database_of(storage), ServeSettings(secret_key=SECRET_KEY)).create(KeyScope(scope))
    return key.id, {"Authorization": f"Bearer {text}"}


def revoke_key(store: str | Path, key: str) -> None:
    with open_storage(str(store)) as storage:
        assert ApiKeys(database_of(storage), ServeSettings(secret_key=SECRET_KEY)).revoke(key)


def with_keys(folder: Path) -> tuple[str, ...]:
    """The options of a server whose keys `new_key` creates."""
    (folder / "secret").write_bytes(SECRET_KEY)
    return "--secret-key-file", str(folder / "secret")


def _events(response: HTTPResponse) -> Iterator[Sse]:
    fields: dict[str, str] = {}
    while line := response.readline():
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(":")
            fields[name] = value.removeprefix(" ")
        elif "event" in fields:
            yield Sse(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}
        else:
            fields = {}


def suite_of(
    agent: EchoAgent, cases: int, *, prefix: str = "q", concurrency: int = 10, wrong: int = 0
) -> dict[str, Any]:
    """A suite of ``cases`` cases, of which the first ``wrong`` fail."""
    return {
        "name": prefix,
        "target": {"kind": "http", "url": agent.url, "retries": 0},
        "graders": {"exact": {"kind": "exact_match"}},
        "concurrency": concurrency,
        "dataset": [
            {"id": f"{prefix}{n}", "input": f"{prefix} {n}", "ground_truth": "?" if n < wrong else f"{prefix} {n}"}
            for n in range(cases)
        ],
    }

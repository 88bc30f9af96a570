"""``gradeline serve`` as a process: address, refused requests and shutdown."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import uvicorn

from gradeline.errors import ConfigError
from gradeline.service import server as connections
from gradeline.service.app import application
from gradeline.service.server import HttpProtocol, Server, bind, url_of
from gradeline.service.service import Service, build_service, is_loopback
from gradeline.service.settings import ServeSettings
from gradeline_command import COMMAND, run_command, start_command

from .conftest import MASTER_KEY


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **more}


class Serving:
    """A server in its own process."""

    def __init__(self, folder: Path, *options: str, **more: str) -> None:
        arguments = [COMMAND, "serve", "--port", "0", "--json", *options]
        self.log = (folder / "log").open("w+")
        self.process = start_command(arguments, cwd=folder, env=environment(folder, **more), stderr=self.log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            pytest.fail(self.log.read())
        self.startup = json.loads(line)
        self.port = int(self.startup["url"].rpartition(":")[2])

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            is_json = (answer.getheader("content-type") or "").startswith("application/json")
            return answer.status, json.loads(body) if is_json else body

    def post(self, path: str, sent: Any) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(sent), {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())
        assert answer["success"], answer
        return answer["data"]

    def raw(self, sent: bytes, *, wait: float = 10) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            connection.sendall(sent)
            received = b""
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                while more := connection.recv(65536):
                    received += more
            return received

    def end(self, signal_: int = signal.SIGTERM) -> int:
        self.process.send_signal(signal_)
        return self.process.wait(timeout=15)

    def lines(self) -> list[dict[str, Any]]:
        self.log.seek(0)
        return [json.loads(line) for line in self.log.read().splitlines() if line.startswith("{")]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    server = Serving(tmp_path, "--store", "memory://")
    yield server
    server.close()


def test_it_prints_its_address_serves_there_and_stops_on_request(serving: Serving, tmp_path: Path) -> None:
    assert serving.startup == {"url": f"http://127.0.0.1:{serving.port}", "local": True}
    assert serving.get("/api/health")[0] == 200
    assert serving.get("/api/ready")[0] == 200
    status, body = serving.get("/api/nothing")
    assert (status, body["error"]["code"]) == (404, "NOT_FOUND")
    assert serving.get("/api/health", Host="evil.test")[0] == 421
    assert serving.get("/")[0] == 200
    assert [path.name for path in tmp_path.glob("gradeline-*")] != []
    assert serving.end() == 0
    assert list(tmp_path.glob("gradeline-*")) == []
    requests = [line for line in serving.lines() if line["message"] == "request"]
    assert [(line["path"], line["status"]) for line in requests][:3] == [
        ("/api/health", 200),
        ("/api/ready", 200),
        ("/api/nothing", 404),
    ]


def test_an_interrupt_ends_it_too(serving: Serving) -> None:
    assert serving.end(signal.SIGINT) == 0


def test_a_stop_does_not_wait_for_idle_connections(serving: Serving) -> None:
    with socket.create_connection(("127.0.0.1", serving.port)) as idle:
        idle.sendall(b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1:" + str(serving.port).encode() + b"\r\n\r\n")
        assert idle.recv(65536).startswith(b"HTTP/1.1 200")
        started = time.monotonic()
        assert serving.end() == 0
        assert time.monotonic() - started < 10


def test_a_second_signal_ends_it_at_once(serving: Serving) -> None:
    # a request whose body never comes keeps the server waiting
    with socket.create_connection(("127.0.0.1", serving.port)) as waiting:
        head = f"PUT /api/secrets/A HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nContent-Type: application/json\r\n"
        waiting.sendall(head.encode() + b"Content-Length: 100\r\n\r\n{")
        assert serving.get("/api/health")[0] == 200
        serving.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            serving.process.wait(timeout=0.7)
        serving.process.send_signal(signal.SIGTERM)
        assert serving.process.wait(timeout=5) == 128 + signal.SIGTERM


def test_invalid_http_is_answered_with_the_envelope(serving: Serving) -> None:
    answer = serving.raw(b"nonsense\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"nosniff" in head
    assert json.loads(body)["error"] == {"code": "INVALID_INPUT", "message": "Invalid HTTP request received."}


def test_headers_without_end_are_refused(serving: Serving) -> None:
    answer = serving.raw(b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"x" * 200_000)
    assert answer.startswith(b"HTTP/1.1 400")
    assert serving.get("/api/health")[0] == 200


def test_a_body_of_a_gigabyte_is_refused_before_it_is_sent(serving: Serving) -> None:
    head = f"PUT /api/secrets/A HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nContent-Type: application/json\r\n"
    answer = serving.raw(head.encode() + b"Content-Length: 1000000000\r\n\r\n" + b" " * 100_000)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"PAYLOAD_TOO_LARGE" in answer


def test_chunks_without_end_are_refused(serving: Serving) -> None:
    head = f"PUT /api/secrets/A HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", serving.port), timeout=20) as connection:
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        with contextlib.suppress(ConnectionError, TimeoutError):
            for _ in range(11):
                connection.sendall(chunk)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")


def test_a_stop_ends_event_streams_and_lets_go_of_a_run_in_time(serving: Serving) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        agent = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        case = serving.post("/api/test-cases", {"input": "q", "expected_output": "a"})["id"]
        asked = {"test_case_ids": [case], "agent_endpoint_url": agent, "grader_ids": ["string_match"]}
        run = serving.post("/api/evaluations", asked)["id"]
        accepted, _ = silent.accept()
        with accepted, socket.create_connection(("127.0.0.1", serving.port), timeout=12) as reader:
            head = f"GET /api/evaluations/{run}/events HTTP/1.1\r\nHost: 127.0.0.1:{serving.port}\r\n\r\n"
            reader.sendall(head.encode())
            assert reader.recv(65536).startswith(b"HTTP/1.1 200")
            started = time.monotonic()
            serving.process.send_signal(signal.SIGTERM)
            while reader.recv(65536):
                pass
            assert serving.process.wait(timeout=12) == 0
            assert time.monotonic() - started < 10


@contextlib.contextmanager
def in_a_thread(service: Service) -> Iterator[int]:
    """A server in this process; yields its port."""
    ready = Event()
    with bind("127.0.0.1", 0) as bound:
        config = uvicorn.Config(application(service), http=HttpProtocol, lifespan="on", log_config=None)
        server = Server(config, service, ready.set)
        thread = Thread(target=server.run, args=([bound],))
        thread.start()
        assert ready.wait(10)
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_an_endless_request_head_is_aborted(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.3)
    with in_a_thread(service) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
        whole = f"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        slow.sendall(whole)
        received = b""
        while not received.endswith(b"}"):
            received += slow.recv(65536)
        assert received.startswith(b"HTTP/1.1 200")
        slow.sendall(whole[:30])
        assert slow.recv(65536) == b""


def test_the_rest_of_a_refused_body_is_not_taken_for_ever(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.2)
    with in_a_thread(service) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as sender:
        head = f"PUT /api/secrets/A HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        sender.sendall(head.encode() + b"Content-Length: 1000000000\r\n\r\n ")
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while more := sender.recv(65536):
                received += more
        assert received.startswith(b"HTTP/1.1 413")


def keys(folder: Path, *arguments: str) -> str:
    more = {"GRADELINE_SECRET_KEY": MASTER_KEY.decode()}
    done = run_command([COMMAND, "keys", *arguments, "--quiet"], cwd=folder, env=environment(folder, **more), text=True)
    done.check_returncode()
    return done.stdout.strip()


def test_with_a_key_it_serves_any_address_to_authenticated_callers(tmp_path: Path) -> None:
    text = keys(tmp_path, "create", "--scope", "admin")
    server = Serving(tmp_path, "--host", "0.0.0.0", GRADELINE_SECRET_KEY=MASTER_KEY.decode())
    try:
        assert server.startup["local"] is False
        assert server.get("/api/secrets")[0] == 401
        assert server.get("/api/secrets", Authorization=f"Bearer {text}")[0] == 200
        keys(tmp_path, "revoke", text.split("_")[1])
        assert server.get("/api/secrets", Authorization=f"Bearer {text}")[0] == 401
        assert text.split("_")[2] not in str(server.lines())
    finally:
        server.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--host", "0.0.0.0"), "the store has no API key; create one first with: gradeline keys create"),
        (("--host", "no.such.host.invalid"), "has no API key"),
        (("--allow-agent-net", "nonsense"), "'nonsense' is neither a network"),
        (("--secret-key-file", "absent"), "absent: the secret key cannot be read"),
        (("--store", "sqlite://nowhere"), "invalid store"),
        (("--graders-dir", "absent"), "absent"),
        (("--port", "70000"), "70000"),
        (("--runs-at-once", "0"), "0"),
    ],
)
def test_an_invalid_call_reports_the_remedy(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = run_command([COMMAND, "serve", *options], cwd=tmp_path, env=environment(tmp_path), text=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_keys_without_the_secret_key_are_refused(tmp_path: Path) -> None:
    keys(tmp_path, "create", "--scope", "run")
    for more, message in (
        ({}, "cannot be checked without the service's secret key"),
        ({"GRADELINE_SECRET_KEY": "another secret key, long enough"}, "were created with another secret key"),
    ):
        done = run_command([COMMAND, "serve"], cwd=tmp_path, env=environment(tmp_path, **more), text=True)
        assert done.returncode == 2
        assert message in done.stderr


def test_a_port_in_use_is_reported() -> None:
    with bind("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(ConfigError, match="use another port, or 0"):
            bind("127.0.0.1", first.getsockname()[1])
        assert url_of(first, "127.0.0.1") == f"http://127.0.0.1:{first.getsockname()[1]}"


def test_loopback_is_distinguished_from_other_hosts() -> None:
    hosts = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "192.168.1.1", "example.com", ""]
    assert [is_loopback(host) for host in hosts] == [True] * 4 + [False] * 5


def test_a_store_in_memory_is_a_file_that_goes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    service = build_service(ServeSettings(store="memory://"))
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    service.stop()
    service.stop()
    assert list(tmp_path.iterdir()) == []


def test_the_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from gradeline.cli import run_cli; run_cli(['--help']);"
        "bad = {'fastapi', 'uvicorn', 'starlette', 'cryptography', 'aiohttp', 'pydantic'} & set(sys.modules);"
        "sys.exit(f'loaded {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

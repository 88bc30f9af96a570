"""Agents that cannot be reached, over real sockets: the run ends early, and resume finishes it."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any, NamedTuple

from gradeline_command import COMMAND, run_command

CASES = 120


class CommandResult(NamedTuple):
    code: int
    data: dict[str, Any]
    errors: str

    @property
    def run(self) -> str:
        return str(self.data["run"]["id"])

    @property
    def responses(self) -> dict[str, int]:
        found: dict[str, int] = self.data["summary"]["responses"]
        return found


def gradeline(folder: Path, *arguments: str) -> CommandResult:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command(
        [COMMAND, *arguments, "--json"],
        cwd=folder,
        env={**environment, "NO_COLOR": "1"},
        timeout=120,
    )
    return CommandResult(done.returncode, json.loads(done.stdout), done.stderr.decode())


def write(folder: Path, port: int, **options: object) -> None:
    rows = ({"id": f"c{n}", "input": f"q{n}", "ground_truth": f"q{n}"} for n in range(CASES))
    (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    target = {"kind": "http", "url": f"http://127.0.0.1:{port}/ask", "retries": 0, "concurrency": 1, **options}
    suite = {
        "name": "down",
        "dataset": "cases.jsonl",
        "target": target,
        "graders": {"exact": {"kind": "exact_match"}},
        "gate": {"metric_key": "exact", "op": "gte", "value": 1.0},
    }
    (folder / "suite.json").write_text(json.dumps(suite))


class Agent(ThreadingHTTPServer):
    """Answers with the input, or resets the connection if ``is_down`` is true for the number of the call."""

    daemon_threads = True

    def __init__(self, is_down: Callable[[int], bool], port: int = 0) -> None:
        self.calls = 0
        self.lock = Lock()
        self.is_down = is_down
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Agent

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:  # answers leave in the order of the calls
            self.server.calls += 1
            self._reset() if self.server.is_down(self.server.calls) else self._answer(asked["input"])

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def _answer(self, text: str) -> None:
        body = json.dumps({"response": text}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(is_down: Callable[[int], bool] = lambda _: False, port: int = 0) -> Iterator[Agent]:
    with Agent(is_down, port) as agent:
        Thread(target=agent.serve_forever, kwargs={"poll_interval": 0.05}).start()
        try:
            yield agent
        finally:
            agent.shutdown()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_agent_that_is_down_ends_the_run_and_resume_finishes_it(tmp_path: Path) -> None:
    port = free_port()
    write(tmp_path, port)
    ended = gradeline(tmp_path, "run", "suite.json")
    assert (ended.code, ended.data["run"]["status"]) == (4, "failed")
    assert ended.responses == {"success": 0, "error": 20, "timeout": 0}
    assert ended.data["stopped"] == (
        "the agent cannot be reached: 20 calls in a row failed, the last one with connect:"
        f" POST http://127.0.0.1:{port}/ask: could not connect: Connection refused;"
        " check that the agent is running and that its address is right"
    )
    assert f"{ended.data['stopped']}; continue with: gradeline resume {ended.run}" in ended.errors
    with serving(port=port) as agent:
        finished = gradeline(tmp_path, "resume", ended.run)
    assert (finished.code, finished.data["run"]["status"]) == (0, "completed")
    assert finished.responses == {"success": CASES, "error": 0, "timeout": 0}
    assert agent.calls == CASES


def test_an_agent_that_dies_midway_ends_the_run_and_its_responses_are_stored(tmp_path: Path) -> None:
    with serving(lambda call: call > 30) as agent:
        write(tmp_path, agent.server_port, concurrency=8)
        ended = gradeline(tmp_path, "run", "suite.json")
    assert (ended.code, ended.data["run"]["status"], ended.data["verdict"]["result"]) == (3, "failed", "undecided")
    assert ended.responses["success"] == 30
    assert 20 <= ended.responses["error"] <= 20 + 2 * 8
    assert "the last one with reset" in ended.data["stopped"]


def test_an_agent_that_recovers_before_the_limit_gets_every_case(tmp_path: Path) -> None:
    with serving(lambda call: 30 < call < 50) as agent:
        write(tmp_path, agent.server_port)
        ended = gradeline(tmp_path, "run", "suite.json")
    assert ended.data["run"]["status"] == "completed"
    assert "stopped" not in ended.data
    assert ended.responses == {"success": CASES - 19, "error": 19, "timeout": 0}


def test_an_agent_that_fails_every_second_call_gets_every_case(tmp_path: Path) -> None:
    with serving(lambda call: call % 2 == 0) as agent:
        write(tmp_path, agent.server_port)
        ended = gradeline(tmp_path, "run", "suite.json")
    assert (ended.data["run"]["status"], agent.calls) == ("completed", CASES)


def test_the_limit_can_be_set_or_switched_off(tmp_path: Path) -> None:
    write(tmp_path, free_port(), stop_after_connection_failures=3)
    assert gradeline(tmp_path, "run", "suite.json").responses["error"] == 3
    write(tmp_path, free_port(), stop_after_connection_failures=0)
    assert gradeline(tmp_path, "run", "suite.json").responses["error"] == CASES

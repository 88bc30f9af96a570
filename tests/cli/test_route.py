"""Routing from the command line: plan, decide, record, evaluate, serve and roll back, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from gradeline.store import SqliteStorage
from gradeline.store.route_log import requests_of
from gradeline_command import COMMAND, run_command, start_command

AGENT = """\
def answer(text: str, model: str | None = None) -> str:
    number = int(text)
    return "no idea" if model == "small" and number % 2 and number % 3 else str(number * number)
"""
SUITE = {
    "name": "squares",
    "dataset": "cases.jsonl",
    "target": {"kind": "python", "function": "agent.py:answer"},
    "graders": {"right": {"kind": "exact_match"}},
}


class Model(BaseHTTPRequestHandler):
    """A model that names itself."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"choices": [{"message": {"content": f"from {asked['model']}"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def model() -> Any:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path, model: str) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    cases = [
        {"id": n, "input": str(n), "ground_truth": str(n * n), "metadata": {"task_family": "odd" if n % 2 else "even"}}
        for n in range(1, 401)
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    (tmp_path / "suite.json").write_text(json.dumps(SUITE))
    route = {
        "route": "squares",
        "suite": "squares",
        "grader": "right",
        "baseline": {"name": "big", "model": "big", "base_url": model, "cost": 0.01},
        "candidates": [{"name": "small", "model": "small", "base_url": model, "cost": 0.001}],
        "family": {"header": "x-family"},
        "lambda": 5,
    }
    (tmp_path / "route.json").write_text(json.dumps(route))
    return tmp_path


def gradeline(folder: Path, *arguments: str, code: int = 0) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, *arguments], cwd=folder, text=True, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def as_json(folder: Path, *arguments: str, code: int = 0) -> Any:
    return json.loads(gradeline(folder, *arguments, "--json", code=code))


def test_a_route_from_its_plan_to_its_rollback(folder: Path) -> None:
    refused = gradeline(folder, "route", "plan", "route.json", code=1)
    assert "FAIL evidence big: no completed run of the suite 'squares' with the grader 'right'" in refused
    assert "refused: nothing was changed" in refused
    gradeline(folder, "run", "suite.json", "--model", "big", "--model", "small", "--quiet")
    assert "dry run" in gradeline(folder, "route", "plan", "route.json", "--dry-run")
    assert "no table was planned yet" in gradeline(folder, "route", "status", "route.json")
    planned = as_json(folder, "route", "plan", "route.json")
    assert not planned["refused"]
    assert planned["table"]["families"]["even"]["small"]["state"] == "proven"
    assert planned["table"]["families"]["odd"]["small"]["share"] == 0.0
    status = gradeline(folder, "route", "status", "route.json")
    assert "Promise: at most " in status
    assert "requests that explore are not part of it" in status

    choices = [as_json(folder, "route", "decide", "route.json", "--family", "even", "--seed", str(n)) for n in range(4)]
    assert {one["arm"] for one in choices} <= {"big", "small"}
    assert choices[0]["propensity"] == choices[0]["propensities"][choices[0]["arm"]]
    assert gradeline(folder, "route", "decide", "route.json", "--family", "odd", "--no-log", "--quiet") == "big\n"

    rows = ["id,passed", *(f"{one['id']},pass" for one in choices)]
    (folder / "outcomes.csv").write_text("\n".join(rows))
    assert gradeline(folder, "route", "outcomes", "route.json", "outcomes.csv") == "4 outcomes recorded\n"
    (folder / "wrong.csv").write_text("id,passed\nnobody,pass\n")
    assert "has logged no request 'nobody'" in gradeline(folder, "route", "outcomes", "route.json", "wrong.csv", code=2)
    found = as_json(folder, "route", "evaluate", "route.json")
    assert (found["requests"], found["without_reward"]) == (4, 0)
    assert "at least 30" in found["policies"]["current"]["refused"]
    assert "unknown policy 'nope'" in gradeline(folder, "route", "evaluate", "route.json", "--policy", "nope", code=2)

    assert "goes to the baseline big" in gradeline(folder, "route", "rollback", "route.json")
    assert "nothing to roll back" in gradeline(folder, "route", "rollback", "route.json", code=2)
    assert json.loads(gradeline(folder, "schema", "route"))["title"] == "gradeline route"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_server_follows_a_rollback_and_logs_before_it_stops(folder: Path) -> None:
    gradeline(folder, "run", "suite.json", "--model", "big", "--model", "small", "--quiet")
    gradeline(folder, "route", "plan", "route.json")
    arguments = ["route", "serve", "route.json", "--port", "0", "--refresh", "0.1", "--json"]
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    with start_command([COMMAND, *arguments], cwd=folder, env=environment) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        routed = [ask(url) for _ in range(20)]
        assert any("from small" in text for text, _ in routed)
        gradeline(folder, "route", "rollback", "route.json")
        while health(url)["table"] is not None:
            pass
        assert {text for text, _ in (ask(url) for _ in range(5))} == {"from big"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    with SqliteStorage(folder / ".gradeline" / "store.db", read_only=True) as storage:
        logged = requests_of(storage, "squares")
    assert len(logged) == 25
    assert {header.split("id=")[1] for _, header in routed} == {row.id for row in logged[:20]}
    assert "rolled back to the baseline" in logged[-1].reason


def test_other_addresses_need_a_token(folder: Path) -> None:
    text = gradeline(folder, "route", "serve", "route.json", "--host", "0.0.0.0", "--port", "0", code=2)
    assert "--token-env" in text


def ask(url: str) -> tuple[str, str]:
    body = json.dumps({"model": "x", "messages": [{"role": "user", "content": "4"}]}).encode()
    headers = {"Content-Type": "application/json", "x-family": "even"}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, headers)) as response:
        return json.load(response)["choices"][0]["message"]["content"], response.headers["x-gradeline-route"]


def health(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/health") as response:
        found: dict[str, Any] = json.load(response)
        return found

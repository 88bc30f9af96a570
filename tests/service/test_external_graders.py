"""Graders that are programs or servers, over REST: what a caller may use, and what the operator must allow."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest

from gradeline.service.secrets import Binding
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

MASTER_KEY = b"a master key of the tests, long enough"
GRADERS = "/api/graders"
COMMAND = {"command": [sys.executable, "-c", """print('{"score": 0.75}')"""]}
Call = Callable[..., Any]


class _Grades(BaseHTTPRequestHandler):
    seen: list[str | None]

    def do_POST(self) -> None:
        case = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append(self.headers.get("Authorization"))
        verdict: dict[str, Any] = {
            "passed": case.get("submission") == "good",
            "rationale": self.headers.get("Authorization"),
        }
        if "input" in case:  # called as the agent
            verdict = {"response": "good"}
        body = json.dumps(verdict).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def grading_server() -> Iterator[ThreadingHTTPServer]:
    handler = type("Grades", (_Grades,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def url_of(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/grade"


def run_of(call: Call, graders: dict[str, Any]) -> dict[str, Any]:
    """The first result of a run that grades a stored response."""
    suite = {
        "name": "external",
        "dataset": [{"id": "one", "input": "q", "metadata": {}}],
        "target": {"kind": "http", "url": graders.pop("agent")},
        "graders": graders,
    }
    run = call("POST", "/api/evaluations", json={"suite": suite}).data["id"]
    deadline = monotonic() + 60
    while call("GET", f"/api/evaluations/{run}").data["status"] in ("pending", "running"):
        assert monotonic() < deadline
        sleep(0.05)
    found: dict[str, Any] = call("GET", f"/api/evaluations/{run}/results").data["results"][0]
    return found


class TestPrograms:
    def test_they_are_refused_everywhere(self, call: Call) -> None:
        unsaved = {"type": "command", "config": COMMAND}
        answers = [
            call("POST", GRADERS, json={"id": "mine", "name": "Mine", "type": "command", "config": COMMAND}),
            call("POST", f"{GRADERS}/new/preview", json={"definition": unsaved, "agent_response": "x"}),
            call("POST", f"{GRADERS}/command/preview", json={"config": COMMAND, "agent_response": "x"}),
        ]
        for graders in (
            {"a": {"kind": "command", **COMMAND}},
            {"a": {"kind": "tool", "function": "command", **COMMAND}},
        ):
            suite = {
                "name": "x",
                "dataset": [{"input": "q"}],
                "target": {"kind": "http", "url": "http://127.0.0.1:9"},
                "graders": graders,
            }
            answers.append(call("POST", "/api/evaluations", json={"suite": suite}))
        for answer in answers:
            assert answer.status in (400, 403), answer.body
            assert "--allow-grader command" in str(answer.body)

    def test_they_are_listed(self, call: Call) -> None:
        listed = {one["id"] for one in call("GET", f"{GRADERS}?limit=100").data["graders"]}
        assert {"command", "http"} <= listed


class TestAllowedPrograms:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServeSettings:
        return ServeSettings(store=str(tmp_path / "store.db"), secret_key=MASTER_KEY, allow_grader=("command",))

    def test_the_operator_may_allow_them(self, call: Call, grading_server: ThreadingHTTPServer) -> None:
        stored = call("POST", GRADERS, json={"id": "mine", "name": "Mine", "type": "command", "config": COMMAND})
        assert stored.status == 201
        shown = call("POST", f"{GRADERS}/mine/preview", json={"agent_response": "x"}).data
        assert (shown["score_status"], shown["score_value"]) == ("pass", 0.75)
        result = run_of(call, {"agent": url_of(grading_server), "a": {"kind": "command", **COMMAND}})
        assert [score["score_value"] for score in result["scores"]] == [0.75]


class TestServers:
    def test_a_server_grades_previews_and_runs(self, call: Call, grading_server: ThreadingHTTPServer) -> None:
        config = {"url": url_of(grading_server)}
        shown = call("POST", f"{GRADERS}/http/preview", json={"config": config, "agent_response": "good"}).data
        assert (shown["score_status"], shown["score_value"]) == ("pass", 1.0)

    def test_its_address_must_be_allowed(self, call: Call) -> None:
        config = {"url": "http://169.254.169.254/grade"}
        stored = call("POST", GRADERS, json={"id": "m", "name": "M", "type": "http", "config": config})
        assert stored.error["code"] == "URL_NOT_ALLOWED"
        shown = call("POST", f"{GRADERS}/http/preview", json={"config": config, "agent_response": "x"})
        assert shown.error["code"] == "URL_NOT_ALLOWED"

    def test_a_header_sends_a_stored_secret_to_its_host_only(
        self, call: Call, service: Service, grading_server: ThreadingHTTPServer
    ) -> None:
        config = {"url": url_of(grading_server), "headers": {"Authorization": "Bearer ${GRADER_TOKEN}"}}
        text = {"config": config, "agent_response": "good"}
        unknown = call("POST", f"{GRADERS}/http/preview", json=text)
        assert unknown.status in (400, 404), unknown.body
        host = f"127.0.0.1:{grading_server.server_port}"
        service.secrets.put("GRADER_TOKEN", "a-secret-of-the-grader", Binding((host,), scheme="http"))
        shown = call("POST", f"{GRADERS}/http/preview", json=text)
        handler: Any = grading_server.RequestHandlerClass
        assert handler.seen == ["Bearer a-secret-of-the-grader"]
        assert shown.data["score_value"] == 1.0
        assert "a-secret-of-the-grader" not in json.dumps(shown.body)
        service.secrets.put("GRADER_TOKEN", "a-secret-of-the-grader", Binding(("grader.example",)))
        refused = call("POST", f"{GRADERS}/http/preview", json=text)
        assert "grader.example" in refused.error["message"]

    def test_the_operators_keys_are_not_sent(
        self, call: Call, grading_server: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-operator")
        config = {"url": url_of(grading_server), "headers": {"Authorization": "Bearer ${OPENAI_API_KEY}"}}
        refused = call("POST", f"{GRADERS}/http/preview", json={"config": config, "agent_response": "x"})
        assert "its provider's own address" in str(refused.body)
        config["headers"] = {"Authorization": "Bearer ${HOME}"}
        refused = call("POST", f"{GRADERS}/http/preview", json={"config": config, "agent_response": "x"})
        assert refused.status in (400, 404)
        handler: Any = grading_server.RequestHandlerClass
        assert handler.seen == []

    def test_a_literal_secret_is_refused(self, call: Call) -> None:
        config = {"url": "https://grader.example", "headers": {"Authorization": "Bearer abcdefghijkl"}}
        stored = call("POST", GRADERS, json={"id": "m", "name": "M", "type": "http", "config": config})
        assert "contains a secret" in stored.error["message"]

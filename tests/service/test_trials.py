"""Trials of an agent: nothing is stored, no secret is returned, and the rules of a run apply."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any, cast
from urllib.parse import quote

import pytest

from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings
from gradeline.service.trials import MAX_SHOWN_BYTES

sys.path.insert(0, str(Path(__file__).parent))

from live import PATIENCE_S, EchoAgent, suite_of

from .conftest import MASTER_KEY

Call = Callable[..., Any]
PATH = "/api/evaluations/try"
KEY = 'sk-planted/"key" ü+9'


class Mirror:
    """Echoes every request as JSON; the path selects the kind of response."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = Event()
        self.may_answer.set()
        self._server = _MirrorServer(self)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}"
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


class _MirrorServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, mirror: Mirror) -> None:
        self.mirror = mirror
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        mirror = cast(_MirrorServer, self.server).mirror
        mirror.asked += 1
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        key = self.headers.get("X-Thing", "")
        place = self.path.partition("?")[0]
        mirror.may_answer.wait(PATIENCE_S)
        if place == "/moved":
            self._say(307, b"", Location="/echo")
        elif place == "/long":
            self._say(200, b"x" * (2 * MAX_SHOWN_BYTES))
        elif place == "/half":
            # what is kept ends within the key, which comes many times before
            secret = key.encode("latin-1") * 9000
            self._say(500, secret)
        elif place == "/tools":
            calls = [{"id": key, "name": key, "arguments": {key: [key]}}]
            usage = {"input_tokens": 3, "output_tokens": 5, "cost": 0.25}
            self._say(200, json.dumps({"text": f"so {key}", "calls": calls, "used": usage}).encode())
        else:
            headers = dict(self.headers)
            trial = {"response": f"{headers} {quote(key)} {body}", "again": json.dumps(headers), "body": body}
            self._say(404 if place == "/missing" else 200, json.dumps(trial).encode(), X_Echo=key)

    def _say(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "session=of-the-agent")
        self.send_header("X-Session-Token", "of-the-agent")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    made = Mirror()
    yield made
    made.close()


@pytest.fixture
def agent() -> Iterator[EchoAgent]:
    with EchoAgent() as started:
        yield started


def attempt(call: Call, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return call("POST", PATH, json=body, headers=headers)


def tables(service: Service) -> dict[str, int]:
    names = ("runs", "samples", "responses", "grades", "test_cases", "jobs")
    return {name: service.database.read(f"SELECT count(*) FROM {name}")[0][0] for name in names}


class TestTrialResult:
    def test_request_raw_answer_and_what_was_read(self, call: Call, agent: EchoAgent) -> None:
        answer = attempt(call, agent_endpoint_url=agent.url, input="héllo", timeout_s=5)
        assert answer.status == 200
        trial = answer.data
        assert trial.pop("response_latency_ms") > 0
        (exchange,) = trial.pop("exchanges")
        assert trial == {
            "response_status": "success",
            "agent_response": "héllo",
            "agent_response_truncated": False,
            "tool_calls": None,
            "tool_calls_omitted": 0,
            "usage": None,
            "error_type": None,
            "error_message": None,
            "timeout_s": 5.0,
            "exchanges_omitted": 0,
        }
        request, raw = exchange["request"], exchange["answer"]
        trace = request["headers"].pop("traceparent")
        assert len(trace) == 55
        assert request == {
            "method": "POST",
            "url": agent.url,
            "headers": {
                "Accept-Encoding": "gzip, deflate",
                "User-Agent": "gradeline",
                "Content-Type": "application/json",
            },
            "body": '{"input": "h\\u00e9llo"}',
            "body_truncated": False,
        }
        assert {name: raw[name] for name in ("status", "body", "body_truncated")} == {
            "status": 200,
            "body": '{"response": "h\\u00e9llo"}',
            "body_truncated": False,
        }
        assert raw["headers"]["Content-Type"] == "application/json"
        assert agent.calls == {"héllo": 1}

    def test_tool_calls_and_usage_come_by_the_mapping(self, call: Call, mirror: Mirror) -> None:
        target = {
            "kind": "http",
            "url": f"{mirror.url}/tools",
            "headers": {"X-Thing": "search"},
            "response": {
                "output": "text",
                "tool_calls": "calls",
                "usage": "used",
            },
        }
        trial = attempt(call, target=target, input="q").data
        assert (trial["agent_response"], trial["timeout_s"]) == ("so search", 30.0)
        assert [(one["name"], json.loads(one["arguments"])) for one in trial["tool_calls"]] == [
            ("search", {"search": ["search"]})
        ]
        assert (trial["usage"]["input_tokens"], trial["usage"]["cost"]) == (3, 0.25)

    def test_a_stored_case_can_be_tried(self, call: Call, agent: EchoAgent) -> None:
        case = call("POST", "/api/test-cases", json={"input": "stored", "expected_output": "x"}).data["id"]
        assert attempt(call, agent_endpoint_url=agent.url, test_case_id=case).data["agent_response"] == "stored"

    def test_every_step_of_a_redirect_is_shown(self, call: Call, mirror: Mirror) -> None:
        trial = attempt(call, agent_endpoint_url=f"{mirror.url}/moved", input="q").data
        first, second = trial["exchanges"]
        assert (first["answer"]["status"], first["answer"]["headers"]["Location"]) == (307, "/echo")
        assert first["answer"]["body"] is None
        assert (second["request"]["url"], second["answer"]["status"]) == (f"{mirror.url}/echo", 200)

    def test_of_many_polls_the_first_and_the_latest_are_shown(self, call: Call, mirror: Mirror) -> None:
        poll = {"url": "/never", "until": "done", "interval": 0.001}
        trial = attempt(call, target={"kind": "http", "url": mirror.url, "poll": poll}, input="q", timeout_s=5).data
        # the mirror has no GET
        assert [one["request"]["method"] for one in trial["exchanges"]] == ["POST", "GET"]
        assert (trial["error_type"], trial["exchanges"][1]["answer"]["status"]) == ("status", 501)

    def test_a_long_body_is_cut_and_marked(self, call: Call, mirror: Mirror) -> None:
        trial = attempt(call, agent_endpoint_url=f"{mirror.url}/long", input="q", timeout_s=20).data
        raw = trial["exchanges"][0]["answer"]
        assert (len(raw["body"]), raw["body_truncated"]) == (MAX_SHOWN_BYTES, True)
        assert trial["error_type"] == "bad_response"

    def test_a_model_is_an_agent_too(self, call: Call, mirror: Mirror) -> None:
        target = {"kind": "openai", "base_url": f"{mirror.url}/v1", "model": "m"}
        trial = attempt(call, target=target, input="q").data
        (exchange,) = trial["exchanges"]
        assert exchange["request"]["url"] == f"{mirror.url}/v1/chat/completions"
        assert json.loads(exchange["request"]["body"])["messages"][-1]["content"] == "q"
        assert (trial["response_status"], trial["error_type"]) == ("error", "bad_response")

    def test_a_stored_run_answers_without_a_connection(self, call: Call, service: Service, agent: EchoAgent) -> None:
        run = call("POST", "/api/evaluations", json={"suite": suite_of(agent, 1)}).data["id"]
        trial = attempt(call, target={"kind": "replay", "run": run}, input="q").data
        assert (trial["response_status"], trial["exchanges"]) == ("error", [])


class TestFailures:
    def test_an_error_status_shows_its_body(self, call: Call, agent: EchoAgent) -> None:
        agent.failing = {"q"}
        trial = attempt(call, agent_endpoint_url=agent.url, input="q").data
        assert (trial["response_status"], trial["agent_response"], trial["error_type"]) == ("error", None, "status")
        assert trial["error_message"] == f'POST {agent.url}: answered 400: {{"error": "refused"}}'
        raw = trial["exchanges"][0]["answer"]
        assert (raw["status"], raw["body"]) == (400, '{"error": "refused"}')

    def test_an_unreachable_agent(self, call: Call) -> None:
        target = {"kind": "http", "url": "http://127.0.0.1:9/", "retries": 5}
        trial = attempt(call, target=target, input="q").data
        assert (trial["response_status"], trial["error_type"]) == ("error", "connect")
        # once, whatever the target says
        assert "tried" not in trial["error_message"]
        assert [one["answer"] for one in trial["exchanges"]] == [None]

    def test_messages_equal_those_stored_by_a_run(self, call: Call, agent: EchoAgent) -> None:
        agent.failing = {"q 0"}
        suite = suite_of(agent, 1)
        run = call("POST", "/api/evaluations", json={"suite": suite}).data["id"]
        while call("GET", f"/api/evaluations/{run}").data["status"] in ("pending", "running"):
            agent.wait_for(1)
        (stored,) = call("GET", f"/api/evaluations/{run}/results").data["results"]
        trial = attempt(call, target=suite["target"], input="q 0").data
        assert (trial["response_status"], trial["error_message"]) == (
            stored["response_status"],
            stored["error_message"],
        )

    def test_an_agent_that_is_slow_ends_in_time(self, call: Call, mirror: Mirror) -> None:
        mirror.may_answer.clear()
        trial = attempt(call, agent_endpoint_url=f"{mirror.url}/echo", input="q", timeout_s=0.2).data
        assert (trial["response_status"], trial["error_type"]) == ("timeout", "timeout")
        assert trial["exchanges"][0]["answer"] is None

    def test_no_target_may_take_longer_than_a_minute(self, call: Call, agent: EchoAgent) -> None:
        target = {"kind": "http", "url": agent.url, "timeout": 600}
        assert attempt(call, target=target, input="q").data["timeout_s"] == 60.0

    @pytest.mark.parametrize(
        ("body", "status", "code", "word"),
        [
            ({}, 400, "MISSING_FIELD", "input"),
            ({"input": "q"}, 400, "MISSING_FIELD", "agent_endpoint_url"),
            ({"agent_endpoint_url": "http://127.0.0.1:9/"}, 400, "MISSING_FIELD", "test_case_id"),
            ({"input": "", "agent_endpoint_url": "http://127.0.0.1:9/"}, 400, "INVALID_LENGTH", "input"),
            ({"input": " \n", "agent_endpoint_url": "http://127.0.0.1:9/"}, 400, "INVALID_INPUT", "input"),
            ({"input": "a\0", "agent_endpoint_url": "http://127.0.0.1:9/"}, 400, "INVALID_INPUT", "input"),
            ({"input": "q" * 10_001, "agent_endpoint_url": "http://127.0.0.1:9/"}, 400, "INVALID_LENGTH", "input"),
            ({"input": "q", "test_case_id": "x", "target": {}}, 400, "INVALID_INPUT", "exclude"),
            ({"test_case_id": "x", "target": {"kind": "http"}}, 400, "INVALID_TEST_CASE_ID", "'x'"),
            ({"input": "q", "agent_endpoint_url": "x", "target": {}}, 400, "INVALID_INPUT", "exclude"),
            ({"input": "q", "agent_endpoint_url": "ftp://x/"}, 400, "INVALID_URL", "agent_endpoint_url"),
            ({"input": "q", "agent_endpoint_url": "http://10.0.0.1/"}, 400, "URL_NOT_ALLOWED", "agent_endpoint_url"),
            ({"input": "q", "target": {"kind": "command", "command": "ls"}}, 403, "FORBIDDEN", "command"),
            (
                {"input": "q", "target": {"kind": "http", "url": "http://127.0.0.1:9/", "x": 1}},
                400,
                "INVALID_INPUT",
                "x",
            ),
            (
                {"input": "q", "target": {"kind": "http", "url": "http://127.0.0.1:9/", "retries": "x"}},
                400,
                None,
                "retries",
            ),
            (
                {"input": "q", "target": {"kind": "http", "url": "http://127.0.0.1:9/{{metadata.x}}"}},
                400,
                "INVALID_INPUT",
                "metadata.x",
            ),
            (
                {"input": "q", "agent_endpoint_url": "http://127.0.0.1:9/", "timeout_s": 61},
                400,
                "INVALID_INPUT",
                "timeout_s",
            ),
            (
                {"input": "q", "agent_endpoint_url": "http://127.0.0.1:9/", "grader_ids": []},
                400,
                "INVALID_INPUT",
                "grader_ids",
            ),
            (
                {
                    "input": "q",
                    "target": {"kind": "http", "url": "http://127.0.0.1:9/", "headers": {"Authorization": "x"}},
                },
                400,
                "INVALID_INPUT",
                "secret",
            ),
        ],
    )
    def test_an_invalid_trial_is_refused(
        self, call: Call, body: dict[str, Any], status: int, code: str | None, word: str
    ) -> None:
        answer = attempt(call, **body)
        assert (answer.status, answer.error["code"]) == (status, code or "INVALID_INPUT")
        assert word in answer.error["message"]


class TestRules:
    def test_only_the_audit_entry_is_stored(self, call: Call, service: Service, agent: EchoAgent) -> None:
        before = tables(service)
        attempt(call, agent_endpoint_url=f"{agent.url}?token=abcdefgh", input="q")
        attempt(call, agent_endpoint_url=agent.url, input="a very private question")
        assert tables(service) == before
        entries = [(entry.action, entry.subject, entry.details) for entry in service.audit.entries()]
        assert entries == [("evaluation.try", agent.url, {"kind": "http"})]

    @pytest.mark.parametrize(("scope", "status"), [("read", 403), ("label", 403), ("run", 400), ("admin", 400)])
    def test_it_needs_a_key_that_may_start_runs(
        self, call: Call, call_with: Callable[[str], dict[str, str]], agent: EchoAgent, scope: str, status: int
    ) -> None:
        headers = call_with(scope)
        assert attempt(call, headers, agent_endpoint_url=agent.url, input="q").status == status
        assert attempt(call, agent_endpoint_url=agent.url, input="q").status == 401
        # with keys, this machine itself is out of reach
        assert agent.total == 0

    def test_a_redirect_to_an_inner_address_is_not_followed(self, call: Call, mirror: Mirror) -> None:
        class Away(_Handler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._say(307, b"", Location="http://169.254.169.254/latest")

        mirror._server.RequestHandlerClass = Away
        trial = attempt(call, agent_endpoint_url=mirror.url, input="q").data
        assert "169.254.169.254 is a cloud metadata address" in trial["error_message"]
        assert [one["answer"] and one["answer"]["status"] for one in trial["exchanges"]] == [307, None]

    def test_concurrent_trials_are_limited(self, call: Call, mirror: Mirror) -> None:
        mirror.may_answer.clear()
        done: list[Any] = []
        body = {"agent_endpoint_url": f"{mirror.url}/echo", "input": "q"}
        threads = [Thread(target=lambda: done.append(attempt(call, **body))) for _ in range(5)]
        for thread in threads:
            thread.start()
        while not done:
            threads[0].join(0.01)
        mirror.may_answer.set()
        for thread in threads:
            thread.join()
        assert sorted(one.status for one in done) == [200] * 4 + [429]
        refused = done[0]
        assert (refused.error["code"], refused.headers["retry-after"]) == ("RATE_LIMITED", "5")
        assert attempt(call, **body).status == 200


class TestSecrets:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServeSettings:
        return ServeSettings(store=str(tmp_path / "store.db"), secret_key=MASTER_KEY)

    @pytest.mark.parametrize("path", ["/echo", "/missing", "/tools", "/half"])
    @pytest.mark.parametrize("key", ["sk-planted-1234567890", "pl/an+t=ed"])
    @pytest.mark.parametrize("header", ["Authorization", "X-Another"], ids=["a key by its name", "a key by its value"])
    def test_a_key_echoed_by_the_agent_is_masked(
        self, call: Call, mirror: Mirror, path: str, key: str, header: str
    ) -> None:
        call("PUT", "/api/secrets/KEY", json={"value": key, "host": mirror.host})
        call("PUT", "/api/secrets/INSIDE", json={"value": key, "host": mirror.host, "place": "body"})
        target = {
            "kind": "http",
            "url": f"{mirror.url}{path}",
            "headers": {header: {"secret": "KEY"}, "X-Thing": {"secret": "KEY"}},
            "request": {"input": "{{input}}", "inside": {"secret": "INSIDE"}},
            "response": {"tool_calls": "calls"} if path == "/tools" else {},
        }
        answer = attempt(call, target=target, input="q")
        assert answer.status == 200
        assert mirror.asked == 1
        text = json.dumps(answer.body, ensure_ascii=False)
        assert key not in text
        assert quote(key, safe="") not in text
        assert key[: len(key) // 2] not in text
        request = answer.data["exchanges"][0]["request"]
        assert (request["headers"][header], request["headers"]["X-Thing"]) == ("***", "***")
        assert json.loads(request["body"]) == {"input": "q", "inside": "***"}
        assert "of-the-agent" not in text

    def test_the_spellings_of_json_are_hidden_too(self, call: Call, mirror: Mirror) -> None:
        call("PUT", "/api/secrets/KEY", json={"value": KEY, "host": mirror.host, "place": "body"})
        target = {"kind": "http", "url": mirror.url, "request": {"input": "{{input}}", "inside": {"secret": "KEY"}}}
        answer = attempt(call, target=target, input="q")
        assert "planted" not in json.dumps(answer.body)

    def test_a_key_in_basic_form_is_hidden(self, call: Call, mirror: Mirror) -> None:
        value = "Basic " + base64.b64encode(b"user:password").decode()
        call("PUT", "/api/secrets/KEY", json={"value": value, "host": mirror.host})
        target = {"kind": "http", "url": mirror.url, "headers": {"Authorization": {"secret": "KEY"}}}
        assert value.split()[1] not in json.dumps(attempt(call, target=target, input="q").body)

    def test_a_secret_for_another_host_is_not_sent(self, call: Call, mirror: Mirror) -> None:
        call("PUT", "/api/secrets/KEY", json={"value": "sk-1234567890", "host": "agent.test"})
        target = {"kind": "http", "url": mirror.url, "headers": {"Authorization": {"secret": "KEY"}}}
        answer = attempt(call, target=target, input="q")
        assert (answer.status, answer.error["code"], mirror.asked) == (400, "INVALID_INPUT", 0)

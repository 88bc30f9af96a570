"""Attacks on stored secrets by callers with a key of scope `run`, and by agents that redirect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, cast

import pytest

from gradeline.service.run_access import open_secrets, provider_secrets, run_access
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

from .conftest import MASTER_KEY, Answer, Call

VALUE = "planted-admin-secret-7d1f"
LOOPBACK = ("127.0.0.0/8",)

Headers = Callable[[str], dict[str, str]]


class Agent(ThreadingHTTPServer):
    """Echoes every request, answers as a chat model, and redirects to ``elsewhere`` if set."""

    daemon_threads = True

    def __init__(self) -> None:
        self.received: list[str] = []
        self.elsewhere: str | None = None
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        agent = cast(Agent, self.server)
        whole = f"{self.requestline}\n{self.headers}{body}"
        agent.received.append(whole)
        reply = '{"score": 1, "passed": true, "rationale": "right"}'
        choice = {"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}
        raw = json.dumps({"response": whole, "choices": [choice], "model": "m"}).encode()
        self.send_response(200 if agent.elsewhere is None else 307)
        if agent.elsewhere is not None:
            self.send_header("Location", agent.elsewhere)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def settings(tmp_path: Path) -> ServeSettings:
    return ServeSettings(store=str(tmp_path / "store.db"), secret_key=MASTER_KEY, allow_agent_net=LOOPBACK)


@pytest.fixture
def agents() -> Iterator[tuple[Agent, Agent]]:
    with Agent() as one, Agent() as other:
        for agent in (one, other):
            Thread(target=agent.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield one, other
        one.shutdown()
        other.shutdown()


@pytest.fixture
def agent(agents: tuple[Agent, Agent]) -> Agent:
    return agents[0]


def suite_of(target: dict[str, Any], graders: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "name": "attack",
        "target": target,
        "graders": graders or {"has": {"kind": "contains"}},
        "dataset": [{"id": "a", "input": "q", "ground_truth": "q"}],
    }


def ways(call: Call, target: dict[str, Any], **options: Any) -> dict[str, Answer]:
    """The ways in which a caller can have a target called."""
    return {
        "try": call("POST", "/api/evaluations/try", json={"target": target, "input": "q"}, **options),
        "suite": call("POST", "/api/evaluations", json={"suite": suite_of(target)}, **options),
    }


def codes(answers: dict[str, Answer]) -> dict[str, tuple[int, str]]:
    return {way: (answer.status, (answer.error or {}).get("code", "")) for way, answer in answers.items()}


FORBIDDEN = {"try": (403, "FORBIDDEN"), "suite": (403, "FORBIDDEN")}
INVALID = {"try": (400, "INVALID_INPUT"), "suite": (400, "INVALID_INPUT")}


@pytest.mark.parametrize("place", ["request", "headers", "query"])
def test_a_run_key_reads_no_secret_of_an_admin_through_an_echoing_agent(
    call: Call, call_with: Headers, agent: Agent, place: str
) -> None:
    admin, run = call_with("admin"), call_with("run")
    stored = {"value": VALUE, "host": agent.host}
    assert call("PUT", "/api/secrets/NAME", json=stored, headers=admin).status == 200
    target = {"kind": "http", "url": f"{agent.url}/ask", place: {"input": {"secret": "NAME"}}}
    answers = ways(call, target, headers=run)
    assert codes(answers) == FORBIDDEN
    message = answers["try"].error["message"]
    assert message.startswith(f"Field 'target.{place}.input': your key may not use the secret 'NAME'; ask an admin")
    assert agent.received == []


def test_a_run_key_that_is_allowed_uses_it_in_its_place_only(call: Call, call_with: Headers, agent: Agent) -> None:
    admin, run = call_with("admin"), call_with("run")
    stored = {"value": VALUE, "host": agent.host, "scopes": ["run"]}
    call("PUT", "/api/secrets/NAME", json=stored, headers=admin)
    base = {"kind": "http", "url": f"{agent.url}/ask"}
    for place in ("request", "query"):
        assert codes(ways(call, {**base, place: {"input": {"secret": "NAME"}}}, headers=run)) == INVALID
    refused = ways(call, {**base, "url": {"secret": "NAME"}}, headers=run)
    assert codes(refused) == INVALID
    assert agent.received == []
    allowed = call(
        "POST",
        "/api/evaluations/try",
        json={"target": {**base, "headers": {"X-Key": {"secret": "NAME"}}}, "input": "q"},
        headers=run,
    )
    assert allowed.status == 200
    assert VALUE in agent.received[0]
    assert VALUE not in json.dumps(allowed.body)


def test_a_run_with_a_secret_is_not_resumed_by_a_key_that_may_not_use_it(
    call: Call, call_with: Headers, agent: Agent
) -> None:
    admin, run = call_with("admin"), call_with("run")
    call("PUT", "/api/secrets/NAME", json={"value": VALUE, "host": agent.host}, headers=admin)
    target = {"kind": "http", "url": f"{agent.url}/ask", "headers": {"X-Key": {"secret": "NAME"}}}
    started = call("POST", "/api/evaluations", json={"suite": suite_of(target)}, headers=admin).data["id"]
    call("POST", f"/api/evaluations/{started}/cancel", headers=admin)
    while call("GET", f"/api/evaluations/{started}", headers=admin).data["status"] in ("pending", "running"):
        pass
    for act in ("resume", "retry-failed"):
        answer = call("POST", f"/api/evaluations/{started}/{act}", headers=run)
        assert (answer.status, answer.error["code"]) == (403, "FORBIDDEN")


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Transfer-Encoding", "Connection"])
@pytest.mark.parametrize("kind", ["http", "openai"])
def test_headers_of_the_transport_cannot_be_set(call: Call, agent: Agent, name: str, kind: str) -> None:
    place = {"url": f"{agent.url}/ask"} if kind == "http" else {"base_url": agent.url, "model": "m"}
    answers = ways(call, {"kind": kind, **place, "headers": {name: "7"}})
    assert codes(answers) == INVALID
    assert f"{name} is set by the transport; leave it out" in answers["try"].error["message"]
    assert agent.received == []


def test_the_scheme_is_part_of_the_binding(call: Call) -> None:
    call("PUT", "/api/secrets/NAME", json={"value": VALUE, "host": "agent.test"})
    target = {"kind": "http", "url": "http://agent.test/ask", "headers": {"X-Key": {"secret": "NAME"}}}
    answers = ways(call, target)
    assert codes(answers) == INVALID
    assert "may be sent to https://agent.test only, not to http://agent.test" in answers["try"].error["message"]


@pytest.mark.parametrize("place", ["body", "query", "header"])
def test_a_secret_does_not_follow_a_redirect_to_another_origin(
    call: Call, agents: tuple[Agent, Agent], place: str
) -> None:
    agent, other = agents
    agent.elsewhere = f"{other.url}/ask"
    call("PUT", "/api/secrets/NAME", json={"value": VALUE, "host": agent.host, "place": place})
    option = {"body": "request", "query": "query", "header": "headers"}[place]
    target = {"kind": "http", "url": f"{agent.url}/ask", option: {"X-Key": {"secret": "NAME"}}}
    answer = call("POST", "/api/evaluations/try", json={"target": target, "input": "q"})
    assert VALUE in agent.received[0]
    assert VALUE not in "".join(other.received)
    if place == "body":
        assert (answer.data["error_type"], other.received) == ("redirect", [])


class TestProviderAddresses:
    """Run, try and preview agree on where a provider's key goes: OPENAI_BASE_URL where the operator sets it."""

    def ways(self, call: Call) -> dict[str, Answer]:
        target = {"kind": "openai", "model": "m", "api_key": {"secret": "NAME"}, "retries": 0}
        judge = {"kind": "model_judge", "model": "m", "api_key_env": "NAME", "prompt": "Is it right?"}
        graders = {"judge": judge}
        config = {key: value for key, value in judge.items() if key != "kind"}
        definition = {"name": "j", "type": "model_judge", "config": config}
        replay = {"kind": "http", "url": "http://127.0.0.1:9/ask"}
        return {
            **ways(call, target),
            "judge": call("POST", "/api/evaluations", json={"suite": suite_of(replay, graders)}),
            "preview": call(
                "POST",
                "/api/graders/new/preview",
                json={"definition": definition, "agent_response": "a", "expected_output": "b"},
            ),
        }

    def test_a_secret_of_the_public_address_does_not_go_to_another(
        self, call: Call, agent: Agent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", agent.url)
        call("PUT", "/api/secrets/NAME", json={"value": VALUE, "host": "api.openai.com"})
        answers = self.ways(call)
        assert codes(answers) == dict.fromkeys(("try", "suite", "judge", "preview"), (400, "INVALID_INPUT"))
        assert agent.received == []

    def test_a_secret_of_that_address_goes_there(
        self, call: Call, agent: Agent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPENAI_BASE_URL", agent.url)
        call("PUT", "/api/secrets/NAME", json={"value": VALUE, "host": agent.host})
        answers = self.ways(call)
        assert {way: answer.status for way, answer in answers.items()} == {
            "try": 200,
            "suite": 201,
            "judge": 201,
            "preview": 200,
        }
        assert f"Bearer {VALUE}" in agent.received[0]
        assert VALUE not in json.dumps([answer.body for answer in answers.values()])

    def test_the_operators_own_key_is_bound_to_the_same_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", VALUE)
        monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
        (key,) = (secret for secret in provider_secrets() if secret.name == "OPENAI_API_KEY")
        assert key.destinations == "https://api.openai.com:443"
        monkeypatch.setenv("OPENAI_BASE_URL", "http://gateway.test:8000/v1")
        (key,) = (secret for secret in provider_secrets() if secret.name == "OPENAI_API_KEY")
        assert key.destinations == "http://gateway.test:8000"


def test_a_name_is_resolved_for_each_host_and_never_into_the_environment(
    service: Service, call: Call, agents: tuple[Agent, Agent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key-of-the-operator")
    one, other = agents
    call("PUT", "/api/secrets/NAME", json={"value": VALUE, "host": one.host})
    judges = {
        key: {"kind": "model_judge", "model": "m", "api_key_env": "NAME", "base_url": agent.url, "prompt": "Right?"}
        for key, agent in (("first", one), ("second", other))
    }
    outside = run_access(open_secrets({"graders": judges}, service.secrets), service.egress)
    assert "planted" not in repr(outside)
    answer = call("POST", "/api/evaluations", json={"suite": suite_of({"kind": "http", "url": one.url}, judges)})
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
    assert "graders.second.api_key_env" in answer.error["message"]
    assert (one.received, other.received) == ([], [])

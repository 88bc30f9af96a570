from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fake_letta_server import Behaviour, Failure, LettaStub, Operation, StubAgent, looks_it_up
from gradeline.engine.components import Access
from gradeline.engine.definition import RunOptions
from gradeline.engine.prepare import prepare
from gradeline.errors import ConfigError, Fault
from gradeline.letta.server import LettaConnection
from gradeline.letta.targets import LettaAgentConfig, LettaAgentTarget
from gradeline.model import ErrorInfo, Message, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.suite.read import read_suite
from gradeline.targets import create
from gradeline.transport import PublicOnly, Transport
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.pool import WorkerPool
from target_context import context

KEY = "sk-let-0123456789"
FILE = {"agents": [{"name": "helper"}], "blocks": [{"label": "persona", "value": "Kind."}]}


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "agent.af").write_text(json.dumps(FILE))
    return tmp_path


class Talk(NamedTuple):
    response: Response
    letta: LettaStub

    @property
    def fault(self) -> tuple[str, str]:
        assert self.response.error is not None, self.response
        assert (self.response.status == "timeout") is (self.response.error.type == "timeout")
        return self.response.error.type, self.response.error.message


Preparing = Callable[[LettaStub], None]


def talk(
    suite: Path,
    asked: str | list[str] = "Where?",
    *,
    prepare: Preparing = lambda _: None,
    behaviour: Behaviour = looks_it_up,
    key: str | None = None,
    given: Mapping[str, Any] | None = None,
    **config: Any,
) -> Talk:
    """The response of a target whose agent is a stub, and the stub."""

    async def run() -> Talk:
        async with LettaStub(behaviour, key=key) as letta:
            prepare(letta)
            options = {"base_url": letta.url, "agent_file": "agent.af", **config}
            options = {name: value for name, value in options.items() if value is not None}
            more = {"folder": suite, "environment": {}, **(given or {})}
            async with create("letta_agent", options, context=context(**more)) as target:
                return Talk(await target.respond(Sample(id=1, input=asked)), letta)

    return asyncio.run(run())


def failing(operation: Operation, *failures: Failure) -> Preparing:
    return lambda letta: letta.fail(operation, *failures)


def problems_of(**config: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        create("letta_agent", config)
    return {problem.path.removeprefix("config."): problem.message for problem in caught.value.problems}


def startup_problems(suite: Path, **config: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(create("letta_agent", config, context=context(folder=suite, environment={})).open())
    return str(caught.value)


def turn(text: str) -> tuple[Message, ...]:
    """The messages of the stub's agent for a text."""
    call = ToolCall("conversation_search", json.dumps({"query": text}), "call-1")
    return (
        Message("user", text),
        Message("reasoning", "I had better look."),
        Message("assistant", tool_calls=(call,)),
        Message("tool", "1 hit", tool_call_id="call-1", name="conversation_search"),
        Message("assistant", f"You said: {text}"),
    )


# The exchange


def test_a_sample_gets_an_agent_from_the_file(suite: Path) -> None:
    response, letta = talk(suite, model="openai/gpt-4.1", project_id="p-1", api_key=KEY, key=KEY)
    assert response == Response(
        text="You said: Where?",
        trajectory=Trajectory((turn("Where?"),), {"persona": "Kind.", "human": "Where?"}),
        usage=Usage(900, 40, 300),
        latency_ms=response.latency_ms,
        stop_reason="end_turn",
    )
    assert response.latency_ms is not None
    assert response.latency_ms > 0
    assert [(asked.method, asked.path, dict(asked.query), asked.data) for asked in letta.requests] == [
        (
            "POST",
            "/v1/agents/import",
            {},
            {
                "append_copy_suffix": "false",
                "override_existing_tools": "false",
                "project_id": "p-1",
                "file": json.dumps(FILE),
            },
        ),
        ("PATCH", "/v1/agents/agent-1", {}, {"model": "openai/gpt-4.1"}),
        (
            "POST",
            "/v1/agents/agent-1/messages",
            {},
            {"messages": [{"role": "user", "content": "Where?"}], "max_steps": 100},
        ),
        ("GET", "/v1/agents/agent-1", {"include": "agent.blocks"}, None),
    ]
    assert {(asked.headers["Authorization"], asked.headers["X-Project-Id"]) for asked in letta.requests} == {
        (f"Bearer {KEY}", "p-1")
    }


def test_without_a_model_the_agent_keeps_its_own(suite: Path) -> None:
    assert talk(suite).letta.operations() == ["import", "send", "state"]


def test_each_text_of_a_list_is_a_message_and_a_turn(suite: Path) -> None:
    response, letta = talk(suite, ["One", "Two"])
    assert response.trajectory == Trajectory((turn("One"), turn("Two")), {"persona": "Kind.", "human": "Two"})
    assert response.text == "You said: Two"
    assert response.usage == Usage(1800, 80, 600)
    assert letta.operations() == ["import", "send", "send", "state"]


def test_every_sample_gets_its_own_agent(suite: Path) -> None:
    async def run() -> list[str]:
        async with LettaStub() as letta:
            config = {"base_url": letta.url, "agent_file": "agent.af"}
            async with create("letta_agent", config, context=context(folder=suite, environment={})) as target:
                await asyncio.gather(*(target.respond(Sample(id=n, input=str(n))) for n in range(5)))
            return [agent.messages[0]["content"] for agent in letta.agents.values()]

    assert sorted(asyncio.run(run())) == ["0", "1", "2", "3", "4"]


def test_an_existing_agent_is_used_by_one_sample_at_a_time() -> None:
    async def run() -> list[str]:
        async with LettaStub() as letta:
            agent = letta.add_agent()
            async with create(
                "letta_agent", {"base_url": letta.url, "agent_id": agent.id}, context=context(environment={})
            ) as target:
                samples = [Sample(id=name, input=[f"{name}1", f"{name}2"]) for name in "abc"]
                await asyncio.gather(*map(target.respond, samples))
            assert "import" not in letta.operations()
            return [message["content"] for message in agent.messages if message["message_type"] == "user_message"]

    asked = asyncio.run(run())
    assert sorted(asked) == ["a1", "a2", "b1", "b2", "c1", "c2"]
    assert [first[0] == second[0] for first, second in zip(asked[::2], asked[1::2], strict=True)] == [True] * 3


def test_an_id_cannot_reach_another_path() -> None:
    hostile = "../blocks?x=1#"

    async def run() -> tuple[Response, str]:
        async with LettaStub() as letta:
            async with create(
                "letta_agent", {"base_url": letta.url, "agent_id": hostile}, context=context(environment={})
            ) as target:
                response = await target.respond(Sample(id=1, input="x"))
            return response, letta.requests[0].operation

    response, operation = asyncio.run(run())
    assert operation == "send"
    assert response.error is not None
    assert response.error.type == "status"


# What the agent did


def test_text_in_parts_and_several_calls_are_read(suite: Path) -> None:
    def behaves(agent: StubAgent, text: str) -> list[dict[str, Any]]:
        calls = [{"name": name, "arguments": "{}", "tool_call_id": name} for name in ("f", "g")]
        returns = [
            {"tool_call_id": "f", "status": "success", "tool_return": "1"},
            {"tool_call_id": "g", "status": "error", "tool_return": "no"},
        ]
        return [
            {"message_type": "hidden_reasoning_message", "state": "redacted", "hidden_reasoning": None},
            {"message_type": "tool_call_message", "tool_call": calls[0], "tool_calls": calls},
            {"message_type": "tool_return_message", **returns[0], "tool_returns": returns},
            {"message_type": "assistant_message", "content": [{"type": "text", "text": t} for t in ("Par", "is")]},
            {"message_type": "ping"},
        ]

    response = talk(suite, behaviour=behaves).response
    assert response.text == "Par is"
    assert response.trajectory is not None
    assert response.trajectory.turns[0][1:] == (
        Message("reasoning"),
        Message("assistant", tool_calls=(ToolCall("f", "{}", "f"), ToolCall("g", "{}", "g"))),
        Message("tool", "1", tool_call_id="f"),
        Message("tool", "no", tool_call_id="g", is_error=True),
        Message("assistant", "Par is"),
        Message("event"),
    )


def test_an_empty_answer_is_an_answer(suite: Path) -> None:
    response = talk(suite, behaviour=lambda *_: []).response
    assert (response.status, response.text) == ("success", "")
    assert response.trajectory is not None
    assert response.trajectory.turns == ((Message("user", "Where?"),),)


def test_text_that_cannot_be_stored_is_cleaned_with_a_flag(suite: Path) -> None:
    answered = talk(
        suite, behaviour=lambda *_: [{"message_type": "assistant_message", "content": "a\0\ud800"}]
    ).response
    assert (answered.text, answered.cleaned) == ("a\u2400\ufffd", True)


def test_unreported_usage_is_unknown(suite: Path) -> None:
    def silent(letta: LettaStub) -> None:
        letta.usage = None

    assert talk(suite, prepare=silent).response.usage is None


@pytest.mark.parametrize(
    ("pricing", "cost"),
    [
        ({"m": {"input_per_mtok": 10, "output_per_mtok": 100}}, 0.013),
        (
            {"m": {"input_per_mtok": 10, "output_per_mtok": 100, "cache_read_per_mtok": 1, "cache_write_per_mtok": 20}},
            (500 * 10 + 300 * 1 + 100 * 20 + 40 * 100) / 1e6,
        ),
        ({"m": "gpt-4.1"}, None),
        ({"other": {"input_per_mtok": 10, "output_per_mtok": 100}}, None),
    ],
)
def test_a_price_gives_a_cost(suite: Path, pricing: Any, cost: float | None) -> None:
    usage = talk(suite, model="m", pricing=pricing).response.usage
    assert usage == Usage(900, 40, 300, cost)


def test_an_answer_is_stored_although_the_memory_cannot_be_read(suite: Path, caplog: pytest.LogCaptureFixture) -> None:
    for failure in (404, b'{"blocks": 5}', b"[]"):
        response = talk(suite, prepare=failing("state", failure)).response
        assert response.text == "You said: Where?"
        assert response.trajectory == Trajectory((turn("Where?"),))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3


# Faults


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (400, "status"),
        (404, "status"),
        (500, "status"),
        (429, "rate_limited"),
        ("hang", "timeout"),
        ("cut", "truncated"),
        ("drop", "reset"),
        (b"", "bad_response"),
        (b"<html>", "bad_response"),
        (b"[]", "bad_response"),
        (b"{}", "bad_response"),
        (b'{"messages": 5}', "bad_response"),
        (b'{"messages": [5]}', "bad_response"),
        (b'{"messages": [{"content": "x"}]}', "bad_response"),
        (b'{"messages": [{"message_type": "assistant_message", "content": 5}]}', "bad_response"),
        (b'{"messages": [{"message_type": "assistant_message", "content": [{"text": 5}]}]}', "bad_response"),
        (b'{"messages": [{"message_type": "tool_call_message", "tool_call": {"name": {"a": 1}}}]}', "bad_response"),
        (b'{"messages": [{"message_type": "event_message", "event_data": 5}]}', "bad_response"),
        (b'{"messages": [' + b"[" * 5000 + b"]" * 5000 + b"]}", "bad_response"),
        (b'{"messages": [], "usage": {"prompt_tokens": NaN}}', "bad_response"),
        (b'{"messages": ' + b"9" * 5000 + b"}", "bad_response"),
    ],
    ids=str,
)
def test_a_failed_message_is_an_error_of_its_kind(suite: Path, failure: Failure, kind: str) -> None:
    assert talk(suite, prepare=failing("send", failure), timeout=1 if failure == "hang" else 300).fault[0] == kind


@pytest.mark.parametrize("body", [b"[]", b'{"agent_ids": []}', b'{"agent_ids": ["a", "b"]}', b'{"agent_ids": [5]}'])
def test_an_import_without_exactly_one_agent_is_a_bad_response(suite: Path, body: bytes) -> None:
    assert talk(suite, prepare=failing("import", body)).fault[0] == "bad_response"


def test_an_unauthorized_call_names_the_setting(suite: Path) -> None:
    kind, message = talk(suite, key=KEY).fault
    assert kind == "status"
    assert "answered 401" in message
    assert "set api_key, or export LETTA_API_KEY" in message
    _, message = talk(suite, key=KEY, api_key="sk-wrong-key").fault
    assert "the api_key is not valid there" in message
    assert "sk-wrong-key" not in message


def test_an_unreachable_server_is_an_infrastructure_error(suite: Path) -> None:
    response, _ = talk(suite, base_url="http://127.0.0.1:9")
    assert response.error is not None
    assert (response.error.type, response.error.fault) == ("connect", Fault.INFRASTRUCTURE)


def test_the_timeout_is_for_the_whole_sample(suite: Path) -> None:
    assert talk(suite, prepare=failing("import", "hang"), timeout=0.5).fault[0] == "timeout"


@pytest.mark.parametrize("reason", ["error", "llm_api_error", "insufficient_credits"])
def test_an_agent_that_stopped_on_a_failure_is_an_error_with_its_trajectory(suite: Path, reason: str) -> None:
    def stops(letta: LettaStub) -> None:
        letta.stop_reason = reason

    response = talk(suite, prepare=stops).response
    assert response.error == ErrorInfo("bad_response", f"the agent stopped for the reason {reason!r}", Fault.AGENT)
    assert response.trajectory == Trajectory((turn("Where?"),))


def test_an_agent_that_stopped_at_its_bounds_has_answered(suite: Path) -> None:
    def stops(letta: LettaStub) -> None:
        letta.stop_reason = "max_steps"

    assert talk(suite, prepare=stops).response.status == "success"


def test_the_turns_before_a_failure_are_stored(suite: Path) -> None:
    def behaves(agent: StubAgent, text: str) -> list[dict[str, Any]]:
        return looks_it_up(agent, text) if text == "One" else [{"message_type": "assistant_message", "content": 5}]

    response = talk(suite, ["One", "Two"], behaviour=behaves).response
    assert response.status == "error"
    assert response.trajectory == Trajectory((turn("One"),))


def test_a_second_attempt_has_a_new_agent(suite: Path) -> None:
    response, letta = talk(suite, ["One", "Two"], prepare=failing("send", 500, "cut"), max_retries=2)
    assert response.text == "You said: Two"
    assert letta.operations() == [
        *("import", "send", "delete"),
        *("import", "send", "delete"),
        *("import", "send", "send", "state"),
    ]
    assert list(letta.agents) == ["agent-3"]


@pytest.mark.parametrize(("failure", "sent"), [(500, 3), ("drop", 3), (b"", 3), (404, 1), (401, 1)])
def test_a_message_is_retried_only_where_that_may_help(suite: Path, failure: Failure, sent: int) -> None:
    letta = talk(suite, prepare=failing("send", *[failure] * 5), max_retries=2).letta
    assert letta.operations().count("send") == sent
    assert talk(suite, prepare=failing("send", failure)).letta.operations().count("send") == 1


def test_idempotent_requests_are_retried(suite: Path) -> None:
    response, letta = talk(suite, prepare=failing("state", 503), model="m")
    assert response.steps.memory == {"persona": "Kind.", "human": "Where?"}
    assert letta.operations() == ["import", "update", "send", "state", "state"]


def test_calls_follow_the_policy_of_the_transport(suite: Path) -> None:
    async def run() -> Response:
        async with LettaStub() as letta, Transport(PublicOnly()) as transport:
            config = {"base_url": letta.url, "agent_file": "agent.af"}
            more = {"folder": suite, "environment": {}, "transport": transport}
            async with create("letta_agent", config, context=context(**more)) as target:
                return await target.respond(Sample(id=1, input="x"))

    response = asyncio.run(run())
    assert response.error is not None
    assert response.error.type == "connect"
    assert "egress policy" in response.error.message


def test_calls_follow_the_egress_policy_of_the_run(suite: Path) -> None:
    """Also if the address is not in the suite."""
    path = suite / "bounded.yaml"
    path.write_text(
        "name: n\ndataset: [{id: 1, input: x, ground_truth: x}]\ntarget: {kind: letta_agent, agent_file: agent.af}\n"
        "graders: {g: {kind: exact_match}}\n"
    )

    async def run() -> Response:
        async with LettaStub() as letta:
            outside = Access({"LETTA_BASE_URL": letta.url}, PublicOnly())
            async with prepare(read_suite(path), RunOptions(), access=outside) as prepared:
                response = await prepared.target.respond(Sample(id=1, input="x"))
            assert letta.operations() == []
            return response

    response = asyncio.run(run())
    assert response.error is not None
    assert "egress policy" in response.error.message


# Cleaning up


def test_with_cleanup_the_agent_of_a_sample_is_deleted(suite: Path) -> None:
    response, letta = talk(suite, given={"cleanup": True})
    assert response.status == "success"
    assert letta.operations() == ["import", "send", "state", "delete"]
    assert letta.agents == {}


def test_the_agent_of_a_failed_sample_is_deleted_too(suite: Path) -> None:
    response, letta = talk(suite, prepare=failing("send", 500), given={"cleanup": True})
    assert response.status == "error"
    assert letta.agents == {}


def test_an_existing_agent_is_never_deleted(suite: Path) -> None:
    def there(letta: LettaStub) -> None:
        letta.add_agent()

    _, letta = talk(suite, prepare=there, agent_id="agent-1", agent_file=None, given={"cleanup": True}, max_retries=1)
    assert list(letta.agents) == ["agent-1"]


def test_an_answer_counts_although_its_agent_cannot_be_deleted(suite: Path, caplog: pytest.LogCaptureFixture) -> None:
    response, _ = talk(suite, prepare=failing("delete", 403), given={"cleanup": True})
    assert response.status == "success"
    assert "agent-1 could not be deleted" in caplog.text


def test_a_cancelled_call_deletes_its_agent(suite: Path) -> None:
    async def run() -> list[str]:
        async with LettaStub() as letta:
            letta.fail("send", "hang")
            config = {"base_url": letta.url, "agent_file": "agent.af"}
            async with create(
                "letta_agent", config, context=context(folder=suite, environment={}, cleanup=True)
            ) as target:
                task = asyncio.create_task(target.respond(Sample(id=1, input="x")))
                while "send" not in letta.operations():
                    await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return list(letta.agents)

    assert asyncio.run(run()) == []


# Where the server is


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ({}, {}, ("http://localhost:8283", None, None)),
        ({}, {"LETTA_API_KEY": "k\n"}, ("https://api.letta.com", "k", None)),
        ({"api_key": "k"}, {}, ("https://api.letta.com", "k", None)),
        ({}, {"LETTA_BASE_URL": "http://a/", "LETTA_API_KEY": "k"}, ("http://a", "k", None)),
        (
            {"base_url": "http://b/", "api_key": "own", "project_id": "p"},
            {"LETTA_BASE_URL": "http://a", "LETTA_API_KEY": "k", "LETTA_PROJECT_ID": "q"},
            ("http://b", "own", "p"),
        ),
        ({"base_url": "http://b"}, {"LETTA_PROJECT_ID": "q", "LETTA_API_KEY": ""}, ("http://b", None, "q")),
    ],
)
def test_the_suite_overrides_the_environment(
    options: dict[str, str], environment: dict[str, str], expected: tuple[str, str | None, str | None]
) -> None:
    target = create("letta_agent", {"agent_id": "a", **options}, context=context(environment=environment))
    assert isinstance(target, LettaAgentTarget)
    assert target.connection == LettaConnection(*expected)


def test_values_of_the_environment_are_checked_too(suite: Path) -> None:
    environment = {"LETTA_BASE_URL": "localhost:8283", "LETTA_PROJECT_ID": "a\nb", "LETTA_API_KEY": f"{KEY}\n{KEY}"}
    target = create("letta_agent", {"agent_id": "a"}, context=context(environment=environment))
    with pytest.raises(ConfigError) as caught:
        asyncio.run(target.open())
    assert {problem.path for problem in caught.value.problems} == {"base_url", "project_id", "api_key"}
    assert KEY not in str(caught.value)


# Its config


def test_exactly_one_source_of_the_agent_is_required() -> None:
    assert "found none of them" in problems_of()["agent_id"]
    assert "found agent_id and agent_file" in problems_of(agent_id="a", agent_file="b.af")["agent_file"]
    assert set(problems_of(agent_id="a", agent_file="b.af", agent_script="c.py:d")) == {"agent_script"}


def test_every_fault_of_a_config_is_named_at_once() -> None:
    assert set(
        problems_of(
            base_url="ftp://x",
            project_id="a\nb",
            timeout=0,
            max_retries=-1,
            agent_file="agent.json",
            pricing={"m": {"input_per_mtok": -1, "output_per_mtok": 1}},
            agent="x",
        )
    ) == {"base_url", "project_id", "timeout", "max_retries", "agent_file", "pricing[...].input_per_mtok", "agent"}


def test_options_of_letta_without_effect_are_reported() -> None:
    report = LettaAgentTarget.without_effect
    assert set(report) <= set(LettaAgentConfig.__struct_fields__)
    every = create("letta_agent", {"agent_id": "a", **dict.fromkeys(report, "x")})
    assert every.fingerprint == create("letta_agent", {"agent_id": "a"}).fingerprint
    assert all("has no effect here" in reason for reason in report.values())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file"),
        ("no json", "is not JSON"),
        ("[]", "must contain one agent, it contains none"),
        ('{"agents": []}', "must contain one agent, it contains none"),
        ('{"agents": [{}, {}]}', "must contain one agent, it contains 2 agents"),
    ],
)
def test_an_invalid_agent_file_is_detected_without_a_server(tmp_path: Path, content: str | None, reason: str) -> None:
    if content is not None:
        (tmp_path / "x.af").write_text(content)
    assert reason in startup_problems(tmp_path, agent_file="x.af")


def test_the_older_form_of_an_agent_file_is_accepted(suite: Path) -> None:
    (suite / "agent.af").write_text(json.dumps({"name": "old", "core_memory": [{"label": "human", "value": "Ann"}]}))
    response, _ = talk(suite, behaviour=lambda *_: [])
    assert response.steps.memory == {"human": "Ann"}


def test_opening_makes_no_calls(suite: Path) -> None:
    async def run() -> None:
        async with create(
            "letta_agent", {"base_url": "http://127.0.0.1:9", "agent_file": "agent.af"}, context=context(folder=suite)
        ):
            pass

    asyncio.run(run())


def test_the_fingerprint_covers_the_content_of_the_file(suite: Path) -> None:
    def made() -> str:
        return create("letta_agent", {"agent_file": "agent.af"}, context=context(folder=suite)).fingerprint

    before = made()
    assert made() == before
    (suite / "agent.af").write_text("{}")
    assert made() != before


def test_a_sample_without_a_message_is_refused() -> None:
    target = create("letta_agent", {"agent_id": "a"})
    assert [problem.path for problem in target.problems_with(Sample(id=1, input=[]))] == ["input"]
    assert target.problems_with(Sample(id=1, input="x")) == []


# Secrets


@pytest.mark.parametrize("key", [KEY, "k"])
def test_the_key_is_in_no_listing_and_no_fingerprint(key: str) -> None:
    target = create("letta_agent", {"agent_id": "agent-1", "api_key": key})
    assert target.shown == {"agent_id": "agent-1", "api_key": "***"}
    assert target.fingerprint == create("letta_agent", {"agent_id": "agent-1"}).fingerprint


def test_the_key_is_in_no_error(suite: Path) -> None:
    failure = json.dumps({"detail": f"bad key {KEY}"}).encode()
    for environment, config in (({}, {"api_key": KEY}), ({"LETTA_API_KEY": KEY}, {})):
        _, message = talk(suite, prepare=failing("send", failure), given={"environment": environment}, **config).fault
        assert KEY not in message
    assert KEY not in str(problems_of(agent_id="a", api_key=f"{KEY}\n{KEY}"))
    assert "12345678" not in str(problems_of(agent_id="a", api_key=12345678))


def test_a_key_echoed_by_the_agent_is_not_stored(suite: Path) -> None:
    response, _ = talk(suite, f"Your key is {KEY}.", api_key=KEY)
    assert response.text == "You said: Your key is ***."
    assert response.cleaned
    assert KEY not in repr(response)


# Agents that the suite's own code makes

CLIENT = """
import asyncio, json, urllib.request

class Agents:
    def __init__(self, client):
        self.client = client

    async def create(self, **fields):
        return await asyncio.to_thread(self._create, fields)

    def _create(self, fields):
        headers = {"Authorization": f"Bearer {self.client.api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(self.client.base_url + "/v1/agents", json.dumps(fields).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            return type("AgentState", (), json.load(answer))

class AsyncLetta:
    def __init__(self, *, base_url, api_key=None, timeout=None):
        self.base_url, self.api_key, self.timeout = base_url, api_key, timeout
        self.agents = Agents(self)
"""

FACTORIES = """
import time
from letta_client import AsyncLetta
from letta_evals import Sample, agent_factory


@agent_factory
async def made(client: AsyncLetta, sample: Sample) -> str:
    blocks = [{"label": "human", "value": sample.agent_args["who"]}]
    agent = await client.agents.create(name="made", memory_blocks=blocks)
    return agent.id

@agent_factory
async def changing(client: AsyncLetta, sample: Sample) -> str:
    sample.input = sample.input + " please"
    sample.extra_vars["env"] = {"A": 1}
    return (await client.agents.create(name="made")).id

@agent_factory
async def raising(client: AsyncLetta, sample: Sample) -> str:
    raise ConnectionError("no tool; the key is " + client.api_key)

@agent_factory
async def nameless(client: AsyncLetta, sample: Sample):
    return None

@agent_factory
async def hanging(client: AsyncLetta, sample: Sample):
    time.sleep(60)
"""


@pytest.fixture
def with_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of factories, in an environment where a client is installed."""
    package = tmp_path / "site" / "letta_client"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CLIENT)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    suite = tmp_path / "suite"
    suite.mkdir()
    (suite / "factories.py").write_text(FACTORIES)
    return suite


def from_script(suite: Path, name: str, *, asked: str = "Where?", **config: Any) -> Talk:
    script = f"factories.py:{name}"

    async def run() -> Talk:
        spec = CodeSpec(str(suite), (CodeRequest("agent_factory", script),))
        async with LettaStub(key=KEY) as letta, WorkerPool(spec, size=1) as pool:
            (entry,) = (await pool.start()).entries
            options = {"base_url": letta.url, "api_key": KEY, "agent_script": script, **config}
            more = {"folder": suite, "environment": {}, "pool": pool, "code": entry.fingerprint, "cleanup": True}
            async with create("letta_agent", options, context=context(**more)) as target:
                sample = Sample(id=1, input=asked, agent_args={"who": "Ann"})
                return Talk(await target.respond(sample), letta)

    return asyncio.run(run())


def test_a_factory_creates_the_agent_of_a_sample(with_client: Path) -> None:
    response, letta = from_script(with_client, "made")
    assert response.text == "You said: Where?"
    assert [asked.data for asked in letta.requests if asked.operation == "create"] == [
        {"name": "made", "memory_blocks": [{"label": "human", "value": "Ann"}]}
    ]
    assert letta.operations() == ["create", "send", "state", "delete"]


def test_changes_of_the_sample_by_a_factory_are_sent(with_client: Path) -> None:
    assert from_script(with_client, "changing").response.text == "You said: Where? please"


def test_a_factory_that_fails_is_an_error_without_the_key(with_client: Path) -> None:
    kind, message = from_script(with_client, "raising").fault
    assert kind == "connect"
    assert message == "factories.py:raising: ConnectionError: no tool; the key is ***"
    kind, message = from_script(with_client, "nameless").fault
    assert kind == "bad_response"
    assert "return the agent's id (str)" in message
    assert from_script(with_client, "hanging", timeout=1).fault[0] == "timeout"


def test_the_code_of_a_factory_is_part_of_the_fingerprint() -> None:
    def made(code: str) -> str:
        return create("letta_agent", {"agent_script": "f.py:g"}, context=context(code=code)).fingerprint

    assert made("one") != made("two")


def test_with_a_factory_the_expected_value_may_decide_the_answer() -> None:
    one, two = (Sample(id=1, input="x", ground_truth=truth) for truth in "ab")
    script = create("letta_agent", {"agent_script": "f.py:g"})
    assert script.cache_key(one, 0) != script.cache_key(two, 0)
    there = create("letta_agent", {"agent_id": "a"})
    assert there.cache_key(one, 0) == there.cache_key(two, 0)


def test_without_the_client_a_factory_cannot_be_called(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradeline.letta.base.is_client_installed", lambda: False)
    message = startup_problems(suite, agent_script="f.py:g")
    assert "f.py:g was not loaded" in message
    assert "pip install 'letta-client>=1,<2'" in message

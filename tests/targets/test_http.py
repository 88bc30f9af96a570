from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from gradeline.errors import ConfigError
from gradeline.model import Message, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.targets import create
from gradeline.targets.base import TargetContext
from gradeline.testing.fault_server import FAULTS, FaultServer
from gradeline.transport import PublicOnly, Transport


class RecordedRequest(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


class ScriptedResponse(NamedTuple):
    body: bytes
    kind: str | None = "application/json"
    status: int = 200


Answering = Callable[[RecordedRequest], ScriptedResponse]


class Agent:
    """An agent whose answers come from a function; it records its requests."""

    def __init__(self, answer: Answering) -> None:
        self._answer = answer
        self.asked: list[RecordedRequest] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        asked = RecordedRequest(
            method, path, headers, await reader.readexactly(int(headers.get("content-length", "0")))
        )
        self.asked.append(asked)
        reason = self._answer(asked)
        lines = [f"HTTP/1.1 {reason.status} OK", f"Content-Length: {len(reason.body)}", "Connection: close"]
        if reason.kind is not None:
            lines.append(f"Content-Type: {reason.kind}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + reason.body)
        await writer.drain()
        writer.close()


def json_answer(value: object) -> ScriptedResponse:
    return ScriptedResponse(json.dumps(value).encode())


def talk(
    answer: Answering | ScriptedResponse, sample: Sample | None = None, secrets: tuple[str, ...] = (), **config: Any
) -> tuple[Response, list[RecordedRequest]]:
    """The response of a target with this config, and the requests to its agent."""

    async def run() -> tuple[Response, list[RecordedRequest]]:
        fixed = answer
        async with Agent((lambda _: fixed) if isinstance(fixed, ScriptedResponse) else fixed) as agent:
            config["url"] = agent.url + config.get("url", "/ask")
            async with create("http", {"retries": 0, **config}, secrets) as target:
                return await target.respond(sample or Sample(id=1, input="Where?")), agent.asked

    return asyncio.run(run())


def text_of(reason: ScriptedResponse, **config: Any) -> str:
    response, _ = talk(reason, **config)
    assert response.error is None, response.error
    assert response.text is not None
    return response.text


def fault_of(reason: ScriptedResponse | Answering, **config: Any) -> tuple[str, str]:
    response, _ = talk(reason, **config)
    assert response.error is not None, response
    assert (response.status == "timeout") is (response.error.type == "timeout")
    return response.error.type, response.error.message


def problems_of(**config: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        create("http", {"url": "http://127.0.0.1/", **config})
    return {problem.path: problem.message for problem in caught.value.problems}


# The request


def test_the_default_request_is_a_post_of_the_input() -> None:
    response, [asked] = talk(json_answer({"response": "Paris"}))
    assert (asked.method, asked.path, asked.data) == ("POST", "/ask", {"input": "Where?"})
    assert asked.headers["content-type"] == "application/json"
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", asked.headers["traceparent"])
    assert response.text == "Paris"
    assert response.latency_ms is not None
    assert response.latency_ms > 0


def test_a_whole_leaf_keeps_its_type_and_a_placeholder_in_a_text_becomes_text() -> None:
    request = {
        "q": "{{input}}",
        "n": "{{metadata.n}}",
        "deep": [{"list": "{{ metadata.a.b }}"}, "case {{id}}: {{metadata.a}}"],
        "{{input}}": None,
    }
    sample = Sample(id=7, input="x", metadata={"n": 3, "a": {"b": [1, None]}})
    _, [asked] = talk(json_answer({"text": ""}), sample, request=request)
    assert asked.data == {
        "q": "x",
        "n": 3,
        "deep": [{"list": [1, None]}, 'case 7: {"b":[1,null]}'],
        "{{input}}": None,
    }


@pytest.mark.parametrize(
    "hostile", ['", "admin": true, "x": "', "}}{{id}}", "{{metadata.secret}}", "\\", "\n\0\u2028", "é😀", "\ud800"]
)
def test_no_input_can_change_the_structure_of_the_request(hostile: str) -> None:
    _, [asked] = talk(
        json_answer({"text": "ok"}), Sample(id=1, input=hostile), request={"a": "{{input}}", "b": "<{{input}}>"}
    )
    assert asked.data == {"a": hostile, "b": f"<{hostile}>"}


def test_values_in_the_url_cannot_change_its_structure() -> None:
    sample = Sample(id="a/b?c#d", input="x y&r=1+1#")
    _, [asked] = talk(json_answer({"text": "ok"}), sample, url="/cases/{{id}}?q={{input}}", method="get")
    assert (asked.method, asked.path, asked.body) == ("GET", "/cases/a%2Fb%3Fc%23d?q=x%20y%26r%3D1%2B1%23", b"")


@pytest.mark.parametrize("value", [".", ".."])
def test_path_traversal_is_not_a_valid_url_value(value: str) -> None:
    target = create("http", {"url": "http://127.0.0.1/cases/{{id}}/x"})
    assert [problem.path for problem in target.problems_with(Sample(id=value, input="x"))] == ["url"]
    agent = json_answer({"text": "x", "sid": value})
    config: dict[str, Any] = {"url": "/s/{{session}}", "session": {"read": "sid"}}
    assert fault_of(agent, sample=Sample(id=1, input=["a", "b"]), **config)[0] == "bad_response"


def test_a_text_request_with_its_own_content_type_is_sent_unchanged() -> None:
    _, [asked] = talk(json_answer({"text": "ok"}), request="{{input}}", headers={"Content-Type": "text/plain"})
    assert (asked.body, asked.headers["content-type"]) == (b"Where?", "text/plain")


def test_missing_metadata_is_a_fault_of_the_case_reported_before_the_call() -> None:
    target = create("http", {"url": "http://127.0.0.1/", "request": {"x": "{{metadata.who}}"}})
    sample = Sample(id="c1", input="x", metadata={"whom": 1})
    [problem] = target.problems_with(sample)
    assert problem.message == "case 'c1' has no metadata 'who', which {{metadata.who}} requires; it has whom"
    assert target.problems_with(Sample(id=1, input="x", metadata={"who": None})) == []
    with pytest.raises(ConfigError):
        asyncio.run(target.respond(sample))


# The config


def test_every_fault_of_a_config_is_named_at_once() -> None:
    found = problems_of(
        request={"a": ["{{inptu}}"]},
        headers={"X-A": "{{input}}", "bad name": "x"},
        response={"output": "a["},
        poll={"url": "/{{response.b[}}", "until": "done"},
        stream="sse",
        session={"read": "sid"},
        timeout=0,
        urll="x",
    )
    assert set(found) == {
        "config.request.a[0]",
        "config.headers.X-A",
        "config.headers",
        "config.response.output",
        "config.poll.url",
        "config.poll",
        "config.session",
        "config.timeout",
        "config.urll",
    }
    assert "use one of {{input}}, {{id}}, {{model}}, {{metadata.x}}" in found["config.request.a[0]"]


@pytest.mark.parametrize("url", ["ftp://x/", "no url", "http://user:pw@x/", "http://{{id}}.example/", "http:///x"])
def test_a_url_that_cannot_be_called_is_refused(url: str) -> None:
    assert "config.url" in problems_of(url=url)


def test_the_session_placeholder_needs_a_session() -> None:
    assert "config.request.s" in problems_of(request={"s": "{{session}}"})


def test_a_target_that_is_not_open_cannot_be_called() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(create("http", {"url": "http://127.0.0.1/"}).respond(Sample(id=1, input="x")))


# The text of the answer


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"message": "f", "content": "e", "text": "d", "answer": "c", "output": "b", "response": "a"}, "a"),
        ({"message": "f", "content": "e", "text": "d", "answer": "c", "output": "b", "response": None}, "b"),
        ({"message": "f", "content": "e", "text": "d", "answer": "c"}, "c"),
        ({"message": "f", "content": "e", "text": "d"}, "d"),
        ({"message": "f", "content": "e"}, "e"),
        ({"message": "f"}, "f"),
        ({"choices": [{"message": {"role": "assistant", "content": "g"}}]}, "g"),
        ({"choices": [{"message": {"content": [{"type": "text", "text": "h"}, {"type": "x"}]}}]}, "h"),
        ({"choices": [{"text": "i"}]}, "i"),
        ({"response": ""}, ""),
        ("bare", "bare"),
    ],
)
def test_the_text_is_looked_for_under_the_usual_keys_in_order(answer: object, text: str) -> None:
    assert text_of(json_answer(answer)) == text


@pytest.mark.parametrize(
    ("path", "text"),
    [("a.b", "x"), ("n", "42"), ("list", '[1,"é"]'), ("no", "false"), ("join(' ', list2)", "p q"), ("empty", "")],
)
def test_an_output_path_returns_strings_unchanged_and_data_as_json(path: str, text: str) -> None:
    answer = {"a": {"b": "x"}, "n": 42, "list": [1, "é"], "no": False, "list2": ["p", "q"], "empty": "", "text": "!"}
    assert text_of(json_answer(answer), response={"output": path}) == text


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (ScriptedResponse(b"Paris.", "text/plain"), "Paris."),
        (ScriptedResponse(b"\xef\xbb\xbfParis.", "text/plain; charset=utf-8"), "Paris."),
        (ScriptedResponse("Zürich".encode("latin-1"), "text/plain; charset=ISO-8859-1"), "Zürich"),
        (ScriptedResponse(b'{"response": "x"}', "text/plain"), '{"response": "x"}'),
        (ScriptedResponse(b'{"response": "x"}', None), "x"),
        (ScriptedResponse(b"Paris.", None), "Paris."),
        (ScriptedResponse(b"<b>Paris</b>", "text/html"), "<b>Paris</b>"),
        (ScriptedResponse(b'\xef\xbb\xbf{"response": "x"}'), "x"),
        (ScriptedResponse(b'{"response": "x"}', "application/problem+json; charset=utf-8"), "x"),
    ],
)
def test_a_body_that_is_not_json_is_the_text(reason: ScriptedResponse, text: str) -> None:
    assert text_of(reason) == text


@pytest.mark.parametrize(
    "reason",
    [
        json_answer({"result": "x"}),
        json_answer({"response": 42}),
        json_answer({"choices": []}),
        json_answer([]),
        json_answer(None),
        ScriptedResponse(b""),
        ScriptedResponse(b" \n", "text/plain"),
        ScriptedResponse(b"", None, 204),
        ScriptedResponse(b"Paris."),
        ScriptedResponse(b'{"response": NaN}'),
        ScriptedResponse(b'{"response": "x", "n": 1e999}'),
        ScriptedResponse(b'{"response": "x", "n": ' + b"9" * 5000 + b"}"),
        ScriptedResponse(b'{"response": "x", "response": "y"}'),
        ScriptedResponse(b"[" * 100_000 + b"]" * 100_000),
        ScriptedResponse(b'{"response": "x", "a": ' + b"[" * 300 + b"]" * 300 + b"}"),
        ScriptedResponse(b'{"response": "a\nb"}'),
        ScriptedResponse(b'{"response": "\xff"}'),
        ScriptedResponse(b"<!DOCTYPE html><html>Sorry</html>", "text/html"),
        ScriptedResponse(b"data: x\n\n", "text/event-stream"),
    ],
)
def test_an_invalid_answer_is_a_bad_response(reason: ScriptedResponse) -> None:
    kind, message = fault_of(reason)
    assert kind == "bad_response"
    assert len(message.encode()) < 2048 + 600


@pytest.mark.parametrize("path", ["b", "a.b.c", "abs(text)", "a[9]"])
def test_an_answer_without_the_field_is_a_bad_response_with_an_excerpt(path: str) -> None:
    kind, message = fault_of(json_answer({"a": {"b": None}, "text": "the start"}), response={"output": path})
    assert kind == "bad_response"
    assert "the start" in message


def test_an_output_path_requires_json_whatever_the_content_type() -> None:
    assert text_of(ScriptedResponse(b'{"a": "x"}', "text/plain"), response={"output": "a"}) == "x"
    assert fault_of(ScriptedResponse(b"<html>busy</html>", "text/html"), response={"output": "a"})[0] == "bad_response"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (rb'{"response": "a\ud800b"}', "a\ufffdb"),
        (rb'{"response": "a\u0000b"}', "a\u2400b"),
    ],
)
def test_text_that_cannot_be_stored_is_cleaned_with_a_flag(body: bytes, text: str) -> None:
    response, _ = talk(ScriptedResponse(body))
    assert (response.text, response.cleaned, response.status) == (text, True, "success")


@pytest.mark.parametrize("error", ["quota", {"code": 3}, 0, True, [1]])
def test_an_error_with_status_200_is_a_bad_response(error: object) -> None:
    answer = json_answer({"response": "x", "error": error})
    assert fault_of(answer, response={"error": "error"})[0] == "bad_response"


@pytest.mark.parametrize("error", [None, "", False, [], {}])
def test_an_empty_error_is_not_an_error(error: object) -> None:
    assert text_of(json_answer({"response": "x", "error": error}), response={"error": "error"}) == "x"


# Tool calls, usage, trajectory


def test_tool_calls_in_either_shape_become_a_trajectory() -> None:
    calls = [
        {"name": "look", "arguments": {"q": "é"}, "id": 5},
        {"id": "c2", "type": "function", "function": {"name": "go", "arguments": '{"broken'}},
        {"name": "stop"},
    ]
    response, _ = talk(json_answer({"text": "done", "steps": calls}), response={"tool_calls": "steps"})
    expected = (ToolCall("look", '{"q":"é"}', "5"), ToolCall("go", '{"broken', "c2"), ToolCall("stop"))
    assert response.trajectory == Trajectory(((Message("assistant", "done", expected),),))


def test_an_openai_answer_that_only_calls_tools_is_an_answer() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {
        "choices": [{"message": {"content": None, "tool_calls": [call]}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    response, _ = talk(json_answer(answer))
    assert response.text == ""
    assert list(response.steps.tool_calls()) == [ToolCall("f", "{}", "c")]
    assert response.usage == Usage(3, 4)


@pytest.mark.parametrize("answer", [{"text": "x"}, {"text": "x", "calls": None}])
def test_an_answer_without_the_mapped_tool_calls_leaves_them_unknown(answer: dict[str, Any]) -> None:
    response, _ = talk(json_answer(answer), response={"tool_calls": "calls"})
    assert response.trajectory is None


def test_an_explicit_empty_list_means_that_no_tool_was_called() -> None:
    none = Trajectory.of_text("x")
    assert talk(json_answer({"text": "x", "calls": []}), response={"tool_calls": "calls"})[0].trajectory == none
    assert talk(json_answer({"text": "x"}), response={"tool_calls": "calls || `[]`"})[0].trajectory == none


def test_an_agent_without_a_mapping_leaves_tool_calls_unknown() -> None:
    assert talk(json_answer({"text": "x", "tool_calls": []}))[0].trajectory is None
    assert talk(json_answer({"choices": [{"message": {"content": "x"}}]}))[0].trajectory is None
    reason = talk(json_answer({"choices": [{"message": {"content": "x", "tool_calls": []}}]}))[0]
    assert reason.trajectory == Trajectory.of_text("x")


def test_one_turn_without_tool_calls_leaves_those_of_the_conversation_unknown() -> None:
    def agent(request: RecordedRequest) -> ScriptedResponse:
        return json_answer({"text": "x", "calls": [{"name": "f"}]} if request.data["input"] == "a" else {"text": "y"})

    response, _ = talk(agent, Sample(id=1, input=["a", "b"]), response={"tool_calls": "calls"})
    turns = ((Message("assistant", "x", (ToolCall("f"),)),), (Message("assistant", "y"),))
    assert response.trajectory == Trajectory(turns, tools_known=False)
    response, _ = talk(agent, Sample(id=1, input=["a", "b"]), response={"tool_calls": "calls || `[]`"})
    assert response.trajectory == Trajectory(turns)


def test_tool_calls_reported_separately_from_the_messages_are_stored() -> None:
    answer = {
        "text": "x",
        "calls": [{"name": "f"}],
        "all": [{"role": "user", "content": "hi"}, {"role": "ai", "content": "x"}],
    }
    response, _ = talk(json_answer(answer), response={"tool_calls": "calls", "trajectory": "all"})
    called = Message("assistant", tool_calls=(ToolCall("f"),))
    assert response.trajectory == Trajectory(((Message("user", "hi"), called, Message("assistant", "x")),))


def test_tool_calls_in_anthropics_content_blocks_are_read() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "t1", "name": "delete", "input": {"path": "/"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "no"}], "is_error": True},
        ]},
        {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
    ]  # fmt: skip
    response, _ = talk(json_answer({"text": "x", "all": messages}), response={"trajectory": "all"})
    assert response.trajectory == Trajectory(
        (
            (
                Message("user", "hi"),
                Message("assistant", "Let me see.", (ToolCall("delete", '{"path":"/"}', "t1"),)),
                Message("tool", "no", tool_call_id="t1", is_error=True),
                Message("assistant", "x"),
            ),
        )
    )


def test_tool_calls_in_items_of_openais_responses_are_read() -> None:
    items = [
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "delete", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "gone"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    ]
    response, _ = talk(json_answer({"text": "x", "all": items}), response={"trajectory": "all"})
    assert response.trajectory == Trajectory(
        (
            (
                Message("assistant", tool_calls=(ToolCall("delete", "{}", "c1"),)),
                Message("tool", "gone", tool_call_id="c1"),
                Message("assistant", "x"),
            ),
        )
    )


@pytest.mark.parametrize("calls", [{"name": "f"}, ["f"], [{"arguments": {}}], [{"name": ""}], "f"])
def test_invalid_tool_calls_are_a_bad_response(calls: object) -> None:
    assert fault_of(json_answer({"text": "x", "c": calls}), response={"tool_calls": "c"})[0] == "bad_response"


@pytest.mark.parametrize(
    ("reason", "usage"),
    [
        ({"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0, "cost": 0.5}, Usage(1, 2, 0, 0.5)),
        ({"prompt_tokens": 1.0, "completion_tokens": "2", "cost": -1}, Usage(1)),
        ({"input_tokens": True, "output_tokens": 2**70, "cost": None}, None),
        ("much", None),
        (None, None),
    ],
)
def test_usage_accepts_only_valid_counts(reason: object, usage: Usage | None) -> None:
    response, _ = talk(json_answer({"text": "x", "u": reason}), response={"usage": "u"})
    assert response.usage == usage


@pytest.mark.parametrize(
    "step",
    [
        {"role": "assistant", "content": None, "toolCalls": [{"name": "look"}]},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "assistant", "content": [{"type": "server_tool_use", "name": "look", "input": {}}]},
        {"role": "assistant", "content": [{"type": "tool-call", "toolName": "look", "input": {}}]},
        {"type": "function_call", "name": "look", "arguments": "{}", "call_id": "1"},
        {"type": "look_call", "id": "1", "status": "completed"},
    ],
)
def test_a_call_in_the_trajectory_is_found_whatever_its_type_is_named(step: dict[str, Any]) -> None:
    response, _ = talk(json_answer({"text": "x", "all": [step]}), response={"trajectory": "all"})
    assert [call.name for call in response.tool_use().tool_calls()] == ["look"]


def test_a_trajectory_whose_messages_have_only_parts_is_refused() -> None:
    step = {"role": "model", "parts": [{"functionCall": {"name": "look"}}]}
    response, _ = talk(json_answer({"text": "x", "all": [step]}), response={"trajectory": "all"})
    assert response.error is not None
    assert "has parts but no content" in response.error.message


def test_a_trajectory_is_split_into_turns_by_the_messages_of_the_user() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "ai", "content": None, "tool_calls": [{"name": "f", "args": {"a": 1}, "id": "c"}]},
        {"role": "tool", "content": [{"text": "r"}], "tool_call_id": "c", "name": "f"},
        {"role": "user", "content": "more"},
        {"role": "assistant", "content": "x\0"},
        {"role": "odd", "content": {"k": 1}},
    ]
    response, _ = talk(json_answer({"text": "x\0", "all": messages}), response={"trajectory": "all"})
    assert response.trajectory == Trajectory(
        (
            (
                Message("user", "hi"),
                Message("assistant", "", (ToolCall("f", '{"a":1}', "c"),)),
                Message("tool", "r", (), "c", "f"),
            ),
            (Message("user", "more"), Message("assistant", "x\u2400"), Message("event", '{"k":1}')),
        )
    )


# Turns and sessions


def session_agent(asked: RecordedRequest) -> ScriptedResponse:
    data = asked.data
    return json_answer(
        {"text": f"{data['input']}!", "sid": {"n": 1 + data.get("sid", {"n": 0})["n"]}, "usage": {"cost": 1}}
    )


@pytest.mark.parametrize(
    "config",
    [
        {"session": {"read": "sid", "send": "sid"}},
        {"session": {"read": "sid"}, "request": {"input": "{{input}}", "sid": "{{session}}"}},
    ],
)
def test_each_turn_is_a_call_with_the_session(config: dict[str, Any]) -> None:
    sample = Sample(id=1, input=["a", "b", "c"])
    response, asked = talk(session_agent, sample, response={"usage": "usage"}, **config)
    assert [one.data for one in asked] == [
        {"input": "a"},
        {"input": "b", "sid": {"n": 1}},
        {"input": "c", "sid": {"n": 2}},
    ]
    assert response.text == "c!"
    said = tuple((Message("assistant", text),) for text in ("a!", "b!", "c!"))
    assert response.trajectory == Trajectory(said, tools_known=False)
    assert response.usage == Usage(cost=3.0)
    assert len({one.headers["traceparent"] for one in asked}) == 3


def test_a_turn_of_unknown_usage_leaves_that_of_the_conversation_unknown() -> None:
    def agent(request: RecordedRequest) -> ScriptedResponse:
        used = {"input_tokens": 5, "cost": 1}
        reason = {"a": used, "b": None, "c": {"input_tokens": 2}}
        return json_answer({"text": "x", "usage": reason[request.data["input"]]})

    config: dict[str, Any] = {"response": {"usage": "usage"}}
    assert talk(agent, Sample(id=1, input=["a", "a"]), **config)[0].usage == Usage(10, cost=2.0)
    assert talk(agent, Sample(id=1, input=["a", "b"]), **config)[0].usage is None
    assert talk(agent, Sample(id=1, input=["a", "c"]), **config)[0].usage == Usage(7)


def test_turns_without_a_session_are_separate_calls() -> None:
    response, asked = talk(json_answer({"text": "x"}), Sample(id=1, input=["a", "b"]))
    assert [one.data for one in asked] == [{"input": "a"}, {"input": "b"}]
    assert response.text == "x"


def test_an_answer_without_the_session_is_a_bad_response_when_a_turn_follows() -> None:
    config: dict[str, Any] = {"session": {"read": "sid", "send": "sid"}}
    assert fault_of(json_answer({"text": "x"}), sample=Sample(id=1, input=["a", "b"]), **config)[0] == "bad_response"
    assert text_of(json_answer({"text": "x"}), **config) == "x"


def test_an_empty_list_of_turns_cannot_be_sent() -> None:
    target = create("http", {"url": "http://127.0.0.1/"})
    assert [problem.path for problem in target.problems_with(Sample(id=1, input=[]))] == ["input"]


# Polling


def polled(after: int) -> Answering:
    seen: list[int] = []

    def answer(asked: RecordedRequest) -> ScriptedResponse:
        if asked.method == "POST":
            return json_answer({"job": "a/b", "state": "queued"})
        seen.append(1)
        return json_answer({"state": "done" if len(seen) >= after else "queued", "result": {"text": "Paris"}})

    return answer


def test_an_answer_is_polled_until_it_is_complete() -> None:
    poll = {"url": "/jobs/{{response.job}}", "until": "state == 'done'", "output": "result.text", "interval": 0.01}
    response, asked = talk(polled(3), poll=poll)
    assert response.text == "Paris"
    assert [(one.method, one.path) for one in asked] == [("POST", "/ask"), *[("GET", "/jobs/a%2Fb")] * 3]


def test_polling_ends_with_the_deadline() -> None:
    poll = {"url": "/jobs", "until": "state == 'done'", "interval": 0.02}
    kind, message = fault_of(polled(10**6), poll=poll, timeout=0.2)
    assert kind == "timeout"
    assert "0.2 s" in message or "no complete answer" in message


@pytest.mark.parametrize("place", [None, "", "ftp://x/", "http://u:p@x/", "http://[", 5])
def test_an_invalid_polling_url_is_a_bad_response(place: object) -> None:
    poll = {"url": "{{response.url}}", "until": "done", "interval": 0.01}
    response, asked = talk(
        lambda asked: json_answer({"url": place}) if asked.method == "POST" else ScriptedResponse(b"x"), poll=poll
    )
    assert response.error is not None
    assert response.error.type == "bad_response"
    assert len(asked) <= 2


def test_keys_are_not_sent_to_another_origin() -> None:
    async def run() -> tuple[Response, RecordedRequest, RecordedRequest]:
        other = Agent(lambda _: json_answer({"done": True, "text": "Paris"}))
        async with other, Agent(lambda _: json_answer({"url": f"{other.url}/x"})) as agent:
            poll = {"url": "{{response.url}}", "until": "done"}
            headers = {"Authorization": "Bearer abcdef", "X-Team": "team-secret", "X-Open": "yes"}
            config = {"url": agent.url, "poll": poll, "headers": headers}
            async with create("http", config, ["team-secret"]) as target:
                return await target.respond(Sample(id=1, input="x")), agent.asked[0], other.asked[0]

    response, first, second = asyncio.run(run())
    assert response.text == "Paris"
    assert first.headers["authorization"] == "Bearer abcdef"
    assert {"authorization", "x-team"}.isdisjoint(second.headers)
    assert second.headers["x-open"] == "yes"


# Streams


def stream_of(*events: object, end: str = "") -> ScriptedResponse:
    lines = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return ScriptedResponse(("".join(f"data: {line}\n\n" for line in lines) + end).encode(), "text/event-stream")


def test_the_texts_of_a_stream_are_joined_until_its_end_marker() -> None:
    reason = stream_of({"d": {"t": "Par"}}, {"other": 1}, {"d": {"t": "is"}}, "[DONE]", {"d": {"t": "!"}})
    assert text_of(reason, stream="sse", response={"output": "d.t"}) == "Paris"


def test_an_openai_stream_is_read_without_a_path() -> None:
    def part(**delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta}]}

    reason = stream_of(
        part(role="assistant", content=""),
        part(content="Let me see"),
        part(tool_calls=[{"index": 0, "id": "c0", "function": {"name": "f", "arguments": ""}}]),
        part(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
        part(tool_calls=[{"index": 1, "id": "c1", "function": {"name": "g", "arguments": "{}"}}]),
        part(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
        {"choices": [], "usage": None},
        "[DONE]",
    )
    response, _ = talk(reason, stream="sse")
    assert response.text == "Let me see"
    assert list(response.steps.tool_calls()) == [ToolCall("f", '{"a":1}', "c0"), ToolCall("g", "{}", "c1")]


@pytest.mark.parametrize(
    "reason",
    [
        stream_of(),
        stream_of("[DONE]"),
        stream_of({"x": 1}),
        stream_of({"text": "a"}, '{"text": '),
        stream_of({"text": "a"}, '{"text": NaN}'),
        stream_of({"text": "a"}, end='event: error\ndata: {"text": "b"}\n\n'),
        json_answer({"text": "no stream"}),
    ],
)
def test_an_invalid_stream_is_a_bad_response(reason: ScriptedResponse) -> None:
    assert fault_of(reason, stream="sse")[0] == "bad_response"


# Failures


EXPECTED = {
    "ok": None,
    "slow": None,
    "hang": "timeout",
    "drip": "timeout",
    "reset": "reset",
    "truncated": "truncated",
    "truncated?how=chunked": "truncated",
    "truncated?how=gzip": "truncated",
    "truncated?how=reset": "reset",
    "half-open": "timeout",
    "status/404": "status",
    "status/503": "status",
    "retry-after/huge?after=99": "rate_limited",
    "bad-json": "bad_response",
    "huge": "too_large",
    "gzip-bomb": "too_large",
    "endless": "too_large",
    "invalid-utf8": "bad_response",
    "deep-json": "bad_response",
    "encoded/gzip": None,
    "encoded/lie": "bad_response",
    "garbage": "bad_response",
    "redirect": "redirect",
    "redirect-loop": "redirect",
    "redirect-chain/2": None,
    "redirect-chain/9": "redirect",
    "sse": "bad_response",
    "sse-cut": "truncated",
    "sse-cut?framing=close": "bad_response",
    "ndjson": "bad_response",
}


def against(path: str, **config: Any) -> Response:
    async def run() -> Response:
        async with (
            FaultServer() as server,
            create("http", {"url": f"{server.url}/{path}", "retries": 0, **config}) as target,
        ):
            return await target.respond(Sample(id=1, input="x"))

    return asyncio.run(run())


def test_every_fault_of_the_server_has_an_expected_error() -> None:
    assert {re.split(r"[/?]", path)[0] for path in EXPECTED} == set(FAULTS)


@pytest.mark.parametrize("path", EXPECTED)
def test_every_fault_is_a_response_and_never_an_exception(path: str) -> None:
    quick = EXPECTED[path] == "timeout"
    response = against(path, timeout=0.3 if quick else 20)
    assert (response.error and response.error.type) == EXPECTED[path], response.error
    assert response.status == ("success" if EXPECTED[path] is None else "timeout" if quick else "error")
    assert response.latency_ms is not None


@pytest.mark.parametrize(
    ("path", "stream", "output", "expected"),
    [
        ("sse", "sse", None, "Paristwo\nlines"),
        ("sse", "sse", "text", "bad_response"),
        ("sse-cut", "sse", None, "truncated"),
        ("sse-cut?framing=close", "sse", None, "truncated"),
        ("ndjson", "ndjson", "delta", "Paris"),
        ("ndjson", "ndjson", "nothing", "bad_response"),
        ("endless", "ndjson", None, "too_large"),
    ],
)
def test_streams_of_the_fault_server(path: str, stream: str, output: str | None, expected: str) -> None:
    response = against(path, stream=stream, response={"output": output})
    assert (response.error.type if response.error else response.text) == expected


def test_retries_stop_at_the_configured_maximum() -> None:
    assert against("retry-after/seconds?after=3&s=0", retries=2).text == "at last"


def test_an_unreachable_agent_is_a_connection_error() -> None:
    async def run() -> Response:
        async with Agent(lambda _: ScriptedResponse(b"")) as gone:
            url = gone.url
        async with create("http", {"url": url, "retries": 0}) as target:
            return await target.respond(Sample(id=1, input="x"))

    response = asyncio.run(run())
    assert response.error is not None
    assert (response.error.type, response.error.fault) == ("connect", "infrastructure")


def test_the_caller_can_pass_a_transport_with_its_egress_policy() -> None:
    async def run() -> Response:
        config = {"url": "http://127.0.0.1:9/", "retries": 0}
        async with Transport(PublicOnly()) as transport:
            context = TargetContext(transport=transport)
            async with create("http", config, context=context) as target:
                response = await target.respond(Sample(id=1, input="x"))
            async with create("http", config, context=context) as again:
                assert (await again.respond(Sample(id=1, input="x"))).error == response.error
            return response

    response = asyncio.run(run())
    assert response.error is not None
    assert "egress policy" in response.error.message


# Secrets


SECRET = 's3cr3t"v4lue'


def test_secrets_are_in_no_fingerprint_and_no_listing() -> None:
    def make(secret: str, key: str = "literal-key", **more: Any) -> Any:
        headers = {"X-Team": f"team {secret}", "Authorization": f"Bearer {key}"}
        config = {"url": f"http://127.0.0.1/?q={secret}&api_key={key}", "headers": headers, "request": [secret], **more}
        return create("http", config, [secret])

    one = make(SECRET)
    assert one.fingerprint == make("another", "other-literal").fingerprint
    assert one.fingerprint != make(SECRET, timeout=5).fingerprint
    assert one.fingerprint == make(SECRET, concurrency=5, rate={"calls": 3, "per": "minute"}).fingerprint
    shown = json.dumps([one.shown, one.describe()])
    assert "s3cr3t" not in shown
    assert "literal-key" not in shown
    assert one.shown["request"] == ["***"]


def test_secrets_are_in_no_error() -> None:
    def echo(asked: RecordedRequest) -> ScriptedResponse:
        return json_answer({"said": asked.path + json.dumps(asked.headers) + asked.body.decode()})

    config: dict[str, Any] = {
        "url": f"/{SECRET}/ask?token=qwertz&q={SECRET}",
        "headers": {"Authorization": "Bearer literal-key", "X-Team": SECRET},
        "request": {"k": SECRET},
    }
    kind, message = fault_of(echo, secrets=(SECRET,), **config)
    assert kind == "bad_response"
    kind, status = fault_of(lambda asked: echo(asked)._replace(status=400), secrets=(SECRET,), **config)
    assert kind == "status"
    for word in ("s3cr3t", "v4lue", "literal-key", "qwertz"):
        assert word not in message
        assert word not in status


def test_secrets_are_in_no_config_error() -> None:
    long = SECRET + "x" * 500
    for config in (
        {"url": f"ftp://{SECRET}/"},
        {"url": "http://x/", "timeout": SECRET},
        {"url": "http://x/", "timeout": long},
        {"url": "http://x/", "response": {"output": f"{SECRET}["}},
    ):
        with pytest.raises(ConfigError) as caught:
            create("http", config, [SECRET, long])
        assert "s3cr3t" not in str(caught.value)


def test_the_stop_reason_is_that_of_a_choice_or_of_the_mapped_path() -> None:
    choice = {"choices": [{"message": {"content": "x"}, "finish_reason": "length"}]}
    assert talk(json_answer(choice))[0].stop_reason == "length"
    mapped = {"response": {"output": "a", "stop_reason": "why"}}
    assert talk(json_answer({"a": "x", "why": "max_tokens"}), **mapped)[0].stop_reason == "max_tokens"
    assert talk(json_answer({"a": "x", "why": 7}), **mapped)[0].stop_reason is None
    assert talk(json_answer({"response": "x"}))[0].stop_reason is None
    events = stream_of({"a": "x"}, {"a": "y", "why": "stop"}, {"a": "z"})
    assert talk(events, stream="sse", **mapped)[0].stop_reason == "stop"

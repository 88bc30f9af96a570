"""Streams that do not go as they should. How they go otherwise is among the recorded exchanges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradeline.adapters import ChatAdapter, ChatRequest, ChatResponse, ModelError, Note, RunConfig
from gradeline.model import Message, ToolCall

Serve = Callable[..., Any]
MakeAdapter = Callable[..., ChatAdapter]

REQUEST = ChatRequest((Message("user", "hi"),), stream=True)
CONFIG = RunConfig(model="m")


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def fragment(index: int | None, ident: str | None = None, name: str | None = None, arguments: Any = "") -> Any:
    call = {"index": index, "id": ident, "function": {"name": name, "arguments": arguments}}
    return chunk(tool_calls=[{key: value for key, value in call.items() if value is not None}])


def text_events(text: str) -> list[dict[str, Any]]:
    """A Messages stream up to its end, which is missing."""
    return [
        {
            "type": "message_start",
            "message": {"id": "x", "model": "m", "usage": {"input_tokens": 3, "output_tokens": 1}},
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}},
    ]


PARTS = {
    "openai": [chunk(content="half"), chunk("stop")],
    "openai_responses": [{"type": "response.output_text.delta", "delta": "half"}],
    "anthropic": text_events("half"),
    "gemini": [{"candidates": [{"content": {"parts": [{"text": "half"}]}}]}],
}


@pytest.fixture
def answer(serve: Serve, reply: Any, adapter: MakeAdapter) -> Callable[..., ChatResponse]:
    """What an adapter makes of a stream."""

    def ask(*events: Any, provider: str = "openai") -> ChatResponse:
        return adapter(serve(reply(events=list(events))), provider, retries=0).complete(REQUEST, CONFIG)

    return ask


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("provider", PARTS)
def test_a_stream_without_its_end_is_an_error(
    provider: str, cut: bool, serve: Serve, reply: Any, adapter: MakeAdapter
) -> None:
    server = serve(reply(events=PARTS[provider], cut=cut))
    with pytest.raises(ModelError) as caught:
        adapter(server, provider).complete(REQUEST, CONFIG)
    failed = caught.value
    assert (failed.type, failed.retryable, failed.attempts, len(server.seen)) == ("truncated", True, 3, 3)


@pytest.mark.parametrize(
    ("provider", "event", "status"),
    [
        ("openai", {"error": {"message": "busy", "type": "server_error", "code": None}}, 500),
        ("openai", {"error": {"message": "busy", "code": 502}}, 502),
        ("openai_responses", {"type": "error", "code": "server_error", "message": "busy", "param": None}, 500),
        (
            "openai_responses",
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "busy"}},
            },
            429,
        ),
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}, 529),
        ("gemini", {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}, 503),
    ],
)
def test_an_error_within_a_stream_is_retried(
    provider: str, event: Any, status: int, serve: Serve, reply: Any, adapter: MakeAdapter
) -> None:
    server = serve(reply(events=[*PARTS[provider], event]))
    with pytest.raises(ModelError) as caught:
        adapter(server, provider).complete(REQUEST, CONFIG)
    failed = caught.value
    assert (failed.http_status, failed.provider_message, failed.in_response, len(server.seen)) == (
        status,
        "busy",
        True,
        3,
    )


@pytest.mark.parametrize(
    ("provider", "events"),
    [("openai", [{"choices": [], "usage": {"prompt_tokens": 5}}, "[DONE]"]), ("gemini", [{"modelVersion": "m"}])],
)
def test_a_stream_without_a_choice_is_an_error(
    provider: str, events: list[Any], answer: Callable[..., ChatResponse]
) -> None:
    with pytest.raises(ModelError, match=r"the response has no (choice|candidate)") as caught:
        answer(*events, provider=provider)
    assert caught.value.type == "bad_response"


def test_a_retry_may_return_the_whole_stream(serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
    server = serve(reply(events=PARTS["openai"]), reply(events=[*PARTS["openai"], "[DONE]"]))
    assert adapter(server, "openai").complete(REQUEST, CONFIG).content == "half"


def test_a_permanent_error_within_a_stream_is_final(serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
    server = serve(reply(events=[{"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}]))
    with pytest.raises(ModelError, match="the provider reported an error: 'no'"):
        adapter(server, "anthropic").complete(REQUEST, CONFIG)
    assert len(server.seen) == 1


def test_a_character_split_between_two_events_is_joined(answer: Callable[..., ChatResponse]) -> None:
    response = answer(chunk(content="\ud83d"), chunk(content="\ude00"), "[DONE]")
    assert (response.content, response.notes) == ("\U0001f600", ())


def test_half_a_character_is_replaced_and_noted(answer: Callable[..., ChatResponse]) -> None:
    response = answer(chunk(content="a\ud83d"), "[DONE]")
    assert response.content == "a\ufffd"
    assert [note.what for note in response.notes] == ["text"]


def test_calls_are_assembled_by_index(answer: Callable[..., ChatResponse]) -> None:
    response = answer(
        fragment(1, "b", "two", '{"x'),
        fragment(0, "a", "one", "{"),
        fragment(1, arguments='":1}'),
        fragment(0, arguments="}"),
        "[DONE]",
    )
    assert response.tool_calls == (ToolCall("two", '{"x":1}', "b"), ToolCall("one", "{}", "a"))


def test_calls_without_an_index_are_assembled_by_id(answer: Callable[..., ChatResponse]) -> None:
    calls = (ToolCall("one", '{"a":1}', "a"), ToolCall("two", '{"b":2}', "b"))
    for index in (None, 0):
        response = answer(fragment(index, "a", "one", '{"a":1}'), fragment(index, "b", "two", {"b": 2}), "[DONE]")
        assert response.tool_calls == calls


def test_a_tool_call_cut_by_the_token_limit_keeps_its_text(answer: Callable[..., ChatResponse]) -> None:
    events = text_events("")
    events[1:4] = [
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a": '}},
    ]
    response = answer(*events, {"type": "message_stop"}, provider="anthropic")
    assert response.tool_calls == (ToolCall("f", '{"a": ', "t"),)
    assert response.tool_calls[0].parsed() is None


def test_a_response_that_is_not_streamed_is_read_and_noted(serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
    body = {"model": "m", "choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]}
    response = adapter(serve(reply(body)), "openai").complete(REQUEST, CONFIG)
    assert (response.content, response.notes) == ("whole", (Note("stream", "the server did not stream the response"),))


def test_an_html_page_instead_of_a_stream_is_an_error(serve: Serve, reply: Any, adapter: MakeAdapter) -> None:
    page = reply(b"<html>sign in</html>", headers={"Content-Type": "text/html"})
    with pytest.raises(ModelError, match="not an event stream; the body: <html>") as caught:
        adapter(serve(page), "openai").complete(REQUEST, CONFIG)
    assert caught.value.type == "bad_response"


def test_a_server_without_stream_usage_is_called_without_that_option(
    serve: Serve, reply: Any, adapter: MakeAdapter
) -> None:
    reason = {"error": {"message": "Unknown parameter: 'stream_options'", "param": "stream_options"}}
    server = serve(reply(reason, 400), reply(events=[chunk("stop", content="ok"), "[DONE]"]))
    response = adapter(server, "openai").complete(REQUEST, CONFIG)
    assert (response.content, response.usage, [note.what for note in response.notes]) == ("ok", None, ["usage"])
    assert ["stream_options" in body for body in server.bodies] == [True, False]


def test_unknown_events_are_ignored(answer: Callable[..., ChatResponse]) -> None:
    events = [{"choices": None}, {"choices": [None]}, {"choices": [{"delta": None}]}, [], 7, {"usage": 3}]
    assert answer(*events, chunk("stop", content="ok"), "[DONE]").content == "ok"
    events = [{"type": "content_block_delta", "index": 9}, {"type": "later"}, {"type": "ping"}]
    assert answer(*text_events("ok"), *events, {"type": "message_stop"}, provider="anthropic").content == "ok"


def test_an_event_that_is_not_json_is_an_error(answer: Callable[..., ChatResponse]) -> None:
    with pytest.raises(ModelError, match="not JSON") as caught:
        answer(chunk(content="a"), "{broken", "[DONE]")
    assert caught.value.type == "bad_response"

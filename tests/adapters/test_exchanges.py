"""Recorded exchanges: what each adapter sends and how it reads the response, compared in full."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradeline.adapters import ChatAdapter, ChatRequest, ChatResponse, Note, RunConfig, TokenLogprob, Tool, Usage
from gradeline.model import Message, ToolCall

HOME = Path(__file__).with_name("exchanges")
RECORDED = [
    pytest.param(book, exchange, id=f"{path.stem}: {name}")
    for path in sorted(HOME.glob("*.json"))
    for book in [json.loads(path.read_text())]
    for name, exchange in book["exchanges"].items()
]


def prompt_of(message: Any) -> str | ChatRequest:
    if isinstance(message, str):
        return message
    messages = tuple(msgspec.convert(message["messages"], list[Message]))
    tools = tuple(Tool(**tool) for tool in message.get("tools", ()))
    return ChatRequest(**{**message, "messages": messages, "tools": tools})


def expected(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "content": message["content"],
        "model": message["model"],
        "finish_reason": message["finish_reason"],
        "raw_finish": message["raw_finish"],
        "usage": None if message["usage"] is None else Usage(*message["usage"]),
        "tool_calls": tuple(ToolCall(*call) for call in message.get("tool_calls", ())),
        "notes": tuple(Note(*note) for note in message.get("notes", ())),
        "logprobs": tuple(
            TokenLogprob(token, logprob, tuple(map(tuple, top))) for token, logprob, top in message.get("logprobs", ())
        ),
    }


def found(response: ChatResponse) -> dict[str, Any]:
    assert response.raw is not None
    assert response.latency_ms is not None
    return {
        "content": response.content,
        "model": response.model,
        "finish_reason": response.finish_reason,
        "raw_finish": response.raw["finish_reason"],
        "usage": response.usage,
        "tool_calls": response.tool_calls,
        "notes": response.notes,
        "logprobs": response.logprobs,
    }


@pytest.mark.parametrize(("book", "exchange"), RECORDED)
def test_a_recorded_exchange(
    book: dict[str, Any],
    exchange: dict[str, Any],
    serve: Callable[..., Any],
    reply: Any,
    adapter: Callable[..., ChatAdapter],
) -> None:
    server = serve(reply(exchange.get("answer"), events=exchange.get("events")))
    response = adapter(server, book["provider"]).complete(
        prompt_of(exchange["prompt"]), RunConfig(**exchange["config"])
    )
    (request,) = server.seen
    streamed = "events" in exchange
    assert request.path == (book.get("stream_path", book["path"]) if streamed else book["path"])
    assert {name: request.headers.get(name) for name in book["headers"]} == book["headers"]
    assert request.body == exchange["request"]
    assert found(response) == expected(exchange["response"])
    if not streamed:
        assert response.raw is not None
        assert response.raw["body"] == exchange["answer"]

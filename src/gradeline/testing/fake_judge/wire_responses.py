"""OpenAI's responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from gradeline.testing.fake_judge.exchange import (
    CREATED,
    Answer,
    Asked,
    Events,
    Failure,
    Received,
    Reply,
    Token,
    Tool,
    Usage,
    bad_request,
    joined,
    pieces,
)
from gradeline.testing.fake_judge.wire_openai import Data, Message, bearer, decoded, encoded, error_body, event, logprob


class FunctionTool(msgspec.Struct):
    name: str
    parameters: Data = {}
    type: Literal["function"] = "function"


class ToolChoice(msgspec.Struct):
    name: str
    type: Literal["function"] = "function"


class TextFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: Data | None = None


class TextConfig(msgspec.Struct):
    format: TextFormat | None = None


class ResponsesRequest(msgspec.Struct):
    model: str
    input: str | list[Message]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    text: TextConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    seed: Any = None
    n: Any = None

    def wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())

    def used(self) -> dict[str, str]:
        told = {
            "logprobs": "top_logprobs" if self.wants_logprobs() else None,
            "max_tokens": None if self.max_output_tokens is None else "max_output_tokens",
            "response_format": "text.format" if self.text and self.text.format else None,
            "stream": None if self.stream is None else "stream",
            "temperature": None if self.temperature is None else "temperature",
            "tools": None if self.tools is None else "tools",
        }
        return {common: name for common, name in told.items() if name}


class Responses:
    """``POST /v1/responses``."""

    def key(self, received: Received) -> str | None:
        return bearer(received)

    def read(self, received: Received) -> Asked:
        request = decoded(received.body, ResponsesRequest)
        for name in ("seed", "n"):
            if getattr(request, name) is not None:
                raise bad_request(f"Unknown parameter: '{name}'.", name)
        tools = tuple(Tool(tool.name, tool.parameters) for tool in request.tools or ())
        choice = request.tool_choice
        wanted = choice.name if isinstance(choice, ToolChoice) else None
        form = request.text.format if request.text else None
        texts = [request.input] if isinstance(request.input, str) else [one.text() for one in request.input]
        return Asked(
            model=request.model,
            text="\n\n".join([request.instructions, *texts] if request.instructions else texts),
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_logprobs=(request.top_logprobs or 0) if request.wants_logprobs() else None,
            schema=form.schema if form else None,
            tools=tools,
            forced_tool=next((tool for tool in tools if tool.name == wanted or choice == "required"), None),
            stream=bool(request.stream),
            used=request.used(),
        )

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        return encoded(_response(asked, answer))

    def stream(self, asked: Asked, answer: Answer) -> Events:
        events = [
            event({**data, "sequence_number": number}, data["type"])
            for number, data in enumerate(_events(asked, answer))
        ]
        return Events(tuple(events[:-1]), (events[-1],))

    def failure(self, failure: Failure) -> bytes:
        return encoded(error_body(failure))

    def stream_failure(self) -> bytes:
        message = "The server had an error while streaming."
        data = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 999}
        return event(data, "error")


def _response(asked: Asked, answer: Answer, status: str | None = None) -> Data:
    reply = answer.replies[0] if answer.replies else None
    reason = {"length": "max_output_tokens", "filter": "content_filter"}.get(reply.finish) if reply else None
    done = status is None
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": CREATED,
        "status": status or ("incomplete" if reason else "completed"),
        "error": None,
        "incomplete_details": {"reason": reason} if reason and done else None,
        "instructions": None,
        "max_output_tokens": asked.max_tokens,
        "model": answer.model,
        "output": [_item(asked, reply)] if done and reply and _has_item(reply) else [],
        "parallel_tool_calls": True,
        "temperature": asked.temperature,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "metadata": {},
        "usage": _usage(answer.usage) if done and answer.usage else None,
    }


def _has_item(reply: Reply) -> bool:
    return reply.call is not None or reply.text is not None or reply.refusal is not None


def _item(asked: Asked, reply: Reply, status: str | None = None) -> Data:
    """The output item; with a status, as it stands when it is begun."""
    state = status or ("completed" if reply.finish in ("stop", "refusal") else "incomplete")
    if reply.call:
        arguments = "" if status else reply.call.arguments
        call = {"type": "function_call", "call_id": "call_0", "name": reply.call.name, "arguments": arguments}
        return {"id": "fc_0", **call, "status": state}
    content = [] if status else [_part(asked, reply)]
    return {"id": "msg_0", "type": "message", "role": "assistant", "status": state, "content": content}


def _part(asked: Asked, reply: Reply, *, begun: bool = False) -> Data:
    if reply.refusal is not None:
        return {"type": "refusal", "refusal": "" if begun else reply.refusal}
    shown = [] if begun else _logprobs(asked, reply.tokens)
    return {"type": "output_text", "text": "" if begun else reply.text, "annotations": [], "logprobs": shown}


def _logprobs(asked: Asked, tokens: tuple[Token, ...]) -> list[Data]:
    return [] if asked.top_logprobs is None else [logprob(token, asked.top_logprobs) for token in tokens]


def _events(asked: Asked, answer: Answer) -> Iterator[Data]:
    begun = _response(asked, answer, "in_progress")
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    reply = answer.replies[0] if answer.replies else None
    if reply and _has_item(reply):
        yield {"type": "response.output_item.added", "output_index": 0, "item": _item(asked, reply, "in_progress")}
        yield from _call_events(reply) if reply.call else _text_events(asked, reply)
        yield {"type": "response.output_item.done", "output_index": 0, "item": _item(asked, reply)}
    whole = _response(asked, answer)
    yield {"type": f"response.{whole['status']}", "response": whole}


def _call_events(reply: Reply) -> Iterator[Data]:
    where = {"item_id": "fc_0", "output_index": 0}
    for portion in pieces(reply.tokens):
        yield {"type": "response.function_call_arguments.delta", **where, "delta": joined(portion)}
    name, arguments = reply.call or ("", "")
    yield {"type": "response.function_call_arguments.done", **where, "name": name, "arguments": arguments}


def _text_events(asked: Asked, reply: Reply) -> Iterator[Data]:
    where = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
    yield {"type": "response.content_part.added", **where, "part": _part(asked, reply, begun=True)}
    if reply.refusal is not None:
        yield {"type": "response.refusal.delta", **where, "delta": reply.refusal}
        yield {"type": "response.refusal.done", **where, "refusal": reply.refusal}
    else:
        for portion in pieces(reply.tokens):
            shown = _logprobs(asked, portion)
            yield {"type": "response.output_text.delta", **where, "delta": joined(portion), "logprobs": shown}
        shown = _logprobs(asked, reply.tokens)
        yield {"type": "response.output_text.done", **where, "text": reply.text, "logprobs": shown}
    yield {"type": "response.content_part.done", **where, "part": _part(asked, reply)}


def _usage(usage: Usage) -> Data:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }

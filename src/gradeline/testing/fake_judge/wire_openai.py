"""OpenAI's chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

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

Data = dict[str, Any]

_TYPES = {
    401: "invalid_request_error",
    403: "permission_error",
    429: "requests",
    500: "server_error",
    503: "service_unavailable",
    529: "overloaded",
}


class Part(msgspec.Struct):
    type: str = "text"
    text: str = ""


class Message(msgspec.Struct):
    role: str = "user"
    content: str | list[Part] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class Function(msgspec.Struct):
    name: str
    parameters: Data = {}


class FunctionTool(msgspec.Struct):
    function: Function
    type: Literal["function"] = "function"


class NamedFunction(msgspec.Struct):
    name: str


class ToolChoice(msgspec.Struct):
    function: NamedFunction
    type: Literal["function"] = "function"


class JsonSchema(msgspec.Struct):
    name: str = ""
    schema: Data = {}


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class ChatRequest(msgspec.Struct):
    model: str
    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def used(self) -> dict[str, str]:
        names = ("logprobs", "max_tokens", "n", "response_format", "seed", "stream", "temperature", "tools")
        return {name: name for name in names if getattr(self, name) is not None}


T = TypeVar("T")


def decoded(body: bytes, kind: type[T]) -> T:
    """A request's body; a provider's 400 where it has not the form."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise bad_request(f"We could not parse the JSON body of your request: {error}") from error


def event(data: Data, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def encoded(data: Data) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()


def bearer(received: Received) -> str | None:
    kind, _, key = received.headers.get("authorization", "").partition(" ")
    return key if kind.lower() == "bearer" else None


def error_body(failure: Failure) -> Data:
    kind = "insufficient_quota" if failure.name == "429-quota" else _TYPES.get(failure.status, "invalid_request_error")
    return {"error": {"message": failure.message, "type": kind, "param": failure.param, "code": failure.code}}


def logprob(token: Token, count: int) -> Data:
    """A token with its alternatives, in the form that chat completions and responses share."""
    top = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in token.top(count)]
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode()), "top_logprobs": top}


class ChatCompletions:
    """``POST /v1/chat/completions``."""

    def key(self, received: Received) -> str | None:
        return bearer(received)

    def read(self, received: Received) -> Asked:
        request = decoded(received.body, ChatRequest)
        if not request.messages:
            raise bad_request("Invalid 'messages': empty array.", "messages")
        if request.top_logprobs is not None and not request.logprobs:
            raise bad_request("'top_logprobs' is only allowed when 'logprobs' is enabled.", "top_logprobs")
        tools = tuple(Tool(tool.function.name, tool.function.parameters) for tool in request.tools or ())
        choice = request.tool_choice
        wanted = choice.function.name if isinstance(choice, ToolChoice) else None
        forced = next((tool for tool in tools if tool.name == wanted or choice == "required"), None)
        form = request.response_format
        return Asked(
            model=request.model,
            text="\n\n".join(message.text() for message in request.messages),
            max_tokens=request.max_completion_tokens or request.max_tokens,
            temperature=request.temperature,
            seed=request.seed,
            choices=request.n or 1,
            top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
            schema=form.json_schema.schema if form and form.json_schema else None,
            tools=tools,
            forced_tool=forced,
            stream=bool(request.stream),
            stream_usage=bool(request.stream_options and request.stream_options.include_usage),
            used=request.used(),
        )

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        choices = [_choice(asked, number, reply) for number, reply in enumerate(answer.replies)]
        data = {**_head(answer, "chat.completion"), "choices": choices}
        if answer.usage:
            data["usage"] = _usage(answer.usage)
        return encoded(data)

    def stream(self, asked: Asked, answer: Answer) -> Events:
        events = [event(chunk) for chunk in self._chunks(asked, answer)]
        return Events(tuple(events), (b"data: [DONE]\n\n",))

    def failure(self, failure: Failure) -> bytes:
        return encoded(error_body(failure))

    def stream_failure(self) -> bytes:
        return event(error_body(Failure("500", 500, "The server had an error while streaming.", None, None)))

    def _chunks(self, asked: Asked, answer: Answer) -> Iterator[Data]:
        head = _head(answer, "chat.completion.chunk")
        blank = {"usage": None} if asked.stream_usage else {}
        for number, reply in enumerate(answer.replies):
            for delta, tokens in _deltas(reply, number):
                choice: Data = {"index": number, "delta": delta, "finish_reason": None}
                if asked.top_logprobs is not None and tokens and not reply.call:
                    choice["logprobs"] = _logprobs(tokens, asked.top_logprobs)
                yield {**head, "choices": [choice], **blank}
            yield {**head, "choices": [{"index": number, "delta": {}, "finish_reason": _finish(reply)}], **blank}
        if asked.stream_usage and answer.usage:
            yield {**head, "choices": [], "usage": _usage(answer.usage)}


def _head(answer: Answer, kind: str) -> Data:
    return {
        "id": f"chatcmpl-{answer.id}",
        "object": kind,
        "created": CREATED,
        "model": answer.model,
        "system_fingerprint": answer.fingerprint,
    }


def _choice(asked: Asked, number: int, reply: Reply) -> Data:
    message: Data = {"role": "assistant", "content": reply.text, "refusal": reply.refusal}
    if reply.call:
        function = {"name": reply.call.name, "arguments": reply.call.arguments}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    shown = asked.top_logprobs is not None and reply.text is not None
    return {
        "index": number,
        "message": message,
        "logprobs": _logprobs(reply.tokens, asked.top_logprobs or 0) if shown else None,
        "finish_reason": _finish(reply),
    }


def _logprobs(tokens: tuple[Token, ...], count: int) -> Data:
    return {"content": [logprob(token, count) for token in tokens], "refusal": None}


def _finish(reply: Reply) -> str:
    if reply.finish == "length":
        return "length"
    if reply.finish == "filter":
        return "content_filter"
    return "tool_calls" if reply.call else "stop"


def _deltas(reply: Reply, number: int) -> Iterator[tuple[Data, tuple[Token, ...]]]:
    if reply.call:
        function = {"name": reply.call.name, "arguments": ""}
        first = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [first]}, ()
        for portion in pieces(reply.tokens):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": joined(portion)}}]}, portion
        return
    yield {"role": "assistant", "content": "", "refusal": None}, ()
    if reply.refusal:
        yield {"refusal": reply.refusal}, ()
    for portion in pieces(reply.tokens):
        yield {"content": joined(portion)}, portion


def _usage(usage: Usage) -> Data:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }

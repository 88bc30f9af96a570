"""OpenAI's chat completions and responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from gradeline.testing.fake_judge.wire import (
    CREATED,
    ApiFailure,
    Data,
    JudgeRequest,
    JudgeResponse,
    RawRequest,
    ReplyChoice,
    ReplyToken,
    RequestTool,
    StreamedReply,
    TokenCounts,
    WireMessage,
    bad_request,
    bearer,
    decoded,
    encoded,
    event,
    joined_text,
    stream_chunks,
    used_parameters,
)

_TYPES = {
    401: "invalid_request_error",
    403: "permission_error",
    429: "requests",
    500: "server_error",
    503: "service_unavailable",
    529: "overloaded",
}


class OpenAIFunction(msgspec.Struct):
    name: str
    parameters: Data = {}


class OpenAIFunctionTool(msgspec.Struct):
    function: OpenAIFunction
    type: Literal["function"] = "function"


class OpenAIFunctionName(msgspec.Struct):
    name: str


class OpenAIToolChoice(msgspec.Struct):
    function: OpenAIFunctionName
    type: Literal["function"] = "function"


class OpenAIJsonSchema(msgspec.Struct):
    name: str = ""
    schema: Data = {}


class OpenAIResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: OpenAIJsonSchema | None = None


class OpenAIStreamOptions(msgspec.Struct):
    include_usage: bool = False


class ChatCompletionsRequest(msgspec.Struct):
    model: str
    messages: list[WireMessage]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: OpenAIResponseFormat | None = None
    tools: list[OpenAIFunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | OpenAIToolChoice | None = None
    stream: bool | None = None
    stream_options: OpenAIStreamOptions | None = None

    def used(self) -> dict[str, str]:
        names = ("logprobs", "max_tokens", "n", "response_format", "seed", "stream", "temperature", "tools")
        return used_parameters(**{name: (name, getattr(self, name)) for name in names})


def error_body(failure: ApiFailure) -> Data:
    kind = "insufficient_quota" if failure.name == "429-quota" else _TYPES.get(failure.status, "invalid_request_error")
    return {"error": {"message": failure.message, "type": kind, "param": failure.param, "code": failure.code}}


def logprob(token: ReplyToken, count: int) -> Data:
    """A token with its alternatives, in the format that chat completions and responses share."""
    top = [{"token": text, "logprob": value, "bytes": list(text.encode())} for text, value in token.top(count)]
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.text.encode()), "top_logprobs": top}


class ChatCompletions:
    """``POST /v1/chat/completions``."""

    def key(self, received: RawRequest) -> str | None:
        return bearer(received)

    def read(self, received: RawRequest) -> JudgeRequest:
        request = decoded(received.body, ChatCompletionsRequest)
        if not request.messages:
            raise bad_request("Invalid 'messages': empty array.", "messages")
        if request.top_logprobs is not None and not request.logprobs:
            raise bad_request("'top_logprobs' is only allowed when 'logprobs' is enabled.", "top_logprobs")
        tools = tuple(RequestTool(tool.function.name, tool.function.parameters) for tool in request.tools or ())
        choice = request.tool_choice
        named_tool = choice.function.name if isinstance(choice, OpenAIToolChoice) else None
        forced = next((tool for tool in tools if tool.name == named_tool or choice == "required"), None)
        form = request.response_format
        return JudgeRequest(
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

    def whole(self, request: JudgeRequest, response: JudgeResponse) -> bytes:
        choices = [_choice(request, number, reply) for number, reply in enumerate(response.replies)]
        data = {**_head(response, "chat.completion"), "choices": choices}
        if response.usage:
            data["usage"] = _usage(response.usage)
        return encoded(data)

    def stream(self, request: JudgeRequest, response: JudgeResponse) -> StreamedReply:
        events = [event(chunk) for chunk in self._chunks(request, response)]
        return StreamedReply(tuple(events), (b"data: [DONE]\n\n",))

    def failure(self, failure: ApiFailure) -> bytes:
        return encoded(error_body(failure))

    def stream_failure(self) -> bytes:
        return event(error_body(ApiFailure("500", 500, "The server had an error while streaming.", None, None)))

    def _chunks(self, request: JudgeRequest, response: JudgeResponse) -> Iterator[Data]:
        head = _head(response, "chat.completion.chunk")
        blank = {"usage": None} if request.stream_usage else {}
        for number, reply in enumerate(response.replies):
            for delta, tokens in _deltas(reply, number):
                choice: Data = {"index": number, "delta": delta, "finish_reason": None}
                if request.top_logprobs is not None and tokens and not reply.call:
                    choice["logprobs"] = _logprobs(tokens, request.top_logprobs)
                yield {**head, "choices": [choice], **blank}
            yield {**head, "choices": [{"index": number, "delta": {}, "finish_reason": _finish(reply)}], **blank}
        if request.stream_usage and response.usage:
            yield {**head, "choices": [], "usage": _usage(response.usage)}


def _head(response: JudgeResponse, kind: str) -> Data:
    return {
        "id": f"chatcmpl-{response.id}",
        "object": kind,
        "created": CREATED,
        "model": response.model,
        "system_fingerprint": response.fingerprint,
    }


def _choice(request: JudgeRequest, number: int, reply: ReplyChoice) -> Data:
    message: Data = {"role": "assistant", "content": reply.text, "refusal": reply.refusal}
    if reply.call:
        function = {"name": reply.call.name, "arguments": reply.call.arguments}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    shown = request.top_logprobs is not None and reply.text is not None
    return {
        "index": number,
        "message": message,
        "logprobs": _logprobs(reply.tokens, request.top_logprobs or 0) if shown else None,
        "finish_reason": _finish(reply),
    }


def _logprobs(tokens: tuple[ReplyToken, ...], count: int) -> Data:
    return {"content": [logprob(token, count) for token in tokens], "refusal": None}


def _finish(reply: ReplyChoice) -> str:
    if reply.finish == "length":
        return "length"
    if reply.finish == "filter":
        return "content_filter"
    return "tool_calls" if reply.call else "stop"


def _deltas(reply: ReplyChoice, number: int) -> Iterator[tuple[Data, tuple[ReplyToken, ...]]]:
    if reply.call:
        function = {"name": reply.call.name, "arguments": ""}
        first = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        yield {"role": "assistant", "content": None, "tool_calls": [first]}, ()
        for chunk in stream_chunks(reply.tokens):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": joined_text(chunk)}}]}, chunk
        return
    yield {"role": "assistant", "content": "", "refusal": None}, ()
    if reply.refusal:
        yield {"refusal": reply.refusal}, ()
    for chunk in stream_chunks(reply.tokens):
        yield {"content": joined_text(chunk)}, chunk


def _usage(usage: TokenCounts) -> Data:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


class ResponsesFunctionTool(msgspec.Struct):
    name: str
    parameters: Data = {}
    type: Literal["function"] = "function"


class ResponsesToolChoice(msgspec.Struct):
    name: str
    type: Literal["function"] = "function"


class ResponsesTextFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"] = "text"
    schema: Data | None = None


class ResponsesTextConfig(msgspec.Struct):
    format: ResponsesTextFormat | None = None


class ResponsesRequest(msgspec.Struct):
    model: str
    input: str | list[WireMessage]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    text: ResponsesTextConfig | None = None
    tools: list[ResponsesFunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponsesToolChoice | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    seed: Any = None
    n: Any = None

    def requests_logprobs(self) -> bool:
        return self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ())

    def used(self) -> dict[str, str]:
        return used_parameters(
            logprobs=("top_logprobs", self.requests_logprobs() or None),
            max_tokens=("max_output_tokens", self.max_output_tokens),
            response_format=("text.format", self.text and self.text.format),
            stream=("stream", self.stream),
            temperature=("temperature", self.temperature),
            tools=("tools", self.tools),
        )


class Responses:
    """``POST /v1/responses``."""

    def key(self, received: RawRequest) -> str | None:
        return bearer(received)

    def read(self, received: RawRequest) -> JudgeRequest:
        request = decoded(received.body, ResponsesRequest)
        for name in ("seed", "n"):
            if getattr(request, name) is not None:
                raise bad_request(f"Unknown parameter: '{name}'.", name)
        tools = tuple(RequestTool(tool.name, tool.parameters) for tool in request.tools or ())
        choice = request.tool_choice
        named_tool = choice.name if isinstance(choice, ResponsesToolChoice) else None
        form = request.text.format if request.text else None
        texts = [request.input] if isinstance(request.input, str) else [one.text() for one in request.input]
        return JudgeRequest(
            model=request.model,
            text="\n\n".join([request.instructions, *texts] if request.instructions else texts),
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_logprobs=(request.top_logprobs or 0) if request.requests_logprobs() else None,
            schema=form.schema if form else None,
            tools=tools,
            forced_tool=next((tool for tool in tools if tool.name == named_tool or choice == "required"), None),
            stream=bool(request.stream),
            used=request.used(),
        )

    def whole(self, request: JudgeRequest, response: JudgeResponse) -> bytes:
        return encoded(_response(request, response))

    def stream(self, request: JudgeRequest, response: JudgeResponse) -> StreamedReply:
        events = [
            event({**data, "sequence_number": number}, data["type"])
            for number, data in enumerate(_response_events(request, response))
        ]
        return StreamedReply(tuple(events[:-1]), (events[-1],))

    def failure(self, failure: ApiFailure) -> bytes:
        return encoded(error_body(failure))

    def stream_failure(self) -> bytes:
        message = "The server had an error while streaming."
        data = {"type": "error", "code": "server_error", "message": message, "param": None, "sequence_number": 999}
        return event(data, "error")


def _response(request: JudgeRequest, response: JudgeResponse, status: str | None = None) -> Data:
    reply = response.replies[0] if response.replies else None
    reason = {"length": "max_output_tokens", "filter": "content_filter"}.get(reply.finish) if reply else None
    done = status is None
    return {
        "id": f"resp_{response.id}",
        "object": "response",
        "created_at": CREATED,
        "status": status or ("incomplete" if reason else "completed"),
        "error": None,
        "incomplete_details": {"reason": reason} if reason and done else None,
        "instructions": None,
        "max_output_tokens": request.max_tokens,
        "model": response.model,
        "output": [_output_item(request, reply)] if done and reply and _has_output(reply) else [],
        "parallel_tool_calls": True,
        "temperature": request.temperature,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "metadata": {},
        "usage": _responses_usage(response.usage) if done and response.usage else None,
    }


def _has_output(reply: ReplyChoice) -> bool:
    return reply.call is not None or reply.text is not None or reply.refusal is not None


def _output_item(request: JudgeRequest, reply: ReplyChoice, status: str | None = None) -> Data:
    """The output item; with a status, its form at the beginning of a stream."""
    state = status or ("completed" if reply.finish in ("stop", "refusal") else "incomplete")
    if reply.call:
        arguments = "" if status else reply.call.arguments
        call = {"type": "function_call", "call_id": "call_0", "name": reply.call.name, "arguments": arguments}
        return {"id": "fc_0", **call, "status": state}
    content = [] if status else [_output_part(request, reply)]
    return {"id": "msg_0", "type": "message", "role": "assistant", "status": state, "content": content}


def _output_part(request: JudgeRequest, reply: ReplyChoice, *, started: bool = False) -> Data:
    if reply.refusal is not None:
        return {"type": "refusal", "refusal": "" if started else reply.refusal}
    shown = [] if started else _output_logprobs(request, reply.tokens)
    return {"type": "output_text", "text": "" if started else reply.text, "annotations": [], "logprobs": shown}


def _output_logprobs(request: JudgeRequest, tokens: tuple[ReplyToken, ...]) -> list[Data]:
    return [] if request.top_logprobs is None else [logprob(token, request.top_logprobs) for token in tokens]


def _response_events(request: JudgeRequest, response: JudgeResponse) -> Iterator[Data]:
    started = _response(request, response, "in_progress")
    yield {"type": "response.created", "response": started}
    yield {"type": "response.in_progress", "response": started}
    reply = response.replies[0] if response.replies else None
    if reply and _has_output(reply):
        yield {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": _output_item(request, reply, "in_progress"),
        }
        yield from _call_events(reply) if reply.call else _text_events(request, reply)
        yield {"type": "response.output_item.done", "output_index": 0, "item": _output_item(request, reply)}
    whole = _response(request, response)
    yield {"type": f"response.{whole['status']}", "response": whole}


def _call_events(reply: ReplyChoice) -> Iterator[Data]:
    where = {"item_id": "fc_0", "output_index": 0}
    for chunk in stream_chunks(reply.tokens):
        yield {"type": "response.function_call_arguments.delta", **where, "delta": joined_text(chunk)}
    name, arguments = reply.call or ("", "")
    yield {"type": "response.function_call_arguments.done", **where, "name": name, "arguments": arguments}


def _text_events(request: JudgeRequest, reply: ReplyChoice) -> Iterator[Data]:
    where = {"item_id": "msg_0", "output_index": 0, "content_index": 0}
    yield {"type": "response.content_part.added", **where, "part": _output_part(request, reply, started=True)}
    if reply.refusal is not None:
        yield {"type": "response.refusal.delta", **where, "delta": reply.refusal}
        yield {"type": "response.refusal.done", **where, "refusal": reply.refusal}
    else:
        for chunk in stream_chunks(reply.tokens):
            shown = _output_logprobs(request, chunk)
            yield {"type": "response.output_text.delta", **where, "delta": joined_text(chunk), "logprobs": shown}
        shown = _output_logprobs(request, reply.tokens)
        yield {"type": "response.output_text.done", **where, "text": reply.text, "logprobs": shown}
    yield {"type": "response.content_part.done", **where, "part": _output_part(request, reply)}


def _responses_usage(usage: TokenCounts) -> Data:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }

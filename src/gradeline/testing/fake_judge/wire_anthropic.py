"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from gradeline.testing.fake_judge.wire import (
    ApiFailure,
    Data,
    JudgeRequest,
    JudgeResponse,
    RawRequest,
    ReplyChoice,
    RequestRejectedError,
    RequestTool,
    StreamedReply,
    TokenCounts,
    WireMessage,
    WirePart,
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
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_MESSAGES = {
    "400-context": "prompt is too long: 9001 tokens > 8192 maximum",
    "401": "invalid x-api-key",
    "404": "model: no such model",
    "429": "This request would exceed your organization's rate limit.",
    "429-quota": "You have reached your specified API usage limits.",
}
_STOPS = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal", "refusal": "refusal"}
_UNUSED = frozenset({"metadata", "service_tier", "stop_sequences", "thinking", "top_k", "top_p", "cache_control"})


class AnthropicTool(msgspec.Struct):
    name: str
    input_schema: Data = {}


class AnthropicToolChoice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class AnthropicOutputFormat(msgspec.Struct):
    type: Literal["json_schema"]
    schema: Data


class AnthropicOutputConfig(msgspec.Struct):
    format: AnthropicOutputFormat | None = None


class MessagesRequest(msgspec.Struct):
    model: str
    messages: list[WireMessage]
    max_tokens: int
    system: str | list[WirePart] | None = None
    temperature: float | None = None
    tools: list[AnthropicTool] | None = None
    tool_choice: AnthropicToolChoice | None = None
    output_config: AnthropicOutputConfig | None = None
    stream: bool | None = None

    def text(self) -> str:
        system = [WireMessage("system", self.system)] if self.system else []
        return "\n\n".join(message.text() for message in [*system, *self.messages])

    def used(self) -> dict[str, str]:
        return used_parameters(
            max_tokens=("max_tokens", self.max_tokens),
            response_format=("output_config", self.output_config and self.output_config.format),
            stream=("stream", self.stream),
            temperature=("temperature", self.temperature),
            tools=("tools", self.tools),
        )


class Messages:
    """``POST /v1/messages``."""

    def key(self, received: RawRequest) -> str | None:
        return received.headers.get("x-api-key") or bearer(received)

    def read(self, received: RawRequest) -> JudgeRequest:
        if "anthropic-version" not in received.headers:
            raise bad_request("anthropic-version: header is required")
        _check_fields(decoded(received.body, dict[str, msgspec.Raw]))
        request = decoded(received.body, MessagesRequest)
        if request.max_tokens < 1:
            raise bad_request("max_tokens: must be greater than or equal to 1", "max_tokens")
        tools = tuple(RequestTool(tool.name, tool.input_schema) for tool in request.tools or ())
        choice = request.tool_choice or AnthropicToolChoice("auto")
        form = request.output_config.format if request.output_config else None
        return JudgeRequest(
            model=request.model,
            text=request.text(),
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            schema=form.schema if form else None,
            tools=tools,
            forced_tool=next((tool for tool in tools if choice.type == "any" or tool.name == choice.name), None),
            stream=bool(request.stream),
            used=request.used(),
        )

    def whole(self, request: JudgeRequest, response: JudgeResponse) -> bytes:  # noqa: ARG002 - the signature of `WireFormat`
        reply = response.replies[0] if response.replies else ReplyChoice(None)
        data = {**_head(response), "content": _content(reply), **_stop(reply)}
        if response.usage:
            data["usage"] = _usage(response.usage)
        return encoded(data)

    def stream(self, request: JudgeRequest, response: JudgeResponse) -> StreamedReply:  # noqa: ARG002 - the signature of `WireFormat`
        events = [event(data, data["type"]) for data in _events(response)]
        return StreamedReply(tuple(events[:-1]), (events[-1],))

    def failure(self, failure: ApiFailure) -> bytes:
        error: Data = {
            "type": _TYPES.get(failure.status, "api_error"),
            "message": _MESSAGES.get(failure.name, failure.message),
        }
        if failure.name == "429-quota":
            error["details"] = {"error_code": "enforced_spend_limit_reached"}
        return encoded({"type": "error", "error": error, "request_id": "req_fake"})

    def stream_failure(self) -> bytes:
        return event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")


def _check_fields(fields: dict[str, Any]) -> None:
    for name in fields:
        if name not in _UNUSED and name not in MessagesRequest.__struct_fields__:
            raise bad_request(f"{name}: Extra inputs are not permitted", name)
    for name in ("model", "messages", "max_tokens"):
        if name not in fields:
            raise RequestRejectedError(ApiFailure("400", 400, f"{name}: Field required", name))


def _head(response: JudgeResponse) -> Data:
    return {"id": f"msg_{response.id}", "type": "message", "role": "assistant", "model": response.model}


def _stop(reply: ReplyChoice) -> Data:
    reason = "tool_use" if reply.call and reply.finish == "stop" else _STOPS[reply.finish]
    return {"stop_reason": reason, "stop_sequence": None}


def _content(reply: ReplyChoice) -> list[Data]:
    if reply.call:
        return [{"type": "tool_use", "id": "toolu_0", "name": reply.call.name, "input": reply.call.object()}]
    return [] if reply.text is None else [{"type": "text", "text": reply.text}]


def _events(response: JudgeResponse) -> Iterator[Data]:
    reply = response.replies[0] if response.replies else ReplyChoice(None)
    started = {**_head(response), "content": [], "stop_reason": None, "stop_sequence": None}
    if response.usage:
        started["usage"] = _usage(response.usage._replace(completion=1))
    yield {"type": "message_start", "message": started}
    yield {"type": "ping"}
    if reply.call or reply.text is not None:
        block: Data = {"type": "text", "text": ""}
        if reply.call:
            block = {"type": "tool_use", "id": "toolu_0", "name": reply.call.name, "input": {}}
        yield {"type": "content_block_start", "index": 0, "content_block": block}
        for chunk in stream_chunks(reply.tokens):
            delta = {"type": "text_delta", "text": joined_text(chunk)}
            if reply.call:
                delta = {"type": "input_json_delta", "partial_json": joined_text(chunk)}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
        yield {"type": "content_block_stop", "index": 0}
    usage = {"usage": {"output_tokens": response.usage.completion}} if response.usage else {}
    yield {"type": "message_delta", "delta": _stop(reply), **usage}
    yield {"type": "message_stop"}


def _usage(usage: TokenCounts) -> Data:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }

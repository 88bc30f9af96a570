"""Anthropic's Messages format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gradeline.adapters.chat import ChatAdapter, ChatCall, DecodedReply, Note, with_params
from gradeline.adapters.costs import Tokens
from gradeline.adapters.errors import ModelError, find_error
from gradeline.adapters.openai import call_id, check_role, temperature_note
from gradeline.adapters.wire import (
    another_tier,
    at,
    count,
    items,
    joined,
    mapping,
    parse,
    text_at,
    tool_call,
    total,
)
from gradeline.model.llm import common_stop_reason
from gradeline.model.trajectory import Message, ToolCall, part_kind
from gradeline.parsing.json_text import NotJsonError, parse_json

if TYPE_CHECKING:
    from gradeline.transport import Event

VERSION = "2023-06-01"
"""This version still accepts a temperature for the models that have one."""
DEFAULT_MAX_TOKENS = 8192
"""The format requires a limit; newer models spend part of it on thinking."""

_WITHOUT_TEMPERATURE = re.compile(r"claude-(?:opus-(?:4-[789]|[5-9])|sonnet-[5-9]|fable|mythos)")
"""Models that refuse a temperature; Anthropic removed it with Opus 4.7 (checked on 2026-11-17):
https://platform.claude.com/docs/en/about-claude/models/migration-guide"""
_UNSUPPORTED = {
    "seed": "Anthropic's models do not support a seed",
    "logprobs": "Anthropic's models do not return token probabilities",
}


class AnthropicAdapter(ChatAdapter):
    """Any server with Anthropic's Messages API; ``base_url`` is the part before ``/v1/messages``."""

    provider: ClassVar[str] = "anthropic"
    capabilities: ClassVar[Mapping[str, Sequence[str]]] = {
        "seed": ("seed",),
        "temperature": ("temperature",),
        "response_schema": ("output_config", "output_config.format", "output_format", "json_schema"),
        "logprobs": ("logprobs", "top_logprobs"),
    }

    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": VERSION}

    def path(self, call: ChatCall) -> str:  # noqa: ARG002 - the same for every call
        return "/v1/messages"

    def credentials(self, api_key: str) -> dict[str, str]:
        return {"x-api-key": api_key}

    def unsupported(self, call: ChatCall) -> Iterator[Note]:
        temperature = call.config.model_params.get("temperature", call.config.temperature)
        if temperature not in (None, 1) and _WITHOUT_TEMPERATURE.match(call.model):
            yield temperature_note(call, temperature)
        for what in sorted(self.used_capabilities(call) & set(_UNSUPPORTED)):
            yield Note(what, _UNSUPPORTED[what])

    def output_limit(self, call: ChatCall) -> int | None:
        return super().output_limit(call) or DEFAULT_MAX_TOKENS

    def encode(self, call: ChatCall) -> dict[str, Any]:
        request, params = call.request, self.params(call)
        if "stop" in params:
            stop = params.pop("stop")
            params["stop_sequences"] = [stop] if isinstance(stop, str) else stop
        body: dict[str, Any] = {"model": call.model, "messages": _messages(request.messages)}
        if "max_tokens" not in params:
            body["max_tokens"] = call.config.max_tokens or DEFAULT_MAX_TOKENS
        system = _system(call)
        if system:
            body["system"] = system
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in request.tools
            ]
        if call.temperature is not None:
            body["temperature"] = call.temperature
        if call.response_schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": call.response_schema}}
        if request.stream:
            body["stream"] = True
        return with_params(body, params)

    def assemble(self, events: Sequence[Event]) -> dict[str, Any]:
        body: dict[str, Any] = {}
        blocks: dict[int, _Block] = {}
        for event in events:
            data = parse(event.data)
            kind = text_at(data, "type") or event.event
            index = count(data, "index") or 0
            match kind:
                case "message_start":
                    body = dict(mapping(data, "message"))
                case "content_block_start":
                    blocks[index] = _Block(mapping(data, "content_block"))
                case "content_block_delta" if index in blocks:
                    blocks[index].add(mapping(data, "delta"))
                case "message_delta":
                    body |= mapping(data, "delta")
                    body["usage"] = {**mapping(body, "usage"), **mapping(data, "usage")}
                case "message_stop":
                    return {**body, "content": [block.whole() for _, block in sorted(blocks.items())]}
                case "error":
                    report = find_error(data)
                    if report is not None:
                        raise report.to_error("the stream")
                    raise ModelError("bad_response", "the stream reported an error")
        raise ModelError("truncated", "the stream ended without message_stop")

    def decode(self, body: Mapping[str, Any]) -> DecodedReply:
        if "content" not in body:
            raise ModelError("bad_response", "the response has no content")
        blocks = items(body, "content")
        reason = text_at(body, "stop_reason")
        return DecodedReply(
            joined(text_at(block, "text") or "" for block in blocks if at(block, "type") == "text"),
            common_stop_reason(reason) if reason else None,
            reason,
            _tokens(mapping(body, "usage")),
            tuple(
                tool_call(block.get("name"), block.get("input"), block.get("id"))
                for block in blocks
                if at(block, "type") == "tool_use"
            ),
            text_at(body, "model"),
            server_calls=tuple(
                tool_call(block.get("name"), block.get("input"), block.get("id"))
                for block in blocks
                if part_kind(block) == "call" and at(block, "type") != "tool_use"
            ),
        )


class _Block:
    """A content block that is streamed in pieces."""

    _PIECES: ClassVar[Mapping[str, str]] = {
        "text_delta": "text",
        "thinking_delta": "thinking",
        "signature_delta": "signature",
        "input_json_delta": "partial_json",
    }

    def __init__(self, start: Mapping[str, Any]) -> None:
        self._start = start
        self._pieces: dict[str, list[str]] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        name = self._PIECES.get(text_at(delta, "type") or "")
        if name is not None:
            self._pieces.setdefault(name, []).append(text_at(delta, name) or "")

    def whole(self) -> dict[str, Any]:
        pieces = {name: joined(texts) for name, texts in self._pieces.items()}
        arguments = pieces.pop("partial_json", "")
        block = {**self._start, **{name: (text_at(self._start, name) or "") + text for name, text in pieces.items()}}
        if arguments:
            try:
                block["input"] = parse_json(arguments)
            except NotJsonError:  # cut off by the token limit, or invalid: kept as sent
                block["input"] = arguments
        return block


def _system(call: ChatCall) -> str:
    texts = [call.config.system or "", *(one.content for one in call.request.messages if one.role == "system")]
    return "\n\n".join(filter(None, texts))


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The messages; results of tools that were called together are sent in one message, as the format requires."""
    turns: list[dict[str, Any]] = []
    for position, message in enumerate(messages):
        check_role(message, position)
        if message.role == "system":
            continue
        if message.role == "tool":
            result: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.tool_call_id or "call_0"}
            result["content"] = message.content
            if message.is_error:
                result["is_error"] = True
            if turns and turns[-1]["role"] == "user" and isinstance(turns[-1]["content"], list):
                turns[-1]["content"].append(result)
            else:
                turns.append({"role": "user", "content": [result]})
        elif message.tool_calls:
            text = [{"type": "text", "text": message.content}] if message.content else []
            turns.append({"role": "assistant", "content": [*text, *_tool_uses(message.tool_calls)]})
        else:
            turns.append({"role": message.role, "content": message.content})
    return turns


def _tool_uses(calls: Sequence[ToolCall]) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(calls):
        arguments = call.parsed()
        if arguments is None:  # the format accepts objects only
            arguments = {"arguments": call.arguments}
        yield {"type": "tool_use", "id": call_id(call, index), "name": call.name, "input": arguments}


def _tokens(usage: Mapping[str, Any]) -> Tokens:
    """Anthropic counts tokens read from and written to its cache separately from the rest of the prompt."""
    cached = count(usage, "cache_read_input_tokens")
    written = count(usage, "cache_creation_input_tokens")
    searches = any(count(usage, "server_tool_use", name) for name in mapping(usage, "server_tool_use"))
    long_kept = bool(count(usage, "cache_creation", "ephemeral_1h_input_tokens"))
    return Tokens(
        total(count(usage, "input_tokens"), cached, written),
        count(usage, "output_tokens"),
        cached,
        written,
        extra=searches or long_kept or usage.get("speed") == "fast" or another_tier(usage.get("service_tier")),
    )

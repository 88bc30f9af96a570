"""OpenAI's formats: chat completions, which vLLM, Ollama and most gateways also serve, and Responses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gradeline.adapters.chat import ChatAdapter, ChatCall, DecodedReply, Note, TokenLogprob, with_params
from gradeline.adapters.costs import Tokens
from gradeline.adapters.errors import ModelError, find_error
from gradeline.adapters.wire import (
    another_tier,
    at,
    charged,
    count,
    items,
    joined,
    mapping,
    number,
    parse,
    text_at,
    texts_in,
    tool_call,
)
from gradeline.errors import ConfigError, Problem
from gradeline.model.llm import common_stop_reason
from gradeline.model.text import quote
from gradeline.model.trajectory import Message, ToolCall, called_tool, part_kind

if TYPE_CHECKING:
    from gradeline.transport import Event

OPENAI_HOST = "api.openai.com"
END = "[DONE]"


class OpenAIChatAdapter(ChatAdapter):
    """Any server with OpenAI's chat completions API; ``base_url`` is the part before ``/chat/completions``."""

    provider: ClassVar[str] = "openai"
    capabilities: ClassVar[Mapping[str, Sequence[str]]] = {
        "seed": ("seed",),
        "temperature": ("temperature",),
        "response_schema": ("response_format", "json_schema"),
        "logprobs": ("logprobs", "top_logprobs"),
        "max_tokens": ("max_tokens",),
        "usage": ("stream_options",),
    }

    def path(self, call: ChatCall) -> str:  # noqa: ARG002 - the same for every call
        return "/chat/completions"

    def credentials(self, api_key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"}

    def unsupported(self, call: ChatCall) -> Iterator[Note]:
        yield from unsupported_temperature(call)

    def used_capabilities(self, call: ChatCall) -> set[str]:
        used = super().used_capabilities(call) - {"max_tokens"}
        if call.request.stream and not call.omits("usage"):
            used.add("usage")
        if call.config.max_tokens is not None and self._limit_name(call) == "max_tokens":
            used.add("max_tokens")
        return used

    def encode(self, call: ChatCall) -> dict[str, Any]:
        request = call.request
        body: dict[str, Any] = {"model": call.model, "messages": list(_messages(call))}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {**_described(tool.name, tool.description), "parameters": tool.parameters},
                }
                for tool in request.tools
            ]
        if call.temperature is not None:
            body["temperature"] = call.temperature
        if call.config.max_tokens is not None:
            body[self._limit_name(call)] = call.config.max_tokens
        if call.response_schema is not None:
            schema = {"name": request.schema_name, "schema": call.response_schema}
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {**schema, "strict": is_closed(call.response_schema)},
            }
        if call.logprobs is not None:
            body["logprobs"] = True
            if call.logprobs:
                body["top_logprobs"] = call.logprobs
        if request.stream:
            body["stream"] = True
            if not call.omits("usage"):
                body["stream_options"] = {"include_usage": True}
        return with_params(body, self.params(call))

    def _limit_name(self, call: ChatCall) -> str:
        """OpenAI's newer models refuse the old name; other servers may know only that one."""
        new = self.host == OPENAI_HOST or is_reasoning_model(call.model) or call.omits("max_tokens")
        return "max_completion_tokens" if new else "max_tokens"

    def assemble(self, events: Sequence[Event]) -> dict[str, Any]:
        assembled = _StreamedCompletion()
        for event in events:
            if event.data.strip() == END:
                return assembled.body()
            chunk = parse(event.data)
            report = find_error(chunk)
            if report is not None:
                raise report.to_error("the stream")
            assembled.add(chunk)
        raise ModelError("truncated", f"the stream ended without {END}")

    def decode(self, body: Mapping[str, Any]) -> DecodedReply:
        choice = mapping(body, "choices", 0)
        if not choice:
            raise ModelError("bad_response", "the response has no choice")
        message = mapping(choice, "message")
        calls = tuple(_calls(message))
        refusal = text_at(message, "refusal")
        reason = text_at(choice, "finish_reason")
        finish = common_stop_reason(reason) if reason else None
        if calls and finish == "stop":
            finish = "tool_calls"
        if refusal:
            finish = "refusal"
        return DecodedReply(
            _content(message) or refusal or "",
            finish,
            reason,
            _tokens(body),
            calls,
            text_at(body, "model"),
            tuple(read_logprobs(items(choice, "logprobs", "content"))),
        )


class _StreamedCompletion:
    """Assembles the chunks of a stream into one response body."""

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: list[dict[str, Any]] = []
        self._latest: dict[int, dict[str, Any]] = {}
        self._logprobs: list[Any] = []
        self._finish: str | None = None
        self._answered = False
        self._usage: Mapping[str, Any] = {}

    def add(self, chunk: object) -> None:
        for name in ("id", "model", "system_fingerprint", "created", "service_tier"):
            if at(chunk, name) is not None:
                self._head.setdefault(name, at(chunk, name))
        self._usage = mapping(chunk, "usage") or self._usage
        choice = next((one for one in items(chunk, "choices") if one and at(one, "index") in (0, None)), None)
        self._answered = self._answered or choice is not None
        for name in ("content", "refusal", "reasoning_content"):
            piece = text_at(choice, "delta", name)
            if piece is not None:
                self._texts.setdefault(name, []).append(piece)
        for fragment in items(choice, "delta", "tool_calls"):
            self._add_call(fragment)
        self._logprobs += items(choice, "logprobs", "content")
        self._finish = text_at(choice, "finish_reason") or self._finish

    def _add_call(self, fragment: object) -> None:
        index, ident = count(fragment, "index"), at(fragment, "id")
        begun = (
            self._latest.get(index) if index is not None else (self._calls[-1] if self._calls and not ident else None)
        )
        if begun is None or (ident and begun["id"] and ident != begun["id"]):
            # servers that do not number their calls give each its own id
            begun = {"id": ident, "name": None, "arguments": []}
            self._calls.append(begun)
        if index is not None:
            self._latest[index] = begun
        begun["id"] = begun["id"] or ident
        begun["name"] = begun["name"] or text_at(fragment, "function", "name")
        arguments = at(fragment, "function", "arguments")
        if arguments is not None:
            begun["arguments"].append(arguments)

    def body(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: joined(pieces) for name, pieces in self._texts.items()}
        if self._calls:
            message["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": _whole(call)}}
                for call in self._calls
            ]
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self._finish}
        if self._logprobs:
            choice["logprobs"] = {"content": self._logprobs}
        body = {**self._head, "object": "chat.completion", "choices": [choice] if self._answered else []}
        return {**body, "usage": dict(self._usage)} if self._usage else body


def _whole(call: Mapping[str, Any]) -> Any:
    """The arguments of a call: strings are joined, anything else came in one piece."""
    pieces = call["arguments"]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return joined(texts) if len(texts) == len(pieces) else pieces[-1]


def _messages(call: ChatCall) -> Iterator[dict[str, Any]]:
    if call.config.system is not None:
        yield {"role": "system", "content": call.config.system}
    for position, message in enumerate(call.request.messages):
        check_role(message, position)
        encoded: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            encoded["content"] = message.content or None
            encoded["tool_calls"] = [
                {
                    "id": call_id(one, index),
                    "type": "function",
                    "function": {"name": one.name, "arguments": one.arguments},
                }
                for index, one in enumerate(message.tool_calls)
            ]
        if message.role == "tool":
            encoded["tool_call_id"] = message.tool_call_id or "call_0"
        yield encoded


def check_role(message: Message, position: int) -> None:
    """Raise `ConfigError` for a role that no provider accepts."""
    if message.role not in ("system", "user", "assistant", "tool"):
        raise ConfigError(
            Problem(f"messages[{position}].role", f"{message.role!r} cannot be sent; remove this message")
        )


def call_id(call: ToolCall, index: int) -> str:
    return call.id or f"call_{index}"


def _described(name: str, description: str) -> dict[str, str]:
    return {"name": name, "description": description} if description else {"name": name}


def is_closed(schema: object) -> bool:
    """Whether OpenAI accepts the schema as strict: all properties required, and no others allowed."""
    if isinstance(schema, list | tuple):
        return all(map(is_closed, schema))
    if not isinstance(schema, Mapping):
        return True
    if schema.get("type") == "object":
        properties = mapping(schema, "properties")
        if schema.get("additionalProperties") is not False or set(schema.get("required", ())) != set(properties):
            return False
    return all(map(is_closed, schema.values()))


_REASONING = re.compile(r"^o[134](?![a-z0-9])|gpt-[5-9]")


def is_reasoning_model(model: str) -> bool:
    """Whether this is a reasoning model, by its name; those accept fewer parameters."""
    return _REASONING.search(model) is not None


def unsupported_temperature(call: ChatCall) -> Iterator[Note]:
    """OpenAI's reasoning models refuse any temperature but their default, unless reasoning is turned off."""
    params = call.config.model_params
    temperature = params.get("temperature", call.config.temperature)
    effort = params.get("reasoning_effort", mapping(params, "reasoning").get("effort"))
    if temperature not in (None, 1) and effort != "none" and is_reasoning_model(call.model):
        yield temperature_note(call, temperature)


def temperature_note(call: ChatCall, temperature: object) -> Note:
    return Note("temperature", f"models such as {call.model} refuse {temperature!r}; the default was used")


def _content(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return joined(texts_in(content))
    return content if isinstance(content, str) else ""


def _calls(message: Mapping[str, Any]) -> Iterator[ToolCall]:
    for entry in items(message, "tool_calls"):
        inner = mapping(entry, "function") or mapping(entry, "custom")
        yield tool_call(inner.get("name"), inner.get("arguments", inner.get("input")), at(entry, "id"))
    old = mapping(message, "function_call")
    if old and not items(message, "tool_calls"):
        yield tool_call(old.get("name"), old.get("arguments"), None)


def _tokens(body: Mapping[str, Any]) -> Tokens:
    usage = mapping(body, "usage")
    return Tokens(
        count(usage, "prompt_tokens"),
        count(usage, "completion_tokens"),
        count(usage, "prompt_tokens_details", "cached_tokens"),
        count(usage, "prompt_tokens_details", "cache_write_tokens"),
        charged(usage, "cost"),
        another_tier(body.get("service_tier")),
    )


def read_logprobs(entries: Sequence[object]) -> Iterator[TokenLogprob]:
    """Token probabilities, which both of OpenAI's formats encode in the same way."""
    for entry in entries:
        token, logprob = text_at(entry, "token"), number(entry, "logprob")
        if token is None or logprob is None:
            continue
        top = [(text_at(one, "token"), number(one, "logprob")) for one in items(entry, "top_logprobs")]
        yield TokenLogprob(token, logprob, tuple((word, p) for word, p in top if word is not None and p is not None))


if TYPE_CHECKING:
    from gradeline.transport import Event

_FINAL_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_CALLERS_TOOLS = frozenset({"function_call", "custom_tool_call"})
"""Types of calls that the caller must answer; the provider runs the others itself."""


class OpenAIResponsesAdapter(ChatAdapter):
    """Any server with the Responses API; ``base_url`` is the part before ``/responses``."""

    provider: ClassVar[str] = "openai"
    capabilities: ClassVar[Mapping[str, Sequence[str]]] = {
        "seed": ("seed",),
        "temperature": ("temperature",),
        "response_schema": ("text.format", "text", "json_schema"),
        "logprobs": ("top_logprobs", "include", "logprobs"),
    }

    def path(self, call: ChatCall) -> str:  # noqa: ARG002 - the same for every call
        return "/responses"

    def credentials(self, api_key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"}

    def unsupported(self, call: ChatCall) -> Iterator[Note]:
        yield from unsupported_temperature(call)
        if "seed" in call.config.model_params:
            yield Note("seed", "the Responses format does not support it")

    def encode(self, call: ChatCall) -> dict[str, Any]:
        request = call.request
        body: dict[str, Any] = {"model": call.model, "input": list(_input_items(call))}
        if call.config.system is not None:
            body["instructions"] = call.config.system
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": is_closed(tool.parameters),
                }
                for tool in request.tools
            ]
        if call.temperature is not None:
            body["temperature"] = call.temperature
        if call.config.max_tokens is not None:
            body["max_output_tokens"] = call.config.max_tokens
        if call.response_schema is not None:
            schema = {"type": "json_schema", "name": request.schema_name, "schema": call.response_schema}
            body["text"] = {"format": {**schema, "strict": is_closed(call.response_schema)}}
        if call.logprobs is not None:
            body["include"] = ["message.output_text.logprobs"]
            body["top_logprobs"] = call.logprobs
        if request.stream:
            body["stream"] = True
        return with_params(body, self.params(call))

    def assemble(self, events: Sequence[Event]) -> dict[str, Any]:
        done: list[Any] = []
        for event in events:
            if event.data.strip() == END:
                break
            data = parse(event.data)
            kind = text_at(data, "type") or event.event
            report = find_error(data) if kind == "error" else None
            if report is not None:
                raise report.to_error("the stream")
            if kind == "response.output_item.done":
                done.append(at(data, "item"))
            if kind in _FINAL_EVENTS:
                body = dict(mapping(data, "response"))
                # some servers send the items only as they arrive, and not again at the end
                return body if items(body, "output") else {**body, "output": done}
        raise ModelError("truncated", "the stream ended without response.completed")

    def decode(self, body: Mapping[str, Any]) -> DecodedReply:
        status = text_at(body, "status")
        if status not in ("completed", "incomplete", None):
            raise ModelError("bad_response", f"the response is {quote(status)}, not completed")
        if "output" not in body:
            raise ModelError("bad_response", "the response has no output")
        parts = [
            part
            for item in items(body, "output")
            if text_at(item, "type") == "message"
            for part in items(item, "content")
        ]
        called = [item for item in items(body, "output") if part_kind(item) == "call"]
        calls, server_calls = (
            tuple(
                tool_call(called_tool(item), item.get("arguments", item.get("input")), item.get("call_id"))
                for item in called
                if (text_at(item, "type") in _CALLERS_TOOLS) is affects_every_call
            )
            for affects_every_call in (True, False)
        )
        refusals = [text for part in parts if (text := text_at(part, "refusal"))]
        texts = [text for part in parts if (text := text_at(part, "text")) is not None]
        reason = text_at(body, "incomplete_details", "reason") if status == "incomplete" else status
        if status == "incomplete":
            finish = common_stop_reason(reason or "")
        elif refusals:
            finish = "refusal"
        else:
            finish = "tool_calls" if calls else "stop"
        return DecodedReply(
            joined(texts or refusals),
            finish if status else None,
            reason,
            _response_tokens(body),
            calls,
            text_at(body, "model"),
            tuple(read_logprobs([entry for part in parts for entry in items(part, "logprobs")])),
            server_calls,
        )


def _input_items(call: ChatCall) -> Iterator[dict[str, Any]]:
    for position, message in enumerate(call.request.messages):
        check_role(message, position)
        if message.role == "tool":
            call_to = message.tool_call_id or "call_0"
            yield {"type": "function_call_output", "call_id": call_to, "output": message.content}
            continue
        if message.content or not message.tool_calls:
            yield {"role": message.role, "content": message.content}
        for index, one in enumerate(message.tool_calls):
            yield {
                "type": "function_call",
                "call_id": call_id(one, index),
                "name": one.name,
                "arguments": one.arguments,
            }


def _response_tokens(body: Mapping[str, Any]) -> Tokens:
    usage = mapping(body, "usage")
    return Tokens(
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        count(usage, "input_tokens_details", "cached_tokens"),
        count(usage, "input_tokens_details", "cache_write_tokens"),
        charged(usage, "cost"),
        another_tier(body.get("service_tier")),
    )

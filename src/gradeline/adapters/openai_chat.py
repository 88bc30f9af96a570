"""Chat completions, as OpenAI, vLLM, Ollama and most gateways serve them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gradeline.adapters.base import Call, ChatAdapter, Reading, with_params
from gradeline.adapters.chat import Note, TokenLogprob
from gradeline.adapters.failures import ModelError, told_in
from gradeline.adapters.wire import (
    Tokens,
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
from gradeline.model.trajectory import Message, ToolCall

if TYPE_CHECKING:
    from gradeline.transport import Event

OPENAI_HOST = "api.openai.com"
END = "[DONE]"

_FINISHES = {
    "stop": "stop",
    "length": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
}


class OpenAIChatAdapter(ChatAdapter):
    """Any server of OpenAI's chat completions; ``base_url`` ends where ``/chat/completions`` begins."""

    provider: ClassVar[str] = "openai"
    capabilities: ClassVar[Mapping[str, Sequence[str]]] = {
        "seed": ("seed",),
        "temperature": ("temperature",),
        "response_schema": ("response_format", "json_schema"),
        "logprobs": ("logprobs", "top_logprobs"),
        "max_tokens": ("max_tokens",),
        "usage": ("stream_options",),
    }

    def path(self, call: Call) -> str:  # noqa: ARG002 - the same for every call
        return "/chat/completions"

    def credentials(self, api_key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"}

    def forgone(self, call: Call) -> Iterator[Note]:
        yield from forgone_temperature(call)

    def wanted(self, call: Call) -> set[str]:
        wanted = super().wanted(call) - {"max_tokens"}
        if call.request.stream and not call.lacks("usage"):
            wanted.add("usage")
        if call.config.max_tokens is not None and self._limit_name(call) == "max_tokens":
            wanted.add("max_tokens")
        return wanted

    def encode(self, call: Call) -> dict[str, Any]:
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
            if not call.lacks("usage"):
                body["stream_options"] = {"include_usage": True}
        return with_params(body, self.params(call))

    def _limit_name(self, call: Call) -> str:
        """OpenAI has renamed it, and its newer models refuse the old name; other servers may know that one alone."""
        new = self.host == OPENAI_HOST or reasons(call.model) or call.lacks("max_tokens")
        return "max_completion_tokens" if new else "max_tokens"

    def assemble(self, events: Sequence[Event]) -> dict[str, Any]:
        gathered = _Gathered()
        for event in events:
            if event.data.strip() == END:
                return gathered.body()
            chunk = parse(event.data)
            told = told_in(chunk)
            if told is not None:
                raise told.error("the stream")
            gathered.add(chunk)
        raise ModelError("truncated", f"the stream ended without {END}")

    def decode(self, body: Mapping[str, Any]) -> Reading:
        choice = mapping(body, "choices", 0)
        if not choice:
            raise ModelError("bad_response", "the answer has no choice")
        message = mapping(choice, "message")
        calls = tuple(_calls(message))
        refusal = text_at(message, "refusal")
        told = text_at(choice, "finish_reason")
        finish = _FINISHES.get(told, "other") if told else None
        if calls and finish == "stop":
            finish = "tool_calls"
        if refusal:
            finish = "refusal"
        return Reading(
            _content(message) or refusal or "",
            finish,
            told,
            _tokens(body),
            calls,
            text_at(body, "model"),
            tuple(read_logprobs(items(choice, "logprobs", "content"))),
        )


class _Gathered:
    """The chunks of a stream, as the one answer they add up to."""

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
            # servers that do not number their calls give each one an id of its own
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
    """The arguments of a call: texts are put together, anything else came whole."""
    pieces = call["arguments"]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return joined(texts) if len(texts) == len(pieces) else pieces[-1]


def _messages(call: Call) -> Iterator[dict[str, Any]]:
    if call.config.system is not None:
        yield {"role": "system", "content": call.config.system}
    for position, message in enumerate(call.request.messages):
        check_role(message, position)
        told: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            told["content"] = message.content or None
            told["tool_calls"] = [
                {
                    "id": call_id(one, index),
                    "type": "function",
                    "function": {"name": one.name, "arguments": one.arguments},
                }
                for index, one in enumerate(message.tool_calls)
            ]
        if message.role == "tool":
            told["tool_call_id"] = message.tool_call_id or "call_0"
        yield told


def check_role(message: Message, position: int) -> None:
    """`ConfigError` for a message that no provider takes."""
    if message.role not in ("system", "user", "assistant", "tool"):
        raise ConfigError(Problem(f"messages[{position}].role", f"{message.role!r} cannot be sent; leave it out"))


def call_id(call: ToolCall, index: int) -> str:
    return call.id or f"call_{index}"


def _described(name: str, description: str) -> dict[str, str]:
    return {"name": name, "description": description} if description else {"name": name}


def is_closed(schema: object) -> bool:
    """Whether OpenAI would take the schema as strict: all properties required, and no others allowed."""
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


def reasons(model: str) -> bool:
    """Whether the name is that of a model that thinks first, which OpenAI serves with fewer parameters."""
    return _REASONING.search(model) is not None


def forgone_temperature(call: Call) -> Iterator[Note]:
    """OpenAI's reasoning models answer 400 to any temperature but their own, unless reasoning is turned off."""
    params = call.config.model_params
    given = params.get("temperature", call.config.temperature)
    effort = params.get("reasoning_effort", mapping(params, "reasoning").get("effort"))
    if given not in (None, 1) and effort != "none" and reasons(call.model):
        yield Note("temperature", f"models such as {call.model} refuse {given!r}; they were left their own")


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
    """Token probabilities, as both of OpenAI's formats have them."""
    for entry in entries:
        token, logprob = text_at(entry, "token"), number(entry, "logprob")
        if token is None or logprob is None:
            continue
        top = [(text_at(one, "token"), number(one, "logprob")) for one in items(entry, "top_logprobs")]
        yield TokenLogprob(token, logprob, tuple((word, p) for word, p in top if word is not None and p is not None))

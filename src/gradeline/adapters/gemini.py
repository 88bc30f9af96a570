"""Google's generateContent format."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote as percent_encoded

from gradeline.adapters.chat import ChatAdapter, ChatCall, DecodedReply, TokenLogprob, with_params
from gradeline.adapters.costs import Tokens
from gradeline.adapters.errors import ModelError, find_error
from gradeline.adapters.openai import check_role
from gradeline.adapters.wire import at, count, items, joined, mapping, number, parse, text_at, tool_call, total
from gradeline.model.llm import common_stop_reason
from gradeline.model.trajectory import Message, ToolCall

if TYPE_CHECKING:
    from gradeline.transport import Event

VERSION = "v1beta"
"""Unlike ``v1`` it has aliases such as ``gemini-flash-latest``; a base URL may end in another version."""

_REQUEST_PARAMS = frozenset({"safetySettings", "toolConfig", "cachedContent", "labels", "serviceTier"})
"""Parameters of the request itself; all others belong to generationConfig."""
_SPELLINGS = {"top_p": "topP", "top_k": "topK", "stop": "stopSequences", "stop_sequences": "stopSequences"}


class GeminiAdapter(ChatAdapter):
    """Google's models; ``base_url`` is the part before ``/v1beta/models``, or ends with another version."""

    provider: ClassVar[str] = "gemini"
    capabilities: ClassVar[Mapping[str, Sequence[str]]] = {
        "seed": ("seed",),
        "temperature": ("temperature",),
        "response_schema": (
            "responseJsonSchema",
            "response_json_schema",
            "responseSchema",
            "response_schema",
            "responseMimeType",
            "response_mime_type",
            "JSON mode",
        ),
        "logprobs": ("responseLogprobs", "response_logprobs", "logprobs", "Logprobs"),
    }

    def path(self, call: ChatCall) -> str:
        version = "" if re.search(r"/v\d\w*/*$", self.base_url) else f"/{VERSION}"
        verb = "streamGenerateContent?alt=sse" if call.request.stream else "generateContent"
        model = call.model if "/" in call.model else f"models/{call.model}"
        return f"{version}/{percent_encoded(model, safe='/')}:{verb}"

    def credentials(self, api_key: str) -> dict[str, str]:
        return {"x-goog-api-key": api_key}

    def encode(self, call: ChatCall) -> dict[str, Any]:
        params = {_SPELLINGS.get(name, name): value for name, value in self.params(call).items()}
        if isinstance(params.get("stopSequences"), str):
            params["stopSequences"] = [params["stopSequences"]]
        body: dict[str, Any] = {"contents": _contents(call.request.messages)}
        system = [call.config.system or "", *(one.content for one in call.request.messages if one.role == "system")]
        if any(system):
            body["systemInstruction"] = {"parts": [{"text": text} for text in system if text]}
        if call.request.tools:
            declared = [
                {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.parameters}
                for tool in call.request.tools
            ]
            body["tools"] = [{"functionDeclarations": declared}]
        generation = with_params(_generation(call), {k: v for k, v in params.items() if k not in _REQUEST_PARAMS})
        if generation:
            body["generationConfig"] = generation
        return {**body, **{name: value for name, value in params.items() if name in _REQUEST_PARAMS}}

    def assemble(self, events: Sequence[Event]) -> dict[str, Any]:
        body: dict[str, Any] = {}
        parts: list[Any] = []
        chosen: list[Any] = []
        top: list[Any] = []
        candidate: dict[str, Any] = {}
        for event in events:
            chunk = parse(event.data)
            report = find_error(chunk)
            if report is not None:
                raise report.to_error("the stream")
            body |= mapping(chunk)
            found = mapping(chunk, "candidates", 0)
            candidate |= {name: value for name, value in found.items() if value is not None}
            parts += items(found, "content", "parts")
            chosen += items(found, "logprobsResult", "chosenCandidates")
            top += items(found, "logprobsResult", "topCandidates")
        if not body or (candidate and "finishReason" not in candidate):
            raise ModelError("truncated", "the stream ended without a finishReason")
        if candidate:
            candidate["content"] = {"role": "model", "parts": _merged(parts)}
            if chosen:
                candidate["logprobsResult"] = {"chosenCandidates": chosen, "topCandidates": top}
            body["candidates"] = [candidate]
        return body

    def decode(self, body: Mapping[str, Any]) -> DecodedReply:
        candidate = mapping(body, "candidates", 0)
        blocked = text_at(body, "promptFeedback", "blockReason")
        if not candidate and blocked is None:
            raise ModelError("bad_response", "the response has no candidate")
        parts = items(candidate, "content", "parts")
        calls = tuple(_calls(parts))
        reason = text_at(candidate, "finishReason") or blocked
        finish = "content_filter" if not candidate else common_stop_reason(reason) if reason else None
        return DecodedReply(
            joined(text_at(part, "text") or "" for part in parts if at(part, "thought") is not True),
            "tool_calls" if calls and finish == "stop" else finish,
            reason,
            _tokens(mapping(body, "usageMetadata")),
            calls,
            text_at(body, "modelVersion"),
            tuple(_logprobs(mapping(candidate, "logprobsResult"))),
        )


def _generation(call: ChatCall) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if call.temperature is not None:
        settings["temperature"] = call.temperature
    if call.config.max_tokens is not None:
        settings["maxOutputTokens"] = call.config.max_tokens
    if call.response_schema is not None:
        settings |= {"responseMimeType": "application/json", "responseJsonSchema": call.response_schema}
    if call.logprobs is not None:
        settings["responseLogprobs"] = True
        if call.logprobs:
            settings["logprobs"] = call.logprobs
    return settings


def _contents(messages: Sequence[Message]) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for position, message in enumerate(messages):
        check_role(message, position)
        if message.role == "system":
            continue
        role = "user"
        parts: list[dict[str, Any]] = [{"text": message.content}]
        if message.role == "tool":
            parts = [_result(message, names)]
        elif message.role == "assistant":
            role = "model"
            names |= {call.id: call.name for call in message.tool_calls if call.id}
            parts = ([{"text": message.content}] if message.content or not message.tool_calls else []) + [
                {"functionCall": _sent(call)} for call in message.tool_calls
            ]
        if message.role == "tool" and turns and "functionResponse" in turns[-1]["parts"][-1]:
            turns[-1]["parts"] += parts
        else:
            turns.append({"role": role, "parts": parts})
    return turns


def _sent(call: ToolCall) -> dict[str, Any]:
    arguments = call.parsed()
    sent: dict[str, Any] = {
        "name": call.name,
        "args": {"arguments": call.arguments} if arguments is None else arguments,
    }
    return {**sent, "id": call.id} if call.id else sent


def _result(message: Message, names: Mapping[str, str]) -> dict[str, Any]:
    ident = message.tool_call_id
    result: dict[str, Any] = {
        "name": message.name or names.get(ident or "", "tool"),
        "response": {"error" if message.is_error else "result": message.content},
    }
    return {"functionResponse": {**result, "id": ident} if ident else result}


def _merged(parts: Sequence[Any]) -> list[Any]:
    """Adjacent pieces of text become one part; other parts are unchanged."""
    merged: list[Any] = []
    for part in parts:
        last = merged[-1] if merged else None
        plain = {"text"} if at(part, "thought") is None else {"text", "thought"}
        if isinstance(part, dict) and isinstance(last, dict) and set(part) == plain == set(last):
            last["text"] = joined([last["text"], part["text"]])
        else:
            merged.append(dict(part) if isinstance(part, Mapping) else part)
    return merged


def _calls(parts: Sequence[Any]) -> Iterator[ToolCall]:
    for part in parts:
        call = mapping(part, "functionCall")
        if call:
            yield tool_call(call.get("name"), call.get("args"), call.get("id"))


def _tokens(usage: Mapping[str, Any]) -> Tokens:
    """Thinking tokens are reported separately and charged as output."""
    return Tokens(
        total(count(usage, "promptTokenCount"), count(usage, "toolUsePromptTokenCount")),
        total(count(usage, "candidatesTokenCount"), count(usage, "thoughtsTokenCount")),
        count(usage, "cachedContentTokenCount"),
    )


def _logprobs(logprobs: Mapping[str, Any]) -> Iterator[TokenLogprob]:
    for index, chosen in enumerate(items(logprobs, "chosenCandidates")):
        token, logprob = text_at(chosen, "token"), number(chosen, "logProbability")
        if token is None or logprob is None:
            continue
        others = items(logprobs, "topCandidates", index, "candidates")
        top = [(text_at(one, "token"), number(one, "logProbability")) for one in others]
        yield TokenLogprob(token, logprob, tuple((word, p) for word, p in top if word is not None and p is not None))

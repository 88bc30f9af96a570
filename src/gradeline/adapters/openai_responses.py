"""The Responses format of OpenAI and of Open Responses servers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from gradeline.adapters.base import Call, ChatAdapter, Reading, with_params
from gradeline.adapters.chat import Note
from gradeline.adapters.failures import ModelError, told_in
from gradeline.adapters.openai_chat import END, call_id, check_role, forgone_temperature, is_closed, read_logprobs
from gradeline.adapters.wire import (
    Tokens,
    another_tier,
    at,
    charged,
    count,
    items,
    joined,
    mapping,
    parse,
    text_at,
    tool_call,
)
from gradeline.model.text import quote
from gradeline.model.trajectory import called_tool, part_kind

if TYPE_CHECKING:
    from gradeline.transport import Event

_LAST = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_CALLERS_TOOLS = frozenset({"function_call", "custom_tool_call"})
"""Types of calls that the caller has to answer; the provider runs the others itself."""
_CUT_SHORT = {"max_output_tokens": "length", "content_filter": "content_filter"}


class OpenAIResponsesAdapter(ChatAdapter):
    """Any server of the Responses format; ``base_url`` ends where ``/responses`` begins."""

    provider: ClassVar[str] = "openai"
    capabilities: ClassVar[Mapping[str, Sequence[str]]] = {
        "seed": ("seed",),
        "temperature": ("temperature",),
        "response_schema": ("text.format", "text", "json_schema"),
        "logprobs": ("top_logprobs", "include", "logprobs"),
    }

    def path(self, call: Call) -> str:  # noqa: ARG002 - the same for every call
        return "/responses"

    def credentials(self, api_key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"}

    def forgone(self, call: Call) -> Iterator[Note]:
        yield from forgone_temperature(call)
        if "seed" in call.config.model_params:
            yield Note("seed", "the Responses format has none")

    def encode(self, call: Call) -> dict[str, Any]:
        request = call.request
        body: dict[str, Any] = {"model": call.model, "input": list(_items(call))}
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
            told = told_in(data) if kind == "error" else None
            if told is not None:
                raise told.error("the stream")
            if kind == "response.output_item.done":
                done.append(at(data, "item"))
            if kind in _LAST:
                body = dict(mapping(data, "response"))
                # some servers tell the items as they come and not once more at the end
                return body if items(body, "output") else {**body, "output": done}
        raise ModelError("truncated", "the stream ended without response.completed")

    def decode(self, body: Mapping[str, Any]) -> Reading:
        status = text_at(body, "status")
        if status not in ("completed", "incomplete", None):
            raise ModelError("bad_response", f"the response is {quote(status)}, not completed")
        if "output" not in body:
            raise ModelError("bad_response", "the answer has no output")
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
                if (text_at(item, "type") in _CALLERS_TOOLS) is of_caller
            )
            for of_caller in (True, False)
        )
        refusals = [text for part in parts if (text := text_at(part, "refusal"))]
        texts = [text for part in parts if (text := text_at(part, "text")) is not None]
        told = text_at(body, "incomplete_details", "reason") if status == "incomplete" else status
        if status == "incomplete":
            finish = _CUT_SHORT.get(told or "", "other")
        elif refusals:
            finish = "refusal"
        else:
            finish = "tool_calls" if calls else "stop"
        return Reading(
            joined(texts or refusals),
            finish if status else None,
            told,
            _tokens(body),
            calls,
            text_at(body, "model"),
            tuple(read_logprobs([entry for part in parts for entry in items(part, "logprobs")])),
            server_calls,
        )


def _items(call: Call) -> Iterator[dict[str, Any]]:
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


def _tokens(body: Mapping[str, Any]) -> Tokens:
    usage = mapping(body, "usage")
    return Tokens(
        count(usage, "input_tokens"),
        count(usage, "output_tokens"),
        count(usage, "input_tokens_details", "cached_tokens"),
        count(usage, "input_tokens_details", "cache_write_tokens"),
        charged(usage, "cost"),
        another_tier(body.get("service_tier")),
    )

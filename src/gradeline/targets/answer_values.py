"""Parse messages and tool calls in the JSON of an agent's answer, and search it by JMESPath."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from gradeline.errors import AgentError, NeedsIsolationError, UngradableError
from gradeline.extractors.base import compact_json
from gradeline.model import Message, ToolCall, clean_text
from gradeline.model.text import quote
from gradeline.model.trajectory import Role, called_tool, part_kind
from gradeline.parsing.jmespath import JmesPath
from gradeline.usercode import pools

_ROLES: Mapping[str, Role] = {
    **{role: role for role in ("system", "user", "assistant", "tool", "reasoning", "event")},
    "developer": "system",
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
    "agent": "assistant",
    "function": "tool",
}


def bad_response(reason: str) -> AgentError:
    return AgentError("bad_response", reason)


def value_at(data: object, key: str) -> Any:
    return data.get(key) if isinstance(data, Mapping) else None


def json_string(value: object) -> str:
    try:
        return compact_json(value)
    except UngradableError as error:
        raise bad_response(str(error)) from None


def content_text(value: object) -> str:
    """The text of a message's content: a string, parts with text, or any data as JSON."""
    if value is None:
        return ""
    if isinstance(value, list):
        parts = [part if isinstance(part, str) else value_at(part, "text") for part in value]
        return clean_text("".join(part for part in parts if isinstance(part, str))).text
    return clean_text(value if isinstance(value, str) else json_string(value)).text


def call_entries(value: object) -> list[dict[str, Any]] | None:
    """Reported tool calls in one form; arguments are fragments of text. None if nothing is reported."""
    if value is None:
        return None
    if not isinstance(value, list):
        raise bad_response(f"the tool calls are not a list: {quote(value)}")
    entries: list[dict[str, Any]] = []
    for item in value:
        inner = value_at(item, "function")
        call = inner if isinstance(inner, Mapping) else item
        if not isinstance(call, Mapping):
            raise bad_response(f"a tool call is not a mapping: {quote(item)}")
        arguments = next((call[key] for key in ("arguments", "args", "input") if call.get(key) is not None), None)
        pieces = [] if arguments is None else [arguments if isinstance(arguments, str) else json_string(arguments)]
        # items of OpenAI's Responses have both; results reference call_id
        ident = next((item[key] for key in ("call_id", "toolCallId", "id") if value_at(item, key) is not None), None)
        entries.append({"name": called_tool(call), "arguments": pieces, "id": ident, "index": item.get("index")})
    return entries


def tool_calls(entries: Iterable[Mapping[str, Any]] | None) -> tuple[ToolCall, ...] | None:
    """The calls of `call_entries`; None if nothing is reported."""
    if entries is None:
        return None
    calls = []
    for position, entry in enumerate(entries):
        name = entry["name"]
        if not isinstance(name, str) or not name:
            raise bad_response(f"tool call {position} has no name")
        arguments = clean_text("".join(entry["arguments"]) or "{}").text
        calls.append(ToolCall(clean_text(name).text, arguments, _text(entry["id"])))
    return tuple(calls)


def read_messages(value: object) -> tuple[Message, ...] | None:
    """Parse a list of messages: OpenAI's chat messages or Responses items, or Anthropic's content blocks."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise bad_response(f"the trajectory is not a list of messages: {quote(value)}")
    return tuple(message for item in value for message in _read_item(item))


def _read_item(item: Mapping[str, Any]) -> Iterator[Message]:
    content, kind = item.get("content"), None if "role" in item else part_kind(item)
    if kind == "call":
        yield Message("assistant", tool_calls=tool_calls(call_entries([item])) or ())
    elif kind == "result":
        yield _message("tool", item, item.get("output", content), item.get("call_id"))
    elif content is None and "parts" in item:
        raise bad_response(f"a message of the trajectory has parts but no content: {quote(item)}; use chat messages")
    elif not isinstance(content, list):
        yield _message(_role(item), item, content, item.get("tool_call_id"))
    else:
        results = [part for part in content if part_kind(part) == "result"]
        for part in results:
            ident = next((part[key] for key in ("tool_use_id", "toolCallId") if part.get(key) is not None), None)
            yield _message("tool", part, part.get("content", part.get("output")), ident)
        if len(results) < len(content) or not content:
            used = [part for part in content if part_kind(part) == "call"]
            yield _message(_role(item), item, content, item.get("tool_call_id"), used)


def _role(item: Mapping[str, Any]) -> Role:
    return _ROLES.get(str(item.get("role") or item.get("type") or "").lower(), "event")


def _message(
    role: Role, item: Mapping[str, Any], content: object, ident: object, used: Iterable[object] = ()
) -> Message:
    named = next((item[key] for key in ("tool_calls", "toolCalls") if item.get(key) is not None), None)
    older = [item["function_call"]] if item.get("function_call") else []
    calls = (*(call_entries(named) or ()), *(call_entries([*older, *used]) or ()))
    name = item.get("name")
    return Message(
        role,
        content_text(content),
        tool_calls(calls) or (),
        _text(ident),
        clean_text(name).text if isinstance(name, str) else None,
        item.get("is_error") is True,
    )


def _text(value: object) -> str | None:
    return None if value is None else clean_text(str(value)).text


T = TypeVar("T")

MAX_SEARCHES = 20
"""Maximum searches of one answer in workers; each event of a stream is a search of its own."""

_found: ContextVar[Iterator[Any]] = ContextVar("found_by_workers")
"""Results of workers for the searches of this answer that need one, in order."""


class _PendingSearchError(NeedsIsolationError):
    """A worker must search the answer before it can be read."""

    def __init__(self, path: JmesPath, data: object) -> None:
        super().__init__(f"the JMESPath {path} needs a worker process")
        self.path = path
        self.data = data


def search(path: JmesPath | None, data: object) -> Any:
    """The value at the path, or None; call it within `with_workers`."""
    if path is None:
        return None
    try:
        return path.search(data)
    except UngradableError as error:
        raise bad_response(str(error)) from None
    except NeedsIsolationError:
        for value in _found.get(iter(())):
            return value
        raise _PendingSearchError(path, data) from None


async def with_workers(read: Callable[[], T]) -> T:
    """Call ``read`` with workers for the searches that need one.

    `AgentError` of type ``too_large`` for a search that exceeds the limits of a worker.
    """
    try:
        return read()
    except _PendingSearchError as error:
        pending = error
    found: list[Any] = []
    while len(found) < MAX_SEARCHES:
        try:
            found.append(await pools.ISOLATED.search(str(pending.path), pending.data))
        except pools.IsolatedError as error:
            reason = f"the JMESPath {pending.path} cannot be searched in this response: {error} ({error.type})"
            raise AgentError("too_large", reason) from None
        token = _found.set(iter(found))
        try:
            return read()
        except _PendingSearchError as error:
            pending = error
        finally:
            _found.reset(token)
    raise AgentError("too_large", f"more than {MAX_SEARCHES} searches of this response may each take too long")

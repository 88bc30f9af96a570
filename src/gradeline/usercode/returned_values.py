"""What a target's function may return, read as turns of a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard, get_args

import msgspec

from gradeline.errors import AgentError, DataError, closest_match
from gradeline.model import Document, Message, Response, ToolCall, Trajectory, Usage, clean_data, clean_text, quote
from gradeline.model.documents import read_documents
from gradeline.model.text import is_clean
from gradeline.model.trajectory import Role, Turn, called_tool, last_answer, part_kind, with_answer

_TEXT_KEYS = ("text", "output", "content")
_DOCUMENT_KEYS = ("documents", "context")
_DICT_KEYS = (
    *_TEXT_KEYS,
    "messages",
    "trajectory",
    "tool_calls",
    *_DOCUMENT_KEYS,
    "usage",
    "latency_ms",
    "stop_reason",
    "error",
)
_TRAJECTORY_KEYS = frozenset({"turns", "memory", "tools_known"})
_MESSAGE_KEYS = ("role", "content", "tool_calls", "tool_call_id", "name", "is_error")
_ROLES: dict[str, Role] = {role: role for role in get_args(Role)} | {"developer": "system", "function": "tool"}
_USAGE_KEYS = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
    "cached_tokens": ("cached_tokens",),
    "cost": ("cost",),
}
_REMEDY = "return the response's text (str), a dict, a Response or a list of messages"


class TurnRequest(NamedTuple):
    """The call whose returned value is read."""

    reference: str
    inputs: Sequence[str]
    """The user's texts of the whole case."""
    number: int
    """The turn of the call, from 0."""
    messages: Sequence[Mapping[str, Any]]
    """The conversation so far, in the form that the function gets it."""
    earlier: Sequence[str]
    """The agent's texts of the earlier turns."""
    by_turn: bool
    """True if the function is called for each turn; otherwise it must return all turns."""
    sees_all: bool
    """True if the function can see the later turns."""

    @property
    def turns(self) -> int:
        return len(self.inputs)


class AgentTurn(NamedTuple):
    """The agent's text and messages in one turn."""

    text: str
    messages: Turn = ()
    tools_known: bool = False
    """True if the messages contain all tool calls; a plain string does not report them."""
    history: Sequence[Mapping[str, Any]] | None = None
    """The messages as the function returned them, for the calls of later turns."""

    @property
    def steps(self) -> Turn:
        """Its messages, with the text as the assistant's last one."""
        return with_answer(self.messages, self.text)


class ReturnedTurns(NamedTuple):
    """What one call returned: one turn, or all turns of the case."""

    turns: Sequence[AgentTurn]
    usage: Usage | None = None
    latency_ms: float | None = None
    memory: dict[str, str] | None = None
    cleaned: bool = False
    documents: tuple[Document, ...] | None = None
    stop_reason: str | None = None


def read_returned(value: object, request: TurnRequest) -> ReturnedTurns:
    """The turns that a function returned, or `AgentError`."""
    if value is None:
        value = ""
    if isinstance(value, str):
        if not request.by_turn and request.turns > 1:
            raise _wrong_count(1, "answer", request)
        text, cleaned = (value, False) if is_clean(value) else clean_text(value)
        return ReturnedTurns([AgentTurn(text)], cleaned=cleaned)
    if isinstance(value, Response):
        return _from_response(value, request)
    if isinstance(value, Message) or (isinstance(value, Mapping) and "role" in value) or _is_dumpable(value):
        value = [value]
    if isinstance(value, Mapping):
        return _from_dict(value, request)
    if isinstance(value, list | tuple):
        return ReturnedTurns(_from_list(value, request))
    hint = "; join its pieces" if hasattr(value, "__next__") or hasattr(value, "__anext__") else ""
    raise _refusal(request, f"returned {quote(value)} ({type(value).__name__}){hint}; {_REMEDY}")


def stored_response(value: Response, reference: str) -> Response:
    """The response that a function returned, with all fields checked and all strings made storable."""
    try:
        data = clean_data(msgspec.to_builtins(msgspec.structs.replace(value, documents=None)), "Response")
        response = msgspec.convert(data, Response)
    except (DataError, TypeError, ValueError, RecursionError) as error:
        raise bad_response(f"{reference} returned a Response that cannot be stored: {error}") from None
    if response.usage is not None:
        _checked_usage(response.usage, reference)
    cleaned = value.cleaned or response.text != value.text
    if value.documents is not None:
        response = msgspec.structs.replace(response, documents=_documents(value.documents, reference))
    return msgspec.structs.replace(response, cleaned=True) if cleaned else response


def _documents(value: object, reference: str) -> tuple[Document, ...] | None:
    try:
        return read_documents(value)
    except AgentError as error:
        raise AgentError(error.type, f"{reference} returned documents that cannot be read: {error}") from None


def bad_response(message: str) -> AgentError:
    return AgentError("bad_response", message)


def _refusal(request: TurnRequest, reason: str) -> AgentError:
    return bad_response(f"{request.reference} {reason}")


def _wrong_count(count: int, noun: str, request: TurnRequest) -> AgentError:
    found = f"returned {count:,} {noun}{'' if count == 1 else 's'}"
    if request.by_turn or request.turns == 1:
        turn = f" at turn {request.number + 1} of {request.turns}" if request.turns > 1 else " for 1 user turn"
        all_turns = f", or all {request.turns} turns at the first call" if request.turns > 1 else ""
        return _refusal(request, f"{found}{turn}; return this turn's response{all_turns}")
    return _refusal(
        request,
        f"{found} for {request.turns} user turns; it takes the whole sample, so it is called once and must return a"
        f" list of {request.turns} responses; to be called once per turn, add a parameter named messages or input",
    )


def _expected_turns(turns: Sequence[AgentTurn], noun: str, request: TurnRequest) -> Sequence[AgentTurn]:
    """These turns, if they are the requested one or all turns of the case; else `AgentError`."""
    count = len(turns)
    if count == request.turns and request.number == 0:
        return turns
    if count == 1 and request.by_turn:
        return turns
    raise _wrong_count(count, noun, request)


def _from_response(value: Response, request: TurnRequest) -> ReturnedTurns:
    response = stored_response(value, request.reference)
    if response.error is not None:
        raise AgentError(response.error.type, response.error.message, traceback=response.error.traceback)
    text, steps = response.text or "", response.trajectory
    if steps is None:
        turns: Sequence[AgentTurn] = _expected_turns([AgentTurn(text)], "answer", request)
    else:
        turns = _of_trajectory(steps, text, request)
    memory = None if steps is None else steps.memory
    return ReturnedTurns(
        turns,
        response.usage,
        response.latency_ms,
        memory,
        response.cleaned,
        response.documents,
        response.stop_reason,
    )


def _of_trajectory(steps: Trajectory, text: str, request: TurnRequest) -> Sequence[AgentTurn]:
    """The turns of a trajectory: the current one, all of the case, or the conversation so far, which ends with it."""
    found = steps.turns or ((),)
    turns = [AgentTurn(last_answer(turn), turn, steps.tools_known) for turn in found]
    last = turns[-1]
    turns[-1] = last._replace(text=text or last.text)
    if len(turns) == request.number + 1 > 1:
        earlier = [turn.text for turn in turns[:-1]]
        if earlier != list(request.earlier):
            raise _refusal(
                request,
                f"returned a trajectory of {len(turns)} turns at turn {request.number + 1} of {request.turns} whose"
                " earlier turns differ from those it returned before; return only this turn",
            )
        return turns[-1:]
    return _expected_turns(turns, "turn", request)


def _from_dict(value: Mapping[Any, Any], request: TurnRequest) -> ReturnedTurns:
    unknown = next((key for key in value if key not in _DICT_KEYS), None)
    if unknown is not None:
        near = closest_match(str(unknown), _DICT_KEYS)
        hint = f"did you mean {near!r}?" if near else f"use one of {', '.join(_DICT_KEYS)}"
        raise _refusal(request, f"returned a dict with the unknown key {quote(unknown)}; {hint}")
    data = {key: item for key, item in value.items() if item is not None}
    if data.get("error"):
        raise AgentError("agent_error", f"{request.reference} reported: {_error_text(data['error'])}")
    texts = [key for key in _TEXT_KEYS if key in data]
    steps = [key for key in ("messages", "trajectory", "tool_calls") if key in data]
    found = [key for key in _DOCUMENT_KEYS if key in data]
    for several in (texts, steps, found):
        if len(several) > 1:
            raise _refusal(request, f"returned a dict with both {several[0]!r} and {several[1]!r}; keep one of them")
    if not texts and not steps:
        raise _refusal(request, f"returned a dict without a response: {quote(dict(value))}; put the text under 'text'")
    text = data[texts[0]] if texts else ""
    if not isinstance(text, str):
        raise _refusal(request, f"returned a dict whose {texts[0]!r} is {quote(text)}; make it a str")
    text, cleaned = clean_text(text)
    usage, latency_ms = _usage(data.get("usage"), request), _latency(data.get("latency_ms"), request)
    turns: Sequence[AgentTurn]
    memory: dict[str, str] | None = None
    if not steps:
        turns = _expected_turns([AgentTurn(text)], "answer", request)
    elif steps == ["tool_calls"]:
        calls = _calls(data["tool_calls"], request)
        messages = (Message("assistant", text, calls),) if text or calls else ()
        turns = _expected_turns([AgentTurn(text, messages, tools_known=True)], "turn", request)
    else:
        turns, memory = _of_steps(data[steps[0]], steps[0], text, request)
    documents = _documents(data[found[0]], request.reference) if found else None
    stopped = _stop_reason(data.get("stop_reason"), request)
    return ReturnedTurns(turns, usage, latency_ms, memory, cleaned, documents, stopped)


def _stop_reason(value: object, request: TurnRequest) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _refusal(request, f"returned a dict whose 'stop_reason' is {quote(value)}; make it a str")
    return clean_text(value).text if value else None


def _of_steps(
    value: object, key: str, text: str, request: TurnRequest
) -> tuple[Sequence[AgentTurn], dict[str, str] | None]:
    """The turns under ``messages`` or ``trajectory``, and the agent's memory where they come with it."""
    if isinstance(value, Trajectory):
        checked = stored_response(Response(text=text, trajectory=value), request.reference)
        return _of_trajectory(checked.steps, text, request), checked.steps.memory
    trajectory: Mapping[Any, Any] = {"turns": value}
    if isinstance(value, Mapping) and "turns" in value and value.keys() <= _TRAJECTORY_KEYS:
        trajectory = value
    listed = trajectory["turns"]
    if not isinstance(listed, list | tuple):
        raise _refusal(request, f"returned a dict whose {key!r} is {quote(value)}; make it a list of messages")
    turns = list(_from_list(listed, request))
    if trajectory.get("tools_known") is False:
        turns = [turn._replace(tools_known=False) for turn in turns]
    if text:
        turns[-1] = turns[-1]._replace(text=text, history=None)
    return turns, _memory(trajectory.get("memory"), request)


def _memory(value: object, request: TurnRequest) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for text in (*value, *value.values())):
        raise _refusal(request, f"returned a memory that is not a dict of labels and strings: {quote(value)}")
    return {clean_text(label).text: clean_text(text).text for label, text in value.items()}


def _error_text(error: object) -> str:
    if isinstance(error, Mapping) and isinstance(error.get("message"), str):
        return clean_text(str(error["message"])).text
    return clean_text(error).text if isinstance(error, str) else quote(error, 1000)


def _from_list(value: Sequence[object], request: TurnRequest) -> Sequence[AgentTurn]:
    if value and all(isinstance(item, str) for item in value):
        return _expected_turns([AgentTurn(clean_text(str(item)).text) for item in value], "answer", request)
    if value and all(isinstance(item, list | tuple) for item in value):
        parts = [_MessageList.of(turn, request) for turn in value if isinstance(turn, list | tuple)]
        return _expected_turns([part.turn for part in parts], "turn", request)
    listed = _MessageList.of(value, request)
    if request.turns > 1 and request.number == 0:
        whole = listed.in_turns(request)
        if whole is not None:
            return [part.turn for part in whole]
    if not request.by_turn and request.turns > 1:
        raise _refusal(
            request,
            f"returned {len(value)} messages that are not the {request.turns} turns of the conversation; it takes the"
            f" whole sample, so it is called once: return {request.turns} lists of messages, one per user turn",
        )
    return [listed.this_turn(request).turn]


class _MessageList(NamedTuple):
    """The messages that a function returned, and their original form."""

    messages: tuple[Message, ...]
    history: tuple[Mapping[str, Any], ...]
    complete: bool
    """False if one is a plain string, which leaves the tool calls unknown."""

    @classmethod
    def of(cls, items: Iterable[object], request: TurnRequest) -> _MessageList:
        messages: list[Message] = []
        history: list[Mapping[str, Any]] = []
        complete = True
        for item in items:
            complete = complete and not isinstance(item, str)
            messages += _messages(item, request)
            history.append(_as_dict(item, request))
        if len(history) != len(messages):  # a message of several tool results
            history = [openai_message(message) for message in messages]
        return cls(tuple(messages), tuple(history), complete)

    @property
    def turn(self) -> AgentTurn:
        return AgentTurn(last_answer(self.messages), self.messages, self.complete, self.history)

    def part(self, start: int, end: int | None = None) -> _MessageList:
        return _MessageList(self.messages[start:end], self.history[start:end], self.complete)

    def in_turns(self, request: TurnRequest) -> list[_MessageList] | None:
        """All turns of the case, if these messages are those; else None.

        The user's messages separate turns. Without those, each assistant message without tool calls ends a turn, but
        only for a function that sees the later turns: another one may answer in several messages. For a function that
        sees them and is called for each turn, the list is ambiguous and an error.
        """
        starts = [index for index, message in enumerate(self.messages) if message.role == "user"]
        if starts:
            texts = [self.messages[index].content for index in starts]
            whole = texts == list(request.inputs) or (not request.by_turn and len(texts) == request.turns)
            bounds = [*starts[1:], len(self.messages)]
            return [self.part(start + 1, end) for start, end in zip(starts, bounds, strict=True)] if whole else None
        ends = [
            index + 1
            for index, message in enumerate(self.messages)
            if message.role == "assistant" and not message.tool_calls
        ]
        if not request.sees_all or len(ends) != request.turns or ends[-1] != len(self.messages):
            return None
        if request.by_turn:
            raise _refusal(
                request,
                f"returned {len(ends)} responses in one list at turn 1 of {request.turns}, which may be this turn or"
                " all turns; return [[message, ...]] for this turn, or one list of messages per turn for all",
            )
        return [self.part(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    def this_turn(self, request: TurnRequest) -> _MessageList:
        """The messages of the current turn, without the earlier conversation where that was returned too."""
        earlier = [(message.get("role"), _content(message.get("content"))) for message in request.messages]
        if [(one.role, one.content) for one in self.messages[: len(earlier)]] == earlier:
            return self.part(len(earlier))
        users = [index for index, message in enumerate(self.messages) if message.role == "user"]
        if not users:
            return self
        current = request.inputs[request.number]
        same = [index for index in users if self.messages[index].content == current]
        if same:
            return self.part(same[-1] + 1)
        if len(users) in (1, request.number + 1):
            return self.part(users[-1] + 1)
        raise _refusal(
            request,
            f"returned {len(users)} user messages, none of which is this turn's {quote(current)}; return only the"
            " messages that follow it",
        )


def _messages(item: object, request: TurnRequest) -> list[Message]:
    if isinstance(item, str):
        return [Message("assistant", clean_text(item).text)]
    if isinstance(item, Message):
        steps = stored_response(Response(text="", trajectory=Trajectory(((item,),))), request.reference).steps
        return list(steps.messages())
    data = _as_dict(item, request)
    kind = None if "role" in data else part_kind(data)
    if kind == "call":
        return [Message("assistant", "", _calls([data], request))]
    if kind == "result":
        return [_result(data)]
    misspelt = next((key for key in data if key not in _MESSAGE_KEYS and closest_match(str(key), _MESSAGE_KEYS)), None)
    if misspelt is not None:
        near = closest_match(str(misspelt), _MESSAGE_KEYS)
        raise _refusal(request, f"returned a message with the unknown key {quote(misspelt)}; did you mean {near!r}?")
    role = _ROLES.get(str(data.get("role", "assistant")))
    if role is None:
        near = closest_match(str(data["role"]), _ROLES)
        hint = f"did you mean {near!r}?" if near else f"use one of {', '.join(_ROLES)}"
        raise _refusal(request, f"returned a message with the unknown role {quote(data['role'])}; {hint}")
    content, call_id, name = data.get("content"), data.get("tool_call_id"), data.get("name")
    if content is None and "parts" in data:
        raise _refusal(
            request, f"returned a message with parts and no content: {quote(data)}; put them under 'content'"
        )
    calls = _calls(data.get("tool_calls") or [], request)
    results: list[Message] = []
    for part in content if isinstance(content, list | tuple) else ():
        kind = part_kind(part)
        if kind == "call":
            calls += _calls([part], request)
        elif kind == "result":
            results.append(_result(part))
    text = _content(content)
    if results and not text:
        return results
    own = Message(role, text, calls, _optional(call_id), _optional(name), data.get("is_error") is True)
    return [*results, own]


def _result(part: Mapping[str, Any]) -> Message:
    """The result of a tool call, in the format of Anthropic, OpenAI's Responses or the AI SDK."""
    ident = next((part[key] for key in ("tool_use_id", "call_id", "toolCallId") if part.get(key) is not None), None)
    content = _content(part.get("content", part.get("output")))
    return Message("tool", content, (), _optional(ident), None, bool(part.get("is_error")))


def _as_dict(item: object, request: TurnRequest) -> dict[str, Any]:
    """A copy of a message in the function's own form, which it gets back at later turns."""
    if isinstance(item, str):
        return {"role": "assistant", "content": item}
    if isinstance(item, Message):
        return openai_message(item)
    data = item.model_dump(exclude_none=True) if _is_dumpable(item) else item
    if not isinstance(data, Mapping):
        raise _refusal(
            request, f"returned a list with {quote(item)} ({type(item).__name__}); a message is a dict or a Message"
        )
    try:
        copied: dict[str, Any] = clean_data(data, "message")
    except DataError as error:
        raise _refusal(request, f"returned a message that cannot be stored: {error}") from None
    return copied


class _Dumpable(Protocol):
    def model_dump(self, *, exclude_none: bool = False) -> dict[str, Any]: ...


def _is_dumpable(value: object) -> TypeGuard[_Dumpable]:
    """True for a pydantic object of a client library, which has a dict form."""
    return not isinstance(value, type) and callable(getattr(value, "model_dump", None))


def openai_message(message: Message) -> dict[str, Any]:
    """A message in the format of OpenAI's chat API."""
    data: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        data["name"] = message.name
    return data


def _content(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return clean_text(value).text
    if isinstance(value, list | tuple):
        parts = [
            part if isinstance(part, str) else part.get("text") for part in value if isinstance(part, str | Mapping)
        ]
        return clean_text("".join(part for part in parts if isinstance(part, str))).text
    return _json(value)


def _calls(value: object, request: TurnRequest) -> tuple[ToolCall, ...]:
    if not isinstance(value, list | tuple):
        raise _refusal(request, f"returned tool calls that are not a list: {quote(value)}")
    return tuple(_call(item, request) for item in value)


def _call(item: object, request: TurnRequest) -> ToolCall:
    if isinstance(item, ToolCall):
        item = {"name": item.name, "arguments": item.arguments, "id": item.id}
    elif _is_dumpable(item):
        item = item.model_dump()
    inner = item.get("function") if isinstance(item, Mapping) else None
    call = inner if isinstance(inner, Mapping) else item
    if not isinstance(item, Mapping) or not isinstance(call, Mapping):
        raise _refusal(request, f"returned a tool call that is not a dict: {quote(item)}")
    name = called_tool(call)
    if not isinstance(name, str) or not name:
        raise _refusal(request, f"returned a tool call without a name: {quote(dict(item))}")
    arguments = next((call[key] for key in ("arguments", "args", "input") if call.get(key) is not None), "{}")
    text = arguments if isinstance(arguments, str) else _json(arguments)
    ident = next((item[key] for key in ("call_id", "toolCallId", "id") if item.get(key) is not None), None)
    return ToolCall(clean_text(name).text, clean_text(text).text, _optional(ident))


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(clean_data(value)).decode()
    except DataError as error:
        raise bad_response(f"the target returned data that cannot be stored: {error}") from None


def _optional(value: object) -> str | None:
    return None if value is None else clean_text(str(value)).text


def _usage(value: object, request: TurnRequest) -> Usage | None:
    if value is None:
        return None
    if isinstance(value, Usage):
        value = msgspec.to_builtins(value)
    elif _is_dumpable(value):
        value = value.model_dump()
    if not isinstance(value, Mapping):
        raise _refusal(request, f"returned a usage that is not a dict: {quote(value)}")
    known = {
        field: next((value[key] for key in keys if value.get(key) is not None), None)
        for field, keys in _USAGE_KEYS.items()
    }
    try:
        usage = msgspec.convert(known, Usage)
    except ValueError:
        raise _refusal(request, f"returned a usage with a value that is not a number: {quote(known)}") from None
    return _checked_usage(usage, request.reference)


def _checked_usage(usage: Usage, reference: str) -> Usage:
    """The usage, if all numbers are finite and not negative: others would break totals and budgets."""
    for name in usage.__struct_fields__:
        value = getattr(usage, name)
        if value is not None and not 0 <= value < float("inf"):
            raise bad_response(f"{reference} returned usage.{name} {value!r}; it must be a finite number, at least 0")
    return usage


def _latency(value: object, request: TurnRequest) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise _refusal(request, f"returned a latency_ms that is not a number of milliseconds: {quote(value)}")
    return float(value)

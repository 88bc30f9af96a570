"""Letta's messages: the classes that suite code uses, and conversions to and from a trajectory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from itertools import count
from typing import Any, Literal, TypedDict

from gradeline.errors import DataError
from gradeline.model import Message, Trajectory, quote
from gradeline.model.trajectory import Role
from gradeline.model.trajectory import ToolCall as Call

UNKNOWN_DATE = datetime(1970, 1, 1, tzinfo=UTC)
"""A trajectory has no dates, but suite code may sort by them or format them."""
_UNKNOWN_DATE_TEXT = UNKNOWN_DATE.isoformat()


class Model:
    """Stores keyword arguments as attributes; missing fields have their defaults, unknown ones are stored too."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def model_dump(self, *, mode: str = "python", exclude_none: bool = False) -> dict[str, Any]:
        """All fields as plain data; ``mode="json"`` writes dates as text."""
        declared = (name for base in reversed(type(self).__mro__) for name in vars(base).get("__annotations__", ()))
        dumped = {name: _plain(getattr(self, name), mode, exclude_none) for name in [*declared, *vars(self)]}
        return {name: value for name, value in dumped.items() if value is not None} if exclude_none else dumped

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and type(self) is type(other) and self.model_dump() == other.model_dump()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class TextContent(Model):
    """A part of a message's content."""

    text: str = ""
    type: str = "text"


class LettaToolCall(Model):
    """A tool call in letta's form; ``arguments`` is JSON text."""

    name: str = ""
    arguments: str = "{}"
    tool_call_id: str | None = None


class LettaMessage(Model):
    """Fields of all messages."""

    id: str = ""
    date: datetime = UNKNOWN_DATE
    message_type: str = "message"
    name: str | None = None
    otid: str | None = None
    run_id: str | None = None
    sender_id: str | None = None
    seq_id: int | None = None
    step_id: str | None = None


class _Spoken(LettaMessage):
    content: str | list[TextContent] = ""

    def __init__(self, **fields: Any) -> None:
        if isinstance(fields.get("content"), list):
            fields["content"] = [_as(TextContent, part) for part in fields["content"]]
        super().__init__(**fields)


class SystemMessage(_Spoken):
    message_type = "system_message"


class UserMessage(_Spoken):
    message_type = "user_message"


class AssistantMessage(_Spoken):
    message_type = "assistant_message"


class ReasoningMessage(LettaMessage):
    message_type = "reasoning_message"
    reasoning: str = ""
    source: str | None = None
    signature: str | None = None


class HiddenReasoningMessage(LettaMessage):
    message_type = "hidden_reasoning_message"
    state: str = "omitted"
    hidden_reasoning: str | None = None


class _Calling(LettaMessage):
    """Has its calls in both fields, because client versions differ: ``tool_call`` is the first of ``tool_calls``."""

    tool_call: LettaToolCall | None = None
    tool_calls: list[LettaToolCall] | None = None

    def __init__(self, **fields: Any) -> None:
        if fields.get("tool_calls"):
            fields["tool_calls"] = [_as(LettaToolCall, call) for call in fields["tool_calls"]]
            fields.setdefault("tool_call", fields["tool_calls"][0])
        if fields.get("tool_call") is not None:
            fields["tool_call"] = _as(LettaToolCall, fields["tool_call"])
        super().__init__(**fields)


class ToolCallMessage(_Calling):
    message_type = "tool_call_message"


class ApprovalRequestMessage(_Calling):
    message_type = "approval_request_message"


class ApprovalResponseMessage(LettaMessage):
    message_type = "approval_response_message"
    approve: bool | None = None
    approval_request_id: str | None = None
    approvals: list[Any] | None = None
    reason: str | None = None


class ToolReturnMessage(LettaMessage):
    message_type = "tool_return_message"
    tool_return: str = ""
    tool_call_id: str | None = None
    status: Literal["success", "error"] = "success"
    stdout: list[str] | None = None
    stderr: list[str] | None = None


class SummaryMessage(LettaMessage):
    message_type = "summary_message"
    summary: str = ""


class EventMessage(LettaMessage):
    message_type = "event_message"
    event_type: str = "compaction"
    """The only value that the real client knows."""
    event_data: Mapping[str, Any] = {}


LettaMessageUnion = (
    SystemMessage
    | UserMessage
    | AssistantMessage
    | ReasoningMessage
    | HiddenReasoningMessage
    | ToolCallMessage
    | ToolReturnMessage
    | ApprovalRequestMessage
    | ApprovalResponseMessage
    | SummaryMessage
    | EventMessage
)

_TYPE_OF_CLASS = {cls.__name__: cls.message_type for cls in LettaMessageUnion.__args__}


class Block(Model):
    """A memory block."""

    label: str = ""
    value: str = ""
    id: str | None = None
    description: str | None = None
    limit: int | None = None
    read_only: bool = False


class Memory(Model):
    """The memory of an `AgentState`."""

    blocks: Sequence[Block] = ()


class AgentState(Model):
    """The agent's final state as far as a trajectory has it: the memory blocks, in both places the client has them."""

    id: str = ""
    name: str = ""
    blocks: Sequence[Block] = ()
    memory: Memory = Memory()

    @classmethod
    def of(cls, memory: Mapping[str, str]) -> AgentState:
        """The state with these blocks, values by label."""
        blocks = [Block(label=label, value=value) for label, value in memory.items()]
        return cls(blocks=blocks, memory=Memory(blocks=blocks))


class CreateBlock(Model):
    """A block to create an agent with."""

    label: str = ""
    value: str = ""


class MessageCreate(Model):
    """A message to send."""

    role: str = "user"
    content: str | list[TextContent] = ""


class CreateBlockParam(TypedDict, total=False):
    label: str
    value: str
    description: str | None
    limit: int | None
    read_only: bool


class MessageCreateParam(TypedDict, total=False):
    role: str
    content: str | list[Any]
    name: str | None


class BaseTool(Model):
    """A tool with its code; subclass it and write ``run``."""

    name: str = ""
    description: str = ""
    tags: Sequence[str] = ()
    args_schema: Any = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must override run()")


class AsyncLetta:
    """For annotations only; the real package has the client that calls a server."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        raise ImportError(
            f"{type(self).__name__} cannot reach a server: this is gradeline's stand-in for letta_client; "
            "pip install 'letta-client>=1,<2'",
            name="letta_client",
        )


class Letta(AsyncLetta):
    """For annotations only, as `AsyncLetta`."""


def to_letta(trajectory: Trajectory) -> list[list[Any]]:
    """The trajectory as letta's extractors receive it: turns of messages.

    A message with text and tool calls becomes one letta message for the text and one per call, all with the same ID,
    as in letta. If the real letta_client is installed, its classes are used, so that ``isinstance`` in suite code
    works.
    """
    class_of = cache(_client_class)
    ids = (f"message-{number}" for number in count())

    def make(class_name: str, /, **fields: Any) -> Any:
        cls = class_of(class_name)
        # The real classes are pydantic models; validation would reject fields that a trajectory lacks.
        return getattr(cls, "model_construct", cls)(**fields)

    def parts(message: Message) -> Iterator[Any]:
        common = {"id": next(ids), "date": UNKNOWN_DATE, "name": message.name}
        if message.content or not message.tool_calls:
            class_name, fields = _own_part(message)
            yield make(class_name, message_type=_TYPE_OF_CLASS[class_name], **common, **fields)
        for call in message.tool_calls:
            made = make("ToolCall", name=call.name, arguments=call.arguments, tool_call_id=call.id)
            calls = {"tool_call": made, "tool_calls": [made]}
            yield make("ToolCallMessage", message_type="tool_call_message", **common, **calls)

    return [[part for message in turn for part in parts(message)] for turn in trajectory.turns]


def letta_data(trajectory: Trajectory) -> list[list[dict[str, Any]]]:
    """The trajectory in the form of letta's files, readable by the real client.

    The client requires the call ID of a tool's return; an unknown one is written as "".
    """
    ids = (f"message-{number}" for number in count())
    return [[part for message in turn for part in _data(message, next(ids))] for turn in trajectory.turns]


def _data(message: Message, message_id: str) -> Iterator[dict[str, Any]]:
    common = {"id": message_id, "date": _UNKNOWN_DATE_TEXT}
    if message.name is not None:
        common["name"] = message.name
    if message.content or not message.tool_calls:
        class_name, fields = _own_part(message)
        if message.role == "tool" and message.tool_call_id is None:
            fields["tool_call_id"] = ""
        yield {"message_type": _TYPE_OF_CLASS[class_name], **common, **fields}
    for call in message.tool_calls:
        made = {"name": call.name, "arguments": call.arguments}
        # only this one of the two fields may lack the ID
        calls: dict[str, Any] = {"tool_call": made}
        if call.id is not None:
            made["tool_call_id"] = call.id
            calls["tool_calls"] = [made]
        yield {"message_type": "tool_call_message", **common, **calls}


def letta_state(memory: Mapping[str, str]) -> dict[str, Any]:
    """An agent's state with these memory blocks in the form of letta's files, complete enough for the real client."""
    blocks = [{"label": label, "value": value} for label, value in memory.items()]
    return {
        "id": "agent",
        "name": "agent",
        "agent_type": "letta_v1_agent",
        "blocks": blocks,
        "memory": {"blocks": blocks},
        "llm_config": {"model": "unknown", "model_endpoint_type": "openai", "context_window": 0},
        "sources": [],
        "system": "",
        "tags": [],
        "tools": [],
    }


def _own_part(message: Message) -> tuple[str, dict[str, Any]]:
    text = message.content
    if message.role == "tool":
        status = "error" if message.is_error else "success"
        return "ToolReturnMessage", {"tool_return": text, "status": status, "tool_call_id": message.tool_call_id}
    if message.role == "reasoning":
        return "ReasoningMessage", {"reasoning": text}
    if message.role == "event":
        return "EventMessage", {"event_type": "compaction", "event_data": {"content": text}}
    return f"{message.role.capitalize()}Message", {"content": text}


def _client_class(name: str) -> Any:
    for home in ("letta_client.types.agents", "letta_client.types", "letta_client"):
        try:
            found = getattr(import_module(home), name, None)
        except ImportError:
            continue
        if found is not None:
            return found
    return LettaToolCall if name == "ToolCall" else globals()[name]


def from_letta(turns: Iterable[Iterable[Any]], agent_state: Any = None) -> Trajectory:
    """The trajectory of letta messages: of this module, the real client, or plain mappings.

    Raises `DataError` for anything that is not a message.
    """
    return Trajectory(
        tuple(tuple(_messages(turn, f"$[{index}]")) for index, turn in enumerate(turns)), memory_of(agent_state)
    )


def memory_of(agent_state: Any) -> dict[str, str] | None:
    """The memory blocks of an agent's state by label; None without a state."""
    if agent_state is None:
        return None
    blocks = field(agent_state, "blocks") or field(field(agent_state, "memory"), "blocks") or ()
    return {str(field(block, "label")): str(field(block, "value") or "") for block in blocks}


def message_type(message: Any) -> str | None:
    """The type of a letta message, such as ``"assistant_message"``; None for anything else."""
    declared = field(message, "message_type")
    if declared is not None:
        return str(getattr(declared, "value", declared))
    return next((kind for cls in type(message).__mro__ if (kind := _TYPE_OF_CLASS.get(cls.__name__))), None)


def flatten_content(content: Any) -> str:
    """A message's content as text: parts are joined by spaces, parts without text are omitted."""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        texts = (part if isinstance(part, str) else field(part, "text") for part in content)
        return " ".join(text for text in texts if text is not None)
    raise ValueError(f"content must be text or a list of parts, got {quote(content)} ({type(content).__name__})")


def tool_calls(message: Any) -> list[Any]:
    """The tool calls of a message, in the field of any client version."""
    calls = field(message, "tool_calls") or field(message, "tool_call") or []
    return list(calls) if isinstance(calls, list | tuple) else [calls]


def field(value: Any, name: str) -> Any:
    """A field of an object or a mapping; None if missing."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


_SPOKEN: dict[str, tuple[Role, str]] = {
    "system_message": ("system", "content"),
    "user_message": ("user", "content"),
    "assistant_message": ("assistant", "content"),
    "reasoning_message": ("reasoning", "reasoning"),
    "hidden_reasoning_message": ("reasoning", "hidden_reasoning"),
    "summary_message": ("event", "summary"),
    "approval_response_message": ("event", "reason"),
}
_CALLING = ("tool_call_message", "approval_request_message")


def _messages(turn: Iterable[Any], path: str) -> list[Message]:
    messages: list[Message] = []
    last_id = None
    for index, item in enumerate(turn):
        kind = message_type(item)
        if kind is None:
            raise DataError(f"{quote(item)} is not a letta message: it has no message_type", f"{path}[{index}]")
        this_id = field(item, "id")
        read = _returns(item) if kind == "tool_return_message" else [_message(item, kind)]
        same = bool(messages) and messages[-1].role == "assistant" and this_id and this_id == last_id
        if same and kind in _CALLING:
            spoken = messages.pop()
            calls = spoken.tool_calls + read[0].tool_calls
            read = [Message("assistant", spoken.content, calls, name=spoken.name)]
        messages += read
        last_id = this_id
    return messages


def _message(item: Any, kind: str) -> Message:
    name = field(item, "name")
    if kind in _CALLING:
        return Message("assistant", tool_calls=tuple(map(_call, tool_calls(item))), name=name)
    if kind == "event_message":
        data = field(item, "event_data") or {}
        return Message("event", _text(data["content"] if list(data) == ["content"] else data), name=name)
    role, source = _SPOKEN.get(kind, ("event", "content"))
    return Message(role, _text(field(item, source)), name=name)


def _returns(item: Any) -> list[Message]:
    """One message per tool that ran; besides the list, letta has the first one at the top level."""
    several = field(item, "tool_returns")
    return [
        Message(
            "tool",
            _text(field(one, "tool_return")),
            tool_call_id=field(one, "tool_call_id"),
            name=field(item, "name"),
            is_error=field(one, "status") == "error",
        )
        for one in (several if isinstance(several, list | tuple) and len(several) > 1 else [item])
    ]


def _call(call: Any) -> Call:
    arguments = field(call, "arguments")
    return Call(field(call, "name") or "", "{}" if arguments is None else _text(arguments), field(call, "tool_call_id"))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return json.dumps(value, ensure_ascii=False, default=str)
    return flatten_content(value)


def _as(cls: type[Model], value: Any) -> Any:
    return cls(**value) if isinstance(value, Mapping) else value


def _plain(value: Any, mode: str, exclude_none: bool) -> Any:
    if isinstance(value, Model):
        return value.model_dump(mode=mode, exclude_none=exclude_none)
    if isinstance(value, list | tuple):
        return [_plain(item, mode, exclude_none) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item, mode, exclude_none) for key, item in value.items()}
    return value.isoformat() if mode == "json" and isinstance(value, datetime) else value

"""Trajectories: the turns of messages and tool calls that lead to an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

_UNNAMED_CALLS = frozenset({"tool_call", "function_call", "custom_tool_call", "mcp_call"})
"""Call types that do not contain the tool name."""

Role = Literal["system", "user", "assistant", "tool", "reasoning", "event"]


class ToolCall(msgspec.Struct, frozen=True):
    """One tool call.

    ``arguments`` is the JSON text as the agent sent it, which may be malformed: graders see what was sent.
    """

    name: str
    arguments: str = "{}"
    id: str | None = None

    def parsed(self) -> dict[str, Any] | None:
        """The arguments as a mapping; None if the text is not a JSON object."""
        try:
            value = msgspec.json.decode(self.arguments)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. A ``tool`` message is the result of the call with id ``tool_call_id``."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False


Turn = tuple[Message, ...]


def last_answer(messages: Iterable[Message]) -> str:
    """The last non-empty text of the assistant."""
    return next((one.content for one in reversed([*messages]) if one.role == "assistant" and one.content), "")


def with_answer(turn: Turn, text: str) -> Turn:
    """The turn with the text as the assistant's last message; unchanged if it already is, or if the text is empty."""
    if not text or last_answer(turn).strip() == text.strip():
        return turn
    return (*turn, Message("assistant", text))


def part_kind(part: object) -> Literal["call", "result"] | None:
    """Whether a content part of a message, or an item of a list of messages, is a tool call or a tool result.

    Decided by the suffix of its type, since providers add types: ``tool_use``, ``server_tool_use``, ``tool-call``,
    ``function_call`` and ``web_search_call`` are calls. Missing a call would let a tool use check pass wrongly.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        return None
    kind = kind.replace("-", "_")
    if kind.endswith(("tool_result", "_call_output")):
        return "result"
    return "call" if kind.endswith(("tool_use", "_call")) else None


def called_tool(call: Mapping[str, Any]) -> object:
    """The tool name of a call; a type such as ``web_search_call`` provides it if nothing else does."""
    kind = str(call.get("type") or "")
    own = kind.removesuffix("_call") if kind.endswith("_call") and kind not in _UNNAMED_CALLS else None
    return call.get("name") or call.get("toolName") or own


class Trajectory(msgspec.Struct, frozen=True):
    """Turns in order; a turn is what follows one user message.

    ``memory`` has the labelled memory blocks of the agent's final state, if reported. ``tools_known`` is False if only
    the text of a turn is known. Such a turn may have called tools: a tool use check must then neither pass nor fail.
    """

    turns: tuple[Turn, ...] = ()
    memory: dict[str, str] | None = None
    tools_known: bool = True

    def messages(self, role: Role | None = None) -> Iterator[Message]:
        """All messages in order, optionally of one role."""
        for turn in self.turns:
            for message in turn:
                if role is None or message.role == role:
                    yield message

    def answered(self, text: str) -> Trajectory:
        """The trajectory with the text as the assistant's last message, so that it contains what is graded."""
        if not text or last_answer(self.messages()).strip() == text.strip():
            return self
        turns = self.turns or ((),)
        return msgspec.structs.replace(self, turns=(*turns[:-1], with_answer(turns[-1], text)))

    def tool_calls(self) -> Iterator[ToolCall]:
        """All tool calls in order."""
        for message in self.messages():
            yield from message.tool_calls

    @classmethod
    def of_text(cls, text: str) -> Trajectory:
        """The trajectory of an agent that answered in one turn without tools."""
        return cls(((Message("assistant", text),),))

    @classmethod
    def of_turn_texts(cls, texts: Iterable[str]) -> Trajectory:
        """Turns of which only the text is known; an empty string is a turn without messages."""
        return cls(tuple((Message("assistant", text),) if text else () for text in texts), tools_known=False)

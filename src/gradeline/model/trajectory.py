"""What an agent did on its way to the answer: turns of messages and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

_UNNAMED_CALLS = frozenset({"tool_call", "function_call", "custom_tool_call", "mcp_call"})
"""Types of calls that name their tool elsewhere."""

Role = Literal["system", "user", "assistant", "tool", "reasoning", "event"]


class ToolCall(msgspec.Struct, frozen=True):
    """One call of a tool.

    ``arguments`` is the JSON text as the agent sent it: models do send broken JSON, and what
    was sent is what is graded.
    """

    name: str
    arguments: str = "{}"
    id: str | None = None

    def parsed(self) -> dict[str, Any] | None:
        """The arguments as a mapping; None where the text is not a JSON object."""
        try:
            value = msgspec.json.decode(self.arguments)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. A ``tool`` message is the return of the call that ``tool_call_id`` names."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False


Turn = tuple[Message, ...]


def last_answer(messages: Iterable[Message]) -> str:
    """The last text of the assistant; a message that only calls tools has none."""
    return next((one.content for one in reversed([*messages]) if one.role == "assistant" and one.content), "")


def with_answer(turn: Turn, text: str) -> Turn:
    """The turn with the text as the assistant's last message; unchanged where it is, or where the text is empty."""
    if not text or last_answer(turn).strip() == text.strip():
        return turn
    return (*turn, Message("assistant", text))


def part_kind(part: object) -> Literal["call", "result"] | None:
    """Whether a part of a message's content, or an item of a list of messages, is a tool call or the result of one.

    Decided by the end of its type, since providers add types: ``tool_use``, ``server_tool_use``, ``tool-call``,
    ``function_call`` and ``web_search_call`` are calls. A call that is overlooked would let a check of tool use pass.
    """
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        return None
    kind = kind.replace("-", "_")
    if kind.endswith(("tool_result", "_call_output")):
        return "result"
    return "call" if kind.endswith(("tool_use", "_call")) else None


def called_tool(call: Mapping[str, Any]) -> object:
    """The name of the tool in a call; a type such as ``web_search_call`` names it where nothing else does."""
    kind = str(call.get("type") or "")
    own = kind.removesuffix("_call") if kind.endswith("_call") and kind not in _UNNAMED_CALLS else None
    return call.get("name") or call.get("toolName") or own


class Trajectory(msgspec.Struct, frozen=True):
    """Turns in order; a turn is what followed one message of the user.

    ``memory`` holds the labelled memory blocks of the agent's final state, where it reported them.
    ``tools_known`` is False where only the text of at least one turn is known. Such a turn may have called
    tools that are not listed: a check of tool use has no data and must not pass or fail.
    """

    turns: tuple[Turn, ...] = ()
    memory: dict[str, str] | None = None
    tools_known: bool = True

    def messages(self, role: Role | None = None) -> Iterator[Message]:
        """All messages in order, or those of one role."""
        for turn in self.turns:
            for message in turn:
                if role is None or message.role == role:
                    yield message

    def answered(self, text: str) -> Trajectory:
        """The trajectory with the text as the assistant's last message: what is graded is always part of it."""
        if not text or last_answer(self.messages()).strip() == text.strip():
            return self
        turns = self.turns or ((),)
        return msgspec.structs.replace(self, turns=(*turns[:-1], with_answer(turns[-1], text)))

    def tool_calls(self) -> Iterator[ToolCall]:
        """All tool calls in the order they were made."""
        for message in self.messages():
            yield from message.tool_calls

    @classmethod
    def of_text(cls, text: str) -> Trajectory:
        """The trajectory of an agent that answered in one turn and called no tools."""
        return cls(((Message("assistant", text),),))

    @classmethod
    def of_turn_texts(cls, texts: Iterable[str]) -> Trajectory:
        """Turns of which only the text is known; an empty text is a turn without messages."""
        return cls(tuple((Message("assistant", text),) if text else () for text in texts), tools_known=False)

"""What an agent did on its way to the answer: turns of messages and tool calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

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


class Trajectory(msgspec.Struct, frozen=True):
    """Turns in order; a turn is what followed one message of the user.

    ``memory`` holds the labelled memory blocks of the agent's final state, where it told them.
    """

    turns: tuple[Turn, ...] = ()
    memory: dict[str, str] | None = None

    def messages(self, role: Role | None = None) -> Iterator[Message]:
        """All messages in order, or those of one role."""
        for turn in self.turns:
            for message in turn:
                if role is None or message.role == role:
                    yield message

    def tool_calls(self) -> Iterator[ToolCall]:
        """All tool calls in the order they were made."""
        for message in self.messages():
            yield from message.tool_calls

    @classmethod
    def of_text(cls, text: str) -> Trajectory:
        """The trajectory of an agent that only answered."""
        return cls(((Message("assistant", text),),))

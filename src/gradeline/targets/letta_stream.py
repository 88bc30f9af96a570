"""What the program ``letta`` prints: a JSON event a line, the first with the agent's id, the last with the usage."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gradeline.errors import AgentError
from gradeline.model import clean_text
from gradeline.targets.answer import parse
from gradeline.targets.messages import bad_response

_MAX_LINE = 16_000_000
_MAX_OUTPUT = 256_000_000


class LettaStream:
    """Takes in the output as it comes. Of all its events only two are kept: the answer itself is on the server."""

    def __init__(self) -> None:
        self.agent: str | None = None
        """As soon as it is told: an agent that fails later is known all the same."""
        self._last = b""
        self._result: Mapping[str, Any] | None = None
        self._rest = bytearray()
        self._size = 0

    def feed(self, piece: bytes) -> None:
        self._size += len(piece)
        self._rest += piece
        if self._size > _MAX_OUTPUT:
            raise AgentError("too_large", f"letta printed more than {_MAX_OUTPUT:,} bytes")
        if b"\n" in piece:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            for line in lines:
                self._line(line)
        if len(self._rest) > _MAX_LINE:
            raise AgentError("too_large", f"letta printed a line of more than {_MAX_LINE:,} bytes")

    def close(self) -> None:
        """The output has ended; its last line needs no line end."""
        self._line(bytes(self._rest))
        self._rest.clear()

    @property
    def usage(self) -> Mapping[str, Any]:
        """What the agent used; empty where that was not told."""
        usage = self._result.get("usage") if self._result is not None else None
        return usage if isinstance(usage, Mapping) else {}

    def last_words(self, secrets: Collection[str]) -> str:
        """The last line for an error message."""
        from gradeline.transport import excerpt  # loads aiohttp

        return excerpt(self._last, secrets)

    def check(self, secrets: Collection[str]) -> None:
        """`AgentError` where the events tell of no agent, or of an error."""
        if self.agent is None:
            raise bad_response(
                f"letta named no agent; the last that it printed: {self.last_words(secrets) or 'nothing'}"
            )
        result = self._result or {}
        if result.get("is_error") is True or result.get("subtype", "success") != "success":
            raise bad_response(f"letta reported an error: {self.last_words(secrets)}")

    def _line(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            return
        self._last = line
        # most lines are pieces of the answer, and long
        if b'"result"' in line or (self.agent is None and b'"init"' in line):
            event = _event(line)
            if event.get("type") == "result":
                self._result = event
            elif event.get("type") == "system" and event.get("subtype") == "init" and self.agent is None:
                agent = event.get("agent_id")
                self.agent = clean_text(agent).text if isinstance(agent, str) and agent.strip() else None


def _event(line: bytes) -> Mapping[str, Any]:
    try:
        event = parse(line.decode(errors="replace"))
    except AgentError:
        return {}
    return event if isinstance(event, Mapping) else {}

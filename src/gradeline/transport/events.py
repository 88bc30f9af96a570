"""Server-sent events (by the rules of the WHATWG) and newline-delimited JSON, read as they arrive."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple, Protocol

from gradeline.model.masking import Mask
from gradeline.transport.faults import AttemptError

_LINE_END = re.compile(r"\r\n|\n|\r")
_MAX_EVENTS = 200_000
"""A body of tiny events takes many times its size in memory."""


class Event(NamedTuple):
    """One event; a line of NDJSON is an event that has only data."""

    data: str
    event: str = "message"
    id: str = ""


class EventReader(Protocol):
    """Takes a body piece by piece and gathers its events."""

    events: list[Event]

    def feed(self, data: bytes) -> None: ...

    def close(self) -> None:
        """The body has ended."""


class MaskedReader:
    """Gives another reader the body without what the mask hides, also where it is split over pieces."""

    def __init__(self, reader: EventReader, mask: Mask) -> None:
        self.events = reader.events
        self._reader = reader
        self._stream = mask.stream()

    def feed(self, data: bytes) -> None:
        self._reader.feed(self._stream.feed(data))

    def close(self) -> None:
        self._reader.feed(self._stream.close())
        self._reader.close()


class _Lines:
    """UTF-8 text cut into lines, in time linear in its size however it was split up."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._open: list[str] = []
        self._after_cr = False

    def feed(self, data: bytes, *, final: bool = False) -> list[str]:
        """The lines that have become complete."""
        text = self._decoder.decode(data, final)
        if not text:
            return []
        if self._after_cr and text.startswith("\n"):
            text = text[1:]
        self._after_cr = text.endswith("\r") if text else False
        first, *rest = _LINE_END.split(text)
        self._open.append(first)
        if not rest:
            return []
        lines = ["".join(self._open), *rest[:-1]]
        self._open = [rest[-1]]
        return lines

    def rest(self) -> list[str]:
        """What is left when the body has ended: complete lines, then the open one."""
        return [*self.feed(b"", final=True), "".join(self._open)]


class SseReader:
    """An event without its closing blank line is dropped, as the rules ask."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lines = _Lines()
        self._data: list[str] = []
        self._event = ""
        self._id = ""

    def feed(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._take(line)

    def close(self) -> None:
        # The open line can complete no event, so it is not even looked at.
        for line in self._lines.rest()[:-1]:
            self._take(line)

    def _take(self, line: str) -> None:
        if not line:
            self._dispatch()
            return
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value

    def _dispatch(self) -> None:
        if self._data:
            _add(self.events, Event("\n".join(self._data), self._event or "message", self._id))
        self._data = []
        self._event = ""


class NdjsonReader:
    """Blank lines are nothing; the last line needs no line end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lines = _Lines()

    def feed(self, data: bytes) -> None:
        self._take(self._lines.feed(data))

    def close(self) -> None:
        self._take(self._lines.rest())

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            if line.strip():
                _add(self.events, Event(line))


def _add(events: list[Event], event: Event) -> None:
    if len(events) >= _MAX_EVENTS:
        raise AttemptError("too_large", f"the stream holds more than {_MAX_EVENTS:,} events")
    events.append(event)

"""Server-Sent Events, line by line."""

from __future__ import annotations

import json
from typing import Any

from gradeline.client.shapes import Event


class EventReader:
    """Makes events of the lines of a stream; ``last_id`` is where to go on after a break."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id = last_id
        self._id = last_id
        self._type = ""
        self._data: list[str] = []

    def begin(self) -> None:
        """A new connection: what came of an event before is not worth anything."""
        self._id, self._type, self._data = self.last_id, "", []

    def line(self, raw: bytes) -> Event | None:
        """The event that a line completes, if it does."""
        text = raw.decode(errors="replace").rstrip("\r\n")
        if not text:
            return self._completed()
        name, _, value = text.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value or None
        return None

    def _completed(self) -> Event | None:
        # an event that broke off in its middle was not seen: the id counts from here on
        self.last_id = self._id
        kind, lines = self._type or "message", self._data
        self._type, self._data = "", []
        return Event(id=self.last_id, type=kind, data=_value("\n".join(lines))) if lines else None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

"""An agent that echoes the secret it received in many forms, and the strings to search for afterwards."""

from __future__ import annotations

import base64
import html
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Self, cast
from urllib.parse import parse_qs, quote, quote_plus, urlsplit

VALUE = 'pl/ant+ed~"value" 7d1f?&0b52'
COOKIE = "planted=pl/ant+ed~cookie-7d1f"

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda value: value,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 shifted by one": lambda value: base64.b64encode(b"1" + value.encode() + b"2").decode(),
    "base64 shifted by two": lambda value: base64.b64encode(b"12" + value.encode()).decode(),
    "base64 urlsafe": lambda value: base64.urlsafe_b64encode(value.encode()).decode().rstrip("="),
    "percent-encoded": lambda value: quote(value, safe=""),
    "plus-encoded": quote_plus,
    "JSON in JSON": json.dumps,
}
WAYS = (
    "answer",
    "every letter escaped",
    "error status",
    "error in the body",
    "trajectory",
    "not JSON",
    "redirect loop",
)
STREAMED = ("split over chunks", "split over events", "escaped in events")


def echoes_of(*ways: str) -> list[str]:
    """The inputs that make the agent echo the secret in every encoding, in each of these ways."""
    return [f"{way}, {encoding}" for way in ways for encoding in ENCODINGS]


class EchoingAgent(ThreadingHTTPServer):
    """Echoes its input in the form that the case names."""

    daemon_threads = True

    def __init__(self) -> None:
        self.seen: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def at_work(self) -> Iterator[Self]:
        with self:
            Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            yield self
            self.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        query = parse_qs(urlsplit(self.path).query)
        found = (self.headers.get("X-Key"), self.headers.get("Cookie"), asked.get("key"), *query.get("key", ()))
        value = next(one for one in found if one)
        cast(EchoingAgent, self.server).seen.append(value)
        self._answer(asked["input"], value)

    def _answer(self, echo: str, value: str) -> None:
        way, _, encoding = echo.partition(", ")
        echoed = ENCODINGS[encoding](value)
        if way in STREAMED:
            self._stream(echoed, letters=3 if way == "split over events" else len(echoed), escaped="escaped" in way)
            return
        tools = [{"name": f"call {echoed}", "arguments": {"key": echoed}, "id": echoed}]
        data: dict[str, Any] = {"response": f"you sent <{echoed}>", "calls": tools if way == "trajectory" else []}
        if way == "error in the body":
            data["error"] = f"bad key {echoed}"
        body = json.dumps(data)
        if way == "every letter escaped":
            body = json.dumps({"response": "VALUE", "calls": []}).replace("VALUE", _escaped(echoed))
        elif way == "not JSON":
            body = f"<html>{echoed}</html>{{"
        status = {"error status": 401, "redirect loop": 307}.get(way, 200)
        self.send_response(status)
        if way == "redirect loop":
            self.send_header("Location", self.path)
        self.send_header("X-Echo", quote(value))
        self.send_header("Content-Type", "text/plain" if way == "not JSON" else "application/json")
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def _stream(self, echoed: str, letters: int, *, escaped: bool) -> None:
        """Events of so many letters each, in chunks of five bytes."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        events = [echoed[start : start + letters] for start in range(0, len(echoed), letters)]
        written = [_escaped(text) if escaped else json.dumps(text)[1:-1] for text in events]
        raw = "".join(f'data: {{"delta": "{text}"}}\n\n' for text in [*written, "end"]).encode() + b"data: [DONE]\n\n"
        for start in range(0, len(raw), 5):
            piece = raw[start : start + 5]
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
            time.sleep(0.0005)
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Quiet."""


def _escaped(text: str) -> str:
    """As JSON may write it: with an escape for every letter."""
    return "".join(f"\\u{ord(letter):04x}" for letter in text)


def forms_of(value: str) -> set[bytes]:
    """The strings to search for, created without the code under test."""
    raw = value.encode()
    found = {value, json.dumps(value)[1:-1], json.dumps(json.dumps(value))[3:-3], quote(value), quote(value, safe="")}
    found |= {quote_plus(value), base64.b64encode(raw).decode()[:-4], base64.urlsafe_b64encode(raw).decode()[:-4]}
    found |= {base64.b64encode(b"1" + raw).decode()[3:-4], base64.b64encode(b"12" + raw).decode()[4:-4]}
    found |= {html.escape(value), _escaped(value)}
    return {form.encode() for form in found}

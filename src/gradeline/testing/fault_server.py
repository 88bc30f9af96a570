"""An agent that fails on purpose: one path for each way in which a server can harm its client.

    async with FaultServer() as server:
        await call(server.url + "/truncated")

``python -m gradeline.testing.fault_server --port 0`` serves the same and prints its address.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gzip
import json
import socket
import struct
import sys
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, urlsplit

_MAX_HEAD = 65_536
_MEGABYTE = 1_000_000
_DRIP_S = 0.05


class ReceivedRequest(NamedTuple):
    """A request as received; header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the connection to answer it on."""

    request: ReceivedRequest
    hit: int
    """The number of this request among those for its path, from 1."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, **headers: object) -> None:
        """The status line and headers; ``content_length`` becomes ``Content-Length``."""
        lines = [f"HTTP/1.1 {status} As Requested"]
        lines += [f"{name.replace('_', '-').title()}: {value}" for name, value in headers.items()]
        await self.send("\r\n".join([*lines, "", ""]).encode())

    async def reply(self, body: bytes, status: int = 200, **headers: object) -> None:
        """A complete, valid response."""
        headers.setdefault("content_type", "application/json")
        if status in (204, 304):
            await self.head(status, **headers)
            return
        await self.head(status, content_length=len(body), **headers)
        await self.send(b"" if self.request.method == "HEAD" else body)

    async def chunk(self, data: bytes) -> None:
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    async def until_gone(self) -> None:
        """Wait, without sending, until the client disconnects."""
        while await self.reader.read(_MAX_HEAD):
            pass

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


class HangUpError(Exception):
    """The response has ended, and the connection must be closed."""


Fault = Callable[[Exchange, str], Awaitable[None]]
"""Answers an exchange; the string is the path segment after the fault's name.

Further segments are ignored. They distinguish requests, as each whole path has its own ``hits``.
"""


class FaultServer:
    """Serves every fault on 127.0.0.1. ``hits`` counts requests per path, ``received`` has the last ones."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.url = ""
        self.hits: Counter[str] = Counter()
        self.connections = 0
        self.received: deque[ReceivedRequest] = deque(maxlen=1000)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=_MAX_HEAD)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None  # noqa: S101 - entered
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._converse(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests until the client or a fault ends the connection."""
        finished = False
        try:
            while True:
                request = await _receive(reader, writer)
                self.hits[request.path] += 1
                self.received.append(request)
                await _answer(Exchange(request, self.hits[request.path], reader, writer))
        except HangUpError:
            finished = True
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            # A fault that closes the connection must still deliver what was written before.
            (writer.close if finished else writer.transport.abort)()


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ReceivedRequest:
    start = await reader.readexactly(1)
    if not start.isalpha():  # such as a TLS handshake
        writer.write(b"HTTP/1.1 400 Not HTTP\r\nContent-Length: 0\r\n\r\n")
        raise HangUpError
    lines = (start + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    pairs = (line.partition(":") for line in lines[1:] if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return ReceivedRequest(method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body)


async def _answer(exchange: Exchange) -> None:
    name, _, rest = exchange.request.path.removeprefix("/").partition("/")
    fault = FAULTS.get(name)
    if fault is None:
        known = ", ".join(f"/{name}" for name in FAULTS)
        await exchange.reply(json.dumps({"error": f"unknown fault; use one of {known}"}).encode(), 404)
    else:
        await fault(exchange, rest.partition("/")[0])


def _response_body(text: object) -> bytes:
    return json.dumps({"response": text}).encode()


async def _ok(exchange: Exchange, _: str) -> None:
    """``{"response": …}`` with the ``input`` of a JSON body, else the body itself, else ``ok``."""
    text = exchange.request.body.decode(errors="replace")
    with contextlib.suppress(ValueError):
        body = json.loads(text)
        text = body["input"] if isinstance(body, dict) and "input" in body else text
    await exchange.reply(_response_body(text or "ok"))


async def _slow(exchange: Exchange, _: str) -> None:
    await asyncio.sleep(float(exchange.request.query.get("ms", "100")) / 1000)
    await exchange.reply(_response_body("late"))


async def _hang(exchange: Exchange, _: str) -> None:
    """``?after=n``: requests before the n-th get a 503."""
    if exchange.hit < int(exchange.request.query.get("after", "1")):
        await exchange.reply(b'{"error": "not yet"}', 503)
    else:
        await exchange.until_gone()


async def _drip(exchange: Exchange, _: str) -> None:
    """One byte every 50 ms without end: no read timeout is ever reached."""
    await exchange.head(content_length=_MEGABYTE)
    while True:
        await exchange.send(b" ")
        await asyncio.sleep(_DRIP_S)


async def _reset(exchange: Exchange, _: str) -> None:
    exchange.reset()
    raise HangUpError


async def _truncated(exchange: Exchange, _: str) -> None:
    """``?how=length`` (the default), ``chunked``, ``gzip``, or ``reset``: no length, then a TCP reset.

    ``?mb=`` megabytes come before the end.
    """
    start = b'{"response": "half an ans' + bytes(int(exchange.request.query.get("mb", "0")) * _MEGABYTE)
    match exchange.request.query.get("how", "length"):
        case "chunked":
            await exchange.head(transfer_encoding="chunked")
            await exchange.chunk(start)
        case "gzip":
            packed = gzip.compress(start * 100)[:-12]
            await exchange.reply(packed, content_encoding="gzip")
        case "reset":
            await exchange.head(connection="close")
            await exchange.send(start)
            await asyncio.sleep(_DRIP_S)  # so that the client has read the start before the reset wipes it out
            exchange.reset()
        case _:
            await exchange.head(content_length=len(start) + 1000)
            await exchange.send(start)
    raise HangUpError


async def _half_open(exchange: Exchange, _: str) -> None:
    await exchange.head(content_length=1000)
    await exchange.until_gone()


async def _status(exchange: Exchange, code: str) -> None:
    """``/status/CODE``; with ``?echo=1`` the body holds the request's headers."""
    error = dict(exchange.request.headers) if "echo" in exchange.request.query else f"status {code}"
    await exchange.reply(json.dumps({"error": error}).encode(), int(code))


async def _retry_after(exchange: Exchange, form: str) -> None:
    """429 (``?status=``) before the ``?after=``-th request; ``?s=`` is the requested delay in seconds."""
    query = exchange.request.query
    if exchange.hit >= int(query.get("after", "2")):
        await exchange.reply(_response_body("at last"))
        return
    seconds = int(query.get("s", "1"))
    values = {
        "seconds": str(seconds),
        "date": format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True),
        "negative": "-5",
        "huge": "1000000000",
        "garbage": "soon, perhaps",
    }
    headers = {"retry_after": values[form]} if form in values else {}
    await exchange.reply(b'{"error": "slow down"}', int(query.get("status", "429")), **headers)


async def _bad_json(exchange: Exchange, _: str) -> None:
    await exchange.reply(b'{"response": ')


async def _huge(exchange: Exchange, _: str) -> None:
    await exchange.head(content_length=100 * _MEGABYTE)
    for _block in range(1000):
        await exchange.send(b"x" * (_MEGABYTE // 10))


async def _gzip_bomb(exchange: Exchange, _: str) -> None:
    """A hundred megabytes in a hundred kilobytes."""
    await exchange.head(content_encoding="gzip", connection="close")
    engine = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    for _block in range(100):
        await exchange.send(engine.compress(bytes(_MEGABYTE)) + engine.flush(zlib.Z_SYNC_FLUSH))
        await asyncio.sleep(0)
    await exchange.send(engine.flush())
    raise HangUpError


async def _endless(exchange: Exchange, _: str) -> None:
    await exchange.head(transfer_encoding="chunked")
    while True:
        await exchange.chunk(b"and on " * 10_000)
        await asyncio.sleep(0)


async def _invalid_utf8(exchange: Exchange, _: str) -> None:
    await exchange.reply(b'{"response": "\xff\xfe"}')


async def _deep_json(exchange: Exchange, _: str) -> None:
    await exchange.reply(b"[" * 100_000 + b"]" * 100_000)


async def _encoded(exchange: Exchange, coding: str) -> None:
    """A valid compressed response: ``gzip``, ``members`` (two gzip members), ``deflate``, ``raw``; else mislabelled."""
    body = _response_body("packed " * 20_000)
    half = len(body) // 2
    raw = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = {
        "gzip": ("gzip", gzip.compress(body)),
        "members": ("gzip", gzip.compress(body[:half]) + gzip.compress(body[half:])),
        "deflate": ("deflate", zlib.compress(body)),
        "raw": ("deflate", raw.compress(body) + raw.flush()),
        "lie": ("gzip", body),
    }
    named, data = packed.get(coding, (coding, body))
    await exchange.reply(data, content_encoding=named)


async def _garbage(exchange: Exchange, _: str) -> None:
    await exchange.send(b"220 mail.example ESMTP ready\r\n")
    raise HangUpError


async def _redirect(exchange: Exchange, _: str) -> None:
    """``?to=``: the Location (default: none), ``?status=`` (default 302)."""
    query = exchange.request.query
    headers = {"location": query["to"]} if "to" in query else {}
    await exchange.reply(b"", int(query.get("status", "302")), **headers)


async def _redirect_loop(exchange: Exchange, rest: str) -> None:
    await exchange.reply(b"", 302, location="/redirect-loop" if rest else "/redirect-loop/again")


async def _redirect_chain(exchange: Exchange, length: str) -> None:
    left = int(length)
    if left == 0:
        await exchange.reply(_response_body("arrived"))
    else:
        await exchange.reply(b"", 307, location=f"/redirect-chain/{left - 1}")


_SSE = (
    b": a comment\n\n",
    b'event: delta\nid: 1\ndata: {"text": "Par',
    b'is"}\r\n\r\ndata: two\ndata: lines\n\n',
    b"data: [DONE]\n\n",
)


async def _sse(exchange: Exchange, _: str) -> None:
    await exchange.head(content_type="text/event-stream", transfer_encoding="chunked")
    for piece in _SSE:
        await exchange.chunk(piece)
    await exchange.chunk(b"")


async def _sse_cut(exchange: Exchange, _: str) -> None:
    """Ends within an event: a chunked body cut off, or (``?framing=close``) one that only the close ends."""
    if exchange.request.query.get("framing") == "close":
        await exchange.head(content_type="text/event-stream", connection="close")
        await exchange.send(b"".join(_SSE[:3]) + b"data: half")
    else:
        await exchange.head(content_type="text/event-stream", transfer_encoding="chunked")
        for piece in _SSE[:2]:
            await exchange.chunk(piece)
    raise HangUpError


async def _ndjson(exchange: Exchange, _: str) -> None:
    await exchange.head(content_type="application/x-ndjson", transfer_encoding="chunked")
    for piece in (b'{"delta": "Par"}\n{"del', b'ta": "is"}\n\n', b'{"done": true}'):
        await exchange.chunk(piece)
    await exchange.chunk(b"")


FAULTS: Mapping[str, Fault] = {
    "ok": _ok,
    "slow": _slow,
    "hang": _hang,
    "drip": _drip,
    "reset": _reset,
    "truncated": _truncated,
    "half-open": _half_open,
    "status": _status,
    "retry-after": _retry_after,
    "bad-json": _bad_json,
    "huge": _huge,
    "gzip-bomb": _gzip_bomb,
    "endless": _endless,
    "invalid-utf8": _invalid_utf8,
    "deep-json": _deep_json,
    "encoded": _encoded,
    "garbage": _garbage,
    "redirect": _redirect,
    "redirect-loop": _redirect_loop,
    "redirect-chain": _redirect_chain,
    "sse": _sse,
    "sse-cut": _sse_cut,
    "ndjson": _ndjson,
}


async def _serve(port: int) -> None:
    async with FaultServer(port) as server:
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gradeline.testing.fault_server", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port (default 0: any free port)")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args().port))


if __name__ == "__main__":
    main()

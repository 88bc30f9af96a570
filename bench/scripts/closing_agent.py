"""An agent that closes connections without announcing it: no ``Connection: close`` in any answer.

    python closing_agent.py ANSWERS IDLE_MS

ANSWERS is the number of answers after which a connection is closed, IDLE_MS the idle time after which it is closed
(0: never). Prints its address, and ends when its standard input does. ``GET /counts`` returns the calls and
connections since the last ``GET /counts``; the connection of that request is not counted.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import asdict, dataclass

from agent import doubled
from http_agent import InTime

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass
class Counts:
    calls: int = 0
    connections: int = 0


@dataclass
class Closing:
    """When connections are closed, and what happened so far."""

    answers: int
    idle_s: float
    counts: Counts


class Connection(asyncio.Protocol):
    def __init__(self, closing: Closing) -> None:
        self._closing = closing
        self._received = b""
        self._answers = 0
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        self._closing.counts.connections += 1

    def data_received(self, data: bytes) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._received += data
        head, ended, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not ended or len(body) < (int(length[1]) if length else 0):
            return
        self._received = b""
        if head.startswith(b"GET /counts "):
            counts, self._closing.counts = self._closing.counts, Counts()
            self._reply({**asdict(counts), "connections": counts.connections - 1})
            self._transport.close()
            return
        self._closing.counts.calls += 1
        self._reply({"response": doubled(json.loads(body)["input"])})
        self._answers += 1
        if self._answers == self._closing.answers:
            self._transport.close()
        elif self._closing.idle_s:
            self._idle = asyncio.get_running_loop().call_later(self._closing.idle_s, self._transport.close)

    def _reply(self, value: object) -> None:
        body = json.dumps(value).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)


async def serve(closing: Closing) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Connection(closing), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(InTime())) as runner:
        runner.run(serve(Closing(int(sys.argv[1]), float(sys.argv[2]) / 1000, Counts())))

"""An agent of the network that takes its time: each answer comes DELAY seconds after its question.

    python http_agent.py DELAY

Prints its address, and ends when its standard input does. ``GET /times`` gives the arrival of the first
call, the end of the last, their number and how many there were at once, then counts anew. It speaks just
enough HTTP for its callers: a server with a framework would itself be what they wait for.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from select import select
from selectors import EpollSelector, SelectorKey
from time import perf_counter

from agent import doubled

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class InTime(EpollSelector):
    """Wakes when it is time: epoll itself counts in whole milliseconds, so that each answer would come too late."""

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        select([self.fileno()], [], [], timeout if timeout is None else max(timeout, 0.0))
        return super().select(0)


class Times:
    def __init__(self) -> None:
        self.calls = self.open = self.most_at_once = 0
        self.first = self.last = 0.0

    def arrived(self) -> None:
        self.first = self.first or perf_counter()
        self.calls += 1
        self.open += 1
        self.most_at_once = max(self.most_at_once, self.open)

    def answered(self) -> None:
        self.open -= 1
        self.last = perf_counter()


class Agent:
    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.times = Times()


class Connection(asyncio.Protocol):
    """One caller, who waits for each answer before the next question."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, ended, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not ended or len(body) < (int(length[1]) if length else 0):
            return
        self._received = b""
        if head.startswith(b"GET /times "):
            times, self._agent.times = self._agent.times, Times()
            self._reply(vars(times))
        else:
            self._agent.times.arrived()
            text = doubled(json.loads(body)["input"])
            asyncio.get_running_loop().call_later(self._agent.delay, self._answer, self._agent.times, text)

    def _answer(self, times: Times, text: str) -> None:
        times.answered()
        self._reply({"response": text})

    def _reply(self, value: object) -> None:
        if not self._transport.is_closing():
            body = json.dumps(value).encode()
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)


async def serve(delay: float) -> None:
    agent = Agent(delay)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(agent), "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(InTime())) as runner:
        runner.run(serve(float(sys.argv[1])))

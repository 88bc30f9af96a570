"""Idle connections to servers that close them. The servers block in threads of their own, so that a close has
reached the client's socket before its event loop can look at it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import select
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from ipaddress import IPv4Address
from pathlib import Path
from threading import Event, Thread
from typing import Any, ClassVar

import pytest
from cryptography import x509

from gradeline.transport import Backoff, CallError, HttpRequest, HttpResponse, Transport, connection_pool
from tls_agent import tls_agent, write_certificate

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
BUSY = b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"


class NoPause(Backoff):
    """Fails a test whose call would wait."""

    def pause(self, attempt: int, retry_after: str | None = None) -> float:
        raise AssertionError(f"a pause after attempt {attempt}, Retry-After: {retry_after}")


class ShortPause(Backoff):
    def pause(self, attempt: int, retry_after: str | None = None) -> float:
        return 0.0


@dataclass
class ScriptedServer:
    """Each connection follows its script, then is read to its end.

    ``answer`` and ``busy`` read a request and reply to it, ``drop`` reads a request and closes; ``close`` waits for
    `close_now`, closes and sets `closed`.
    """

    scripts: Sequence[Sequence[str]]
    listener: socket.socket
    seen: list[tuple[int, str, int]] = field(default_factory=list)
    """The connection, method and size of the body of each request that arrived."""
    close_now: Event = field(default_factory=Event)
    closed: Event = field(default_factory=Event)

    @property
    def url(self) -> str:
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}/"

    def serve(self) -> None:
        talks = []
        for number, script in enumerate(self.scripts, 1):
            try:
                connection, _ = self.listener.accept()
            except OSError:
                break
            talks.append(Thread(target=self._follow, args=(number, connection, script)))
            talks[-1].start()
        for talk in talks:
            talk.join()

    def _follow(self, number: int, connection: socket.socket, script: Sequence[str]) -> None:
        with connection, connection.makefile("rb") as reader:
            for step in script:
                if step == "close":
                    assert self.close_now.wait(30)
                    break
                head = [reader.readline()]
                while head[-1].strip():
                    head.append(reader.readline())
                length = next((int(line.split(b":")[1]) for line in head if line.lower().startswith(b"content-l")), 0)
                self.seen.append((number, head[0].split()[0].decode(), len(reader.read(length))))
                if step == "drop":
                    break
                connection.sendall(ANSWER if step == "answer" else BUSY)
            else:
                reader.read()
                return
        self.closed.set()


@contextmanager
def serving(*scripts: Sequence[str]) -> Iterator[ScriptedServer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = ScriptedServer(scripts, listener)
        thread = Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.close_now.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(30)
            assert not thread.is_alive()


class DescriptorSocket:
    """A socket as an event loop written in C uses it: the methods of Python's object that send are not called."""

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def send(self, data: bytes) -> int:
        return os.write(self._wrapped.fileno(), data)

    def sendmsg(self, buffers: Sequence[bytes]) -> int:
        return os.writev(self._wrapped.fileno(), buffers)


def descriptor_loop() -> asyncio.AbstractEventLoop:
    """A loop that sends as uvloop does."""
    loop: Any = asyncio.SelectorEventLoop()
    make = loop._make_socket_transport
    loop._make_socket_transport = lambda sock, *rest, **options: make(DescriptorSocket(sock), *rest, **options)
    event_loop: asyncio.AbstractEventLoop = loop
    return event_loop


def post(server: ScriptedServer, *, retries: int = 0, method: str = "POST", body: bytes = b"{}") -> HttpRequest:
    return HttpRequest(method, server.url, body=body, retries=retries, deadline_s=30)


class TestClosedWhileIdle:
    def test_reconnecting_costs_neither_an_attempt_nor_a_delay(self) -> None:
        async def calls(server: ScriptedServer) -> list[HttpResponse]:
            async with Transport(backoff=NoPause()) as transport:
                first = await transport.request(post(server))
                server.close_now.set()
                assert server.closed.wait(30)  # blocks the event loop: it has not seen the end of the connection
                return [first, await transport.request(post(server))]

        with serving(["answer", "close"], ["answer"]) as server:
            answers = asyncio.run(calls(server))
        assert [answer.attempts for answer in answers] == [1, 1]
        assert server.seen == [(1, "POST", 2), (2, "POST", 2)]

    @pytest.mark.parametrize("size", [2, 100_000, 3_000_000])
    def test_closing_before_the_first_byte_costs_neither(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        looks = []

        def close_after_first_look(connection: connection_pool.PooledSocket) -> bool:
            looks.append(is_readable(connection))
            server.close_now.set()
            assert server.closed.wait(30)
            return looks[-1]

        async def calls(server: ScriptedServer) -> list[HttpResponse]:
            async with Transport(backoff=NoPause()) as transport:
                request = post(server, body=bytes(size))
                return [await transport.request(request), await transport.request(request)]

        is_readable = connection_pool.PooledSocket.is_readable
        monkeypatch.setattr(connection_pool.PooledSocket, "is_readable", close_after_first_look)
        with serving(["answer", "close"], ["answer"]) as server:
            answers = asyncio.run(calls(server))
        assert [answer.attempts for answer in answers] == [1, 1]
        assert looks == [False, True]
        assert server.seen == [(1, "POST", size), (2, "POST", size)]


class TestClosedWithoutResponse:
    """The server has seen the request: whether it acted on it is unknown, so it is a failed attempt."""

    @pytest.mark.parametrize("method", ["POST", "GET", "PUT", "DELETE"])
    def test_without_retries_the_call_fails_and_nothing_is_sent_twice(self, method: str) -> None:
        async def calls(server: ScriptedServer) -> CallError:
            async with Transport(backoff=NoPause()) as transport:
                await transport.request(post(server, method=method))
                with pytest.raises(CallError) as caught:
                    await transport.request(post(server, method=method))
                return caught.value

        with serving(["answer", "drop"], ["answer"]) as server:
            error = asyncio.run(calls(server))
        assert (error.type, error.attempts) == ("reset", 1)
        assert server.seen == [(1, method, 2), (1, method, 2)]

    def test_nothing_is_sent_twice_by_an_event_loop_that_writes_to_descriptors(self) -> None:
        async def calls(server: ScriptedServer) -> CallError:
            async with Transport(backoff=NoPause()) as transport:
                await transport.request(post(server))
                with pytest.raises(CallError) as caught:
                    await transport.request(post(server))
                return caught.value

        with serving(["answer", "drop"], ["answer"]) as server, asyncio.Runner(loop_factory=descriptor_loop) as runner:
            error = runner.run(calls(server))
        assert (error.type, error.attempts) == ("reset", 1)
        assert server.seen == [(1, "POST", 2), (1, "POST", 2)]

    def test_on_a_reused_connection_the_retry_is_counted_and_goes_out_at_once(self) -> None:
        async def calls(server: ScriptedServer) -> HttpResponse:
            async with Transport(backoff=NoPause()) as transport:
                await transport.request(post(server))
                return await transport.request(post(server, retries=1))

        with serving(["answer", "drop"], ["answer"]) as server:
            answer = asyncio.run(calls(server))
        assert answer.attempts == 2
        assert [connection for connection, *_ in server.seen] == [1, 1, 2]

    def test_on_a_new_connection_the_retry_waits(self) -> None:
        async def calls(server: ScriptedServer) -> None:
            async with Transport(backoff=NoPause()) as transport:
                await transport.request(post(server, retries=1))

        with serving(["drop"]) as server, pytest.raises(AssertionError, match="a pause after attempt 1"):
            asyncio.run(calls(server))


class TestRetries:
    def test_every_attempt_after_the_first_uses_a_new_connection(self) -> None:
        async def calls(server: ScriptedServer) -> list[int]:
            async with Transport(backoff=ShortPause()) as transport:
                return [(await transport.request(post(server, retries=2))).attempts for _ in range(2)]

        with serving(["answer", "busy"], ["busy"], ["answer"]) as server:
            assert asyncio.run(calls(server)) == [1, 3]
        assert [connection for connection, *_ in server.seen] == [1, 1, 2, 3]

    def test_a_new_connection_replaces_an_idle_one(self) -> None:
        async def calls(server: ScriptedServer) -> int:
            async with Transport(backoff=ShortPause()) as transport:
                for _ in range(5):
                    assert (await transport.request(post(server, retries=1))).attempts == 2
                return sum(idle_socket.fileno() != -1 for idle_socket in transport._guard.sockets)

        with serving(["busy"], *[["answer", "busy"]] * 4, ["answer"]) as server:
            assert asyncio.run(calls(server)) == 1


class TlsHandler(BaseHTTPRequestHandler):
    """Answers two requests of a connection, then closes it when `close_now` is set."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[int]]
    """The client's port of each request."""
    close_now: ClassVar[Event]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(self.client_address[1])
        self.wfile.write(ANSWER)
        if self.seen.count(self.client_address[1]) == 2:
            assert self.close_now.wait(30)
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class TestTls:
    def test_a_connection_is_reused_and_left_when_closed(self, tmp_path: Path) -> None:
        """TLS 1.3 sends session tickets after the handshake: they are read long before the next request."""

        async def calls(url: str) -> list[int]:
            trust = ssl.create_default_context(cafile=certificate)
            async with Transport(ssl_context=trust, backoff=NoPause()) as transport:
                request = HttpRequest("POST", url, body=b"{}", retries=0)
                attempts = [(await transport.request(request)).attempts for _ in range(2)]
                (idle_socket,) = transport._guard.sockets
                handler.close_now.set()
                wait_until_readable(idle_socket)  # blocks the event loop
                return [*attempts, (await transport.request(request)).attempts]

        handler = type("Handler", (TlsHandler,), {"seen": [], "close_now": Event()})
        now = datetime.now(UTC)
        name = x509.IPAddress(IPv4Address("127.0.0.1"))
        certificate = write_certificate(tmp_path, name, now - timedelta(days=1), now + timedelta(days=1))
        with tls_agent(certificate, handler) as url:
            try:
                assert asyncio.run(calls(url)) == [1, 1, 1]
            finally:
                handler.close_now.set()
        first, second, third = handler.seen
        assert first == second != third


def wait_until_readable(connection: socket.socket) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    assert poll.poll(30_000)


class TestPoll:
    def test_a_descriptor_above_1023_can_be_polled(self) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        ours, theirs = socket.socketpair()
        high = connection_pool.PooledSocket(fileno=fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD, 2000))
        try:
            assert high.fileno() >= 2000
            assert not high.is_readable()
            theirs.close()
            assert high.is_readable()
        finally:
            high.close()
            ours.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

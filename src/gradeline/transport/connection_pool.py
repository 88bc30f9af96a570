"""The connection pool: which idle connections are reused.

A server may close an idle connection at any time, and only the socket shows it. So an idle connection is polled when it
is taken from the pool, and again by its socket right before the first byte of the request is sent: in between, the
event loop may have served other calls for milliseconds. An idle connection that is readable was closed by the server
(or holds bytes that belong to no request) and is not reused.
"""

from __future__ import annotations

import errno
import select
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import aiohttp
from aiohttp.abc import AbstractResolver

if TYPE_CHECKING:
    import ssl

    from _typeshed import ReadableBuffer
    from aiohappyeyeballs import AddrInfoType
    from aiohttp.client_reqrep import ConnectionKey
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace


_MAX_READ = 65_536


class Checkout:
    """Which connection one request may use, and what is known about it."""

    __slots__ = ("fresh", "host", "reused", "sent")

    def __init__(self, host: str, *, fresh: bool) -> None:
        self.host = host
        self.fresh = fresh
        """Whether the request must not reuse a connection."""
        self.reused = False
        self.sent = False
        """Whether bytes were sent on a reused connection, or may have been."""

    @property
    def nothing_sent(self) -> bool:
        """Whether a reused connection was found closed before the request was sent, so the server saw none of it."""
        return self.reused and not self.sent


current_checkout: ContextVar[Checkout] = ContextVar("current_checkout")
"""The checkout of this task's request: aiohttp passes neither host nor request on to sockets and pools."""


class PooledSocket(socket.socket):
    """A socket that checks whether its peer closed it right before it sends a request on a reused connection."""

    _checkout: Checkout | None = None
    _sends_seen = False
    """Whether the event loop sends through this object; uvloop writes to the file descriptor itself."""

    def is_readable(self) -> bool:
        """Whether there are bytes to read, or the peer closed or reset the connection."""
        return bool(self._poll(0))

    @cached_property
    def _poll(self) -> Callable[[int], list[Any]]:
        """Created once per connection: that takes ten times as long as a poll."""
        if sys.platform == "win32":
            return lambda _: select.select([self], [], [], 0)[0]
        poll = select.poll()  # select.select cannot watch file descriptors above 1023
        poll.register(self, select.POLLIN | select.POLLPRI)
        return poll.poll

    def reuse_for(self, checkout: Checkout) -> None:
        self._checkout = checkout
        checkout.reused = True
        checkout.sent = not self._sends_seen  # if unknown, assume sent: a POST must not be sent twice

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        # asyncio allocates 256 KiB for each read, which takes longer than reading most responses: with this limit a
        # hundred calls of 100 ms at a time reach 94.5 % of the ideal, without it 93.1 % (bench/concurrency.py)
        return super().recv(min(bufsize, _MAX_READ), flags)

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        self._before_send()
        return super().send(data, flags)

    if sys.platform != "win32":  # since Python 3.12 asyncio sends several buffers at once

        def sendmsg(self, buffers: Iterable[ReadableBuffer], /, *rest: Any) -> int:
            self._before_send()
            return super().sendmsg(buffers, *rest)

    def _before_send(self) -> None:
        self._sends_seen = True
        checkout, self._checkout = self._checkout, None
        if checkout is not None:
            if self.is_readable():
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the idle connection")
            checkout.sent = True


class SocketTable:
    """The open sockets of a transport by file descriptor, which is what asyncio gives access to."""

    def __init__(self) -> None:
        self._sockets: WeakValueDictionary[int, PooledSocket] = WeakValueDictionary()

    def open(self, family: int, kind: int, protocol: int) -> PooledSocket:
        opened = PooledSocket(family, kind, protocol)
        self._sockets[opened.fileno()] = opened
        return opened

    def find(self, connection: Connection) -> PooledSocket | None:
        """The socket of a connection; None if it is closed."""
        transport = connection.transport
        info = None if transport is None else transport.get_extra_info("socket")
        return None if info is None else self._sockets.get(info.fileno())

    def __iter__(self) -> Iterator[PooledSocket]:
        return iter(list(self._sockets.values()))


class Connector(aiohttp.TCPConnector):
    """aiohttp's connector, which reuses an idle connection only if it is still open."""

    def __init__(
        self,
        sockets: SocketTable,
        *,
        limit: int,
        ssl_context: ssl.SSLContext | None,
        resolver: AbstractResolver,
        socket_factory: Callable[[AddrInfoType], socket.socket],
    ) -> None:
        super().__init__(limit=limit, ssl=ssl_context or True, resolver=resolver, socket_factory=socket_factory)
        self._sockets = sockets

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        checkout = current_checkout.get()
        while (idle := await super()._get(key, traces)) is not None:
            if checkout.fresh:
                idle.close()  # the new connection takes its place, so that retries do not grow the pool
                return None
            found = self._sockets.find(idle)
            if found is not None and not found.is_readable():
                found.reuse_for(checkout)
                return idle
            idle.close()
        return None

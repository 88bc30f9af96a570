"""Connections that are kept and reused.

A server may close a kept connection at any time, and the client learns it only from the socket. So a kept connection is
polled when it is taken from the pool, and again by its socket right before the first byte of the request is sent: in
between, the event loop may have served other calls for milliseconds. A connection that is readable while it is idle was
closed by the server (or holds bytes that belong to no request) and is not reused.
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
    """How one request gets its connection, and what is known about that connection."""

    __slots__ = ("fresh", "host", "reused", "sent")

    def __init__(self, host: str, *, fresh: bool) -> None:
        self.host = host
        self.fresh = fresh
        """Whether the request must not use a kept connection."""
        self.reused = False
        self.sent = False
        """Whether bytes were sent on a reused connection, or may have been."""

    @property
    def nothing_sent(self) -> bool:
        """Whether a kept connection was found closed before the request was sent: the server has seen none of it."""
        return self.reused and not self.sent


current_checkout: ContextVar[Checkout] = ContextVar("current_checkout")
"""Of the request that this task sends: aiohttp passes neither the host nor the request on to sockets and pools."""


class PooledSocket(socket.socket):
    """A socket that checks once more whether its peer closed before it sends a request on a reused connection."""

    _checkout: Checkout | None = None
    _sends_seen = False
    """Whether the event loop sends through this object; uvloop writes to the descriptor itself."""

    def is_readable(self) -> bool:
        """Whether there are bytes to read, or the peer closed or broke the connection."""
        return bool(self._poll(0))

    @cached_property
    def _poll(self) -> Callable[[int], list[Any]]:
        """Made once for a connection, since that costs ten times as much as to poll."""
        if sys.platform == "win32":
            return lambda _: select.select([self], [], [], 0)[0]
        poll = select.poll()  # select.select cannot watch descriptors above 1023
        poll.register(self, select.POLLIN | select.POLLPRI)
        return poll.poll

    def reuse_for(self, checkout: Checkout) -> None:
        self._checkout = checkout
        checkout.reused = True
        checkout.sent = not self._sends_seen  # what cannot be seen counts as sent: a POST must not go out twice

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        # asyncio asks for 256 KiB at a time: to allocate that takes longer than to read most answers
        return super().recv(min(bufsize, _MAX_READ), flags)

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        self._before_send()
        return super().send(data, flags)

    if sys.platform != "win32":  # asyncio sends several buffers at once from Python 3.12 on

        def sendmsg(self, buffers: Iterable[ReadableBuffer], /, *rest: Any) -> int:
            self._before_send()
            return super().sendmsg(buffers, *rest)

    def _before_send(self) -> None:
        self._sends_seen = True
        checkout, self._checkout = self._checkout, None
        if checkout is not None:
            if self.is_readable():
                raise ConnectionResetError(errno.ECONNRESET, "the peer closed the kept connection")
            checkout.sent = True


class SocketTable:
    """The open sockets of a transport, by descriptor: asyncio gives access to the descriptor, not to the socket."""

    def __init__(self) -> None:
        self._sockets: WeakValueDictionary[int, PooledSocket] = WeakValueDictionary()

    def open(self, family: int, kind: int, protocol: int) -> PooledSocket:
        made = PooledSocket(family, kind, protocol)
        self._sockets[made.fileno()] = made
        return made

    def find(self, connection: Connection) -> PooledSocket | None:
        """The socket of a connection; None where it is closed."""
        transport = connection.transport
        info = None if transport is None else transport.get_extra_info("socket")
        return None if info is None else self._sockets.get(info.fileno())

    def __iter__(self) -> Iterator[PooledSocket]:
        return iter(list(self._sockets.values()))


class Connector(aiohttp.TCPConnector):
    """aiohttp's pool, which hands out a kept connection only where it is still open."""

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
        while (kept := await super()._get(key, traces)) is not None:
            if checkout.fresh:
                kept.close()  # the new connection takes its place: the pool does not grow with the retries
                return None
            found = self._sockets.find(kept)
            if found is not None and not found.is_readable():
                found.reuse_for(checkout)
                return kept
            kept.close()
        return None

"""Connections: how many are served, for whom, and which requests are refused before the application sees them.

One address gets a quarter of the connections. Those beyond it, and all connections once the room is used up, are
answered for health, readiness and sign-in only: an operator sees that the service lives, and a person can still sign
in. The rest is refused with a time to come back, and what says nothing is closed within seconds.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import h11
import msgspec
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gradeline.errors import ConfigError, Problem
from gradeline.service.failures import Code
from gradeline.service.headers import security_headers
from gradeline.service.limits import RESERVED, neighbourhood

log = logging.getLogger("gradeline.service")

HEAD_S = 15.0
"""How long a request's head may take."""
LIMITED_HEAD_S = 2.0
"""The same for a connection that is refused anyway, unless it asks for health, readiness or sign-in."""
LINGER_S = 3.0
"""How long the rest of a refused body is still taken, so that its sender gets to read why."""
MOST_CONNECTIONS = 2000
"""Where the process may have this number of descriptors; else a quarter of those: runs and the store need some too."""
MOST_DESCRIPTORS = 65_536
_BACKLOG = 2048
_MAX_HEAD = 65_536
_RETRY_S = 5


class Room(NamedTuple):
    """How the descriptors of the process are divided; what is left is for runs and the store."""

    served: int
    """Connections that are served."""
    reserved: int
    """As many more are answered for health, readiness and sign-in only; those beyond are closed."""
    accepted_at_once: int
    """Connections that are accepted in one go, before any of them can be closed."""
    per_address: int
    """Connections of one address that are served; as many more are treated as the reserved ones."""

    @classmethod
    def here(cls) -> Room:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
        served = min(MOST_CONNECTIONS, limit // 4)
        return cls(served, served // 2, min(_BACKLOG, limit // 8), max(1, served // 4))


class Refusal(NamedTuple):
    """An answer that is given without the application."""

    status: int
    code: Code
    message: str
    headers: Mapping[str, str] = {}


_LATER = {"Retry-After": str(_RETRY_S)}
_FULL = Refusal(503, Code.RATE_LIMITED, f"Too many connections are open; try again in {_RETRY_S} s", _LATER)
_ADDRESS_FULL = Refusal(
    429, Code.RATE_LIMITED, f"Too many connections are open from your address; try again in {_RETRY_S} s", _LATER
)
_NOT_HTTP = Refusal(400, Code.INVALID_INPUT, "Invalid HTTP request received.")
_TWO_LENGTHS = Refusal(
    400, Code.INVALID_INPUT, "The request has both Content-Length and Transfer-Encoding; send one of them"
)


def read_proxies(proxies: tuple[str, ...]) -> list[str]:
    """The addresses and networks of proxies; `ConfigError` for what is neither."""
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError as error:
            reason = f"{proxy!r} is neither an address nor a network ({error}); use 10.0.0.7 or 10.0.0.0/24"
            raise ConfigError(Problem("--trusted-proxy", reason)) from None
    return list(proxies)


@lru_cache(maxsize=4096)
def is_proxy(address: str, proxies: tuple[str, ...]) -> bool:
    """Whether a connection from this address carries those of other people."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in ip_network(proxy) for proxy in proxies)


class CheckedConnection(h11.Connection):
    """h11's, which hands each request's head to a check before anything is made of it."""

    def __init__(self, check: Callable[[h11.Request], None], most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._check = check

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check(event)
        return event


class PatientProtocol(H11Protocol):
    """uvicorn's, with a deadline for a request's head, limits of connections and answers in the API's own form."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = CheckedConnection(self._check_head, _MAX_HEAD)
        self.address = ""
        self._head: asyncio.TimerHandle | None = None
        self._limit: Refusal | None = None
        """What is answered here, unless it asks for what room is reserved for."""
        self._refusal = _NOT_HTTP

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = neighbourhood(self.client[0]) if self.client else ""
        room = Room.here()
        here = self._of_this_address(room)
        if len(self.connections) > room.served + room.reserved or here > 2 * room.per_address:
            transport.close()
            return
        if here > room.per_address:
            self._limit = _ADDRESS_FULL
        elif len(self.connections) > room.served:
            self._limit = _FULL
        self._await_head()

    def _of_this_address(self, room: Room) -> int:
        """Connections of this one's address; those of a proxy are other people's and are not counted together."""
        if len(self.connections) <= room.per_address:
            return 0
        proxies = tuple(self.config.forwarded_allow_ips) if self.config.proxy_headers else ()
        if self.client is not None and is_proxy(self.client[0], proxies):
            return 0
        return sum(getattr(other, "address", None) == self.address for other in self.connections)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._stop_waiting()
        super().on_response_complete()
        if self._limit is not None:
            self.transport.close()
        elif self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(LINGER_S, self._hang_up, self.cycle)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words are those of `_NOT_HTTP`
        """Answer without the application, and hang up."""
        status, code, message, more = self._refusal
        failure = {"success": False, "data": None, "error": {"code": code.value, "message": message}}
        headers = {**security_headers("none"), "Content-Type": "application/json", "Connection": "close", **more}
        body = msgspec.json.encode(failure)
        head = h11.Response(
            status_code=status,
            headers=[(name.encode(), value.encode()) for name, value in headers.items()]
            + [(b"Content-Length", str(len(body)).encode())],
            reason=HTTPStatus(status).phrase.encode(),
        )
        try:
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            log.debug("an answer had begun already")
        self.transport.close()

    def _check_head(self, request: h11.Request) -> None:
        """Refuse a request whose end two parties could see at different places, and one that there is no room for."""
        names = {name for name, _ in request.headers}
        if b"content-length" in names and b"transfer-encoding" in names:
            self._refusal = _TWO_LENGTHS
        elif self._limit is not None and request.target.partition(b"?")[0].decode("latin-1") not in RESERVED:
            self._refusal = self._limit
        else:
            return
        raise h11.RemoteProtocolError(self._refusal.message, self._refusal.status)

    def _await_head(self) -> None:
        seconds = HEAD_S if self._limit is None else LIMITED_HEAD_S
        self._head = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _hang_up(self, cycle: object) -> None:
        if self.cycle is cycle and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

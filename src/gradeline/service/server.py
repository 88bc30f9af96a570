"""The HTTP server: sockets, connection limits, and a shutdown that takes less than ten seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from ipaddress import ip_address, ip_network
from threading import Timer
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple

import h11
import msgspec
import uvicorn
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gradeline.errors import ConfigError, Problem
from gradeline.rest_types import Envelope, ErrorBody
from gradeline.service.app import application
from gradeline.service.errors import Code
from gradeline.service.limits import RESERVED_PATHS, address_group
from gradeline.service.middleware import security_headers
from gradeline.service.service import Service

log = logging.getLogger("gradeline.service")

HEAD_S = 15.0
"""Time for the head of a request to arrive, in seconds."""
LIMITED_HEAD_S = 2.0
"""The same for a connection that is refused, except for health, readiness and sign-in."""
LINGER_S = 3.0
"""Time for which the rest of a refused body is read, so that its sender can read the error."""
MAX_CONNECTIONS = 2000
"""Maximum number of connections; at most a quarter of the descriptors, since runs and the store need some too."""
MAX_DESCRIPTORS = 65_536
_BACKLOG = 2048
_MAX_HEAD = 65_536
_RETRY_S = 5


class ConnectionLimits(NamedTuple):
    """The division of the descriptors of the process; the rest is for runs and the store."""

    served: int
    """Connections that are served."""
    reserved: int
    """Additional connections for health, readiness and sign-in only; connections beyond them are closed."""
    accepted_at_once: int
    """Connections that are accepted before any of them can be closed."""
    per_address: int
    """Connections of one address that are served; the same number is treated as reserved ones."""

    @classmethod
    def here(cls) -> ConnectionLimits:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
        served = min(MAX_CONNECTIONS, limit // 4)
        return cls(served, served // 2, min(_BACKLOG, limit // 8), max(1, served // 4))


class EarlyResponse(NamedTuple):
    """A response that is sent without the application."""

    status: int
    code: Code
    message: str
    headers: Mapping[str, str] = {}


_LATER = {"Retry-After": str(_RETRY_S)}
_FULL = EarlyResponse(503, Code.RATE_LIMITED, f"Too many open connections; retry in {_RETRY_S} s", _LATER)
_ADDRESS_FULL = EarlyResponse(
    429, Code.RATE_LIMITED, f"Too many open connections from your address; retry in {_RETRY_S} s", _LATER
)
_NOT_HTTP = EarlyResponse(400, Code.INVALID_INPUT, "Invalid HTTP request received.")
_TWO_LENGTHS = EarlyResponse(
    400, Code.INVALID_INPUT, "The request has both Content-Length and Transfer-Encoding; send one of them"
)


def read_proxies(proxies: tuple[str, ...]) -> list[str]:
    """The addresses and networks of proxies; `ConfigError` for what is neither."""
    for proxy in proxies:
        try:
            ip_network(proxy)
        except ValueError as error:
            reason = f"{proxy!r} is not an address or a network ({error}); use 10.0.0.7 or 10.0.0.0/24"
            raise ConfigError(Problem("--trusted-proxy", reason)) from None
    return list(proxies)


@lru_cache(maxsize=4096)
def is_proxy(address: str, proxies: tuple[str, ...]) -> bool:
    """Whether the address is that of a trusted proxy."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in ip_network(proxy) for proxy in proxies)


class CheckedConnection(h11.Connection):
    """An h11 connection that checks the head of each request first."""

    def __init__(self, check: Callable[[h11.Request], None], most: int) -> None:
        super().__init__(h11.SERVER, most)
        self._check = check

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._check(event)
        return event


class HttpProtocol(H11Protocol):
    """uvicorn's protocol with a deadline for request heads, connection limits, and errors in the format of the API."""

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
        self._limit: EarlyResponse | None = None
        """The response to requests on this connection, except for reserved paths."""
        self._refusal = _NOT_HTTP

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = address_group(self.client[0]) if self.client else ""
        room = ConnectionLimits.here()
        here = self._of_this_address(room)
        if len(self.connections) > room.served + room.reserved or here > 2 * room.per_address:
            transport.close()
            return
        if here > room.per_address:
            self._limit = _ADDRESS_FULL
        elif len(self.connections) > room.served:
            self._limit = _FULL
        self._await_head()

    def _of_this_address(self, room: ConnectionLimits) -> int:
        """Connections from the same address; those from a proxy belong to several clients and are not counted."""
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

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's message is that of `_NOT_HTTP`
        """Send an error without the application, and close the connection."""
        status, code, message, more = self._refusal
        failure = Envelope(success=False, data=None, error=ErrorBody(code.value, message))
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
            log.debug("a response had already started")
        self.transport.close()

    def _check_head(self, request: h11.Request) -> None:
        """Refuse a request with an ambiguous length, and one that exceeds the connection limits."""
        names = {name for name, _ in request.headers}
        if b"content-length" in names and b"transfer-encoding" in names:
            self._refusal = _TWO_LENGTHS
        elif self._limit is not None and request.target.partition(b"?")[0].decode("latin-1") not in RESERVED_PATHS:
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


_GRACE_S = 1.5
_CANCEL_S = 1
"""Time for requests that are cancelled at the end of a drain to finish."""


def require_keys(service: Service) -> None:
    """Raise `ConfigError` if no key could be used, or if anyone could access the service."""
    if service.local:
        return
    problem = service.keys.problem()
    if problem is None:
        return
    if not service.keys.exist():
        host = service.settings.host
        problem = (
            f"{host} can be reached from other machines, and the store has no API key; create one first with: "
            "gradeline keys create --scope admin (or bind 127.0.0.1, where none is required)"
        )
    raise ConfigError(Problem("", problem))


def bind(host: str, port: int) -> socket.socket:
    """A socket to serve on; port 0 selects a free port."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(Problem("--host", f"{host!r} is not a valid address to serve on: {error.strerror}")) from None
    try:
        # the port of a server that has just ended stays in use for a while
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError as error:
        bound.close()
        reason = f"cannot serve on {host} port {port}: {error.strerror}; use another port, or 0 for a free one"
        raise ConfigError(Problem("--port", reason)) from None
    return bound


def url_of(bound: socket.socket, host: str) -> str:
    """The URL of the socket for a browser on this machine."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}"


def serve(service: Service, bound: socket.socket, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends it at once. ``announce`` is called when it is up."""
    proxies = read_proxies(service.settings.trusted_proxies)
    _raise_descriptors()
    config = uvicorn.Config(
        application(service),
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=ConnectionLimits.here().accepted_at_once,
        # by default uvicorn would trust X-Forwarded-For from every program on this machine
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=_CANCEL_S,
    )
    Server(config, service, announce).run(sockets=[bound])


def _raise_descriptors() -> None:
    """Raise the soft limit of descriptors, by default 1,024, to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server(uvicorn.Server):
    """uvicorn's server with its own signal handling: a requested stop is a success.

    The first signal starts a drain: runs are finished or released, requests in flight are finished, and new ones get
    503 (see `gradeline.service.middleware`). Then the socket is closed.
    """

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._announce = announce
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_until: float | None = None
        """The deadline of requests in flight, by the monotonic clock; None before the first signal."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._drain_until is not None:
            os._exit(128 + sig)
        self._drain_until = monotonic() + self._service.settings.drain_s - _CANCEL_S
        # unfinished work continues after the next start; nothing finished is lost
        last_call = Timer(self._service.settings.drain_s + _GRACE_S, os._exit, (1,))
        last_call.daemon = True
        last_call.start()
        if self._loop is None:  # it does not serve yet
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._service.begin_stop)

    async def on_tick(self, counter: int) -> bool:
        if self._drain_until is not None:
            in_flight = bool(self.server_state.tasks) and monotonic() < self._drain_until
            self.should_exit = self._service.drained and not in_flight
        return await super().on_tick(counter)

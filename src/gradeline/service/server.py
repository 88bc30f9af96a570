"""Running the service: a socket, a server, and an end that takes less than ten seconds."""

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
from gradeline.service.app import application
from gradeline.service.errors import Code
from gradeline.service.limits import RESERVED_PATHS, address_group
from gradeline.service.middleware import security_headers
from gradeline.service.service import Service

log = logging.getLogger("gradeline.service")

HEAD_S = 15.0
"""How long a request's head may take."""
LIMITED_HEAD_S = 2.0
"""The same for a connection that is refused anyway, unless it asks for health, readiness or sign-in."""
LINGER_S = 3.0
"""How long the rest of a refused body is still taken, so that its sender gets to read why."""
MAX_CONNECTIONS = 2000
"""Where the process may have this number of descriptors; else a quarter of those: runs and the store need some too."""
MAX_DESCRIPTORS = 65_536
_BACKLOG = 2048
_MAX_HEAD = 65_536
_RETRY_S = 5


class ConnectionLimits(NamedTuple):
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
    def here(cls) -> ConnectionLimits:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
        served = min(MAX_CONNECTIONS, limit // 4)
        return cls(served, served // 2, min(_BACKLOG, limit // 8), max(1, served // 4))


class EarlyResponse(NamedTuple):
    """An answer that is given without the application."""

    status: int
    code: Code
    message: str
    headers: Mapping[str, str] = {}


_LATER = {"Retry-After": str(_RETRY_S)}
_FULL = EarlyResponse(503, Code.RATE_LIMITED, f"Too many connections are open; try again in {_RETRY_S} s", _LATER)
_ADDRESS_FULL = EarlyResponse(
    429, Code.RATE_LIMITED, f"Too many connections are open from your address; try again in {_RETRY_S} s", _LATER
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


class HttpProtocol(H11Protocol):
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
        self._limit: EarlyResponse | None = None
        """What is answered here, unless it asks for what room is reserved for."""
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
"""How long requests that are cancelled at the end of a drain may take to end."""


def require_keys(service: Service) -> None:
    """Refuse to serve what nobody could get into, or what anybody could."""
    if service.local:
        return
    problem = service.keys.problem()
    if problem is None:
        return
    if not service.keys.exist():
        host = service.settings.host
        problem = (
            f"{host} can be reached from other machines, and the store has no API key; make one first with: "
            "gradeline keys create --scope admin (or bind 127.0.0.1, where none is needed)"
        )
    raise ConfigError(Problem("", problem))


def bind(host: str, port: int) -> socket.socket:
    """The socket to serve on; port 0 takes one that is free."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(Problem("--host", f"{host!r} is no address to serve on: {error.strerror}")) from None
    try:
        # a server that has just ended leaves its port in use for a while
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
    except OSError as error:
        bound.close()
        reason = f"cannot serve on {host} port {port}: {error.strerror}; name another port, or 0 for any that is free"
        raise ConfigError(Problem("--port", reason)) from None
    return bound


def url_of(bound: socket.socket, host: str) -> str:
    """How a browser on this machine reaches the socket."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}"


def serve(service: Service, bound: socket.socket, announce: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; a second signal ends it at once. ``announce`` is called once it answers."""
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
        # without them the default of the server would trust X-Forwarded-For of every program on this machine
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=_CANCEL_S,
    )
    Server(config, service, announce).run(sockets=[bound])


def _raise_descriptors() -> None:
    """As many as this process may have: what a shell grants by default, 1,024, is for older programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server(uvicorn.Server):
    """uvicorn's, with signals of its own: a stop that was asked for is a success.

    The first signal begins a drain: runs in flight are finished or given back, requests in flight are finished, and new
    ones are answered with 503 (see `gradeline.service.middleware`). Only then the socket is closed.
    """

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._announce = announce
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_until: float | None = None
        """By the monotonic clock: how long requests in flight may take; None before the first signal."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self._drain_until is not None:
            os._exit(128 + sig)
        self._drain_until = monotonic() + self._service.settings.drain_s - _CANCEL_S
        # whatever holds it up then goes on after the next start: nothing finished is lost
        last_call = Timer(self._service.settings.drain_s + _GRACE_S, os._exit, (1,))
        last_call.daemon = True
        last_call.start()
        if self._loop is None:  # it has not begun to serve
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._service.begin_stop)

    async def on_tick(self, counter: int) -> bool:
        if self._drain_until is not None:
            in_flight = bool(self.server_state.tasks) and monotonic() < self._drain_until
            self.should_exit = self._service.drained and not in_flight
        return await super().on_tick(counter)

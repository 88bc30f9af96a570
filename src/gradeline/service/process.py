"""Running the service: a socket, a server, and an end that takes less than ten seconds."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from threading import Timer
from types import FrameType
from typing import NamedTuple

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradeline.errors import ConfigError, Problem
from gradeline.service.app import application
from gradeline.service.failures import Code
from gradeline.service.headers import security_headers
from gradeline.service.state import Service

log = logging.getLogger("gradeline.service")

HEAD_S = 15.0
"""How long a request's head may take."""
LINGER_S = 3.0
"""How long the rest of a refused body is still taken, so that its sender gets to read why."""
MOST_CONNECTIONS = 2000
"""Where the process may have so many descriptors; else a quarter of those, since runs and the store need some too."""
_MOST_DESCRIPTORS = 65_536
_BACKLOG = 2048
_GRACE_S = 1.5
_LATER = {"Retry-After": "5"}


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
    _raise_descriptors()
    config = uvicorn.Config(
        application(service),
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=Room.here().at_once,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=max(1, int(service.settings.drain_s)),
    )
    Server(config, service, announce).run(sockets=[bound])


def _raise_descriptors() -> None:
    """As many as this process may have: what a shell grants by default, 1,024, is for older programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Room(NamedTuple):
    """How the descriptors of the process are divided; what is left is for runs and the store."""

    most: int
    """Connections that are served."""
    told: int
    """As many more are told to come again; those beyond are closed."""
    at_once: int
    """Connections that are taken in one go, before any of them can be closed."""

    @classmethod
    def here(cls) -> Room:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        limit = _MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
        most = min(MOST_CONNECTIONS, limit // 4)
        return cls(most, most // 2, min(_BACKLOG, limit // 8))


class Server(uvicorn.Server):
    """uvicorn's, with signals of its own: a stop that was asked for is a success."""

    def __init__(self, config: uvicorn.Config, service: Service, announce: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._announce = announce
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if not self.should_exit:
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True
        # whatever holds it up then goes on after the next start: nothing finished is lost
        last_call = Timer(self._service.settings.drain_s + _GRACE_S, os._exit, (1,))
        last_call.daemon = True
        last_call.start()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._service.begin_stop)


class PatientProtocol(H11Protocol):
    """uvicorn's, which waits for a request's head for ever, and answers what is no HTTP in its own words."""

    _head: asyncio.TimerHandle | None = None
    _too_many = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        room = Room.here()
        if len(self.connections) > room.most + room.told:
            transport.close()
            return
        self._too_many = len(self.connections) > room.most
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._too_many:
            self._send_last(503, Code.RATE_LIMITED, "Too many connections are open; come again in 5 s", _LATER)
            return
        if self._head is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._stop_waiting()
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.loop.call_later(LINGER_S, self._hang_up, self.cycle)

    def send_400_response(self, msg: str) -> None:
        self._send_last(400, Code.INVALID_INPUT, msg, {})

    def _send_last(self, status: int, code: Code, message: str, more: Mapping[str, str]) -> None:
        """Answer without the application, and hang up."""
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

    def _await_head(self) -> None:
        self._head = self.loop.call_later(HEAD_S, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _hang_up(self, cycle: object) -> None:
        if self.cycle is cycle and self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

"""Running the service: a socket, a server, and an end that takes less than ten seconds."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from threading import Timer
from time import monotonic
from types import FrameType

import uvicorn

from gradeline.errors import ConfigError, Problem
from gradeline.service.app import application
from gradeline.service.connections import MOST_DESCRIPTORS, PatientProtocol, Room, read_proxies
from gradeline.service.state import Service

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
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=Room.here().accepted_at_once,
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
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Server(uvicorn.Server):
    """uvicorn's, with signals of its own: a stop that was asked for is a success.

    The first signal begins a drain: runs in flight are finished or given back, requests in flight are finished, and new
    ones are answered with 503 (see `gradeline.service.drain`). Only then the socket is closed.
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

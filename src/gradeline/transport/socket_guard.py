"""An egress policy for code that opens sockets on its own.

Plugins run in this process, and may use any HTTP client. While the code of a plugin runs, an audit hook of the
interpreter checks each address that a Python socket connects or sends to. It covers tasks and threads that the code
starts. It does not cover clients that call the operating system without Python's sockets (uvloop, gRPC, libcurl), other
processes, or code that works around it on purpose: that takes a container or a firewall.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from ipaddress import ip_address
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

from gradeline.model.resources import EgressPolicy
from gradeline.transport.faults import EgressRefusedError
from gradeline.transport.pool import PooledSocket

_policy: ContextVar[EgressPolicy | None] = ContextVar("socket_guard", default=None)
_threads: WeakKeyDictionary[Thread, EgressPolicy] = WeakKeyDictionary()
"""Threads that guarded code started: they do not inherit context variables."""
_installing = threading.Lock()
_installed = False

_CONNECTIONS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOP_THREADS = "asyncio_"
"""The event loop's own threads serve other code too; `run_in_executor` of a run's loop passes the context on."""


@contextmanager
def guarded_sockets(policy: EgressPolicy) -> Iterator[None]:
    """Inside the block, sockets reach only addresses that the policy allows; else `EgressRefusedError`, an OSError."""
    _install()
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def _active_policy() -> EgressPolicy | None:
    """The policy of the code that runs now."""
    return _policy.get() or _threads.get(threading.current_thread())


def _install() -> None:
    """Once a process: an audit hook cannot be removed."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_audit)
            setattr(Thread, "start", _marked_start(Thread.start))  # noqa: B010 - mypy takes no other
            _installed = True


def _marked_start(start: Callable[[Thread], None]) -> Callable[[Thread], None]:
    @wraps(start)
    def marked(thread: Thread) -> None:
        policy = _active_policy()
        if policy is not None and not thread.name.startswith(_LOOP_THREADS):
            _threads[thread] = policy
        start(thread)

    return marked


def _audit(event: str, args: tuple[Any, ...], watched: frozenset[str] = _CONNECTIONS) -> None:
    # an argument: while the interpreter ends, hooks are still called and the names of this module are None
    if event in watched and _active_policy is not None:
        policy = _active_policy()
        if policy is not None:
            _check(policy, args[0], args[1])


def _check(policy: EgressPolicy, connection: object, place: object) -> None:
    if isinstance(connection, PooledSocket) or place is None:
        return  # checked together with its host name; an address that was checked when it was connected
    if not isinstance(place, tuple) or len(place) < 2:
        raise EgressRefusedError(f"{place!r} is not an internet address")
    address, port = str(place[0]), int(place[1])
    try:
        ip_address(address.partition("%")[0])
    except ValueError:
        # the name was resolved already, and what the address is cannot be seen from here
        raise EgressRefusedError(
            f"{address!r} is a name: resolve it before the connection, as socket.create_connection does"
        ) from None
    reason = policy.check(address, address, port)
    if reason is not None and not _is_allowed_host(policy, address, port):
        raise EgressRefusedError(reason)


def _is_allowed_host(policy: EgressPolicy, address: str, port: int) -> bool:
    """Whether the address belongs to a host that the policy allows by its name."""
    hosts: Any = getattr(policy, "allowed_hosts", None)
    return hosts is not None and any(address in _addresses(host, port) for host in hosts(port))


def _addresses(host: str, port: int) -> set[str]:
    try:
        return {str(place[0]) for *_, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError:
        return set()

"""Egress policies: which addresses may be reached, and how that is enforced.

Policies decide by address, not by the spelling of a host. `SocketGuard` and `GuardedResolver` apply one to the HTTP
client. `guarded_sockets` applies one to plugins, which run in this process and may use any HTTP client: an audit hook
of the interpreter checks each address that a Python socket connects or sends to, in the tasks and threads that the
plugin starts too. It does not cover clients that bypass Python's sockets (uvloop, gRPC, libcurl), other processes, or
code that works around it on purpose: that takes a container or a firewall.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import wraps
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

from aiohappyeyeballs import AddrInfoType
from aiohttp.abc import AbstractResolver, ResolveResult

from gradeline.errors import ConfigError, Problem
from gradeline.model.resources import EgressPolicy
from gradeline.transport.connection_pool import PooledSocket, SocketTable, current_checkout
from gradeline.transport.errors import EgressRefusedError

__all__ = ["AllowAll", "EgressPolicy", "PublicOnly", "ReportingPolicy", "allow_all"]

Network = IPv4Network | IPv6Network


class AllowAll:
    """Allows every address: for local use."""

    def check(self, host: str, address: str, port: int) -> str | None:  # noqa: ARG002 - the protocol's signature
        return None


allow_all = AllowAll()


class ReportingPolicy:
    """Wraps a policy and calls back on each refusal."""

    def __init__(self, policy: EgressPolicy, on_refusal: Callable[[], None]) -> None:
        self._policy = policy
        self._on_refusal = on_refusal

    def check(self, host: str, address: str, port: int) -> str | None:
        reason = self._policy.check(host, address, port)
        if reason is not None:
            self._on_refusal()
        return reason

    def allowed_hosts(self, port: int) -> list[str]:
        """The hosts that the policy allows by name on this port; empty if it does not know names."""
        hosts: Callable[[int], list[str]] | None = getattr(self._policy, "allowed_hosts", None)
        return [] if hosts is None else hosts(port)


_REFUSED: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(block), what)
    for block, what in (
        ("168.63.129.16/32", "a cloud metadata address"),
        ("169.254.169.254/32", "a cloud metadata address"),
        ("100.100.100.200/32", "a cloud metadata address"),
        ("fd00:ec2::254/128", "a cloud metadata address"),
        ("0.0.0.0/8", "an unspecified address"),
        ("127.0.0.0/8", "a loopback address"),
        ("10.0.0.0/8", "a private address"),
        ("172.16.0.0/12", "a private address"),
        ("192.168.0.0/16", "a private address"),
        ("169.254.0.0/16", "a link-local address"),
        ("100.64.0.0/10", "a carrier's shared address"),
        ("192.0.0.0/24", "a reserved address"),
        ("192.88.99.0/24", "a reserved address"),
        ("198.18.0.0/15", "a reserved address"),
        ("224.0.0.0/4", "a multicast address"),
        ("240.0.0.0/4", "a reserved address"),
        ("::/128", "an unspecified address"),
        ("::1/128", "a loopback address"),
        ("::/96", "an IPv4 address embedded in IPv6"),
        ("::ffff:0:0/96", "an IPv4 address embedded in IPv6"),
        ("64:ff9b::/96", "an IPv4 address embedded in IPv6"),
        ("64:ff9b:1::/48", "an IPv4 address embedded in IPv6"),
        ("2001::/32", "an IPv4 address embedded in IPv6"),
        ("2002::/16", "an IPv4 address embedded in IPv6"),
        ("fc00::/7", "a private address"),
        ("fec0::/10", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("ff00::/8", "a multicast address"),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")


class PublicOnly:
    """Allows public addresses and those that the operator added: for a service.

    ``allow`` takes networks (``10.1.0.0/16``), addresses and ``host:port`` pairs; a pair allows that host on that port,
    whatever address its name resolves to.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._networks: list[Network] = []
        self._pairs: set[tuple[str, int]] = set()
        for entry in allow:
            self._allow(entry.strip())

    def check(self, host: str, address: str, port: int) -> str | None:
        if (_normal(host), port) in self._pairs:
            return None
        try:
            ip = ip_address(address.partition("%")[0])
        except ValueError:
            return f"{address!r} is not an IP address"
        if any(ip in network for network in self._networks):
            return None
        what = _why_not_public(ip)
        if what is None:
            return None
        named = address if host == address else f"{host} is {address}, which"
        return f"{named} is {what}; the operator can allow it by network or host:port"

    def allowed_hosts(self, port: int) -> list[str]:
        """The hosts that are allowed by name on this port."""
        return [host for host, allowed in self._pairs if allowed == port]

    def _allow(self, entry: str) -> None:
        try:
            self._networks.append(ip_network(entry, strict=False))
        except ValueError:
            host, _, port = entry.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
                message = f"{entry!r} is neither a network (10.1.0.0/16) nor host:port"
                raise ConfigError(Problem("egress", message)) from None
            self._pairs.add((_normal(host), int(port)))


def _normal(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _why_not_public(ip: IPv4Address | IPv6Address) -> str | None:
    for network, what in _REFUSED:
        if ip in network:
            return what
    if ip.is_multicast or not ip.is_global or (isinstance(ip, IPv6Address) and ip not in _GLOBAL_UNICAST):
        return "a reserved address"
    return None


class SocketGuard:
    """Opens sockets only to addresses that the policy allows.

    Every address passes here, literals too. `GuardedResolver` runs earlier: a host name may resolve to several
    addresses, and one that is refused refuses the name.
    """

    def __init__(self, policy: EgressPolicy) -> None:
        self._policy = policy
        self.sockets = SocketTable()

    def check(self, host: str, address: str, port: int) -> None:
        reason = self._policy.check(host, address, port)
        if reason is not None:
            raise EgressRefusedError(reason)

    def open_socket(self, info: AddrInfoType) -> socket.socket:
        """aiohttp's ``socket_factory``."""
        family, kind, protocol, _, place = info
        address, port = str(place[0]), int(place[1])
        self.check(current_checkout.get().host, address, port)
        return self.sockets.open(family, kind, protocol)

    def hang_up(self) -> None:
        """Shut down open sockets: asyncio keeps a closed connection until its peer has read everything sent."""
        for open_socket in self.sockets:
            if open_socket.fileno() != -1:
                with suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)


class GuardedResolver(AbstractResolver):
    """A resolver that refuses a name if any of its addresses is refused."""

    def __init__(self, inner: AbstractResolver, guard: SocketGuard) -> None:
        self._inner = inner
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        results = await self._inner.resolve(host, port, family)
        for result in results:
            self._guard.check(host, result["host"], port)
        return results

    async def close(self) -> None:
        await self._inner.close()


_policy: ContextVar[EgressPolicy | None] = ContextVar("socket_guard", default=None)
_threads: WeakKeyDictionary[Thread, EgressPolicy] = WeakKeyDictionary()
"""Threads that guarded code started; threads do not inherit context variables."""
_installing = threading.Lock()
_installed = False

_CONNECTIONS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOP_THREADS = "asyncio_"
"""Threads of the event loop's executor also serve other code; `run_in_executor` of a run's loop copies the context."""


@contextmanager
def guarded_sockets(policy: EgressPolicy) -> Iterator[None]:
    """Limit sockets inside the block to addresses that the policy allows; others raise `EgressRefusedError`."""
    _install()
    token = _policy.set(policy)
    try:
        yield
    finally:
        _policy.reset(token)


def _active_policy() -> EgressPolicy | None:
    """The policy of the running code."""
    return _policy.get() or _threads.get(threading.current_thread())


def _install() -> None:
    """Install the hook once per process: an audit hook cannot be removed."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_audit)
            setattr(Thread, "start", _marked_start(Thread.start))  # noqa: B010 - mypy rejects a plain assignment
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
    # a default argument, because hooks still run at interpreter shutdown, when module globals are None
    if event in watched and _active_policy is not None:
        policy = _active_policy()
        if policy is not None:
            _check(policy, args[0], args[1])


def _check(policy: EgressPolicy, connection: object, place: object) -> None:
    if isinstance(connection, PooledSocket) or place is None:
        return  # pooled sockets were checked with their host name; no address means an already connected socket
    if not isinstance(place, tuple) or len(place) < 2:
        raise EgressRefusedError(f"{place!r} is not an internet address")
    address, port = str(place[0]), int(place[1])
    try:
        ip_address(address.partition("%")[0])
    except ValueError:
        # the system resolves the name inside connect, so the address cannot be checked here
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

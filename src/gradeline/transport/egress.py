"""Where calls may go: policies over addresses, never over the spelling of a host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from gradeline.errors import ConfigError, Problem
from gradeline.model.resources import EgressPolicy

__all__ = ["AllowAll", "EgressPolicy", "ObservedPolicy", "PublicOnly", "allow_all"]

Network = IPv4Network | IPv6Network


class AllowAll:
    """For a person's own machine: everything may be reached."""

    def check(self, host: str, address: str, port: int) -> str | None:  # noqa: ARG002 - the protocol's signature
        return None


allow_all = AllowAll()


class ObservedPolicy:
    """Another policy, each refusal of which is reported."""

    def __init__(self, policy: EgressPolicy, refused: Callable[[], None]) -> None:
        self._policy = policy
        self._refused = refused

    def check(self, host: str, address: str, port: int) -> str | None:
        reason = self._policy.check(host, address, port)
        if reason is not None:
            self._refused()
        return reason

    def allowed_hosts(self, port: int) -> list[str]:
        """The hosts that the policy allows by name on that port; none where it knows no names."""
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
        ("::/96", "an IPv4 address in IPv6 disguise"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6 disguise"),
        ("64:ff9b::/96", "an IPv4 address in IPv6 disguise"),
        ("64:ff9b:1::/48", "an IPv4 address in IPv6 disguise"),
        ("2001::/32", "an IPv4 address in IPv6 disguise"),
        ("2002::/16", "an IPv4 address in IPv6 disguise"),
        ("fc00::/7", "a private address"),
        ("fec0::/10", "a private address"),
        ("fe80::/10", "a link-local address"),
        ("ff00::/8", "a multicast address"),
    )
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")


class PublicOnly:
    """For a service: public addresses, and what its operator allowed besides.

    ``allow`` takes networks (``10.1.0.0/16``), addresses and ``host:port`` pairs; a pair allows that
    host on that port wherever its name points to.
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
            return f"{address!r} is no address"
        if any(ip in network for network in self._networks):
            return None
        what = _why_not_public(ip)
        if what is None:
            return None
        named = address if host == address else f"{host} is {address}, which"
        return f"{named} is {what}; the operator can allow it by network or host:port"

    def allowed_hosts(self, port: int) -> list[str]:
        """The hosts that are allowed by name on that port."""
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

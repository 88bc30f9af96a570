"""Where the service's calls may go, asked when a URL is saved and again at every connection."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import SplitResult, urlsplit

from gradeline.model import quote
from gradeline.service.errors import Code, ServiceError
from gradeline.service.telemetry import LabelledCounter
from gradeline.transport.egress import PublicOnly
from gradeline.transport.redaction import safe_url

_LOOPBACK = ("127.0.0.0/8", "::1/128")
_LONGEST = 2048
_PORTS = {"http": 80, "https": 443}

Resolve = Callable[[str, int], list[str]]


def addresses_of(host: str, port: int) -> list[str]:
    """Every address that a host name has, by the system's resolver; it also reads ``127.1`` and ``0x7f000001``."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in found))


class ServiceEgress:
    """Public addresses and the operator's networks; loopback too as long as the service is in local mode."""

    def __init__(
        self, allow: Iterable[str] = (), *, local: Callable[[], bool], resolve: Resolve = addresses_of
    ) -> None:
        allow = tuple(allow)
        self._with_keys = PublicOnly(allow)
        self._at_home = PublicOnly((*allow, *_LOOPBACK))
        self._local = local
        self._resolve = resolve
        self.refusals = LabelledCounter()
        """Addresses that were refused, by where: in a request, or at a connection."""

    def check(self, host: str, address: str, port: int) -> str | None:
        """Why this address may not be reached, or None where it may."""
        reason = self.settled().check(host, address, port)
        if reason is not None:
            self.refusals.add("connection")
        return reason

    def settled(self) -> PublicOnly:
        """What holds at this moment, for a process that cannot ask whether the service is still in local mode."""
        return self._at_home if self._local() else self._with_keys

    def check_url(self, url: str, field: str = "agent_endpoint_url") -> None:
        """Refuse a URL that no call may use: `ServiceError` INVALID_URL or URL_NOT_ALLOWED. Nothing is dialled.

        A name that cannot be resolved now is let through: every connection is checked again.
        """
        parts = _parts(url, field)
        port = parts.port or _PORTS[parts.scheme]
        host = parts.hostname or ""
        try:
            # a resolver may know `localhost` and not `localhost.`, which a later one does
            addresses = self._resolve(host.rstrip("."), port)
        except (OSError, UnicodeError):
            return
        for address in addresses:
            reason = self.settled().check(host, address, port)
            if reason is not None:
                self.refusals.add("request")
                raise ServiceError(
                    Code.URL_NOT_ALLOWED,
                    f"Field {field!r}: {safe_url(url)} may not be called: {reason} (--allow-agent-net)",
                )

    def check_urls_in(self, options: object, field: str) -> None:
        """Refuse options of a plugin with a URL that no call may use, as `check_url` does.

        Which of its options hold URLs is unknown, so each text that is a URL as a whole is checked.
        """
        for place, text in _texts(options, field):
            if text.lower().startswith(("http://", "https://")):
                self.check_url(text, place)

    def allowed_hosts(self, port: int) -> list[str]:
        """The hosts that the operator allowed by name on that port."""
        return self.settled().allowed_hosts(port)


def _texts(tree: object, place: str) -> Iterator[tuple[str, str]]:
    """Each text in a tree, with its path."""
    if isinstance(tree, str):
        yield place, tree
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _texts(value, f"{place}.{key}")
    elif isinstance(tree, list | tuple):
        for number, value in enumerate(tree):
            yield from _texts(value, f"{place}[{number}]")


def _parts(url: str, field: str) -> SplitResult:
    """The parts of a URL that a call could use."""

    def wrong(reason: str) -> ServiceError:
        return ServiceError(Code.INVALID_URL, f"Field {field!r}: {reason}")

    if len(url) > _LONGEST:
        raise wrong(f"a URL has at most {_LONGEST:,} characters")
    if not url.isprintable() or any(letter.isspace() for letter in url) or "\\" in url:
        raise wrong(f"{quote(safe_url(url))} has blanks, control characters or backslashes")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong("it is no URL") from None
    if parts.scheme not in _PORTS:
        raise wrong(f"{quote(url if '@' not in url else safe_url(url), 80)} is neither an http:// nor an https:// URL")
    if not parts.hostname or port == 0:
        raise wrong("it names no host, or a port that cannot be")
    if parts.username is not None or parts.password is not None:
        raise wrong("credentials in a URL are not allowed; store them as a secret and send them in a header")
    return parts

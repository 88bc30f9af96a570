"""HTTP requests and responses of the transport, and how a redirect changes a request."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from typing import Literal, NamedTuple

from msgspec import Struct
from multidict import CIMultiDict
from yarl import URL

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model.secrets import MARKER, Mask, is_secret_name
from gradeline.model.text import quote
from gradeline.transport.body import Event
from gradeline.transport.errors import AttemptError
from gradeline.transport.redaction import known_secrets, safe_url

Stream = Literal["none", "sse", "ndjson"]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BREAKS = re.compile(r"[\r\n\0]")
_RESERVED_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "accept-encoding", "connection"})
_TRACE = re.compile(r"[0-9a-f]{2}(-[0-9a-f]+)+")

_VALIDATED: dict[tuple[object, ...], tuple[URL, Mask | None]] = {}
"""Validated request heads: most calls of a run differ only in body and traceparent."""
_MAX_VALIDATED = 256


class HttpRequest(Struct, frozen=True):
    """One call. Its ``repr`` leaves out everything that may hold a secret.

    ``deadline_s`` covers redirects, retries and pauses. Headers named in ``secret_headers`` are dropped when a redirect
    leaves the origin, as are headers with a secret name; ``secrets`` are further values that no message may show.
    ``traceparent`` is sent unless the headers have one. It is a field of its own because it changes with each call,
    while requests with the same head are validated only once.
    """

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    deadline_s: float = 30.0
    retries: int = 2
    stream: Stream = "none"
    secret_headers: Collection[str] = ()
    secrets: Collection[str] = ()
    traceparent: str | None = None

    def __repr__(self) -> str:
        return f"HttpRequest({self.method!r}, deadline_s={self.deadline_s!r}, retries={self.retries!r})"

    def known_secrets(self) -> tuple[str, ...]:
        """Every value that no message about this call may show."""
        return known_secrets(self.url, self.headers, self.secret_headers, self.secrets)

    def checked_url(self) -> URL:
        """The first URL to call; `ConfigError` lists all problems of the request."""
        return self.checked()[0]

    def checked(self) -> tuple[URL, Mask | None]:
        """The first URL to call and a mask for the request's credentials; raises as `checked_url` does."""
        head = (self.method, self.url, tuple(self.headers.items()), self.deadline_s, self.retries)
        known = _VALIDATED.get(head)
        if known is not None and (self.traceparent is None or _TRACE.fullmatch(self.traceparent)):
            return known
        problems = [*self._url_problems(), *self._header_problems()]
        if not _TOKEN.fullmatch(self.method):
            problems.append(Problem("method", f"invalid HTTP method {self.method!r}"))
        if not (isfinite(self.deadline_s) and self.deadline_s > 0):
            problems.append(Problem("deadline_s", f"{self.deadline_s!r} must be a positive number of seconds"))
        if self.retries < 0:
            problems.append(Problem("retries", f"{self.retries!r} is negative"))
        if self.traceparent is not None and not _TRACE.fullmatch(self.traceparent):
            problems.append(
                Problem("traceparent", f"invalid traceparent {self.traceparent!r}; expected 00-4bf9…-00f0…-01")
            )
        if problems:
            raise ConfigError(problems)
        if len(_VALIDATED) >= _MAX_VALIDATED:
            _VALIDATED.clear()
        # markers of bound secrets are not values; the transport masks their values
        values = (value for value in known_secrets(self.url, self.headers, (), ()) if MARKER not in value)
        known = _VALIDATED[head] = URL(self.url).with_fragment(None), Mask(values) or None
        return known

    def sent_headers(self) -> CIMultiDict[str]:
        """The headers with the traceparent."""
        headers = CIMultiDict(self.headers)
        if self.traceparent is not None:
            headers.setdefault("traceparent", self.traceparent)
        return headers

    def _url_problems(self) -> Iterator[Problem]:
        display_url = safe_url(self.url)
        try:
            url = URL(self.url)
            host = url.raw_host
        except ValueError:  # its message quotes the URL, which may hold a secret
            yield Problem("url", f"{display_url} is not a valid URL")
            return
        if url.scheme not in ("http", "https"):
            remedy = "" if "://" in display_url or not display_url else f"; write http://{display_url}"
            yield Problem("url", f"{quote(display_url)} must begin with http:// or https://{remedy}")
        elif not host:
            yield Problem("url", f"{display_url} has no host")
        if url.raw_user is not None or url.raw_password is not None:
            yield Problem("url", f"{display_url} contains credentials; send them in an Authorization header instead")

    def _header_problems(self) -> Iterator[Problem]:
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name):
                yield Problem("headers", f"invalid header name {name!r}")
            elif name.lower() in _RESERVED_HEADERS:
                yield Problem("headers", f"{name} is set by the transport; leave it out")
            elif _BREAKS.search(value):
                yield Problem(f"headers.{name}", "contains a line break or NUL")


class HttpResponse(NamedTuple):
    """A complete response of status 2xx; its body is decompressed.

    ``latency_ms`` covers the last attempt only, first byte sent to last byte read. ``complete`` is False if only the
    close of the connection ended the body: it may be cut off, so callers must look for their format's end marker.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: float
    attempts: int = 1
    events: tuple[Event, ...] = ()
    complete: bool = True
    masked: bool = False
    """Whether a credential was masked in the body."""


class CallError(AgentError):
    """A failed call. `gradeline.errors.response_policy` takes ``type`` and ``http_status``."""

    def __init__(self, error_type: str, message: str, *, http_status: int | None, attempts: int) -> None:
        super().__init__(error_type, message)
        self.http_status = http_status
        self.attempts = attempts


REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS = 5

_BODY_HEADERS = frozenset({"content-type", "content-encoding", "content-language", "content-location"})


class Hop(NamedTuple):
    """One request of a redirect chain."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None


class Redirect(NamedTuple):
    """A redirect response."""

    status: int
    location: str | None


def next_hop(hop: Hop, redirect: Redirect, secret_headers: Collection[str]) -> Hop:
    """The request that follows a redirect; `AttemptError` of type ``redirect`` if it must not be followed."""
    url = _target(hop.url, redirect)
    method, body = hop.method, hop.body
    dropped: set[str] = set()
    if (redirect.status == 303 and method != "HEAD") or (redirect.status in (301, 302) and method == "POST"):
        method, body = "GET", None
        dropped |= _BODY_HEADERS
    if not same_origin(url, hop.url):
        dropped |= {"host", *(name.lower() for name in secret_headers)}
        dropped |= {name.lower() for name, value in hop.headers.items() if is_secret_name(name) or MARKER in value}
    headers = CIMultiDict((name, value) for name, value in hop.headers.items() if name.lower() not in dropped)
    return Hop(method, url, headers, body)


def same_origin(one: URL, other: URL) -> bool:
    """Whether two URLs have the same scheme, host and port."""
    return _origin(one) == _origin(other)


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """Unlike yarl's ``origin()``, an explicit default port equals none."""
    return url.scheme, url.raw_host, url.port


def _target(base: URL, redirect: Redirect) -> URL:
    if not redirect.location:
        raise AttemptError("redirect", f"answered {redirect.status} without a Location")
    try:
        url = base.join(URL(redirect.location)).with_fragment(None)
        display_url = safe_url(url)
        host = url.raw_host
        port = url.port
    except ValueError:
        raise AttemptError(
            "redirect", f"the Location {quote(safe_url(redirect.location))} is not a valid URL"
        ) from None
    if url.scheme not in ("http", "https"):
        raise AttemptError("redirect", f"redirected to {quote(url.scheme)}, which is neither http nor https")
    if not host or port is None:
        raise AttemptError("redirect", f"redirected to {display_url}, which has no host")
    if url.raw_user is not None or url.raw_password is not None:
        raise AttemptError("redirect", f"redirected to {display_url} with credentials in the URL")
    if base.scheme == "https" and url.scheme == "http":
        raise AttemptError("redirect", f"redirected from https to {display_url}, which is not encrypted")
    return url

"""What goes into the transport and what comes out of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from math import isfinite
from typing import Literal, NamedTuple

from msgspec import Struct
from multidict import CIMultiDict
from yarl import URL

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model.bound_secret import MARKER
from gradeline.model.masking import Mask
from gradeline.model.text import quote
from gradeline.transport.events import Event
from gradeline.transport.redact import known_secrets, safe_url

Stream = Literal["none", "sse", "ndjson"]

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BREAKS = re.compile(r"[\r\n\0]")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "accept-encoding", "connection"})
_TRACE = re.compile(r"[0-9a-f]{2}(-[0-9a-f]+)+")

_SOUND: dict[tuple[object, ...], tuple[URL, Mask | None]] = {}
"""Heads that were looked at before: most calls of a run differ in their body and their trace alone."""
_MOST_SOUND = 256


class Request(Struct, frozen=True):
    """One call. What may hold a secret stays out of its ``repr``.

    ``deadline_s`` is total: redirects, retries and pauses included. Headers named in ``secret_headers``
    are dropped across origins, as are those that are secret by their name; ``secrets`` are further
    values that no message may show. ``traceparent`` is sent unless the headers have one: it is apart from
    them because it is new with each call, and heads that stay the same are looked at once.
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
        return f"Request({self.method!r}, deadline_s={self.deadline_s!r}, retries={self.retries!r})"

    def known_secrets(self) -> tuple[str, ...]:
        """Every value that no message of this call may show."""
        return known_secrets(self.url, self.headers, self.secret_headers, self.secrets)

    def checked_url(self) -> URL:
        """The URL to call first, or `ConfigError` with all that is wrong with this request."""
        return self.checked()[0]

    def checked(self) -> tuple[URL, Mask | None]:
        """The URL to call first, and the mask of the credentials in the request; `ConfigError` as `checked_url`."""
        head = (self.method, self.url, tuple(self.headers.items()), self.deadline_s, self.retries)
        known = _SOUND.get(head)
        if known is not None and (self.traceparent is None or _TRACE.fullmatch(self.traceparent)):
            return known
        problems = [*self._url_problems(), *self._header_problems()]
        if not _TOKEN.fullmatch(self.method):
            problems.append(Problem("method", f"{self.method!r} is no HTTP method"))
        if not (isfinite(self.deadline_s) and self.deadline_s > 0):
            problems.append(Problem("deadline_s", f"{self.deadline_s!r} is no positive number of seconds"))
        if self.retries < 0:
            problems.append(Problem("retries", f"{self.retries!r} is negative"))
        if self.traceparent is not None and not _TRACE.fullmatch(self.traceparent):
            problems.append(
                Problem("traceparent", f"{self.traceparent!r} is no trace context, such as 00-4bf9…-00f0…-01")
            )
        if problems:
            raise ConfigError(problems)
        if len(_SOUND) >= _MOST_SOUND:
            _SOUND.clear()
        # the markers of bound secrets are no values: the transport masks theirs
        values = (value for value in known_secrets(self.url, self.headers, (), ()) if MARKER not in value)
        known = _SOUND[head] = URL(self.url).with_fragment(None), Mask(values) or None
        return known

    def sent_headers(self) -> CIMultiDict[str]:
        """The headers with the trace."""
        headers = CIMultiDict(self.headers)
        if self.traceparent is not None:
            headers.setdefault("traceparent", self.traceparent)
        return headers

    def _url_problems(self) -> Iterator[Problem]:
        shown = safe_url(self.url)
        try:
            url = URL(self.url)
            host = url.raw_host
        except ValueError:  # its message quotes the URL, and with it whatever is secret in there
            yield Problem("url", f"{shown} is not a valid URL")
            return
        if url.scheme not in ("http", "https"):
            remedy = "" if "://" in shown or not shown else f"; write http://{shown}"
            yield Problem("url", f"{quote(shown)} must begin with http:// or https://{remedy}")
        elif not host:
            yield Problem("url", f"{shown} names no host")
        if url.raw_user is not None or url.raw_password is not None:
            yield Problem("url", f"{shown} holds credentials; send them in an Authorization header instead")

    def _header_problems(self) -> Iterator[Problem]:
        for name, value in self.headers.items():
            if not _TOKEN.fullmatch(name):
                yield Problem("headers", f"{name!r} is no header name")
            elif name.lower() in _OURS:
                yield Problem("headers", f"{name} is set by the transport; leave it out")
            elif _BREAKS.search(value):
                yield Problem(f"headers.{name}", "holds a line break or NUL")


class Answer(NamedTuple):
    """A whole answer of status 2xx; its body is decompressed.

    ``latency_ms`` is that of the last attempt alone, first byte sent to last byte read.
    ``complete`` is False where only the closing of the connection ended the body: nothing then
    proves that this was all, and whoever knows the format must look for its end marker.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    latency_ms: float
    attempts: int = 1
    events: tuple[Event, ...] = ()
    complete: bool = True
    masked: bool = False
    """Whether the body held a credential, which was masked."""


class CallError(AgentError):
    """A failed call. ``http_status`` is what `gradeline.errors.response_policy` asks for."""

    def __init__(self, error_type: str, message: str, *, http_status: int | None, attempts: int) -> None:
        super().__init__(error_type, message)
        self.http_status = http_status
        self.attempts = attempts

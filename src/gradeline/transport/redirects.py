"""Following redirects without carrying secrets to strangers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from multidict import CIMultiDict
from yarl import URL

from gradeline.model.bound_secret import MARKER
from gradeline.model.secrets import is_secret_name
from gradeline.model.text import quote
from gradeline.transport.faults import AttemptError
from gradeline.transport.redact import safe_url

REDIRECTS = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS = 5

_OF_THE_BODY = frozenset({"content-type", "content-encoding", "content-language", "content-location"})


class Hop(NamedTuple):
    """One request of a chain."""

    method: str
    url: URL
    headers: Mapping[str, str]
    body: bytes | None


class Redirect(NamedTuple):
    """An answer that names another place."""

    status: int
    location: str | None


def next_hop(hop: Hop, redirect: Redirect, secret_headers: Collection[str]) -> Hop:
    """The request that a redirect asks for, or a `AttemptError` of type ``redirect``."""
    url = _target(hop.url, redirect)
    method, body = hop.method, hop.body
    dropped: set[str] = set()
    if (redirect.status == 303 and method != "HEAD") or (redirect.status in (301, 302) and method == "POST"):
        method, body = "GET", None
        dropped |= _OF_THE_BODY
    if not same_origin(url, hop.url):
        dropped |= {"host", *(name.lower() for name in secret_headers)}
        dropped |= {name.lower() for name, value in hop.headers.items() if is_secret_name(name) or MARKER in value}
    kept = CIMultiDict((name, value) for name, value in hop.headers.items() if name.lower() not in dropped)
    return Hop(method, url, kept, body)


def same_origin(one: URL, other: URL) -> bool:
    """Whether two URLs have the same scheme, host and port."""
    return _origin(one) == _origin(other)


def _origin(url: URL) -> tuple[str, str | None, int | None]:
    """Unlike yarl's own, it does not tell a spelt-out default port from none."""
    return url.scheme, url.raw_host, url.port


def _target(base: URL, redirect: Redirect) -> URL:
    if not redirect.location:
        raise AttemptError("redirect", f"answered {redirect.status} without a Location")
    try:
        url = base.join(URL(redirect.location)).with_fragment(None)
        shown = safe_url(url)
        host = url.raw_host
        port = url.port
    except ValueError:
        raise AttemptError("redirect", f"the Location {quote(safe_url(redirect.location))} is no URL") from None
    if url.scheme not in ("http", "https"):
        raise AttemptError("redirect", f"redirected to {quote(url.scheme)}, which is neither http nor https")
    if not host or port is None:
        raise AttemptError("redirect", f"redirected to {shown}, which names no host")
    if url.raw_user is not None or url.raw_password is not None:
        raise AttemptError("redirect", f"redirected to {shown} with credentials in the URL")
    if base.scheme == "https" and url.scheme == "http":
        raise AttemptError("redirect", f"redirected from https to {shown}, which is not encrypted")
    return url

"""Bound secrets: which of them a request may carry, decided for every hop right before it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from ipaddress import ip_address
from urllib.parse import quote as percent_encode
from urllib.parse import quote_plus

from multidict import CIMultiDict
from yarl import URL

from gradeline.errors import ConfigError, Problem
from gradeline.model.secrets import MARKER, BoundSecret, Mask, SecretLocation, SecretSet
from gradeline.model.text import quote
from gradeline.transport.errors import AttemptError
from gradeline.transport.redaction import safe_url
from gradeline.transport.request import Hop, same_origin

_MARKER = MARKER.encode()
_PORTS = {"http": 80, "https": 443}


class SecretRefusedError(ConfigError):
    """A secret must not be sent to this address, or in this part of the request."""


def authorize(secret: BoundSecret, url: URL) -> None:
    """Raise `SecretRefusedError` for a URL whose scheme, host or port the secret is not bound to.

    Loopback addresses may use http for a secret bound to https: nothing leaves the machine.
    """
    host = (url.raw_host or "").lower()
    scheme_allowed = url.scheme == secret.scheme or (url.scheme == "http" and is_loopback(host))
    if scheme_allowed and any(_is_bound(entry, host, url) for entry in secret.hosts):
        return
    origin = f"{url.scheme}://{url.authority.rpartition('@')[2]}" if host else safe_url(url)
    remedy = "; store it again with scheme http to send it unencrypted" if _only_scheme_differs(secret, url) else ""
    raise SecretRefusedError(
        Problem(
            "", f"the secret {quote(secret.name)} may be sent to {secret.destinations} only, not to {origin}{remedy}"
        )
    )


def authorize_place(secret: BoundSecret, place: SecretLocation) -> None:
    """Raise `SecretRefusedError` for a secret in another part of the request than the one it is bound to."""
    if secret.place != place:
        reason = f"may be sent in the {secret.place} only, not in the {place}; an admin can store it with place {place}"
        raise SecretRefusedError(Problem("", f"the secret {quote(secret.name)} {reason}"))


def is_loopback(host: str) -> bool:
    """Whether a host, given without a port, is this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def insert_secrets(hop: Hop, secrets: SecretSet) -> Hop:
    """Replace each marker in the request by its secret's value; `SecretRefusedError` if it must not be sent."""
    for secret in secrets.secrets:
        for place in _places(hop, secret.marker):
            authorize(secret, hop.url)
            authorize_place(secret, place)
            hop = _INSERT[place](hop, secret)
    return hop


def fill_secrets(text: str, url: str, secrets: SecretSet | None) -> str:
    """Replace the markers in a string, for a program that calls this URL itself."""
    for secret in secrets.secrets if secrets is not None else ():
        if secret.marker in text:
            authorize(secret, URL(url))
            text = text.replace(secret.marker, secret.value)
    return text


def check_redirect(before: Hop, after: Hop, values: Iterable[str], secrets: SecretSet | None) -> None:
    """Refuse a redirect to another origin that would carry a secret in the body or the URL.

    ``values`` are the secrets of the request itself. `next_hop` drops headers with secrets.
    """
    if same_origin(before.url, after.url):
        return
    known = Mask((*values, *((secret.value for secret in secrets.secrets) if secrets is not None else ())))
    place = "body" if after.body is not None and (_MARKER in after.body or known.found_in(after.body)) else None
    if place is None and known.found_in(str(after.url).encode()):
        place = "URL"
    if place is not None:
        origin = safe_url(after.url.origin())
        reason = f"with a secret in the {place}, which is not sent to another origin; use that address as the url"
        raise AttemptError("redirect", f"redirected to {origin} {reason}")


def _places(hop: Hop, marker: str) -> Iterator[SecretLocation]:
    if any(marker in value for value in hop.headers.values()):
        yield "header"
    if marker in str(hop.url):
        if marker not in hop.url.raw_query_string:
            reason = f"a secret cannot be in the path of {safe_url(hop.url)}; send it in a header"
            raise SecretRefusedError(Problem("url", reason))
        yield "query"
    if hop.body is not None and marker.encode() in hop.body:
        yield "body"


def _in_headers(hop: Hop, secret: BoundSecret) -> Hop:
    filled = ((name, value.replace(secret.marker, secret.value)) for name, value in hop.headers.items())
    return hop._replace(headers=CIMultiDict(filled))


def _in_query(hop: Hop, secret: BoundSecret) -> Hop:
    encoded = percent_encode(secret.value, safe="")
    return hop._replace(url=URL(str(hop.url).replace(secret.marker, encoded), encoded=True))


def _in_body(hop: Hop, secret: BoundSecret) -> Hop:
    kind = next((value for name, value in hop.headers.items() if name.lower() == "content-type"), "").lower()
    value = secret.value
    if "json" in kind:
        value = json.dumps(value)[1:-1]
    elif "x-www-form-urlencoded" in kind:
        value = quote_plus(value)
    return hop._replace(body=(hop.body or b"").replace(secret.marker.encode(), value.encode()))


_INSERT: dict[SecretLocation, Callable[[Hop, BoundSecret], Hop]] = {
    "header": _in_headers,
    "query": _in_query,
    "body": _in_body,
}


def _is_bound(entry: str, host: str, url: URL) -> bool:
    name, _, port = entry.rpartition(":") if ":" in entry.rpartition("]")[2] else (entry, "", "")
    return name.strip("[]").lower() == host and url.port == (int(port) if port else _PORTS.get(url.scheme))


def _only_scheme_differs(secret: BoundSecret, url: URL) -> bool:
    if url.scheme != "http" or secret.scheme != "https":
        return False
    return any(_is_bound(entry, (url.raw_host or "").lower(), url) for entry in secret.hosts)

"""Keeping secrets out of messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, urlsplit

from gradeline.model.secrets import REDACTED, SHORTEST, is_secret_name, secrets_in_url
from gradeline.model.text import clean_text

EXCERPT_BYTES = 2048

_SCHEMES = frozenset({"basic", "bearer", "digest", "token", "apikey"})


def known_secrets(
    url: str, headers: Mapping[str, str], secret_headers: Iterable[str], secrets: Iterable[str]
) -> tuple[str, ...]:
    """Every value of a call that no message may show."""
    marked = {name.lower() for name in secret_headers}
    found = {secret for secret in secrets if secret}
    for name, value in headers.items():
        if name.lower() in marked:
            found.add(value)
        if name.lower() in marked or is_secret_name(name):
            # "Bearer TOKEN" and "a=ONE; b=TWO" may come back in parts
            parts = [value, *value.split(), *(pair.partition("=")[2].strip() for pair in value.split(";"))]
            found.update(part for part in parts if len(part) >= SHORTEST and part.lower() not in _SCHEMES)
    return tuple(found | secrets_in_url(url))


def redact(text: str, secrets: Iterable[str]) -> str:
    """The text without these values, as they are or percent-encoded."""
    forms = {form for secret in secrets if secret for form in (secret, quote(secret, safe=""), quote_plus(secret))}
    # the longest first: a secret may hold another one
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return text


def safe_url(url: object) -> str:
    """A URL as a message may show it: no userinfo, no query values, no fragment."""
    try:
        parts = urlsplit(str(url))
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "the URL"
    if ":" in host:
        host = f"[{host}]"
    return f"{parts.scheme}://{host}{port}{parts.path}{'?…' if parts.query else ''}"


def excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """The start of a body for an error message: clean, redacted, at most 2 KB."""
    text = redact(clean_text(body[: 4 * EXCERPT_BYTES]).text, secrets).strip()
    raw = text.encode()
    if len(raw) <= EXCERPT_BYTES:
        return text
    return raw[: EXCERPT_BYTES - len("…".encode())].decode(errors="ignore") + "…"

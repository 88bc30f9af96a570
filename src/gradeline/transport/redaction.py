"""Redaction: keeping secrets out of error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus, urlsplit

from gradeline.model.secrets import MASK, MIN_SECRET_CHARS, credential_parts, is_scheme, is_secret_name, secrets_in_url
from gradeline.model.text import clean_text

EXCERPT_BYTES = 2048


def known_secrets(
    url: str, headers: Mapping[str, str], secret_headers: Iterable[str], secrets: Iterable[str]
) -> tuple[str, ...]:
    """Every value of a call that no message may show: the secrets passed, secret headers and those in the URL."""
    marked = {name.lower() for name in secret_headers}
    found = {secret for secret in secrets if secret}
    for name, value in headers.items():
        if name.lower() in marked:
            found.add(value)
        if name.lower() in marked or is_secret_name(name):
            found.update(
                part for part in credential_parts(value) if len(part) >= MIN_SECRET_CHARS and not is_scheme(part)
            )
    return tuple(found | secrets_in_url(url))


def redact(text: str, secrets: Iterable[str]) -> str:
    """Mask these values, plain and percent-encoded."""
    forms = {form for secret in secrets if secret for form in (secret, quote(secret, safe=""), quote_plus(secret))}
    # longest first, because a secret may contain another one
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    return text


def safe_url(url: object) -> str:
    """A URL for messages: as written, without userinfo, query values and fragment."""
    text = str(url).strip()
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if it is not a number, as for a password with a slash in it
    except ValueError:
        return "the URL"
    head = text.partition("#")[0].partition("?")[0]
    scheme, mark, rest = head.partition("://")
    if not mark:
        visible = head.rpartition("@")[2]
    else:
        authority, slash, path = rest.partition("/")
        visible = f"{scheme}{mark}{authority.rpartition('@')[2]}{slash}{path}"
    return f"{visible}{'?…' if parts.query else ''}"


def excerpt(body: bytes, secrets: Iterable[str] = ()) -> str:
    """The start of a body for an error message: cleaned, redacted, at most 2 KB."""
    text = redact(clean_text(body[: 4 * EXCERPT_BYTES]).text, secrets).strip()
    raw = text.encode()
    if len(raw) <= EXCERPT_BYTES:
        return text
    return raw[: EXCERPT_BYTES - len("…".encode())].decode(errors="ignore") + "…"

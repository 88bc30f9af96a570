"""Which names stand for secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, urlsplit

REDACTED = "[redacted]"
SHORTEST = 4
"""A shorter value that merely looks like a secret (`?key=1`) would eat the message."""

_SECRET_WORDS = frozenset(
    {"auth", "authorization", "cookie", "credential", "credentials", "key", "passphrase", "passwd", "pwd", "sig"}
)
_SECRET_ENDS = ("apikey", "accesskey", "password", "secret", "signature", "token")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_secret_name(name: str) -> bool:
    """Whether a header, query parameter or option of this name holds a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words)


def secrets_in_url(url: str) -> set[str]:
    """The values of query parameters that are secret by their name."""
    try:
        pairs = parse_qsl(urlsplit(url).query, keep_blank_values=False)
    except ValueError:
        return set()
    return {value for name, value in pairs if len(value) >= SHORTEST and is_secret_name(name)}


def holds_secret(value: object, name: str = "") -> bool:
    """Whether a tree of data holds a secret itself, by its names; ``${NAME}`` only says where one is."""
    if isinstance(value, Mapping):
        return any(holds_secret(item, str(key)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(holds_secret(item, name) for item in value)
    if not isinstance(value, str) or "${" in value:
        return False
    return is_secret_name(name) or bool(secrets_in_url(value))

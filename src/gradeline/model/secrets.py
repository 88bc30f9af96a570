"""Which names stand for secrets."""

from __future__ import annotations

import re

REDACTED = "[redacted]"

_SECRET_WORDS = frozenset(
    {"auth", "authorization", "cookie", "credential", "credentials", "key", "passphrase", "passwd", "pwd", "sig"}
)
_SECRET_ENDS = ("apikey", "accesskey", "password", "secret", "signature", "token")
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_secret_name(name: str) -> bool:
    """Whether a header, query parameter or option of this name holds a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words)

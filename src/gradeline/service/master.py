"""The one secret that an operator gives, and the keys that are made from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha256
from hmac import digest
from pathlib import Path

from gradeline.errors import ConfigError, Problem

VARIABLE = "GRADELINE_SECRET_KEY"
REMEDY = (
    f"set {VARIABLE}, or name a file with --secret-key-file; "
    "make one with: python3 -c 'import secrets; print(secrets.token_hex(32))'"
)
_SHORTEST = 16
_LONGEST = 10_000


class MasterKey:
    """Keys for several purposes from one secret, so that one never helps against another."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def fingerprint(self) -> str:
        """Tells two master keys apart and gives neither away."""
        return self.derive("fingerprint").hex()[:16]

    def derive(self, purpose: str) -> bytes:
        """32 bytes by HKDF-SHA256."""
        pseudorandom = digest(b"gradeline", self._secret, sha256)
        return digest(pseudorandom, f"gradeline {purpose}".encode() + b"\x01", sha256)


def read_secret_key(file: Path | None, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """The operator's secret, from the file, else from the environment; None: neither is there."""
    if file is None:
        secret, place = environment.get(VARIABLE, "").encode(), VARIABLE
        if not secret:
            return None
    else:
        secret, place = _content(file).strip(), str(file)
    if len(secret) < _SHORTEST:
        raise ConfigError(Problem(place, f"the secret key has {len(secret)} bytes, at least {_SHORTEST} are needed"))
    return secret


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_LONGEST + 1)
    except OSError as error:
        raise ConfigError(Problem(str(file), f"the secret key cannot be read: {error.strerror}")) from None
    if len(content) > _LONGEST:
        raise ConfigError(Problem(str(file), f"has more than {_LONGEST:,} bytes, which is no secret key"))
    return content

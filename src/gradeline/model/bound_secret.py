"""Secrets that are bound to an address: markers stand for their values until the transport sends them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property
from secrets import token_hex
from typing import Literal

from msgspec import Struct, field

from gradeline.model.masking import Mask

Place = Literal["header", "query", "body"]
Scheme = Literal["https", "http"]

MARKER = "gradeline-secret-"
"""How every marker begins. What follows is random, so that no case can hold one."""


class BoundSecret(Struct, frozen=True):
    """A secret and where it may be sent. ``hosts`` are ``host`` or ``host:port``; no port is the scheme's own."""

    name: str
    value: str
    hosts: tuple[str, ...]
    scheme: Scheme = "https"
    place: Place = "header"
    marker: str = field(default_factory=lambda: f"{MARKER}{token_hex(16)}")

    def __repr__(self) -> str:
        return f"BoundSecret({self.name!r}, {self.hosts!r}, {self.scheme!r}, {self.place!r})"

    @property
    def destinations(self) -> str:
        """Where it may be sent, for a message."""
        return " or ".join(f"{self.scheme}://{host}" for host in self.hosts) or "no address"


class SecretSet:
    """The secrets of a run, and further values that are masked in whatever comes back."""

    def __init__(self, secrets: Iterable[BoundSecret] = (), masked: Iterable[str] = ()) -> None:
        self.secrets = tuple(secrets)
        self._masked = frozenset(masked)

    def __repr__(self) -> str:
        return f"SecretSet({[secret.name for secret in self.secrets]!r})"

    def limited_to(self, markers: Collection[str]) -> SecretSet:
        """Those of these markers alone, for a process that needs no others."""
        return SecretSet(secret for secret in self.secrets if secret.marker in markers)

    @cached_property
    def mask(self) -> Mask:
        """Masks all values."""
        return Mask((*(secret.value for secret in self.secrets), *self._masked))

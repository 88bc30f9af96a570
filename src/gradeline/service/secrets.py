"""Secrets for agents and judges: encrypted at rest, bound to a host, never given out."""

from __future__ import annotations

import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from os import urandom
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from gradeline.errors import StoreError
from gradeline.model import quote
from gradeline.service.failures import ApiError, Code
from gradeline.service.master import REMEDY, MasterKey
from gradeline.service.moments import moment
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database, Dialect, Transaction, migrate

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12
_REFERENCE = "secret"


def _tables(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE secrets (name TEXT PRIMARY KEY, host TEXT NOT NULL, sealed TEXT NOT NULL, master TEXT NOT NULL,"
        " created_at TEXT NOT NULL, modified_at TEXT NOT NULL)"
    )


STEPS = (_tables,)


class SecretInfo(Struct, frozen=True):
    """What may be told of a secret."""

    name: str
    host: str
    """Where it may be sent: ``host``, or ``host:port``."""
    created_at: str
    modified_at: str


class Secrets:
    """The secrets of a store, each sealed with AES-256-GCM for its name and host."""

    def __init__(self, database: Database, settings: ServeSettings, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._master = MasterKey(settings.secret_key) if settings.secret_key is not None else None
        migrate(database, "secrets", STEPS)

    def put(self, name: str, value: str, host: str) -> SecretInfo:
        """Store a secret, or replace it."""
        host = host.lower()
        master = self._required()
        nonce = urandom(_NONCE_BYTES)
        sealed = b64encode(nonce + _cipher(master).encrypt(nonce, value.encode(), _bound(name, host))).decode()
        now = moment(self._clock())
        rows = self._database.transact(
            lambda transaction: transaction.run(
                "INSERT INTO secrets (name, host, sealed, master, created_at, modified_at) VALUES (?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET host = excluded.host, sealed = excluded.sealed,"
                " master = excluded.master, modified_at = excluded.modified_at"
                " RETURNING name, host, created_at, modified_at",
                name,
                host,
                sealed,
                master.fingerprint,
                now,
                now,
            )
        )
        return SecretInfo(*rows[0])

    def all(self) -> list[SecretInfo]:
        """Names and hosts, by name."""
        rows = self._database.read("SELECT name, host, created_at, modified_at FROM secrets ORDER BY name")
        return [SecretInfo(*row) for row in rows]

    def delete(self, name: str) -> bool:
        """Delete a secret, return success."""
        return bool(
            self._database.transact(
                lambda transaction: transaction.run("DELETE FROM secrets WHERE name = ? RETURNING name", name)
            )
        )

    def check(self, tree: object, host: str) -> None:
        """Refuse a tree whose secrets are not there or may not be sent to this host (``host`` or ``host:port``)."""
        for name in names_in(tree):
            self._row(name, host)

    def resolve(self, tree: Any, host: str) -> tuple[Any, tuple[str, ...]]:
        """The tree with each ``{secret: NAME}`` replaced by its value, and those values, which must not be shown.

        `ApiError` where one is unknown, is bound to another host, or cannot be opened.
        """
        values = {name: self._value(name, host) for name in names_in(tree)}
        return _filled(tree, values), tuple(values.values())

    def _value(self, name: str, host: str) -> str:
        bound, sealed, made_with = self._row(name, host)
        master = self._required()
        if made_with != master.fingerprint:
            raise StoreError(
                f"the secret {quote(name)} was stored with another secret key; "
                "start the service with that one, or store the secret again"
            )
        from cryptography.exceptions import InvalidTag  # loaded where a secret is used

        raw = b64decode(sealed)
        try:
            opened = _cipher(master).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _bound(name, bound))
        except InvalidTag:
            raise StoreError(f"the secret {quote(name)} is damaged; store it again") from None
        return opened.decode()

    def _row(self, name: str, host: str) -> tuple[str, str, str]:
        rows = self._database.read("SELECT host, sealed, master FROM secrets WHERE name = ?", name)
        if not rows:
            raise ApiError(Code.INVALID_INPUT, f"No secret {quote(name)}; store it with PUT /api/secrets/NAME")
        bound, sealed, made_with = rows[0]
        if not _may_go(bound, host.lower()):
            raise ApiError(
                Code.INVALID_INPUT, f"The secret {quote(name)} may be sent to {bound} alone, not to {quote(host)}"
            )
        return bound, sealed, made_with

    def _required(self) -> MasterKey:
        if self._master is None:
            raise ApiError(Code.INVALID_INPUT, f"Secrets need the service's secret key: {REMEDY}")
        return self._master


def names_in(tree: object) -> Iterator[str]:
    """The secrets that a tree of data refers to."""
    if isinstance(tree, dict):
        if (name := _reference(tree)) is not None:
            yield name
            return
        for value in tree.values():
            yield from names_in(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from names_in(value)


def _filled(tree: Any, values: dict[str, str]) -> Any:
    if isinstance(tree, dict):
        name = _reference(tree)
        return values[name] if name is not None else {key: _filled(value, values) for key, value in tree.items()}
    return [_filled(value, values) for value in tree] if isinstance(tree, list | tuple) else tree


def _reference(tree: dict[Any, Any]) -> str | None:
    name = tree.get(_REFERENCE)
    return name if len(tree) == 1 and isinstance(name, str) else None


def _may_go(bound: str, host: str) -> bool:
    """A secret bound to a host without a port may go to any of its ports."""
    return host == bound or (":" not in bound.rpartition("]")[2] and host.rpartition(":")[0] == bound)


def _bound(name: str, host: str) -> bytes:
    return f"{name}\0{host}".encode()


def _cipher(master: MasterKey) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # loaded where a secret is used

    return AESGCM(master.derive("secrets"))

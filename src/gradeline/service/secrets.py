"""Secrets for agents and judges: encrypted at rest, bound to addresses and a location in requests, never returned."""

from __future__ import annotations

import re
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from os import urandom
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import msgspec
from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator
from yarl import URL

from gradeline.errors import StoreError
from gradeline.model import canonical_json, quote
from gradeline.model.secrets import MIN_MASKED_CHARS, BoundSecret, Mask, Scheme, SecretLocation, is_scheme
from gradeline.rest_types import utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.auth import REMEDY, ApiKeys, Caller, KeyScope, MasterKey
from gradeline.service.errors import Code, ServiceError
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database, Dialect, Transaction, migrate
from gradeline.transport.secrets import SecretRefusedError, authorize, authorize_place

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12
_COLUMNS = "name, binding, sealed, master, created_at, modified_at"


def _tables(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE secrets (name TEXT PRIMARY KEY, binding TEXT NOT NULL, sealed TEXT NOT NULL,"
        " master TEXT NOT NULL, created_at TEXT NOT NULL, modified_at TEXT NOT NULL)"
    )


SECRET_STEPS = (_tables,)


class Binding(Struct, frozen=True):
    """Where a secret may be sent, and which keys may use it."""

    hosts: tuple[str, ...]
    """Each ``host`` or ``host:port``; the default port is that of the scheme."""
    scheme: Scheme = "https"
    place: SecretLocation = "header"
    scopes: tuple[Literal["admin", "run"], ...] = ("admin",)
    keys: tuple[str, ...] = ()
    """Ids of API keys that may use it, whatever their scope."""

    def allows(self, caller: Caller) -> bool:
        """Whether a caller may use the secret; an admin may use all of them."""
        return caller.scope is KeyScope.ADMIN or caller.scope.value in self.scopes or caller.key_id in self.keys


class SecretInfo(Struct, frozen=True):
    """A secret without its value."""

    name: str
    host: str
    """The first of the hosts."""
    hosts: tuple[str, ...]
    scheme: Scheme
    place: SecretLocation
    scopes: tuple[str, ...]
    keys: tuple[str, ...]
    created_at: str
    modified_at: str


class SecretUse(NamedTuple):
    """The use of a secret in a suite."""

    name: str
    url: str
    """The URL to which it would be sent."""
    place: SecretLocation | None
    """Its location in the request; None: only the transport knows it."""
    field: str


class _Row(NamedTuple):
    name: str
    binding: str
    sealed: str
    master: str
    created_at: str
    modified_at: str

    @property
    def bound(self) -> Binding:
        return msgspec.json.decode(self.binding, type=Binding)

    @property
    def sealed_for(self) -> bytes:
        """Additional authenticated data: with a changed binding the value cannot be decrypted."""
        return f"{self.name}\0{self.binding}".encode()

    @property
    def info(self) -> SecretInfo:
        bound = self.bound
        return SecretInfo(
            self.name,
            bound.hosts[0],
            bound.hosts,
            bound.scheme,
            bound.place,
            bound.scopes,
            bound.keys,
            self.created_at,
            self.modified_at,
        )

    def secret(self, value: str = "") -> BoundSecret:
        bound = self.bound
        return BoundSecret(self.name, value, bound.hosts, bound.scheme, bound.place)


class Secrets:
    """The secrets of a store, each encrypted with AES-256-GCM for its name and binding."""

    def __init__(self, database: Database, settings: ServeSettings, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._master = MasterKey(settings.secret_key) if settings.secret_key is not None else None
        self._hidden: frozenset[str] = frozenset()
        self._mask: Mask | None = None
        """A mask for the hidden values; None if they have changed since it was built."""
        self._lock = Lock()
        migrate(database, "secrets", SECRET_STEPS)

    def hide(self, values: Iterable[str]) -> None:
        """Also mask these values in `mask`."""
        new = frozenset(values)
        with self._lock:
            if not new <= self._hidden:
                self._hidden, self._mask = self._hidden | new, None

    def mask(self, text: str) -> str:
        """The text with all values masked that this process has stored, read or hidden. Does not read the store."""
        return self._all_masked().text(text)

    def mask_json(self, data: bytes) -> bytes:
        """As `mask`, in the strings of JSON data, which stays valid."""
        return self._all_masked().json(data)

    def _all_masked(self) -> Mask:
        with self._lock:
            self._mask = self._mask or Mask(self._hidden)
            return self._mask

    def put(self, name: str, value: str, binding: Binding, record: Recorder = unrecorded) -> SecretInfo:
        """Store a secret, or replace it."""
        master = self._required()
        self.hide((value,))
        binding = msgspec.structs.replace(binding, hosts=tuple(host.lower() for host in binding.hosts))
        now = utc_timestamp(self._clock())
        row = _Row(name, canonical_json(binding).decode(), "", master.fingerprint, now, now)
        nonce = urandom(_NONCE_BYTES)
        sealed = b64encode(nonce + _cipher(master).encrypt(nonce, value.encode(), row.sealed_for)).decode()

        def work(transaction: Transaction) -> SecretInfo:
            rows = transaction.run(
                f"INSERT INTO secrets ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608 - constant
                " ON CONFLICT (name) DO UPDATE SET binding = excluded.binding,"
                " sealed = excluded.sealed, master = excluded.master, modified_at = excluded.modified_at"
                f" RETURNING {_COLUMNS}",
                *row._replace(sealed=sealed),
            )
            record(transaction, name, msgspec.to_builtins(binding))
            return _Row(*rows[0]).info

        return self._database.transact(work)

    def all(self) -> list[SecretInfo]:
        """All secrets without their values, sorted by name."""
        return [row.info for row in self._rows()]

    def unreadable(self) -> list[str]:
        """The names of the secrets that were stored with another secret key than the present one."""
        master = self._required()
        return [row.name for row in self._rows() if row.master != master.fingerprint]

    def delete(self, name: str, record: Recorder = unrecorded) -> bool:
        """Delete a secret; returns whether it existed."""

        def work(transaction: Transaction) -> bool:
            found = transaction.run("DELETE FROM secrets WHERE name = ? RETURNING name", name)
            if found:
                record(transaction, name)
            return bool(found)

        return self._database.transact(work)

    def check(self, uses: Iterable[SecretUse], caller: Caller) -> None:
        """Raise `ServiceError` for uses that the transport would refuse or the caller is not allowed."""
        for use in uses:
            row = self._row(use.name)
            if not row.bound.allows(caller):
                remedy = f"ask an admin to store it with scopes [{caller.scope}] or with the id of your key in keys"
                message = f"Field {use.field!r}: your key may not use the secret {quote(use.name)}; {remedy}"
                raise ServiceError(Code.FORBIDDEN, message)
            try:
                authorize(row.secret(), _url(use.url))
                if use.place is not None:
                    authorize_place(row.secret(), use.place)
            except SecretRefusedError as error:
                raise ServiceError(Code.INVALID_INPUT, f"Field {use.field!r}: {error}") from None

    def open(self, names: Iterable[str]) -> dict[str, BoundSecret]:
        """The secrets with these names, for the transport.

        `ServiceError` or `StoreError` if one is unknown or cannot be decrypted.
        """
        rows = {name: self._row(name) for name in names}
        return {name: row.secret(self._value(row)) for name, row in rows.items()}

    def values(self) -> Iterator[str]:
        """The values of all secrets that can be decrypted, which are masked in responses."""
        for row in self._rows() if self._master is not None else ():
            try:
                yield self._value(row)
            except (ServiceError, StoreError):
                continue  # it cannot be sent either

    def _value(self, row: _Row) -> str:
        master = self._required()
        if row.master != master.fingerprint:
            raise StoreError(
                f"the secret {quote(row.name)} was stored with another secret key; "
                "start the service with that one, or store the secret again"
            )
        from cryptography.exceptions import InvalidTag  # loaded when a secret is used

        raw = b64decode(row.sealed)
        try:
            value = _cipher(master).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], row.sealed_for).decode()
        except InvalidTag:
            raise StoreError(f"the secret {quote(row.name)} is damaged; store it again") from None
        if len(value) < MIN_MASKED_CHARS:
            reason = f"has fewer than {MIN_MASKED_CHARS} characters and could not be masked in responses"
            raise ServiceError(Code.INVALID_INPUT, f"The secret {quote(row.name)} {reason}; store a longer one")
        self.hide((value,))
        return value

    def _rows(self) -> list[_Row]:
        found = self._database.read(f"SELECT {_COLUMNS} FROM secrets ORDER BY name")  # noqa: S608 - constant
        return [_Row(*row) for row in found]

    def _row(self, name: str) -> _Row:
        rows = self._database.read(f"SELECT {_COLUMNS} FROM secrets WHERE name = ?", name)  # noqa: S608 - constant
        if not rows:
            raise ServiceError(Code.INVALID_INPUT, f"No secret {quote(name)}; store it with PUT /api/secrets/NAME")
        return _Row(*rows[0])

    def _required(self) -> MasterKey:
        if self._master is None:
            raise ServiceError(Code.INVALID_INPUT, f"Secrets require the service's secret key: {REMEDY}")
        return self._master


def _url(text: str) -> URL:
    try:
        url = URL(text)
        _ = url.port
    except ValueError:
        return URL()
    return url


def _cipher(master: MasterKey) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # loaded when a secret is used

    return AESGCM(master.derive("secrets"))


_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])(?::[0-9]{{1,5}})?", re.ASCII | re.IGNORECASE)


def _check_host(host: str) -> str:
    port = host.rpartition(":")[2]
    if _HOST.fullmatch(host) is None or (port.isdecimal() and not 0 < int(port) < 65_536):
        raise ValueError("write host or host:port, such as agent.example.com; the scheme has its own field")
    return host


Host = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_check_host)]
KeyId = Annotated[str, Field(pattern="^[0-9a-f]{12}$")]


class SecretBody(BaseModel):
    """A secret, and where it may be sent."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"value": "Bearer 8f3kZq0w", "host": "agent.example.com", "scopes": ["run"]}]},
    )

    value: Annotated[
        str,
        Field(
            min_length=MIN_MASKED_CHARS,
            max_length=10_000,
            description="The whole value of the header, parameter or field; without its scheme at least 8 characters.",
        ),
    ]
    host: Annotated[
        Host | None,
        Field(description="Where it may be sent: `host`, or `host:port`. The default port is that of the scheme."),
    ] = None
    hosts: Annotated[
        list[Host] | None, Field(min_length=1, max_length=20, description="Several hosts, instead of `host`.")
    ] = None
    scheme: Annotated[
        Literal["https", "http"],
        Field(description="`http` sends it unencrypted. A loopback host may be called by either."),
    ] = "https"
    place: Annotated[Literal["header", "query", "body"], Field(description="Its location in requests.")] = "header"
    scopes: Annotated[
        list[Literal["admin", "run"]],
        Field(max_length=2, description="The scopes of keys that may use it; `admin` always may."),
    ] = ["admin"]
    keys: Annotated[
        list[KeyId], Field(max_length=100, description="Ids of further keys that may use it.", examples=[[]])
    ] = []

    @field_validator("value")
    @classmethod
    def _check_value(cls, value: str) -> str:
        if not value.strip() or any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in value):
            raise ValueError("a secret must not be blank or contain line breaks or control characters")
        scheme, _, token = value.partition(" ")
        if is_scheme(scheme) and len(token.strip()) < MIN_MASKED_CHARS:
            raise ValueError(f"a secret must have at least {MIN_MASKED_CHARS} characters after {scheme}")
        return value

    def binding(self) -> Binding:
        """Where the secret may be sent, and which keys may use it."""
        if (self.host is None) is (self.hosts is None):
            if self.host is None:
                raise ServiceError(Code.MISSING_FIELD, "Field 'host' is required (or 'hosts')")
            raise ServiceError(Code.INVALID_INPUT, "Fields 'host' and 'hosts' exclude each other")
        hosts = dict.fromkeys(self.hosts or [self.host or ""])
        return Binding(tuple(hosts), self.scheme, self.place, tuple(sorted({"admin", *self.scopes})), tuple(self.keys))


class SecretList(Struct, frozen=True):
    """All secrets, without their values."""

    secrets: list[SecretInfo]
    count: int
    total: int


def store_secret(secrets: Secrets, keys: ApiKeys, name: str, body: SecretBody, record: Recorder) -> SecretInfo:
    """Store or replace a secret; `ServiceError` where its name is invalid or it is for a key that does not exist."""
    if _NAME.fullmatch(name) is None:
        reason = "is not a valid name: use at most 100 letters, digits, _, - and ."
        raise ServiceError(Code.INVALID_INPUT, f"{quote(name, 120)} {reason}")
    binding = body.binding()
    for key in binding.keys:
        if keys.get(key) is None:
            raise ServiceError(
                Code.INVALID_INPUT, f"Field 'keys': no key {quote(key)}; list them with: gradeline keys list"
            )
    return secrets.put(name, body.value, binding, record)

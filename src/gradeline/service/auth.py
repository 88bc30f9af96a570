"""API keys (``gl_<id>_<secret>_<checksum>``, shown once, stored as a keyed digest), their scopes, and sessions."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from hmac import compare_digest, digest
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from msgspec import Struct

from gradeline.errors import ConfigError, Problem, StoreError
from gradeline.rest_types import utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database, Dialect, Transaction, migrate

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_MARK = "__gradeline_scope__"


class KeyScope(StrEnum):
    """What a key may be used for: `RUN` and `LABEL` include `READ`, `ADMIN` includes all."""

    PUBLIC = "public"
    """No key is required."""
    READ = "read"
    RUN = "run"
    LABEL = "label"
    ADMIN = "admin"

    def includes(self, required: KeyScope) -> bool:
        """Whether a key of this scope may call a route that requires the other."""
        if required is KeyScope.PUBLIC or self is required or self is KeyScope.ADMIN:
            return True
        return required is KeyScope.READ and self in (KeyScope.RUN, KeyScope.LABEL)


def requires(scope: KeyScope) -> Callable[[Endpoint], Endpoint]:
    """Marks an endpoint with the scope that it requires."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _MARK, scope)
        return endpoint

    return mark


def scope_of(endpoint: object) -> KeyScope | None:
    """The scope that an endpoint requires; None if it is not marked, so that it cannot be called."""
    scope: KeyScope | None = getattr(endpoint, _MARK, None)
    return scope


class Caller(NamedTuple):
    """The sender of a request, as `AuthMiddleware` determined it."""

    key_id: str | None
    """None in local mode, which has no keys."""
    scope: KeyScope
    request_id: str
    address: str | None = None
    """The address of the client, as a trusted proxy reports it; None for the command line."""
    session: str | None = None
    """The id of the session of the request; None if the request had a key itself."""


LOCAL_CALLER = Caller(None, KeyScope.ADMIN, "")
"""The caller in local mode."""


VARIABLE = "GRADELINE_SECRET_KEY"
REMEDY = (
    f"set {VARIABLE}, or name a file with --secret-key-file; "
    "create one with: python3 -c 'import secrets; print(secrets.token_hex(32))'"
)
_SHORTEST = 16
_LONGEST = 10_000


class MasterKey:
    """Derives independent keys for several purposes from one secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @property
    def fingerprint(self) -> str:
        """Identifies a master key without revealing it."""
        return self.derive("fingerprint").hex()[:16]

    def derive(self, purpose: str) -> bytes:
        """A key of 32 bytes for one purpose, by HKDF-SHA256."""
        pseudorandom = digest(b"gradeline", self._secret, sha256)
        return digest(pseudorandom, f"gradeline {purpose}".encode() + b"\x01", sha256)


def read_secret_key(file: Path | None, environment: Mapping[str, str] = os.environ) -> bytes | None:
    """The operator's secret from the file, otherwise from the environment; None if there is neither."""
    if file is None:
        secret, place = environment.get(VARIABLE, "").encode(), VARIABLE
        if not secret:
            return None
    else:
        secret, place = _content(file).strip(), str(file)
    if len(secret) < _SHORTEST:
        raise ConfigError(Problem(place, f"the secret key has {len(secret)} bytes; at least {_SHORTEST} are required"))
    return secret


def _content(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            content = opened.read(_LONGEST + 1)
    except OSError as error:
        raise ConfigError(Problem(str(file), f"the secret key cannot be read: {error.strerror}")) from None
    if len(content) > _LONGEST:
        raise ConfigError(Problem(str(file), f"has more than {_LONGEST:,} bytes, which is not a secret key"))
    return content


_FORM = re.compile(r"gl_([0-9a-f]{12})_([0-9a-f]{64})_([0-9a-f]{8})", re.ASCII)
_TOUCH_SECONDS = 60.0
_LOOK_SECONDS = 0.5
_COLUMNS = "id, name, scope, created_at, expires_at, last_used_at, revoked_at"


def _create_keys(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE api_keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, scope TEXT NOT NULL, digest TEXT NOT NULL,"
        " master TEXT NOT NULL, created_at TEXT NOT NULL, expires_at TEXT, last_used_at TEXT, revoked_at TEXT)"
    )


KEY_STEPS = (_create_keys,)


class ApiKey(Struct, frozen=True):
    """A key without its secret."""

    id: str
    name: str
    scope: KeyScope
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None

    def is_valid(self, now: str) -> bool:
        """Whether the key may be used at that time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class ApiKeys:
    """The keys of a store. Without the operator's secret no key can be created or used."""

    def __init__(self, database: Database, settings: ServeSettings, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._master = MasterKey(settings.secret_key) if settings.secret_key is not None else None
        self._pepper = self._master.derive("api keys") if self._master is not None else None
        self._touched: dict[str, float] = {}
        self._exist = False
        self._looked = float("-inf")
        migrate(database, "keys", KEY_STEPS)
        self.exist()

    def create(
        self, scope: KeyScope, name: str = "", lifetime_s: float | None = None, record: Recorder = unrecorded
    ) -> tuple[ApiKey, str]:
        """A new key and its text, which is not stored."""
        if self._master is None:
            raise ConfigError(Problem("", f"an API key requires the service's secret key: {REMEDY}"))
        now = self._clock()
        until = utc_timestamp(now + lifetime_s) if lifetime_s is not None else None
        key = ApiKey(token_hex(6), name, scope, utc_timestamp(now), until, None, None)
        start = f"gl_{key.id}_{token_hex(32)}"
        text = f"{start}_{_checksum(start)}"
        values = (key.id, name, scope.value, self._digest(text), self._master.fingerprint, key.created_at, until)

        def work(transaction: Transaction) -> None:
            transaction.run(
                "INSERT INTO api_keys (id, name, scope, digest, master, created_at, expires_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                *values,
            )
            record(transaction, key.id, {"scope": scope.value, "name": name, "expires_at": until})

        self._database.transact(work)
        self._exist = True
        return key, text

    def all(self) -> list[ApiKey]:
        """All keys ever created, oldest first."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_at, id")  # noqa: S608 - constant
        return [_key(row) for row in rows]

    def get(self, id: str) -> ApiKey | None:  # noqa: A002 - as the store names it
        """A key, valid or not."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM api_keys WHERE id = ?", id)  # noqa: S608 - constant
        return _key(rows[0]) if rows else None

    def revoke(self, id: str, record: Recorder = unrecorded) -> bool:  # noqa: A002 - as the store names it
        """Revoke a key at once, in every process; False if it does not exist. A second time changes nothing."""
        now = utc_timestamp(self._clock())

        def work(transaction: Transaction) -> bool:
            found = transaction.run(
                "UPDATE api_keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? RETURNING id", now, id
            )
            if found:
                record(transaction, id)
            return bool(found)

        return self._database.transact(work)

    def authenticate(self, text: str) -> ApiKey | None:
        """The valid key with this text, if any. The checksum detects a typing error without reading the store."""
        form = _FORM.fullmatch(text)
        if form is None or self._pepper is None or _checksum(text.rpartition("_")[0]) != form[3]:
            return None
        rows = self._database.read(f"SELECT {_COLUMNS}, digest FROM api_keys WHERE id = ?", form[1])  # noqa: S608
        # an unknown id takes as long as a wrong secret
        stored = rows[0][-1] if rows else "0" * 64
        if not compare_digest(self._digest(text), stored) or not rows:
            return None
        return self.use(_key(rows[0][:-1]))

    def use(self, key: ApiKey) -> ApiKey | None:
        """The key, if it is valid now; its time of use is stored."""
        now = self._clock()
        if not key.is_valid(utc_timestamp(now)):
            return None
        self._touch(key, now)
        return key

    def valid_ids(self, ids: Collection[str]) -> set[str]:
        """Those of these keys that are valid now. This does not count as use of the keys."""
        places = ", ".join("?" * len(ids))
        rows = self._database.read(f"SELECT {_COLUMNS} FROM api_keys WHERE id IN ({places})", *ids)  # noqa: S608
        now = utc_timestamp(self._clock())
        return {key.id for key in map(_key, rows) if key.is_valid(now)}

    @property
    def looked_lately(self) -> bool:
        """Whether `exist` can answer now without reading the store."""
        return self._exist or time.monotonic() - self._looked < _LOOK_SECONDS

    def exist(self, *, look: bool = True) -> bool:
        """Whether a key was ever created, which ends local mode. Up to half a second out of date."""
        if look and not self.looked_lately:
            # an unreadable store does not change access
            with suppress(StoreError):
                self._exist = bool(self._database.read("SELECT 1 FROM api_keys LIMIT 1")) or self._exist
            self._looked = time.monotonic()
        return self._exist

    def problem(self) -> str | None:
        """The reason why no key can be used, and the remedy; None if one can."""
        rows = self._database.read("SELECT master, revoked_at, expires_at FROM api_keys")
        if self._master is None:
            return f"the store has API keys, which cannot be checked without the service's secret key: {REMEDY}"
        now = utc_timestamp(self._clock())
        good = [made_with for made_with, revoked, until in rows if revoked is None and (until is None or now < until)]
        if not good:
            return "the store has no valid API key; create one with: gradeline keys create --scope admin"
        if self._master.fingerprint not in good:
            return (
                "the store's API keys were created with another secret key; start with that one, "
                "or create new keys with: gradeline keys create --scope admin"
            )
        return None

    def _digest(self, text: str) -> str:
        return digest(self._pepper or b"", text.encode(), sha256).hex()

    def _touch(self, key: ApiKey, now: float) -> None:
        if now - self._touched.get(key.id, float("-inf")) < _TOUCH_SECONDS:
            return
        self._touched[key.id] = now
        # reads must work even if the disk is full
        with suppress(StoreError):
            self._database.transact(
                lambda transaction: transaction.run(
                    "UPDATE api_keys SET last_used_at = ? WHERE id = ?", utc_timestamp(now), key.id
                )
            )


def looks_like_key(text: str) -> bool:
    """Whether a text contains what could be a key."""
    return _FORM.search(text) is not None


def without_keys(text: str) -> str:
    """The text with all keys redacted."""
    return _FORM.sub(r"gl_\1_[redacted]", text)


def _checksum(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def _key(row: tuple[str, str, str, str, str | None, str | None, str | None]) -> ApiKey:
    id_, name, scope, created_at, expires_at, last_used_at, revoked_at = row
    return ApiKey(id_, name, KeyScope(scope), created_at, expires_at, last_used_at, revoked_at)


SESSION_S = 12 * 3600


def _create_sessions(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE sessions (digest TEXT PRIMARY KEY, key_id TEXT NOT NULL, created_at TEXT NOT NULL,"
        " expires_at TEXT NOT NULL)"
    )


SESSION_STEPS = (_create_sessions,)


class Session(NamedTuple):
    """An open session."""

    token: str
    """The value of the cookie; the store has only its digest."""
    csrf: str
    expires_at: str
    id: str
    """The digest of the token, as it is stored."""


class Sessions:
    """Sessions of browsers. They end with their key, in every process at once."""

    def __init__(
        self, database: Database, keys: ApiKeys, settings: ServeSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._keys = keys
        self._clock = clock
        secret = settings.secret_key
        self._key = MasterKey(secret).derive("sessions") if secret is not None else token_hex(32).encode()
        migrate(database, "sessions", SESSION_STEPS)

    def open(self, key: ApiKey, record: Recorder = unrecorded) -> Session:
        """Open a session for the holder of a key."""
        now = self._clock()
        session = self._session(token_hex(32), utc_timestamp(now + SESSION_S))

        def store(transaction: Transaction) -> None:
            transaction.run("DELETE FROM sessions WHERE expires_at < ?", utc_timestamp(now))
            transaction.run(
                "INSERT INTO sessions (digest, key_id, created_at, expires_at) VALUES (?, ?, ?, ?)",
                session.id,
                key.id,
                utc_timestamp(now),
                session.expires_at,
            )
            record(transaction, key.id)

        self._database.transact(store)
        return session

    def find(self, token: str) -> tuple[Session, ApiKey] | None:
        """The session of a cookie and its key, if both are valid."""
        rows = self._database.read(
            "SELECT key_id, expires_at FROM sessions WHERE digest = ?", self._token_digest("cookie", token)
        )
        if not rows or utc_timestamp(self._clock()) >= rows[0][1]:
            return None
        key = self._keys.get(rows[0][0])
        if key is None or self._keys.use(key) is None:
            return None
        return self._session(token, rows[0][1]), key

    def valid_ids(self, ids: Collection[str]) -> set[str]:
        """Those of these sessions that are open."""
        places = ", ".join("?" * len(ids))
        statement = f"SELECT digest FROM sessions WHERE digest IN ({places}) AND expires_at > ?"  # noqa: S608
        return {id_ for (id_,) in self._database.read(statement, *ids, utc_timestamp(self._clock()))}

    def close(self, token: str, record: Recorder = unrecorded) -> None:
        """End a session, if it exists."""

        def work(transaction: Transaction) -> None:
            statement = "DELETE FROM sessions WHERE digest = ? RETURNING key_id"
            for (key_id,) in transaction.run(statement, self._token_digest("cookie", token)):
                record(transaction, key_id)

        self._database.transact(work)

    def _session(self, token: str, expires_at: str) -> Session:
        return Session(token, self._token_digest("csrf", token), expires_at, self._token_digest("cookie", token))

    def _token_digest(self, purpose: str, token: str) -> str:
        # a cookie may contain anything that a header can
        return digest(self._key, f"{purpose} {token}".encode(errors="replace"), sha256).hex()


def constant_time_equal(actual: str, expected: str) -> bool:
    """Compare two tokens in constant time."""
    return compare_digest(actual.encode(errors="replace"), expected.encode())

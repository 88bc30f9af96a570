"""API keys: ``gl_<id>_<secret>_<checksum>``, shown once, stored as a keyed digest."""

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
    """What a key is good for: `RUN` and `LABEL` include `READ`, `ADMIN` includes all."""

    PUBLIC = "public"
    """Needs no key."""
    READ = "read"
    RUN = "run"
    LABEL = "label"
    ADMIN = "admin"

    def includes(self, wanted: KeyScope) -> bool:
        """Whether a key of this scope may call a route that wants that one."""
        if wanted is KeyScope.PUBLIC or self is wanted or self is KeyScope.ADMIN:
            return True
        return wanted is KeyScope.READ and self in (KeyScope.RUN, KeyScope.LABEL)


def requires(scope: KeyScope) -> Callable[[Endpoint], Endpoint]:
    """Marks an endpoint."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _MARK, scope)
        return endpoint

    return mark


def scope_of(endpoint: object) -> KeyScope | None:
    """The mark of an endpoint; None: it has none, and nobody may call it."""
    scope: KeyScope | None = getattr(endpoint, _MARK, None)
    return scope


class Caller(NamedTuple):
    """What the guard found out about a request."""

    key_id: str | None
    """None in local mode, where there are no keys."""
    scope: KeyScope
    request_id: str
    address: str | None = None
    """Of the client, as a trusted proxy reports it; None for the command line."""
    session: str | None = None
    """The id of the session that the request was sent in; None where it carried a key itself."""


LOCAL_CALLER = Caller(None, KeyScope.ADMIN, "")
"""A person on this machine, where there are no keys."""


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
    """What is known of a key; its secret is not."""

    id: str
    name: str
    scope: KeyScope
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None

    def is_good(self, now: str) -> bool:
        """Whether it may be used at that time."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class ApiKeys:
    """The keys of a store. Without the operator's secret none can be made and none is good."""

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
        self, scope: KeyScope, name: str = "", lasts_s: float | None = None, record: Recorder = unrecorded
    ) -> tuple[ApiKey, str]:
        """A new key, and its text, which nobody can ask for again."""
        if self._master is None:
            raise ConfigError(Problem("", f"an API key needs the service's secret key: {REMEDY}"))
        now = self._clock()
        until = utc_timestamp(now + lasts_s) if lasts_s is not None else None
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
        """Every key that was ever made, the oldest first."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM api_keys ORDER BY created_at, id")  # noqa: S608 - constant
        return [_key(row) for row in rows]

    def get(self, id: str) -> ApiKey | None:  # noqa: A002 - as the store names it
        """One key, good or not."""
        rows = self._database.read(f"SELECT {_COLUMNS} FROM api_keys WHERE id = ?", id)  # noqa: S608 - constant
        return _key(rows[0]) if rows else None

    def revoke(self, id: str, record: Recorder = unrecorded) -> bool:  # noqa: A002 - as the store names it
        """End a key at once, in every process; False: there is none of that id. A second time changes nothing."""
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
        """The key, if it is one, was made here and is good now. A typing error costs no look into the store."""
        form = _FORM.fullmatch(text)
        if form is None or self._pepper is None or _checksum(text.rpartition("_")[0]) != form[3]:
            return None
        rows = self._database.read(f"SELECT {_COLUMNS}, digest FROM api_keys WHERE id = ?", form[1])  # noqa: S608
        # an unknown id takes as long as a wrong secret
        stored = rows[0][-1] if rows else "0" * 64
        if not compare_digest(self._digest(text), stored) or not rows:
            return None
        return self.good(_key(rows[0][:-1]))

    def good(self, key: ApiKey) -> ApiKey | None:
        """The key, if it is good now; that it was used is remembered."""
        now = self._clock()
        if not key.is_good(utc_timestamp(now)):
            return None
        self._touch(key, now)
        return key

    def good_ids(self, ids: Collection[str]) -> set[str]:
        """Those of these keys that are good now; asking does not count as using them."""
        places = ", ".join("?" * len(ids))
        rows = self._database.read(f"SELECT {_COLUMNS} FROM api_keys WHERE id IN ({places})", *ids)  # noqa: S608
        now = utc_timestamp(self._clock())
        return {key.id for key in map(_key, rows) if key.is_good(now)}

    @property
    def looked_lately(self) -> bool:
        """Whether `exist` needs no look into the store now."""
        return self._exist or time.monotonic() - self._looked < _LOOK_SECONDS

    def exist(self, *, look: bool = True) -> bool:
        """Whether a key was ever made: from then on nobody gets in without one. Known half a second late."""
        if look and not self.looked_lately:
            # a store that cannot be read changes nothing about who may come in
            with suppress(StoreError):
                self._exist = bool(self._database.read("SELECT 1 FROM api_keys LIMIT 1")) or self._exist
            self._looked = time.monotonic()
        return self._exist

    def problem(self) -> str | None:
        """Why no request could ever be let in with a key, and what to do; None: one can."""
        rows = self._database.read("SELECT master, revoked_at, expires_at FROM api_keys")
        if self._master is None:
            return f"the store has API keys, and checking them needs the service's secret key: {REMEDY}"
        now = utc_timestamp(self._clock())
        good = [made_with for made_with, revoked, until in rows if revoked is None and (until is None or now < until)]
        if not good:
            return "the store has no API key that is good now; make one with: gradeline keys create --scope admin"
        if self._master.fingerprint not in good:
            return (
                "the store's API keys were made with another secret key; start with that one, "
                "or make new keys with: gradeline keys create --scope admin"
            )
        return None

    def _digest(self, text: str) -> str:
        return digest(self._pepper or b"", text.encode(), sha256).hex()

    def _touch(self, key: ApiKey, now: float) -> None:
        if now - self._touched.get(key.id, float("-inf")) < _TOUCH_SECONDS:
            return
        self._touched[key.id] = now
        # a full disk must not keep anybody from reading
        with suppress(StoreError):
            self._database.transact(
                lambda transaction: transaction.run(
                    "UPDATE api_keys SET last_used_at = ? WHERE id = ?", utc_timestamp(now), key.id
                )
            )


def looks_like_key(text: str) -> bool:
    """Whether a text holds what could be a key."""
    return _FORM.search(text) is not None


def without_keys(text: str) -> str:
    """A text with every key in it made unreadable."""
    return _FORM.sub(r"gl_\1_[redacted]", text)


def _checksum(text: str) -> str:
    return f"{crc32(text.encode()):08x}"


def _key(row: tuple[str, str, str, str, str | None, str | None, str | None]) -> ApiKey:
    id_, name, scope, created_at, expires_at, last_used_at, revoked_at = row
    return ApiKey(id_, name, KeyScope(scope), created_at, expires_at, last_used_at, revoked_at)


LASTS_S = 12 * 3600


def _create_sessions(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE sessions (digest TEXT PRIMARY KEY, key_id TEXT NOT NULL, created_at TEXT NOT NULL,"
        " expires_at TEXT NOT NULL)"
    )


SESSION_STEPS = (_create_sessions,)


class Session(NamedTuple):
    """One that is open."""

    token: str
    """What the cookie holds; the store has its digest alone."""
    csrf: str
    expires_at: str
    id: str
    """The digest of the token, by which the store knows the session."""


class Sessions:
    """They die with their key, in every process at once."""

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
        """A session for the holder of a key."""
        now = self._clock()
        session = self._session(token_hex(32), utc_timestamp(now + LASTS_S))

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
        """The session of a cookie and the key it stands for, if both are good."""
        rows = self._database.read(
            "SELECT key_id, expires_at FROM sessions WHERE digest = ?", self._made("cookie", token)
        )
        if not rows or utc_timestamp(self._clock()) >= rows[0][1]:
            return None
        key = self._keys.get(rows[0][0])
        if key is None or self._keys.good(key) is None:
            return None
        return self._session(token, rows[0][1]), key

    def good_ids(self, ids: Collection[str]) -> set[str]:
        """Those of these sessions that were not closed and have not expired."""
        places = ", ".join("?" * len(ids))
        statement = f"SELECT digest FROM sessions WHERE digest IN ({places}) AND expires_at > ?"  # noqa: S608
        return {id_ for (id_,) in self._database.read(statement, *ids, utc_timestamp(self._clock()))}

    def close(self, token: str, record: Recorder = unrecorded) -> None:
        """End a session; one that is not there is ended already."""

        def work(transaction: Transaction) -> None:
            statement = "DELETE FROM sessions WHERE digest = ? RETURNING key_id"
            for (key_id,) in transaction.run(statement, self._made("cookie", token)):
                record(transaction, key_id)

        self._database.transact(work)

    def _session(self, token: str, expires_at: str) -> Session:
        return Session(token, self._made("csrf", token), expires_at, self._made("cookie", token))

    def _made(self, purpose: str, token: str) -> str:
        # a cookie may hold anything that a header can
        return digest(self._key, f"{purpose} {token}".encode(errors="replace"), sha256).hex()


def constant_time_equal(given: str, expected: str) -> bool:
    """Compares two tokens in a time that tells nothing."""
    return compare_digest(given.encode(errors="replace"), expected.encode())

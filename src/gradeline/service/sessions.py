"""Sessions of the web interface: a cookie that stands for a key, and a token that a foreign page cannot know."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from hashlib import sha256
from hmac import compare_digest, digest
from secrets import token_hex
from typing import NamedTuple

from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.keys import ApiKey, Keys
from gradeline.service.master import MasterKey
from gradeline.service.moments import moment
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database, Dialect, Transaction, migrate

LASTS_S = 12 * 3600


def _tables(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE sessions (digest TEXT PRIMARY KEY, key_id TEXT NOT NULL, created_at TEXT NOT NULL,"
        " expires_at TEXT NOT NULL)"
    )


STEPS = (_tables,)


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
        self, database: Database, keys: Keys, settings: ServeSettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._keys = keys
        self._clock = clock
        secret = settings.secret_key
        self._key = MasterKey(secret).derive("sessions") if secret is not None else token_hex(32).encode()
        migrate(database, "sessions", STEPS)

    def open(self, key: ApiKey, record: Recorder = unrecorded) -> Session:
        """A session for the holder of a key."""
        now = self._clock()
        session = self._session(token_hex(32), moment(now + LASTS_S))

        def store(transaction: Transaction) -> None:
            transaction.run("DELETE FROM sessions WHERE expires_at < ?", moment(now))
            transaction.run(
                "INSERT INTO sessions (digest, key_id, created_at, expires_at) VALUES (?, ?, ?, ?)",
                session.id,
                key.id,
                moment(now),
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
        if not rows or moment(self._clock()) >= rows[0][1]:
            return None
        key = self._keys.get(rows[0][0])
        if key is None or self._keys.good(key) is None:
            return None
        return self._session(token, rows[0][1]), key

    def good_ids(self, ids: Collection[str]) -> set[str]:
        """Those of these sessions that were not closed and have not expired."""
        places = ", ".join("?" * len(ids))
        statement = f"SELECT digest FROM sessions WHERE digest IN ({places}) AND expires_at > ?"  # noqa: S608
        return {id_ for (id_,) in self._database.read(statement, *ids, moment(self._clock()))}

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


def same(given: str, expected: str) -> bool:
    """Compares two tokens in a time that tells nothing."""
    return compare_digest(given.encode(errors="replace"), expected.encode())

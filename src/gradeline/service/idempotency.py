"""A request that is sent twice is done once: its key is stored in the transaction that does it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from threading import Lock

from gradeline.model import canonical_json, quote
from gradeline.service.failures import ApiError, Code
from gradeline.store.database import Database, Dialect, Transaction, migrate

MOST_CHARS = 255


def _keys(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE idempotency_keys (caller TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL,"
        " run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, created_at TEXT NOT NULL,"
        " PRIMARY KEY (caller, name))"
    )


STEPS = (_keys,)


class IdempotencyKeys:
    """Which run came of which key of which caller.

    A process that dies before its transaction ends leaves nothing, and one that dies after it has stored both the run
    and the key: there is no state between.
    """

    def __init__(self, database: Database) -> None:
        migrate(database, "idempotency", STEPS)
        self._database = database
        self._lock = Lock()
        self._in_progress: set[tuple[str, str]] = set()

    @contextmanager
    def during(self, caller: str, key: str | None) -> Iterator[None]:
        """While the request is done; a second one at the same moment is a conflict."""
        if key is None:
            yield
            return
        if not key.strip() or len(key) > MOST_CHARS or not key.isprintable():
            raise ApiError(
                Code.INVALID_INPUT, f"Header 'Idempotency-Key' must have 1 to {MOST_CHARS} visible characters"
            )
        with self._lock:
            if (caller, key) in self._in_progress:
                raise ApiError(Code.CONFLICT, f"A request with the Idempotency-Key {quote(key, 60)} is in progress")
            self._in_progress.add((caller, key))
        try:
            yield
        finally:
            with self._lock:
                self._in_progress.discard((caller, key))

    def known(self, caller: str, key: str | None, body: object) -> str | None:
        """The run that this very request has made already; `ApiError` where the key was used for another one."""
        if key is None:
            return None
        rows = self._database.read(
            "SELECT digest, run FROM idempotency_keys WHERE caller = ? AND name = ?", caller, key
        )
        return _same(key, body, rows)

    def keep(self, transaction: Transaction, caller: str, key: str | None, body: object, run: str, now: str) -> str:
        """Keep the run under the key; where another process was faster, the run that it made."""
        if key is None:
            return run
        transaction.run(
            "INSERT INTO idempotency_keys (caller, name, digest, run, created_at) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (caller, name) DO NOTHING",
            caller,
            key,
            _digest(body),
            run,
            now,
        )
        rows = transaction.run("SELECT digest, run FROM idempotency_keys WHERE caller = ? AND name = ?", caller, key)
        return _same(key, body, rows) or run


def _same(key: str, body: object, rows: list[tuple[str, str]]) -> str | None:
    if not rows:
        return None
    digest, run = rows[0]
    if digest != _digest(body):
        message = f"The Idempotency-Key {quote(key, 60)} was used with another body; use a new key for a new request"
        raise ApiError(Code.IDEMPOTENCY_KEY_REUSED, message)
    return run


def _digest(body: object) -> str:
    return sha256(canonical_json(body)).hexdigest()

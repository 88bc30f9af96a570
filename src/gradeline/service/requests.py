"""Parts of requests: pages and cursors, checks of JSON data, and idempotency keys."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from math import isfinite
from threading import Lock
from typing import NamedTuple

from gradeline.model import canonical_json, clean_text, quote
from gradeline.service.errors import Code, ServiceError
from gradeline.store.database import Database, Dialect, Transaction, migrate

CursorPart = str | int

_MAX_CURSOR = 1000
MAX_NUMBER = 2**63 - 1


def encode_cursor(*parts: CursorPart) -> str:
    """An opaque cursor for the position after which the next page starts."""
    text = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(text: str, *types: type[CursorPart]) -> tuple[CursorPart, ...]:
    """The parts of a cursor of `encode_cursor`; anything else is refused."""
    if len(text) > _MAX_CURSOR:
        raise _invalid_cursor(text)
    try:
        decoded = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        parts = json.loads(decoded)
    except (ValueError, RecursionError):
        raise _invalid_cursor(text) from None
    if not isinstance(parts, list) or [type(part) for part in parts] != list(types):
        raise _invalid_cursor(text)
    if any(isinstance(part, int) and abs(part) > MAX_NUMBER for part in parts) or encode_cursor(*parts) != text:
        raise _invalid_cursor(text)
    return tuple(parts)


class PageRequest(NamedTuple):
    """The requested page of a list."""

    limit: int
    skip: int = 0
    cursor: str | None = None

    @classmethod
    def of(
        cls,
        limit: int,
        skip: int | None = None,
        cursor: str | None = None,
        *,
        max_limit: int = 1000,
        max_skip: int | None = None,
    ) -> PageRequest:
        """The page, if the parameters are valid; ``skip`` is None if the caller did not set it."""
        _within("limit", limit, 1, max_limit)
        _within("skip", skip or 0, 0, MAX_NUMBER if max_skip is None else max_skip)
        if cursor is not None and skip is not None:
            raise ServiceError(Code.INVALID_INPUT, "Parameters 'cursor' and 'skip' exclude each other; keep one")
        return cls(limit, skip or 0, cursor)


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        shown = quote(value)
        raise ServiceError(Code.INVALID_INPUT, f"Parameter '{name}' must be from {low:,} to {high:,}, got {shown}")


def _invalid_cursor(text: str) -> ServiceError:
    return ServiceError(
        Code.INVALID_INPUT,
        f"Parameter 'cursor' has the invalid value {quote(text, 60)}; use the 'next_cursor' of the previous page",
    )


MAX_DEPTH = 64
_LARGEST = 2**63 - 1


def require_clean(tree: object, field: str) -> None:
    """`ServiceError` for NUL, half a surrogate pair, NaN, large integers, and data that is nested too deeply."""
    level: list[object] = [tree]
    for _ in range(MAX_DEPTH):
        below: list[object] = []
        for node in level:
            if isinstance(node, dict):
                below += (*node, *node.values())
            elif isinstance(node, list | tuple):
                below += node
            elif isinstance(node, str) and clean_text(node).changed:
                raise ServiceError(
                    Code.INVALID_INPUT, f"Field {field!r} contains NUL or half a surrogate pair; remove it"
                )
            elif isinstance(node, float) and not isfinite(node):
                raise ServiceError(
                    Code.INVALID_INPUT, f"Field {field!r} contains {node}, which is not a number in JSON"
                )
            elif isinstance(node, int) and abs(node) > _LARGEST:
                raise ServiceError(Code.INVALID_INPUT, f"Field {field!r} contains an integer of more than 64 bits")
        if not below:
            return
        level = below
    raise ServiceError(Code.INVALID_INPUT, f"Field {field!r} is nested more than {MAX_DEPTH} levels deep")


MAX_KEY_CHARS = 255


def _keys(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE idempotency_keys (caller TEXT NOT NULL, name TEXT NOT NULL, digest TEXT NOT NULL,"
        " run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, created_at TEXT NOT NULL,"
        " PRIMARY KEY (caller, name))"
    )


IDEMPOTENCY_STEPS = (_keys,)


class IdempotencyKeys:
    """The runs that were started with idempotency keys.

    A run and its key are stored in one transaction, so that a process that dies stores both or neither.
    """

    def __init__(self, database: Database) -> None:
        migrate(database, "idempotency", IDEMPOTENCY_STEPS)
        self._database = database
        self._lock = Lock()
        self._in_progress: set[tuple[str, str]] = set()

    @contextmanager
    def during(self, caller: str, key: str | None) -> Iterator[None]:
        """While the request is in progress, another one with the same key is a conflict."""
        if key is None:
            yield
            return
        if not key.strip() or len(key) > MAX_KEY_CHARS or not key.isprintable():
            raise ServiceError(
                Code.INVALID_INPUT, f"Header 'Idempotency-Key' must have 1 to {MAX_KEY_CHARS} visible characters"
            )
        with self._lock:
            if (caller, key) in self._in_progress:
                raise ServiceError(Code.CONFLICT, f"A request with the Idempotency-Key {quote(key, 60)} is in progress")
            self._in_progress.add((caller, key))
        try:
            yield
        finally:
            with self._lock:
                self._in_progress.discard((caller, key))

    def known(self, caller: str, key: str | None, body: object) -> str | None:
        """The run that the same request has started; `ServiceError` if the key was used for another request."""
        if key is None:
            return None
        rows = self._database.read(
            "SELECT digest, run FROM idempotency_keys WHERE caller = ? AND name = ?", caller, key
        )
        return _same(key, body, rows)

    def store(self, transaction: Transaction, caller: str, key: str | None, body: object, run: str, now: str) -> str:
        """Store the run of a key and return it; if another process was faster, return its run."""
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
        raise ServiceError(Code.IDEMPOTENCY_KEY_REUSED, message)
    return run


def _digest(body: object) -> str:
    return sha256(canonical_json(body)).hexdigest()

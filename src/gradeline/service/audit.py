"""Who changed what: a log to which rows are only added."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from gradeline.service.caller import Caller
from gradeline.service.moments import moment
from gradeline.store.database import Database, Dialect, Row, Transaction, migrate

SELECT_ENTRIES = "SELECT n, at, key_id, request_id, action, subject, details, address FROM audit_log"


def _tables(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run(
        f"CREATE TABLE audit_log (n {dialect.serial}, at TEXT NOT NULL, key_id TEXT, request_id TEXT NOT NULL,"
        " action TEXT NOT NULL, subject TEXT NOT NULL, details TEXT NOT NULL)"
    )
    for act in ("UPDATE", "DELETE"):
        if dialect.name == "sqlite":
            transaction.run(
                f"CREATE TRIGGER audit_log_keeps_{act.lower()} BEFORE {act} ON audit_log"
                " BEGIN SELECT raise(ABORT, 'the audit log is only added to'); END"
            )
        else:
            transaction.run(f"CREATE RULE audit_log_keeps_{act.lower()} AS ON {act} TO audit_log DO INSTEAD NOTHING")


def _addresses(transaction: Transaction, _: Dialect) -> None:
    transaction.run("ALTER TABLE audit_log ADD COLUMN address TEXT")


STEPS = (_tables, _addresses)


class AuditEntry(Struct, frozen=True):
    """One act."""

    n: int
    at: str
    key_id: str | None
    request_id: str
    action: str
    subject: str
    details: dict[str, Any]
    address: str | None = None
    """Of the client; None for the command line, and for what earlier versions wrote."""


class Recorder(Protocol):
    """Records an act in the transaction that does it: both are stored, or neither."""

    def __call__(self, transaction: Transaction, subject: str, details: Mapping[str, object] | None = None) -> None: ...


def unrecorded(transaction: Transaction, subject: str, details: Mapping[str, object] | None = None) -> None:
    """For acts of the program itself."""


class Audit:
    """The log of a store."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        migrate(database, "audit", STEPS)

    def recorder(self, caller: Caller, action: str) -> Recorder:
        """Records that the caller does this, such as ``secret.put``. Details are JSON and hold no secret."""

        def record(transaction: Transaction, subject: str, details: Mapping[str, object] | None = None) -> None:
            transaction.run(
                "INSERT INTO audit_log (at, key_id, request_id, action, subject, details, address)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                moment(self._clock()),
                caller.key_id,
                caller.request_id,
                action,
                subject,
                json.dumps(dict(details or {}), ensure_ascii=True, default=str),
                caller.address,
            )

        return record

    def note(self, caller: Caller, action: str, subject: str, details: Mapping[str, object] | None = None) -> None:
        """Record an act that changes nothing in the store."""
        record = self.recorder(caller, action)
        self._database.transact(lambda transaction: record(transaction, subject, details))

    def entries(self, after: int = 0, limit: int = 100) -> list[AuditEntry]:
        """A page of the log, the oldest first."""
        rows = self._database.read(
            f"{SELECT_ENTRIES} WHERE n > ? ORDER BY n LIMIT ?",
            after,
            limit,
        )
        return [read_entry(row) for row in rows]


def read_entry(row: Row) -> AuditEntry:
    """An entry from a row of `SELECT_ENTRIES`."""
    n, at, key_id, request_id, action, subject, details, address = row
    return AuditEntry(n, at, key_id, request_id, action, subject, json.loads(details), address)

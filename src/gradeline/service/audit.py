"""Who changed what: a log to which rows are only added."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from gradeline.service.caller import Caller
from gradeline.service.moments import moment
from gradeline.store.database import Database, Dialect, Transaction, migrate


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


STEPS = (_tables,)


class AuditEntry(Struct, frozen=True):
    """One act."""

    n: int
    at: str
    key_id: str | None
    request_id: str
    action: str
    subject: str
    details: dict[str, Any]


class Audit:
    """The log of a store."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        migrate(database, "audit", STEPS)

    def note(self, caller: Caller, action: str, subject: str, details: Mapping[str, object] | None = None) -> None:
        """Add an act, such as ``test_case.delete`` of an id. Details are JSON and hold no secret."""
        text = json.dumps(dict(details or {}), ensure_ascii=True, default=str)
        values = (moment(self._clock()), caller.key_id, caller.request_id, action, subject, text)
        self._database.transact(
            lambda transaction: transaction.run(
                "INSERT INTO audit_log (at, key_id, request_id, action, subject, details) VALUES (?, ?, ?, ?, ?, ?)",
                *values,
            )
        )

    def entries(self, after: int = 0, limit: int = 100) -> list[AuditEntry]:
        """A page of the log, the oldest first."""
        rows = self._database.read(
            "SELECT n, at, key_id, request_id, action, subject, details FROM audit_log WHERE n > ? ORDER BY n LIMIT ?",
            after,
            limit,
        )
        return [
            AuditEntry(n, at, key_id, request_id, action, subject, json.loads(details))
            for n, at, key_id, request_id, action, subject, details in rows
        ]

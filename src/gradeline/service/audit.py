"""The audit log: who changed what. Rows are added to it and never changed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct

from gradeline.rest_types import utc_timestamp
from gradeline.service.requests import MAX_NUMBER, PageRequest, decode_cursor, encode_cursor
from gradeline.store.database import Database, Dialect, Row, Transaction, Value, migrate

if TYPE_CHECKING:
    from gradeline.service.auth import Caller

SELECT_ENTRIES = "SELECT n, at, key_id, request_id, action, subject, details, address FROM audit_log"


def _tables(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run(
        f"CREATE TABLE audit_log (n {dialect.serial}, at TEXT NOT NULL, key_id TEXT, request_id TEXT NOT NULL,"
        " action TEXT NOT NULL, subject TEXT NOT NULL, details TEXT NOT NULL, address TEXT)"
    )
    # with these, a page for a rare actor costs no more than one for a frequent one
    transaction.run("CREATE INDEX audit_log_by_actor ON audit_log (key_id, n)")
    transaction.run("CREATE INDEX audit_log_by_action ON audit_log (action, n)")
    for act in ("UPDATE", "DELETE"):
        if dialect.name == "sqlite":
            transaction.run(
                f"CREATE TRIGGER audit_log_keeps_{act.lower()} BEFORE {act} ON audit_log"
                " BEGIN SELECT raise(ABORT, 'the audit log is append-only'); END"
            )
        else:
            transaction.run(f"CREATE RULE audit_log_keeps_{act.lower()} AS ON {act} TO audit_log DO INSTEAD NOTHING")


AUDIT_STEPS = (_tables,)


class AuditEntry(Struct, frozen=True):
    """One entry of the audit log."""

    n: int
    at: str
    key_id: str | None
    request_id: str
    action: str
    subject: str
    details: dict[str, Any]
    address: str | None = None
    """The address of the client; None for the command line."""


class Recorder(Protocol):
    """Adds an entry in the transaction that makes the change: both are stored, or neither."""

    def __call__(self, transaction: Transaction, subject: str, details: Mapping[str, object] | None = None) -> None: ...


def unrecorded(transaction: Transaction, subject: str, details: Mapping[str, object] | None = None) -> None:
    """A `Recorder` for changes by the program itself, which are not recorded."""


class Audit:
    """The audit log of a store."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        migrate(database, "audit", AUDIT_STEPS)

    def recorder(self, caller: Caller, action: str) -> Recorder:
        """A recorder for an action of the caller, such as ``secret.put``. Details are JSON without secrets."""

        def record(transaction: Transaction, subject: str, details: Mapping[str, object] | None = None) -> None:
            transaction.run(
                "INSERT INTO audit_log (at, key_id, request_id, action, subject, details, address)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                utc_timestamp(self._clock()),
                caller.key_id,
                caller.request_id,
                action,
                subject,
                json.dumps(dict(details or {}), ensure_ascii=True, default=str),
                caller.address,
            )

        return record

    def note(self, caller: Caller, action: str, subject: str, details: Mapping[str, object] | None = None) -> None:
        """Record an action that changes nothing in the store."""
        record = self.recorder(caller, action)
        self._database.transact(lambda transaction: record(transaction, subject, details))

    def entries(self, after: int = 0, limit: int = 100) -> list[AuditEntry]:
        """A page of the log, oldest first."""
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


LOCAL_ACTOR = "local"
"""The actor of changes without a key: in local mode, or by the command line."""


class AuditFilter(NamedTuple):
    """Conditions on entries; None: any."""

    actor: str | None = None
    action: str | None = None


class AuditPage(Struct, frozen=True, kw_only=True):
    """A page of the audit log. The total is not counted."""

    entries: list[AuditEntry]
    count: int
    next_cursor: str | None


class AuditList:
    """Reads the audit log of a store, which `Audit` must have created."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def page(self, where: AuditFilter, page: PageRequest) -> AuditPage:
        """A page of entries, newest first."""
        before = decode_cursor(page.cursor, int)[0] if page.cursor is not None else MAX_NUMBER
        clauses, values = _conditions(where)
        rows = self._database.read(
            f"{SELECT_ENTRIES} WHERE n < ?{clauses} ORDER BY n DESC LIMIT ? OFFSET ?",
            before,
            *values,
            page.limit + 1,
            page.skip,
        )
        entries = [read_entry(row) for row in rows[: page.limit]]
        following = encode_cursor(entries[-1].n) if len(rows) > page.limit else None
        return AuditPage(entries=entries, count=len(entries), next_cursor=following)


def _conditions(where: AuditFilter) -> tuple[str, list[Value]]:
    clauses, values = "", list[Value]()
    if where.actor == LOCAL_ACTOR:
        clauses += " AND key_id IS NULL"
    elif where.actor is not None:
        clauses += " AND key_id = ?"
        values.append(where.actor)
    if where.action is not None:
        clauses += " AND action = ?"
        values.append(where.action)
    return clauses, values

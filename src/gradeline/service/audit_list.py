"""The audit log as a list: the newest first, by who did it and what."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from gradeline.service.audit import SELECT_ENTRIES, AuditEntry, read_entry
from gradeline.service.paging import MAX_NUMBER, Page, decode_cursor, encode_cursor
from gradeline.store.database import Database, Dialect, Transaction, Value, migrate

LOCAL = "local"
"""The actor of what was done without a key: in local mode, or with the command line."""


def _indexes(transaction: Transaction, _: Dialect) -> None:
    """A page by a rare actor costs no more than one by a frequent one."""
    transaction.run("CREATE INDEX audit_log_by_actor ON audit_log (key_id, n)")
    transaction.run("CREATE INDEX audit_log_by_action ON audit_log (action, n)")


STEPS = (_indexes,)


class AuditFilter(NamedTuple):
    """Which entries are wanted; None: any."""

    actor: str | None = None
    action: str | None = None


class AuditPage(Struct, frozen=True, kw_only=True):
    """Some entries of the log. How many there are in all is not counted."""

    entries: list[AuditEntry]
    count: int
    next_cursor: str | None


class AuditList:
    """Reads the log of a store; `Audit` must have made it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        migrate(database, "audit_list", STEPS)

    def page(self, where: AuditFilter, page: Page) -> AuditPage:
        """A page of entries, the newest first."""
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
    if where.actor == LOCAL:
        clauses += " AND key_id IS NULL"
    elif where.actor is not None:
        clauses += " AND key_id = ?"
        values.append(where.actor)
    if where.action is not None:
        clauses += " AND action = ?"
        values.append(where.action)
    return clauses, values

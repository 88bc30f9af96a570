"""Records about judges and routes: calibrations, probes, anchors, tables of routes. They are only added, never changed.

A record is JSON of its own kind, filed under the suite, the grader and the judge that it is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradeline.errors import ConfigError, Problem
from gradeline.model.protocols import Storage
from gradeline.model.text import quote
from gradeline.store.database import Database, Dialect, SharedStorage, Transaction, migrate, parts_of

PART = "trust"
"""The part of the store that this table is, for `migrate`."""
_COLUMNS = "kind, suite, grader, judge, at, body"


def _tables(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run(
        f"CREATE TABLE trust_records (n {dialect.serial}, kind TEXT NOT NULL, suite TEXT NOT NULL,"
        " grader TEXT NOT NULL, judge TEXT NOT NULL, at TEXT NOT NULL, body TEXT NOT NULL)"
    )
    transaction.run("CREATE INDEX trust_records_of_grader ON trust_records (kind, suite, grader, n)")
    transaction.run("CREATE INDEX trust_records_of_judge ON trust_records (kind, judge, n)")


TRUST_STEPS = (_tables,)


class TrustRecord(NamedTuple):
    """A record, with the names under which it is found; those that do not apply are empty."""

    kind: str
    """Such as ``calibration``, ``probe``, ``anchors``."""
    suite: str
    grader: str
    judge: str
    """Fingerprint of the judge."""
    at: str
    """ISO 8601 in UTC."""
    body: str
    """JSON."""
    n: int = 0
    """Its number in the store, in order of arrival; 0 before it is stored."""


def database_of(storage: Storage) -> Database:
    """The database of a store; `ConfigError` for a store that has none."""
    if isinstance(storage, SharedStorage):
        return storage.database
    raise ConfigError(
        Problem("store", f"expected a store in SQLite or PostgreSQL, got {quote(type(storage).__name__)}")
    )


def put_record(storage: Storage, record: TrustRecord) -> int:
    """Add a record durably and return its number."""
    database = database_of(storage)
    create_trust_tables(database)
    return database.transact(lambda transaction: insert_record(transaction, record))


def insert_record(transaction: Transaction, record: TrustRecord) -> int:
    """Add a record in a transaction, in which `create_trust_tables` cannot be called."""
    statement = f"INSERT INTO trust_records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) RETURNING n"  # noqa: S608 - constants
    ((number,),) = transaction.run(statement, *record[:-1])
    return int(number)


def latest_record(
    storage: Storage, kind: str, *, suite: str | None = None, grader: str | None = None, judge: str | None = None
) -> TrustRecord | None:
    """The latest record of a kind that has these names; None if there is none."""
    found = _find(storage, kind, suite, grader, judge, " ORDER BY n DESC LIMIT 1")
    return found[0] if found else None


def records(
    storage: Storage,
    kind: str,
    *,
    suite: str | None = None,
    grader: str | None = None,
    judge: str | None = None,
    after: int = 0,
    limit: int = 1000,
) -> list[TrustRecord]:
    """A page of the records of a kind that have these names, oldest first; ``after`` is the last number seen."""
    return _find(storage, kind, suite, grader, judge, " AND n > ? ORDER BY n LIMIT ?", after, limit)


def last_record_number(storage: Storage) -> int:
    """The number of the last record of any kind, which changes with each one; 0 if there is none."""
    database = database_of(storage)
    if PART not in parts_of(database.read):
        return 0
    ((number,),) = database.read("SELECT coalesce(max(n), 0) FROM trust_records")
    return int(number)


def create_trust_tables(database: Database) -> None:
    """Migrate the table to the latest version."""
    migrate(database, PART, TRUST_STEPS)


def _find(
    storage: Storage,
    kind: str,
    suite: str | None,
    grader: str | None,
    judge: str | None,
    tail: str,
    *values: int,
) -> list[TrustRecord]:
    names = {"suite": suite, "grader": grader, "judge": judge}
    wanted: Sequence[tuple[str, str]] = [(name, value) for name, value in names.items() if value is not None]
    where = "".join(f" AND {name} = ?" for name, _ in wanted)
    database = database_of(storage)
    if PART not in parts_of(database.read):
        return []  # a store that never had a record may lack the table
    statement = f"SELECT {_COLUMNS}, n FROM trust_records WHERE kind = ?{where}{tail}"  # noqa: S608 - constants
    return [TrustRecord(*row) for row in database.read(statement, kind, *(value for _, value in wanted), *values)]

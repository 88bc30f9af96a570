"""Decisions of routes and their outcomes: statements for both databases. Rows are only added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradeline.model.protocols import Storage
from gradeline.model.route import LoggedRequest, RequestOutcome
from gradeline.store.database import Database, Dialect, Row, Transaction, migrate, parts_of
from gradeline.store.trust_records import database_of

PART = "routes"
"""The part of the store that these tables are, for `migrate`."""
_COLUMNS = ", ".join(LoggedRequest._fields[:-1])
_MARKS = ", ".join("?" * (len(LoggedRequest._fields) - 1))
_IDS_AT_ONCE = 500
_LATEST = (
    "NOT EXISTS (SELECT 1 FROM route_outcomes later WHERE later.request = route_outcomes.request"
    " AND later.source = route_outcomes.source AND later.n > route_outcomes.n)"
)


def _tables(transaction: Transaction, dialect: Dialect) -> None:
    transaction.run(
        f"CREATE TABLE route_requests (n {dialect.serial}, id TEXT NOT NULL UNIQUE, route TEXT NOT NULL,"
        " at TEXT NOT NULL, family TEXT NOT NULL, arm TEXT NOT NULL, propensities TEXT NOT NULL, served_by TEXT,"
        " table_number INTEGER NOT NULL, reason TEXT NOT NULL, calls TEXT NOT NULL, cost DOUBLE PRECISION,"
        " latency_ms DOUBLE PRECISION)"
    )
    transaction.run("CREATE INDEX route_requests_of_route ON route_requests (route, n)")
    transaction.run(
        f"CREATE TABLE route_outcomes (n {dialect.serial}, request TEXT NOT NULL,"
        " score DOUBLE PRECISION NOT NULL, source TEXT NOT NULL, at TEXT NOT NULL)"
    )
    transaction.run("CREATE INDEX route_outcomes_of_request ON route_outcomes (request, source, n)")


ROUTE_STEPS = (_tables,)


class ArmTotals(NamedTuple):
    """The logged requests of one arm of a route."""

    arm: str
    requests: int
    fallbacks: int
    """Requests that another arm answered, because this one failed."""
    unanswered: int
    cost: float | None
    """Sum of the known costs; None if no cost is known."""
    priced: int
    """Requests with a known cost."""


class JudgedRequest(NamedTuple):
    """A logged request with one outcome."""

    request: LoggedRequest
    outcome: RequestOutcome


def create_route_tables(storage: Storage) -> Database:
    """Migrate the tables to the latest version; returns the database."""
    database = database_of(storage)
    migrate(database, PART, ROUTE_STEPS)
    return database


def put_requests(database: Database, rows: Sequence[LoggedRequest]) -> None:
    """Add decisions; one with a known id is left as it is, so that a write can be repeated."""

    def insert(transaction: Transaction) -> None:
        for row in rows:
            transaction.run(
                f"INSERT INTO route_requests ({_COLUMNS}) VALUES ({_MARKS}) ON CONFLICT (id) DO NOTHING",  # noqa: S608 - constants
                *row[:-1],
            )

    if rows:
        database.transact(insert)


def put_outcomes(database: Database, rows: Sequence[RequestOutcome]) -> None:
    """Add outcomes of known requests; a later one of the same source replaces an earlier one."""

    def insert(transaction: Transaction) -> None:
        for row in rows:
            transaction.run("INSERT INTO route_outcomes (request, score, source, at) VALUES (?, ?, ?, ?)", *row)

    if rows:
        database.transact(insert)


def requests_by_id(database: Database, route: str, ids: Sequence[str]) -> dict[str, LoggedRequest]:
    """Those of the ids that are logged requests of the route."""
    found: dict[str, LoggedRequest] = {}
    for start in range(0, len(ids), _IDS_AT_ONCE):
        part = ids[start : start + _IDS_AT_ONCE]
        marks = ", ".join("?" * len(part))
        statement = f"SELECT {_COLUMNS}, n FROM route_requests WHERE route = ? AND id IN ({marks})"  # noqa: S608 - marks
        found.update((row[0], _request(row)) for row in database.read(statement, route, *part))
    return found


def requests_of(storage: Storage, route: str, after: int = 0, limit: int = 1000) -> list[LoggedRequest]:
    """A page of the decisions of a route, oldest first; ``after`` is the last number seen."""
    database = database_of(storage)
    if PART not in parts_of(database.read):
        return []  # a store without routes may lack the tables
    rows = database.read(
        f"SELECT {_COLUMNS}, n FROM route_requests WHERE route = ? AND n > ? ORDER BY n LIMIT ?",  # noqa: S608 - constants
        *(route, after, limit),
    )
    return [_request(row) for row in rows]


def judged_requests(storage: Storage, route: str, after: int = 0, limit: int = 1000) -> list[JudgedRequest]:
    """A page of the requests with an outcome, the latest of each source, in order of the outcomes."""
    database = database_of(storage)
    if PART not in parts_of(database.read):
        return []
    columns = ", ".join(f"route_requests.{name}" for name in LoggedRequest._fields[:-1])
    rows = database.read(
        f"SELECT {columns}, route_outcomes.score, route_outcomes.source, route_outcomes.at, route_outcomes.n"  # noqa: S608 - constants
        " FROM route_outcomes JOIN route_requests ON route_requests.id = route_outcomes.request"
        f" WHERE route_requests.route = ? AND route_outcomes.n > ? AND {_LATEST} ORDER BY route_outcomes.n LIMIT ?",
        *(route, after, limit),
    )
    size = len(LoggedRequest._fields) - 1
    return [
        JudgedRequest(_request((*row[:size], row[-1])), RequestOutcome(row[0], *row[size : size + 3])) for row in rows
    ]


def arm_totals(storage: Storage, route: str) -> list[ArmTotals]:
    """What each arm of a route was asked, by name."""
    database = database_of(storage)
    if PART not in parts_of(database.read):
        return []
    rows = database.read(
        "SELECT arm, count(*), coalesce(sum(CASE WHEN served_by <> arm THEN 1 ELSE 0 END), 0),"
        " coalesce(sum(CASE WHEN served_by IS NULL THEN 1 ELSE 0 END), 0), sum(cost), count(cost)"
        " FROM route_requests WHERE route = ? GROUP BY arm ORDER BY arm",
        route,
    )
    return [ArmTotals(*row) for row in rows]


def _request(row: Row) -> LoggedRequest:
    return LoggedRequest(*row)

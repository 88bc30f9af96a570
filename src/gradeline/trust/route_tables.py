"""Tables of routes in a store: plan and publish one, read the current one, roll back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from gradeline.errors import ConfigError, Problem
from gradeline.model import Storage
from gradeline.model.observation import utc_text
from gradeline.model.record import from_json, to_json
from gradeline.model.route import RouteGate, RouteTable
from gradeline.model.text import quote
from gradeline.store.trust_records import TrustRecord, latest_record, put_record, records
from gradeline.trust.route_evidence import outcome_evidence, read_evidence
from gradeline.trust.route_file import RouteFile
from gradeline.trust.route_plan import PlannedSplit, arm_quality, plan_split

TABLE = "route_table"
REFUSAL = "route_refusal"
_SOFT = frozenset({"promise"})
"""Gates without which requests are routed to explore only."""


class RoutePlan(NamedTuple):
    """A table, and whether it may be used."""

    table: RouteTable
    runs: dict[str, str]
    """Run ID by arm."""

    candidates: frozenset[str]

    @property
    def refused(self) -> bool:
        """Whether a gate of the route, of the baseline or of each candidate failed: then everything stays as it is."""
        hard = [gate for gate in self.table.failed_gates if gate.name not in _SOFT]
        arms = {gate.arm for gate in hard}
        return not {None, self.table.baseline}.isdisjoint(arms) or self.candidates <= arms


class RouteStatus(NamedTuple):
    """The table in use, and whether planning was refused since."""

    table: RouteTable | None
    reason: str
    """Why the baseline gets everything, or why the table is not the newest that was tried; empty if it is in use."""
    refusal: RouteTable | None = None
    """The refused plan that is newer than the table."""

    @property
    def why_baseline(self) -> str:
        """Why every request goes to the baseline; empty where a table decides."""
        return self.reason if self.table is None else ""


def plan_route(storage: Storage, route: RouteFile, *, now: datetime | None = None, seed: int = 0) -> RoutePlan:
    """Make a table of what the store knows. Nothing is stored."""
    now = now or datetime.now(UTC)
    found = read_evidence(storage, route, now)
    rates = {arm: arm_quality(arm, results).rates for arm, results in found.arms.items()}
    further = outcome_evidence(storage, route, rates, found.judge, now)
    refused = frozenset(gate.arm for gate in found.gates if not gate.passed and gate.arm is not None)
    made = plan_split(found.arms, route.baseline.name, route.rules, route.alpha, further, refused, seed)
    return RoutePlan(
        _table(route, made, found.gates, found.judge, now), found.runs, frozenset(arm.name for arm in route.candidates)
    )


def publish(storage: Storage, route: RouteFile, plan: RoutePlan) -> RoutePlan:
    """Store a plan: as the table in use, or, where it is refused, as a refusal that changes nothing."""
    kind = REFUSAL if plan.refused else TABLE
    number = _put(storage, route, kind, plan.table)
    return plan._replace(table=msgspec.structs.replace(plan.table, number=number))


def current_table(storage: Storage, route: RouteFile, now: datetime | None = None) -> RouteStatus:
    """The table to use now. The last one stays in use when a later plan is refused, until it expires."""
    now = now or datetime.now(UTC)
    row = latest_record(storage, TABLE, suite=route.route)
    refused = latest_record(storage, REFUSAL, suite=route.route)
    refusal = None if refused is None or (row is not None and row.n > refused.n) else _read(refused)
    if not route.enabled:
        return RouteStatus(None, "the route file has enabled: false", refusal)
    if row is None:
        return RouteStatus(None, "no table was planned yet: gradeline route plan ROUTE", refusal)
    table = _read(row)
    if table.source == "rollback" and table.copied_from is None:
        return RouteStatus(None, f"rolled back to the baseline on {table.at[:10]}", refusal)
    if table.rules != route.digest:
        return RouteStatus(
            None, "the route file has changed since the table was planned: gradeline route plan ROUTE", refusal
        )
    age = (now - datetime.fromisoformat(table.at)).total_seconds() / 86_400
    if age > route.max_age_days:
        return RouteStatus(
            None, f"the table is {age:.0f} days old, more than {route.max_age_days:g}: plan again", refusal
        )
    frozen = "" if refusal is None else "frozen: the latest plan was refused"
    return RouteStatus(table, frozen, refusal)


def shares_of(route: RouteFile, table: RouteTable | None, family: str) -> dict[str, float]:
    """The share of every arm in a family; without a table, everything is the baseline's."""
    shares = {} if table is None else table.shares(family)
    return {arm.name: shares.get(arm.name, 0.0) for arm in route.arms} if shares else _only(route)


def _only(route: RouteFile) -> dict[str, float]:
    return {arm.name: float(arm.name == route.baseline.name) for arm in route.arms}


def roll_back(storage: Storage, route: RouteFile, now: datetime | None = None) -> RouteTable:
    """Put the table before the current one into use again; where there is none, the baseline gets everything."""
    history = table_history(storage, route.route)
    if not history or (history[-1].source == "rollback" and history[-1].copied_from is None):
        raise ConfigError(Problem("", f"the route {quote(route.route)} has no table in use: nothing to roll back"))
    current = history[-1]
    before = _before(history, current)
    at = utc_text(now or datetime.now(UTC))
    if before is None:
        made = RouteTable(route=route.route, at=at, baseline=route.baseline.name, source="rollback", rules=route.digest)
    else:
        # as old as its evidence
        made = msgspec.structs.replace(before, source="rollback", copied_from=before.number)
    return msgspec.structs.replace(made, number=_put(storage, route, TABLE, made))


def table_history(storage: Storage, route: str) -> list[RouteTable]:
    """All tables that were put into use, oldest first."""
    found: list[RouteTable] = []
    after = 0
    while page := records(storage, TABLE, suite=route, after=after):
        after = page[-1].n
        found += [_read(row) for row in page]
    return found


def _before(history: list[RouteTable], current: RouteTable) -> RouteTable | None:
    """The planned table before the one in use, which may itself be a copy of an earlier one."""
    number = current.number if current.copied_from is None else current.copied_from
    planned = [table for table in history if table.source == "plan" and table.number < number]
    return planned[-1] if planned else None


def _table(route: RouteFile, made: PlannedSplit, gates: list[RouteGate], judge: str, now: datetime) -> RouteTable:
    return RouteTable(
        route=route.route,
        at=utc_text(now),
        baseline=route.baseline.name,
        families=made.families,
        gates=(*gates, *made.gates),
        promise=made.promise,
        judge=judge,
        rules=route.digest,
    )


def _put(storage: Storage, route: RouteFile, kind: str, table: RouteTable) -> int:
    at = utc_text(datetime.now(UTC))
    return put_record(storage, TrustRecord(kind, route.route, route.grader, table.judge, at, to_json(table)))


def _read(row: TrustRecord) -> RouteTable:
    return msgspec.structs.replace(from_json(RouteTable, row.body), number=row.n)

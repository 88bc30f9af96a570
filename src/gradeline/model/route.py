"""Data of routes: tables of shares, the gates that they passed, decisions and what came of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

EVERY_FAMILY = "*"
"""The row of a table for families that it does not list."""

ArmState = Literal["baseline", "proven", "unproven", "worse", "refused"]
"""What evidence says of an arm in a family. ``unproven``: traffic within the exploration cap only; ``worse`` and
``refused``: no traffic."""


class RouteGate(msgspec.Struct, frozen=True, kw_only=True):
    """One rule that must hold before traffic leaves the baseline."""

    name: str
    passed: bool
    detail: str
    """What was found, and the remedy if it failed."""
    arm: str | None = None
    """The arm that it is about; None: the whole route."""


class RouteCell(msgspec.Struct, frozen=True, kw_only=True):
    """One arm in one family: its share of the traffic, and why."""

    share: float
    state: ArmState
    quality: float | None = None
    """Expected share of requests that pass, corrected for the judge's errors; None without evidence."""
    n: float = 0.0
    """Evidence in this family, as a number of labelled requests of the same weight."""


class RoutePromise(msgspec.Struct, frozen=True, kw_only=True):
    """The bound on the share of routed requests that are worse than the baseline's would have been."""

    alpha: float
    """The share that the route file allows."""
    confidence: float
    bound: float | None = None
    """Upper bound; None where too few cases have both answers."""
    pairs: int = 0
    """Cases that the table would route, with a verdict on both answers."""
    worse: float = 0.0
    """Estimated number of them whose routed answer is worse."""
    labelled: int = 0
    """Pairs of which both answers have labels."""

    @property
    def kept(self) -> bool:
        """Whether the bound is within alpha."""
        return self.bound is not None and self.bound <= self.alpha


class RouteTable(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """How a route splits its traffic: shares by family and arm, and the gates that were checked."""

    route: str
    number: int = 0
    """Its number in the store; 0 before it is stored."""
    at: str
    baseline: str
    families: dict[str, dict[str, RouteCell]] = {}
    gates: tuple[RouteGate, ...] = ()
    promise: RoutePromise | None = None
    judge: str = ""
    """Fingerprint of the judge whose verdicts are in it; empty if only labels are."""
    rules: str = ""
    """Digest of the rules by which it was made."""
    source: Literal["plan", "rollback"] = "plan"
    copied_from: int | None = None
    """For a rollback, the number of the table that it copies; None: all traffic to the baseline."""

    def shares(self, family: str) -> dict[str, float]:
        """The share of each arm in a family; everything to the baseline without a row for it."""
        row = self.families.get(family) or self.families.get(EVERY_FAMILY)
        return {self.baseline: 1.0} if row is None else {arm: cell.share for arm, cell in row.items()}

    @property
    def moves_traffic(self) -> bool:
        """Whether any request may leave the baseline."""
        return any(
            cell.share > 0 and arm != self.baseline for row in self.families.values() for arm, cell in row.items()
        )

    @property
    def failed_gates(self) -> tuple[RouteGate, ...]:
        return tuple(gate for gate in self.gates if not gate.passed)


class RouteChoice(NamedTuple):
    """One decision: which arm gets a request, and how probable each was."""

    id: str
    family: str
    arm: str
    propensities: dict[str, float]
    """The probability of every arm."""
    table: int = 0
    """Number of the table that decided; 0: none."""
    reason: str = ""
    """Why the baseline got it regardless of the table; empty if the table decided."""

    @property
    def propensity(self) -> float:
        """The probability with which the arm was chosen."""
        return self.propensities[self.arm]


class RouteCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call to an arm for a request."""

    arm: str
    status: int | None = None
    """HTTP status; None without a response."""
    error: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost: float | None = None
    """US dollars; None is unknown, never 0."""


class LoggedRequest(NamedTuple):
    """A decision as it is logged, with the calls that were made for it."""

    id: str
    route: str
    at: str
    family: str
    arm: str
    propensities: str
    """JSON: the probability of every arm when it was decided."""
    served_by: str | None
    """The arm whose answer the client got; None: not called, or no answer."""
    table_number: int
    reason: str
    calls: str
    """JSON list of `RouteCall`."""
    cost: float | None
    """Cost of all calls; None if that of any is unknown."""
    latency_ms: float | None
    n: int = 0


class RequestOutcome(NamedTuple):
    """What is known of the quality of an answer: pass (1) or fail (0), or a score between."""

    id: str
    score: float
    source: str
    """``label``, or ``judge:`` with its fingerprint."""
    at: str

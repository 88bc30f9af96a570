"""The verdict on a run: what its gate says, or that there is none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

from gradeline.verdict.evidence import AgentErrors, OrderFinding, PairedScores, ScoreColumn
from gradeline.verdict.gate import Evidence, GateResult, GateSettings, low_coverage
from gradeline.verdict.gates import Gate

VerdictResult = Literal["pass", "fail", "undecided", "none"]
_NO_PAIRS: Mapping[tuple[str, str], PairedScores] = MappingProxyType({})
_NO_ORDERS: Mapping[str, OrderFinding] = MappingProxyType({})


class Verdict(NamedTuple):
    """What is said of a run, and why. ``gates`` shows each gate with what it observed."""

    result: VerdictResult
    reasons: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    uncalibrated: bool = False
    """Whether a judge that is not calibrated had a say."""


def decide(
    gate: Gate | None,
    columns: Mapping[str, ScoreColumn],
    coverage_floor: float = 0.95,
    *,
    agent_errors: AgentErrors = "exclude",
    paired: Mapping[tuple[str, str], PairedScores] = _NO_PAIRS,
    uncalibrated: Collection[str] = (),
    require_calibrated: bool = False,
    primary: Sequence[str] = (),
    orders: Mapping[str, OrderFinding] = _NO_ORDERS,
) -> Verdict:
    """The verdict on a run; without a gate there is none, but coverage is still looked at.

    ``columns`` are in the order of the suite's graders. ``paired`` holds, by baseline and grader, what
    `baselines_of` names. ``primary`` graders decide where a gate compares several. ``orders`` are the findings on
    judges of two answers: a gate on one that prefers a position is undecided. The settings are the suite's: a gate's
    own settings override them.
    """
    if gate is None:
        doubtful = not set(uncalibrated).isdisjoint(columns)
        return Verdict("none", tuple(low_coverage(columns, coverage_floor)), uncalibrated=doubtful)
    settings = GateSettings(coverage_floor, agent_errors, require_calibrated, tuple(primary))
    judged = gate.judge(Evidence(columns, paired, uncalibrated, orders, settings))
    doubtful = not set(uncalibrated).isdisjoint(graders_of(gate, tuple(columns)))
    return Verdict(judged.result, tuple(dict.fromkeys(_reasons(judged))), (judged,), doubtful)


def graders_of(gate: Gate, graders: Sequence[str]) -> tuple[str, ...]:
    """The graders whose scores a gate needs; the first of all where it names none."""
    return gate.looks_at(graders)


def primary_graders(gate: Gate | None, graders: Sequence[str]) -> tuple[str, ...]:
    """The graders that decide a comparison where the suite names none: those of the gate, else the first."""
    return (() if gate is None else gate.primary(graders)) or tuple(graders[:1])


def baselines_of(gate: Gate) -> tuple[str, ...]:
    """The runs that a gate compares with."""
    return gate.baselines()


def _reasons(judged: GateResult) -> Iterator[str]:
    yield from judged.reasons
    for condition in judged.conditions:
        yield from _reasons(condition)

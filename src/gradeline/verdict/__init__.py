"""Decisions over scores: gates and comparisons, with pass, fail and undecided."""

from gradeline.verdict.evidence import AgentErrors, JudgeDoubt, OrderFinding, PairedScores, ScoreColumn, order_finding
from gradeline.verdict.gate import GateResult
from gradeline.verdict.gates import (
    KINDS,
    Gate,
    GateReading,
    LogicalGate,
    RegressionGate,
    Verdict,
    VerdictResult,
    baselines_of,
    decide,
    gate_schema,
    graders_of,
    primary_graders,
    read_gate,
)
from gradeline.verdict.score_gates import ConsistencyGate, SimpleGate, WeightedGate
from gradeline.verdict.selective_finding import SelectiveFinding, selective_finding

__all__ = [
    "KINDS",
    "AgentErrors",
    "ConsistencyGate",
    "Gate",
    "GateReading",
    "GateResult",
    "JudgeDoubt",
    "LogicalGate",
    "OrderFinding",
    "PairedScores",
    "RegressionGate",
    "ScoreColumn",
    "SelectiveFinding",
    "SimpleGate",
    "Verdict",
    "VerdictResult",
    "WeightedGate",
    "baselines_of",
    "decide",
    "gate_schema",
    "graders_of",
    "order_finding",
    "primary_graders",
    "read_gate",
    "selective_finding",
]

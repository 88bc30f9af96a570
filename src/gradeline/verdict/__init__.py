"""Decisions over scores: gates, with pass, fail and undecided told apart."""

from gradeline.verdict.columns import AgentErrors, Column, Paired
from gradeline.verdict.consistency import ConsistencyGate
from gradeline.verdict.deciding import Decision, Verdict, baselines_of, decide, graders_of, primary_graders
from gradeline.verdict.gate import GateResult
from gradeline.verdict.logical import Gate, LogicalGate, gate_schema
from gradeline.verdict.orders import OrderFinding, order_finding
from gradeline.verdict.reading import KINDS, GateReading, read_gate
from gradeline.verdict.regression import RegressionGate
from gradeline.verdict.simple import SimpleGate
from gradeline.verdict.weighted import WeightedGate

__all__ = [
    "KINDS",
    "AgentErrors",
    "Column",
    "ConsistencyGate",
    "Decision",
    "Gate",
    "GateReading",
    "GateResult",
    "LogicalGate",
    "OrderFinding",
    "Paired",
    "RegressionGate",
    "SimpleGate",
    "Verdict",
    "WeightedGate",
    "baselines_of",
    "decide",
    "gate_schema",
    "graders_of",
    "order_finding",
    "primary_graders",
    "read_gate",
]

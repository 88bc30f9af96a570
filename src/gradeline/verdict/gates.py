"""Everything about gates under one path, where `Gate` is still the simple gate alone."""

from gradeline.verdict.columns import Column, Paired
from gradeline.verdict.deciding import Verdict, baselines_of, decide, graders_of
from gradeline.verdict.gate import GateResult
from gradeline.verdict.logical import gate_schema
from gradeline.verdict.reading import GateReading, read_gate
from gradeline.verdict.simple import SimpleGate as Gate

aggregate = Gate.aggregate

__all__ = [
    "Column",
    "Gate",
    "GateReading",
    "GateResult",
    "Paired",
    "Verdict",
    "aggregate",
    "baselines_of",
    "decide",
    "gate_schema",
    "graders_of",
    "read_gate",
]

"""Gates: what a run must reach, and whether it did.

A gate is over all scores of its grader. One that too few grades have a score for is undecided,
never passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.model import Config, described
from gradeline.stats import percentile

Operator = Literal["gt", "gte", "lt", "lte", "eq"]
Aggregation = Literal["avg_score", "accuracy", "min", "max", "median", "p50", "p95", "p99"]
Decision = Literal["pass", "fail", "undecided", "none"]

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "gt": lambda value, bound: value > bound,
    "gte": lambda value, bound: value >= bound,
    "lt": lambda value, bound: value < bound,
    "lte": lambda value, bound: value <= bound,
    "eq": lambda value, bound: value == bound,
}
_SIGNS = {"gt": ">", "gte": "≥", "lt": "<", "lte": "≤", "eq": "="}


class Gate(Config, frozen=True, kw_only=True):
    """A bound on one grader's scores. ``metric``, ``pass_op`` and ``pass_value`` are the older spelling."""

    kind: Annotated[Literal["simple"], described("Which gate it is.")] = "simple"
    metric_key: Annotated[str | UnsetType, described("The grader it looks at; by default the first.")] = UNSET
    aggregation: Annotated[Aggregation | UnsetType, described("What of its scores is compared.")] = UNSET
    metric: Annotated[Literal["avg_score", "accuracy"] | UnsetType, described("Older name of `aggregation`.")] = UNSET
    op: Annotated[Operator, described("How it is compared.")]
    value: Annotated[float, described("With what. For accuracy a fraction up to 1, a percentage above.")]
    pass_threshold: Annotated[float | UnsetType, described("For accuracy: the score from which a case passes.")] = UNSET
    pass_op: Annotated[Operator | UnsetType, described("For accuracy: how a case's score is compared.")] = UNSET
    pass_value: Annotated[float | UnsetType, described("For accuracy: with what.")] = UNSET

    def faults(self) -> Iterator[Problem]:
        if self.aggregation is not UNSET and self.metric is not UNSET:
            yield Problem("metric", "is the older name of aggregation; keep one of them")
        if self.pass_threshold is not UNSET and (self.pass_op is not UNSET or self.pass_value is not UNSET):
            yield Problem("pass_threshold", "stands beside pass_op or pass_value; keep one way")

    @property
    def measured(self) -> Aggregation:
        """What is compared."""
        if self.aggregation is not UNSET:
            return self.aggregation
        return "avg_score" if self.metric is UNSET else self.metric

    def passes(self, score: float) -> bool:
        """Whether one case passes, for accuracy."""
        if self.pass_threshold is not UNSET:
            return score >= self.pass_threshold
        if self.pass_op is UNSET and self.pass_value is UNSET:
            return score >= 1.0
        bound = self.value if self.pass_value is UNSET else self.pass_value
        return _COMPARE[self.op if self.pass_op is UNSET else self.pass_op](score, bound)


class Column(NamedTuple):
    """One grader's scores, and how many grades there should be."""

    scores: Sequence[float]
    total: int


class Verdict(NamedTuple):
    """What a gate says, and why."""

    result: Decision
    reasons: tuple[str, ...]


def decide(gate: Gate | None, columns: Mapping[str, Column], coverage_floor: float) -> Verdict:
    """The verdict on a run; without a gate there is none, but coverage is still looked at."""
    if gate is None:
        return Verdict("none", tuple(_thin(columns, coverage_floor)))
    key = next(iter(columns)) if gate.metric_key is UNSET else gate.metric_key
    column = columns[key]
    if not column.scores:
        return Verdict("undecided", (f"{key}: none of {column.total} has a score",))
    found = aggregate(gate, column.scores)
    bound = gate.value / 100.0 if gate.measured == "accuracy" and gate.value > 1.0 else gate.value
    holds = _COMPARE[gate.op](found, bound)
    reason = f"{key}: {gate.measured} {found:.4g} {_SIGNS[gate.op]} {bound:g} is {'true' if holds else 'false'}"
    thin = list(_thin({key: column}, coverage_floor))
    if holds and thin:
        return Verdict("undecided", (reason, *thin))
    return Verdict("pass" if holds else "fail", (reason, *thin))


def aggregate(gate: Gate, scores: Sequence[float]) -> float:
    """The number a gate compares; accuracy is a fraction."""
    if gate.measured == "avg_score":
        return sum(scores) / len(scores)
    if gate.measured == "accuracy":
        return sum(map(gate.passes, scores)) / len(scores)
    ordered = sorted(scores)
    if gate.measured in ("min", "max"):
        return ordered[0 if gate.measured == "min" else -1]
    return percentile(ordered, {"median": 0.5, "p50": 0.5, "p95": 0.95, "p99": 0.99}[gate.measured])


def _thin(columns: Mapping[str, Column], floor: float) -> Iterator[str]:
    for key, column in columns.items():
        if column.total and len(column.scores) / column.total < floor - 1e-12:
            yield f"{key}: only {len(column.scores)} of {column.total} have a score, below the floor of {floor:g}"

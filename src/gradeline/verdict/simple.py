"""The simple gate: a bound on one grader's scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.model import described
from gradeline.verdict.aggregation import Aggregation, Range, aggregate, perfect, score_interval, share_interval
from gradeline.verdict.columns import Column
from gradeline.verdict.comparing import Operator, fraction, holds, statement
from gradeline.verdict.gate import Evidence, Finding, GateResult, LeafGate

MetricKey = Annotated[
    str | UnsetType, described("The grader it looks at; by default the first.", expected="the name of a grader")
]
Op = Annotated[Operator, described("How it is compared.")]
Bound = Annotated[
    float, described("With what. For accuracy a fraction up to 1, a percentage above.", expected="a number")
]


def key_or_first(metric_key: str | UnsetType, graders: Sequence[str]) -> tuple[str, ...]:
    """The grader that a gate looks at."""
    return tuple(graders[:1]) if metric_key is UNSET else (metric_key,)


def bound_of(aggregation: Aggregation, value: float) -> float:
    """What is compared with, on the scale of scores."""
    return fraction(value) if aggregation == "accuracy" else value


def out_of_reach(aggregation: Aggregation, value: float) -> Iterator[Problem]:
    """A warning for a bound that no score can have."""
    if not 0.0 <= bound_of(aggregation, value) <= 1.0:
        scale = "0 to 1, or to 100 as a percentage" if aggregation == "accuracy" else "0 to 1"
        yield Problem("value", f"{aggregation} lies in {scale}: {value:g} decides it before any case is run")


class SimpleGate(LeafGate, frozen=True, kw_only=True, tag="simple"):
    """A bound on one grader's scores. ``metric``, ``pass_op`` and ``pass_value`` are the older spelling."""

    metric_key: MetricKey = UNSET
    aggregation: Annotated[Aggregation | UnsetType, described("What of its scores is compared.")] = UNSET
    metric: Annotated[Literal["avg_score", "accuracy"] | UnsetType, described("Older name of `aggregation`.")] = UNSET
    op: Op
    value: Bound
    pass_threshold: Annotated[
        float | UnsetType,
        described("For accuracy: the score from which a case passes; by default 1.", expected="a number"),
    ] = UNSET
    pass_op: Annotated[
        Operator | UnsetType, described("For accuracy: how a case's score is compared; by default `op`.")
    ] = UNSET
    pass_value: Annotated[
        float | UnsetType,
        described("For accuracy: with what; without it a case passes at 1.", expected="a number"),
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        if self.aggregation is not UNSET and self.metric is not UNSET:
            yield Problem("metric", "is the older name of aggregation; keep one of them")
        if self.pass_threshold is not UNSET and (self.pass_op is not UNSET or self.pass_value is not UNSET):
            yield Problem("pass_threshold", "stands beside pass_op or pass_value; keep one way")

    def warnings(self) -> Iterator[Problem]:
        yield from out_of_reach(self.measured, self.value)
        for name in ("pass_threshold", "pass_op", "pass_value"):
            if getattr(self, name) is not UNSET and self.measured != "accuracy":
                yield Problem(name, f"has no effect on {self.measured}; only accuracy asks which cases pass")
        if self.measured == "accuracy" and self.pass_op is not UNSET and self.pass_value is UNSET:
            yield Problem("pass_op", "has no effect without pass_value: a case passes at 1")

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """A gate without a kind is a simple one."""
        schema["required"].remove("kind")
        schema["properties"]["kind"]["enum"].append(None)
        return super().amend_schema(schema)

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
        if self.pass_value is UNSET:
            return perfect(score)
        return holds(self.op if self.pass_op is UNSET else self.pass_op, score, self.pass_value, slack=0.0)

    def aggregate(self, scores: Sequence[float]) -> float:
        """The number it compares; accuracy is a fraction."""
        return aggregate(self.measured, scores, self.passes)

    def looks_at(self, graders: Sequence[str]) -> tuple[str, ...]:
        return key_or_first(self.metric_key, graders)

    def outline(self, keys: Sequence[str]) -> GateResult:
        return GateResult(
            kind=self.kind,
            metric_key=next(iter(keys), None),
            aggregation=self.measured,
            op=self.op,
            value=bound_of(self.measured, self.value),
        )

    def measure(self, evidence: Evidence) -> Finding:
        ((key, column),) = evidence.columns.items()
        found, bound = self.aggregate(column.scores), bound_of(self.measured, self.value)
        return Finding(
            "pass" if holds(self.op, found, bound) else "fail",
            f"{key}: {self.measured} {statement(self.op, found, bound)}",
            found,
            self._interval(column),
        )

    def _interval(self, column: Column) -> Range | None:
        if self.measured == "accuracy":
            return share_interval([self.passes(score) for score in column.scores], column.cases)
        return score_interval(column.scores, column.cases) if self.measured == "avg_score" else None

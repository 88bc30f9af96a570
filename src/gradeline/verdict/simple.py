"""The simple gate: a bound on one grader's scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.model import described, quote
from gradeline.verdict.aggregation import Aggregation, Range, aggregate, interval_of
from gradeline.verdict.columns import Column, clustering_of, groups_of, passes_of
from gradeline.verdict.comparing import SIGNS, Operator, fraction, holds, statement
from gradeline.verdict.gate import Evidence, Finding, GateResult, LeafGate, Result

_WITH_INTERVAL = ("avg_score", "accuracy")

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
        described(
            "For accuracy: the score from which a case passes; by default as it was graded.", expected="a number"
        ),
    ] = UNSET
    pass_op: Annotated[
        Operator | UnsetType, described("For accuracy: how a case's score is compared; by default `op`.")
    ] = UNSET
    pass_value: Annotated[
        float | UnsetType,
        described("For accuracy: with what; without it a case passes as it was graded.", expected="a number"),
    ] = UNSET

    confidence: Annotated[
        float | UnsetType,
        described(
            "Decide only when the interval of this confidence, such as 0.95, lies on one side of `value`; otherwise the"
            " gate is undecided. By default the observed number decides.",
            expected="a number between 0 and 1",
        ),
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        if self.confidence is not UNSET:
            yield from self._confidence_faults(self.confidence)
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
            yield Problem("pass_op", "has no effect without pass_value: a case passes as it was graded")

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

    @property
    def pass_rule(self) -> tuple[Operator, float] | None:
        """The gate's own rule for when a case passes, for accuracy; None: as it was graded."""
        if self.pass_threshold is not UNSET:
            return "gte", self.pass_threshold
        if self.pass_value is not UNSET:
            return (self.op if self.pass_op is UNSET else self.pass_op), self.pass_value
        return None

    def passes(self, column: Column) -> Sequence[int]:
        """Whether each case passes, for accuracy: by the gate's own rule, else as it was graded."""
        if self.pass_rule is None:
            return passes_of(column)
        op, least = self.pass_rule
        return [int(holds(op, score, least, slack=0.0)) for score in column.scores]

    def aggregate(self, column: Column) -> float:
        """The number it compares; accuracy is a fraction."""
        return aggregate(self.measured, column.scores, self.passes(column))

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
        found, bound = self.aggregate(column), bound_of(self.measured, self.value)
        interval = self._interval(column)
        statements = [f"{key}: {self.measured} {statement(self.op, found, bound)}{self._stated_rule()}"]
        result: Result = "pass" if holds(self.op, found, bound) else "fail"
        clustering = clustering_of(column)
        if self.measured in _WITH_INTERVAL and clustering is not None:
            statements.append(str(clustering) if interval else f"{clustering}, which has no interval")
        few = None if clustering is None else clustering.shortage
        if self.confidence is not UNSET and (few or not _lies_on_one_side(self.op, interval, bound)):
            result = "undecided"
            within = "one case has no interval" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
            statements.append(f"uncertain at a confidence of {self.confidence:g}: {few or within}")
        return Finding(result, "; ".join(statements), found, interval)

    def _stated_rule(self) -> str:
        if self.measured != "accuracy" or self.pass_rule is None:
            return ""
        op, least = self.pass_rule
        return f" (a case passes {'from' if op == 'gte' else f'at a score {SIGNS[op]}'} {least:g})"

    def _interval(self, column: Column) -> Range | None:
        if self.measured not in _WITH_INTERVAL:
            return None
        values = self.passes(column) if self.measured == "accuracy" else column.scores
        return interval_of(values, groups_of(column), 0.95 if self.confidence is UNSET else self.confidence)

    def _confidence_faults(self, confidence: float) -> Iterator[Problem]:
        if not 0.0 < confidence < 1.0:
            yield Problem("confidence", f"expected a number between 0 and 1, got {quote(confidence)}")
        if self.measured not in _WITH_INTERVAL:
            yield Problem("confidence", f"{self.measured} has no interval; use it with avg_score or accuracy")
        if self.op == "eq":
            yield Problem("confidence", "no interval lies on one side of an equality; use gte, gt, lte or lt")


def _lies_on_one_side(op: Operator, interval: Range | None, bound: float) -> bool:
    """Whether the whole interval satisfies the comparison, or none of it."""
    return interval is not None and holds(op, interval[0], bound) == holds(op, interval[1], bound)

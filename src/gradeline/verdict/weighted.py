"""The weighted gate: a bound on the weighted mean of several graders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import Annotated

from gradeline.errors import Problem
from gradeline.model import described, quote
from gradeline.verdict.aggregation import Aggregation, aggregate
from gradeline.verdict.columns import passes_of
from gradeline.verdict.comparing import holds, statement
from gradeline.verdict.gate import Evidence, Finding, GateResult, LeafGate
from gradeline.verdict.simple import Bound, Op, bound_of, out_of_reach

MAX_WEIGHT = 1e9
_Weight = Annotated[float, described("How much it counts.", ge=0, le=MAX_WEIGHT)]


class WeightedGate(LeafGate, frozen=True, kw_only=True, tag="weighted_average"):
    """A bound on the weighted mean of several graders. A grader of weight 0 is not looked at."""

    aggregation: Annotated[Aggregation, described("What of each grader's scores is weighed.")]
    weights: Annotated[dict[str, _Weight], described("How much each grader counts.", min_length=1)]
    op: Op
    value: Bound

    def faults(self) -> Iterator[Problem]:
        if not any(self.weights.values()):
            yield Problem("weights", "are all 0: give at least one grader a weight")

    def warnings(self) -> Iterator[Problem]:
        yield from out_of_reach(self.aggregation, self.value)

    def normalised(self) -> dict[str, float]:
        """The weights that are not 0, as shares of their sum."""
        total = fsum(self.weights.values())
        return {key: weight / total for key, weight in self.weights.items() if weight > 0.0}

    def looks_at(self, graders: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - it names them all
        return tuple(self.normalised())

    def outline(self, keys: Sequence[str]) -> GateResult:  # noqa: ARG002
        return GateResult(
            kind=self.kind, aggregation=self.aggregation, op=self.op, value=bound_of(self.aggregation, self.value)
        )

    def measure(self, evidence: Evidence) -> Finding:
        weights = self.normalised()
        parts = {
            key: aggregate(self.aggregation, column.scores, passes_of(column))
            for key, column in evidence.columns.items()
        }
        found = fsum(weights[key] * part for key, part in parts.items())
        bound = bound_of(self.aggregation, self.value)
        told = " + ".join(f"{weights[key]:.3g} × {key} {part:.4g}" for key, part in parts.items())
        return Finding(
            "pass" if holds(self.op, found, bound) else "fail",
            f"weighted {self.aggregation} {statement(self.op, found, bound)}: {told}",
            found,
        )


def read_weights(given: object, path: str, problems: list[Problem]) -> dict[str, float]:
    """The weights, each fault named with its grader."""
    if not isinstance(given, Mapping) or not given:
        problems.append(Problem(path, f"expected the weight of each grader, such as {{exact: 2}}, got {quote(given)}"))
        return {}
    faults = len(problems)
    for key, weight in given.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0.0 <= weight <= MAX_WEIGHT:
            problems.append(
                Problem(f"{path}.{key}", f"expected a number from 0 to {MAX_WEIGHT:g}, got {quote(weight)}")
            )
    return {} if len(problems) > faults else {str(key): float(weight) for key, weight in given.items()}

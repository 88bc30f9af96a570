"""Gates over scores: simple, weighted average, and consistency over repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import comb, fsum
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.model import described, quote
from gradeline.verdict.corrected import CorrectedMeasure, CorrectedRate, LabelledScores, corrected_rate, refused_rate
from gradeline.verdict.evidence import (
    Aggregation,
    Clustering,
    Range,
    ScoreColumn,
    aggregate,
    cases_of,
    clustering_of,
    groups_of,
    groups_of_cases,
    interval_of,
    passes_of,
)
from gradeline.verdict.gate import (
    SIGNS,
    Evidence,
    Finding,
    GateResult,
    Operator,
    Result,
    ScoreGate,
    as_fraction,
    comparison_text,
    satisfies,
)

_WITH_INTERVAL = ("avg_score", "accuracy")

MetricKey = Annotated[str | UnsetType, described("Grader (default the first).", expected="the name of a grader")]
Op = Annotated[Operator, described("Comparison operator.")]
Bound = Annotated[float, described("Bound. For accuracy a fraction up to 1, a percentage above.", expected="a number")]


def key_or_first(metric_key: str | UnsetType, graders: Sequence[str]) -> tuple[str, ...]:
    """The grader of a gate."""
    return tuple(graders[:1]) if metric_key is UNSET else (metric_key,)


def bound_of(aggregation: Aggregation, value: float) -> float:
    """The bound on the scale of scores."""
    return as_fraction(value) if aggregation == "accuracy" else value


def bound_warnings(aggregation: Aggregation, value: float) -> Iterator[Problem]:
    """A warning for a bound outside of the range of scores."""
    if not 0.0 <= bound_of(aggregation, value) <= 1.0:
        scale = "0 to 1, or to 100 as a percentage" if aggregation == "accuracy" else "0 to 1"
        yield Problem("value", f"{aggregation} lies in {scale}: {value:g} decides it before any case is run")


class SimpleGate(ScoreGate, frozen=True, kw_only=True, tag="simple"):
    """A bound on one grader's scores."""

    metric_key: MetricKey = UNSET
    aggregation: Annotated[Aggregation | UnsetType, described("Aggregation of the scores (default avg_score).")] = UNSET
    op: Op
    value: Bound
    pass_threshold: Annotated[
        float | UnsetType,
        described("For accuracy: minimum score of a passing case (default as graded).", expected="a number"),
    ] = UNSET
    pass_op: Annotated[
        Operator | UnsetType,
        described("For accuracy: comparison of a case's score with `pass_threshold` (default gte)."),
    ] = UNSET

    confidence: Annotated[
        float | UnsetType,
        described(
            "Decide only if the interval of this confidence, such as 0.95, is on one side of `value`; otherwise the"
            " gate is undecided (default: the observed value decides).",
            expected="a number between 0 and 1",
        ),
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        if self.confidence is not UNSET:
            yield from self._confidence_faults(self.confidence)
        yield from correction_faults(self.corrected, self.measured)

    def warnings(self) -> Iterator[Problem]:
        yield from bound_warnings(self.measured, self.value)
        for name in ("pass_threshold", "pass_op"):
            if getattr(self, name) is not UNSET and self.measured != "accuracy":
                yield Problem(name, f"has no effect on {self.measured}; only accuracy depends on which cases pass")
        if self.measured == "accuracy" and self.pass_op is not UNSET and self.pass_threshold is UNSET:
            yield Problem("pass_op", "has no effect without pass_threshold: a case passes as it was graded")

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """A gate without a kind is a simple one."""
        schema["required"].remove("kind")
        schema["properties"]["kind"]["enum"].append(None)
        return super().amend_schema(schema)

    @property
    def measured(self) -> Aggregation:
        """The aggregation to compare."""
        return "avg_score" if self.aggregation is UNSET else self.aggregation

    @property
    def pass_rule(self) -> tuple[Operator, float] | None:
        """The gate's own rule for passing cases, for accuracy; None: as graded."""
        if self.pass_threshold is UNSET:
            return None
        return ("gte" if self.pass_op is UNSET else self.pass_op), self.pass_threshold

    def passes(self, column: ScoreColumn) -> Sequence[int]:
        """For accuracy, whether each case passes: by the gate's own rule, or else as graded."""
        if self.pass_rule is None:
            return passes_of(column)
        op, least = self.pass_rule
        return [int(satisfies(op, score, least, slack=0.0)) for score in column.scores]

    def aggregate(self, column: ScoreColumn) -> float:
        """The observed value; accuracy is a fraction."""
        return aggregate(self.measured, column.scores, self.passes(column))

    def grader_keys(self, graders: Sequence[str]) -> tuple[str, ...]:
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
        if self.corrects(key, evidence):
            return self._measure_corrected(key, evidence)
        found, bound = self.aggregate(column), bound_of(self.measured, self.value)
        interval = self._interval(column)
        statements = [f"{key}: {self.measured} {comparison_text(self.op, found, bound)}{self._stated_rule()}"]
        result: Result = "pass" if satisfies(self.op, found, bound) else "fail"
        clustering = clustering_of(column)
        if self.measured in _WITH_INTERVAL and clustering is not None:
            statements.append(str(clustering) if interval else f"{clustering}, which has no interval")
        few = None if clustering is None else clustering.shortage
        if self.confidence is not UNSET and (few or not _lies_on_one_side(self.op, interval, bound)):
            result = "undecided"
            within = "one case has no interval" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}"
            statements.append(f"uncertain at a confidence of {self.confidence:g}: {few or within}")
        return Finding(result, "; ".join(statements), found, interval)

    def _measure_corrected(self, key: str, evidence: Evidence) -> Finding:
        confidence = 0.95 if self.confidence is UNSET else self.confidence
        rate = corrected_value(key, self.measured, evidence, confidence, self.pass_rule)
        if rate.estimate is None:
            return Finding("undecided", f"{key}: {self.measured}: {rate.sentence}")
        bound = bound_of(self.measured, self.value)
        statements = [f"{key}: corrected {self.measured} {comparison_text(self.op, rate.estimate, bound)}"]
        result: Result = "pass" if satisfies(self.op, rate.estimate, bound) else "fail"
        if self.confidence is not UNSET and not _lies_on_one_side(self.op, rate.interval, bound):
            result = "undecided"
            statements.append(f"uncertain at a confidence of {self.confidence:g}")
        further = (f"{key}: {rate.sentence}",)
        return Finding(result, "; ".join(statements), rate.estimate, rate.interval, further, frozenset({key}))

    def _stated_rule(self) -> str:
        if self.measured != "accuracy" or self.pass_rule is None:
            return ""
        op, least = self.pass_rule
        return f" (a case passes {'from' if op == 'gte' else f'at a score {SIGNS[op]}'} {least:g})"

    def _interval(self, column: ScoreColumn) -> Range | None:
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


_MEASURES: Mapping[Aggregation, CorrectedMeasure] = {"avg_score": "mean_score", "accuracy": "pass_rate"}


def correction_faults(corrected: bool | UnsetType, aggregation: Aggregation) -> Iterator[Problem]:
    """A problem where a gate asks for a corrected value that does not exist."""
    if corrected is True and aggregation not in _MEASURES:
        yield Problem("corrected", f"labels correct avg_score and accuracy only, not {aggregation}")


def corrected_value(
    key: str,
    aggregation: Aggregation,
    evidence: Evidence,
    confidence: float = 0.95,
    pass_rule: tuple[Operator, float] | None = None,
) -> CorrectedRate:
    """A grader's corrected mean or rate; refused for other aggregations."""
    labelled, settings = evidence.labelled.get(key, LabelledScores()), evidence.settings
    measure = _MEASURES.get(aggregation)
    if measure is None:
        return refused_rate(labelled, f"labels correct avg_score and accuracy only, not {aggregation}")
    if pass_rule is not None:
        op, least = pass_rule
        labelled = labelled.passing(lambda score: satisfies(op, score, least, slack=0.0))
    return corrected_rate(
        labelled,
        measure,
        settings.coverage_floor,
        count_failed_calls=settings.agent_errors == "fail",
        confidence=confidence,
    )


def _lies_on_one_side(op: Operator, interval: Range | None, bound: float) -> bool:
    """Whether the whole interval satisfies the comparison, or none of it."""
    return interval is not None and satisfies(op, interval[0], bound) == satisfies(op, interval[1], bound)


MAX_WEIGHT = 1e9
_Weight = Annotated[float, described("Relative weight.", ge=0, le=MAX_WEIGHT)]


class WeightedGate(ScoreGate, frozen=True, kw_only=True, tag="weighted_average"):
    """A bound on the weighted mean of several graders. Graders of weight 0 are ignored."""

    aggregation: Annotated[Aggregation, described("Aggregation of each grader's scores.")]
    weights: Annotated[dict[str, _Weight], described("Relative weight of each grader.", min_length=1)]
    op: Op
    value: Bound

    def faults(self) -> Iterator[Problem]:
        if not any(self.weights.values()):
            yield Problem("weights", "are all 0: set a weight above 0 for at least one grader")
        yield from correction_faults(self.corrected, self.aggregation)

    def warnings(self) -> Iterator[Problem]:
        yield from bound_warnings(self.aggregation, self.value)

    def normalized(self) -> dict[str, float]:
        """The weights that are not 0, as shares of their sum."""
        total = fsum(self.weights.values())
        return {key: weight / total for key, weight in self.weights.items() if weight > 0.0}

    def grader_keys(self, graders: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - it names them all
        return tuple(self.normalized())

    def outline(self, keys: Sequence[str]) -> GateResult:  # noqa: ARG002
        return GateResult(
            kind=self.kind, aggregation=self.aggregation, op=self.op, value=bound_of(self.aggregation, self.value)
        )

    def measure(self, evidence: Evidence) -> Finding:
        weights = self.normalized()
        corrected = {
            key: corrected_value(key, self.aggregation, evidence)
            for key in evidence.columns
            if self.corrects(key, evidence)
        }
        refused = [f"{key}: {self.aggregation}: {rate.sentence}" for key, rate in corrected.items() if rate.refusal]
        if refused:
            return Finding("undecided", refused[0], further=tuple(refused[1:]))
        parts = {
            key: aggregate(self.aggregation, column.scores, passes_of(column))
            for key, column in evidence.columns.items()
        }
        parts |= {key: rate.estimate for key, rate in corrected.items() if rate.estimate is not None}
        found = fsum(weights[key] * part for key, part in parts.items())
        bound = bound_of(self.aggregation, self.value)
        terms = " + ".join(f"{weights[key]:.3g} × {key} {part:.4g}" for key, part in parts.items())
        return Finding(
            "pass" if satisfies(self.op, found, bound) else "fail",
            f"weighted {self.aggregation} {comparison_text(self.op, found, bound)}: {terms}",
            found,
            further=tuple(f"{key}: {rate.sentence}" for key, rate in corrected.items()),
            by_labels=frozenset(corrected),
        )


def read_weights(given: object, path: str, problems: list[Problem]) -> dict[str, float]:
    """Read the weights; each problem names its grader."""
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


_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_COUNT = "a whole number from 1 to 10,000"


class _Requirement(NamedTuple):
    """At least ``passes`` of ``repeats``."""

    passes: int
    repeats: int


_NO_CORRECTION = "labels correct avg_score and accuracy only, not the share of repeats that pass"


class ConsistencyGate(ScoreGate, frozen=True, kw_only=True, tag="consistency"):
    """A bound on the share of cases in which k of n repeats pass, on pass^k or on pass@k.

    pass^k is the chance that all of k repeats pass, pass@k the chance that at least one of them does.

    A case with fewer scored repeats is left out and lowers the coverage. A case with more repeats counts with the
    share of its n-subsets in which k pass.
    """

    metric_key: MetricKey = UNSET
    k: Annotated[_Count | UnsetType, described("Number of repeats of a case that must pass.", expected=_COUNT)] = UNSET
    n: Annotated[_Count | UnsetType, described("Number of repeats to consider.", expected=_COUNT)] = UNSET
    pass_hat: Annotated[
        _Count | UnsetType,
        described("Instead of k and n: number of repeats that must all pass (pass^k).", expected=_COUNT),
    ] = UNSET
    pass_at: Annotated[
        _Count | UnsetType,
        described("Instead of k and n: number of repeats of which at least one must pass (pass@k).", expected=_COUNT),
    ] = UNSET
    pass_threshold: Annotated[
        float | UnsetType,
        described("Minimum score of a passing repeat (default as graded).", expected="a number"),
    ] = UNSET
    op: Op
    value: Annotated[float, described("Share of cases; a fraction up to 1, a percentage above.", expected="a number")]

    def faults(self) -> Iterator[Problem]:
        if self.corrected is True:
            yield Problem("corrected", _NO_CORRECTION)
        form = next((name for name in ("pass_hat", "pass_at") if getattr(self, name) is not UNSET), None)
        if form is not None:
            for name in ("k", "n", *(("pass_at",) if form == "pass_hat" else ())):
                if getattr(self, name) is not UNSET:
                    other = "pass_at" if name == "pass_at" else "k and n"
                    yield Problem(name, f"conflicts with {form}; keep either {other}, or {form}")
        elif self.k is UNSET and self.n is UNSET:
            yield Problem("k", "is required: set k and n (k of n repeats pass), pass_hat or pass_at")
        elif self.k is UNSET or self.n is UNSET:
            yield Problem("k" if self.k is UNSET else "n", "is required: k of n repeats")
        elif self.k > self.n:
            yield Problem("k", f"{self.k} of {self.n} repeats can never pass; k is at most n")

    def warnings(self) -> Iterator[Problem]:
        yield from bound_warnings("accuracy", self.value)

    @property
    def requirement(self) -> _Requirement:
        if self.k is not UNSET and self.n is not UNSET:
            return _Requirement(self.k, self.n)
        if self.pass_at is not UNSET:
            return _Requirement(1, self.pass_at)
        every = 1 if self.pass_hat is UNSET else self.pass_hat
        return _Requirement(every, every)

    @property
    def named(self) -> str:
        if self.pass_at is not UNSET:
            return f"pass_at_{self.pass_at}"
        return f"{self.k}_of_{self.n}" if self.pass_hat is UNSET else f"pass_hat_{self.pass_hat}"

    @property
    def needed(self) -> str:
        return f"have a score in a case with {self.requirement.repeats} of them"

    def passes(self, column: ScoreColumn) -> Sequence[int]:
        """Whether each repeat passes."""
        if self.pass_threshold is UNSET:
            return passes_of(column)
        return [int(score >= self.pass_threshold) for score in column.scores]

    def grader_keys(self, graders: Sequence[str]) -> tuple[str, ...]:
        return key_or_first(self.metric_key, graders)

    def outline(self, keys: Sequence[str]) -> GateResult:
        return GateResult(
            kind=self.kind,
            metric_key=next(iter(keys), None),
            aggregation=self.named,
            op=self.op,
            value=as_fraction(self.value),
        )

    def usable(self, column: ScoreColumn) -> ScoreColumn:
        """The scores of cases with enough repeats.

        Counting incomplete cases that have already passed, but not those that still might, would bias the share.
        """
        cases = cases_of(column)
        repeats = Counter(cases)
        rows = zip(column.scores, cases, passes_of(column), strict=True)
        usable = [row for row in rows if repeats[row[1]] >= self.requirement.repeats]
        return column._replace(
            scores=[score for score, _, _ in usable],
            cases=[case for _, case, _ in usable],
            passes=[passed for _, _, passed in usable],
        )

    def measure(self, evidence: Evidence) -> Finding:
        ((key, column),) = evidence.columns.items()
        if self.corrects(key, evidence):
            return Finding("undecided", f"{key}: not corrected: {_NO_CORRECTION}")
        if not column.scores:
            repeats = self.requirement.repeats
            return Finding("undecided", f"{key}: no case has {repeats} scored repeats; run with repeats: {repeats}")
        counts = Counter(column.cases)
        passed = Counter(case for passes, case in zip(self.passes(column), column.cases, strict=True) if passes)
        chances = [_chance(self.requirement, count, passed[case]) for case, count in counts.items()]
        found, bound = fsum(chances) / len(chances), as_fraction(self.value)
        return Finding(
            "pass" if satisfies(self.op, found, bound) else "fail",
            f"{key}: {self._label(clustering_of(column) or len(chances))} {comparison_text(self.op, found, bound)}",
            found,
            interval_of(chances, groups_of_cases(column, list(counts))),
        )

    def _label(self, cases: Clustering | int) -> str:
        over = "1 case" if cases == 1 else f"{cases} cases" if isinstance(cases, int) else str(cases)
        if self.pass_hat is not UNSET:
            return f"pass^{self.pass_hat} over {over}"
        if self.pass_at is not UNSET:
            return f"pass@{self.pass_at} over {over}"
        return f"share of {over} with {self.k} of {self.n} repeats passed"


def _chance(required: _Requirement, repeats: int, passed: int) -> float:
    """The share of all n-subsets of the repeats in which at least k pass: 0 or 1 for exactly n repeats."""
    ways = sum(
        comb(passed, hits) * comb(repeats - passed, required.repeats - hits)
        for hits in range(required.passes, min(passed, required.repeats) + 1)
    )
    return ways / comb(repeats, required.repeats)

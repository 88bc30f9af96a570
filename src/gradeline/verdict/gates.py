"""Regression and logical gates, reading gates of any kind, and the verdict of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import fields

from gradeline.errors import Problem, closest_match
from gradeline.model import described, quote, read_struct
from gradeline.verdict.corrected import LabelledScores
from gradeline.verdict.evidence import AgentErrors, JudgeDoubt, OrderFinding, PairedScores, ScoreColumn
from gradeline.verdict.gate import (
    SHARE,
    BaseGate,
    Evidence,
    Finding,
    GateResult,
    GateSettings,
    Result,
    ScoreGate,
    Share,
    low_coverage,
)
from gradeline.verdict.paired_decision import (
    MARGIN,
    ComparisonRule,
    GraderComparison,
    adjust_p_values,
    compare_cases,
    overall_decision,
    vetoes,
)
from gradeline.verdict.score_gates import ConsistencyGate, SimpleGate, WeightedGate, read_weights

_RESULTS: Mapping[str, Result] = {"better": "pass", "not_worse": "pass", "worse": "fail", "undecided": "undecided"}


class RegressionGate(ScoreGate, frozen=True, kw_only=True, tag="regression"):
    """Requires scores not to be worse than those of a baseline run, on the same cases.

    Decides like ``gradeline compare``: better and not worse pass, worse fails. Without a ``metric_key`` it compares
    every grader.
    """

    metric_key: Annotated[
        str | UnsetType,
        described(
            "The only grader to compare (default all: the primary graders decide, any other can fail it by a"
            " significant loss).",
            expected="the name of a grader",
        ),
    ] = UNSET
    baseline: Annotated[
        str,
        described("Run to compare with: baseline, ID, name or `latest~1`.", expected="the name of a run", min_length=1),
    ]
    margin: Annotated[
        Share, described("Largest mean loss that still counts as not worse (default 0.02).", expected=SHARE)
    ] = MARGIN

    stop_early: Annotated[
        bool,
        described("End the run as soon as its cases decide this gate. The cases then run in random order."),
    ] = False

    def grader_keys(self, graders: Sequence[str]) -> tuple[str, ...]:
        return tuple(graders) if self.metric_key is UNSET else (self.metric_key,)

    def primary(self, graders: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002 - without a key it has none of its own
        return () if self.metric_key is UNSET else (self.metric_key,)

    def deciding_graders(self, keys: Sequence[str], primary: Sequence[str]) -> tuple[str, ...]:
        """The graders that decide it: of those it compares, the suite's ``primary`` ones, or else the first."""
        return tuple(key for key in primary if key in keys) or tuple(keys[:1])

    def baselines(self) -> tuple[str, ...]:
        return (self.baseline,)

    def outline(self, keys: Sequence[str]) -> GateResult:
        return GateResult(
            kind=self.kind,
            metric_key=keys[0] if len(keys) == 1 else None,
            aggregation="difference",
            op="gte",
            value=-self.margin if self.margin else 0.0,
        )

    def measure(self, evidence: Evidence) -> Finding:
        against, settings = f"run {quote(self.baseline)}", evidence.settings
        rule = ComparisonRule(self.margin, settings.coverage_floor, settings.agent_errors)
        keys = tuple(evidence.columns)
        paired = {key: evidence.paired.get((self.baseline, key)) for key in keys}
        found = adjust_p_values(
            {
                key: compare_cases(pair, rule._replace(corrected=self._corrected(key, evidence)))
                for key, pair in paired.items()
                if pair is not None
            }
        )
        primary = self.deciding_graders(keys, settings.primary)
        order = [*primary, *(key for key in keys if key not in primary)]
        reasons = [self._reason(key, found.get(key), against, key in primary) for key in order]
        decision = overall_decision(found, primary)
        shown = found.get(primary[0])
        corrected = None if shown is None else shown.by_labels
        difference, interval = (None, None) if shown is None else (shown.difference, shown.difference_ci)
        return Finding(
            _RESULTS[decision],
            reasons[0],
            difference if corrected is None else corrected.estimate,
            interval if corrected is None else corrected.interval,
            tuple(reasons[1:]),
            frozenset(key for key, grader in found.items() if grader.by_labels is not None),
        )

    def _corrected(self, key: str, evidence: Evidence) -> bool | None:
        """Whether labels decide: as in ``gradeline compare`` unless the gate, or the suite for judges, says it."""
        if evidence.settings.corrected is not True:
            return evidence.settings.corrected
        return self.corrects(key, evidence) or None

    def _reason(self, key: str, found: GraderComparison | None, against: str, primary: bool) -> str:
        if found is None:
            return f"{key}: {against} has no scores of the same grader to compare with"
        if found.difference is None or found.difference_ci is None:
            return f"{key}: no case has a score both here and in {against}"
        low, high = found.difference_ci
        compared = (
            f"{key}: {found.difference:+.4g} against {against}, over {found.compared},"
            f" 95 % {low:+.4g} to {high:+.4g}, p {found.p_value:.3g}"
        )
        if found.corrected is not None and found.corrected.sentence not in found.reasons:
            compared += f"; {found.corrected.sentence}"
        noise = "" if found.noise_rule is None else f"; {found.noise_rule}"
        if primary or vetoes(found):
            open_question = "; ".join(["open", *found.reasons])
            answer = open_question if found.decision == "undecided" else str(found.decision != "worse").lower()
            return f"{compared}; not worse by more than {self.margin:g} is {answer}{noise}"
        return f"{compared}; {found.summary}{noise}"


class LogicalGate(BaseGate, frozen=True, kw_only=True, tag="logical"):
    """A combination of gates of any kind. Undecided conditions make it undecided unless the others settle it."""

    operator: Annotated[Literal["and", "or"], described("All conditions must pass (and), or one (or).")]
    conditions: Annotated[tuple[Gate, ...], described("Gates to combine (default kind simple).", min_length=1)]

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Resolve the recursive schema of its conditions."""
        definitions = gate_schema()["$defs"]
        return {**schema, "properties": definitions["LogicalGate"]["properties"], "$defs": definitions}

    def grader_keys(self, graders: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for each in self.conditions for key in each.grader_keys(graders)))

    def primary(self, graders: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for each in self.conditions for key in each.primary(graders)))

    def baselines(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.conditions for name in each.baselines()))

    def evaluate(self, evidence: Evidence) -> GateResult:
        inherited = evidence._replace(settings=self.effective_settings(evidence.settings))
        conditions = tuple(condition.evaluate(inherited) for condition in self.conditions)
        results = [condition.result for condition in conditions]
        return GateResult(
            kind=self.kind,
            op=self.operator,
            result=combine_results(self.operator, results),
            reasons=(_summary(self.operator, results),),
            conditions=conditions,
        )


_VERBS: Mapping[Result, str] = {"pass": "passed", "fail": "failed", "undecided": "undecided"}
Gate = SimpleGate | WeightedGate | LogicalGate | RegressionGate | ConsistencyGate


def gate_schema() -> dict[str, Any]:
    """The JSON Schema of a gate of any kind, self-contained."""
    schema = msgspec.json.schema(Gate)
    definitions: dict[str, Any] = schema["$defs"]
    for definition in definitions.values():
        definition.pop("title", None)
        definition["patternProperties"] = {"^x-": {}}
    for kind in get_args(Gate):
        # LogicalGate.amend_schema calls this function
        amend = BaseGate.amend_schema if kind is LogicalGate else kind.amend_schema
        amend(definitions[kind.__name__])
    # msgspec's union has a discriminator, which would require the kind
    definitions["Gate"] = {"anyOf": schema["anyOf"]}
    definitions["LogicalGate"]["properties"]["conditions"]["items"] = {"$ref": "#/$defs/Gate"}
    return {"$ref": "#/$defs/Gate", "$defs": definitions}


def combine_results(operator: Literal["and", "or"], results: Sequence[Result]) -> Result:
    """Kleene's logic: one fail settles ``and``, one pass settles ``or``, regardless of undecided ones."""
    settling: Result = "fail" if operator == "and" else "pass"
    if settling in results:
        return settling
    if "undecided" in results:
        return "undecided"
    return "pass" if operator == "and" else "fail"


def _summary(operator: Literal["and", "or"], results: Sequence[Result]) -> str:
    required = "all" if operator == "and" else "one"
    return f"{required} of {len(results)} conditions must pass: {', '.join(_counts(results))}"


def _counts(results: Sequence[Result]) -> Iterator[str]:
    counts = Counter(results)
    for result, verb in _VERBS.items():
        if counts[result]:
            yield f"{counts[result]} {verb}"


MAX_DEPTH = 32
MAX_CONDITIONS = 1_000

KINDS: dict[str, type[Gate]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Gate)}


class GateReading(NamedTuple):
    """A gate, or its problems. Paths are relative to the gate: ``conditions[1].metric_key``."""

    gate: Gate | None
    problems: list[Problem]
    warnings: list[Problem]
    """Valid settings that are probably mistakes."""


def read_gate(data: object, graders: Sequence[str]) -> GateReading:
    """Read any kind of gate; one without a kind is simple.

    ``graders`` are the keys that it may name; if empty, names are not checked.
    """
    reader = _GateReader(graders)
    problems: list[Problem] = []
    gate = reader.read(data, "", problems)
    return GateReading(
        None if problems else gate,
        [_rooted(problem) for problem in problems],
        [_rooted(warning) for warning in reader.warnings],
    )


class _GateReader:
    def __init__(self, graders: Sequence[str]) -> None:
        self._graders = graders
        self.warnings: list[Problem] = []

    def read(self, given: object, path: str, problems: list[Problem], depth: int = 1) -> Gate | None:
        if not isinstance(given, Mapping):
            expected = "expected a gate such as {metric_key: …, op: gte, value: 0.8}"
            problems.append(Problem(path, f"{expected}, got {quote(given)}"))
            return None
        kind = _kind(given, path, problems)
        if kind is None:
            return None

        def conditions(value: object, where: str, found: list[Problem]) -> tuple[Gate, ...]:
            return self._conditions(value, where, found, depth)

        # null means that the setting is missing
        optional = {field.encode_name for field in fields(kind) if not field.required}
        data = {key: value for key, value in given.items() if value is not None or key not in optional}
        reading = read_struct(kind, data, path, {"conditions": conditions, "weights": read_weights})
        problems += [*reading.problems, *reading.unknown, *self._misnamed(given, path)]
        if reading.options is not None:
            self.warnings += [warning.within(path) for warning in reading.options.warnings()]
        return reading.options

    def _conditions(self, given: object, path: str, problems: list[Problem], depth: int) -> tuple[Gate, ...]:
        if not isinstance(given, list | tuple) or not given:
            fault = f"expected a list of at least one condition, got {quote(given)}"
        elif len(given) > MAX_CONDITIONS:
            fault = f"has {len(given):,} conditions; at most {MAX_CONDITIONS:,} are read"
        elif depth >= MAX_DEPTH:
            fault = f"is nested more than {MAX_DEPTH} levels deep"
        else:
            read = [self.read(each, f"{path}[{index}]", problems, depth + 1) for index, each in enumerate(given)]
            return tuple(gate for gate in read if gate is not None)
        problems.append(Problem(path, fault))
        return ()

    def _misnamed(self, given: Mapping[Any, Any], path: str) -> Iterator[Problem]:
        """Problems for unknown graders."""
        key, weights = given.get("metric_key"), given.get("weights")
        named = {f"{path}.metric_key": key} if isinstance(key, str) else {}
        if isinstance(weights, Mapping):
            named |= {f"{path}.weights.{each}": str(each) for each in weights}
        for where, name in named.items():
            if self._graders and name not in self._graders:
                near = closest_match(name, self._graders)
                hint = f"did you mean {near!r}?" if near else f"the graders are {', '.join(self._graders)}"
                yield Problem(where, f"no grader {quote(name)}; {hint}")


def _kind(given: Mapping[Any, Any], path: str, problems: list[Problem]) -> type[Gate] | None:
    name = given.get("kind")
    if name is None:
        intended = _intended_kind(given)
        if intended is not None:
            problems.append(Problem(f"{path}.kind", f"is required: with these keys it is {intended!r}"))
        return SimpleGate if intended is None else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        near = closest_match(name, KINDS) if isinstance(name, str) else None
        hint = f" (did you mean {near!r}?)" if near else ""
        problems.append(Problem(f"{path}.kind", f"expected one of {', '.join(KINDS)}{hint}, got {quote(name)}"))
    return kind


def _intended_kind(given: Mapping[Any, Any]) -> str | None:
    """The kind that has all these keys; None if a simple gate has them."""
    keys = {key for key in given if key != "kind" and not str(key).startswith("x-")}
    if keys <= set(SimpleGate.__struct_encode_fields__):
        return None
    return next((name for name, kind in KINDS.items() if keys <= set(kind.__struct_encode_fields__)), None)


def _rooted(problem: Problem) -> Problem:
    return problem._replace(path=problem.path.removeprefix("."))


VerdictResult = Literal["pass", "fail", "undecided", "none"]
_NO_PAIRS: Mapping[tuple[str, str], PairedScores] = MappingProxyType({})
_NO_ORDERS: Mapping[str, OrderFinding] = MappingProxyType({})
_NO_LABELS: Mapping[str, LabelledScores] = MappingProxyType({})


class Verdict(NamedTuple):
    """The verdict of a run with its reasons. ``gates`` has each gate with its observed value."""

    result: VerdictResult
    reasons: tuple[str, ...] = ()
    gates: tuple[GateResult, ...] = ()
    uncalibrated: bool = False
    """A judge that is not calibrated affected the result."""


def decide(
    gate: Gate | None,
    columns: Mapping[str, ScoreColumn],
    coverage_floor: float = 0.95,
    *,
    agent_errors: AgentErrors = "exclude",
    paired: Mapping[tuple[str, str], PairedScores] = _NO_PAIRS,
    uncalibrated: Collection[str] | Mapping[str, JudgeDoubt] = (),
    require_calibrated: bool = False,
    primary: Sequence[str] = (),
    orders: Mapping[str, OrderFinding] = _NO_ORDERS,
    labelled: Mapping[str, LabelledScores] = _NO_LABELS,
    corrected: bool | None = None,
) -> Verdict:
    """The verdict of a run; without a gate it is "none", but coverage is still checked.

    ``columns`` are in the order of the suite's graders. ``paired`` has the scores of the runs in `baselines_of`, by
    baseline and grader. ``uncalibrated`` are the graders whose judge is not calibrated, with the reason if it is known;
    no gate passes or fails by a judge that drifted. ``primary`` graders decide if a gate compares several. ``orders``
    are the findings about judges that compare two answers: a gate over a judge that prefers a position is undecided.
    ``labelled`` has the labels of each grader, for gates with `corrected`. The settings are the suite's; a gate's own
    settings override them.
    """
    doubts = uncalibrated if isinstance(uncalibrated, Mapping) else dict.fromkeys(uncalibrated, JudgeDoubt())
    if gate is None:
        doubtful = not set(doubts).isdisjoint(columns)
        return Verdict("none", tuple(low_coverage(columns, coverage_floor)), uncalibrated=doubtful)
    settings = GateSettings(coverage_floor, agent_errors, require_calibrated, tuple(primary), corrected)
    result = gate.evaluate(Evidence(columns, paired, doubts, orders, settings, labelled))
    doubtful = not set(doubts).isdisjoint(graders_of(gate, tuple(columns)))
    return Verdict(result.result, tuple(dict.fromkeys(_reasons(result))), (result,), doubtful)


def graders_of(gate: Gate, graders: Sequence[str]) -> tuple[str, ...]:
    """The graders whose scores a gate needs; the first grader if it names none."""
    return gate.grader_keys(graders)


def primary_graders(gate: Gate | None, graders: Sequence[str]) -> tuple[str, ...]:
    """The graders that decide a comparison if the suite names none: those of the gate, or else the first."""
    return (() if gate is None else gate.primary(graders)) or tuple(graders[:1])


def baselines_of(gate: Gate) -> tuple[str, ...]:
    """The runs that a gate compares with."""
    return gate.baselines()


def _reasons(result: GateResult) -> Iterator[str]:
    yield from result.reasons
    for condition in result.conditions:
        yield from _reasons(condition)

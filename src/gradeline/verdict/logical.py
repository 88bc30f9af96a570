"""The logical gate: several gates as one, and the union of every gate there is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from gradeline.model import described
from gradeline.verdict.consistency import ConsistencyGate
from gradeline.verdict.gate import BaseGate, Evidence, GateResult, Result
from gradeline.verdict.regression import RegressionGate
from gradeline.verdict.simple import SimpleGate
from gradeline.verdict.weighted import WeightedGate


class LogicalGate(BaseGate, frozen=True, kw_only=True, tag="logical"):
    """All or one of several gates, of any kind. What is undecided stays so unless the others settle it."""

    operator: Annotated[Literal["and", "or"], described("Whether all conditions must pass, or one.")]
    conditions: Annotated[tuple[Gate, ...], described("The gates it combines; without a kind, simple.", min_length=1)]

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Its conditions are gates again."""
        definitions = gate_schema()["$defs"]
        return {**schema, "properties": definitions["LogicalGate"]["properties"], "$defs": definitions}

    def looks_at(self, graders: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for each in self.conditions for key in each.looks_at(graders)))

    def primary(self, graders: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for each in self.conditions for key in each.primary(graders)))

    def baselines(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for each in self.conditions for name in each.baselines()))

    def judge(self, evidence: Evidence) -> GateResult:
        inherited = evidence._replace(settings=self.settled(evidence.settings))
        conditions = tuple(condition.judge(inherited) for condition in self.conditions)
        results = [condition.result for condition in conditions]
        return GateResult(
            kind=self.kind,
            op=self.operator,
            result=combined(self.operator, results),
            reasons=(_told(self.operator, results),),
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
        # this one's own schema is made of this
        amend = BaseGate.amend_schema if kind is LogicalGate else kind.amend_schema
        amend(definitions[kind.__name__])
    # msgspec's own union has a discriminator, which would insist on the kind
    definitions["Gate"] = {"anyOf": schema["anyOf"]}
    definitions["LogicalGate"]["properties"]["conditions"]["items"] = {"$ref": "#/$defs/Gate"}
    return {"$ref": "#/$defs/Gate", "$defs": definitions}


def combined(operator: Literal["and", "or"], results: Sequence[Result]) -> Result:
    """Kleene's logic: one fail settles ``and``, one pass settles ``or``, whatever the undecided ones would say."""
    settling: Result = "fail" if operator == "and" else "pass"
    if settling in results:
        return settling
    if "undecided" in results:
        return "undecided"
    return "pass" if operator == "and" else "fail"


def _told(operator: Literal["and", "or"], results: Sequence[Result]) -> str:
    wanted = "all" if operator == "and" else "one"
    return f"{wanted} of {len(results)} conditions must pass: {', '.join(_counts(results))}"


def _counts(results: Sequence[Result]) -> Iterator[str]:
    counts = Counter(results)
    for result, verb in _VERBS.items():
        if counts[result]:
            yield f"{counts[result]} {verb}"

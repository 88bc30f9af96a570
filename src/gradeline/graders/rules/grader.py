"""Grades a text by rules that are data: no code, so anybody may write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from gradeline.errors import Problem
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.rules.base import Check, Rule
from gradeline.graders.rules.conditions import COMBINATORS, AnyRule
from gradeline.graders.rules.reading import read_rules
from gradeline.graders.rules.subject import Subject
from gradeline.model import Config, GradeContext, GradeResult, described
from gradeline.model.config import Reader

_MAX_NAMED = 10
_WATCHED_CHARS = 10_000
"""Characters times rules from which on the time is watched: a few rules on a short text cannot take long."""


class RulesConfig(Config, frozen=True):
    """Options of `RulesGrader`."""

    rules: Annotated[Sequence[AnyRule], described("What must hold of the text.", min_length=1)]
    mode: Annotated[
        Literal["all", "any", "weighted"],
        described("When it passes: all rules hold, any does, or the score reaches `threshold`."),
    ] = "all"
    threshold: Annotated[float, described("For mode weighted: the score from which it passes.", ge=0, le=1)] = 0.5

    def faults(self) -> Iterator[Problem]:
        if self.rules and not sum(rule.weight for rule in self.rules):
            yield Problem("rules", "all weights are 0: give at least one rule a weight")

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Adds the short form of the combinators, which the reader turns into the long one."""
        definitions = schema["$defs"]
        union = schema["properties"]["rules"]["items"]
        definitions["Rule"] = {"anyOf": [*union["anyOf"], *(_short_form(definitions, name) for name in COMBINATORS)]}
        rules = {"$ref": "#/$defs/Rule"}
        for holder in (schema, *definitions.values()):
            listed = holder.get("properties", {}).get("rules")
            if listed:
                listed["items"] = rules
        for definition in definitions.values():
            if "properties" in definition:
                definition["patternProperties"] = {"^x-": {}}
        return schema


def _short_form(definitions: Mapping[str, Any], name: str) -> dict[str, Any]:
    rules = {"type": "array", "items": {"$ref": "#/$defs/Rule"}, "minItems": 1}
    if name == "at_least":
        n = {"type": "integer", "minimum": 0}
        rules = {"type": "object", "properties": {"n": n, "rules": rules}, "required": ["n", "rules"]}
    common = {key: definitions["All"]["properties"][key] for key in ("weight", "required", "negate", "case_sensitive")}
    return {
        "type": "object",
        "properties": {name: rules, **common},
        "required": [name],
        "patternProperties": {"^x-": {}},
        "additionalProperties": False,
    }


class _Prepared(NamedTuple):
    path: str
    label: str
    rule: Rule
    check: Check


class RulesGrader(DeclaredGrader[RulesConfig]):
    """Checks the text against rules: contained texts, patterns, sizes, JSON, numbers, and their combinations."""

    kind = "custom-rules"
    name = "Rules"
    scoring_guide = (
        "The weighted share of the rules that hold; 0.0 when a required rule does not. "
        "`mode` decides whether that passes."
    )
    version = 2
    readers: ClassVar[Mapping[str, Reader]] = {"rules": read_rules}

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(grader_id, config)
        rules = self.options.rules
        paths = [f"rules[{index}]" for index in range(len(rules))]
        self._rules = [
            _Prepared(path, _label(path, rule), rule, rule.prepare(path))
            for path, rule in zip(paths, rules, strict=True)
        ]
        self._nested = any(getattr(rule, "rules", ()) for rule in rules)
        self._total = sum(rule.weight for rule in rules)

    def result(self, ctx: GradeContext) -> GradeResult:
        long = len(ctx.submission) * len(self._rules) > _WATCHED_CHARS or self._nested
        subject = Subject(ctx.submission, ctx, perf_counter_ns() if long else None)
        held = 0.0
        failed: list[_Prepared] = []
        for prepared in self._rules:
            if long:
                subject.check_time()
            if prepared.check(subject):
                held += prepared.rule.weight
            else:
                failed.append(prepared)
        count = len(self._rules)
        if not failed:
            return GradeResult(1.0, f"All {count} rules hold" if count > 1 else "The rule holds", {}, True)
        fatal = any(prepared.rule.required for prepared in failed)
        score = 0.0 if fatal else min(1.0, held / self._total)
        passed = not fatal and self._passes(score, count - len(failed))
        return GradeResult(score, _rationale(failed, subject, count), {"failed": [p.path for p in failed]}, passed)

    def _passes(self, score: float, held: int) -> bool:
        if self.options.mode == "weighted":
            return score >= self.options.threshold
        return self.options.mode == "any" and held > 0


def _label(path: str, rule: Rule) -> str:
    return f"{path} {'not ' if rule.negate else ''}{rule.label}"


def _rationale(failed: list[_Prepared], subject: Subject, count: int) -> str:
    named = [f"{prepared.label} (saw {prepared.rule.seen(subject)})" for prepared in failed[:_MAX_NAMED]]
    more = f"; and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
    return f"{count - len(failed)} of {count} rules hold; failed: {'; '.join(named)}{more}"

"""The rules grader: grades a text by rules that are data, without code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args

from msgspec import UNSET, Meta, UnsetType

from gradeline.errors import Problem, closest_match
from gradeline.graders.base import DeclaredGrader
from gradeline.graders.rules.base import Check, Rule, Subject, invert, pattern_faults, rule_label
from gradeline.graders.rules.data_conditions import (
    ContainsJson,
    IsJson,
    Json,
    JsonSchemaRule,
    NumericEquals,
    NumericRange,
)
from gradeline.graders.rules.markup_conditions import ContainsHtml, ContainsXml, IsHtml, IsXml
from gradeline.graders.rules.refusal import IsRefusal
from gradeline.graders.rules.text_conditions import (
    Contains,
    ContainsAll,
    ContainsAny,
    Count,
    CountedRule,
    EditDistanceMax,
    EndsWith,
    Equals,
    IsEmail,
    IsLower,
    IsUpper,
    IsUrl,
    LengthMax,
    LengthMin,
    LineCountMax,
    LineCountMin,
    Natural,
    NotContains,
    NotEquals,
    NotRegex,
    OneOf,
    Regex,
    StartsWith,
    WordCountMax,
    WordCountMin,
)
from gradeline.model import Config, GradeContext, GradeResult, described, quote, read_struct
from gradeline.model.config import Reader
from gradeline.parsing.patterns import Pattern, compile_pattern, matches


class Split(CountedRule, frozen=True, tag="split"):
    """Split the text into parts: count them, or apply rules to one part."""

    separator: Annotated[str | UnsetType, described("Text between the parts.")] = UNSET
    pattern: Annotated[str | UnsetType, described("RE2 pattern between the parts.")] = UNSET
    skip_blank: Annotated[bool, described("Ignore parts that are only whitespace.")] = False
    count: Annotated[Natural | UnsetType, described("Exact number of parts (the same as `equals`).")] = UNSET
    item: Annotated[int | UnsetType, described("Index of the part for `rules`: 0 is the first, -1 the last.")] = UNSET
    rules: Annotated[Sequence[AnyRule], described("Rules for that part; all must hold.")] = ()

    def faults(self) -> Iterator[Problem]:
        if (self.separator is UNSET) is (self.pattern is UNSET):
            yield Problem("separator", "set either 'separator' or 'pattern'")
        if self.separator == "":
            yield Problem("separator", "must not be empty")
        if self.pattern is not UNSET:
            yield from pattern_faults("pattern", self.pattern)
        if (self.item is UNSET) is bool(self.rules):
            yield Problem("item", "'item' requires 'rules', and 'rules' requires 'item'")
        if self.item is UNSET and self.count is UNSET and not self.bounded:
            yield Problem("count", "set 'count' (or 'min', 'max', 'equals'), or 'item' with 'rules'")
        yield from self.bound_faults()

    @property
    def label(self) -> str:
        what = self.pattern if self.separator is UNSET else self.separator
        conditions = [] if self.count is UNSET else [f"count {self.count}"]
        conditions += [self.bounds_label()] if self.bounded else []
        conditions += [] if self.item is UNSET else [f"item {self.item}"]
        return f"{rule_label(self, what)} {', '.join(conditions)}"

    def compile(self, path: str) -> Check:
        split = self._splitter()
        checks = [rule.prepare(f"{path}.rules[{index}]") for index, rule in enumerate(self.rules)]

        def check(subject: Subject) -> bool | None:
            parts = split(subject.text)
            if not self.within(len(parts)) or (self.count is not UNSET and len(parts) != self.count):
                return False
            if self.item is UNSET:
                return True
            if not -len(parts) <= self.item < len(parts):
                return None
            return _all_hold(checks, subject.part(parts[self.item]))

        return check

    def seen(self, subject: Subject) -> str:
        parts = self._splitter()(subject.text)
        if self.item is not UNSET and -len(parts) <= self.item < len(parts):
            return f"{len(parts)} parts, item {self.item} is {quote(parts[self.item], 80)}"
        return f"{len(parts)} parts"

    def _splitter(self) -> Callable[[str], list[str]]:
        if self.pattern is not UNSET:
            pattern = compile_pattern(self.pattern)
            split: Callable[[str], list[str]] = lambda text: _split_at(pattern, text)  # noqa: E731
        else:
            separator = self.separator if self.separator is not UNSET else ""
            split = lambda text: text.split(separator)  # noqa: E731
        if self.skip_blank:
            return lambda text: [part for part in split(text) if part.strip()]
        return split


def _split_at(pattern: Pattern, text: str) -> list[str]:
    parts, position = [], 0
    for match in matches(pattern, text):
        start, end = match.span()
        parts.append(text[position:start])
        position = end
    return [*parts, text[position:]]


def _checked(check: Check, subject: Subject) -> bool | None:
    """Run one of several checks; `NeedsIsolationError` once they have taken too long for this process."""
    subject.check_time()
    return check(subject)


def _all_hold(checks: Sequence[Check], subject: Subject) -> bool | None:
    """False if one does not hold; otherwise None if one has nothing to test."""
    held: bool | None = True
    for check in checks:
        found = _checked(check, subject)
        if found is False:
            return False
        held = None if found is None else held
    return held


def _any_holds(checks: Sequence[Check], subject: Subject) -> bool | None:
    """True if one holds; otherwise None if one has nothing to test."""
    held: bool | None = False
    for check in checks:
        found = _checked(check, subject)
        if found:
            return True
        held = None if found is None else held
    return held


class _Combinator(Rule, frozen=True):
    rules: Annotated[Sequence[AnyRule], described("Rules to combine.")]

    @property
    def label(self) -> str:
        return f"{self.__struct_config__.tag} of {len(self.rules)} rules"

    def checks(self, path: str) -> list[Check]:
        tag = self.__struct_config__.tag
        return [rule.prepare(f"{path}.{tag}[{index}]") for index, rule in enumerate(self.rules)]

    def seen(self, subject: Subject) -> str:
        held = sum(_checked(check, subject) is True for check in self.checks(""))
        return f"{held} of {len(self.rules)} hold"


class All(_Combinator, frozen=True, tag="all"):
    """Every rule holds."""

    def compile(self, path: str) -> Check:
        checks = self.checks(path)
        return lambda subject: _all_hold(checks, subject)


class AnyOf(_Combinator, frozen=True, tag="any"):
    """One of the rules holds."""

    def compile(self, path: str) -> Check:
        checks = self.checks(path)
        return lambda subject: _any_holds(checks, subject)


class NoneOf(_Combinator, frozen=True, tag="none"):
    """None of the rules holds."""

    def compile(self, path: str) -> Check:
        checks = self.checks(path)
        return lambda subject: invert(_any_holds(checks, subject))


class AtLeast(_Combinator, frozen=True, tag="at_least"):
    """At least n of the rules hold."""

    n: Annotated[Natural, described("Minimum number of rules that must hold.")]

    def faults(self) -> Iterator[Problem]:
        if self.n > len(self.rules):
            yield Problem("n", f"{self.n} is more than the number of rules ({len(self.rules)})")

    def compile(self, path: str) -> Check:
        checks, n = self.checks(path), self.n

        def check(subject: Subject) -> bool | None:
            held = [_checked(check, subject) for check in checks]
            if held.count(True) >= n:
                return True
            return None if held.count(True) + held.count(None) >= n else False

        return check


class Weighted(_Combinator, frozen=True, kw_only=True, tag="weighted"):
    """The rules' weighted share reaches the threshold; the share itself is the group's part of the score."""

    threshold: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType,
        described("Minimum share to hold (default: every rule with a weight holds)."),
    ] = UNSET

    def faults(self) -> Iterator[Problem]:
        yield from _weight_faults(self.rules)

    def compile(self, path: str) -> Check:
        measure = self._measure(path)
        return lambda subject: measure(subject).holds

    def measure(self, path: str) -> Measure:
        """The share and whether it is enough, with ``negate`` applied."""
        measure = self._measure(path)
        if not self.negate:
            return measure

        def negated(subject: Subject) -> _Share:
            share, holds = measure(subject)
            return _Share(1.0 - share, not holds)

        return negated

    def _measure(self, path: str) -> Measure:
        measures = [measure_rule(rule, f"{path}.weighted[{index}]") for index, rule in enumerate(self.rules)]
        total = sum(rule.weight for rule in self.rules)

        def measure(subject: Subject) -> _Share:
            held, missed = 0.0, False
            for rule, measured in zip(self.rules, measures, strict=True):
                subject.check_time()
                share, holds = measured(subject)
                if rule.required and not holds:
                    return _Share(0.0, False)
                held += rule.weight * share
                missed = missed or not (holds or rule.weight == 0)
            share = min(1.0, held / total)
            return _Share(share, not missed if self.threshold is UNSET else share >= self.threshold)

        return measure

    def seen(self, subject: Subject) -> str:
        return f"a share of {self._measure('')(subject).share:.3g}"


class _Share(NamedTuple):
    """The part of a rule's weight that counts, and whether the rule holds."""

    share: float
    holds: bool


Measure = Callable[[Subject], _Share]


def measure_rule(rule: Rule, path: str) -> Measure:
    """The check of a rule, with the part of its weight that counts."""
    if isinstance(rule, Weighted):
        return rule.measure(path)
    check = rule.prepare(path)
    return lambda subject: _Share(1.0, True) if check(subject) else _Share(0.0, False)


def _weight_faults(rules: Sequence[Rule]) -> Iterator[Problem]:
    if rules and not sum(rule.weight for rule in rules):
        yield Problem("rules", "all weights are 0: set a weight above 0 for at least one rule")


AnyRule = Union[  # noqa: UP007 - forty names read better in a list
    Contains, NotContains, ContainsAll, ContainsAny, Equals, NotEquals, StartsWith, EndsWith, Regex, NotRegex,
    LengthMin, LengthMax, WordCountMin, WordCountMax, LineCountMin, LineCountMax, Count, IsUpper, IsLower, Split,
    IsJson, ContainsJson, JsonSchemaRule, Json, NumericEquals, NumericRange, OneOf, IsUrl, IsEmail, EditDistanceMax,
    IsXml, ContainsXml, IsHtml, ContainsHtml, IsRefusal, All, AnyOf, NoneOf, AtLeast, Weighted,
]  # fmt: skip

COMBINATORS = ("all", "any", "none", "at_least", "weighted")


MAX_DEPTH = 32
MAX_RULES = 10_000

CONDITIONS: dict[str, type[Rule]] = {str(rule.__struct_config__.tag): rule for rule in get_args(AnyRule)}


def read_rules(data: object, path: str, problems: list[Problem]) -> list[Rule]:
    """The top-level list of rules."""
    return _read_list(data, path, problems, depth=1)


def _read_list(data: object, path: str, problems: list[Problem], depth: int) -> list[Rule]:
    if not isinstance(data, list | tuple):
        problems.append(Problem(path, f"expected a list of rules, got {quote(data)}"))
        return []
    if not data:
        problems.append(Problem(path, "is empty: write at least one rule"))
    if len(data) > MAX_RULES:
        problems.append(Problem(path, f"has {len(data):,} rules; at most {MAX_RULES:,} are read"))
        return []
    if depth > MAX_DEPTH:
        problems.append(Problem(path, f"is nested more than {MAX_DEPTH} levels deep"))
        return []
    rules = [read_rule(item, f"{path}[{index}]", problems, depth) for index, item in enumerate(data)]
    return [rule for rule in rules if rule is not None]


def read_rule(data: object, path: str, problems: list[Problem], depth: int = 1) -> Rule | None:
    """One rule; None if it is faulty."""
    if not isinstance(data, Mapping):
        problems.append(Problem(path, f"expected a rule such as {{condition: contains, value: …}}, got {quote(data)}"))
        return None
    if "condition" in data:
        return _read_condition(data["condition"], data, path, f"{path}.rules", problems, depth)
    named = [name for name in COMBINATORS if name in data]
    if len(named) != 1:
        fault = f"names both {' and '.join(map(repr, named))}; keep one" if named else "has no 'condition'"
        problems.append(Problem(path, f"{fault}, got {quote(dict(data))}"))
        return None
    return _read_short(named[0], data, path, problems, depth)


def _read_short(name: str, data: Mapping[Any, Any], path: str, problems: list[Problem], depth: int) -> Rule | None:
    """``{"all": [...]}`` and ``{"at_least": {"n": 2, "rules": [...]}}``."""
    body = data[name]
    rest = {key: value for key, value in data.items() if key != name}
    if name != "at_least":
        return _read_condition(name, {**rest, "rules": body}, path, f"{path}.{name}", problems, depth)
    if not isinstance(body, Mapping):
        problems.append(Problem(f"{path}.at_least", f"expected {{n: …, rules: […]}}, got {quote(body)}"))
        return None
    return _read_condition(name, {**rest, **body}, path, f"{path}.at_least.rules", problems, depth)


def _read_condition(
    name: object, data: Mapping[Any, Any], path: str, rules_path: str, problems: list[Problem], depth: int
) -> Rule | None:
    kind = CONDITIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        close = closest_match(name, CONDITIONS) if isinstance(name, str) else None
        hint = f"did you mean {close!r}?" if close else f"use one of {', '.join(CONDITIONS)}"
        problems.append(Problem(f"{path}.condition", f"no condition named {quote(name)}; {hint}"))
        return None

    def nested(value: object, _: str, found: list[Problem]) -> tuple[Rule, ...]:
        return tuple(_read_list(value, rules_path, found, depth + 1))

    reading = read_struct(kind, data, path, {"rules": nested})
    faults = reading.problems + reading.unknown
    if reading.options is not None and not faults:
        faults = [fault.within(path) for fault in reading.options.faults()]
    problems += faults
    return None if faults else reading.options


_MAX_NAMED = 10
_WATCHED_CHARS = 10_000
"""Characters times rules from which the time is measured: a few rules on a short text cannot take long."""


class RulesConfig(Config, frozen=True):
    """Options of `RulesGrader`."""

    rules: Annotated[Sequence[AnyRule], described("Rules for the text.", min_length=1)]
    mode: Annotated[
        Literal["all", "any", "weighted"],
        described("Pass if all rules hold (default), any holds, or the score reaches `threshold`."),
    ] = "all"
    threshold: Annotated[float, described("For mode weighted: minimum score to pass (default 0.5).", ge=0, le=1)] = 0.5

    def faults(self) -> Iterator[Problem]:
        yield from _weight_faults(self.rules)

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Add the short form of the combinators, which the reader converts to the long one."""
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
    holder = definitions[CONDITIONS[name].__name__]["properties"]
    common = {key: value for key, value in holder.items() if key not in ("condition", "rules", "n")}
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
    """Checks the text against rules: contained strings, patterns, sizes, JSON, numbers, and their combinations."""

    kind = "custom-rules"
    name = "Rules"
    scoring_guide = (
        "The weighted share of the rules that hold; 0.0 when a required rule does not. "
        "`mode` decides whether that passes. A rule of weight 0 is recorded and decides nothing."
    )
    version = 3
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
        self._shares = {
            path: rule.measure(path) for path, rule in zip(paths, rules, strict=True) if isinstance(rule, Weighted)
        }
        self._nested = any(getattr(rule, "rules", ()) for rule in rules)
        self._total = sum(rule.weight for rule in rules)

    @classmethod
    def version_of(cls, options: RulesConfig) -> int:
        """Version 3 changed only rules of weight 0: they no longer fail the grade."""
        return cls.version if any(rule.weight == 0 for rule in options.rules) else 2

    def result(self, ctx: GradeContext) -> GradeResult:
        long = self._nested or len(ctx.submission) * len(self._rules) > _WATCHED_CHARS
        subject = Subject(ctx.submission, ctx, perf_counter_ns() if long else None)
        credit = 0.0
        failed: list[_Prepared] = []
        for prepared in self._rules:
            if long:
                subject.check_time()
            if prepared.path in self._shares:
                share, holds = self._shares[prepared.path](subject)
                credit += prepared.rule.weight * share
            else:
                holds = prepared.check(subject) is True
                credit += prepared.rule.weight if holds else 0.0
            if not holds:
                failed.append(prepared)
        count = len(self._rules)
        fatal = any(prepared.rule.required for prepared in failed)
        score = 0.0 if fatal else min(1.0, credit / self._total)
        if not failed and score == 1.0:
            return GradeResult(1.0, f"All {count} rules hold" if count > 1 else "The rule holds", {}, True)
        passed = not fatal and self._passes(score, failed)
        return GradeResult(score, _rationale(failed, subject, count), {"failed": [p.path for p in failed]}, passed)

    def _passes(self, score: float, failed: Sequence[_Prepared]) -> bool:
        if self.options.mode == "weighted":
            return score >= self.options.threshold
        missed = sum(1 for prepared in failed if prepared.rule.weight)
        if self.options.mode == "all":
            return not missed
        return missed < sum(1 for prepared in self._rules if prepared.rule.weight)


def takes_long(text: str, rules: Sequence[Rule]) -> bool:
    """Whether the time of checks must be measured."""
    return len(text) * len(rules) > _WATCHED_CHARS or any(getattr(rule, "rules", ()) for rule in rules)


def rule_name(rule: Rule) -> str:
    """The rule in a few words."""
    return f"not {rule.label}" if rule.negate else rule.label


def _label(path: str, rule: Rule) -> str:
    return f"{path} {rule_name(rule)}"


def _rationale(failed: list[_Prepared], subject: Subject, count: int) -> str:
    named = [f"{prepared.label} (saw {prepared.rule.seen(subject)})" for prepared in failed[:_MAX_NAMED]]
    more = f"; and {len(failed) - _MAX_NAMED} more" if len(failed) > _MAX_NAMED else ""
    held = f"{count - len(failed)} of {count} rules hold"
    return f"{held}; failed: {'; '.join(named)}{more}" if failed else held

"""Rules made of rules, and the union of every condition there is.

A condition's fields are its JSON form and its JSON Schema; ``compile`` prepares it once and gives
the check that runs at every grade; ``seen`` says what a failed check saw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Union

from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.graders.rules.base import Check, Rule, inverted, labelled, pattern_faults
from gradeline.graders.rules.data import IsJson, Json, JsonSchema, NumericEquals, NumericRange
from gradeline.graders.rules.sizes import (
    Count,
    CountedRule,
    LengthMax,
    LengthMin,
    LineCountMax,
    LineCountMin,
    Natural,
    WordCountMax,
    WordCountMin,
)
from gradeline.graders.rules.subject import Subject
from gradeline.graders.rules.texts import (
    Contains,
    ContainsAll,
    ContainsAny,
    EndsWith,
    Equals,
    IsEmail,
    IsLower,
    IsUpper,
    IsUrl,
    NotContains,
    NotEquals,
    NotRegex,
    OneOf,
    Regex,
    StartsWith,
)
from gradeline.model import described, quote
from gradeline.parsing.patterns import Pattern, compile_pattern, matches


class Split(CountedRule, frozen=True, tag="split"):
    """The text in parts: count them, or hand one part to further rules."""

    separator: Annotated[str | UnsetType, described("The text between the parts.")] = UNSET
    pattern: Annotated[str | UnsetType, described("An RE2 pattern that stands between the parts.")] = UNSET
    skip_blank: Annotated[bool, described("Leave out parts of white space alone.")] = False
    count: Annotated[Natural | UnsetType, described("Exactly so many parts (the same as `equals`).")] = UNSET
    item: Annotated[int | UnsetType, described("Which part `rules` look at: 0 is the first, -1 the last.")] = UNSET
    rules: Annotated[Sequence[AnyRule], described("What must hold of that part, all of it.")] = ()

    def faults(self) -> Iterator[Problem]:
        if (self.separator is UNSET) is (self.pattern is UNSET):
            yield Problem("separator", "give either 'separator' or 'pattern'")
        if self.separator == "":
            yield Problem("separator", "must not be empty")
        if self.pattern is not UNSET:
            yield from pattern_faults("pattern", self.pattern)
        if (self.item is UNSET) is bool(self.rules):
            yield Problem("item", "'item' and 'rules' go together")
        if self.item is UNSET and self.count is UNSET and not self.bounded:
            yield Problem("count", "give 'count' (or 'min', 'max', 'equals'), or 'item' with 'rules'")
        yield from self.bound_faults()

    @property
    def label(self) -> str:
        what = self.pattern if self.separator is UNSET else self.separator
        wanted = [] if self.count is UNSET else [f"count {self.count}"]
        wanted += [self.bounds_label()] if self.bounded else []
        wanted += [] if self.item is UNSET else [f"item {self.item}"]
        return f"{labelled(self, what)} {', '.join(wanted)}"

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
    """Whether one of several conditions holds; `NeedsIsolationError` once all have taken too long for this process."""
    subject.check_time()
    return check(subject)


def _all_hold(checks: Sequence[Check], subject: Subject) -> bool | None:
    """False once one does not hold; else None where one is about something absent."""
    held: bool | None = True
    for check in checks:
        found = _checked(check, subject)
        if found is False:
            return False
        held = None if found is None else held
    return held


def _any_holds(checks: Sequence[Check], subject: Subject) -> bool | None:
    """True once one holds; else None where one is about something absent."""
    held: bool | None = False
    for check in checks:
        found = _checked(check, subject)
        if found:
            return True
        held = None if found is None else held
    return held


class _Combinator(Rule, frozen=True):
    rules: Annotated[Sequence[AnyRule], described("The rules it combines.")]

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
        return lambda subject: inverted(_any_holds(checks, subject))


class AtLeast(_Combinator, frozen=True, tag="at_least"):
    """At least n of the rules hold."""

    n: Annotated[Natural, described("How many must hold.")]

    def faults(self) -> Iterator[Problem]:
        if self.n > len(self.rules):
            yield Problem("n", f"{self.n} of {len(self.rules)} rules can never hold")

    def compile(self, path: str) -> Check:
        checks, n = self.checks(path), self.n

        def check(subject: Subject) -> bool | None:
            held = [_checked(check, subject) for check in checks]
            if held.count(True) >= n:
                return True
            return None if held.count(True) + held.count(None) >= n else False

        return check


AnyRule = Union[  # noqa: UP007 - thirty names read better in a list
    Contains, NotContains, ContainsAll, ContainsAny, Equals, NotEquals, StartsWith, EndsWith, Regex, NotRegex,
    LengthMin, LengthMax, WordCountMin, WordCountMax, LineCountMin, LineCountMax, Count, IsUpper, IsLower, Split,
    IsJson, JsonSchema, Json, NumericEquals, NumericRange, OneOf, IsUrl, IsEmail, All, AnyOf, NoneOf, AtLeast,
]  # fmt: skip

COMBINATORS = ("all", "any", "none", "at_least")

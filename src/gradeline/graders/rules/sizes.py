"""Conditions on how much there is of something."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar

import msgspec
from msgspec import UNSET, UnsetType

from gradeline.errors import Problem
from gradeline.graders.rules.base import Check, Rule, labelled, pattern_faults
from gradeline.graders.rules.subject import REFERENCES, Reference, Subject, number_value, reference_faults, text_value
from gradeline.model import described
from gradeline.parsing.patterns import compile_pattern, matches

_WORD = re.compile(r"\w+")


class _SizeRule(Rule, frozen=True):
    value: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | Reference,
        described("A whole number, or a reference to one.", expected=f"a whole number from 0 on, {REFERENCES}"),
    ]
    least: ClassVar[bool]

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("value", self.value, "a whole number from 0 on")

    @property
    def label(self) -> str:
        return f"{self.__struct_config__.tag} {self.value}"

    def compile(self, path: str) -> Check:
        bound = number_value(self.value, f"{path}.value")
        measure = self.measure
        if self.least:
            return lambda subject: measure(subject) >= bound(subject)
        return lambda subject: measure(subject) <= bound(subject)

    def measure(self, subject: Subject) -> int:
        raise NotImplementedError

    def seen(self, subject: Subject) -> str:
        return str(self.measure(subject))


class _LengthRule(_SizeRule, frozen=True):
    def measure(self, subject: Subject) -> int:
        return len(subject.text)


class _WordCountRule(_SizeRule, frozen=True):
    def measure(self, subject: Subject) -> int:
        return sum(1 for _ in _WORD.finditer(subject.text))


class _LineCountRule(_SizeRule, frozen=True):
    def measure(self, subject: Subject) -> int:
        return len(subject.text.splitlines())


class LengthMin(_LengthRule, frozen=True, tag="length_min"):
    """The text has at least so many characters."""

    least = True


class LengthMax(_LengthRule, frozen=True, tag="length_max"):
    """The text has at most so many characters."""

    least = False


class WordCountMin(_WordCountRule, frozen=True, tag="word_count_min"):
    """The text has at least so many words; a word is a run of \\w."""

    least = True


class WordCountMax(_WordCountRule, frozen=True, tag="word_count_max"):
    """The text has at most so many words; a word is a run of \\w."""

    least = False


class LineCountMin(_LineCountRule, frozen=True, tag="line_count_min"):
    """The text has at least so many lines."""

    least = True


class LineCountMax(_LineCountRule, frozen=True, tag="line_count_max"):
    """The text has at most so many lines."""

    least = False


Natural = Annotated[int, msgspec.Meta(ge=0)]


class CountedRule(Rule, frozen=True):
    min: Annotated[Natural | UnsetType, described("At least so many.")] = UNSET
    max: Annotated[Natural | UnsetType, described("At most so many.")] = UNSET
    equals: Annotated[Natural | UnsetType, described("Exactly so many.")] = UNSET

    @property
    def bounded(self) -> bool:
        return (self.min, self.max, self.equals) != (UNSET, UNSET, UNSET)

    def bound_faults(self) -> Iterator[Problem]:
        if self.min is not UNSET and self.max is not UNSET and self.min > self.max:
            yield Problem("min", f"{self.min} is more than max {self.max}")

    def within(self, count: int) -> bool:
        return (
            (self.min is UNSET or count >= self.min)
            and (self.max is UNSET or count <= self.max)
            and (self.equals is UNSET or count == self.equals)
        )

    def bounds_label(self) -> str:
        named = (("min", self.min), ("max", self.max), ("equals", self.equals))
        return ", ".join(f"{name} {bound}" for name, bound in named if bound is not UNSET)


class Count(CountedRule, frozen=True, kw_only=True, tag="count"):
    """A text or a pattern stands in the text so many times; overlaps count once."""

    text: Annotated[str | UnsetType, described("The text to count, or a reference.")] = UNSET
    pattern: Annotated[str | UnsetType, described("The RE2 pattern to count.")] = UNSET
    case_sensitive: Annotated[bool, described("Regard upper and lower case in `text`; a pattern always does.")] = False

    def faults(self) -> Iterator[Problem]:
        if (self.text is UNSET) is (self.pattern is UNSET):
            yield Problem("text", "give either 'text' or 'pattern'")
        if self.text == "":
            yield Problem("text", "must not be empty")
        if self.pattern is not UNSET:
            yield from pattern_faults("pattern", self.pattern)
        if not self.bounded:
            yield Problem("min", "give at least one of 'min', 'max', 'equals'")
        yield from self.bound_faults()

    @property
    def label(self) -> str:
        what = self.pattern if self.text is UNSET else self.text
        return f"{labelled(self, what)} {self.bounds_label()}"

    def compile(self, path: str) -> Check:
        count = self._counter(path)
        return lambda subject: self.within(count(subject))

    def seen(self, subject: Subject) -> str:
        return str(self._counter("")(subject))

    def _counter(self, path: str) -> Callable[[Subject], int]:
        if self.pattern is not UNSET:
            pattern = compile_pattern(self.pattern)
            return lambda subject: sum(1 for _ in matches(pattern, subject.text))
        assert self.text is not UNSET  # noqa: S101 - `faults` saw to it
        value = text_value(self.text, case_sensitive=self.case_sensitive, path=f"{path}.text")
        if self.case_sensitive:
            return lambda subject: _count(subject.exact, value(subject))
        return lambda subject: _count(subject.folded, value(subject))


def _count(text: str, part: str) -> int:
    return text.count(part) if part else 0

"""Base class of rules, their values, and the text under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from time import perf_counter_ns
from typing import Annotated

import msgspec

from gradeline.errors import Problem, UngradableError
from gradeline.graders.case_values import case_texts, case_value, is_reference, reference_text
from gradeline.model import GradeContext, described, quote
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.patterns import PatternError, compile_pattern, nfc


class Subject:
    """The text under test, with normalized forms that several rules use."""

    def __init__(self, text: str, ctx: GradeContext, started: int | None = None) -> None:
        """``started`` is the `perf_counter_ns` of the first check, if the checks may take long."""
        self.text = text
        self.ctx = ctx
        self._started = started

    def part(self, text: str) -> Subject:
        """A part of the text, in the same case."""
        return Subject(text, self.ctx, self._started)

    def check_time(self) -> None:
        """Raise `NeedsIsolationError` if the checks have taken too long for this process."""
        if self._started is not None and too_costly(perf_counter_ns() - self._started):
            raise needs_worker("the check of all rules")

    @cached_property
    def shown(self) -> str:
        """The text quoted for a rationale."""
        return quote(self.text, 80)

    @cached_property
    def exact(self) -> str:
        """The text for case-sensitive comparisons."""
        return nfc(self.text)

    @cached_property
    def folded(self) -> str:
        """The text for case-insensitive comparisons."""
        return self.exact.casefold()


Text = Callable[[Subject], str]


def text_value(value: str, *, case_sensitive: bool, path: str) -> Text:
    """Returns a rule's text: a literal normalized once, or a reference resolved for each case."""
    if is_reference(value):
        return lambda subject: _normal(
            reference_text(case_value(value, subject.ctx, path), value, path), case_sensitive
        )
    literal = _normal(value, case_sensitive)
    return lambda _: literal


def texts_value(value: list[str] | str, *, case_sensitive: bool, path: str) -> Callable[[Subject], list[str]]:
    """Like `text_value`, for a list."""
    if isinstance(value, str):

        def from_case(subject: Subject) -> list[str]:
            return [_normal(item, case_sensitive) for item in case_texts(value, subject.ctx, path)]

        return from_case
    literals = [_normal(item, case_sensitive) for item in value]
    return lambda _: literals


def number_value(value: float | str, path: str) -> Callable[[Subject], float]:
    """Like `text_value`, for a number."""
    if not isinstance(value, str):
        return lambda _: value

    def from_case(subject: Subject) -> float:
        found = case_value(value, subject.ctx, path)
        try:
            if isinstance(found, bool):
                raise ValueError
            return float(found) if isinstance(found, int | float | str) else float(str(found))
        except ValueError:
            raise UngradableError(f"{path}: {value} is {quote(found)}, not a number") from None

    return from_case


def _text_of(reference: str, subject: Subject, path: str) -> str:
    return reference_text(case_value(reference, subject.ctx, path), reference, path)


def _normal(text: str, case_sensitive: bool) -> str:
    text = nfc(text)
    return text if case_sensitive else text.casefold()


Check = Callable[[Subject], bool | None]
"""Whether the condition holds; None if the text has nothing to test, such as no JSON value or no number."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, tag_field="condition", forbid_unknown_fields=True):
    """Base class of rules, with their common options."""

    weight: Annotated[float, described("Weight in the score (default 1).", ge=0, le=1e6)] = 1.0
    required: Annotated[bool, described("Score 0.0 for the whole grade if it does not hold.")] = False
    negate: Annotated[
        bool,
        described("Invert the condition; without a value to test the rule does not hold either."),
    ] = False
    case_sensitive: Annotated[bool, described("Distinguish upper and lower case (default false).")] = False

    def faults(self) -> Iterator[Problem]:
        """Problems of combinations of options. Paths are relative to the rule."""
        yield from ()

    def compile(self, path: str) -> Check:
        raise NotImplementedError

    def seen(self, subject: Subject) -> str:
        return subject.shown

    @property
    def label(self) -> str:
        """The rule in a few words."""
        return str(self.__struct_config__.tag)

    def prepare(self, path: str) -> Check:
        """The check with ``negate`` applied; None (nothing to test) stays None."""
        check = self.compile(path)
        return (lambda subject: invert(check(subject))) if self.negate else check


def invert(held: bool | None) -> bool | None:
    return None if held is None else not held


def rule_label(rule: Rule, value: object) -> str:
    return f"{rule.__struct_config__.tag} {quote(value, 80)}"


class PlainRule(Rule, frozen=True):
    """A condition without options."""

    def compile(self, path: str) -> Check:  # noqa: ARG002
        return self.holds

    def holds(self, subject: Subject) -> bool:
        raise NotImplementedError


def pattern_faults(field: str, pattern: str) -> Iterator[Problem]:
    try:
        compile_pattern(pattern)
    except PatternError as error:
        yield Problem(field, str(error))

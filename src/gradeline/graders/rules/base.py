"""What every rule has: its options, its check, and its words in a rationale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from gradeline.errors import Problem
from gradeline.graders.rules.subject import Subject
from gradeline.model import described, quote
from gradeline.parsing.patterns import PatternError, compile_pattern

Check = Callable[[Subject], bool | None]
"""Whether the condition holds; None where the text lacks what it is about, such as a JSON value or a number."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, tag_field="condition", forbid_unknown_fields=True):
    """What every rule may carry."""

    weight: Annotated[float, described("Its weight in the score.", ge=0, le=1e6)] = 1.0
    required: Annotated[bool, described("Makes the whole grade 0 when it does not hold.")] = False
    negate: Annotated[
        bool,
        described("Holds when the condition does not; never where the text lacks what the condition is about."),
    ] = False
    case_sensitive: Annotated[bool, described("Regard upper and lower case where texts are compared.")] = False

    def faults(self) -> Iterator[Problem]:
        """What is wrong though each option alone is right. Paths are relative to the rule."""
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
        """The check, with ``negate`` applied: what is absent neither holds nor makes its negation hold."""
        check = self.compile(path)
        return (lambda subject: inverted(check(subject))) if self.negate else check


def inverted(held: bool | None) -> bool | None:
    return None if held is None else not held


def labelled(rule: Rule, value: object) -> str:
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

"""What every rule has: its options, its check, and its words in a rationale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from time import perf_counter_ns
from typing import Annotated

import msgspec

from gradeline.errors import Problem, UngradableError
from gradeline.model import GradeContext, clean_text, described, quote
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.patterns import PatternError, compile_pattern, nfc

REFERENCES = "$expected, $input or $metadata.key"
_SHAPE = r"^\$(expected|input|metadata\..+)$"
# The schema says the shape and `reference_faults` checks it: Meta(pattern=...) of msgspec 0.22 beside a
# list crashes the interpreter (msgspec issue 717).
Reference = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": _SHAPE})]
"""``$expected``, ``$input`` or ``$metadata.key``: a value that comes from the case."""


class Subject:
    """One text under the rules, with the forms of it that several rules want."""

    def __init__(self, text: str, ctx: GradeContext, began: int | None = None) -> None:
        """``began`` is when the first rule was checked, where they may take long: `perf_counter_ns`."""
        self.text = text
        self.ctx = ctx
        self._began = began

    def part(self, text: str) -> Subject:
        """A piece of the text, in the same case."""
        return Subject(text, self.ctx, self._began)

    def check_time(self) -> None:
        """`NeedsIsolationError` once the rules have taken too long for this process."""
        if self._began is not None and too_costly(perf_counter_ns() - self._began):
            raise needs_worker("the check of all rules")

    @cached_property
    def shown(self) -> str:
        """The text as a rationale shows it."""
        return quote(self.text, 80)

    @cached_property
    def exact(self) -> str:
        """The text as it is compared with regard to case."""
        return nfc(self.text)

    @cached_property
    def folded(self) -> str:
        """The text as it is compared without regard to case."""
        return self.exact.casefold()


Text = Callable[[Subject], str]


def text_value(value: str, *, case_sensitive: bool, path: str) -> Text:
    """How to get a rule's text: the literal prepared once, or the case's own at every grade."""
    if is_reference(value):
        return lambda subject: _normal(reference_text(look_up(value, subject, path), value, path), case_sensitive)
    literal = _normal(value, case_sensitive)
    return lambda _: literal


def texts_value(value: list[str] | str, *, case_sensitive: bool, path: str) -> Callable[[Subject], list[str]]:
    """Like `text_value`, for a list."""
    if isinstance(value, str):

        def from_case(subject: Subject) -> list[str]:
            found = look_up(value, subject, path)
            items = found if isinstance(found, list) else [found]
            return [_normal(reference_text(item, value, path), case_sensitive) for item in items]

        return from_case
    literals = [_normal(item, case_sensitive) for item in value]
    return lambda _: literals


def number_value(value: float | str, path: str) -> Callable[[Subject], float]:
    """Like `text_value`, for a number."""
    if not isinstance(value, str):
        return lambda _: value

    def from_case(subject: Subject) -> float:
        found = look_up(value, subject, path)
        try:
            if isinstance(found, bool):
                raise ValueError
            return float(found) if isinstance(found, int | float | str) else float(str(found))
        except ValueError:
            raise UngradableError(f"{path}: {value} is {quote(found)}, not a number") from None

    return from_case


def reference_faults(field: str, value: object, expected: str) -> Iterator[Problem]:
    """A text that is no reference where only a reference or data may stand."""
    if isinstance(value, str) and not is_reference(value):
        yield Problem(field, f"expected {expected}, {REFERENCES}, got {quote(value)}")


def is_reference(value: str) -> bool:
    return value in ("$expected", "$input") or (value.startswith("$metadata.") and len(value) > len("$metadata."))


def look_up(reference: str, subject: Subject, path: str) -> object:
    """What a reference stands for in this case; a missing one is an error, never a guess."""
    sample = subject.ctx.sample
    if reference == "$expected":
        if subject.ctx.expected is None:
            raise UngradableError(f"{path}: $expected is absent; the case has no ground_truth")
        return subject.ctx.expected
    if reference == "$input":
        return "\n".join(sample.input) if isinstance(sample.input, list) else sample.input
    key = reference.removeprefix("$metadata.")
    if key in sample.metadata:
        return sample.metadata[key]
    found: object = sample.metadata
    for part in key.split("."):
        if not isinstance(found, dict) or part not in found:
            known = ", ".join(map(repr, list(sample.metadata)[:10])) or "none"
            raise UngradableError(f"{path}: {reference} is absent; the case's metadata keys are {known}")
        found = found[part]
    return found


def reference_text(value: object, reference: str, path: str) -> str:
    """The value of a reference as text; `UngradableError` for what is not text, such as null."""
    if isinstance(value, str):
        return clean_text(value).text
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise UngradableError(f"{path}: {reference} is {quote(value)}, not text")


def _normal(text: str, case_sensitive: bool) -> str:
    text = nfc(text)
    return text if case_sensitive else text.casefold()


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

"""Conditions on the content of a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, UnsetType

from gradeline.errors import Problem, UngradableError
from gradeline.graders.case_values import (
    REFERENCES,
    Reference,
    case_value,
    is_reference,
    reference_faults,
    reference_text,
)
from gradeline.graders.rules.base import (
    Check,
    PlainRule,
    Rule,
    Subject,
    number_value,
    pattern_faults,
    rule_label,
    text_value,
    texts_value,
)
from gradeline.model import described
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.patterns import PatternError, compile_pattern, matches

_DOMAIN_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = re.compile(rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]{{1,64}}@{_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})+")

_HOST = re.compile(r"[\w-]+(?:\.[\w-]+)*\.?")
_NOT_IN_URL = re.compile(r'["<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')
"""Characters that must be percent-encoded in a URL, and a percent sign that encodes nothing."""


class _TextRule(Rule, frozen=True):
    value: Annotated[str, described("String, or $expected, $input, $metadata.key.", expected="a string (in quotes)")]

    @property
    def label(self) -> str:
        return rule_label(self, self.value)

    def compile(self, path: str) -> Check:
        value = text_value(self.value, case_sensitive=self.case_sensitive, path=f"{path}.value")
        holds = self.holds
        if self.case_sensitive:
            return lambda subject: holds(subject.exact, value(subject))
        return lambda subject: holds(subject.folded, value(subject))

    def holds(self, text: str, value: str) -> bool:
        raise NotImplementedError


class _PartRule(_TextRule, frozen=True):
    """A search for a string within the text; an empty string is never found."""

    def faults(self) -> Iterator[Problem]:
        if not self.value:
            yield Problem("value", "must not be empty")


class Contains(_PartRule, frozen=True, tag="contains"):
    """The text contains the value."""

    def holds(self, text: str, value: str) -> bool:
        return bool(value) and value in text


class NotContains(_PartRule, frozen=True, tag="not_contains"):
    """The text does not contain the value."""

    def holds(self, text: str, value: str) -> bool:
        return not value or value not in text


class StartsWith(_PartRule, frozen=True, tag="starts_with"):
    """The text starts with the value."""

    def holds(self, text: str, value: str) -> bool:
        return bool(value) and text.startswith(value)


class EndsWith(_PartRule, frozen=True, tag="ends_with"):
    """The text ends with the value."""

    def holds(self, text: str, value: str) -> bool:
        return bool(value) and text.endswith(value)


class Equals(_TextRule, frozen=True, tag="equals"):
    """The text is the value."""

    def holds(self, text: str, value: str) -> bool:
        return text == value

    def seen(self, subject: Subject) -> str:
        value = text_value(self.value, case_sensitive=self.case_sensitive, path="value")(subject)
        text = subject.exact if self.case_sensitive else subject.folded
        spaced = text != value and text.split() == value.split()
        return f"{subject.shown}, which differs only in whitespace" if spaced else subject.shown


class NotEquals(_TextRule, frozen=True, tag="not_equals"):
    """The text is not the value."""

    def holds(self, text: str, value: str) -> bool:
        return text != value


class _ListRule(Rule, frozen=True):
    value: Annotated[
        Annotated[list[str], msgspec.Meta(min_length=1)] | Reference,
        described("List of strings, or a reference.", expected=f"a list of strings (at least one), {REFERENCES}"),
    ]

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("value", self.value, "a list of strings")

    @property
    def label(self) -> str:
        return rule_label(self, self.value)

    def compile(self, path: str) -> Check:
        values = texts_value(self.value, case_sensitive=self.case_sensitive, path=f"{path}.value")
        holds = self.holds
        if self.case_sensitive:
            return lambda subject: holds(subject.exact, values(subject))
        return lambda subject: holds(subject.folded, values(subject))

    def holds(self, text: str, values: list[str]) -> bool:
        raise NotImplementedError


class EditDistanceMax(_TextRule, frozen=True, tag="edit_distance_max"):
    """The text differs from the value by at most this number of inserted, deleted and replaced characters."""

    max: Annotated[int, described("Maximum edits (default 5).", ge=0)] = 5

    def holds(self, text: str, value: str) -> bool:
        return self._distance(text, value) <= self.max

    def seen(self, subject: Subject) -> str:
        value = text_value(self.value, case_sensitive=self.case_sensitive, path="value")(subject)
        distance = self._distance(subject.exact if self.case_sensitive else subject.folded, value)
        return f"more than {self.max} edits" if distance > self.max else f"{distance} edits"

    def _distance(self, text: str, value: str) -> int:
        """The number of edits, or a greater one than allowed."""
        from rapidfuzz.distance import Levenshtein  # 40 ms, only for this rule

        if abs(len(text) - len(value)) > self.max:
            return self.max + 1
        if too_costly(len(text) * min(len(value), 2 * self.max + _BLOCK) * _EDIT_NS):
            raise needs_worker(f"the edit distance of {len(text):,} and {len(value):,} characters")
        return Levenshtein.distance(text, value, score_cutoff=self.max)


_EDIT_NS = 0.05
"""Time of rapidfuzz for each pair of characters, of which it compares blocks around the diagonal."""
_BLOCK = 128


class ContainsAll(_ListRule, frozen=True, tag="contains_all"):
    """The text contains every value."""

    def holds(self, text: str, values: list[str]) -> bool:
        return bool(values) and all(value and value in text for value in values)


class ContainsAny(_ListRule, frozen=True, tag="contains_any"):
    """The text contains at least one of the values."""

    def holds(self, text: str, values: list[str]) -> bool:
        return any(value and value in text for value in values)


class OneOf(_ListRule, frozen=True, tag="one_of"):
    """The text is one of the values."""

    def holds(self, text: str, values: list[str]) -> bool:
        return text in values


class _RegexRule(Rule, frozen=True, kw_only=True):
    value: Annotated[str, described("RE2 pattern to search for; inline flags such as (?i) are allowed.")]
    case_sensitive: Annotated[bool, described("Distinguish upper and lower case (default true).")] = True

    @property
    def label(self) -> str:
        return rule_label(self, self.value)

    def faults(self) -> Iterator[Problem]:
        if not is_reference(self.value):
            yield from pattern_faults("value", self.value)

    def finder(self, path: str) -> Check:
        flags = "" if self.case_sensitive else "(?i)"
        if not is_reference(self.value):
            search = compile_pattern(flags + self.value).search
            return lambda subject: search(subject.text) is not None
        reference = self.value

        def find(subject: Subject) -> bool:
            pattern = reference_text(case_value(reference, subject.ctx, path), reference, path)
            try:
                return compile_pattern(flags + pattern).search(subject.text) is not None
            except PatternError as error:
                raise UngradableError(f"{path}: {reference}: {error}") from None

        return find


class Regex(_RegexRule, frozen=True, tag="regex"):
    """The pattern is found in the text."""

    def compile(self, path: str) -> Check:
        return self.finder(f"{path}.value")


class NotRegex(_RegexRule, frozen=True, tag="not_regex"):
    """The pattern is not found in the text."""

    def compile(self, path: str) -> Check:
        find = self.finder(f"{path}.value")
        return lambda subject: not find(subject)


class IsUpper(PlainRule, frozen=True, tag="is_upper"):
    """The text has letters and all of them are upper case."""

    def holds(self, subject: Subject) -> bool:
        return subject.text.isupper()


class IsLower(PlainRule, frozen=True, tag="is_lower"):
    """The text has letters and all of them are lower case."""

    def holds(self, subject: Subject) -> bool:
        return subject.text.islower()


class IsUrl(PlainRule, frozen=True, tag="is_url"):
    """The text is an http or https URL and nothing else, without quotes or brackets."""

    def holds(self, subject: Subject) -> bool:
        text = subject.text.strip()
        if not text or len(text) > 8192 or any(char.isspace() or not char.isprintable() for char in text):
            return False
        if _NOT_IN_URL.search(text):
            return False
        try:
            parts = urlsplit(text)
            _ = parts.port  # raises for a port out of range
        except ValueError:
            return False
        host = parts.hostname or ""
        return parts.scheme in ("http", "https") and (":" in host or _HOST.fullmatch(host) is not None)


class IsEmail(PlainRule, frozen=True, tag="is_email"):
    """The text is an e-mail address and nothing else."""

    def holds(self, subject: Subject) -> bool:
        text = subject.text.strip()
        return len(text) <= 254 and _EMAIL.fullmatch(text) is not None


_WORD = re.compile(r"\w+")


class _SizeRule(Rule, frozen=True):
    value: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | Reference,
        described("Whole number, or a reference to one.", expected=f"a whole number of at least 0, {REFERENCES}"),
    ]
    least: ClassVar[bool]

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("value", self.value, "a whole number of at least 0")

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
    words: Annotated[
        Literal["letters", "whitespace"],
        described("letters (default): a word is a run of \\w. whitespace: words are separated by whitespace."),
    ] = "letters"

    def measure(self, subject: Subject) -> int:
        if self.words == "whitespace":
            return len(subject.text.split())
        return sum(1 for _ in _WORD.finditer(subject.text))


class _LineCountRule(_SizeRule, frozen=True):
    def measure(self, subject: Subject) -> int:
        return len(subject.text.splitlines())


class LengthMin(_LengthRule, frozen=True, tag="length_min"):
    """The text has at least this number of characters."""

    least = True


class LengthMax(_LengthRule, frozen=True, tag="length_max"):
    """The text has at most this number of characters."""

    least = False


class WordCountMin(_WordCountRule, frozen=True, tag="word_count_min"):
    """The text has at least this number of words; a word is a run of \\w."""

    least = True


class WordCountMax(_WordCountRule, frozen=True, tag="word_count_max"):
    """The text has at most this number of words; a word is a run of \\w."""

    least = False


class LineCountMin(_LineCountRule, frozen=True, tag="line_count_min"):
    """The text has at least this number of lines."""

    least = True


class LineCountMax(_LineCountRule, frozen=True, tag="line_count_max"):
    """The text has at most this number of lines."""

    least = False


Natural = Annotated[int, msgspec.Meta(ge=0)]


class CountedRule(Rule, frozen=True):
    min: Annotated[Natural | UnsetType, described("Minimum number.")] = UNSET
    max: Annotated[Natural | UnsetType, described("Maximum number.")] = UNSET
    equals: Annotated[Natural | UnsetType, described("Exact number.")] = UNSET

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
    """The number of occurrences of a string or pattern in the text; overlaps count once."""

    text: Annotated[str | UnsetType, described("String to count, or a reference.")] = UNSET
    pattern: Annotated[str | UnsetType, described("RE2 pattern to count.")] = UNSET
    case_sensitive: Annotated[bool, described("Distinguish case in `text`; patterns always do.")] = False

    def faults(self) -> Iterator[Problem]:
        if (self.text is UNSET) is (self.pattern is UNSET):
            yield Problem("text", "set either 'text' or 'pattern'")
        if self.text == "":
            yield Problem("text", "must not be empty")
        if self.pattern is not UNSET:
            yield from pattern_faults("pattern", self.pattern)
        if not self.bounded:
            yield Problem("min", "set at least one of 'min', 'max', 'equals'")
        yield from self.bound_faults()

    @property
    def label(self) -> str:
        what = self.pattern if self.text is UNSET else self.text
        return f"{rule_label(self, what)} {self.bounds_label()}"

    def compile(self, path: str) -> Check:
        count = self._counter(path)
        return lambda subject: self.within(count(subject))

    def seen(self, subject: Subject) -> str:
        return str(self._counter("")(subject))

    def _counter(self, path: str) -> Callable[[Subject], int]:
        if self.pattern is not UNSET:
            pattern = compile_pattern(self.pattern)
            return lambda subject: sum(1 for _ in matches(pattern, subject.text))
        assert self.text is not UNSET  # noqa: S101 - checked by `faults`
        value = text_value(self.text, case_sensitive=self.case_sensitive, path=f"{path}.text")
        if self.case_sensitive:
            return lambda subject: _count(subject.exact, value(subject))
        return lambda subject: _count(subject.folded, value(subject))


def _count(text: str, part: str) -> int:
    return text.count(part) if part else 0

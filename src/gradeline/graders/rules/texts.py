"""Conditions on what a text says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from gradeline.errors import Problem, UngradableError
from gradeline.graders.rules.base import Check, PlainRule, Rule, labelled, pattern_faults
from gradeline.graders.rules.subject import (
    REFERENCES,
    Reference,
    Subject,
    as_text,
    is_reference,
    look_up,
    reference_faults,
    text_value,
    texts_value,
)
from gradeline.model import described
from gradeline.parsing.patterns import PatternError, compile_pattern

_DOMAIN_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_EMAIL = re.compile(rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]{{1,64}}@{_DOMAIN_LABEL}(?:\.{_DOMAIN_LABEL})+")

_HOST = re.compile(r"[\w-]+(?:\.[\w-]+)*\.?")
_NOT_IN_URL = re.compile(r'["<>\\^`{|}]|%(?![0-9A-Fa-f]{2})')
"""Characters that a URL has only percent-encoded, and a percent sign that encodes nothing."""


class _TextRule(Rule, frozen=True):
    value: Annotated[str, described("The text, or $expected, $input, $metadata.key.", expected="a text (in quotes)")]

    @property
    def label(self) -> str:
        return labelled(self, self.value)

    def compile(self, path: str) -> Check:
        value = text_value(self.value, case_sensitive=self.case_sensitive, path=f"{path}.value")
        holds = self.holds
        if self.case_sensitive:
            return lambda subject: holds(subject.exact, value(subject))
        return lambda subject: holds(subject.folded, value(subject))

    def holds(self, text: str, value: str) -> bool:
        raise NotImplementedError


class _PartRule(_TextRule, frozen=True):
    """A text that is looked for within another: an empty one is found nowhere."""

    def faults(self) -> Iterator[Problem]:
        if not self.value:
            yield Problem("value", "must not be empty")


class Contains(_PartRule, frozen=True, tag="contains"):
    """The text holds the value."""

    def holds(self, text: str, value: str) -> bool:
        return bool(value) and value in text


class NotContains(_PartRule, frozen=True, tag="not_contains"):
    """The text does not hold the value."""

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
        described("A list of texts, or a reference to one.", expected=f"a list of texts (at least one), {REFERENCES}"),
    ]

    def faults(self) -> Iterator[Problem]:
        yield from reference_faults("value", self.value, "a list of texts")

    @property
    def label(self) -> str:
        return labelled(self, self.value)

    def compile(self, path: str) -> Check:
        values = texts_value(self.value, case_sensitive=self.case_sensitive, path=f"{path}.value")
        holds = self.holds
        if self.case_sensitive:
            return lambda subject: holds(subject.exact, values(subject))
        return lambda subject: holds(subject.folded, values(subject))

    def holds(self, text: str, values: list[str]) -> bool:
        raise NotImplementedError


class ContainsAll(_ListRule, frozen=True, tag="contains_all"):
    """The text holds every value."""

    def holds(self, text: str, values: list[str]) -> bool:
        return bool(values) and all(value and value in text for value in values)


class ContainsAny(_ListRule, frozen=True, tag="contains_any"):
    """The text holds one of the values."""

    def holds(self, text: str, values: list[str]) -> bool:
        return any(value and value in text for value in values)


class OneOf(_ListRule, frozen=True, tag="one_of"):
    """The text is one of the values."""

    def holds(self, text: str, values: list[str]) -> bool:
        return text in values


class _RegexRule(Rule, frozen=True, kw_only=True):
    value: Annotated[str, described("An RE2 pattern, searched for; inline flags such as (?i) are allowed.")]
    case_sensitive: Annotated[bool, described("False ignores upper and lower case.")] = True

    @property
    def label(self) -> str:
        return labelled(self, self.value)

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
            pattern = as_text(look_up(reference, subject, path), reference, path)
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
    """The text is an http or https URL and nothing else, quotes and brackets around it included."""

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

"""Extractors of a part of the assistant's text: by pattern, marker or JMESPath."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from gradeline.errors import NeedsIsolationError, Problem, TooLargeError
from gradeline.extractors.base import DeclaredExtractor, assistant_texts, compact_json
from gradeline.model import Config, Response, clean_text, described, quote
from gradeline.parsing.isolation import is_killable
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.parsing.json_text import NotJsonError, find_json
from gradeline.parsing.patterns import MAX_MATCHES, Pattern, compile_python_pattern, compile_re


class PatternConfig(Config, frozen=True):
    """Options of `PatternExtractor`."""

    pattern: Annotated[str, described("Regular expression in the syntax of Python's re.")]
    group: Annotated[
        int,
        described(
            "Capture group to take, 0 for the whole match (default). With search_all and several groups in the "
            "pattern, groups count from 0; with one group or none it is not used.",
            ge=0,
        ),
    ] = 0
    search_all: Annotated[bool, described("Take all matches of the message, joined by a space.")] = False

    def faults(self) -> Iterator[Problem]:
        try:
            groups = _count_groups(self.pattern)
        except re.error as error:
            yield Problem("pattern", f"{quote(self.pattern)} is not a valid regular expression: {error}")
            return
        if self.group > groups:
            yield Problem("group", f"the pattern has {_counted(groups)}, got {self.group}")
        elif self.search_all and self.group == groups > 1:
            yield Problem("group", f"with search_all the {groups} groups count from 0, got {self.group}")


class PatternExtractor(DeclaredExtractor[PatternConfig]):
    """Takes the match of a regular expression in the last assistant message that has one.

    A group that did not take part in the match gives an empty string.
    """

    kind = "pattern"
    name = "Pattern"

    def extract(self, response: Response) -> str:
        find = self._find_all if self.options.search_all else self._find_first
        for text in reversed(assistant_texts(response.steps.messages())):
            found = find(clean_text(text).text)
            if found is not None:
                return found
        return ""

    def _find_first(self, text: str) -> str | None:
        match = compile_python_pattern(self.options.pattern, text, consuming=True).search(text)
        return None if match is None else match.group(self.options.group) or ""

    def _find_all(self, text: str) -> str | None:
        try:
            return self._joined(compile_python_pattern(self.options.pattern, text, consuming=True), text)
        except _EmptyMatchError:
            if not is_killable():
                raise
            return self._joined(compile_re(self.options.pattern), text, empty=True)

    def _joined(self, pattern: Pattern, text: str, *, empty: bool = False) -> str | None:
        """All matches in a text; `_EmptyMatchError` for an empty match, unless ``empty`` is set."""
        group = pattern.groups if pattern.groups < 2 else self.options.group + 1
        found: list[str] = []
        for match in pattern.finditer(text):
            if not match.group() and not empty:
                raise _EmptyMatchError(
                    f"the pattern {quote(self.options.pattern)} matches the empty string; with search_all only "
                    "Python's re can count these matches, in a worker process"
                )
            if len(found) == MAX_MATCHES:
                raise TooLargeError(
                    f"the pattern {quote(self.options.pattern)} matches more than {MAX_MATCHES:,} times"
                )
            found.append(match.group(group) or "")
        return " ".join(found) if found else None


class _EmptyMatchError(NeedsIsolationError):
    """RE2 and ``re`` continue at different positions after an empty match."""


class AfterMarkerConfig(Config, frozen=True):
    """Options of `AfterMarkerExtractor`."""

    marker: Annotated[str, described("Text to search for, case-sensitive.")]
    include_marker: Annotated[bool, described("Include the marker (default false).")] = False


class AfterMarkerExtractor(DeclaredExtractor[AfterMarkerConfig]):
    """Takes the text after a marker in the last assistant message that contains it, stripped.

    If the message contains the marker more than once, the first one counts.
    """

    kind = "after_marker"
    name = "After a marker"

    def extract(self, response: Response) -> str:
        marker = self.options.marker
        for text in reversed(assistant_texts(response.steps.messages())):
            start = text.find(marker)
            if start >= 0:
                return text[start if self.options.include_marker else start + len(marker) :].strip()
        return ""


def _count_groups(pattern: str) -> int:
    """Raises ``re.error`` for an invalid pattern."""
    try:
        return compile_python_pattern(pattern, "", consuming=True).groups
    except NeedsIsolationError:
        return re.compile(pattern).groups


def _counted(groups: int) -> str:
    return {0: "no groups", 1: "one group"}.get(groups, f"{groups} groups")


class JsonConfig(Config, frozen=True):
    """Options of `JsonExtractor`."""

    path: Annotated[str, described("JMESPath of the value (default '@', the whole JSON).")] = "@"

    def faults(self) -> Iterator[Problem]:
        try:
            JmesPath(self.path)
        except BadPathError as error:
            yield Problem("path", str(error))


class JsonExtractor(DeclaredExtractor[JsonConfig]):
    """Takes a value from the JSON in the last assistant message: the whole text, a code fence, or within prose.

    Strings are taken unchanged, other values as compact JSON. Null and a missing JSON mean that nothing was found.
    """

    kind = "json"
    name = "JSON value"

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self._path = JmesPath(self.options.path)

    def extract(self, response: Response) -> str:
        texts = assistant_texts(response.steps.messages())
        if not texts:
            return ""
        try:
            data = find_json(texts[-1])
        except NotJsonError:
            return ""
        value = self._path.search(data)
        if value is None:
            return ""
        return value if isinstance(value, str) else compact_json(value)

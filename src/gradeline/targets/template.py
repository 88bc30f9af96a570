"""Requests as data with placeholders, which are filled in without parsing the result again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from json.encoder import encode_basestring_ascii
from secrets import token_hex
from typing import Any, Self
from urllib.parse import quote as percent_encode

from gradeline.errors import ConfigError, Problem, UngradableError
from gradeline.extractors.base import compact_json
from gradeline.model import Sample
from gradeline.parsing.jmespath import BadPathError, JmesPath
from gradeline.parsing.json_text import size_of
from gradeline.targets.answer_values import search

_ENCODER = json.JSONEncoder(allow_nan=False)
_PLACEHOLDER = re.compile(r"\{\{[ \t]*+([^{}]*?)[ \t]*\}\}")


class Absent:
    """The value of a placeholder without a value: an entry of a mapping or a list with it is omitted."""


ABSENT = Absent()
Lookup = Callable[[str], object]


MAX_FILLED = 20_000_000
"""Maximum characters that the placeholders of one call may add."""


class PlaceholderValues:
    """The values of placeholders in one call; `ConfigError` if they add more than `MAX_FILLED` characters."""

    def __init__(
        self, sample: Sample, turn: str, session: object = None, answer: object = None, model: str | None = None
    ) -> None:
        self._model = model
        self._sample = sample
        self.turn = turn
        self._session = session
        self._answer = answer
        self._filled = 0

    def __call__(self, name: str) -> object:
        value = self._value(name)
        self._filled += len(value) if isinstance(value, str) else size_of(value, MAX_FILLED).chars
        if self._filled > MAX_FILLED:
            raise _too_large()
        return value

    def _value(self, name: str) -> object:
        match name.partition("."):
            case ("input", "", ""):
                return self.turn
            case ("id", "", ""):
                return self._sample.id
            case ("model", "", ""):
                return ABSENT if self._model is None else self._model
            case ("session", "", ""):
                return ABSENT if self._session is None else self._session
            case ("metadata", ".", path):
                return metadata_value(self._sample, path)
            case ("response", ".", path):
                return search(JmesPath(path), self._answer)
        raise ConfigError(Problem("", f"unknown placeholder {{{{{name}}}}}"))


def _too_large() -> ConfigError:
    return ConfigError(
        Problem("request", f"has more than {MAX_FILLED:,} characters with its placeholders filled; use fewer of them")
    )


def input_turns(sample: Sample) -> list[str]:
    """The questions of a sample; `ConfigError` if there is none."""
    turns = [sample.input] if isinstance(sample.input, str) else list(sample.input)
    if not turns:
        raise ConfigError(Problem("input", f"case {sample.case_key!r} has an empty list; write at least one turn"))
    return turns


def metadata_value(sample: Sample, path: str) -> object:
    """A value of the sample's metadata, by key or else by dotted path; `ConfigError` if there is none."""
    if path in sample.metadata:
        return sample.metadata[path]
    value: Any = sample.metadata
    for step in path.split("."):
        if not isinstance(value, Mapping) or step not in value:
            known = ", ".join(map(str, sample.metadata)) or "none"
            raise ConfigError(
                Problem(
                    "metadata",
                    f"case {sample.case_key!r} has no metadata {path!r}, which {{{{metadata.{path}}}}} requires;"
                    f" it has {known}",
                )
            )
        value = value[step]
    return value


def placeholders(tree: object, path: str = "") -> Iterator[tuple[str, str]]:
    """The path and name of every placeholder in the tree's strings."""
    if isinstance(tree, str):
        yield from ((path, match[1]) for match in _PLACEHOLDER.finditer(tree))
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from placeholders(item, f"{path}.{key}")
    elif isinstance(tree, list | tuple):
        for index, item in enumerate(tree):
            yield from placeholders(item, f"{path}[{index}]")


def placeholder_faults(tree: object, path: str, known: tuple[str, ...]) -> Iterator[Problem]:
    """Problems of the placeholders of a tree; ``metadata.`` in ``known`` allows all names with that prefix."""
    for where, name in placeholders(tree, path):
        head, dot, rest = name.partition(".")
        if f"{head}{dot}" not in known or (dot and not rest):
            shown = ", ".join(f"{{{{{word}{'x' if word.endswith('.') else ''}}}}}" for word in known)
            yield Problem(where, f"unknown placeholder {{{{{name}}}}}; use one of {shown}")
        elif head == "response":
            try:
                JmesPath(rest)
            except BadPathError as error:
                yield Problem(where, str(error))


def fill(tree: object, lookup: Lookup) -> Any:
    """The tree with its placeholders filled in; a leaf that is only a placeholder gets the value's type."""
    if isinstance(tree, str):
        whole = _PLACEHOLDER.fullmatch(tree)
        return lookup(whole[1]) if whole else fill_text(tree, lookup)
    if isinstance(tree, Mapping):
        filled = {key: fill(item, lookup) for key, item in tree.items()}
        return {key: item for key, item in filled.items() if item is not ABSENT}
    if isinstance(tree, list | tuple):
        return [item for item in (fill(item, lookup) for item in tree) if item is not ABSENT]
    return tree


class JsonAroundInput:
    """A request in which only the input changes, as JSON that is encoded once."""

    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces

    @classmethod
    def of(cls, tree: object, model: str | None) -> Self | None:
        """None for a tree that must be filled in for each call."""
        names = {name for _, name in placeholders(tree)}
        if not names <= {"input", "model"}:
            return None
        mark = token_hex(16)
        known = {"input": mark, "model": ABSENT if model is None else model}
        try:
            return cls(write_json(fill(tree, known.__getitem__)).split(mark))
        except ConfigError:  # reported with the first sample, as for any other tree
            return None

    def fill(self, turn: str) -> bytes:
        if len(turn) * (len(self._pieces) - 1) > MAX_FILLED:
            raise _too_large()
        # JSON escapes character by character, so the input can be escaped separately
        return encode_basestring_ascii(turn)[1:-1].join(self._pieces).encode()


def write_json(tree: object) -> str:
    """A request as JSON; `ConfigError` if it cannot be encoded."""
    try:
        return _ENCODER.encode(tree)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(Problem("request", f"cannot be encoded as JSON: {error}")) from None


def fill_text(text: str, lookup: Lookup) -> str:
    """The text with its placeholders filled in as text; placeholders in values are not filled."""
    return _PLACEHOLDER.sub(lambda match: as_text(lookup(match[1])), text)


def fill_url(url: str, lookup: Lookup) -> str:
    """The URL with its placeholders filled and percent-encoded, so that a value cannot change other parts."""

    def value(match: re.Match[str]) -> str:
        text = as_text(lookup(match[1]))
        if text in (".", ".."):  # a path segment even if encoded
            raise ConfigError(Problem("url", f"{match[0]} is {text!r}, which is not allowed in a URL"))
        return percent_encode(text, safe="", errors="replace")

    return _PLACEHOLDER.sub(value, url)


def whole_placeholder(text: str) -> str | None:
    """The name of the placeholder that is the whole text, or None."""
    match = _PLACEHOLDER.fullmatch(text)
    return match[1] if match else None


def as_text(value: object) -> str:
    """A value inside a longer text: strings unchanged, null as nothing, other data as compact JSON."""
    if isinstance(value, str):
        return value
    if value is None or value is ABSENT:
        return ""
    try:
        return compact_json(value)
    except UngradableError as error:
        raise ConfigError(Problem("", str(error))) from None

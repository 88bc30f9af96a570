"""Conditions on a case: which cases a grader applies to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import UNSET

from gradeline.errors import Problem, closest_match
from gradeline.model import Sample, quote
from gradeline.model.text import scalar_text
from gradeline.parsing.jmespath import BadPathError, JmesPath

CONDITION = "{tag: NAME}, {metadata.KEY: VALUE}, or a JMESPath over the case such as metadata.level > `3`"
_FIELDS = ("id", "input", "ground_truth", "tags", "metadata", "agent_args", "rubric_vars", "extra_vars", "checks")
_SCALAR = str | int | float | bool


class CaseCondition:
    """The value of a grader's ``when``: a mapping whose entries all hold, or a JMESPath whose result is not empty."""

    def __init__(self, written: Mapping[str, Any] | str) -> None:
        self.written = written
        self._path = JmesPath(written) if isinstance(written, str) else None

    def __str__(self) -> str:
        if isinstance(self.written, str):
            return self.written
        return " and ".join(f"{key} is {_shown(value)}" for key, value in self.written.items())

    def holds(self, sample: Sample) -> bool:
        """True if the grader applies to the case. Raises `GraderError` if the JMESPath fails on it."""
        if self._path is not None:
            found = self._path.search({name: _data(getattr(sample, name)) for name in _FIELDS})
            return found is not False and found not in (None, "", [], {})
        assert not isinstance(self.written, str)  # noqa: S101 - those have a path
        return all(_matches(sample, key, value) for key, value in self.written.items())


def condition_faults(written: object) -> Iterator[Problem]:
    """The faults of a ``when``; paths are relative to it."""
    if isinstance(written, str) and written.strip():
        try:
            JmesPath(written)
        except BadPathError as error:
            yield Problem("", str(error))
    elif isinstance(written, dict) and written:
        for key, value in written.items():
            yield from _entry_faults(key, value)
    else:
        yield Problem("", f"expected {CONDITION}, got {quote(written)}")


def _entry_faults(key: str, value: object) -> Iterator[Problem]:
    field, _, rest = key.partition(".")
    if key not in ("tag", "id") and not (field == "metadata" and rest and "" not in rest.split(".")):
        near = closest_match(key, ("tag", "id"))
        if near is None:
            misspelt = closest_match(field, ("metadata",))
            near = f"metadata.{rest if misspelt and rest else 'KEY' if misspelt else key}"
        hint = f"did you mean {quote(near)}?"
        yield Problem("", f"{quote(key)} is not a field of a case to match, only tag, id and metadata.KEY are; {hint}")
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, _SCALAR) for one in values):
        yield Problem("", f"{key} needs a string, a number, true or false, or a list of these, got {quote(value)}")


def _matches(sample: Sample, key: str, value: object) -> bool:
    wanted = {scalar_text(one) for one in (value if isinstance(value, list) else [value])}
    if key == "tag":
        return not wanted.isdisjoint(sample.tags)
    if key == "id":
        return sample.case_key in wanted
    found = _metadata(sample, key.removeprefix("metadata."))
    values = found if isinstance(found, list) else [found]
    return any(isinstance(one, _SCALAR) and scalar_text(one) in wanted for one in values)


def _metadata(sample: Sample, keys: str) -> object:
    if keys in sample.metadata:  # a key may contain a dot
        return sample.metadata[keys]
    found: object = sample.metadata
    for key in keys.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _data(value: object) -> object:
    """A field as JSON data."""
    if value is UNSET:
        return None
    return list(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    values = value if isinstance(value, list) else [value]
    return " or ".join(scalar_text(one) for one in values)

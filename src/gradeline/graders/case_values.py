"""References to values of a case in a grader's options, such as ``$metadata.answer``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from gradeline.errors import MissingDataError, Problem, UngradableError
from gradeline.model import GradeContext, Sample, clean_text, quote
from gradeline.model.context import expected_text
from gradeline.parsing.json_text import NotJsonError, parse_json

REFERENCES = "$expected, $input, $ground_truth.key or $metadata.key"
_SHAPE = r"^\$(expected|input|ground_truth(\..+)?|metadata\..+)$"
# Only in the JSON Schema, checked by `is_reference`: Meta(pattern=...) in a union with a list crashes the interpreter
# in msgspec 0.22 (msgspec issue 717).
Reference = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": _SHAPE})]
"""``$expected``, ``$input``, ``$ground_truth``, or a path into ``$ground_truth`` or ``$metadata``."""

_WHOLE = ("$expected", "$input", "$ground_truth")
_NESTED = ("$metadata.", "$ground_truth.")
_SHOWN = 10


def is_reference(value: object) -> bool:
    """True for a string that refers to a value of the case."""
    if not isinstance(value, str):
        return False
    return value in _WHOLE or any(value.startswith(prefix) and value != prefix for prefix in _NESTED)


def case_value(reference: str, ctx: GradeContext, path: str) -> object:
    """The value that a reference has in the case; `MissingDataError` with the option's ``path`` if there is none."""
    return sample_value(reference, ctx.sample, path)


def case_texts(value: Sequence[str] | str, ctx: GradeContext, path: str) -> list[str]:
    """An option that is a list of strings, or a reference to one or to a single string."""
    if not isinstance(value, str):
        return list(value)
    found = case_value(value, ctx, path)
    return [reference_text(item, value, path) for item in (found if isinstance(found, list) else [found])]


def case_count(value: int | str, ctx: GradeContext, path: str) -> int:
    """An option that is a whole number of at least 0, or a reference to one."""
    found = case_value(value, ctx, path) if isinstance(value, str) else value
    if isinstance(found, str) and found.strip().isdecimal():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise UngradableError(f"{path}: {value} is {quote(found)}, not a whole number of at least 0")
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


def reference_faults(field: str, value: object, expected: str) -> Iterator[Problem]:
    """A problem if a string is not a reference, in a field for a reference or other data."""
    if isinstance(value, str) and not is_reference(value):
        yield Problem(field, f"expected {expected}, {REFERENCES}, got {quote(value)}")


def sample_value(reference: str, sample: Sample, path: str) -> object:
    """As `case_value`, for a case without a response."""
    if reference == "$input":
        return "\n".join(sample.input) if isinstance(sample.input, list) else sample.input
    if reference.startswith("$metadata."):
        return _at(sample.metadata, reference.removeprefix("$metadata."), reference, path, "the case's metadata")
    if sample.ground_truth is None:
        raise MissingDataError(f"{path}: {reference} is absent; the case has no ground_truth")
    if reference == "$ground_truth":
        return sample.ground_truth
    if reference == "$expected":
        return expected_text(sample)
    return _at(
        _parsed(sample, reference, path),
        reference.removeprefix("$ground_truth."),
        reference,
        path,
        "the ground_truth",
    )


def _parsed(sample: Sample, reference: str, path: str) -> object:
    """The ground truth as data: a list as it is, a string as the JSON that it contains."""
    if isinstance(sample.ground_truth, list):
        return sample.ground_truth
    try:
        return parse_json(sample.ground_truth or "")
    except NotJsonError as error:
        raise MissingDataError(f"{path}: {reference} is absent; the ground_truth is not JSON: {error}") from None


def _at(data: object, keys: str, reference: str, path: str, whole: str) -> object:
    if isinstance(data, dict) and keys in data:  # a key may contain a dot
        return data[keys]
    found = data
    for key in keys.split("."):
        if isinstance(found, dict) and key in found:
            found = found[key]
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            raise MissingDataError(f"{path}: {reference} is absent; {_described(data, whole)}")
    return found


def _described(data: object, whole: str) -> str:
    if isinstance(data, dict):
        return f"{whole} keys are {', '.join(map(quote, list(data)[:_SHOWN])) or 'none'}"
    return f"{whole} has {len(data)} items" if isinstance(data, list) else f"{whole} is {quote(data)}"

"""References to values of a case in a grader's options, such as ``$metadata.answer``."""

from __future__ import annotations

from typing import Annotated

import msgspec

from gradeline.errors import MissingDataError
from gradeline.model import GradeContext, Sample, quote
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

"""What a custom grader returned, as a grade that any store keeps, or an error that names the grader and its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any

from gradeline.errors import BadReplyError, DataError
from gradeline.model import GradeResult, clean_data, clean_text
from gradeline.model.grade import is_field_error, plain_scalar
from gradeline.model.text import quote_typed
from gradeline.usercode.marks import place

_OWN = str(Path(__file__).parent.parent)


def checked_call(call: Callable[[], object], function: Callable[..., Any], reference: str) -> GradeResult:
    """The grade that the call gives; a wrong field of a `GradeResult` is reported with the grader and the line."""
    try:
        return checked(call(), reference)
    except ValueError as error:
        if not is_field_error(error):
            raise
        raise named(error, function, reference) from None


def named(error: ValueError, function: object, reference: str) -> ValueError:
    """The error with the grader's name and the line in its code, where that is known, else of its definition."""
    where = _line_of(error.__traceback__) or _definition_of(function)
    found = ValueError(f"grader {reference!r}{where and f' ({where})'}: GradeResult.{error}")
    return found.with_traceback(error.__traceback__)


def checked(value: object, reference: str) -> GradeResult:
    """What a custom grader returned, or `BadReplyError` with what to write instead."""
    if not isinstance(value, GradeResult):
        if type(value).__name__ != "GradeResult":  # the real letta package has a class of its own
            raise BadReplyError(f"{reference} returned {quote_typed(value)}; return {_instead_of(value)}")
        foreign: Any = value
        try:
            value = GradeResult(foreign.score, foreign.rationale, foreign.metadata, getattr(foreign, "passed", None))
        except (AttributeError, TypeError, ValueError) as error:
            raise BadReplyError(f"{reference} returned {quote_typed(foreign)}: {error}") from None
    try:
        metadata = clean_data(value.metadata, "metadata")
    except DataError as error:
        raise BadReplyError(f"{reference} returned a GradeResult whose {error}") from None
    rationale = value.rationale
    if isinstance(rationale, str):
        rationale = clean_text(str.__str__(rationale)).text
    return GradeResult(value.score, rationale, metadata, value.passed)


def _instead_of(value: object) -> str:
    value = plain_scalar(value)
    if isinstance(value, int | float) and 0 <= value <= 1:
        return f"GradeResult(score={float(value)})"
    return "GradeResult(score=...)"


def _line_of(trace: TracebackType | None) -> str:
    """The innermost line of user code, as ``file.py:line``."""
    found = ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OWN):
            found = f"{Path(file).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _definition_of(function: object) -> str:
    if not isinstance(function, FunctionType):
        return ""
    file, line = place(function)
    return f"{Path(file).name}:{line}"

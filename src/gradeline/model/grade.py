"""Grades: what a grader returns (`GradeResult`) and what a record stores (`Grade`)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from numbers import Real
from types import MappingProxyType, NoneType
from typing import TYPE_CHECKING, Any

import msgspec

from gradeline.errors import (
    DataError,
    Fault,
    GraderError,
    Outcome,
    ProviderRefusedError,
    closest_match,
    grade_policy,
)
from gradeline.model.response import ErrorInfo, Usage
from gradeline.model.text import clean_text, exception_text, quote, quote_typed, user_traceback

PASS_SCORE = 0.5
"""Default pass threshold."""

_PASS, _FAIL, _ERROR = Outcome.PASS, Outcome.FAIL, Outcome.ERROR
"""Cached: enum lookups are slow, and every case has a grade."""
_MAX_DEPTH = 200
_PLAIN = frozenset({str, int, bool, NoneType})
_COMPUTED: Any = None
"""Placeholder for a default set in ``__post_init__``, which replaces an explicit None too."""


def valid_score(score: object) -> float:
    """``score`` as a float in 0..1; `ValueError` for anything else."""
    if type(score) is float:
        value = score
    elif isinstance(score, Real) and not isinstance(score, bool):
        try:
            value = float(score)
        except OverflowError:
            value = inf
    else:
        raise ValueError(f"score must be a number from 0.0 to 1.0, got {quote_typed(score)}")
    if not 0.0 <= value <= 1.0:  # NaN fails this too
        raise ValueError(f"score must be a finite number from 0.0 to 1.0, got {quote(score)}")
    return value


def is_field_error(error: BaseException) -> bool:
    """Whether an exception was raised by the validation of `GradeResult`, not by user code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return isinstance(error, ValueError) and trace is not None and trace.tb_frame.f_code.co_filename == __file__


def plain_scalar(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, bool or string; return anything else unchanged."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def _is_plain(data: dict[str, Any]) -> bool:
    """A quick check for the usual case: finite numbers, strings, and lists of them or of mappings of them."""
    for value in data.values():
        kind = type(value)
        if kind in _PLAIN or (kind is float and isfinite(value)):
            continue
        if kind is not list or not (_PLAIN.issuperset(map(type, value)) or all(map(_has_plain_values, value))):
            return False
    return True


def _has_plain_values(value: object) -> bool:
    if type(value) is not dict:
        return False
    return all(type(item) in _PLAIN or (type(item) is float and isfinite(item)) for item in value.values())


def _plain_metadata(value: Any, path: str, depth: int) -> Any:
    """The value with NumPy scalars converted; the same object if nothing changed."""
    kind = type(value)
    value = plain_scalar(value)
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{path} is {value!r}: numbers in metadata must be finite")
        return value
    if depth > _MAX_DEPTH:
        raise ValueError(f"metadata is nested more than {_MAX_DEPTH} levels deep, or contains itself")
    if isinstance(value, Mapping):
        mapping = {
            key: item if type(item) in _PLAIN else _plain_metadata(item, f"{path}.{key}", depth + 1)
            for key, item in value.items()
        }
        same = kind is dict and all(mapping[key] is item for key, item in value.items())
        return value if same else mapping
    if isinstance(value, list | tuple):
        items = [
            item if type(item) in _PLAIN else _plain_metadata(item, f"{path}[{index}]", depth + 1)
            for index, item in enumerate(value)
        ]
        return value if all(new is old for new, old in zip(items, value, strict=True)) else items
    return value


class GradeResult(msgspec.Struct, frozen=True):
    """Score in 0..1, rationale and metadata. Raises `ValueError` that names an invalid field.

    ``passed`` defaults to ``score >= 0.5``. ``metadata={"error": ...}`` is only metadata: the score counts. A score of
    None means no score: the outcome is ``error`` with the rationale as its message, and ``passed`` is None too.
    """

    score: float | None
    rationale: str | None = None
    metadata: dict[str, Any] = _COMPUTED
    passed: bool | None = None

    if TYPE_CHECKING:  # metadata is optional, but never None afterwards

        def __init__(
            self,
            score: float | None,
            rationale: str | None = None,
            metadata: Mapping[str, Any] | None = None,
            passed: bool | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        score = self.score
        if type(score) is not float or not 0.0 <= score <= 1.0:
            score = self._valid_score()
        if self.rationale is not None and type(self.rationale) is not str:
            self._set_rationale()
        if self.metadata is None:
            msgspec.structs.force_setattr(self, "metadata", {})
        elif self.metadata or type(self.metadata) is not dict:
            self._set_metadata()
        passed = self.passed
        if passed is None:
            if score is not None:
                msgspec.structs.force_setattr(self, "passed", score >= PASS_SCORE)
        elif (passed is not True and passed is not False) or score is None:
            self._set_passed(score)

    @property
    def status(self) -> str:
        """``"pass"``, ``"fail"``, or ``"error"`` if there is no score."""
        return "error" if self.score is None else "pass" if self.passed else "fail"

    def _valid_score(self) -> float | None:
        value = plain_scalar(self.score)
        if value is None:
            return None
        try:
            score = valid_score(value)
        except ValueError as error:
            raise ValueError(f"{error}{self._swapped()}") from None
        msgspec.structs.force_setattr(self, "score", score)
        return score

    def _swapped(self) -> str:
        """The remedy if score and rationale are swapped."""
        rationale: object = self.rationale
        if isinstance(self.score, str) and isinstance(rationale, Real) and not isinstance(rationale, bool):
            return f"; the score comes first: GradeResult({quote(rationale)}, {quote(self.score)})"
        return ""

    def _set_rationale(self) -> None:
        value = plain_scalar(self.rationale)
        if not isinstance(value, str):
            raise ValueError(f"rationale must be a string or None, got {quote_typed(value)}")
        msgspec.structs.force_setattr(self, "rationale", str.__str__(value))

    def _set_metadata(self) -> None:
        value: object = self.metadata
        if type(value) is dict and _is_plain(value):
            return
        if not isinstance(value, Mapping):
            raise ValueError(f"metadata must be a mapping or None, got {quote_typed(value)}")
        metadata = _plain_metadata(value, "metadata", 0)
        if metadata is not value:
            msgspec.structs.force_setattr(self, "metadata", metadata)

    def _set_passed(self, score: float | None) -> None:
        passed = plain_scalar(self.passed)
        if passed is not True and passed is not False:
            raise ValueError(f"passed must be True, False or None, got {quote_typed(self.passed)}")
        if score is None:
            raise ValueError(f"passed must be None if score is None, got {passed}")
        msgspec.structs.force_setattr(self, "passed", passed)


RESULT_KEYS = ("score", "passed", "rationale", "metadata")


def read_result(data: Mapping[str, Any]) -> GradeResult:
    """A result from a mapping with the keys of `RESULT_KEYS`; ``passed`` without a score scores 1.0 or 0.0.

    `ValueError` says what is wrong with it.
    """
    unknown = next((key for key in data if key not in RESULT_KEYS), None)
    if unknown is not None:
        near = closest_match(str(unknown), RESULT_KEYS)
        hint = f"did you mean {near!r}?" if near else f"use {', '.join(RESULT_KEYS)}"
        raise ValueError(f"unknown key {quote(unknown)}; {hint}")
    score, passed = plain_scalar(data.get("score")), plain_scalar(data.get("passed"))
    if score is None and passed is None:
        raise ValueError("has neither score nor passed; give a score from 0.0 to 1.0, or passed as true or false")
    if passed is not None and not isinstance(passed, bool):
        raise ValueError(f"passed must be true or false, got {quote_typed(passed)}")
    if score is None:
        score = 1.0 if passed else 0.0
    return GradeResult(score, data.get("rationale"), data.get("metadata"), passed)


class Grade(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """The grade of one case by one grader, as stored.

    ``pass`` and ``fail`` have a score; ``error`` has an error instead; ``skipped`` has neither, because the agent call
    failed and there was nothing to grade, and neither has ``not_applicable``: the grader leaves this case out.
    """

    kind: str
    fingerprint: str
    outcome: Outcome
    score: float | None = None
    passed: bool | None = None
    rationale: str | None = None
    metadata: dict[str, Any] = _COMPUTED
    error: ErrorInfo | None = None
    latency_ms: float | None = None
    output: str | None = None
    """What the grader's code printed, possibly truncated."""
    usage: Usage | None = None
    """Usage of the judge."""

    def __post_init__(self) -> None:
        if self.metadata is None:
            msgspec.structs.force_setattr(self, "metadata", {})
        outcome = self.outcome
        scored = outcome is _PASS or outcome is _FAIL
        if scored is not (self.score is not None):
            raise ValueError(f"invalid grade: outcome {outcome.value!r} with score {self.score!r}")
        if self.passed is not ((outcome is _PASS) if scored else None):
            raise ValueError(f"invalid grade: outcome {outcome.value!r} with passed {self.passed!r}")
        if (outcome is _ERROR) is not (self.error is not None):
            raise ValueError(f"invalid grade: outcome {outcome.value!r} {'with' if self.error else 'without'} an error")

    @property
    def self_reported_error(self) -> bool:
        """A scored grade whose metadata has an error: counted, never excluded."""
        return self.score is not None and bool(self.metadata.get("error"))


__all__ = ["PASS_SCORE", "ErrorInfo", "Fault", "Grade", "GradeResult", "Outcome", "valid_score"]


ERROR_TYPES: Mapping[type[BaseException], str] = MappingProxyType(
    {ProviderRefusedError: "refused", DataError: "bad_reply"}
)
"""The error type of each exception that may end a grader; a `GraderError` has its own, any other its class name."""
_MAX_MESSAGE = 10_000


def grader_error(error: BaseException) -> ErrorInfo:
    """An exception of a grader or extractor as a record stores it, with a traceback if it is of the user's code."""
    if isinstance(error, GraderError):
        known: str | None = error.type
    else:
        known = next((name for kind, name in ERROR_TYPES.items() if isinstance(error, kind)), None)
    error_type = type(error).__name__ if known is None else known
    return ErrorInfo(
        clean_text(error_type).text,
        clean_text(exception_text(error)[:_MAX_MESSAGE]).text,
        grade_policy(error_type).fault,
        user_traceback(error) if known is None else None,
    )

"""A grader's word on a submission, and how a record keeps it."""

from __future__ import annotations

from math import inf, isfinite
from numbers import Real
from typing import Any

import msgspec

from gradeline.errors import Fault, Outcome
from gradeline.model.response import ErrorInfo, Usage
from gradeline.model.text import quote

PASS_SCORE = 0.5
"""The score from which a grade passes when neither grader nor suite says otherwise."""

_PASS, _FAIL, _ERROR = Outcome.PASS, Outcome.FAIL, Outcome.ERROR
"""An enumeration looks its members up each time, and a grade is made for every case."""
_FILLED: Any = None
"""Stands for a default that ``__post_init__`` works out; an explicit None works alike."""


def valid_score(score: object) -> float:
    """``score`` as a float in 0..1, or `ValueError` that names it."""
    if type(score) is float:
        value = score
    elif isinstance(score, Real) and not isinstance(score, bool):
        try:
            value = float(score)
        except OverflowError:
            value = inf
    else:
        raise ValueError(f"score must be a number from 0.0 to 1.0, got {quote(score)} ({type(score).__name__})")
    if not 0.0 <= value <= 1.0:  # NaN fails this too
        raise ValueError(f"score must be a finite number from 0.0 to 1.0, got {quote(score)}")
    return value


def _require_finite(value: object, path: str) -> None:
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError(f"{path} is {value!r}: numbers in metadata must be finite")
    elif isinstance(value, dict):
        for key, item in value.items():
            _require_finite(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _require_finite(item, f"{path}[{index}]")


class GradeResult(msgspec.Struct, frozen=True):
    """Score in 0..1, why, and whatever else is worth keeping.

    ``passed`` defaults to ``score >= 0.5``. ``metadata={"error": ...}`` is only metadata: the
    score counts. Raise an exception when there is no score to give.
    """

    score: float
    rationale: str | None = None
    metadata: dict[str, Any] = _FILLED
    passed: bool = _FILLED

    def __post_init__(self) -> None:
        score = valid_score(self.score)
        if score is not self.score:
            msgspec.structs.force_setattr(self, "score", score)
        if self.metadata is None:
            msgspec.structs.force_setattr(self, "metadata", {})
        elif self.metadata:
            _require_finite(self.metadata, "metadata")
        if self.passed is None:
            msgspec.structs.force_setattr(self, "passed", score >= PASS_SCORE)

    @property
    def status(self) -> str:
        """``"pass"`` or ``"fail"``."""
        return "pass" if self.passed else "fail"


class Grade(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """What became of one (sample, grader), as stored.

    ``pass`` and ``fail`` have a score; ``error`` has none and says why; ``skipped`` has neither
    score nor pass, because the agent's call failed and there was nothing to grade.
    """

    kind: str
    fingerprint: str
    outcome: Outcome
    score: float | None = None
    passed: bool | None = None
    rationale: str | None = None
    metadata: dict[str, Any] = _FILLED
    error: ErrorInfo | None = None
    latency_ms: float | None = None
    output: str | None = None
    """What the grader's code printed, as far as it is kept."""
    usage: Usage | None = None
    """What a judge used for it."""

    def __post_init__(self) -> None:
        if self.metadata is None:
            msgspec.structs.force_setattr(self, "metadata", {})
        outcome = self.outcome
        scored = outcome is _PASS or outcome is _FAIL
        if scored is not (self.score is not None):
            raise ValueError(f"a grade with outcome {outcome.value!r} and score {self.score!r} cannot be")
        if self.passed is not ((outcome is _PASS) if scored else None):
            raise ValueError(f"a grade with outcome {outcome.value!r} and passed {self.passed!r} cannot be")
        if (outcome is _ERROR) is not (self.error is not None):
            raise ValueError(f"a grade with outcome {self.outcome.value!r} {'has' if self.error else 'lacks'} an error")

    @property
    def self_reported_error(self) -> bool:
        """A scored grade whose own metadata speaks of an error: counted, never excluded."""
        return self.score is not None and bool(self.metadata.get("error"))


__all__ = ["PASS_SCORE", "ErrorInfo", "Fault", "Grade", "GradeResult", "Outcome", "valid_score"]

"""Grades of another tool, as graders and grades of a stored run."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from gradeline.errors import Fault, Outcome
from gradeline.model import ErrorInfo, Grade, RunGrader, clean_text, quote
from gradeline.model.fingerprint import fingerprint
from gradeline.model.grade import PASS_SCORE

IMPORTED = "imported"
"""The kind of a grader whose grades were imported."""


def imported_grader(source: str, name: str, *settings: object, judges: tuple[str, ...] = ()) -> RunGrader:
    """A grader of another tool. Runs are comparable where source, name and known ``settings`` are the same."""
    return RunGrader(IMPORTED, fingerprint(IMPORTED, 1, source, name, *settings), judges)


def imported_grade(
    grader: RunGrader,
    score: float | bool | None,
    *,
    passed: bool | None = None,
    rationale: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    missing: str = "the source has no score",
) -> Grade:
    """A grade of another tool; ``passed`` defaults to a score of at least 0.5.

    A score that is missing or outside 0 to 1 is the outcome ``error``, never a guess: ``missing`` says why there is
    none, and the metadata keeps the value.
    """
    text = None if rationale is None else clean_text(rationale).text
    data = dict(metadata or {})
    if score is None:
        return _without_score(grader, missing, text, data)
    value = float(score)
    if not 0.0 <= value <= 1.0:
        if isfinite(value):
            data["score"] = value
        return _without_score(grader, f"the score {quote(score)} is not between 0 and 1", text, data)
    passes = value >= PASS_SCORE if passed is None else passed
    outcome = Outcome.PASS if passes else Outcome.FAIL
    return Grade(grader.kind, grader.fingerprint, outcome, value, passes, text, data)


def not_graded(grader: RunGrader) -> Grade:
    """The grade of a grader that did not grade this response, such as one of which the source has only labels.

    It has no score and is outside the grader's coverage.
    """
    return Grade(grader.kind, grader.fingerprint, Outcome.NOT_APPLICABLE, rationale="the source has no grade")


def _without_score(grader: RunGrader, reason: str, rationale: str | None, metadata: dict[str, Any]) -> Grade:
    error = ErrorInfo("no_score", reason, Fault.GRADER)
    return Grade(grader.kind, grader.fingerprint, Outcome.ERROR, None, None, rationale, metadata, error)

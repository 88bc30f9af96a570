"""Results as the API shows them: in lists with long texts cut, alone with everything that is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote

from msgspec import Struct

from gradeline.errors import Outcome
from gradeline.model import Grade, Record, Response, Run, Sample
from gradeline.model.response import ResponseStatus

LONGEST = 2_000
"""Characters of a text in a list."""

_MOST_ITEMS = 100
_MOST_DIGITS = 9


class Score(Struct, frozen=True, kw_only=True):
    """What one grader said. There is a value only where there was a pass or a fail."""

    grader_id: str
    grader_name: str
    score_value: float | None
    score_status: Outcome
    rationale: str | None
    details: dict[str, Any]
    error_type: str | None
    error_message: str | None
    latency_ms: float | None


class Result(Struct, frozen=True, kw_only=True):
    """One case of a run, asked once. The texts of the case are those it had then."""

    result_id: str
    test_case_id: str
    repeat: int
    test_case_input: str
    test_case_expected: str | None
    agent_response: str | None
    response_status: ResponseStatus
    response_latency_ms: float | None
    error_message: str | None
    scores: list[Score]
    scores_succeeded: int
    """Passes and fails."""
    scores_failed: int
    """Errors of graders; a failed answer is a score like any other."""
    truncated: bool = False


class Attempt(Struct, frozen=True, kw_only=True):
    """An answer that was replaced, with the grades it had."""

    attempt: int
    """Counts from 1."""
    response: Response
    grades: dict[str, Grade]


class ResultDetail(Result, frozen=True, kw_only=True):
    """A result with all there is to know of it."""

    evaluation_id: str
    sample: Sample
    response: Response
    submissions: dict[str, str]
    """What each grader read, where that is not the answer itself."""
    grades: dict[str, Grade]
    history: list[Attempt]


def result_id(case: str, repeat: int) -> str:
    """Names a result within its run: the same before and after a resume or retry, and safe in a path."""
    return f"{percent_encoded(case, safe='')}~{repeat}"


def read_result_id(text: str) -> list[tuple[str, int]]:
    """The cases and repeats that an id may name, the likeliest first; none where it cannot be an id.

    An id that was decoded once too often on its way, which clients and proxies do, has the case's key as it is.
    """
    case, mark, repeat = text.rpartition("~")
    if not mark or not (repeat.isascii() and repeat.isdigit()) or len(repeat) > _MOST_DIGITS:
        return []
    if str(int(repeat)) != repeat:
        return []
    return [(key, int(repeat)) for key in dict.fromkeys((unquote(case), case))]


def listed(record: Record, run: Run, names: Mapping[str, str]) -> Result:
    """The result in a list."""
    cut = _Cutter()
    fields = _fields(record, run, names, cut)
    return Result(**fields, truncated=cut.happened)


def detailed(record: Record, run: Run, names: Mapping[str, str], history: Sequence[Attempt]) -> ResultDetail:
    """The result alone, nothing left out."""
    return ResultDetail(
        **_fields(record, run, names, None),
        evaluation_id=run.id,
        sample=record.sample,
        response=record.response,
        submissions=record.submissions,
        grades=record.grades,
        history=list(history),
    )


def score_of(key: str, grade: Grade, name: str) -> Score:
    """A grade as a score, nothing left out."""
    return _score(key, grade, name, None)


def text_of(value: str | list[str]) -> str:
    """The turns of a conversation as one text."""
    return value if isinstance(value, str) else "\n\n".join(value)


class _Cutter:
    """Shortens texts, and remembers that it had to."""

    def __init__(self) -> None:
        self.happened = False

    def text(self, text: str) -> str:
        if len(text) <= LONGEST:
            return text
        self.happened = True
        return text[:LONGEST]

    def data(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict | list) and len(value) > _MOST_ITEMS:
            self.happened = True
        if isinstance(value, dict):
            return {key: self.data(item) for key, item in list(value.items())[:_MOST_ITEMS]}
        if isinstance(value, list):
            return [self.data(item) for item in value[:_MOST_ITEMS]]
        return value


def _fields(record: Record, run: Run, names: Mapping[str, str], cut: _Cutter | None) -> dict[str, Any]:
    sample, response = record.sample, record.response
    order = [key for key in run.graders if key in record.grades]
    order += [key for key in record.grades if key not in run.graders]
    outcomes = [record.grades[key].outcome for key in order]
    return {
        "result_id": result_id(record.case, record.repeat),
        "test_case_id": record.case,
        "repeat": record.repeat,
        "test_case_input": _shown(text_of(sample.input), cut),
        "test_case_expected": None if sample.ground_truth is None else _shown(text_of(sample.ground_truth), cut),
        "agent_response": _shown(response.text, cut),
        "response_status": response.status,
        "response_latency_ms": response.latency_ms,
        "error_message": None if response.error is None else _shown(response.error.message, cut),
        "scores": [_score(key, record.grades[key], names.get(key, key), cut) for key in order],
        "scores_succeeded": sum(outcome in (Outcome.PASS, Outcome.FAIL) for outcome in outcomes),
        "scores_failed": outcomes.count(Outcome.ERROR),
    }


def _score(key: str, grade: Grade, name: str, cut: _Cutter | None) -> Score:
    error = grade.error
    return Score(
        grader_id=key,
        grader_name=name,
        score_value=grade.score,
        score_status=grade.outcome,
        rationale=_shown(grade.rationale, cut),
        details=grade.metadata if cut is None else cut.data(grade.metadata),
        error_type=None if error is None else error.type,
        error_message=None if error is None else _shown(error.message, cut),
        latency_ms=grade.latency_ms,
    )


def _shown(text: str | None, cut: _Cutter | None) -> Any:
    return text if text is None or cut is None else cut.text(text)

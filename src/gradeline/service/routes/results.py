"""Results, exports and labels over REST."""

from __future__ import annotations

from math import nextafter
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from gradeline.errors import Outcome
from gradeline.model import Record, Run, clean_text, quote
from gradeline.model.label import HumanVerdict
from gradeline.model.response import ResponseStatus
from gradeline.rest_types import ResultPage, RunHistograms
from gradeline.service.auth import KeyScope, requires
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.exports import KINDS, ExportFile, Exports, Format
from gradeline.service.labels import (
    Label,
    LabelChange,
    LabelledResult,
    LabelPage,
    ResultLabels,
    with_labels,
)
from gradeline.service.openapi import document_responses
from gradeline.service.requests import PageRequest
from gradeline.service.responses import nothing, success
from gradeline.service.results import CaseHistory, Results
from gradeline.service.service import Service, caller_of, recorder_of, service_of
from gradeline.store.result_pages import ANY, Range, ResultFilter

router = APIRouter(prefix="/api/evaluations/{evaluation_id}", tags=["results"])

MAX_LIMIT = 1000
MAX_SKIP = 10_000

_RUN = "7d4cka529f5x"
_SCORE: dict[str, Any] = {
    "grader_id": "string-match",
    "grader_name": "String match",
    "score_value": 1.0,
    "score_status": "pass",
    "rationale": "the texts are equal",
    "details": {},
    "error_type": None,
    "error_message": None,
    "latency_ms": 0.04,
}
_RESULT: dict[str, Any] = {
    "result_id": "1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55~0",
    "test_case_id": "1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55",
    "repeat": 0,
    "test_case_input": "What is the capital of France?",
    "test_case_expected": "Paris",
    "agent_response": "Paris",
    "response_status": "success",
    "response_latency_ms": 412.0,
    "error_message": None,
    "scores": [_SCORE],
    "scores_succeeded": 1,
    "scores_failed": 0,
    "truncated": False,
}
_CASE_HISTORY: dict[str, Any] = {
    "evaluation_id": _RUN,
    "result_id": _RESULT["result_id"],
    "runs": [
        {"evaluation_id": "7d4ck9y0c3zm", "name": "capitals", "started_at": "2026-01-30T12:00:00Z", "result": _RESULT}
    ],
}
_FIGURE = {"value": 1.0, "low": 0.2065, "high": 1.0, "scored": 1, "total": 1}
_SUMMARY: dict[str, Any] = {
    "total_results": 1,
    "successful_responses": 1,
    "failed_responses": 0,
    "timeout_responses": 0,
    "grader_pass_counts": {"string-match": 1},
    "grader_fail_counts": {"string-match": 0},
    "grader_error_counts": {"string-match": 0},
    "grader_skipped_counts": {"string-match": 0},
    "grader_not_applicable_counts": {"string-match": 0},
    "average_scores": {"string-match": {**_FIGURE, "low": None, "high": None}},
    "pass_rates": {"string-match": _FIGURE},
    "average_latency_ms": 412.0,
    "p50_latency_ms": 412.0,
    "p95_latency_ms": 412.0,
    "p99_latency_ms": 412.0,
    "coverage": {"string-match": {"scored": 1, "total": 1, "share": 1.0}},
    "orders": {},
    "sentence": "1 response graded, 0 grader errors",
    "clusters": None,
    "calibration": {},
    "corrected": {
        "string-match": {
            "measure": "pass_rate",
            "judge": 1.0,
            "estimate": None,
            "low": None,
            "high": None,
            "labels": 1,
            "lambda": None,
            "method": None,
            "refusal": "1 label, at least 30 are needed: label 29 more: gradeline label 7d4cka529f5x --sample 50",
            "missing_labels": 29,
            "notes": [],
            "sentence": "1.000 judge, not corrected: 1 label, at least 30 are needed: label 29 more: "
            "gradeline label 7d4cka529f5x --sample 50",
        }
    },
    "corrected_means": {},
    "selective": {},
    "probes": {},
}
_PAGE = {"evaluation_id": _RUN, "results": [_RESULT], "summary": _SUMMARY, "next_cursor": None}
_HISTOGRAMS: dict[str, Any] = {
    "evaluation_id": _RUN,
    "scores": {
        "string-match": [
            *({"low": n / 10, "high": nextafter((n + 1) / 10, 0.0), "count": 0} for n in range(9)),
            {"low": 0.9, "high": 1.0, "count": 1},
        ]
    },
    "latency_ms": [
        {"low": 0.0, "high": 411.99999999999994, "count": 0},
        {"low": 412.0, "high": 500.0, "count": 1},
    ],
}
_DETAIL: dict[str, Any] = {
    **_RESULT,
    "evaluation_id": _RUN,
    "sample": {"schema": 1, "id": "france", "input": "What is the capital of France?", "ground_truth": "Paris"},
    "response": {"schema": 1, "status": "success", "text": "Paris", "latency_ms": 412.0},
    "submissions": {},
    "grades": {"string-match": {"schema": 1, "kind": "exact", "fingerprint": "9f…", "outcome": "pass", "score": 1.0}},
    "history": [],
    "labels": [],
}

EvaluationId = Annotated[str, Path(description="The id of an evaluation.")]
_Tag = Annotated[str | None, Query(max_length=200, description="Part of a tag of the case.")]
_Text = Annotated[
    str | None, Query(max_length=500, description="Part of the case, the response or its error, in any case.")
]
_Grader = Annotated[str | None, Query(max_length=500, description="Only results with a grade by this grader.")]
_Outcome = Annotated[Outcome | None, Query(description="The outcome by that grader, or by any.")]
_ScoreMin = Annotated[
    float | None, Query(ge=0, le=1, allow_inf_nan=False, description="The lowest score by the grader.")
]
_ScoreMax = Annotated[
    float | None, Query(ge=0, le=1, allow_inf_nan=False, description="The highest score by the grader.")
]
_LatencyMin = Annotated[
    float | None,
    Query(allow_inf_nan=False, description="The lowest latency of a successful response, in milliseconds."),
]
_LatencyMax = Annotated[
    float | None,
    Query(allow_inf_nan=False, description="The highest such latency. Bounds are inclusive, also those of scores."),
]


@router.get("/results", responses=document_responses(ResultPage, example=_PAGE))
@requires(KeyScope.READ)
def list_results(
    request: Request,
    evaluation_id: EvaluationId,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    skip: Annotated[int | None, Query(ge=0, le=MAX_SKIP, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the previous page.")] = None,
    status: Annotated[ResponseStatus | None, Query(description="The status of the agent's response.")] = None,
    grader: _Grader = None,
    outcome: _Outcome = None,
    score_min: _ScoreMin = None,
    score_max: _ScoreMax = None,
    latency_min: _LatencyMin = None,
    latency_max: _LatencyMax = None,
    tag: _Tag = None,
    q: _Text = None,
) -> Response:
    """List the results of an evaluation in the order of its cases, with the summary of the whole evaluation.

    Texts over 2,000 characters are cut, which `truncated` shows; a single result has the full texts. All filters must
    match. With a filter that few results match, a page may not be full: continue while there is a `next_cursor`.
    """
    where = ResultFilter(
        status=status,
        grader=_filter_value("grader", grader),
        outcome=outcome,
        score=_range("score", score_min, score_max),
        latency_ms=_range("latency", latency_min, latency_max),
        tag=_filter_value("tag", tag),
        q=_filter_value("q", q),
    )
    if where.grader is None and where.score != ANY:
        name = "score_max" if score_min is None else "score_min"
        raise ServiceError(Code.INVALID_INPUT, f"Parameter '{name}' requires 'grader': the grader of the scores")
    return success(_results(request).page(evaluation_id, where, PageRequest.of(limit, skip, cursor, max_skip=MAX_SKIP)))


@router.get("/histograms", responses=document_responses(RunHistograms, errors=(404,), example=_HISTOGRAMS))
@requires(KeyScope.READ)
def get_histograms(request: Request, evaluation_id: EvaluationId) -> Response:
    """Get histograms of the scores and latencies of an evaluation.

    The ends of a bin are inclusive: as `score_min` and `score_max` (with the grader), or `latency_min` and
    `latency_max`, they list exactly the results that it counts. While an evaluation is in progress, the numbers may be
    out of date.
    """
    results = _results(request)
    return success(results.histograms.of(results.run(evaluation_id)))


@router.get(
    "/results/{result_id:path}/case-history",
    responses=document_responses(CaseHistory, errors=(404,), example=_CASE_HISTORY),
)
@requires(KeyScope.READ)
def get_case_history(
    request: Request,
    evaluation_id: EvaluationId,
    result_id: Annotated[str, Path(description="The id of a result.")],
    limit: Annotated[int, Query(ge=1, le=100, description="Maximum number of runs.")] = 10,
) -> Response:
    """Get the same case in other runs, newest first.

    A case is the same when its id and its content are the same and it belongs to the same suite; a stored test case is
    the same in every suite. The newest 1,000 runs are searched.
    """
    return success(_results(request).case_history(evaluation_id, result_id, limit))


@router.get("/results/{result_id:path}", responses=document_responses(LabelledResult, errors=(404,), example=_DETAIL))
@requires(KeyScope.READ)
def get_result(
    request: Request, evaluation_id: EvaluationId, result_id: Annotated[str, Path(description="The id of a result.")]
) -> Response:
    """Get everything about a result: case, trajectory, judge calls, tracebacks, earlier attempts and labels."""
    service = service_of(request)
    detail = service.results.detail(evaluation_id, result_id)
    return success(
        with_labels(detail, service.labels.of_result(detail.evaluation_id, detail.test_case_id, detail.repeat))
    )


def _export_responses() -> dict[int | str, dict[str, Any]]:
    """A schema for each content type."""
    responses = document_responses({"type": "string"}, content_type="application/json", description="The file.")
    responses[200]["content"] = {
        kind.content_type.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}}
        for kind in KINDS.values()
    }
    # the JSON export is an object, not a string
    responses[200]["content"]["application/json"] = {
        "schema": {"type": "object", "required": ["evaluation", "summary", "verdict", "results"]},
        "example": {"evaluation": {"id": _RUN}, "summary": _SUMMARY, "verdict": {"result": "none"}, "results": []},
    }
    return responses


@router.get("/export", responses=_export_responses())
@requires(KeyScope.READ)
def export_evaluation(
    request: Request,
    evaluation_id: EvaluationId,
    format: Annotated[Format, Query(description="The file format.")] = Format.JSON,  # noqa: A002 - the contract's name
) -> Response:
    """Export an evaluation as a file.

    `json` has everything that is stored, `jsonl` a record per line; `csv` and `parquet` (if the server has DuckDB) have
    a row per case, repeat and grader, `junit` a test; `html` is a report. In CSV, texts that a spreadsheet would
    execute are prefixed with an apostrophe.
    """
    service = service_of(request)
    export = Exports(service.storage, _results(request), service.labels).export(evaluation_id, format)
    return _Attachment(export)


class _Attachment(StreamingResponse):
    """A streamed export. It ends when the reader disconnects. An error closes the connection, so that a partial file
    does not look complete."""

    def __init__(self, export: ExportFile) -> None:
        headers = {"Content-Disposition": f'attachment; filename="{export.name}"', "Cache-Control": "no-store"}
        super().__init__(export.chunks, media_type=export.content_type, headers=headers)
        self._chunks = export.chunks

    async def __call__(self, scope: Connection, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._chunks.close()


def _results(request: Request) -> Results:
    results: Results = service_of(request).results
    return results


def _range(name: str, low: float | None, high: float | None) -> Range:
    if low is not None and high is not None and low > high:
        shown = f"{quote(low)} and {quote(high)}"
        raise ServiceError(Code.INVALID_INPUT, f"Parameter '{name}_min' must not be above '{name}_max', got {shown}")
    return Range(low, high)


def _filter_value(name: str, value: str | None) -> str | None:
    """The value of a filter; an empty one is no filter."""
    if value is not None and clean_text(value).changed:
        raise ServiceError(Code.INVALID_INPUT, f"Parameter '{name}' contains NUL or half a surrogate pair; remove it")
    return value or None


labels_router = APIRouter(prefix="/api/evaluations/{evaluation_id}", tags=["labels"])

MAX_REASON = 2_000

_AT = "2026-01-15T10:00:00.000Z"
_REASON = "The answer names the city, if in a sentence."
_BODY: dict[str, Any] = {"verdict": "pass", "reason": _REASON, "score": 1.0}
_LABEL = Label(
    result_id="1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55~0",
    test_case_id="1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55",
    repeat=0,
    grader_id="string_match",
    verdict="pass",
    score=1.0,
    category=None,
    reason=_REASON,
    role="rater",
    probability=0.1,
    sample="random-1-3f2a9c",
    author="0123456789ab",
    labelled_at=_AT,
    grade_outcome=Outcome.FAIL,
    grade_score=0.0,
    grader_fingerprint="9f2b6c1d0e3a4b5c6d7e8f9012345678",
    case_digest="0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    response_digest="5d41402abc4b2a76b9719d911017c592",
)
_CHANGE = LabelChange(
    grader_id="string_match",
    verdict="pass",
    score=1.0,
    category=None,
    reason=_REASON,
    role="rater",
    withdrawn=False,
    author="0123456789ab",
    at=_AT,
)

ResultId = Annotated[str, Path(description="The id of a result.")]
GraderId = Annotated[str, Path(description="The grader of the labelled grade, as in the scores of the result.")]


class LabelBody(BaseModel):
    """A human verdict."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_BODY]})

    verdict: Annotated[Literal["pass", "fail"], Field(description="Whether the response is good.")]
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON, description="The reason.")]
    score: Annotated[
        float | None,
        Field(ge=0, le=1, allow_inf_nan=False, description="A score, if the verdict is not precise enough."),
    ] = None

    @field_validator("reason")
    @classmethod
    def _is_not_blank(cls, reason: str) -> str:
        if not reason.strip():
            raise ValueError("must not be blank")
        if clean_text(reason).changed:
            raise ValueError("contains NUL or half a surrogate pair; remove it")
        return reason


@labels_router.get(
    "/labels",
    responses=document_responses(LabelPage, example=LabelPage(labels=[_LABEL], count=1, total=1, next_cursor=None)),
)
@requires(KeyScope.READ)
def list_labels(
    request: Request,
    evaluation_id: EvaluationId,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    skip: Annotated[int | None, Query(ge=0, le=MAX_SKIP, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the previous page.")] = None,
) -> Response:
    """List the current labels of an evaluation, latest change last."""
    service = service_of(request)
    run = service.results.run(evaluation_id)
    return success(service.labels.page(run.id, PageRequest.of(limit, skip, cursor, max_skip=MAX_SKIP)))


@labels_router.get(
    "/results/{result_id:path}/labels",
    responses=document_responses(ResultLabels, errors=(404,), example=ResultLabels(labels=[_LABEL], history=[_CHANGE])),
)
@requires(KeyScope.READ)
def list_labels_of_result(request: Request, evaluation_id: EvaluationId, result_id: ResultId) -> Response:
    """List the labels of a result, with their history: changes are added, nothing is overwritten."""
    service = service_of(request)
    run, record = _find_result(service, evaluation_id, result_id)
    key = (run.id, record.case, record.repeat)
    return success(ResultLabels(labels=service.labels.of_result(*key), history=service.labels.history(*key)))


@labels_router.put(
    "/results/{result_id:path}/labels/{grader_id:path}",
    responses=document_responses(Label, errors=(400, 404, 409), example=_LABEL),
)
@requires(KeyScope.LABEL)
def put_label(
    request: Request, evaluation_id: EvaluationId, result_id: ResultId, grader_id: GraderId, body: LabelBody
) -> Response:
    """Label the grade of a result, or change your label of it. Each key has its own label.

    The label does not change any score. It counts in the rates corrected by labels, next to those by the scores. It is
    stored with the grade, the fingerprint of the grader, and digests of the case and the response.
    """
    service, caller = service_of(request), caller_of(request)
    run, record = _find_result(service, evaluation_id, result_id)
    verdict = HumanVerdict(body.verdict, body.reason, body.score)
    recorder = recorder_of(request, "label.put")
    return success(service.labels.put(run, record, grader_id, verdict, caller.key_id, recorder))


@labels_router.delete(
    "/results/{result_id:path}/labels/{grader_id:path}",
    status_code=204,
    responses=document_responses(status=204, errors=(404,)),
)
@requires(KeyScope.LABEL)
def delete_label(request: Request, evaluation_id: EvaluationId, result_id: ResultId, grader_id: GraderId) -> Response:
    """Withdraw your label. The history of the result has the label and its withdrawal."""
    service, caller = service_of(request), caller_of(request)
    run, record = _find_result(service, evaluation_id, result_id)
    service.labels.withdraw(run, record, grader_id, caller.key_id, recorder_of(request, "label.delete"))
    return nothing()


def _find_result(service: Service, evaluation_id: str, result_id: str) -> tuple[Run, Record]:
    run = service.results.run(evaluation_id)
    record = service.results.record(run, result_id)
    if record is None:
        raise not_found("result", result_id)
    return run, record

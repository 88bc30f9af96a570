"""Human verdicts over REST."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import Response

from gradeline.errors import Outcome
from gradeline.model import Record, Run, clean_text
from gradeline.service.access import Scope, requires
from gradeline.service.documented import documented
from gradeline.service.envelope import nothing, success
from gradeline.service.failures import not_found
from gradeline.service.labels import Label, LabelChange, LabelPage, Opinion, ResultLabels
from gradeline.service.paging import Page
from gradeline.service.state import Service, caller_of, recorder_of, service_of

router = APIRouter(prefix="/api/evaluations/{evaluation_id}", tags=["labels"])

MAX_LIMIT = 1000
MAX_SKIP = 10_000
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
    reason=_REASON,
    author="0123456789ab",
    labelled_at=_AT,
    grade_outcome=Outcome.FAIL,
    grade_score=0.0,
    grader_fingerprint="9f2b6c1d0e3a4b5c6d7e8f9012345678",
    case_digest="0a1b2c3d4e5f60718293a4b5c6d7e8f9",
    response_digest="5d41402abc4b2a76b9719d911017c592",
)
_CHANGE = LabelChange(
    grader_id="string_match", verdict="pass", score=1.0, reason=_REASON, author="0123456789ab", at=_AT
)

EvaluationId = Annotated[str, Path(description="The id of an evaluation.")]
ResultId = Annotated[str, Path(description="The id of a result.")]
GraderId = Annotated[str, Path(description="The grader whose word it is about, as the result's scores name it.")]


class LabelBody(BaseModel):
    """What a person says."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_BODY]})

    verdict: Annotated[Literal["pass", "fail"], Field(description="Whether the answer is good.")]
    reason: Annotated[str, Field(min_length=1, max_length=MAX_REASON, description="Why.")]
    score: Annotated[
        float | None, Field(ge=0, le=1, allow_inf_nan=False, description="How good, where a verdict says too little.")
    ] = None

    @field_validator("reason")
    @classmethod
    def _says_something(cls, reason: str) -> str:
        if not reason.strip():
            raise ValueError("say why; blanks are no reason")
        if clean_text(reason).changed:
            raise ValueError("it holds NUL or half a character, which no store keeps; leave it out")
        return reason


@router.get(
    "/labels",
    responses=documented(LabelPage, example=LabelPage(labels=[_LABEL], count=1, total=1, next_cursor=None)),
)
@requires(Scope.READ)
def list_labels(
    request: Request,
    evaluation_id: EvaluationId,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    skip: Annotated[int | None, Query(ge=0, le=MAX_SKIP, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the page before.")] = None,
) -> Response:
    """The human verdicts on an evaluation's results that stand, the latest change last."""
    service = service_of(request)
    run = service.results.run(evaluation_id)
    return success(service.labels.page(run.id, Page.of(limit, skip, cursor, max_skip=MAX_SKIP)))


@router.get(
    "/results/{result_id:path}/labels",
    responses=documented(ResultLabels, errors=(404,), example=ResultLabels(labels=[_LABEL], history=[_CHANGE])),
)
@requires(Scope.READ)
def list_labels_of_result(request: Request, evaluation_id: EvaluationId, result_id: ResultId) -> Response:
    """The human verdicts on one result, and how they came about: a change is added, nothing is overwritten."""
    service = service_of(request)
    run, record = _asked(service, evaluation_id, result_id)
    key = (run.id, record.case, record.repeat)
    return success(ResultLabels(labels=service.labels.of_result(*key), history=service.labels.history(*key)))


@router.put(
    "/results/{result_id:path}/labels/{grader_id:path}",
    responses=documented(Label, errors=(400, 404, 409), example=_LABEL),
)
@requires(Scope.LABEL)
def put_label(
    request: Request, evaluation_id: EvaluationId, result_id: ResultId, grader_id: GraderId, body: LabelBody
) -> Response:
    """Say whether a grader is right about a result, or say it anew.

    The label stands beside the grade: no score, summary or verdict of the evaluation changes. It keeps what the
    grader said, its fingerprint, and digests of the case and the answer as they are now.
    """
    service, caller = service_of(request), caller_of(request)
    run, record = _asked(service, evaluation_id, result_id)
    said = Opinion(body.verdict, body.reason, body.score)
    record_act = recorder_of(request, "label.put")
    return success(service.labels.put(run, record, grader_id, said, caller.key_id, record_act))


@router.delete(
    "/results/{result_id:path}/labels/{grader_id:path}",
    status_code=204,
    responses=documented(status=204, errors=(404,)),
)
@requires(Scope.LABEL)
def delete_label(request: Request, evaluation_id: EvaluationId, result_id: ResultId, grader_id: GraderId) -> Response:
    """Take a label back. The result's history of labels keeps it, and who took it back."""
    service, caller = service_of(request), caller_of(request)
    run, record = _asked(service, evaluation_id, result_id)
    service.labels.withdraw(run, record, grader_id, caller.key_id, recorder_of(request, "label.delete"))
    return nothing()


def _asked(service: Service, evaluation_id: str, result_id: str) -> tuple[Run, Record]:
    run = service.results.run(evaluation_id)
    record = service.results.record(run, result_id)
    if record is None:
        raise not_found("result", result_id)
    return run, record

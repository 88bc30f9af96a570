"""Samples to label over REST, without what any grader decided, and the agreement of the raters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.responses import Response

from gradeline.model import clean_text
from gradeline.model.label import MAX_COMMENT, MAX_NAME, HumanVerdict, SamplingMethod
from gradeline.service.auth import KeyScope, requires
from gradeline.service.errors import Code, ServiceError
from gradeline.service.label_samples import (
    Agreement,
    BlindText,
    DisputedResult,
    DrawnResult,
    DrawnSample,
    LabelAgreement,
    LabelSamples,
    OwnLabel,
    QuestionLabels,
    RaterAgreement,
    RaterCount,
    SampleItem,
    SampleList,
    SampleRequest,
    SampleWithResults,
)
from gradeline.service.openapi import document_responses
from gradeline.service.responses import success
from gradeline.service.routes.results import EvaluationId
from gradeline.service.service import caller_of, recorder_of, service_of
from gradeline.trust.labelling import is_label_name
from gradeline.trust.sampling import MAX_SEED

router = APIRouter(prefix="/api/evaluations/{evaluation_id}", tags=["labels"])

MAX_SAMPLE = 10_000

_RUN = "7d4cka529f5x"
_CASE = "1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55"
_SAMPLE: dict[str, Any] = {
    "sample": "random-1-3f2a9c",
    "question": "quality",
    "method": "random",
    "seed": 1,
    "size": 1,
    "labelled": 1,
    "labelled_by_you": 1,
}
_DRAWN = SampleWithResults(
    **_SAMPLE,
    results=[DrawnResult(place=0, result_id=f"{_CASE}~0", test_case_id=_CASE, repeat=0, labelled_by_you=True)],
)
_ITEM = SampleItem(
    sample="random-1-3f2a9c",
    question="quality",
    rubric="Pass an answer that names the capital.",
    place=0,
    size=1,
    labelled_by_you=1,
    result_id=f"{_CASE}~0",
    test_case_id=_CASE,
    repeat=0,
    texts=[BlindText("input", "What is the capital of France?"), BlindText("answer", "Paris")],
    label=OwnLabel(verdict="pass", score=None, category=None, comment="", at="2026-01-15T10:00:00.000Z"),
    next_place=None,
)
_AGREEMENT = LabelAgreement(
    evaluation_id=_RUN,
    questions=[
        QuestionLabels(
            question="quality",
            results=100,
            raters=[
                RaterCount(author="0123456789ab", labels=100, adjudications=0),
                RaterCount(author="ada", labels=50, adjudications=1),
            ],
            alpha=Agreement(estimate=0.81, low=0.62, high=0.95),
            pairs=[
                RaterAgreement(
                    authors=("0123456789ab", "ada"),
                    results=50,
                    same=46,
                    kappa=Agreement(estimate=0.81, low=0.63, high=0.98),
                )
            ],
            disagreements=[
                DisputedResult(
                    result_id=f"{_CASE}~0",
                    test_case_id=_CASE,
                    repeat=0,
                    labels={"0123456789ab": "pass", "ada": "fail"},
                    resolved=False,
                )
            ],
            unresolved=1,
            stale=0,
        )
    ],
)
_DRAW_BODY: dict[str, Any] = {"n": 100, "seed": 1, "method": "random", "question": "quality"}
_LABEL_BODY: dict[str, Any] = {"verdict": "pass"}

SampleId = Annotated[str, Path(description="The id of a sample of the evaluation.")]
Place = Annotated[int, Path(ge=0, le=10_000_000, description="The place of a result in the sample, from 0.")]


class NewSample(BaseModel):
    """A sample to draw."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_DRAW_BODY]})

    n: Annotated[
        int | None,
        Field(ge=1, le=MAX_SAMPLE, description="Least number of results (default 100, or those of the latest sample)."),
    ] = None
    seed: Annotated[
        int | None, Field(ge=0, le=MAX_SEED, description="Seed (default: the latest sample of the question, or 1).")
    ] = None
    method: Annotated[
        SamplingMethod | None,
        Field(description="How to draw (default: stratified by verdict if one verdict is rare, else random)."),
    ] = None
    question: Annotated[
        str | None,
        Field(max_length=MAX_NAME, description="A grader, or another question (default: the only judge)."),
    ] = None


class BlindLabel(BaseModel):
    """A label; at least one of verdict, score and category is required."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_LABEL_BODY]})

    verdict: Annotated[Literal["pass", "fail"] | None, Field(description="Whether the response is good.")] = None
    score: Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False, description="A score from 0 to 1.")] = None
    category: Annotated[str | None, Field(max_length=MAX_NAME, description="A category.")] = None
    comment: Annotated[str, Field(max_length=MAX_COMMENT, description="A comment (default none).")] = ""

    @field_validator("category")
    @classmethod
    def _is_name(cls, category: str | None) -> str | None:
        if category is not None and not is_label_name(category):
            raise ValueError("must be one line without spaces around it")
        return category

    @field_validator("comment")
    @classmethod
    def _is_clean(cls, comment: str) -> str:
        if clean_text(comment).changed:
            raise ValueError("contains NUL or half a surrogate pair; remove it")
        return comment


@router.post("/label-samples", responses=document_responses(SampleWithResults, errors=(400, 404, 409), example=_DRAWN))
@requires(KeyScope.LABEL)
def draw_label_sample(request: Request, evaluation_id: EvaluationId, body: NewSample) -> Response:
    """Draw a sample of the results of an ended evaluation for labelling, or read or extend an earlier one.

    The same seed draws the same results for everyone; a larger sample contains the smaller one. The probabilities of
    drawing are stored with the labels, for rates that are corrected by them. No grade is in the response.
    """
    run = service_of(request).results.run(evaluation_id)
    wanted = SampleRequest(body.question, body.n, body.seed, body.method)
    return success(_samples(request).draw(run, wanted, _rater(request), recorder_of(request, "label.draw")))


@router.get(
    "/label-samples",
    responses=document_responses(SampleList, errors=(404,), example=SampleList(samples=[DrawnSample(**_SAMPLE)])),
)
@requires(KeyScope.READ)
def list_label_samples(request: Request, evaluation_id: EvaluationId) -> Response:
    """List the samples of an evaluation, and how many of their results are labelled."""
    return success(_samples(request).of_run(service_of(request).results.run(evaluation_id), _rater(request)))


@router.get(
    "/label-samples/{sample_id}", responses=document_responses(SampleWithResults, errors=(404,), example=_DRAWN)
)
@requires(KeyScope.READ)
def get_label_sample(request: Request, evaluation_id: EvaluationId, sample_id: SampleId) -> Response:
    """Get a sample with its results, in the order in which they are labelled."""
    run = service_of(request).results.run(evaluation_id)
    return success(_samples(request).get(run, sample_id, _rater(request)))


@router.get("/label-samples/{sample_id}/next", responses=document_responses(SampleItem, errors=(404,), example=_ITEM))
@requires(KeyScope.READ)
def get_next_item(request: Request, evaluation_id: EvaluationId, sample_id: SampleId) -> Response:
    """Get the first result of a sample that you have not labelled, without any grade; if there is none, the first."""
    run = service_of(request).results.run(evaluation_id)
    return success(_samples(request).item(run, sample_id, None, _rater(request)))


@router.get(
    "/label-samples/{sample_id}/items/{place}", responses=document_responses(SampleItem, errors=(404,), example=_ITEM)
)
@requires(KeyScope.READ)
def get_item(request: Request, evaluation_id: EvaluationId, sample_id: SampleId, place: Place) -> Response:
    """Get the result at a place of a sample, without any grade, and your label of it."""
    run = service_of(request).results.run(evaluation_id)
    return success(_samples(request).item(run, sample_id, place, _rater(request)))


@router.put(
    "/label-samples/{sample_id}/items/{place}",
    responses=document_responses(SampleItem, errors=(400, 404), example=_ITEM),
)
@requires(KeyScope.LABEL)
def put_item_label(
    request: Request, evaluation_id: EvaluationId, sample_id: SampleId, place: Place, body: BlindLabel
) -> Response:
    """Label the result at a place of a sample, or change your label of it. Each key has its own label."""
    if body.verdict is None and body.score is None and body.category is None:
        raise ServiceError(Code.MISSING_FIELD, "One of the fields 'verdict', 'score' and 'category' is required")
    run = service_of(request).results.run(evaluation_id)
    value = HumanVerdict(body.verdict, body.comment, body.score, body.category)
    recorder = recorder_of(request, "label.put")
    return success(_samples(request).label(run, sample_id, place, value, _rater(request), recorder))


@router.delete(
    "/label-samples/{sample_id}/items/{place}", responses=document_responses(SampleItem, errors=(404,), example=_ITEM)
)
@requires(KeyScope.LABEL)
def delete_item_label(request: Request, evaluation_id: EvaluationId, sample_id: SampleId, place: Place) -> Response:
    """Withdraw your label of the result at a place of a sample; the history keeps it."""
    run = service_of(request).results.run(evaluation_id)
    recorder = recorder_of(request, "label.delete")
    return success(_samples(request).withdraw(run, sample_id, place, _rater(request), recorder))


@router.get("/label-agreement", responses=document_responses(LabelAgreement, errors=(404,), example=_AGREEMENT))
@requires(KeyScope.READ)
def get_label_agreement(request: Request, evaluation_id: EvaluationId) -> Response:
    """Get the raters of an evaluation by question, how well they agree, and the results on which they do not."""
    return success(_samples(request).agreement(service_of(request).results.run(evaluation_id)))


def _samples(request: Request) -> LabelSamples:
    return service_of(request).label_samples


def _rater(request: Request) -> str:
    """The id of the key; empty in local mode, as for other labels."""
    return caller_of(request).key_id or ""

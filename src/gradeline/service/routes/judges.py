"""Calibrations of judges over REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gradeline.model.calibration import AgreementTable, Calibration, JudgeValue, KappaEstimate
from gradeline.rest_types import JudgePage, JudgeReport, RunCalibration
from gradeline.service.auth import KeyScope, requires
from gradeline.service.judges import judge_page, run_calibration
from gradeline.service.openapi import document_responses
from gradeline.service.requests import PageRequest, require_clean
from gradeline.service.responses import success
from gradeline.service.routes.results import EvaluationId
from gradeline.service.service import service_of

router = APIRouter(prefix="/api", tags=["judges"])

_MAX_SKIP = 10_000
_CALIBRATION = Calibration(
    suite="capitals",
    grader="quality",
    question="quality",
    run="7d4cka529f5x",
    judge=("openai/gpt-5-mini",),
    judge_fingerprint="9f2b6c1d0e3a4b5c6d7e8f9012345678",
    prompt_hash="0a1b2c3d4e5f6071",
    at="2026-11-19T10:00:00.000Z",
    state="calibrated",
    labels=200,
    positives=120,
    negatives=80,
    table=AgreementTable(tp=108.0, fp=8.0, fn=12.0, tn=72.0),
    agreement=0.9,
    agreement_ci=(0.85, 0.94),
    kappa=KappaEstimate(estimate=0.79, low=0.71, high=0.88),
    kappa_lower=0.72,
    sensitivity=0.9,
    sensitivity_ci=(0.83, 0.94),
    specificity=0.9,
    specificity_ci=(0.82, 0.95),
    missing_rate=0.0,
    results=1000,
    value=JudgeValue(
        labels_saved=190.0,
        labels_saved_low=120.0,
        width_ratio=0.72,
        correlation=0.79,
        sentence="200 labels with this judge are worth 390 without it",
    ),
)
_REPORT = JudgeReport(state="calibrated", reason=f"{_CALIBRATION.headline}, 2026-11-19", calibration=_CALIBRATION)
_RUN = RunCalibration(evaluation_id="7d4cka529f5x", graders={"quality": _REPORT})
_PAGE = JudgePage(judges=[_REPORT], count=1, total=1, next_cursor=None)


@router.get(
    "/evaluations/{evaluation_id}/calibration",
    responses=document_responses(RunCalibration, errors=(404,), example=_RUN),
)
@requires(KeyScope.READ)
def get_calibration(request: Request, evaluation_id: EvaluationId) -> Response:
    """Get the state of each judge of an evaluation: uncalibrated, calibrated, failed, expired or drifted, and why."""
    service = service_of(request)
    return success(run_calibration(service.storage, service.results.run(evaluation_id)))


@router.get("/judges", responses=document_responses(JudgePage, errors=(400,), example=_PAGE))
@requires(KeyScope.READ)
def list_judges(
    request: Request,
    suite: Annotated[str | None, Query(max_length=1000, description="Only judges of this suite.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    skip: Annotated[int | None, Query(ge=0, le=_MAX_SKIP, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the previous page.")] = None,
) -> Response:
    """List the judges that were calibrated, each with its latest calibration, the newest first.

    A judge is a grader of a suite with one model and one prompt; a changed one is another judge. The state is that of
    today: a calibration expires after 90 days.
    """
    require_clean([suite], "suite")
    page = PageRequest.of(limit, skip, cursor, max_skip=_MAX_SKIP)
    return success(judge_page(service_of(request).storage, suite or None, page))

"""Baselines with a name over REST."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gradeline.model.baseline import MAX_BASELINE_NAME
from gradeline.rest_types import BaselinePage, NamedBaseline
from gradeline.service.auth import KeyScope, requires
from gradeline.service.openapi import document_responses
from gradeline.service.requests import PageRequest, require_clean
from gradeline.service.responses import nothing, success
from gradeline.service.service import caller_of, recorder_of, service_of

router = APIRouter(prefix="/api/baselines", tags=["baselines"])

_MAX_SUITE = 1000
_BASELINE = NamedBaseline(
    name="main",
    suite="Capitals",
    evaluation_id="7d4cka529f5x",
    set_by="0123456789ab",
    set_at="2026-01-15T09:30:00.000Z",
)
_PAGE = BaselinePage(baselines=[_BASELINE], count=1, next_cursor=None)
_EXAMPLE: dict[str, Any] = {"evaluation_id": "7d4cka529f5x"}

Name = Annotated[
    str,
    Path(
        description=f"Letters, digits, `.`, `_` and `-`, at most {MAX_BASELINE_NAME}; not `latest`.", examples=["main"]
    ),
]
Suite = Annotated[
    str | None, Query(max_length=_MAX_SUITE, description="The suite, where several have a baseline of that name.")
]


class BaselineRun(BaseModel):
    """The evaluation that becomes the baseline of its suite."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": _EXAMPLE})

    evaluation_id: Annotated[str, Field(min_length=1, max_length=200)]


@router.get("", responses=document_responses(BaselinePage, errors=(400,), example=_PAGE))
@requires(KeyScope.READ)
def list_baselines(
    request: Request,
    suite: Annotated[str | None, Query(max_length=_MAX_SUITE, description="Only those of this suite.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="The `next_cursor` of the previous page.")] = None,
) -> Response:
    """List the baselines by suite and name."""
    require_clean([suite], "suite")
    return success(service_of(request).baselines.page(suite or None, PageRequest.of(limit, None, cursor)))


@router.put("/{name}", responses=document_responses(NamedBaseline, errors=(400, 404, 409), example=_BASELINE))
@requires(KeyScope.RUN)
def set_baseline(name: Name, body: BaselineRun, request: Request) -> Response:
    """Make a completed evaluation the baseline of its suite with this name, in place of the present one.

    Comparisons and new evaluations accept the name. The evaluation cannot be deleted while it is a baseline.
    """
    record = recorder_of(request, "baseline.set")
    return success(service_of(request).baselines.set(name, body.evaluation_id, caller_of(request), record))


@router.delete("/{name}", status_code=204, responses=document_responses(status=204, errors=(404, 409)))
@requires(KeyScope.RUN)
def clear_baseline(name: Name, request: Request, suite: Suite = None) -> Response:
    """Remove a baseline; its evaluation stays."""
    service_of(request).baselines.clear(name, suite or None, recorder_of(request, "baseline.clear"))
    return nothing()

"""Graders over REST."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gradeline.rest_types import GraderInfo, Score
from gradeline.service.auth import KeyScope, requires
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.grader_definitions import ID_PATTERN, MAX_DESCRIPTION, MAX_NAME, UNSAVED
from gradeline.service.graders import ResolvedGrader, StoredGraders
from gradeline.service.openapi import document_responses
from gradeline.service.requests import MAX_NUMBER, PageRequest
from gradeline.service.responses import nothing, success
from gradeline.service.service import caller_of, recorder_of, run_in_trial_pool, service_of
from gradeline.service.trials import Previewer, preview_stored_result, preview_texts

router = APIRouter(prefix="/api/graders", tags=["graders"])

_MAX_VERSION = 2**31 - 1
_CONFIG: dict[str, Any] = {"rules": [{"condition": "contains", "value": "refund"}]}
_EXAMPLE: dict[str, Any] = {
    "name": "Mentions the refund",
    "description": "The answer must speak of the refund",
    "type": "custom-rules",
    "config": _CONFIG,
}
_STORED: dict[str, Any] = {
    "id": "6c1a9f0e-8f1f-4c52-9d67-0a0f6a1f7a11",
    **_EXAMPLE,
    "config_schema": {"type": "object"},
    "scoring_guide": "1.0 when all rules hold",
    "default_extractor": "last_assistant",
    "version": 1,
    "fingerprint": "0f3c7f6f2a5e4c1f9b8d7e6a5c4b3a29",
    "status": "active",
    "source": "stored",
    "caveats": [],
    "created_at": "2026-01-15T09:30:00.000Z",
    "modified_at": "2026-01-15T09:30:00.000Z",
    "error": None,
}
_SCORE: dict[str, Any] = {
    "grader_id": "string-match",
    "grader_name": "String match",
    "score_value": 1.0,
    "score_status": "pass",
    "rationale": "The texts are the same",
    "details": {},
    "error_type": None,
    "error_message": None,
    "latency_ms": 0.1,
}
_TEXT_OF_NAME: dict[str, Any] = {"minLength": 1, "maxLength": MAX_NAME, "pattern": "[^\\s\\x00]"}
_Name = Annotated[str, Field(json_schema_extra=_TEXT_OF_NAME)]
_Description = Annotated[str | None, Field(json_schema_extra={"maxLength": MAX_DESCRIPTION})]
_Config = Annotated[dict[str, Any] | None, Field(description="The options of that kind; see its config_schema.")]
_Rules = Annotated[list[Any] | None, Field(description="The rules of custom-rules, which may stand beside config.")]


class GraderList(Struct, frozen=True, kw_only=True):
    """A page of graders."""

    graders: list[GraderInfo]
    count: int
    total: int
    next_cursor: str | None


class NewGrader(BaseModel):
    """A grader to store: JSON rules, a model judge, or any other kind that is built in, with options."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_EXAMPLE]})

    id: Annotated[
        str | None, Field(description="One is made where none is given.", json_schema_extra={"pattern": ID_PATTERN})
    ] = None
    name: _Name
    description: _Description = None
    type: Annotated[str | None, Field(description="The kind, such as custom-rules or model_judge.")] = None
    kind: Annotated[str | None, Field(description="The same as type.")] = None
    config: _Config = None
    rules: _Rules = None


class GraderChanges(BaseModel):
    """The fields of a grader to replace; a config is replaced as a whole."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"description": "Another text"}]}
    )

    name: Annotated[str, Field(default_factory=str, json_schema_extra=_TEXT_OF_NAME)]
    description: _Description = None
    type: Annotated[str, Field(default_factory=str)]
    kind: Annotated[str, Field(default_factory=str)]
    config: Annotated[dict[str, Any], Field(default_factory=dict)]
    rules: Annotated[list[Any], Field(default_factory=list)]


class Definition(BaseModel):
    """A grader that is not stored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(default=UNSAVED, json_schema_extra=_TEXT_OF_NAME)]
    description: _Description = None
    type: str | None = None
    kind: str | None = None
    config: _Config = None
    rules: _Rules = None


class PreviewRequest(BaseModel):
    """What to grade: texts, or a result of an evaluation."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"agent_response": "Paris", "expected_output": "Paris"}]},
    )

    agent_response: str | None = None
    expected_output: str | None = None
    input: str | None = None
    evaluation_id: str | None = None
    result_id: str | None = None
    config: Annotated[dict[str, Any] | None, Field(description="Options over those of the grader.")] = None
    definition: Annotated[Definition | None, Field(description=f"An unsaved grader, for the id {UNSAVED!r}.")] = None


@router.get(
    "",
    responses=document_responses(
        GraderList, errors=(400,), example={"graders": [_STORED], "count": 1, "total": 1, "next_cursor": None}
    ),
)
@requires(KeyScope.READ)
def list_graders(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    skip: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the page before.")] = None,
) -> Response:
    """List the graders: built-ins, Python graders of the operator's folder, stored ones."""
    page = _graders(request).page(PageRequest.of(limit, skip, cursor))
    return success(
        GraderList(graders=page.graders, count=len(page.graders), total=page.total, next_cursor=page.next_cursor)
    )


@router.post("", status_code=201, responses=document_responses(GraderInfo, 201, (400, 409), example=_STORED))
@requires(KeyScope.ADMIN)
def create_grader(request: Request, body: NewGrader) -> Response:
    """Store a grader. Its definition is checked whole; ``details.errors`` names what is wrong by path."""
    return success(_graders(request).create(body.model_dump(), recorder_of(request, "create")), 201)


@router.get("/{grader_id}", responses=document_responses(GraderInfo, errors=(400, 404), example=_STORED))
@requires(KeyScope.READ)
def get_grader(
    request: Request,
    grader_id: str,
    version: Annotated[int | None, Query(ge=1, le=_MAX_VERSION, description="The newest, unless said.")] = None,
) -> Response:
    """One grader, or one version of it, which stays when the grader is deleted."""
    return success(_graders(request).get(grader_id, version))


@router.put("/{grader_id}", responses=document_responses(GraderInfo, errors=(400, 403, 404), example=_STORED))
@requires(KeyScope.ADMIN)
def update_grader(request: Request, grader_id: str, body: GraderChanges) -> Response:
    """Replace the fields that are given, as a new version. A new name or description keeps the fingerprint."""
    changes = body.model_dump(include=body.model_fields_set)
    return success(_graders(request).change(grader_id, changes, recorder_of(request, "update")))


@router.delete("/{grader_id}", status_code=204, responses=document_responses(status=204, errors=(403, 404)))
@requires(KeyScope.ADMIN)
def delete_grader(request: Request, grader_id: str) -> Response:
    """Delete a grader. The runs that used it keep what they used."""
    _graders(request).delete(grader_id, recorder_of(request, "delete"))
    return nothing()


@router.post("/{grader_id}/preview", responses=document_responses(Score, errors=(400, 403, 404, 429), example=_SCORE))
@requires(KeyScope.RUN)
async def preview_grader(request: Request, grader_id: str, body: PreviewRequest) -> Response:
    """Grade a text or a stored result; nothing is stored. For the id "new" the definition is in the body.

    A grader that needs more than 60 seconds gives a score of status `error` and type `timeout`.
    """
    return success(await run_in_trial_pool(request, lambda: _preview(request, grader_id, body)))


def _preview(request: Request, grader_id: str, body: PreviewRequest) -> Score:
    service = service_of(request)
    grader = _previewed(request, grader_id, body)
    if body.evaluation_id is not None or body.result_id is not None:
        _refuse_both(body)
        if body.evaluation_id is None or body.result_id is None:
            missing = "evaluation_id" if body.evaluation_id is None else "result_id"
            raise ServiceError(Code.MISSING_FIELD, f"Field {missing!r} is required beside the other id")
        answer = preview_stored_result(service.storage, body.evaluation_id, body.result_id)
    elif body.agent_response is None:
        raise ServiceError(
            Code.MISSING_FIELD, "Field 'agent_response' is required, or 'evaluation_id' together with 'result_id'"
        )
    else:
        answer = preview_texts(body.agent_response, body.expected_output, body.input)
    previewer = Previewer(_graders(request).files, service.secrets, service.egress, caller_of(request))
    return previewer.score(grader, answer)


def _previewed(request: Request, grader_id: str, body: PreviewRequest) -> ResolvedGrader:
    if body.definition is None:
        if grader_id == UNSAVED:
            raise ServiceError(Code.MISSING_FIELD, "Field 'definition' is required: the grader that is not stored yet")
        return _graders(request).named(grader_id, body.config)
    if grader_id != UNSAVED:
        raise not_found("unsaved grader", grader_id)
    if not caller_of(request).scope.includes(KeyScope.ADMIN):
        raise ServiceError(Code.FORBIDDEN, "A definition needs a key of scope 'admin', as storing one does")
    definition = body.definition.model_dump(exclude_unset=True)
    if body.config is not None:
        definition["config"] = {**(definition.get("config") or {}), **body.config}
    return _graders(request).unsaved(definition)


def _refuse_both(body: PreviewRequest) -> None:
    for name in ("agent_response", "expected_output", "input"):
        if getattr(body, name) is not None:
            raise ServiceError(
                Code.INVALID_INPUT, f"Field {name!r} stands beside a stored result, which has its own texts"
            )


def _graders(request: Request) -> StoredGraders:
    found: StoredGraders = service_of(request).graders
    return found

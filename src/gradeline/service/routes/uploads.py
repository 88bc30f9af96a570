"""Uploads of runs over REST."""

from __future__ import annotations

from tempfile import SpooledTemporaryFile
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gradeline.model import quote
from gradeline.rest_types import RunCopy, RunUpload
from gradeline.service.auth import KeyScope, requires
from gradeline.service.errors import Code, ServiceError
from gradeline.service.openapi import document_responses
from gradeline.service.requests import MAX_NUMBER
from gradeline.service.responses import success
from gradeline.service.service import caller_of, recorder_of, service_of
from gradeline.service.uploads import MAX_CASES, MAX_PART, MAX_PART_CASES, UploadRequest
from gradeline.store.transfer import LINES_TYPE

router = APIRouter(prefix="/api/uploads", tags=["uploads"])

_SPOOLED = 1_000_000
_DIGEST = "5f2d" * 16
_RUN: dict[str, Any] = {
    "schema": 1,
    "id": "7d4cka529f5x",
    "name": "Capitals",
    "suite": "Capitals",
    "status": "completed",
    "graders": {"exact": {"kind": "exact_match", "fingerprint": "0f1e2d3c"}},
    "total": 200,
    "started_at": "2026-01-15T09:30:00Z",
    "completed_at": "2026-01-15T09:31:00Z",
}
_REQUEST: dict[str, Any] = {"run": _RUN, "digest": _DIGEST, "cases": 200, "size": 184_320}
_STATE = RunUpload(run_id="7d4cka529f5x", digest=_DIGEST, cases=200, received=0, completed=False)
_LINE = (
    '{"case":"france","position":0,"sample":{"schema":1,"id":"france","input":"France?"},"results":'
    '[{"repeat":0,"response":{"schema":1,"status":"success","text":"Paris"},"grades":[]}]}\n'
)
_COPY = RunCopy(run=_RUN, cases=[_LINE.strip()], next_cursor=None)
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {LINES_TYPE: {"schema": {"type": "string"}, "example": _LINE}},
    }
}

RunId = Annotated[str, Path(description="The id of the run: 12 letters and digits.", examples=["7d4cka529f5x"])]
_HEX = "^[0-9a-f]{64}$"


class NewUpload(BaseModel):
    """A run that follows in parts."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": _REQUEST})

    run: Annotated[dict[str, Any], Field(description="The run as its store has it.")]
    digest: Annotated[str, Field(pattern=_HEX, description="BLAKE2b over the run and its cases in order.")]
    cases: Annotated[int, Field(ge=0, le=MAX_CASES, description="Number of cases that follow.")]
    size: Annotated[int, Field(ge=0, le=MAX_NUMBER, description="Bytes of all parts.")]


@router.put("/{run_id}", responses=document_responses(RunUpload, errors=(400, 404, 409, 413), example=_STATE))
@requires(KeyScope.RUN)
def begin_upload(run_id: RunId, body: NewUpload, request: Request) -> Response:
    """Begin to upload a run of another store, or continue: the response has the number of cases received so far.

    A run that is complete is not stored again; another one with its id is a conflict. `gradeline push` and
    `Client.upload_run` send these requests. Suites, and values of secrets that this service has, are not stored.
    """
    wanted = UploadRequest(body.run, body.digest, body.cases, body.size)
    record = recorder_of(request, "evaluation.upload")
    return success(service_of(request).uploads.begin(run_id, wanted, caller_of(request).key_id, record))


@router.put(
    "/{run_id}/cases",
    responses=document_responses(RunUpload, errors=(400, 404, 409, 413, 415), example=_STATE),
    openapi_extra=_BODY,
)
@requires(KeyScope.RUN)
async def upload_cases(
    run_id: RunId,
    request: Request,
    start: Annotated[int, Query(ge=0, le=MAX_CASES, description="Number of its first case, from 0.", examples=[0])],
    digest: Annotated[str, Query(pattern=_HEX, description="As at the beginning.", examples=[_DIGEST])],
) -> Response:
    """Upload the next part of a run: its cases as JSON Lines, each with its responses, grades and labels.

    A part is stored as a whole or not at all, and one that was stored before changes nothing. After the last one, the
    run is complete if its digest is right; otherwise it is removed.
    """
    _check_body_type(request)
    with SpooledTemporaryFile(_SPOOLED) as file:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > MAX_PART:
                raise _too_large()
            file.write(chunk)
        file.seek(0)
        uploads = service_of(request).uploads

        def add() -> RunUpload:
            return uploads.add(run_id, digest, start, file.read())

        return success(await to_thread.run_sync(add, limiter=request.app.state.import_threads))


@router.get("/{run_id}", responses=document_responses(RunCopy, errors=(400, 404, 409), example=_COPY))
@requires(KeyScope.READ)
def copy_run(
    run_id: RunId,
    request: Request,
    cursor: Annotated[str | None, Query(description="The `next_cursor` of the previous page.")] = None,
) -> Response:
    """Get a page of an evaluation that has ended, for a copy of it in another store.

    `gradeline run --baseline URL#NAME` makes such a copy. A page has about a megabyte, and at least one case.
    """
    return success(service_of(request).uploads.page(run_id, cursor))


def _check_body_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != LINES_TYPE:
        shown = quote(kind, 80) if kind else "nothing"
        raise ServiceError(Code.UNSUPPORTED_MEDIA_TYPE, f"Content-Type: send the cases as {LINES_TYPE}, not as {shown}")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise ServiceError(Code.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding: send the cases uncompressed")


def _too_large() -> ServiceError:
    message = (
        f"The part is larger than {MAX_PART:,} bytes; send fewer cases at once, at most {MAX_PART_CASES:,}."
        " A single case of this size cannot be uploaded"
    )
    return ServiceError(Code.PAYLOAD_TOO_LARGE, message)

"""Evaluations over REST: start, follow, cancel, resume, regrade and delete runs, and try agents."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gradeline.rest_types import Evaluation, EvaluationPage, TrialResult
from gradeline.service.auth import KeyScope, requires
from gradeline.service.errors import Code, ServiceError
from gradeline.service.evaluations import Evaluations, RunStorage
from gradeline.service.events import EventBroker, RunEvent
from gradeline.service.limits import EventStreams, address_of
from gradeline.service.openapi import document_responses
from gradeline.service.requests import MAX_KEY_CHARS, MAX_NUMBER, PageRequest, require_clean
from gradeline.service.responses import nothing, success
from gradeline.service.run_list import RunFilter, parse_time
from gradeline.service.service import caller_of, recorder_of, run_in_trial_pool, service_of
from gradeline.service.suite_builder import EvaluationRequest
from gradeline.service.test_cases import MAX_TEXT
from gradeline.service.trials import MAX_TRIAL_S, TrialRequest

router = APIRouter(prefix="/api/evaluations", tags=["evaluations"])

MAX_CASES = 100_000
MAX_GRADERS = 100
MAX_NAME = 200
MAX_LIMIT = 500

Status = Literal["pending", "running", "completed", "failed", "cancelled", "interrupted"]

_ID = "5f0c2f4e3b1a"
_CASE = "1c7c9c0e-2f5a-4f0e-9a70-6c1f6f0b9d55"
_REQUEST: dict[str, Any] = {
    "name": "Capitals",
    "test_case_ids": [_CASE],
    "agent_endpoint_url": "http://127.0.0.1:9000/evaluate",
    "grader_ids": ["string_match"],
    "timeout_s": 30,
}
_RUN: dict[str, Any] = {
    "id": _ID,
    "name": "Capitals",
    "status": "pending",
    "agent_endpoint_url": "http://127.0.0.1:9000/evaluate",
    "target": {"kind": "http", "url": "http://127.0.0.1:9000/evaluate", "timeout": 30.0},
    "test_case_ids": [_CASE],
    "tag": None,
    "grader_ids": ["string_match"],
    "repeats": 1,
    "concurrency": None,
    "timeout_s": 30.0,
    "baseline_id": None,
    "stop_early": False,
    "stopped": None,
    "calls_saved": 0,
    "warnings": [],
    "started_at": "2026-01-15T09:30:00Z",
    "completed_at": None,
    "result_count": 0,
    "error_message": None,
    "group": None,
    "parent": None,
    "baselines": [],
    "progress": {"total": 1, "answered": 0, "graded": 0, "errors": 0},
    "verdict": None,
    "comparison": None,
}


_LISTED = {key: value for key, value in _RUN.items() if key not in ("progress", "verdict", "comparison")}
_STORAGE = RunStorage(400, 81_920)
_RATES = {"string_match": {"value": 0.9, "low": 0.826, "high": 0.945, "scored": 100, "total": 100}}
_PAGE = {
    "evaluations": [{**_LISTED, "test_case_ids": None, "pass_rates": _RATES}],
    "count": 1,
    "total": 1,
    "next_cursor": None,
}


class GraderChoice(BaseModel):
    """A grader with its own options; `name` distinguishes two uses of one grader."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: str
    config: dict[str, Any] | None = None
    name: Annotated[str | None, Field(min_length=1, max_length=MAX_NAME)] = None


def _discriminator(entry: object) -> str:
    return "id" if isinstance(entry, str) else "grader"


GraderIds = Annotated[
    list[
        Annotated[
            Annotated[str, Tag("id")] | Annotated[GraderChoice, Tag("grader")],
            Discriminator(_discriminator),
        ]
    ],
    Field(min_length=1, max_length=MAX_GRADERS, description="Ids of graders, or objects `{id, config, name}`."),
]


class NewEvaluation(BaseModel):
    """Either a whole `suite`, or cases, an agent and graders."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": _REQUEST})

    name: Annotated[str | None, Field(min_length=1, max_length=MAX_NAME)] = None
    suite: Annotated[
        dict[str, Any] | None,
        Field(description="A suite as an object, with its cases in `dataset`, or `{tag: NAME}` there."),
    ] = None
    test_case_ids: Annotated[list[str] | None, Field(min_length=1, max_length=MAX_CASES)] = None
    tag: Annotated[str | None, Field(min_length=1, max_length=50, description="Use all test cases with this tag.")] = (
        None
    )
    agent_endpoint_url: Annotated[
        str | None,
        Field(min_length=1, max_length=2048, description='The URL of the agent, called with `POST {"input": …}`.'),
    ] = None
    target: Annotated[
        dict[str, Any] | None, Field(description="Any target of the suite format that the operator allows.")
    ] = None
    grader_ids: GraderIds | None = None
    repeats: Annotated[int | None, Field(ge=1, le=100, description="Number of calls for each case (default 1).")] = None
    concurrency: Annotated[
        int | None, Field(ge=1, description="Maximum calls in flight; the operator sets the upper limit (default 200).")
    ] = None
    timeout_s: Annotated[
        float | None, Field(gt=0, le=3600, description="Timeout of a call in seconds (default 30).")
    ] = None
    baseline_id: Annotated[
        str | None,
        Field(description="The run with which the finished run is compared: its id, or the name of a baseline."),
    ] = None
    stop_early: Annotated[
        bool,
        Field(description="Run the cases in random order, and stop as soon as the comparison is decided."),
    ] = False

    def to_request(self) -> EvaluationRequest:
        """The request, validated further."""
        for name, value in self:
            require_clean(_plain(value) if isinstance(value, list) else value, name)
        if self.name is not None and not self.name.strip():
            raise ServiceError(Code.INVALID_INPUT, "Field 'name' must not be blank")
        return msgspec.convert(self.model_dump(exclude_unset=True), EvaluationRequest)


class Resume(BaseModel):
    """Options for resuming a run."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"all": True}})

    all: Annotated[bool, Field(description="Include the cases that early stopping skipped.")] = False


_RESUME = Resume()


class Regrade(BaseModel):
    """The graders for regrading the responses of a run."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": {"grader_ids": ["contains"]}})

    grader_ids: GraderIds
    name: Annotated[str | None, Field(min_length=1, max_length=MAX_NAME)] = None


@router.post(
    "",
    status_code=201,
    responses=document_responses(Evaluation, 201, (400, 403, 409, 422, 429), example=_RUN),
)
@requires(KeyScope.RUN)
def start_evaluation(
    request: Request,
    body: NewEvaluation,
    idempotency_key: Annotated[str | None, Header(alias="Idempotency-Key", max_length=MAX_KEY_CHARS)] = None,
) -> Response:
    """Start a run and return at once; the run continues in the background, also after a restart of the service.

    With an `Idempotency-Key` the same request can be sent again without starting a second run: the response is then the
    first run, with the header `Idempotent-Replayed: true`.
    """
    record = recorder_of(request, "evaluation.start")
    run, replayed = _evaluations(request).start(body.to_request(), caller_of(request), idempotency_key, record)
    return success(run, 201, {"Idempotent-Replayed": "true"} if replayed else {})


@router.get("", responses=document_responses(EvaluationPage, errors=(400,), example=_PAGE))
@requires(KeyScope.READ)
def list_evaluations(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 50,
    skip: Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The `next_cursor` of the previous page.")] = None,
    status: Annotated[Status | None, Query()] = None,
    from_: Annotated[str | None, Query(alias="from", description="Created at this time or later (ISO 8601).")] = None,
    to: Annotated[str | None, Query(description="Created before this time (ISO 8601).")] = None,
    tag: Annotated[str | None, Query(max_length=50, description="The tag by which the cases were chosen.")] = None,
    q: Annotated[str | None, Query(max_length=1000, description="Part of the name, in any case.")] = None,
) -> Response:
    """List all runs, newest first, including those of the command line."""
    require_clean([tag, q], "q")
    wanted = RunFilter(
        status,
        None if from_ is None else parse_time(from_, "from"),
        None if to is None else parse_time(to, "to"),
        tag or None,
        q or None,
    )
    page = PageRequest.of(limit, skip, cursor, max_limit=MAX_LIMIT)
    return success(_evaluations(request).page(page, wanted))


@router.get("/{evaluation_id}", responses=document_responses(Evaluation, errors=(404,), example=_RUN))
@requires(KeyScope.READ)
def get_evaluation(request: Request, evaluation_id: str) -> Response:
    """Get a run with its progress."""
    return success(_evaluations(request).get(evaluation_id))


@router.get("/{evaluation_id}/storage", responses=document_responses(RunStorage, errors=(404,), example=_STORAGE))
@requires(KeyScope.READ)
def get_evaluation_storage(request: Request, evaluation_id: str) -> Response:
    """Estimate the size of a run in the store. Reads all rows of the run."""
    return success(_evaluations(request).storage(evaluation_id))


@router.get(
    "/{evaluation_id}/suite",
    responses=document_responses(
        {"type": "string"}, errors=(404,), content_type="application/yaml", example="name: Capitals\n"
    ),
)
@requires(KeyScope.READ)
def get_evaluation_suite(request: Request, evaluation_id: str) -> Response:
    """Get the suite of a run as YAML with its cases, for `gradeline run FILE`. Secrets are replaced by `${NAME}`."""
    text = _evaluations(request).suite(evaluation_id)
    headers = {"Content-Disposition": 'attachment; filename="suite.yaml"'}
    return Response(text.encode(), 200, headers, "application/yaml")


@router.post(
    "/{evaluation_id}/cancel",
    status_code=202,
    responses=document_responses(Evaluation, 202, (404, 409), example=_RUN),
)
@requires(KeyScope.RUN)
def cancel_evaluation(request: Request, evaluation_id: str) -> Response:
    """Cancel a run. Calls in flight are finished first, within seconds."""
    return success(_evaluations(request).cancel(evaluation_id, recorder_of(request, "evaluation.cancel")), 202)


@router.post(
    "/{evaluation_id}/resume",
    status_code=202,
    responses=document_responses(Evaluation, 202, (400, 404, 409, 429), example=_RUN),
)
@requires(KeyScope.RUN)
def resume_evaluation(request: Request, evaluation_id: str, body: Resume = _RESUME) -> Response:
    """Resume a run that was cancelled or failed: missing responses and grades are added.

    With `{"all": true}` also a run that ended early: the skipped cases are run, and the verdict over all cases replaces
    that of the last interim look.
    """
    record = recorder_of(request, "evaluation.resume")
    run = _evaluations(request).resume(evaluation_id, caller_of(request), record, all_cases=body.all)
    return success(run, 202)


@router.post(
    "/{evaluation_id}/retry-failed",
    status_code=202,
    responses=document_responses(Evaluation, 202, (404, 409, 429), example=_RUN),
)
@requires(KeyScope.RUN)
def retry_failed_results(request: Request, evaluation_id: str) -> Response:
    """Repeat failed calls of the agent and failed grades. Ids of results do not change."""
    record = recorder_of(request, "evaluation.retry_failed")
    return success(_evaluations(request).retry_failed(evaluation_id, caller_of(request), record), 202)


@router.post(
    "/{evaluation_id}/regrade",
    status_code=201,
    responses=document_responses(Evaluation, 201, (400, 404, 409, 429), example={**_RUN, "parent": _ID}),
)
@requires(KeyScope.RUN)
def regrade_evaluation(request: Request, evaluation_id: str, body: Regrade) -> Response:
    """Grade the responses of a run with other graders, as a new run. The agent is not called."""
    entries = _plain(body.grader_ids)
    require_clean([entries, body.name], "grader_ids")
    record = recorder_of(request, "evaluation.regrade")
    run = _evaluations(request).regrade(evaluation_id, entries, caller_of(request), body.name, record)
    return success(run, 201)


@router.delete("/{evaluation_id}", status_code=204, responses=document_responses(None, 204, (404, 409)))
@requires(KeyScope.ADMIN)
def delete_evaluation(request: Request, evaluation_id: str) -> Response:
    """Delete a run with all its results, permanently."""
    _evaluations(request).delete(evaluation_id, recorder_of(request, "evaluation.delete"))
    return nothing()


def _plain(entries: list[Any]) -> list[Any]:
    return [one.model_dump(exclude_unset=True) if isinstance(one, GraderChoice) else one for one in entries]


def _evaluations(request: Request) -> Evaluations:
    found: Evaluations = service_of(request).evaluations
    return found


trials_router = APIRouter(prefix="/api/evaluations", tags=["evaluations"])

_URL = "http://127.0.0.1:9000/evaluate"
_TRY_BODY: dict[str, Any] = {"agent_endpoint_url": _URL, "input": "What is the capital of France?", "timeout_s": 10}
_TRY_RESULT: dict[str, Any] = {
    "response_status": "success",
    "agent_response": "Paris",
    "agent_response_truncated": False,
    "tool_calls": None,
    "tool_calls_omitted": 0,
    "usage": None,
    "response_latency_ms": 12.5,
    "error_type": None,
    "error_message": None,
    "timeout_s": 10.0,
    "exchanges": [
        {
            "request": {
                "method": "POST",
                "url": _URL,
                "headers": {"User-Agent": "gradeline", "Content-Type": "application/json", "Authorization": "***"},
                "body": '{"input": "What is the capital of France?"}',
                "body_truncated": False,
            },
            "answer": {
                "status": 200,
                "headers": {"Content-Type": "application/json"},
                "body": '{"response": "Paris"}',
                "body_truncated": False,
            },
        }
    ],
    "exchanges_omitted": 0,
}


class TryAgent(BaseModel):
    """An agent, as in an evaluation, and one case: an input, or a stored test case."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": _TRY_BODY})

    agent_endpoint_url: Annotated[
        str | None,
        Field(min_length=1, max_length=2048, description='The URL of the agent, called with `POST {"input": …}`.'),
    ] = None
    target: Annotated[
        dict[str, Any] | None, Field(description="Any target of the suite format that the operator allows.")
    ] = None
    input: Annotated[str | None, Field(min_length=1, max_length=MAX_TEXT, description="The input for the agent.")] = (
        None
    )
    test_case_id: Annotated[str | None, Field(description="A test case whose input is used instead.")] = None
    timeout_s: Annotated[
        float | None,
        Field(gt=0, le=MAX_TRIAL_S, description="Timeout of the call in seconds; by default that of the target."),
    ] = None

    def to_request(self) -> TrialRequest:
        """The request, validated further."""
        for name, value in self:
            require_clean(value, name)
        if self.input is not None and not self.input.strip():
            raise ServiceError(Code.INVALID_INPUT, "Field 'input' must not be blank")
        return msgspec.convert(self.model_dump(exclude_unset=True), TrialRequest)


@trials_router.post("/try", responses=document_responses(TrialResult, errors=(400, 403, 429), example=_TRY_RESULT))
@requires(KeyScope.RUN)
async def try_agent(request: Request, body: TryAgent) -> Response:
    """Call an agent once; returns the request as sent, the raw response, and what was read from it.

    Only an entry in the audit log is stored. There are no retries, and the maximum is 60 seconds. A failed call is a
    result too: `error_type` and `error_message` are what a run would store. Secrets are masked as `***`.
    """
    service = service_of(request)

    def run() -> TrialResult:
        trial = service.trials.prepare(body.to_request(), caller_of(request))
        service.audit.note(caller_of(request), "evaluation.try", trial.place, {"kind": trial.kind})
        return service.trials.run(trial)

    return success(await run_in_trial_pool(request, run))


events_router = APIRouter(prefix="/api/evaluations", tags=["evaluations"])

_EVENT = 'id: 7\nevent: progress\ndata: {"total":200,"answered":12,"graded":11,"errors":0}\n\n'
_EVENT_RESPONSES = {
    **document_responses({"type": "string"}, errors=(404, 429), content_type="text/event-stream", example=_EVENT),
    204: {"description": "All events were read already and there will be no more, so a browser need not reconnect."},
}


@events_router.get("/{evaluation_id}/events", responses=_EVENT_RESPONSES)
@requires(KeyScope.READ)
async def follow_evaluation(
    request: Request,
    evaluation_id: str,
    last_event_id: Annotated[
        str | None, Header(alias="Last-Event-ID", description="Continue after this event.")
    ] = None,
) -> Response:
    """Follow the events of a run as they occur: `snapshot`, `progress`, `result`, `status` and `done`.

    An id is a position in the log of the run, which exists as long as the run. A stream starts with a snapshot, or
    after `Last-Event-ID` without gap or repetition; it ends after `done`, when the key is revoked or expires, and when
    the session ends. The number of open streams is limited for each key and each address.
    """
    events: EventBroker = service_of(request).events
    if await run_in_threadpool(events.is_over, evaluation_id, last_event_id):
        return nothing()
    streams: EventStreams = request.app.state.streams
    content = _stream(events, evaluation_id, last_event_id)
    return streams.open(content, caller_of(request), address_of(request.scope))


async def _stream(events: EventBroker, run: str, last_id: str | None) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    batches = events.batches(run, last_id)
    async with aclosing(batches):
        async for batch in batches:
            yield b"".join(map(_block, batch)) or b":\n\n"


def _block(event: RunEvent) -> bytes:
    """The event in the format of the stream, with its data as JSON on one line. Without a log the position is 0."""
    id_line = f"id: {event.n}\n" if event.n else ""
    return f"{id_line}event: {event.kind}\ndata: {event.data}\n\n".encode()

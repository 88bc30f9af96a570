"""Asking an agent once over REST."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from gradeline.service.access import Scope, requires
from gradeline.service.clean_tree import require_clean
from gradeline.service.documented import documented
from gradeline.service.envelope import success
from gradeline.service.failures import ApiError, Code
from gradeline.service.state import caller_of, service_of, tried_in_pool
from gradeline.service.test_cases import MAX_TEXT
from gradeline.service.trial_shapes import Tried
from gradeline.service.trials import MOST_S, TryAsked

router = APIRouter(prefix="/api/evaluations", tags=["evaluations"])

_URL = "http://127.0.0.1:9000/evaluate"
_ASKED: dict[str, Any] = {"agent_endpoint_url": _URL, "input": "What is the capital of France?", "timeout_s": 10}
_TRIED: dict[str, Any] = {
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
    """An agent as an evaluation has it, and one case: a text, or a stored test case."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"example": _ASKED})

    agent_endpoint_url: Annotated[
        str | None, Field(min_length=1, max_length=2048, description='Is sent `POST {"input": …}`.')
    ] = None
    target: Annotated[
        dict[str, Any] | None, Field(description="Any target of the suite format that the operator allows.")
    ] = None
    input: Annotated[str | None, Field(min_length=1, max_length=MAX_TEXT, description="What the agent is asked.")] = (
        None
    )
    test_case_id: Annotated[str | None, Field(description="Or the test case whose input it is asked.")] = None
    timeout_s: Annotated[
        float | None, Field(gt=0, le=MOST_S, description="For the call in all; the target's own limit by default.")
    ] = None

    def asked(self) -> TryAsked:
        """The same as the service has it."""
        for name, value in self:
            require_clean(value, name)
        if self.input is not None and not self.input.strip():
            raise ApiError(Code.INVALID_INPUT, "Field 'input' has blanks alone")
        return msgspec.convert(self.model_dump(exclude_unset=True), TryAsked)


@router.post("/try", responses=documented(Tried, errors=(400, 403, 429), example=_TRIED))
@requires(Scope.RUN)
async def try_agent(request: Request, body: TryAgent) -> Response:
    """Ask an agent once and look at it: the request as it was sent, the raw answer, and what was read from it.

    Nothing is stored but an entry in the audit log. The agent is asked once, without retries, and for 60 seconds at
    most. A call that fails is an answer too: `error_type` and `error_message` are what a run would store. Secrets are
    `***` wherever they come back.
    """
    service = service_of(request)

    def ask() -> Tried:
        trial = service.trials.prepared(body.asked(), caller_of(request))
        service.audit.note(caller_of(request), "evaluation.try", trial.place, {"kind": trial.kind})
        return service.trials.ask(trial)

    return success(await tried_in_pool(request, ask))

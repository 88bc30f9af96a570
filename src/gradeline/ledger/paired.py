"""A judge's result as an observation."""

from __future__ import annotations

from datetime import datetime

from gradeline.model.fingerprint import fingerprint
from gradeline.model.llm import GradingResult, LLMAdapter, LLMResponse
from gradeline.model.observation import Observation, new_observation, prompt_key
from gradeline.model.text import clean_text


def observation_of(
    result: GradingResult,
    *,
    task_family: str,
    baseline_adapter: str | LLMAdapter,
    candidate_adapter: str | LLMAdapter,
    grader_fingerprint: str | None = None,
    calibration_state: str = "uncalibrated",
    observed_at: str | datetime | None = None,
    idempotency_key: str | None = None,
    case_key: str | None = None,
    prompt: str | None = None,
) -> Observation:
    """What a `GradingResult` adds to the ledger; cost and latency are those of the candidate's response.

    Adapters are given as they are or by their ids. Where no fingerprint is given, the judge's id stands for it.
    ``case_key`` names the case, or ``prompt``, whose digest then is the key; with neither it is a case of its own.
    """
    candidate = result.candidate_response
    return new_observation(
        task_family=task_family,
        baseline_adapter=_id_of(baseline_adapter),
        candidate_adapter=_id_of(candidate_adapter),
        grader_id=result.grader_id,
        grader_fingerprint=result.grader_id if grader_fingerprint is None else grader_fingerprint,
        score=result.quality_score,
        baseline_digest=response_digest(result.baseline_response),
        candidate_digest=response_digest(candidate),
        cost=None if candidate.usage is None else candidate.usage.cost,
        latency_ms=candidate.latency_ms,
        calibration_state=calibration_state,
        observed_at=observed_at,
        idempotency_key=idempotency_key,
        case_key=prompt_key(prompt) if case_key is None and prompt is not None else case_key,
    )


def response_digest(response: LLMResponse) -> str:
    """A digest of what a model said: its text and the tools it called."""
    texts = [response.content]
    for call in response.tool_calls:
        texts += (call.name, call.arguments)
    return fingerprint("response", [clean_text(text).text for text in texts])


def _id_of(adapter: str | LLMAdapter) -> str:
    return adapter if isinstance(adapter, str) else adapter.adapter_id

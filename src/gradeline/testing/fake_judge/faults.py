"""The ways in which an answer fails to arrive, by name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from gradeline.testing.fake_judge.exchange import Failure

_CONTEXT = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. "
    "Please reduce the length of the messages."
)
_FLAGGED = (
    "Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try again with a"
    " different prompt."
)
_FAILURES = (
    Failure("400-context", 400, _CONTEXT, "messages", "context_length_exceeded"),
    Failure("400-moderation", 400, _FLAGGED, None, "invalid_prompt"),
    Failure("401", 401, "Incorrect API key provided.", None, "invalid_api_key"),
    Failure("403", 403, "You are not allowed to use this model.", None, None),
    Failure("403-moderation", 403, "Your chosen model requires moderation and your input was flagged.", None, None),
    Failure("404", 404, "The model does not exist or you do not have access to it.", "model", "model_not_found"),
    Failure("429", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    Failure("429-date", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    Failure("429-bare", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    Failure("429-absurd", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    Failure("429-quota", 429, "You exceeded your current quota, please check your plan.", None, "insufficient_quota"),
    Failure("500", 500, "The server had an error while processing your request.", None, "internal_error"),
    Failure("502", 502, "Bad Gateway", None, None),
    Failure("503", 503, "The engine is currently overloaded, please try again later.", None, "unavailable"),
    Failure("504", 504, "The request took too long.", None, None),
    Failure("529", 529, "Overloaded", None, "overloaded"),
)
FAILURES: Mapping[str, Failure] = {failure.name: failure for failure in _FAILURES}
"""Answers that are errors; 502 is a proxy's page of HTML."""

CONNECTION_FAULTS: Mapping[str, str] = {
    "reset": "a TCP reset instead of an answer",
    "close": "the connection closed without an answer",
    "hang": "no answer until the client gives up",
}
DELIVERY_FAULTS: Mapping[str, str] = {
    "slow-start": "the answer after `delay_s`; it was given, whether the client is still there or not",
    "slow-stream": "`delay_s` before each event, or each piece of a body",
    "stall": "half the answer, then silence until the client gives up",
    "cut": "half the answer, then a closed connection",
    "keep-alive": "comments between the events",
    "split": "pieces of a few bytes, amid lines and characters",
    "no-done": "a stream without the event that ends it",
    "error-in-stream": "half the events, then an error",
}
FAULTS: tuple[str, ...] = (*FAILURES, *CONNECTION_FAULTS, *DELIVERY_FAULTS)


def waits(name: str, seconds: float) -> dict[str, str]:
    """The headers with which a 429 says when to come back."""
    match name:
        case "429":
            return {"Retry-After": f"{seconds:g}"}
        case "429-date":
            return {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)}
        case "429-absurd":
            return {"Retry-After": "1000000000"}
        case _:
            return {}

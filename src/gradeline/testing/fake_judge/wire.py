"""What the wire formats have in common: requests, replies, errors, and the faults of a connection."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

Data = dict[str, Any]
T = TypeVar("T")
FinishReason = Literal["stop", "length", "filter", "refusal"]

CREATED = 1_767_225_600
"""The creation time of every reply: constant, so that the same request gets the same bytes."""


class RequestTool(NamedTuple):
    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """A request to the judge, whatever its wire format."""

    model: str
    text: str
    """All its messages, joined."""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    choices: int = 1
    top_logprobs: int | None = None
    """The number of alternatives for each token; None: no log-probabilities."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema of the reply."""
    tools: tuple[RequestTool, ...] = ()
    forced_tool: RequestTool | None = None
    """The tool that must be called."""
    stream: bool = False
    stream_usage: bool = True
    used: Mapping[str, str] = field(default_factory=dict)
    """The parameters in use that some models do not support: the common name, and the one in this format."""


class ReplyToken(NamedTuple):
    """A piece of a reply."""

    text: str
    logprob: float = 0.0
    alternatives: tuple[tuple[str, float], ...] = ()
    """Other tokens at this position with their log-probabilities, the likeliest first."""

    def top(self, count: int) -> tuple[tuple[str, float], ...]:
        return (self.alternatives or ((self.text, self.logprob),))[:count]


class ReplyToolCall(NamedTuple):
    """A tool call; ``arguments`` is JSON, possibly malformed on purpose."""

    name: str
    arguments: str

    def object(self) -> dict[str, Any]:
        """The arguments for formats that send an object; empty where they are malformed."""
        try:
            arguments = json.loads(self.arguments)
        except ValueError:
            return {}
        return arguments if isinstance(arguments, dict) else {}


class ReplyChoice(NamedTuple):
    """One choice of a response."""

    text: str | None
    finish: FinishReason = "stop"
    refusal: str | None = None
    call: ReplyToolCall | None = None
    tokens: tuple[ReplyToken, ...] = ()
    """The tokens of the text, or of the tool call's arguments."""


class TokenCounts(NamedTuple):
    prompt: int
    cached: int
    completion: int


class JudgeResponse(NamedTuple):
    """A response with all its choices, whatever its wire format."""

    id: str
    model: str
    fingerprint: str
    replies: tuple[ReplyChoice, ...]
    usage: TokenCounts | None


class ApiFailure(NamedTuple):
    """An error response."""

    name: str
    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = {}


class RequestRejectedError(Exception):
    """A request is answered with an error response."""

    def __init__(self, failure: ApiFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def bad_request(message: str, param: str | None = None) -> RequestRejectedError:
    return RequestRejectedError(ApiFailure("400", 400, message, param, None))


class RawRequest(NamedTuple):
    """An HTTP request as received; header names are in lower case."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class StreamedReply(NamedTuple):
    """A streamed response: its events, and those that say that it is whole."""

    events: tuple[bytes, ...]
    end: tuple[bytes, ...]


class WireFormat(Protocol):
    """A provider's wire format."""

    def key(self, received: RawRequest) -> str | None:
        """The API key of a request."""

    def read(self, received: RawRequest) -> JudgeRequest:
        """Parse a request; `RequestRejectedError` where the provider would reject it."""

    def whole(self, request: JudgeRequest, response: JudgeResponse) -> bytes:
        """The body of a response."""

    def stream(self, request: JudgeRequest, response: JudgeResponse) -> StreamedReply:
        """The response as events."""

    def failure(self, failure: ApiFailure) -> bytes:
        """The body of an error."""

    def stream_failure(self) -> bytes:
        """The event for an error within a stream."""


class WirePart(msgspec.Struct):
    type: str = "text"
    text: str = ""


class WireMessage(msgspec.Struct):
    role: str = "user"
    content: str | list[WirePart] | None = None

    def text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


def decoded(body: bytes, kind: type[T]) -> T:
    """A request's body; a provider's 400 error where it is invalid."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise bad_request(f"We could not parse the JSON body of your request: {error}") from error


def event(data: Data, name: str | None = None) -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def encoded(data: Data) -> bytes:
    return json.dumps(data, ensure_ascii=False).encode()


def bearer(received: RawRequest) -> str | None:
    kind, _, key = received.headers.get("authorization", "").partition(" ")
    return key if kind.lower() == "bearer" else None


def used_parameters(**values: tuple[str, object]) -> dict[str, str]:
    """The parameters that a request sets: from the name in this format and the value, by common name."""
    return {common: name for common, (name, value) in values.items() if value is not None}


def stream_chunks(tokens: tuple[ReplyToken, ...], max_chunks: int = 40) -> list[tuple[ReplyToken, ...]]:
    """The tokens in chunks, as a stream delivers them: one by one unless there are too many."""
    size = max(1, -(-len(tokens) // max_chunks))
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]


def joined_text(chunk: tuple[ReplyToken, ...]) -> str:
    return "".join(token.text for token in chunk)


_CONTEXT = (
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. "
    "Please reduce the length of the messages."
)
_FLAGGED = (
    "Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try again with a"
    " different prompt."
)
_FAILURES = (
    ApiFailure("400-context", 400, _CONTEXT, "messages", "context_length_exceeded"),
    ApiFailure("400-moderation", 400, _FLAGGED, None, "invalid_prompt"),
    ApiFailure("401", 401, "Incorrect API key provided.", None, "invalid_api_key"),
    ApiFailure("403", 403, "You are not allowed to use this model.", None, None),
    ApiFailure("403-moderation", 403, "Your chosen model requires moderation and your input was flagged.", None, None),
    ApiFailure("404", 404, "The model does not exist or you do not have access to it.", "model", "model_not_found"),
    ApiFailure("429", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    ApiFailure("429-date", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    ApiFailure("429-bare", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    ApiFailure("429-absurd", 429, "Rate limit reached for requests.", None, "rate_limit_exceeded"),
    ApiFailure(
        "429-quota", 429, "You exceeded your current quota, please check your plan.", None, "insufficient_quota"
    ),
    ApiFailure("500", 500, "The server had an error while processing your request.", None, "internal_error"),
    ApiFailure("502", 502, "Bad Gateway", None, None),
    ApiFailure("503", 503, "The engine is currently overloaded, please try again later.", None, "unavailable"),
    ApiFailure("504", 504, "The request took too long.", None, None),
    ApiFailure("529", 529, "Overloaded", None, "overloaded"),
)
FAILURES: Mapping[str, ApiFailure] = {failure.name: failure for failure in _FAILURES}
"""Error responses by name; 502 is sent as a proxy's HTML page."""

CONNECTION_FAULTS: Mapping[str, str] = {
    "reset": "a TCP reset instead of a response",
    "close": "the connection is closed without a response",
    "hang": "no response until the client gives up",
}
DELIVERY_FAULTS: Mapping[str, str] = {
    "slow-start": "the response after `delay_s`; it counts as sent, even if the client has gone",
    "slow-stream": "`delay_s` before each event, or each piece of a body",
    "stall": "half the response, then nothing until the client gives up",
    "cut": "half the response, then a closed connection",
    "keep-alive": "comments between the events",
    "split": "pieces of a few bytes, split within lines and characters",
    "no-done": "a stream without the event that ends it",
    "error-in-stream": "half the events, then an error",
}
FAULTS: tuple[str, ...] = (*FAILURES, *CONNECTION_FAULTS, *DELIVERY_FAULTS)


def retry_after_headers(name: str, seconds: float) -> dict[str, str]:
    """The headers of a 429 that say when to retry."""
    match name:
        case "429":
            return {"Retry-After": f"{seconds:g}"}
        case "429-date":
            return {"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)}
        case "429-absurd":
            return {"Retry-After": "1000000000"}
        case _:
            return {}

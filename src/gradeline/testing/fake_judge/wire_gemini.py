"""Gemini's ``generateContent`` and ``streamGenerateContent``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from gradeline.testing.fake_judge.wire import (
    ApiFailure,
    Data,
    JudgeRequest,
    JudgeResponse,
    RawRequest,
    ReplyChoice,
    ReplyToken,
    RequestTool,
    StreamedReply,
    TokenCounts,
    bad_request,
    decoded,
    encoded,
    event,
    joined_text,
    stream_chunks,
    used_parameters,
)

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_MESSAGES = {"400-context": "The input token count (9001) exceeds the maximum number of tokens allowed (8192)."}
_MODEL = re.compile(r".*?/v1(?:beta)?/(?:models/)?(?P<model>.+):\w+")
_FINISHES = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY", "refusal": "PROHIBITED_CONTENT"}


class GeminiPart(msgspec.Struct):
    text: str = ""


class GeminiContent(msgspec.Struct):
    parts: list[GeminiPart] = []
    role: str = "user"


class GeminiFunction(msgspec.Struct):
    name: str
    parameters: Data | None = None
    json_schema: Data | None = msgspec.field(default=None, name="parametersJsonSchema")
    json_schema_snake: Data | None = msgspec.field(default=None, name="parameters_json_schema")

    def tool(self) -> RequestTool:
        return RequestTool(self.name, self.json_schema or self.json_schema_snake or self.parameters or {})


class GeminiTools(msgspec.Struct, rename="camel"):
    function_declarations: list[GeminiFunction] = []


class GeminiCallingConfig(msgspec.Struct, rename="camel"):
    mode: str = "AUTO"
    allowed_function_names: list[str] | None = None


class GeminiToolConfig(msgspec.Struct, rename="camel"):
    function_calling_config: GeminiCallingConfig = msgspec.field(default_factory=GeminiCallingConfig)


class GeminiGenerationConfig(msgspec.Struct, rename="camel"):
    temperature: float | None = None
    candidate_count: int | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    response_logprobs: bool | None = None
    logprobs: int | None = None
    response_mime_type: str | None = None
    response_schema: Data | None = None
    response_json_schema: Data | None = None

    def used(self) -> dict[str, str]:
        return used_parameters(
            logprobs=("responseLogprobs", self.response_logprobs),
            max_tokens=("maxOutputTokens", self.max_output_tokens),
            n=("candidateCount", self.candidate_count),
            response_format=("responseMimeType", self.response_mime_type),
            seed=("seed", self.seed),
            temperature=("temperature", self.temperature),
        )


class GeminiRequest(msgspec.Struct, rename="camel"):
    contents: list[GeminiContent]
    system_instruction: GeminiContent | None = None
    generation_config: GeminiGenerationConfig = msgspec.field(default_factory=GeminiGenerationConfig)
    tools: list[GeminiTools] = []
    tool_config: GeminiToolConfig = msgspec.field(default_factory=GeminiToolConfig)

    def text(self) -> str:
        system = [self.system_instruction] if self.system_instruction else []
        return "\n\n".join("\n".join(part.text for part in one.parts) for one in [*system, *self.contents])


class GenerateContent:
    """``POST /v1beta/models/{model}:generateContent``, and ``:streamGenerateContent?alt=sse``."""

    def __init__(self, method: Literal["generateContent", "streamGenerateContent"]) -> None:
        self._streams = method == "streamGenerateContent"

    def key(self, received: RawRequest) -> str | None:
        return received.headers.get("x-goog-api-key") or received.query.get("key")

    def read(self, received: RawRequest) -> JudgeRequest:
        request = decoded(received.body, GeminiRequest)
        if self._streams and received.query.get("alt") != "sse":
            raise bad_request("This server streams only with alt=sse.", "alt")
        config, calling = request.generation_config, request.tool_config.function_calling_config
        tools = tuple(function.tool() for tool in request.tools for function in tool.function_declarations)
        allowed = calling.allowed_function_names
        used = config.used() | ({"tools": "tools"} if tools else {}) | ({"stream": "stream"} if self._streams else {})
        return JudgeRequest(
            model=_model(received.path),
            text=request.text(),
            max_tokens=config.max_output_tokens,
            temperature=config.temperature,
            seed=config.seed,
            choices=config.candidate_count or 1,
            top_logprobs=(config.logprobs or 0) if config.response_logprobs else None,
            schema=config.response_json_schema or config.response_schema,
            tools=tools,
            forced_tool=next(
                (tool for tool in tools if calling.mode == "ANY" and (not allowed or tool.name in allowed)), None
            ),
            stream=self._streams,
            used=used,
        )

    def whole(self, request: JudgeRequest, response: JudgeResponse) -> bytes:
        candidates = [
            {
                **_candidate(number, reply, _parts(reply)),
                **_logprobs(request, reply.tokens),
                "finishReason": _finish(reply),
            }
            for number, reply in enumerate(response.replies)
            if reply.finish != "refusal"
        ]
        return encoded(_response(response, candidates, last=True))

    def stream(self, request: JudgeRequest, response: JudgeResponse) -> StreamedReply:
        events = [event(data) for data in _chunks(request, response)]
        return StreamedReply(tuple(events[:-1]), (events[-1],))

    def failure(self, failure: ApiFailure) -> bytes:
        message = _MESSAGES.get(failure.name, failure.message)
        error: Data = {
            "code": failure.status,
            "message": message,
            "status": _STATUSES.get(failure.status, "INTERNAL"),
            "details": [],
        }
        if "Retry-After" in failure.headers and failure.headers["Retry-After"].isdigit():
            delay = f"{failure.headers['Retry-After']}s"
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay}]
        if failure.name == "429-quota":
            violations = [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]
            error["details"] = [{"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": violations}]
        return encoded({"error": error})

    def stream_failure(self) -> bytes:
        return event({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}})


def _model(path: str) -> str:
    found = _MODEL.fullmatch(path)
    return found["model"] if found else ""


def _finish(reply: ReplyChoice) -> str:
    return _FINISHES[reply.finish]


def _parts(reply: ReplyChoice) -> list[Data]:
    if reply.call:
        return [{"functionCall": {"name": reply.call.name, "args": reply.call.object()}}]
    return [] if reply.text is None else [{"text": reply.text}]


def _candidate(number: int, reply: ReplyChoice, parts: list[Data]) -> Data:
    content = {"content": {"parts": parts, "role": "model"}} if parts else {}
    return {"index": number, **content, **({"safetyRatings": []} if reply.finish == "filter" else {})}


def _logprobs(request: JudgeRequest, tokens: tuple[ReplyToken, ...]) -> Data:
    if request.top_logprobs is None or not tokens:
        return {}
    count = request.top_logprobs
    chosen = [{"token": token.text, "logProbability": token.logprob} for token in tokens]
    top = [
        {"candidates": [{"token": text, "logProbability": value} for text, value in token.top(count)]}
        for token in tokens
    ]
    mean = sum(token.logprob for token in tokens) / len(tokens)
    return {"avgLogprobs": mean, "logprobsResult": {"chosenCandidates": chosen, "topCandidates": top}}


def _response(response: JudgeResponse, candidates: list[Data], *, last: bool) -> Data:
    data: Data = {"candidates": candidates} if candidates else {}
    if any(reply.finish == "refusal" for reply in response.replies):
        data["promptFeedback"] = {"blockReason": "PROHIBITED_CONTENT"}
    if response.usage:
        data["usageMetadata"] = _usage(response.usage, last=last)
    return {**data, "modelVersion": response.model, "responseId": response.id}


def _chunks(request: JudgeRequest, response: JudgeResponse) -> Iterator[Data]:
    """The text in chunks; the ends of all candidates come last."""
    endings = []
    for number, reply in enumerate(response.replies):
        if reply.finish == "refusal":
            continue
        chunks = [()] if reply.call else stream_chunks(reply.tokens)
        for chunk in chunks:
            parts = _parts(reply) if reply.call else [{"text": joined_text(chunk)}]
            yield _response(response, [{**_candidate(number, reply, parts), **_logprobs(request, chunk)}], last=False)
        endings.append({**_candidate(number, reply, []), "finishReason": _finish(reply)})
    yield _response(response, endings, last=True)


def _usage(usage: TokenCounts, *, last: bool) -> Data:
    counts = {"promptTokenCount": usage.prompt, "cachedContentTokenCount": usage.cached}
    if not last:
        return {**counts, "totalTokenCount": usage.prompt}
    return {**counts, "candidatesTokenCount": usage.completion, "totalTokenCount": usage.prompt + usage.completion}

"""Failed model calls: provider errors in one shape, and which of them affect every call.

A wrong key (401) or an exhausted account refuses every call. A 403 or an unknown model may concern the caller or one
request: a call that succeeded shows which. Until one did, `ProviderAccess` waits for the calls in flight before it
decides, and sends no further call meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from gradeline.errors import AgentError, GradelineError, response_policy
from gradeline.model.text import quote

QUOTA = "quota"
"""The error type of an exhausted account: no later attempt fixes that."""

Obstacle = Literal["key", "model", "quota"]
"""What makes every call fail until the user fixes it."""

_USED_UP = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "enforced_spend_limit_reached",
        "QUOTA_EXHAUSTED",
    }
)
_USED_UP_WORDS = re.compile(
    r"your?\b[^.\n]{0,60}?\b"
    r"(?:credit balance is too low|specified (?:\w+ )?API usage limits|credits are depleted|spending cap)",
    re.IGNORECASE,
)
"""Anthropic reports an empty account and a spend limit as a plain bad request, Gemini as any other 429. Only the start
of a message counts: further on it may quote the prompt."""
_DAILY_QUOTA = re.compile(r"PerDay")
"""Gemini reports per-minute limits, which pass soon, in the same words as per-day limits."""
_BAD_KEY = frozenset({"API_KEY_INVALID", "API_KEY_SERVICE_BLOCKED", "invalid_api_key"})
_NO_MODEL = frozenset({"model_not_found", "model_not_available", "invalid_model"})
_NO_MODEL_WORDS = re.compile(r"not a valid model|invalid model(?: name| id|:)|unknown model", re.IGNORECASE)
_MODERATED = frozenset(
    {
        "content_policy_violation",
        "moderation_blocked",
        "content_filter",
        "invalid_prompt",
        "ResponsibleAIPolicyViolation",
    }
)
"""The codes by which OpenAI and Azure report a prompt that their filters refused, as a 400."""
_FLAGGED = re.compile(r"\b(?:flagged|moderation|content (?:management )?policy|usage policy)\b", re.IGNORECASE)
_TEMPORARY = frozenset({408, 409, 425, 429})
"""4xx statuses after which a retry may succeed."""
_PAYMENT_REQUIRED = 402
_REASONS = frozenset({"reason", "error_code", "quotaId"})
_FIELD = re.compile(r'"(code|status|type|reason|error_code|quotaId)"\s*:\s*"([^"\\]{1,200})"')
_MESSAGE = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.)*+")')
_MAX_DEPTH = 5
_MESSAGE_START = 200
_NEVER_SENT = frozenset({"connect", "dns", "tls", "redirect"})
_MAX_SHOWN = 1000
_IMPLIED_STATUS: Mapping[str, int] = {
    "overloaded_error": 529,
    "overloaded": 529,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "internal": 500,
    "timeout_error": 504,
    "deadline_exceeded": 504,
    "unavailable": 503,
    "service_unavailable": 503,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "content_policy_violation": 400,
    "moderation_blocked": 400,
    "content_filter": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
}
"""The status of an error code that is reported inside a response of status 200."""


class ModelError(AgentError):
    """A failed model call.

    ``type`` is a key of `gradeline.errors.RESPONSE_POLICY`. ``http_status`` is the status of the response, or the one
    implied by an error inside a response of status 200; ``in_response`` marks such an error. ``provider_message``,
    ``code`` and ``param`` are as the provider reported them.
    """

    def __init__(
        self,
        error_type: str,
        message: str,
        *,
        http_status: int | None = None,
        report: ErrorReport | None = None,
        attempts: int = 1,
        in_response: bool = False,
    ) -> None:
        super().__init__(error_type, message)
        self.http_status = http_status
        self.report = report
        self.provider_message = report.message if report else None
        self.code = report.code if report else None
        self.param = report.param if report else None
        self.attempts = attempts
        self.in_response = in_response

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later."""
        return response_policy(self.type, self.http_status).retry

    @property
    def unbilled(self) -> bool:
        """Whether the provider certainly did not charge for the call."""
        refused = self.http_status is not None and 400 <= self.http_status < 500
        return refused or self.type in _NEVER_SENT or self.type == QUOTA

    @property
    def moderated(self) -> bool:
        """Whether a content filter of the provider refused the request."""
        report = self.report or ErrorReport("")
        if self.http_status not in (None, 400, 403, 422):
            return False
        return not _MODERATED.isdisjoint(report.words) or bool(_FLAGGED.search(report.message[:_MESSAGE_START]))

    @property
    def refused(self) -> bool:
        """Whether the provider refused this request, so that a retry would not help."""
        if self.moderated:
            return True
        status = self.http_status
        return self.type != QUOTA and status is not None and 400 <= status < 500 and status not in _TEMPORARY

    @property
    def affects_every_call(self) -> bool:
        """Whether every other call would certainly fail too: a wrong key, an exhausted account."""
        words = self.report.words if self.report else ()
        return self.type == QUOTA or self.http_status == 401 or not _BAD_KEY.isdisjoint(words)

    @property
    def obstacle(self) -> Obstacle | None:
        """What may make every other call fail too (see `affects_every_call`); None if it concerns one request."""
        report = self.report or ErrorReport("")
        if self.type == QUOTA:
            return "quota"
        if self.affects_every_call:
            return "key"
        if self.moderated:
            return None
        if self.http_status == 403:
            return "key"
        refused_model = report.param == "model" or not _NO_MODEL.isdisjoint(report.words)
        if self.http_status == 404 or (self.http_status == 400 and refused_model):
            return "model"
        if self.http_status == 400 and _NO_MODEL_WORDS.search(report.message[:_MESSAGE_START]):
            return "model"
        return None


class ErrorReport(NamedTuple):
    """An error as reported by a provider; ``reasons`` are the machine-readable reasons among its details."""

    message: str
    code: str | None = None
    param: str | None = None
    reasons: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.reasons, self.code) if self.code else self.reasons

    @property
    def quota_exhausted(self) -> bool:
        """Whether an account is exhausted; a limit that passes within minutes does not count."""
        if not _USED_UP.isdisjoint(self.words) or self.code == str(_PAYMENT_REQUIRED):
            return True
        return any(map(_DAILY_QUOTA.search, self.reasons)) or bool(_USED_UP_WORDS.match(self.message))

    def to_error(self, where: str) -> ModelError:
        """The exception for an error reported inside a response."""
        status = _status(self.code)
        message = f"{where}: the provider reported an error: {quote(self.message, _MAX_SHOWN)}"
        kind = "bad_response" if status is None else "rate_limited" if status == 429 else "status"
        if self.quota_exhausted:
            kind = QUOTA
        return ModelError(kind, message, http_status=status, report=self)


def parse_error_text(text: str) -> ErrorReport:
    """The error in an error response's body; if it has no known shape, the text itself is the message."""
    start = re.search(r"[{\[]", text)
    try:
        data, _ = json.JSONDecoder().raw_decode(text, start.start()) if start else (None, 0)
    except (ValueError, RecursionError):
        return _parse_truncated(text)
    return find_error(data) or ErrorReport(text)


def is_quota_exhausted(report: ErrorReport, status: int | None) -> bool:
    """Whether a response of this status reports an exhausted account."""
    return status == _PAYMENT_REQUIRED or report.quota_exhausted


def find_error(data: object) -> ErrorReport | None:
    """The error that a response is or contains, if any."""
    if isinstance(data, list):  # Gemini's streams
        data = data[0] if data else None
    if not isinstance(data, Mapping):
        return None
    inner: Any = data.get("error")
    if isinstance(inner, str) and inner:  # Ollama
        return ErrorReport(inner)
    if isinstance(inner, Mapping):
        return _report(inner)
    if data.get("object") == "error" or (data.get("type") == "error" and "message" in data):  # vLLM; a Responses event
        return _report(data)
    if isinstance(data.get("detail"), str | list):  # FastAPI
        return ErrorReport(str(data["detail"]), param=_located(data["detail"]))
    return None


def _report(error: Mapping[str, Any]) -> ErrorReport:
    codes = [error.get(key) for key in ("code", "status", "type")]
    words = [str(code) for code in codes if isinstance(code, str | int) and not isinstance(code, bool)]
    # OpenAI's code is the most specific; Gemini's code is a number, and its status the word
    code = next((word for word in words if not word.isdecimal()), words[0] if words else None)
    param = error.get("param")
    message = error.get("message")
    return ErrorReport(
        message if isinstance(message, str) and message else json.dumps(error, default=str)[:_MAX_SHOWN],
        code,
        param if isinstance(param, str) and param else None,
        tuple(_reasons(error.get("details"))),
    )


def _reasons(details: object, depth: int = 0) -> Iterator[str]:
    """Machine-readable reasons: Anthropic's error_code, Google's reason and the exceeded quotas."""
    if isinstance(details, Mapping):
        yield from (value for key, value in details.items() if key in _REASONS and isinstance(value, str))
        if str(details.get("quotaValue")) == "0":
            yield "QUOTA_EXHAUSTED"  # the plan does not include this model
    if isinstance(details, Mapping | list) and depth < _MAX_DEPTH:
        for item in details.values() if isinstance(details, Mapping) else details:
            yield from _reasons(item, depth + 1)


def _parse_truncated(text: str) -> ErrorReport:
    """What can be read from an error whose end is missing."""
    found = dict.fromkeys(_FIELD.findall(text))
    code = next((word for name, word in found if name in ("code", "status", "type") and word != "error"), None)
    message = _MESSAGE.search(text)
    try:
        content = text if message is None else str(json.loads(message[1]))
    except ValueError:
        content = text
    return ErrorReport(content, code, None, tuple(word for name, word in found if name in _REASONS))


def _located(detail: object) -> str | None:
    """The field that FastAPI's first validation error names."""
    first = detail[0] if isinstance(detail, list) and detail else None
    place = first.get("loc") if isinstance(first, Mapping) else None
    names = [name for name in place if isinstance(name, str) and name != "body"] if isinstance(place, list) else []
    return names[0] if names else None


def _status(code: str | None) -> int | None:
    if code is None:
        return None
    if code.isdecimal() and 400 <= int(code[:4]) < 600:
        return int(code[:4])
    return _IMPLIED_STATUS.get(code.lower())


Value = TypeVar("Value")
_TOLERANCE = 2
FailureScope = Literal["request", "caller", "unclear"]
"""What a failure concerns: one request, every call of this caller, or not known which."""


class CallerRefused(GradelineError):  # noqa: N818 - read as the outcome of a call
    """Every call would be refused until the user fixes something; ``error`` has the reason."""

    def __init__(self, error: AgentError) -> None:
        super().__init__(str(error))
        self.error = error


def failure_scope(error: AgentError) -> FailureScope:
    """The scope of a failed model call."""
    if not isinstance(error, ModelError) or error.obstacle is None:
        return "request"
    return "caller" if error.affects_every_call else "unclear"


class ProviderAccess:
    """Decides whether a provider refuses single requests or every call; safe across tasks and event loops."""

    def __init__(self, scope: Callable[[AgentError], FailureScope] = failure_scope) -> None:
        self.granted = False
        """A call succeeded, now or earlier in the same run, so a refusal of unclear scope concerns one request."""
        self.tolerance = 0
        """The number of refusals that count as single requests although no call has succeeded yet."""
        self._scope = scope
        self._in_flight: WeakKeyDictionary[asyncio.AbstractEventLoop, _InFlightCalls] = WeakKeyDictionary()

    def resume(self, *, succeeded: bool, failed: int | None = None) -> None:
        """Set whether calls of the run succeeded before, and how many of a resumed run failed (None: a new run).

        A run that was stopped by refusals of single requests must not be stopped by the same ones again. So a resumed
        run tolerates more refusals than it has failures, and gets further each time.
        """
        self.granted = self.granted or succeeded
        if failed is not None:
            self.tolerance = _TOLERANCE * (1 + failed)

    async def call(self, send: Callable[[], Awaitable[Value]]) -> Value:
        """Await ``send``; raises its error, or `CallerRefused` if every other call would be refused too."""
        in_flight = self._in_flight.setdefault(asyncio.get_running_loop(), _InFlightCalls())
        await in_flight.wait_decided()
        in_flight.calls += 1
        try:
            result = await send()
        except AgentError as error:
            in_flight.end_call(granted=self.granted)
            scope = self._scope(error)
            if scope == "caller":
                raise CallerRefused(error) from error
            if scope == "unclear" and not self.granted:
                if self.tolerance <= 0:
                    await in_flight.decide(error)
                self.tolerance -= 1
            raise
        except BaseException:
            in_flight.end_call(granted=self.granted)
            raise
        self.granted = True
        in_flight.end_call(granted=True)
        return result


class _InFlightCalls:
    """The calls in flight of one event loop, and the refusal that is not decided yet."""

    def __init__(self) -> None:
        self.calls = 0
        self._refusal: AgentError | None = None
        self._decision: asyncio.Future[AgentError | None] | None = None

    async def wait_decided(self) -> None:
        """Wait while a refusal is undecided; `CallerRefused` if calls are refused."""
        while self._decision is not None:
            await self._outcome(self._decision)

    async def decide(self, error: AgentError) -> None:
        """Wait for the calls in flight; `CallerRefused` if none of them succeeds."""
        if self._decision is None:
            self._refusal = error
            self._decision = asyncio.get_running_loop().create_future()
        decision = self._decision
        self._settle(granted=False)
        await self._outcome(decision)

    def end_call(self, *, granted: bool) -> None:
        self.calls -= 1
        self._settle(granted=granted)

    def _settle(self, *, granted: bool) -> None:
        decision = self._decision
        if decision is None or not (granted or self.calls == 0):
            return
        # dropped here, because an error keeps alive its frames and everything they refer to
        refusal, self._refusal, self._decision = self._refusal, None, None
        if not decision.done():
            decision.set_result(None if granted else refusal)

    @staticmethod
    async def _outcome(decision: asyncio.Future[AgentError | None]) -> None:
        refusal = await asyncio.shield(decision)
        if refusal is not None:
            raise CallerRefused(refusal) from refusal

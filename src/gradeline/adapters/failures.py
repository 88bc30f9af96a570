"""Failed model calls: what a provider said was wrong, in one shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from gradeline.errors import AgentError, response_policy
from gradeline.model.text import quote

QUOTA = "quota"
"""The type of a call that failed because an account is used up: no later attempt mends that."""

Obstacle = Literal["key", "model", "quota"]
"""What keeps every call from working until a person sees to it."""

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
"""Anthropic tells an empty account and a spend limit as a plain bad request, Gemini as any other 429. Only how a
message begins counts: further on it may quote what was asked."""
_DAILY_QUOTA = re.compile(r"PerDay")
"""Gemini's limits by the minute pass soon, and are told with the same words as those by the day."""
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
"""How OpenAI and Azure report a prompt that their filters do not let pass, as a 400."""
_FLAGGED = re.compile(r"\b(?:flagged|moderation|content (?:management )?policy|usage policy)\b", re.IGNORECASE)
_PASSING = frozenset({408, 409, 425, 429})
"""Statuses of the 400s that say "later", not "no"."""
_PAYMENT_REQUIRED = 402
_REASONS = frozenset({"reason", "error_code", "quotaId"})
_FIELD = re.compile(r'"(code|status|type|reason|error_code|quotaId)"\s*:\s*"([^"\\]{1,200})"')
_MESSAGE = re.compile(r'"message"\s*:\s*("(?:[^"\\]|\\.)*+")')
_DEEPEST = 5
_BEGINNING = 200
_NEVER_SENT = frozenset({"connect", "dns", "tls", "redirect"})
_LONGEST = 1000
_IMPLIED: Mapping[str, int] = {
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
"""The status that an error told inside an answer of status 200 would have had."""


class ModelError(AgentError):
    """A failed model call.

    ``type`` is a key of `gradeline.errors.RESPONSE_POLICY`. ``http_status`` is that of the answer, or the one that an
    error told within an answer stands for; such an error is ``answered``. ``said``, ``code`` and ``param`` are the
    provider's own words.
    """

    def __init__(
        self,
        error_type: str,
        message: str,
        *,
        http_status: int | None = None,
        told: Told | None = None,
        attempts: int = 1,
        answered: bool = False,
    ) -> None:
        super().__init__(error_type, message)
        self.http_status = http_status
        self.told = told
        self.said = told.message if told else None
        self.code = told.code if told else None
        self.param = told.param if told else None
        self.attempts = attempts
        self.answered = answered

    @property
    def retryable(self) -> bool:
        """Whether the same call may work later."""
        return response_policy(self.type, self.http_status).retry

    @property
    def unpaid(self) -> bool:
        """Whether the provider certainly did no work for it."""
        refused = self.http_status is not None and 400 <= self.http_status < 500
        return refused or self.type in _NEVER_SENT or self.type == QUOTA

    @property
    def moderated(self) -> bool:
        """Whether a filter of the provider did not let the request pass."""
        told = self.told or Told("")
        if self.http_status not in (None, 400, 403, 422):
            return False
        return not _MODERATED.isdisjoint(told.words) or bool(_FLAGGED.search(told.message[:_BEGINNING]))

    @property
    def refused(self) -> bool:
        """Whether the provider took the request and refused it, so that asking again would not help."""
        if self.moderated:
            return True
        status = self.http_status
        return self.type != QUOTA and status is not None and 400 <= status < 500 and status not in _PASSING

    @property
    def of_caller(self) -> bool:
        """Whether every other call would certainly fail like this one: a wrong key, a used-up account."""
        words = self.told.words if self.told else ()
        return self.type == QUOTA or self.http_status == 401 or not _BAD_KEY.isdisjoint(words)

    @property
    def obstacle(self) -> Obstacle | None:
        """What may let every other call fail like this one (see `of_caller`); None where it is of one request."""
        told = self.told or Told("")
        if self.type == QUOTA:
            return "quota"
        if self.of_caller:
            return "key"
        if self.moderated:
            return None
        if self.http_status == 403:
            return "key"
        refused_model = told.param == "model" or not _NO_MODEL.isdisjoint(told.words)
        if self.http_status == 404 or (self.http_status == 400 and refused_model):
            return "model"
        if self.http_status == 400 and _NO_MODEL_WORDS.search(told.message[:_BEGINNING]):
            return "model"
        return None


class Told(NamedTuple):
    """An error as a provider told it; ``reasons`` are the words among its details."""

    message: str
    code: str | None = None
    param: str | None = None
    reasons: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        return (*self.reasons, self.code) if self.code else self.reasons

    @property
    def used_up(self) -> bool:
        """Whether an account is used up; a limit that passes within minutes is something else."""
        if not _USED_UP.isdisjoint(self.words) or self.code == str(_PAYMENT_REQUIRED):
            return True
        return any(map(_DAILY_QUOTA.search, self.reasons)) or bool(_USED_UP_WORDS.match(self.message))

    def error(self, where: str) -> ModelError:
        """The error that this is, told inside an answer."""
        status = _status(self.code)
        shown = f"{where}: the provider reported an error: {quote(self.message, _LONGEST)}"
        kind = "bad_response" if status is None else "rate_limited" if status == 429 else "status"
        if self.used_up:
            kind = QUOTA
        return ModelError(kind, shown, http_status=status, told=self)


def read_told(text: str) -> Told:
    """What the body of an error says; the providers' shapes, or else the text itself."""
    start = re.search(r"[{\[]", text)
    try:
        data, _ = json.JSONDecoder().raw_decode(text, start.start()) if start else (None, 0)
    except (ValueError, RecursionError):
        return _salvaged(text)
    return told_in(data) or Told(text)


def used_up(told: Told, status: int | None) -> bool:
    """Whether an answer of this status says that an account is used up."""
    return status == _PAYMENT_REQUIRED or told.used_up


def told_in(data: object) -> Told | None:
    """The error that an answer is or carries; None where it has none."""
    if isinstance(data, list):  # Gemini's streams
        data = data[0] if data else None
    if not isinstance(data, Mapping):
        return None
    inner: Any = data.get("error")
    if isinstance(inner, str) and inner:  # Ollama
        return Told(inner)
    if isinstance(inner, Mapping):
        return _told(inner)
    if data.get("object") == "error" or (data.get("type") == "error" and "message" in data):  # vLLM; a Responses event
        return _told(data)
    if isinstance(data.get("detail"), str | list):  # FastAPI
        return Told(str(data["detail"]), param=_located(data["detail"]))
    return None


def _told(error: Mapping[str, Any]) -> Told:
    codes = [error.get(key) for key in ("code", "status", "type")]
    words = [str(code) for code in codes if isinstance(code, str | int) and not isinstance(code, bool)]
    # OpenAI's code says most; Gemini's is a number, and its status the word
    code = next((word for word in words if not word.isdecimal()), words[0] if words else None)
    param = error.get("param")
    message = error.get("message")
    return Told(
        message if isinstance(message, str) and message else json.dumps(error, default=str)[:_LONGEST],
        code,
        param if isinstance(param, str) and param else None,
        tuple(_reasons(error.get("details"))),
    )


def _reasons(details: object, depth: int = 0) -> Iterator[str]:
    """Why, in the words of machines: Anthropic's error_code, Google's reason and the limits that were passed."""
    if isinstance(details, Mapping):
        yield from (value for key, value in details.items() if key in _REASONS and isinstance(value, str))
        if str(details.get("quotaValue")) == "0":
            yield "QUOTA_EXHAUSTED"  # a model that this plan does not have at all
    if isinstance(details, Mapping | list) and depth < _DEEPEST:
        for item in details.values() if isinstance(details, Mapping) else details:
            yield from _reasons(item, depth + 1)


def _salvaged(text: str) -> Told:
    """What can be told from an error whose end was cut off."""
    found = dict.fromkeys(_FIELD.findall(text))
    code = next((word for name, word in found if name in ("code", "status", "type") and word != "error"), None)
    message = _MESSAGE.search(text)
    try:
        said = text if message is None else str(json.loads(message[1]))
    except ValueError:
        said = text
    return Told(said, code, None, tuple(word for name, word in found if name in _REASONS))


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
    return _IMPLIED.get(code.lower())

"""Failed model calls: what a provider said was wrong, in one shape."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gradeline.errors import AgentError, response_policy
from gradeline.model.text import quote

QUOTA = "quota"
"""The type of a call that failed because an account is used up: no later attempt mends that."""

_USED_UP = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
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
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
}
"""The status that an error told inside an answer of status 200 would have had."""


class ModelError(AgentError):
    """A failed model call.

    ``type`` is a key of `gradeline.errors.RESPONSE_POLICY`, or ``quota``. ``http_status`` is that of the answer, or the
    one that an error told within an answer stands for; such an error is ``answered``. ``said``, ``code`` and ``param``
    are the provider's own words.
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


class Told(NamedTuple):
    """An error as a provider told it."""

    message: str
    code: str | None = None
    param: str | None = None

    @property
    def used_up(self) -> bool:
        return self.code in _USED_UP

    def error(self, where: str) -> ModelError:
        """The error that this is, told inside an answer."""
        status = _status(self.code)
        shown = f"{where}: the provider told an error: {quote(self.message, _LONGEST)}"
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
        data = None
    return told_in(data) or Told(text)


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
    )


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

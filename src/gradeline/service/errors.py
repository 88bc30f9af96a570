"""The error of a request, and the list of error codes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gradeline.model import quote


class Code(StrEnum):
    """Why a request failed. Clients may rely on these codes; the list only grows."""

    MISSING_FIELD = "MISSING_FIELD"
    INVALID_LENGTH = "INVALID_LENGTH"
    INVALID_INPUT = "INVALID_INPUT"
    INVALID_JSON = "INVALID_JSON"
    INVALID_URL = "INVALID_URL"
    URL_NOT_ALLOWED = "URL_NOT_ALLOWED"
    INVALID_TEST_CASE_ID = "INVALID_TEST_CASE_ID"
    INVALID_GRADER_ID = "INVALID_GRADER_ID"
    INVALID_GRADER = "INVALID_GRADER"
    DUPLICATE_ID = "DUPLICATE_ID"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    CONFLICT = "CONFLICT"
    IDEMPOTENCY_KEY_REUSED = "IDEMPOTENCY_KEY_REUSED"
    UNAUTHORIZED = "UNAUTHORIZED"
    FORBIDDEN = "FORBIDDEN"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    UNSUPPORTED_MEDIA_TYPE = "UNSUPPORTED_MEDIA_TYPE"
    RATE_LIMITED = "RATE_LIMITED"
    STORAGE_UNAVAILABLE = "STORAGE_UNAVAILABLE"
    INTERNAL_ERROR = "INTERNAL_ERROR"


_STATUSES: Mapping[Code, int] = {
    Code.NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.CONFLICT: 409,
    Code.IDEMPOTENCY_KEY_REUSED: 422,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.PAYLOAD_TOO_LARGE: 413,
    Code.UNSUPPORTED_MEDIA_TYPE: 415,
    Code.RATE_LIMITED: 429,
    Code.STORAGE_UNAVAILABLE: 503,
    Code.INTERNAL_ERROR: 500,
}
_BAD_REQUEST = 400


class ServiceError(Exception):
    """Ends a request with an error. The message is sent to the caller: it contains no secret and no traceback."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        status: int | None = None,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = _STATUSES.get(code, _BAD_REQUEST) if status is None else status
        self.details = details
        self.headers = dict(headers or {})


def not_found(what: str, name: str) -> ServiceError:
    """The error for an unknown id; a malformed id is unknown too."""
    return ServiceError(Code.NOT_FOUND, f"No {what} {quote(name, 120)}")

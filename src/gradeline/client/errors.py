"""Errors that a client raises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradeline.errors import GradelineError


class ApiError(GradelineError):
    """An error response; ``code`` is one of the service's error codes, such as ``NOT_FOUND``.

    A response that did not come from the service, such as the page of a proxy, has the code ``UNEXPECTED_ANSWER``.
    """

    def __init__(
        self, status: int, code: str, message: str, details: Mapping[str, Any] | None = None, request_id: str = ""
    ) -> None:
        shown = f" (request {request_id})" if request_id and status >= 500 else ""
        super().__init__(f"{status} {code}: {message}{shown}")
        self.status = status
        self.code = code
        self.message = message
        self.details = details
        self.request_id = request_id
        """Identifies the request in the service's log."""


class ServiceUnreachableError(GradelineError):
    """No response: nothing listens there, or the connection broke."""


class WaitTimeoutError(GradelineError, TimeoutError):
    """An evaluation did not end within the given time."""

"""What can go wrong between a client and a service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradeline.errors import GradelineError


class ApiError(GradelineError):
    """The service refused or failed; ``code`` is one of its error codes, such as ``NOT_FOUND``.

    An answer that is not the service's at all (a proxy's page) has the code ``UNEXPECTED_ANSWER``.
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
        """By which the service's log finds the request."""


class ServiceUnreachableError(GradelineError):
    """No answer came: nobody listens there, or the connection broke."""


class WaitTimeoutError(GradelineError, TimeoutError):
    """An evaluation was not done in the time that was given."""

"""The one shape of every answer: ``{"success", "data", "error"}``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from gradeline.service.failures import ApiError

_JSON = "application/json"
_encoder = msgspec.json.Encoder()


def success(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer with data: whatever msgspec can encode."""
    return _answer({"success": True, "data": data, "error": None}, status, headers)


def failure(error: ApiError) -> Response:
    """An answer that says what went wrong."""
    told: dict[str, object] = {"code": error.code.value, "message": error.message}
    if error.details is not None:
        told["details"] = error.details
    return _answer({"success": False, "data": None, "error": told}, error.status, error.headers)


def nothing() -> Response:
    """204: done, and there is nothing to say."""
    return Response(status_code=204)


def _answer(body: dict[str, object], status: int, headers: Mapping[str, str] | None) -> Response:
    return Response(_encoder.encode(body), status, dict(headers or {}), _JSON)

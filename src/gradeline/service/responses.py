"""Responses with the envelope ``{"success", "data", "error"}``, and the errors of exceptions."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gradeline.errors import ConfigError, StoreError
from gradeline.model import quote
from gradeline.model.secrets import is_secret_name
from gradeline.rest_types import Envelope, ErrorBody
from gradeline.service.errors import Code, ServiceError

_JSON = "application/json"
_encoder = msgspec.json.Encoder()


def success(data: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with data, which msgspec encodes."""
    return _respond(Envelope(success=True, data=data), status, headers)


def failure(error: ServiceError) -> Response:
    """An error response."""
    body = ErrorBody(error.code.value, error.message, error.details)
    return _respond(Envelope(success=False, data=None, error=body), error.status, error.headers)


def nothing() -> Response:
    """A response without a body (204)."""
    return Response(status_code=204)


def _respond(body: Envelope[Any], status: int, headers: Mapping[str, str] | None) -> Response:
    return Response(_encoder.encode(body), status, dict(headers or {}), _JSON)


log = logging.getLogger("gradeline.service")

_RETRY = {"Retry-After": "5"}
_MAX_ERRORS = 50
_LENGTHS = frozenset({"string_too_short", "string_too_long", "too_short", "too_long", "bytes_too_short"})
_CODES = {400: Code.INVALID_JSON, 401: Code.UNAUTHORIZED, 403: Code.FORBIDDEN, 404: Code.NOT_FOUND}
_MORE_CODES = {405: Code.METHOD_NOT_ALLOWED, 413: Code.PAYLOAD_TOO_LARGE, 415: Code.UNSUPPORTED_MEDIA_TYPE}


class BodyError(HTTPException):
    """Raised while a body is read, where FastAPI hides all other exceptions."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(error.status, error.message)
        self.error = error


def add_error_handlers(app: FastAPI) -> None:
    """Turn every exception of an endpoint into an error response."""
    for kind in (RequestValidationError, HTTPException, ServiceError, StoreError, ConfigError, Exception):
        app.add_exception_handler(kind, _handle_error)


async def _handle_error(request: Request, error: Exception) -> Response:
    return failure(error_of(error, request.method, request.url.path))


def error_of(error: Exception, method: str, path: str) -> ServiceError:
    """The error that is returned for an exception."""
    match error:
        case ServiceError():
            return error
        case BodyError():
            return error.error
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _of_status(error, method, path)
        case StoreError():
            return _of_store(error)
        case ConfigError():
            return _of_config(error)
        case _:
            return ServiceError(
                Code.INTERNAL_ERROR, "Internal error; the server log has the details under this request's id"
            )


def _of_status(error: HTTPException, method: str, path: str) -> ServiceError:
    code = {**_CODES, **_MORE_CODES}.get(error.status_code, Code.INVALID_INPUT)
    message = {
        400: "The body is not valid JSON: it is not UTF-8, nested too deeply, or contains a number that is too large",
        404: f"Nothing found at {quote(path)}",
        405: f"{method[:20]} is not allowed here",
    }.get(error.status_code, str(error.detail))
    return ServiceError(code, message, status=error.status_code, headers=error.headers)


def _of_store(error: StoreError) -> ServiceError:
    """Messages of the store name files of the server, so they are only logged."""
    log.error("store: %s", error)
    if "disk is full" in str(error) or "No space left" in str(error):
        message = "The store cannot grow: the disk is full. Nothing was stored; the operator must free disk space"
        return ServiceError(Code.STORAGE_UNAVAILABLE, message, status=507, headers=_RETRY)
    message = "The store is busy; retry" if error.retryable else "The store is unavailable"
    return ServiceError(Code.STORAGE_UNAVAILABLE, message, headers=_RETRY)


def _of_config(error: ConfigError) -> ServiceError:
    problems = [{"field": problem.path, "message": problem.message} for problem in error.problems]
    return ServiceError(Code.INVALID_INPUT, str(error).strip(), details={"errors": problems[:_MAX_ERRORS]})


def _invalid(error: RequestValidationError) -> ServiceError:
    """An error with all faults; the first determines the code."""
    faults = error.errors()
    of_path = next((fault for fault in faults if fault["loc"][:1] == ("path",)), None)
    if of_path is not None:
        return ServiceError(Code.NOT_FOUND, f"Nothing found at {quote(of_path.get('input'), 80)}")
    described = [_fault(fault) for fault in faults]
    first = described[0]
    details = {"errors": [{"field": field, "code": code.value, "message": text} for code, field, text in described]}
    if len(described) > _MAX_ERRORS:
        details["errors"] = details["errors"][:_MAX_ERRORS]
    return ServiceError(first[0], first[2], details=details)


def _fault(fault: Mapping[str, Any]) -> tuple[Code, str, str]:
    """The code, the field and the message of one fault."""
    kind = str(fault["type"])
    if kind == "json_invalid":
        reason = fault.get("ctx", {}).get("error", "it cannot be parsed")
        return Code.INVALID_JSON, "", f"The body is not valid JSON: {reason} at character {fault['loc'][-1]}"
    place = tuple(fault["loc"])
    field = _field(place[1:])
    if not field:
        if kind == "missing":
            return Code.MISSING_FIELD, "", "A body is required: a JSON object"
        return Code.INVALID_INPUT, "", "The body must be a JSON object"
    if kind == "missing":
        return Code.MISSING_FIELD, field, f"Field {field!r} is required"
    if kind == "extra_forbidden":
        return Code.INVALID_INPUT, field, f"Field {field!r} is unknown"
    code = Code.INVALID_LENGTH if kind in _LENGTHS else Code.INVALID_INPUT
    return code, field, f"Field {field!r}: {reason_of(field, fault)}"


def reason_of(field: str, fault: Mapping[str, Any]) -> str:
    """The reason why a field is invalid, with its value if that is short and cannot be a secret."""
    text = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{text[:1].lower()}{text[1:]}{_value_suffix(field, fault.get('input'))}"


def _value_suffix(field: str, value: object) -> str:
    if field == "value" or is_secret_name(field) or not isinstance(value, str | int | float | bool):
        return ""
    return f", not {quote(value)}" if len(str(value)[:101]) <= 100 else ""


def _field(place: tuple[str | int, ...]) -> str:
    """A path of names and list indexes as a string, such as ``grader_ids[0].config``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text[:200]

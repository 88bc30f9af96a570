"""What an operation answers, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from pydantic import BaseModel

from gradeline.service.failures import Code

COMPONENTS: Final = "x-gradeline-components"
"""Under this name a response carries the schemas that its own refers to, until the document is put together."""
EXAMPLE: Final = "x-gradeline-example"
"""Likewise its example, as text: FastAPI drops every null from what it is given."""
FAILURE: Final = "Failure"
_REF = "#/components/schemas/{name}"
_TEXTS = {
    400: ("The request is wrong; the message says where.", Code.INVALID_INPUT, "Field 'input' is required"),
    401: ("No key, or not a good one.", Code.UNAUTHORIZED, "A key is needed: Authorization: Bearer gl_…"),
    403: ("Not with this key, or not for anybody.", Code.FORBIDDEN, "This needs a key of scope 'admin'"),
    404: ("Not found.", Code.NOT_FOUND, "No test case '7'"),
    405: ("Not with this method.", Code.METHOD_NOT_ALLOWED, "PATCH is not possible here"),
    408: ("The body came too slowly.", Code.INVALID_INPUT, "The body did not arrive in time"),
    409: ("Not in its present state.", Code.CONFLICT, "The evaluation is completed"),
    413: ("The body is too large.", Code.PAYLOAD_TOO_LARGE, "The body is larger than 10,000,000 bytes"),
    415: ("The body is of another type.", Code.UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json"),
    421: ("The Host is not this service.", Code.FORBIDDEN, "The Host 'evil.test' is not this service"),
    422: (
        "The idempotency key was used with another body.",
        Code.IDEMPOTENCY_KEY_REUSED,
        "Idempotency-Key 'a' is used",
    ),
    429: ("Too many requests; Retry-After says when to come again.", Code.RATE_LIMITED, "Too many requests"),
    500: ("A defect of the service.", Code.INTERNAL_ERROR, "Something went wrong here; the request id is 6f1c"),
    503: ("The store does not work now; try again later.", Code.STORAGE_UNAVAILABLE, "The store is locked"),
    507: ("The disk is full.", Code.STORAGE_UNAVAILABLE, "The store cannot grow: the disk is full"),
}


def documented(
    data: object = None,
    status: int = 200,
    errors: Iterable[int] = (400, 404),
    *,
    example: object = None,
    content_type: str = "application/json",
    envelope: bool = True,
    description: str = "Done.",
) -> dict[int | str, dict[str, Any]]:
    """The ``responses=`` of an operation.

    ``data`` is what stands under ``data`` in the envelope: a struct, a pydantic model, any type that msgspec knows,
    or a JSON schema; None where nothing does. Without ``envelope``, and with another content type, it is the whole
    body. 401, 403, 413, 429 and the like need not be named: every operation may answer them.
    """
    enveloped = envelope and content_type == "application/json"
    success = _success(data, example, content_type, enveloped=enveloped) if status != 204 else {COMPONENTS: {}}
    told: dict[int | str, dict[str, Any]] = {status: {"description": description, **success}}
    for error in errors:
        told[error] = failure_response(error)
    return told


def failure_response(status: int) -> dict[str, Any]:
    """The answer of an operation that fails in this way."""
    text, code, message = _TEXTS[status]
    told: dict[str, Any] = {
        "description": text,
        "content": {
            "application/json": {
                "schema": {"$ref": _REF.format(name=FAILURE)},
                EXAMPLE: _text({"success": False, "data": None, "error": {"code": code.value, "message": message}}),
            }
        },
    }
    if status in (429, 503, 507):
        told["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return told


def failure_schema() -> dict[str, Any]:
    """The envelope of every answer that is no success."""
    error = {
        "type": "object",
        "required": ["code", "message"],
        "additionalProperties": False,
        "properties": {
            "code": {"type": "string", "enum": [code.value for code in Code]},
            "message": {"type": "string"},
            "details": {"type": "object", "description": "More about it, such as every fault that was found."},
        },
    }
    return _envelope({"type": "boolean", "const": False}, {"type": "null"}, error)


def _success(data: object, example: object, content_type: str, *, enveloped: bool) -> dict[str, Any]:
    schema, components = _schema_of(data)
    if enveloped:
        schema = _envelope({"type": "boolean", "const": True}, schema, {"type": "null"})
        if example is not None:
            example = {"success": True, "data": example, "error": None}
    told: dict[str, Any] = {"schema": schema}
    if example is not None:
        told[EXAMPLE] = _text(example)
    return {"content": {content_type: told}, COMPONENTS: components}


def _text(example: object) -> str:
    return msgspec.json.encode(example).decode()


def _envelope(success: object, data: object, error: object) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["success", "data", "error"],
        "additionalProperties": False,
        "properties": {"success": success, "data": data, "error": error},
    }


def _schema_of(data: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema, and the schemas that it refers to."""
    if data is None:
        return {"type": "null"}, {}
    if isinstance(data, Mapping):
        return dict(data), {}
    if isinstance(data, type) and issubclass(data, BaseModel):
        schema = data.model_json_schema(ref_template=_REF.replace("{name}", "{model}"))
        return schema, schema.pop("$defs", {})
    (schema,), components = msgspec.json.schema_components([data], ref_template=_REF)
    return schema, dict(components)

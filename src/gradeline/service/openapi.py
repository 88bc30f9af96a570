"""The OpenAPI document: FastAPI's, corrected to describe the actual responses of this service."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from gradeline.service.auth import KeyScope, scope_of
from gradeline.service.errors import Code

COMPONENTS: Final = "x-gradeline-components"
"""The key under which a response carries the schemas it refers to, until the document is built."""
EXAMPLE: Final = "x-gradeline-example"
"""The key of its example, as a string: FastAPI drops nulls from examples."""
FAILURE: Final = "Failure"
_REF = "#/components/schemas/{name}"
_TEXTS = {
    400: ("Invalid request; the message names the field.", Code.INVALID_INPUT, "Field 'input' is required"),
    401: ("No key, or an invalid one.", Code.UNAUTHORIZED, "An API key is required: Authorization: Bearer gl_…"),
    403: ("Not allowed with this key, or not at all.", Code.FORBIDDEN, "This requires a key of scope 'admin'"),
    404: ("Not found.", Code.NOT_FOUND, "No test case '7'"),
    405: ("The method is not allowed here.", Code.METHOD_NOT_ALLOWED, "PATCH is not allowed here"),
    408: ("The body arrived too slowly.", Code.INVALID_INPUT, "The body did not arrive in time"),
    409: ("Not possible in the present state.", Code.CONFLICT, "The evaluation is completed"),
    413: ("The body is too large.", Code.PAYLOAD_TOO_LARGE, "The body is larger than 10,000,000 bytes"),
    415: ("Unsupported content type of the body.", Code.UNSUPPORTED_MEDIA_TYPE, "Send the body as application/json"),
    421: ("The Host header names another service.", Code.FORBIDDEN, "The Host 'evil.test' is not this service"),
    422: (
        "The idempotency key was used with another body.",
        Code.IDEMPOTENCY_KEY_REUSED,
        "Idempotency-Key 'a' is used",
    ),
    429: ("Too many requests; retry after the seconds in Retry-After.", Code.RATE_LIMITED, "Too many requests"),
    500: (
        "Internal error.",
        Code.INTERNAL_ERROR,
        "Internal error; the server log has the details under this request's id",
    ),
    503: ("The store is unavailable; retry later.", Code.STORAGE_UNAVAILABLE, "The store is locked"),
    507: ("The disk is full.", Code.STORAGE_UNAVAILABLE, "The store cannot grow: the disk is full"),
}


def document_responses(
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

    ``data`` is the type of ``data`` in the envelope: a struct, a pydantic model, any type that msgspec supports, or a
    JSON schema; None for no data. Without ``envelope``, and with another content type, it is the whole body. 401, 403,
    413, 429 and the like are added to every operation.
    """
    enveloped = envelope and content_type == "application/json"
    success = _success(data, example, content_type, enveloped=enveloped) if status != 204 else {COMPONENTS: {}}
    described: dict[int | str, dict[str, Any]] = {status: {"description": description, **success}}
    for error in errors:
        described[error] = failure_response(error)
    return described


def failure_response(status: int) -> dict[str, Any]:
    """The description of an error response."""
    text, code, message = _TEXTS[status]
    described: dict[str, Any] = {
        "description": text,
        "content": {
            "application/json": {
                "schema": {"$ref": _REF.format(name=FAILURE)},
                EXAMPLE: _json_text(
                    {"success": False, "data": None, "error": {"code": code.value, "message": message}}
                ),
            }
        },
    }
    if status in (429, 503, 507):
        described["headers"] = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}}}
    return described


def failure_schema() -> dict[str, Any]:
    """The schema of all error responses."""
    error = {
        "type": "object",
        "required": ["code", "message"],
        "additionalProperties": False,
        "properties": {
            "code": {"type": "string", "enum": [code.value for code in Code]},
            "message": {"type": "string"},
            "details": {"type": "object", "description": "Details, such as all faults of the request."},
        },
    }
    return _envelope({"type": "boolean", "const": False}, {"type": "null"}, error)


def _success(data: object, example: object, content_type: str, *, enveloped: bool) -> dict[str, Any]:
    schema, components = _schema_of(data)
    if enveloped:
        schema = _envelope({"type": "boolean", "const": True}, schema, {"type": "null"})
        if example is not None:
            example = {"success": True, "data": example, "error": None}
    described: dict[str, Any] = {"schema": schema}
    if example is not None:
        described[EXAMPLE] = _json_text(example)
    return {"content": {content_type: described}, COMPONENTS: components}


def _json_text(example: object) -> str:
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


_METHODS = ("get", "put", "post", "delete", "patch")
_STOCK = ("HTTPValidationError", "ValidationError")
_STOCK_SUCCESS = "Successful Response"
_IDEMPOTENT = ("post", "/api/evaluations")
_DESCRIPTION = (
    "Agent evaluation as a service. Every response is the envelope `{success, data, error}`, except event streams,"
    " exports, metrics and this document. An unknown id in a path is 404."
)
_SECURITY: dict[str, Any] = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key created with `gradeline keys create`."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-gradeline_session",
        "description": "`POST /api/session`; writes also require the header `X-CSRF-Token`.",
    },
}


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """The document of an application; built once."""
    if app.openapi_schema is None:
        app.openapi_schema = _document(app)
    return app.openapi_schema


def _document(app: FastAPI) -> dict[str, Any]:
    scopes = {(method.lower(), route.path_format): scope_of(route.endpoint) for route, method in operations_of(app)}
    document = get_openapi(title=app.title, version=app.version, description=_DESCRIPTION, routes=app.router.routes)
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                scope = scopes.get((method, path))
                schemas.update(_completed(operations[method], method, path, scope))
                _with_example(operations[method], schemas)
    for name in _STOCK:
        schemas.pop(name, None)
    schemas[FAILURE] = failure_schema()
    components["securitySchemes"] = _SECURITY
    return document


def operations_of(app: FastAPI) -> Iterator[tuple[APIRoute, str]]:
    """Every route with each of its methods."""
    for route in app.router.routes:
        if isinstance(route, APIRoute):
            for method in sorted(route.methods or ()):
                yield route, method


def _completed(operation: dict[str, Any], method: str, path: str, scope: KeyScope | None) -> dict[str, Any]:
    """Complete an operation in place; returns the schemas that its responses refer to."""
    responses: dict[str, Any] = operation["responses"]
    if (method, path) != _IDEMPOTENT:
        responses.pop("422", None)
    elif "Idempotency" not in responses.get("422", {}).get("description", ""):
        responses["422"] = failure_response(422)
    _without_stray_success(responses)
    for status in _everywhere(operation, method, scope):
        responses.setdefault(str(status), failure_response(status))
    operation["security"] = [] if scope is KeyScope.PUBLIC else [{"key": []}, {"session": []}]
    if scope is not None and scope is not KeyScope.PUBLIC:
        text = operation.get("description", "")
        operation["description"] = f"{text}\n\nRequires a key of scope `{scope.value}`.".strip()
    found: dict[str, Any] = {}
    for response in responses.values():
        found.update(response.pop(COMPONENTS, {}))
        for content in response.get("content", {}).values():
            if EXAMPLE in content:
                content["example"] = json.loads(content.pop(EXAMPLE))
    operation["responses"] = dict(sorted(responses.items()))
    return found


def _everywhere(operation: dict[str, Any], method: str, scope: KeyScope | None) -> list[int]:
    """The error responses that every operation may have."""
    wanted = [403, 421, 429, 500, 503]
    if method != "get":
        wanted.append(507)
    if scope is not KeyScope.PUBLIC:
        wanted.append(401)
    if operation.get("parameters") or "requestBody" in operation:
        wanted.append(400)
    if "requestBody" in operation:
        wanted += [408, 413, 415]
    return wanted


def _without_stray_success(responses: dict[str, Any]) -> None:
    """Remove the success response and the body that FastAPI adds to responses that have neither."""
    ours = [status for status, response in responses.items() if status.startswith("2") and COMPONENTS in response]
    for status in [status for status in responses if ours and responses[status]["description"] == _STOCK_SUCCESS]:
        del responses[status]
    for status in ours:
        content = responses[status].get("content", {})
        if len(content) > 1 and content.get("application/json", {}).get("schema") in ({}, None):
            del content["application/json"]


def _with_example(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """Copy the example of a body from its model to the operation, where readers expect it."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        model = schemas.get(name, {})
        examples = [*model.get("examples", ()), *([model["example"]] if "example" in model else ())]
        if examples and "example" not in content and "examples" not in content:
            content["example"] = examples[0]

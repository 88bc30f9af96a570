"""The API's description: FastAPI's own, made to say what this service really answers."""

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
                EXAMPLE: _json_text(
                    {"success": False, "data": None, "error": {"code": code.value, "message": message}}
                ),
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
        told[EXAMPLE] = _json_text(example)
    return {"content": {content_type: told}, COMPONENTS: components}


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
    "Agent evaluation as a service. Every answer is the envelope `{success, data, error}`, except event streams,"
    " exports, metrics and this description. An id that is not known is 404 wherever it stands in a path."
)
_SECURITY: dict[str, Any] = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key made with `gradeline keys create`."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "__Host-gradeline_session",
        "description": "`POST /api/session`; writes need the header `X-CSRF-Token` too.",
    },
}


def openapi_of(app: FastAPI) -> dict[str, Any]:
    """The document of an application; made once."""
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
    """Put an operation right, in place; gives the schemas that its answers refer to."""
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
        operation["description"] = f"{text}\n\nNeeds a key of scope `{scope.value}`.".strip()
    found: dict[str, Any] = {}
    for response in responses.values():
        found.update(response.pop(COMPONENTS, {}))
        for content in response.get("content", {}).values():
            if EXAMPLE in content:
                content["example"] = json.loads(content.pop(EXAMPLE))
    operation["responses"] = dict(sorted(responses.items()))
    return found


def _everywhere(operation: dict[str, Any], method: str, scope: KeyScope | None) -> list[int]:
    """What any operation may answer, whether its author thought of it or not."""
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
    """FastAPI adds a success of its own where an operation's is another, and a body where ours has none."""
    ours = [status for status, response in responses.items() if status.startswith("2") and COMPONENTS in response]
    for status in [status for status in responses if ours and responses[status]["description"] == _STOCK_SUCCESS]:
        del responses[status]
    for status in ours:
        content = responses[status].get("content", {})
        if len(content) > 1 and content.get("application/json", {}).get("schema") in ({}, None):
            del content["application/json"]


def _with_example(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    """A body's example stands with its model; here it is told where readers of the document look for it."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        model = schemas.get(name, {})
        examples = [*model.get("examples", ()), *([model["example"]] if "example" in model else ())]
        if examples and "example" not in content and "examples" not in content:
            content["example"] = examples[0]

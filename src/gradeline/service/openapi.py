"""The API's description: FastAPI's own, made to say what this service really answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from gradeline.service.access import Scope, scope_of
from gradeline.service.documented import COMPONENTS, EXAMPLE, FAILURE, failure_response, failure_schema

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


def _completed(operation: dict[str, Any], method: str, path: str, scope: Scope | None) -> dict[str, Any]:
    """Put an operation right, in place; gives the schemas that its answers refer to."""
    responses: dict[str, Any] = operation["responses"]
    if (method, path) != _IDEMPOTENT:
        responses.pop("422", None)
    elif "Idempotency" not in responses.get("422", {}).get("description", ""):
        responses["422"] = failure_response(422)
    _without_stray_success(responses)
    for status in _everywhere(operation, method, scope):
        responses.setdefault(str(status), failure_response(status))
    operation["security"] = [] if scope is Scope.PUBLIC else [{"key": []}, {"session": []}]
    if scope is not None and scope is not Scope.PUBLIC:
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


def _everywhere(operation: dict[str, Any], method: str, scope: Scope | None) -> list[int]:
    """What any operation may answer, whether its author thought of it or not."""
    wanted = [403, 421, 429, 500, 503]
    if method != "get":
        wanted.append(507)
    if scope is not Scope.PUBLIC:
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

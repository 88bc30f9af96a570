"""The REST API reference, from the service's OpenAPI document."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gradeline.service.app import create_app
from gradeline.service.errors import Code
from gradeline.service.openapi import openapi_of
from gradeline.service.service import build_service
from gradeline.service.settings import ServeSettings

from .tables import GENERATED, cell, code, default_in_words, page, table, type_in_words

Tree = Mapping[str, Any]

_METHODS = ("get", "post", "put", "delete")
_ANYWHERE = frozenset({"400", "401", "403", "408", "413", "415", "421", "429", "500", "503", "507"})
"""Statuses of any call, listed once at the top."""
_SCOPE = re.compile(r"\s*Needs a key of scope `(\w+)`\.")
_MOST_LINES = 40
_LARGEST = 2**53
"""A larger bound means that there is none."""
_INTRODUCTION = """\
Every endpoint of the service; [Use the service](service.md) shows how to start it (`gradeline serve`). The OpenAPI
document is at `/api/openapi.json`, an interactive page at `/api/docs`.

Every response is `{"success", "data", "error"}`, except event streams, exports and metrics; the examples show the
content of `data`. On success `error` is null, on failure `data` is null; `error` has a `code`, a `message` and
sometimes `details`. A 204 has no body. Lists are paged: pass the `next_cursor` of one page as the `cursor` of the
next; it is null on the last. An unknown id is 404 in a path, 400 in a body."""


def rest_api() -> str:
    service = build_service(ServeSettings(store="memory://"))
    try:
        return page(_lines(openapi_of(create_app(service))))
    finally:
        service.stop()


def _lines(document: Tree) -> Iterator[str]:
    yield from ("# REST API", "", *_INTRODUCTION.splitlines(), "", GENERATED, "")
    yield from _failures(document)
    by_tag: dict[str, list[tuple[str, str, Tree]]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                by_tag.setdefault(operations[method]["tags"][0], []).append((method, path, operations[method]))
    for tag, found in by_tag.items():
        yield from (f"## {tag.capitalize()}", "")
        for method, path, operation in found:
            yield from _operation(method, path, operation, document["components"]["schemas"])


def _failures(document: Tree) -> Iterator[str]:
    """The error statuses of any call."""
    descriptions: dict[str, str] = {}
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status in _ANYWHERE:
                    descriptions.setdefault(status, response["description"])
    yield from ("## Errors of any call", "")
    yield from table(("status", "when"), ((f"`{status}`", cell(text)) for status, text in sorted(descriptions.items())))
    yield f"The error codes are {', '.join(f'`{one.value}`' for one in Code)}."
    yield ""


def _operation(method: str, path: str, operation: Tree, schemas: Tree) -> Iterator[str]:
    yield from (f"### {method.upper()} {path}", "")
    text = operation["description"]
    scope = _SCOPE.search(text)
    yield from (_SCOPE.sub("", text).strip(), "")
    yield from (f"Scope: `{scope[1]}`." if scope else "Needs no key.", "")
    parameters = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
    if parameters:
        yield from table(
            ("parameter", "type", "default", "description"),
            (
                (
                    code(one["name"]) + (" (header)" if one["in"] == "header" else ""),
                    cell(_type(one["schema"], schemas)),
                    default_in_words(one["schema"], one.get("required", False)),
                    cell(one.get("description", "")),
                )
                for one in parameters
            ),
        )
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield from _body(kind, content, schemas)
    yield from _answers(operation["responses"])


def _body(kind: str, content: Tree, schemas: Tree) -> Iterator[str]:
    schema = _resolved(content["schema"], schemas)
    if kind != "application/json":
        yield from (f"Body: `{kind}`.", "")
        return
    yield from ("Body:", "")
    needed = schema.get("required", ())
    yield from table(
        ("field", "type", "default", "description"),
        (
            (
                code(name),
                cell(_type(field, schemas)),
                default_in_words(field, name in needed),
                cell(field.get("description", "")),
            )
            for name, field in schema.get("properties", {}).items()
        ),
    )
    yield from _example(content["example"])


def _answers(responses: Tree) -> Iterator[str]:
    """The success with its example, and the errors specific to this operation."""
    for status, response in responses.items():
        if status.startswith("2"):
            kinds = response.get("content", {})
            shown = ", ".join(f"`{kind}`" for kind in kinds if kind != "application/json")
            yield from (f"`{status}`: {response['description']}{f' As {shown}.' if shown else ''}", "")
            example = kinds.get("application/json", {}).get("example")
            if isinstance(example, Mapping) and example.get("data") is not None:
                yield from _example(example["data"])
    own = [(status, error) for status, error in responses.items() if status[0] in "45" and status not in _ANYWHERE]
    if own:
        yield "; ".join(f"`{status}`: {error['description'].rstrip('.')}" for status, error in own) + "."
        yield ""


def _example(value: object) -> Iterator[str]:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if text.count("\n") > _MOST_LINES:
        text = json.dumps(value, ensure_ascii=False)
    yield from ("```json", text, "```", "")


def _resolved(schema: Tree, schemas: Tree) -> Tree:
    name = schema.get("$ref", "").rpartition("/")[2]
    found: Tree = schemas[name] if name else schema
    return found


def _type(schema: Tree, schemas: Tree) -> str:
    """A type in words; a reference to an enumeration is written out."""
    parts = [_bounded(_resolved(part, schemas)) for part in schema.get("anyOf", ())]
    whole: Tree = {**schema, "anyOf": parts} if parts else _resolved(schema, schemas)
    longest = next((part["maxLength"] for part in (whole, *parts) if "maxLength" in part), None)
    return type_in_words(whole) + (f", at most {longest:,} characters" if longest is not None else "")


def _bounded(schema: Tree) -> Tree:
    return {key: value for key, value in schema.items() if key != "maximum" or value < _LARGEST}

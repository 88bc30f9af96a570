"""The REST API, from the description that the service itself gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gradeline.service.app import create_app
from gradeline.service.failures import Code
from gradeline.service.openapi import openapi_of
from gradeline.service.settings import ServeSettings
from gradeline.service.state import build

from .tables import MADE, cell, code, default_in_words, page, table, type_in_words

Tree = Mapping[str, Any]

_METHODS = ("get", "post", "put", "delete")
_ANYWHERE = frozenset({"400", "401", "403", "408", "413", "415", "421", "429", "500", "503", "507"})
"""Told once, at the top."""
_SCOPE = re.compile(r"\s*Needs a key of scope `(\w+)`\.")
_MOST_LINES = 40
_LARGEST = 2**53
"""A bound beyond it says that there is none."""
_INTRODUCTION = """\
What the service answers at its addresses; how to start it is told in [The service](service.md). The same as an OpenAPI
document is at `/api/openapi.json`, as a page to try it at `/api/docs`.

Every answer is `{"success", "data", "error"}`, except event streams, exports and metrics; examples show what is under
`data`. Of a success `error` is null, of a failure `data` is; `error` has a `code`, a `message` and where there is more
to say `details`. A 204 has no body. Lists are read page by page: `next_cursor` of one page is the `cursor` of the next,
and null on the last. An id that is not known is 404 in a path, 400 in a body."""


def rest_api() -> str:
    service = build(ServeSettings(store="memory://"))
    try:
        return page(_lines(openapi_of(create_app(service))))
    finally:
        service.stop()


def _lines(document: Tree) -> Iterator[str]:
    yield from ("# REST API", "", MADE, "", *_INTRODUCTION.splitlines(), "")
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
    """What any call may be answered."""
    told: dict[str, str] = {}
    for operations in document["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if status in _ANYWHERE:
                    told.setdefault(status, response["description"])
    yield from ("## What any call may be answered", "")
    yield from table(("status", "when"), ((f"`{status}`", cell(told[status])) for status in sorted(told)))
    yield f"The codes of errors are {', '.join(f'`{one.value}`' for one in Code)}."
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
            ("parameter", "type", "default", "what it does"),
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
    yield from ("The body:", "")
    needed = schema.get("required", ())
    yield from table(
        ("field", "type", "default", "what it is"),
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
    """The success with its example, and the failures that are this operation's own."""
    for status, response in responses.items():
        if status.startswith("2"):
            kinds = response.get("content", {})
            shown = ", ".join(f"`{kind}`" for kind in kinds if kind != "application/json")
            yield from (f"`{status}`: {response['description']}{f' As {shown}.' if shown else ''}", "")
            example = kinds.get("application/json", {}).get("example")
            if isinstance(example, Mapping) and example.get("data") is not None:
                yield from _example(example["data"])
    own = [(status, told) for status, told in responses.items() if status[0] in "45" and status not in _ANYWHERE]
    if own:
        yield "; ".join(f"`{status}`: {told['description'].rstrip('.')}" for status, told in own) + "."
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
    """A type in words; a reference to a list of words is those words."""
    parts = [_bounded(_resolved(part, schemas)) for part in schema.get("anyOf", ())]
    whole: Tree = {**schema, "anyOf": parts} if parts else _resolved(schema, schemas)
    longest = next((part["maxLength"] for part in (whole, *parts) if "maxLength" in part), None)
    return type_in_words(whole) + (f", at most {longest:,} characters" if longest is not None else "")


def _bounded(schema: Tree) -> Tree:
    return {key: value for key, value in schema.items() if key != "maximum" or value < _LARGEST}

"""JSON Schemas that neither fetch nor hang: no remote references, patterns on a linear engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gradeline.errors import DataError
from gradeline.model import clean_data, quote
from gradeline.parsing.jsonvalues import levels


class SchemaError(ValueError):
    """What was given is no JSON Schema; the message says where and why."""


class Schema:
    """A compiled JSON Schema."""

    def __init__(self, validator: _Validator, schema: object) -> None:
        self._validator = validator
        self._branches = _recursive_references(schema)

    def is_valid(self, value: object) -> bool:
        """Raises `SchemaError` for a value that the engine cannot follow."""
        try:
            return self._validator.is_valid(value)
        except ValueError as error:
            raise SchemaError(f"the schema cannot be applied: {quote_plain(str(error))}") from None

    def errors(self, value: object, most: int = 5) -> list[str]:
        """The first faults of an invalid value, each with its path.

        The engine collects every fault there is before it tells the first, which may take time and
        memory exponential in the value's depth: those of a value too large for that are not told.
        """
        if _visits(value, self._branches) > MAX_EXPLAINED:
            return [_UNEXPLAINED]
        found: list[str] = []
        try:
            for error in self._validator.iter_errors(value):
                if len(found) == most:
                    return [*found, "and more"]
                found.append(f"{_path(error.instance_path)}: {quote_plain(error.message)}")
        except ValueError:  # deeper than the engine follows; `is_valid` needs no such descent
            return [_UNEXPLAINED]
        return found


MAX_EXPLAINED = 20_000
"""How many values the engine may look at to say what is wrong."""
_UNEXPLAINED = "$: is not valid, and too large to list what is wrong"


class _Validator(Protocol):
    def is_valid(self, instance: Any) -> bool: ...
    def iter_errors(self, instance: Any) -> Any: ...


def compile_schema(schema: object) -> Schema:
    """A schema ready to validate, or `SchemaError`."""
    import jsonschema_rs  # loaded by the graders that use it

    if not isinstance(schema, dict | bool):
        raise SchemaError(f"a JSON Schema is a mapping, true or false, got {quote(schema)}")
    try:
        clean = clean_data(schema, "schema")
        validator = jsonschema_rs.validator_for(
            clean, pattern_options=jsonschema_rs.RegexOptions(), retriever=_fetch_nothing
        )
    except DataError as error:
        raise SchemaError(str(error)) from None
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        where = _path(getattr(error, "instance_path", []))
        reason = str(getattr(error, "message", error)).splitlines()[0]
        raise SchemaError(f"{where}: {quote_plain(reason)}") from None
    return Schema(validator, clean)


def quote_plain(text: str, limit: int = 300) -> str:
    """A message that may quote hostile data, kept short."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"references to other documents are not fetched ({uri}); put the schema under $defs")


def _path(parts: list[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


def _visits(value: object, branches: int) -> int:
    """About how many values are looked at when ``branches`` references lead from each level to the next."""
    visits = 0
    for depth, level in enumerate(levels(value)):
        visits += (1 + sum(map(len, level))) * max(branches, 1) ** depth
        if visits > MAX_EXPLAINED:
            break
    return visits


def _recursive_references(schema: object) -> int:
    """How many references of a schema lead back to themselves: each may multiply the work on every level.

    A reference that is no plain pointer into the schema counts as one to all of it.
    """
    references: dict[str, list[str]] = {}
    waiting = ["#"]
    while waiting:
        name = waiting.pop()
        if name not in references:
            references[name] = _references(_resolve(schema, name))
            waiting += references[name]
    return sum(name in _reachable(name, references) for name in references["#"])


def _references(schema: object) -> list[str]:
    found: list[str] = []
    for level in levels(schema):
        for node in level:
            if isinstance(node, dict):
                found += [str(node[key]) for key in ("$ref", "$dynamicRef", "$recursiveRef") if key in node]
    return found


def _reachable(start: str, references: Mapping[str, list[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(references[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += references[name]
    return reached


def _resolve(schema: object, reference: str) -> object:
    if not reference.startswith("#/"):
        return schema
    target = schema
    for part in reference[2:].split("/"):
        if isinstance(target, list):
            target = {str(index): item for index, item in enumerate(target)}
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            return schema
        target = target[name]
    return target

"""JSON Schemas that neither fetch nor hang: no remote references, patterns on a linear engine, bounded time."""

from __future__ import annotations

from math import inf
from typing import Any, Protocol

from gradeline.errors import DataError
from gradeline.model import clean_data, quote
from gradeline.parsing.isolation import MOST_NS, needs_worker, too_costly
from gradeline.parsing.jsonvalues import levels, size_of
from gradeline.parsing.schema_cost import schema_cost


class SchemaError(ValueError):
    """What was given is no JSON Schema; the message says where and why."""


class Schema:
    """A JSON Schema, compiled when it is first used.

    Validation raises `NeedsIsolationError` where it may take more time or memory than this process has for it.
    """

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        self._schema = schema
        self._cost = schema_cost(schema)
        self._cheap_chars = MOST_NS / self._cost.ns_per_char if self._cost.ns_per_char else inf
        self._validator: _Validator | None = None
        if self._compiles_here:
            self._validator = _compile(schema)
        else:
            _check_form(schema)

    def is_valid(self, value: object, chars: int) -> bool:
        """Whether a value conforms that was read from a JSON text of ``chars`` characters.

        Raises `SchemaError` for a value that the engine cannot follow.
        """
        if chars > self._cheap_chars:
            self._require_bound(self._cost.nanoseconds(size_of(value), len(levels(value))))
        validator = self._validator
        try:
            return self._engine().is_valid(value) if validator is None else validator.is_valid(value)
        except (ValueError, RuntimeError) as error:  # it raises the latter where it got no memory
            raise SchemaError(f"the schema cannot be applied: {quote_plain(str(error))}") from None

    def errors(self, value: object, most: int = 5) -> list[str]:
        """The first faults of an invalid value, each with its path.

        The engine collects all faults, each with a copy of its value, before it gives the first: where those may be
        more than `MAX_EXPLAINED`, they are not listed.
        """
        size = size_of(value)
        visits = self._cost.visits_of(size, len(levels(value)))
        if visits > MAX_EXPLAINED or visits * (size.chars + size.values) > _MAX_COPIED:
            return [_UNEXPLAINED]
        self._require_bound(visits * _FAULT_NS)
        found: list[str] = []
        try:
            for error in self._engine().iter_errors(value):
                if len(found) == most:
                    return [*found, "and more"]
                found.append(f"{_path(error.instance_path)}: {quote_plain(error.message)}")
        except (ValueError, RuntimeError):  # deeper than the engine follows; `is_valid` needs no such descent
            return [_UNEXPLAINED]
        return found

    @property
    def _compiles_here(self) -> bool:
        return not too_costly(self._cost.compile_ns)

    def _engine(self) -> _Validator:
        if self._validator is None:
            self._require_bound(self._cost.compile_ns)
            self._validator = _compile(self._schema)
        return self._validator

    def _require_bound(self, nanoseconds: float) -> None:
        if too_costly(nanoseconds):
            raise needs_worker("validation against the JSON Schema")


MAX_EXPLAINED = 50_000
"""How many values the engine may look at to list what is wrong; it takes some `_FAULT_NS` and 5 kB for a fault."""
_MAX_COPIED = 100_000_000
_FAULT_NS = 20_000
_UNEXPLAINED = "$: is not valid, and too large to list what is wrong"


class _Validator(Protocol):
    def is_valid(self, instance: Any) -> bool: ...
    def iter_errors(self, instance: Any) -> Any: ...


def compile_schema(schema: object) -> Schema:
    """A schema ready to validate, or `SchemaError`.

    The patterns of a schema that takes long to compile are checked when it is used, in a worker process.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaError(f"a JSON Schema is a mapping, true or false, got {quote(schema)}")
    try:
        clean: Any = clean_data(schema, "schema")
    except DataError as error:
        raise SchemaError(str(error)) from None
    return Schema(clean)


def _compile(schema: dict[str, Any] | bool) -> _Validator:
    import jsonschema_rs  # loaded by the graders that use it

    try:
        options = jsonschema_rs.RegexOptions()
        return jsonschema_rs.validator_for(schema, pattern_options=options, retriever=_fetch_nothing)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise _as_schema_error(error) from None


def _check_form(schema: dict[str, Any] | bool) -> None:
    """`SchemaError` for what does not conform to the schema of schemas; patterns are not compiled."""
    import jsonschema_rs

    try:
        jsonschema_rs.meta.validate(schema)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise _as_schema_error(error) from None


def _as_schema_error(error: Exception) -> SchemaError:
    where = _path(getattr(error, "instance_path", []))
    reason = str(getattr(error, "message", error)).splitlines()[0]
    return SchemaError(f"{where}: {quote_plain(reason)}")


def quote_plain(text: str, limit: int = 300) -> str:
    """A message that may quote hostile data, kept short."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"references to other documents are not fetched ({uri}); put the schema under $defs")


def _path(parts: list[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)

"""JSON Schemas that neither fetch nor hang: no remote references, patterns on a linear engine."""

from __future__ import annotations

from typing import Any, Protocol

from gradeline.errors import DataError
from gradeline.model import clean_data, quote


class SchemaError(ValueError):
    """What was given is no JSON Schema; the message says where and why."""


class Schema:
    """A compiled JSON Schema."""

    def __init__(self, validator: _Validator) -> None:
        self._validator = validator

    def is_valid(self, value: object) -> bool:
        return self._validator.is_valid(value)

    def errors(self, value: object, most: int = 5) -> list[str]:
        """The first faults of a value, each with its path."""
        found: list[str] = []
        for error in self._validator.iter_errors(value):
            if len(found) == most:
                found.append("and more")
                break
            found.append(f"{_path(error.instance_path)}: {quote_plain(error.message)}")
        return found


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
    return Schema(validator)


def quote_plain(text: str, limit: int = 300) -> str:
    """A message that may quote hostile data, kept short."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"references to other documents are not fetched ({uri}); put the schema under $defs")


def _path(parts: list[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)

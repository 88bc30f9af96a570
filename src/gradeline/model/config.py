"""Typed options: declared once as a struct, read with all faults reported at once.

The struct defines the YAML form, the defaults, the JSON Schema and the listing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from gradeline.errors import DataError, Problem, closest_match
from gradeline.model.text import clean_data, quote


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a grader or extractor. Subclass it and annotate the fields with `described`."""

    def faults(self) -> Iterator[Problem]:
        """Faults in the combination of valid options. Paths are relative to the config."""
        yield from ()

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        """Extend the JSON Schema by rules that the struct does not express."""
        return schema


C = TypeVar("C", bound=msgspec.Struct)
Reader = Callable[[object, str, list[Problem]], object]
"""Reads one field: takes the value, its path and the list of problems to append to; returns the field's value."""


class Reading(NamedTuple, Generic[C]):
    """Options read from data.

    Invalid options have their defaults; if a required one is missing or invalid, ``options`` is None.
    """

    options: C | None
    problems: list[Problem]
    unknown: list[Problem]


def described(text: str, *, expected: str | None = None, **constraints: Any) -> msgspec.Meta:
    """Metadata of an option: help text and bounds (``ge``, ``le``, ``min_length``, …).

    ``expected`` replaces the type's description in the message for an invalid value.
    """
    return msgspec.Meta(description=text, extra={"expected": expected} if expected else None, **constraints)


def read_struct(
    kind: type[C], data: object, path: str = "config", readers: Mapping[str, Reader] | None = None
) -> Reading[C]:
    """Read a mapping into a struct field by field, so that all faults are found at once.

    Keys that begin with ``x-`` are ignored. The tag of a tagged struct is not a field.
    """
    problems: list[Problem] = []
    if not isinstance(data, Mapping):
        problems.append(Problem(path, f"expected a mapping, got {quote(data)}"))
        data = {}
    fields = _fields(kind)
    tag_field = kind.__struct_config__.tag_field
    unknown = [
        Problem(f"{path}.{key}", _unknown_key(str(key), fields))
        for key in data
        if key not in fields and key != tag_field and not str(key).startswith("x-")
    ]
    values: dict[str, object] = {}
    complete = True
    for key, field in fields.items():
        if key not in data:
            if field.required:
                problems.append(Problem(f"{path}.{key}", "is required"))
                complete = False
            continue
        before = len(problems)
        value = _read_field(field, data[key], f"{path}.{key}", problems, (readers or {}).get(key))
        if len(problems) == before:
            values[field.name] = value
        elif field.required:
            complete = False
    options = kind(**values) if complete else None
    if isinstance(options, Config):
        problems += [fault.within(path) for fault in options.faults()]
    return Reading(options, problems, unknown)


def canonical_options(options: object) -> Any:
    """The form in which options are stored and fingerprinted.

    Defaults are omitted, so writing one out changes nothing; changing a default requires a new version of the grader.
    """
    if isinstance(options, msgspec.Struct):
        tag = options.__struct_config__.tag
        data: dict[str, Any] = {} if tag is None else {str(options.__struct_config__.tag_field): tag}
        for field in msgspec.structs.fields(options):
            value = getattr(options, field.name)
            if value is not msgspec.UNSET and (field.required or value != _default(field)):
                data[field.encode_name] = canonical_options(value)
        return data
    if isinstance(options, list | tuple):
        return [canonical_options(item) for item in options]
    if isinstance(options, dict):
        return {key: canonical_options(value) for key, value in options.items()}
    return options


def _default(field: msgspec.structs.FieldInfo) -> object:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def config_schema(kind: type[Config]) -> dict[str, Any]:
    """The self-contained JSON Schema of a config."""
    schema = msgspec.json.schema(kind)
    definitions = schema.pop("$defs", {})
    name = str(schema.pop("$ref", "")).rsplit("/", 1)[-1]
    root: dict[str, Any] = definitions.pop(name, schema)
    for noise in ("title", "description"):
        root.pop(noise, None)
    root["additionalProperties"] = False
    root["patternProperties"] = {"^x-": {}}
    if definitions:
        root["$defs"] = definitions
    return kind.amend_schema(root)


def _unknown_key(key: str, fields: Mapping[str, object]) -> str:
    close = closest_match(key, fields)
    if close:
        return f"unknown option; did you mean {close!r}?"
    return f"unknown option; use one of {', '.join(fields)}" if fields else "unknown option; no options are supported"


class _Field(NamedTuple):
    name: str
    type: Any
    required: bool
    holder: type[msgspec.Struct]
    """A struct with only this field: msgspec caches type information per struct."""


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, _Field]:
    return {
        field.encode_name: _Field(
            field.name, field.type, field.required, msgspec.defstruct(kind.__name__, [("value", field.type)])
        )
        for field in msgspec.structs.fields(kind)
    }


def _read_field(field: _Field, value: object, path: str, problems: list[Problem], reader: Reader | None) -> object:
    if reader is not None:
        return reader(value, path, problems)
    try:
        value = clean_data(value, path)
        holder: Any = msgspec.convert({"value": value}, field.holder)
    except DataError as error:
        problems.append(error.problem)
        return None
    except (msgspec.ValidationError, RecursionError) as error:
        problems.append(_explain(field.type, value, path, error))
        return None
    return holder.value


_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$\.value(?P<where>.*)`)?$", re.DOTALL)


def _explain(kind: object, value: object, path: str, error: Exception) -> Problem:
    match = _WHERE.match(str(error))
    what, where = (match["what"], match["where"] or "") if match else (str(error), "")
    choices = _choices(kind)
    expected = _expected(kind)
    if choices and not where:
        close = closest_match(value, choices) if isinstance(value, str) else None
        what = f"expected one of {', '.join(choices)}" + (f" (did you mean {close!r}?)" if close else "")
    elif expected:
        what = f"expected {expected}"
    else:
        what = what.replace("`", "")
        what = what[:1].lower() + what[1:]
        what = re.sub(r", got \w+$", "", what)
    return Problem(path + where, f"{what}, got {quote(value)}")


def _expected(kind: object) -> str | None:
    metas = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, msgspec.Meta)]
    return next((meta.extra["expected"] for meta in metas if meta.extra), None)


def _choices(kind: object) -> list[str]:
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    if get_origin(kind) in (Union, UnionType):
        alternatives = [part for part in get_args(kind) if part is not msgspec.UnsetType]
        return _choices(alternatives[0]) if len(alternatives) == 1 else []
    return []

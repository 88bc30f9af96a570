"""Typed options: declared once as a struct, read with every fault named at once.

The struct gives the YAML form, the defaults, the JSON Schema and the listing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from gradeline.errors import Problem, closest
from gradeline.model.text import quote


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The options of a grader or an extractor. Subclass it; annotate fields with `described`.

    Defaults are left out of what is stored and fingerprinted, so spelling one out changes
    nothing; changing a default means a new version of its grader.
    """

    def faults(self) -> Iterator[Problem]:
        """What is wrong though each option alone is right. Paths are relative to the config."""
        yield from ()


C = TypeVar("C", bound=msgspec.Struct)
Reader = Callable[[object, str, list[Problem]], object]
"""Reads one field by hand: takes the value and its path, adds to the problems, gives the field's value."""


class Reading(NamedTuple, Generic[C]):
    """Options read from data. Faulty options hold their defaults; a required one that is missing or faulty leaves no options at all."""

    options: C | None
    problems: list[Problem]
    unknown: list[Problem]


def described(text: str, **constraints: Any) -> msgspec.Meta:
    """Metadata of an option: its help text and its bounds (``ge``, ``le``, ``min_length``, …)."""
    return msgspec.Meta(description=text, **constraints)


def read_struct(
    kind: type[C], data: object, path: str = "config", readers: Mapping[str, Reader] | None = None
) -> Reading[C]:
    """Read a mapping into a struct, field by field, so that all faults are found in one go.

    Keys that begin with ``x-`` are the user's own. The tag of a tagged struct is not a field.
    """
    problems: list[Problem] = []
    if not isinstance(data, Mapping):
        problems.append(Problem(path, f"expected a mapping, got {quote(data)}"))
        data = {}
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
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
        value = _read_field(field.type, data[key], f"{path}.{key}", problems, (readers or {}).get(key))
        if len(problems) == before:
            values[field.name] = value
        elif field.required:
            complete = False
    options = kind(**values) if complete else None
    if isinstance(options, Config):
        problems += [Problem(f"{path}.{fault.path}", fault.message) for fault in options.faults()]
    return Reading(options, problems, unknown)


def config_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a config, self-contained."""
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
    return root


def _unknown_key(key: str, fields: Mapping[str, object]) -> str:
    close = closest(key, fields)
    if close:
        return f"unknown option; did you mean {close!r}?"
    return f"unknown option; known are {', '.join(fields)}" if fields else "unknown option; there are none"


def _read_field(kind: object, value: object, path: str, problems: list[Problem], reader: Reader | None) -> object:
    if reader is not None:
        return reader(value, path, problems)
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        problems.append(_explain(kind, value, path, error))
        return None


_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<where>.*)`)?$", re.DOTALL)


def _explain(kind: object, value: object, path: str, error: Exception) -> Problem:
    match = _WHERE.match(str(error))
    what, where = (match["what"], match["where"] or "") if match else (str(error), "")
    choices = _choices(kind)
    if choices and not where:
        close = closest(value, choices) if isinstance(value, str) else None
        what = f"expected one of {', '.join(choices)}" + (f" (did you mean {close!r}?)" if close else "")
    else:
        what = what.replace("`", "")
        what = what[:1].lower() + what[1:]
        what = re.sub(r", got \w+$", "", what)
    return Problem(path + where, f"{what}, got {quote(value)}")


def _choices(kind: object) -> list[str]:
    if get_origin(kind) is Annotated:
        return _choices(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return []

"""Markdown tables, and JSON Schemas in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]

MADE = "Made from the program by `make docs`."
_WITHOUT_EFFECT = "without effect here"
_ANY_NUMBER = 1e300


def page(lines: Iterable[str]) -> str:
    """The lines as a file."""
    return "\n".join(lines).rstrip() + "\n"


def table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """A table, and the blank line behind it."""
    yield f"| {' | '.join(titles)} |"
    yield f"|{'---|' * len(titles)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def cell(text: str) -> str:
    """Prose that may stand in a table."""
    return text.replace("|", "\\|").replace("``", "`").replace("<", "&lt;").replace("\n", " ")


def code(text: str) -> str:
    """A piece of code that may stand in a table, where no way to write a bar suits every reader of Markdown."""
    return f"`{' '.join(text.replace('|', ',').split())}`"


def options(schema: Schema, leave_out: Iterable[str] = (), parts: Iterable[str] = ()) -> Iterator[str]:
    """The options that a schema describes; ``parts`` are those that have a section of their own."""
    needed = schema.get("required", ())
    hidden = {"kind", *leave_out}
    found = {name: option for name, option in schema["properties"].items() if name not in hidden}
    idle = [name for name, option in found.items() if _WITHOUT_EFFECT in option.get("description", "")]
    rows = [
        (
            code(name),
            f"[mapping](#{name})" if name in parts else cell(type_in_words(option)),
            default_in_words(option, name in needed),
            cell(option.get("description", "")),
        )
        for name, option in found.items()
        if name not in idle
    ]
    if rows:
        yield from table(("key", "type", "default", "what it does"), rows)
    else:
        yield from ("No options of its own.", "")
    if idle:
        yield from (f"Taken, but {_WITHOUT_EFFECT}: {', '.join(map(code, idle))}.", "")


def type_in_words(schema: Schema) -> str:
    """What values are taken; that null is the same as nothing goes without saying."""
    if "enum" in schema:
        return " | ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "anyOf" in schema:
        words = [type_in_words(part) for part in schema["anyOf"] if part.get("type") != "null"]
        return " | ".join(dict.fromkeys(words))
    if "$ref" in schema:
        return "mapping"
    kinds = schema.get("type", "any")
    named = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    return " | ".join(_one_type(kind, schema) for kind in named)


def _one_type(kind: str, schema: Schema) -> str:
    if kind == "array":
        items = type_in_words(schema.get("items", {}))
        return f"list of ({items})" if "|" in items else f"list of {items}"
    if kind == "object":
        return "mapping"
    if kind in ("integer", "number"):
        return kind + _bounds(schema)
    return kind


def _bounds(schema: Schema) -> str:
    low, high, above, below = (
        schema.get(key) for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    )
    high = None if high is not None and high > _ANY_NUMBER else high
    if low is not None and high is not None:
        return f" {low:,} to {high:,}"
    if low is not None and below is not None:
        return f" {low:,} to below {below:,}"
    if above is not None:
        return f" > {above:g}" + (f", ≤ {high:,}" if high is not None else "")
    return f" ≥ {low:g}" if low is not None else ""


def default_in_words(schema: Schema, required: bool) -> str:
    """What stands where the option does not."""
    if required:
        return "required"
    value = schema.get("default")
    if value is None or value in ({}, [], ()):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else f"{value:,}" if _is_number(value) else str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)

"""The reference of graders and extractors, from their declarations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gradeline import extractors, graders
from gradeline.cli.graders import conditions
from gradeline.graders.base import DEFAULT_EXTRACTOR

from .tables import GENERATED, cell, code, default_in_words, page, table, type_in_words


def graders_and_extractors() -> str:
    return page(_lines())


def _lines() -> Iterator[str]:
    yield from ("# Graders and extractors", "")
    yield "All graders and extractors with their options; `gradeline graders NAME` shows the same. Keys that begin with"
    yield f"`x-` are free for your own use. {GENERATED}"
    yield from ("", "## Graders", "")
    for entry in graders.registry.list():
        yield from _section(entry)
    yield from ("## Extractors", "")
    for entry in extractors.registry.list():
        yield from _section(entry)


def _section(entry: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {entry['id']}", "", entry["description"], "")
    if entry.get("scoring_guide"):
        yield from (f"Scoring: {entry['scoring_guide']}", "")
    for caveat in entry.get("caveats", ()):
        yield from (f"Note: {caveat}", "")
    if entry.get("default_extractor", DEFAULT_EXTRACTOR) != DEFAULT_EXTRACTOR:
        yield from (f"Default extractor: `{entry['default_extractor']}`", "")
    schema = entry["config_schema"]
    rows = [
        (
            code(name),
            cell(type_in_words(option)),
            default_in_words(option, name in schema["required"]),
            cell(option.get("description", "")),
        )
        for name, option in schema["properties"].items()
    ]
    if rows:
        yield from table(("option", "type", "default", "description"), rows)
    else:
        yield from ("No options.", "")
    checks = [(f"`{name}`", f"`{fields}`" if fields else "", text) for name, fields, text in conditions(schema)]
    if checks:
        yield from table(("condition", "options", "checks"), checks)

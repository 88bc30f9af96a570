"""``gradeline graders`` and ``gradeline extractors``: lists generated from their declarations."""

from __future__ import annotations

from typing import Any

import click

from gradeline.cli.options import CliSettings, current_settings, global_options
from gradeline.cli.terminal import TableColumn, console, print_table, safe_text


@click.command()
@click.argument("kind", required=False)
@global_options
def graders(kind: str | None) -> None:
    """List the graders, or show one and its options.

    \b
    gradeline graders
    gradeline graders numeric
    """
    from gradeline.graders.registry import ALIASES, registry

    if kind is not None:
        registry.get(ALIASES.get(kind, kind))  # an unknown name fails here, with the closest match
        kind = ALIASES.get(kind, kind)
    _show("graders", registry.list(), kind)


@click.command()
@click.argument("kind", required=False)
@global_options
def extractors(kind: str | None) -> None:
    """List the extractors, or show one and its options.

    \b
    gradeline extractors
    gradeline extractors pattern
    """
    from gradeline.extractors import registry

    if kind is not None:
        registry.get(kind)
    _show("extractors", registry.list(), kind)


def _show(what: str, entries: list[dict[str, Any]], kind: str | None) -> None:
    settings = current_settings()
    entry = next((entry for entry in entries if entry["id"] == kind), None)
    if settings.json:
        import json

        click.echo(json.dumps({what: entries} if entry is None else entry, ensure_ascii=False))
    elif entry is None:
        _table(settings, entries)
        if not settings.quiet:
            click.echo(f"\nShow one and its options with: gradeline {what} NAME")
    else:
        _details(settings, entry)


def _table(settings: CliSettings, entries: list[dict[str, Any]]) -> None:

    columns = (TableColumn("name", key=True), TableColumn("description", wraps=True))
    rows = ((safe_text(entry["id"], "cyan"), safe_text(entry["description"])) for entry in entries)
    print_table(console(settings), columns, rows)


def _details(settings: CliSettings, entry: dict[str, Any]) -> None:

    out = console(settings)
    out.print(safe_text(f"{entry['id']}  version {entry['version']}, fingerprint {entry['fingerprint']}", "bold"))
    out.print(safe_text(entry["description"]))
    if entry.get("scoring_guide"):
        out.print()
        out.print(safe_text(f"Scoring: {entry['scoring_guide']}"))
    for caveat in entry.get("caveats", ()):
        out.print(safe_text(f"Caveat: {caveat}"))
    if "default_extractor" in entry:
        out.print(safe_text(f"Default extractor: {entry['default_extractor']}"))
    options = entry["config_schema"].get("properties", {})
    out.print()
    if not options:
        out.print("No options.")
        return
    texts = (TableColumn(title, wraps=True) for title in ("type", "default", "description"))
    columns = (TableColumn("option", key=True), *texts)
    required = entry["config_schema"].get("required", [])
    rows = []
    for name, schema in options.items():
        default = default_of(schema, name in required)
        rows.append(
            (
                safe_text(name, "cyan"),
                safe_text(type_of(schema)),
                safe_text(default),
                safe_text(schema.get("description", "")),
            )
        )
    print_table(out, columns, rows)
    checks = conditions(entry["config_schema"])
    if checks:
        out.print()
        columns = (
            TableColumn("condition", key=True),
            TableColumn("options", wraps=True),
            TableColumn("description", wraps=True),
        )
        print_table(
            out,
            columns,
            ((safe_text(name, "cyan"), safe_text(fields), safe_text(text)) for name, fields, text in checks),
        )
        out.print()
        out.print("Every rule also accepts weight, required, negate and case_sensitive.")


def type_of(schema: dict[str, Any]) -> str:
    """The type of an option, from its schema."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(type_of(part) for part in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return str(schema["$ref"]).rsplit("/", 1)[-1].lower() if "$ref" in schema else str(kind)


def default_of(schema: dict[str, Any], required: bool) -> str:
    """The default of an option, or ``required``."""
    if required or "default" not in schema:
        return "required" if required else ""
    value = schema["default"]
    return str(value).lower() if isinstance(value, bool) else repr(value)


def conditions(schema: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The conditions of a rules grader, from its schema: name, options, description."""
    common = {"condition", "weight", "required", "negate", "case_sensitive"}
    found = []
    for definition in schema.get("$defs", {}).values():
        tag = definition.get("properties", {}).get("condition", {}).get("enum")
        if tag:
            fields = ", ".join(name for name in definition["properties"] if name not in common)
            found.append((str(tag[0]), fields, definition.get("description", "")))
    return found

"""``gradeline graders`` and ``gradeline extractors``: what there is, from the declarations."""

from __future__ import annotations

from typing import Any

import click

from gradeline.cli.settings import Settings, current_settings, global_options


@click.command()
@click.argument("kind", required=False)
@global_options
def graders(kind: str | None) -> None:
    """List the graders, or show one with its options.

    \b
    gradeline graders
    gradeline graders numeric
    """
    from gradeline.graders.registry import ALIASES, registry

    if kind is not None:
        registry.get(ALIASES.get(kind, kind))  # an unknown name offers the closest
        kind = ALIASES.get(kind, kind)
    _show("graders", registry.list(), kind)


@click.command()
@click.argument("kind", required=False)
@global_options
def extractors(kind: str | None) -> None:
    """List the extractors, or show one with its options.

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
            click.echo(f"\ngradeline {what} NAME shows one with its options.")
    else:
        _details(settings, entry)


def _table(settings: Settings, entries: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from gradeline.cli.terminal import console, plain

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("what it does")
    for entry in entries:
        table.add_row(plain(entry["id"], "cyan"), plain(entry["description"]))
    console(settings).print(table)


def _details(settings: Settings, entry: dict[str, Any]) -> None:
    from rich.table import Table

    from gradeline.cli.terminal import console, plain

    out = console(settings)
    out.print(plain(f"{entry['id']}  version {entry['version']}, fingerprint {entry['fingerprint']}", "bold"))
    out.print(plain(entry["description"]))
    if entry.get("scoring_guide"):
        out.print()
        out.print(plain(f"Scoring: {entry['scoring_guide']}"))
    for caveat in entry.get("caveats", ()):
        out.print(plain(f"Beware: {caveat}"))
    options = entry["config_schema"].get("properties", {})
    out.print()
    if not options:
        out.print("No options.")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("option", "type", "default", "what it does"):
        table.add_column(title)
    required = entry["config_schema"].get("required", [])
    for name, schema in options.items():
        default = default_of(schema, name in required)
        table.add_row(plain(name, "cyan"), plain(type_of(schema)), plain(default), plain(schema.get("description", "")))
    out.print(table)
    checks = conditions(entry["config_schema"])
    if checks:
        out.print()
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("condition", "options", "what it checks"):
            table.add_column(title)
        for name, fields, text in checks:
            table.add_row(plain(name, "cyan"), plain(fields), plain(text))
        out.print(table)
        out.print()
        out.print("Every rule also takes weight, required, negate and case_sensitive.")


def type_of(schema: dict[str, Any]) -> str:
    """The type of an option in a few words."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(type_of(part) for part in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {type_of(schema.get('items', {}))}"
    return str(schema["$ref"]).rsplit("/", 1)[-1].lower() if "$ref" in schema else str(kind)


def default_of(schema: dict[str, Any], required: bool) -> str:
    """What an option is when it is left out."""
    if required or "default" not in schema:
        return "required" if required else ""
    value = schema["default"]
    return str(value).lower() if isinstance(value, bool) else repr(value)


def conditions(schema: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The conditions a rules grader knows, from its schema."""
    common = {"condition", "weight", "required", "negate", "case_sensitive"}
    found = []
    for definition in schema.get("$defs", {}).values():
        tag = definition.get("properties", {}).get("condition", {}).get("enum")
        if tag:
            fields = ", ".join(name for name in definition["properties"] if name not in common)
            found.append((str(tag[0]), fields, definition.get("description", "")))
    return found

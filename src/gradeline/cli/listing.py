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
    from gradeline.cli.tables import Column, print_table
    from gradeline.cli.terminal import console, plain

    columns = (Column("name", key=True), Column("what it does", wraps=True))
    rows = ((plain(entry["id"], "cyan"), plain(entry["description"])) for entry in entries)
    print_table(console(settings), columns, rows)


def _details(settings: Settings, entry: dict[str, Any]) -> None:
    from gradeline.cli.tables import Column, print_table
    from gradeline.cli.terminal import console, plain

    out = console(settings)
    out.print(plain(f"{entry['id']}  version {entry['version']}, fingerprint {entry['fingerprint']}", "bold"))
    out.print(plain(entry["description"]))
    if entry.get("scoring_guide"):
        out.print()
        out.print(plain(f"Scoring: {entry['scoring_guide']}"))
    for caveat in entry.get("caveats", ()):
        out.print(plain(f"Beware: {caveat}"))
    if "default_extractor" in entry:
        out.print(plain(f"Default extractor: {entry['default_extractor']}"))
    options = entry["config_schema"].get("properties", {})
    out.print()
    if not options:
        out.print("No options.")
        return
    texts = (Column(title, wraps=True) for title in ("type", "default", "what it does"))
    columns = (Column("option", key=True), *texts)
    required = entry["config_schema"].get("required", [])
    rows = []
    for name, schema in options.items():
        default = default_of(schema, name in required)
        rows.append((plain(name, "cyan"), plain(type_of(schema)), plain(default), plain(schema.get("description", ""))))
    print_table(out, columns, rows)
    checks = conditions(entry["config_schema"])
    if checks:
        out.print()
        columns = (Column("condition", key=True), Column("options", wraps=True), Column("what it checks", wraps=True))
        print_table(out, columns, ((plain(name, "cyan"), plain(fields), plain(text)) for name, fields, text in checks))
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

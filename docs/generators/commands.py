"""The command-line reference, from the help of each command."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click

from gradeline.cli.commands import cli

from .tables import GENERATED, cell, code, page, table


def command_line() -> str:
    return page(_lines())


def _lines() -> Iterator[str]:
    context = click.Context(cli, info_name="gradeline")
    yield from ("# Command line", "", "All commands with their options; `gradeline COMMAND --help` shows the same.")
    yield from (GENERATED, "")
    yield from ("Every command takes these options, before or after its name:", "")
    yield from _options(cli, context, set())
    common = {param.name for param in cli.get_params(context)}
    yield "The variable `GRADELINE_STORE` sets `--store`. A shell completes commands, options and runs"
    yield from ('after `eval "$(_GRADELINE_COMPLETE=bash_source gradeline)"` (or `zsh_source`).', "")
    yield from (f"{cli.epilog} [What each code means](errors.md#exit-codes).", "")
    yield from _commands(cli, context, common)


def _commands(group: click.Group, context: click.Context, common: set[str | None]) -> Iterator[str]:
    """The commands of a group; those of a nested group one heading level lower."""
    level = "#" * (len(context.command_path.split()) + 1)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        yield from (f"{level} {inner.command_path}", "")
        yield from _command(command, inner, common)
        if isinstance(command, click.Group):
            yield from _commands(command, inner, common)


def _command(command: click.Command, context: click.Context, common: set[str | None]) -> Iterator[str]:
    yield from ("```text", f"{context.command_path} {' '.join(command.collect_usage_pieces(context))}", "```", "")
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        # click keeps the line breaks of a paragraph that begins with \b
        if paragraph.startswith("\b"):
            yield from ("```text", *paragraph.splitlines()[1:], "```", "")
        else:
            yield from (cell(paragraph), "")
    yield from _options(command, context, common)


def _options(command: click.Command, context: click.Context, leave_out: set[str | None]) -> Iterator[str]:
    rows = []
    for param in command.get_params(context):
        # arguments are in the usage line and described in the paragraphs above
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record is not None and param.name not in leave_out:
            name, text = record
            rows.append((code(name), cell(" ".join(text.split()))))
    if rows:
        yield from table(("option", "description"), rows)

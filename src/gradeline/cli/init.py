"""``gradeline init`` and ``gradeline schema``: a new suite and the JSON Schema of suite files.

`gradeline.cli.starter` does the work; this module loads none of it, so that ``--help`` is fast.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gradeline.cli.options import current_settings, global_options

if TYPE_CHECKING:
    from gradeline.cli.starter.creation import NewSuite

F = TypeVar("F", bound=Callable[..., Any])

AGENT_KINDS = ("python", "http", "openai", "anthropic", "command", "langgraph", "mcp", "a2a", "replay")
FORGES = ("github", "gitlab")
AGENT_OPTIONS = {
    "url": ("URL", "URL of the agent; for a model, the base URL of its server."),
    "model": ("NAME", "Name of the model at its provider."),
    "function": ("REF", "Function or graph, as file.py:name or module:name."),
    "command": ("LINE", "Program and its arguments; for mcp, how to start the server."),
    "tool": ("NAME", "Tool of the MCP server (default ask)."),
    "argument": ("NAME", "Argument of the tool that gets the input (default question)."),
    "request": ("JSON", 'Body of the request (default {"input": "{{input}}"}).'),
    "response": ("JMESPATH", "Path of the text in the response (default: detected)."),
}


def _agent_options(command: F) -> F:
    for name, (metavar, text) in reversed(AGENT_OPTIONS.items()):
        command = click.option(f"--{name}", metavar=metavar, help=text)(command)
    return command


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--target",
    "kind",
    type=click.Choice(AGENT_KINDS),
    help="Kind of agent (default: the first that takes the options below, else python).",
)
@_agent_options
@click.option(
    "--ci",
    "forge",
    type=click.Choice([*FORGES, "none"]),
    help="Pipeline to write (default: github, or gitlab where .gitlab-ci.yml exists; an existing one is kept).",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@global_options
def init(folder: Path, kind: str | None, forge: str | None, force: bool, **options: str | None) -> None:
    """Create a suite for your agent in FOLDER (default: the current folder).

    Writes a suite with five cases, built-in and custom graders, and a gate. Adds a pipeline that runs it in pull
    requests, and entries of .gitignore, to the git repository that contains FOLDER. In a terminal the command asks for
    the agent, unless an option describes it.

    \b
    gradeline init evals
    gradeline init evals --url http://127.0.0.1:8000/chat
    gradeline init evals --function my_agent.py:answer
    gradeline init evals --target openai --model gpt-6-luna
    """
    from gradeline.cli.starter.creation import create_suite

    values = {name: value for name, value in options.items() if value is not None}
    _report(create_suite(folder, kind, forge, values, force=force))


@click.command()
@click.argument("kind", metavar="[KIND]", type=click.Choice(["suite", "route"]), default="suite")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file (default: standard output)."
)
@global_options
def schema(kind: str, output: Path | None) -> None:
    """Print the JSON Schema of suite files, or of route files, for completion and checks in an editor.

    \b
    gradeline schema > suite.schema.json
    gradeline schema route > route.schema.json
    Refer to it in the first line of a suite:
    # yaml-language-server: $schema=suite.schema.json
    """
    from gradeline.cli.starter.creation import NewSuite, write_text

    text = _schema_text(kind)
    if output is None:
        click.echo(text, nl=False)
        return
    write_text(output, text, "w")
    if current_settings().json:
        _report(NewSuite((str(output),)))


def _schema_text(kind: str) -> str:
    if kind == "route":
        import json

        from gradeline.trust.route_file import route_schema

        return json.dumps(route_schema(), indent=1) + "\n"
    from gradeline.suite.schema import schema_text  # loads every grader

    return schema_text()


def _report(suite: NewSuite) -> None:
    settings = current_settings()
    if settings.json:
        import json

        found = {"written": suite.written, "next": suite.commands, "notes": suite.notes}
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    for path in suite.written:
        click.echo(path if settings.quiet else f"wrote {path}")
    if settings.quiet:
        return
    click.echo("\nNext:")
    for command in suite.commands:
        click.echo(f"  {command}" + ("   # in another terminal" if "gradeline.demo.agent" in command else ""))
    for note in suite.notes:
        click.echo(f"{note[0].upper()}{note[1:]}.")

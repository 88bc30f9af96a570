"""``gradeline init`` and ``gradeline schema``: a new suite and the JSON Schema of suite files."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import click

from gradeline.cli.options import current_settings, global_options
from gradeline.cli.starter.agents import DEMO_AGENT, KINDS, AgentChoice, example_service
from gradeline.cli.starter.options import OPTIONS, agent_choice
from gradeline.cli.starter.pipelines import (
    IGNORE_FILE,
    PIPELINES,
    default_forge,
    has_pipeline,
    missing_ignore_lines,
    pipeline_files,
    repository_of,
)
from gradeline.cli.starter.questions import ask_for_agent, ask_for_pipeline
from gradeline.cli.starter.suite import ALWAYS, CASES, SCHEMA, SUITE, starter_files
from gradeline.cli.terminal import in_cache, program_name
from gradeline.errors import ConfigError, Problem

F = TypeVar("F", bound=Callable[..., Any])


def _agent_options(command: F) -> F:
    for name, option in reversed(OPTIONS.items()):
        command = click.option(f"--{name}", metavar=option.metavar, help=option.help)(command)
    return command


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--target",
    "kind",
    type=click.Choice(list(KINDS)),
    help="Kind of agent (default: the first one with the options below; python without any).",
)
@_agent_options
@click.option(
    "--ci",
    "forge",
    type=click.Choice([*PIPELINES, "none"]),
    help="Pipeline to write (default: github, or gitlab where .gitlab-ci.yml exists; an existing one is kept).",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@global_options
def init(folder: Path, kind: str | None, forge: str | None, force: bool, **options: str | None) -> None:
    """Create a suite for your agent in FOLDER (default: the current folder).

    It has five cases, built-in and custom graders, a gate, a pipeline that runs it in pull requests, and lines of
    .gitignore. The last two are for the git repository around FOLDER. In a terminal the command asks for the agent,
    unless an option describes it.

    \b
    gradeline init evals
    gradeline init evals --url http://127.0.0.1:8000/chat
    gradeline init evals --function my_agent.py:answer
    gradeline init evals --target openai --model gpt-6-luna
    """
    from gradeline.suite.schema import schema_text  # loads every grader

    if folder.exists() and not folder.is_dir():
        raise ConfigError(Problem(str(folder), "is a file; name a folder"))
    if not str(folder).isprintable():
        raise ConfigError(Problem(repr(str(folder)), "contains a control character; name another folder"))
    given = {name: value for name, value in options.items() if value is not None}
    root = repository_of(folder)
    if kind or given or not _in_terminal():
        choice = agent_choice(kind, given, folder)
    else:
        if not force:
            _refuse_existing(folder / name for name in (*ALWAYS, SCHEMA))
        choice = ask_for_agent(folder)
        if not forge and not has_pipeline(root or folder):
            forge = ask_for_pipeline(default_forge(root or folder))
    pipeline = pipeline_files(root or folder, folder / SUITE, choice, forge)
    files = {folder / name: text for name, text in {**starter_files(choice), SCHEMA: schema_text()}.items()}
    files.update(pipeline.files)
    if not force:
        _refuse_existing(files)
    written = _write_all(files, (root or folder) / IGNORE_FILE, "w" if force else "x")
    notes = [*pipeline.notes, _own_content(folder, choice)]
    if root is None and pipeline.files:
        notes.append(f"{folder} is not in a git repository; a pipeline works in the root of one")
    _report([str(path) for path in written], list(_next_commands(folder / SUITE, choice)), notes)


@click.command()
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="FILE", help="Output file (default: standard output)."
)
@global_options
def schema(output: Path | None) -> None:
    """Print the JSON Schema of suite files, for completion and checks in an editor.

    \b
    gradeline schema > suite.schema.json
    Refer to it in the first line of a suite:
    # yaml-language-server: $schema=suite.schema.json
    """
    from gradeline.suite.schema import schema_text  # loads every grader

    text = schema_text()
    if output is None:
        click.echo(text, nl=False)
        return
    _write(output, text, "w")
    if current_settings().json:
        _report([str(output)], [], [])


def _in_terminal() -> bool:
    settings = current_settings()
    return not (settings.json or settings.quiet) and sys.stdin.isatty() and sys.stdout.isatty()


def _next_commands(suite: Path, choice: AgentChoice) -> Iterator[str]:
    kind = KINDS[choice.kind]
    missing = [package for module, package in kind.requires.items() if find_spec(module) is None]
    name = program_name(missing)
    if missing and not in_cache():
        yield shlex.join(["pip", "install", *missing])
    if kind.key and choice.url is None and not os.environ.get(kind.key):
        yield f"export {kind.key}=…"
    if service := example_service(choice):
        yield f"uvx --from gradeline {service}" if in_cache() else service
    path = shlex.quote(str(suite))
    yield from (f"{name} validate {path}", f"{name} run {path}", f"{name} view")


def _own_content(folder: Path, choice: AgentChoice) -> str:
    """Names what is only an example in the new suite."""
    agent = [name for name in KINDS[choice.kind].files(choice) if name != "target.py"]
    return f"then replace the examples by your own: {', '.join(str(folder / name) for name in (CASES, *agent))}"


def _refuse_existing(files: Iterable[Path]) -> None:
    # a broken link counts too: writing would follow it
    existing = [path for path in files if path.exists() or path.is_symlink()]
    if existing:
        remedy = "overwrite them with --force, or name another folder"
        raise ConfigError([*(Problem(str(path), "already exists") for path in existing), Problem("", remedy)])


def _write_all(files: Mapping[Path, str], ignored: Path, mode: str) -> list[Path]:
    """Write these files and extend ``.gitignore``, or leave nothing new; returns the paths."""
    new = [path for path in files if not path.exists()]
    try:
        for path, text in files.items():
            _write(path, text, mode)
        return [*files, ignored] if _extend_ignore_file(ignored) else [*files]
    except BaseException:
        for path in new:
            with suppress(OSError):
                path.unlink()
        raise


def _extend_ignore_file(path: Path) -> bool:
    """Append the lines that the file lacks, if any."""
    try:
        missing = missing_ignore_lines(path.read_bytes() if path.exists() else b"")
        if missing:
            with path.open("ab") as file:
                file.write(missing)
    except OSError as error:
        raise _unwritable(path, error) from None
    return bool(missing)


def _write(path: Path, text: str, mode: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(Problem(str(path), f"cannot write: {error.strerror}; choose another path"))


def _report(written: list[str], following: list[str], notes: list[str]) -> None:
    settings = current_settings()
    if settings.json:
        import json

        click.echo(json.dumps({"written": written, "next": following, "notes": notes}, ensure_ascii=False))
        return
    for path in written:
        click.echo(path if settings.quiet else f"wrote {path}")
    if settings.quiet:
        return
    click.echo("\nNext:")
    for command in following:
        click.echo(f"  {command}" + ("   # in another terminal" if command.endswith(DEMO_AGENT) else ""))
    for note in notes:
        click.echo(f"{note[0].upper()}{note[1:]}.")

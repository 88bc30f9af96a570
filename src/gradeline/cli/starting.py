"""``gradeline init`` and ``gradeline schema``: what a new suite begins with."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from gradeline.cli.settings import current_settings, global_options
from gradeline.errors import ConfigError, Problem
from gradeline.suite.starter import AGENT, SCHEMA, SUITE, TARGETS, starter_files


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("--target", type=click.Choice(TARGETS), default="python", show_default=True, help="What your agent is.")
@click.option("--force", is_flag=True, help="Write over files that exist.")
@global_options
def init(folder: Path, target: str, force: bool) -> None:
    """Write a small suite to start from, into FOLDER or into this one.

    It has cases, graders of both kinds, built in and your own, and a gate, and can be run at once.

    \b
    gradeline init evals
    gradeline init evals --target http
    """
    from gradeline.suite.schema import schema_text  # loads every grader

    files = {folder / name: text for name, text in {**starter_files(target), SCHEMA: schema_text()}.items()}
    if not force:
        _refuse_existing(files)
    if folder.exists() and not folder.is_dir():
        raise ConfigError(Problem(str(folder), "is a file; name a folder"))
    for path, text in files.items():
        _write(path, text, "w" if force else "x")
    suite = shlex.quote(str(folder / SUITE))
    first = AGENT if target == "http" else f"gradeline validate {suite}"
    _tell([str(path) for path in files], [first, f"gradeline run {suite}"])


@click.command()
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file instead of standard output.")
@global_options
def schema(output: Path | None) -> None:
    """Print the JSON Schema of suite files: editors complete and check a suite with it.

    \b
    gradeline schema > suite.schema.json
    A suite that begins with this line finds it there:
    # yaml-language-server: $schema=suite.schema.json
    """
    from gradeline.suite.schema import schema_text  # loads every grader

    text = schema_text()
    if output is None:
        click.echo(text, nl=False)
        return
    _write(output, text, "w")
    if current_settings().json:
        _tell([str(output)], [])


def _refuse_existing(files: dict[Path, str]) -> None:
    # a link that leads nowhere is a file too: writing would follow it
    existing = [path for path in files if path.exists() or path.is_symlink()]
    if existing:
        remedy = "write over them with --force, or name another folder"
        raise ConfigError([*(Problem(str(path), "exists already") for path in existing), Problem("", remedy)])


def _write(path: Path, text: str, mode: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        reason = f"cannot be written: {error.strerror}; name a place where you may write"
        raise ConfigError(Problem(str(path), reason)) from None


def _tell(written: list[str], following: list[str]) -> None:
    settings = current_settings()
    if settings.json:
        import json

        click.echo(json.dumps({"written": written, "next": following}, ensure_ascii=False))
        return
    for path in written:
        click.echo(path if settings.quiet else f"wrote {path}")
    if not settings.quiet:
        click.echo("\nNext:")
        for command in following:
            click.echo(f"  {command}" + ("   # in another terminal" if command == AGENT else ""))

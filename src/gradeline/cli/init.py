"""``gradeline init`` and ``gradeline schema``: a new suite and the JSON Schema of suite files."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from gradeline.cli.options import current_settings, global_options
from gradeline.errors import ConfigError, Problem
from gradeline.suite.starter import AGENT, SCHEMA, SUITE, TARGETS, starter_files


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option("--target", type=click.Choice(TARGETS), default="python", show_default=True, help="Kind of agent.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@global_options
def init(folder: Path, target: str, force: bool) -> None:
    """Create a small suite in FOLDER (default: the current folder).

    It has cases, a built-in and a custom grader and a gate, and is ready to run.

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
    _report([str(path) for path in files], [first, f"gradeline run {suite}"])


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
        _report([str(output)], [])


def _refuse_existing(files: dict[Path, str]) -> None:
    # a broken link counts too: writing would follow it
    existing = [path for path in files if path.exists() or path.is_symlink()]
    if existing:
        remedy = "overwrite them with --force, or name another folder"
        raise ConfigError([*(Problem(str(path), "already exists") for path in existing), Problem("", remedy)])


def _write(path: Path, text: str, mode: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        reason = f"cannot write: {error.strerror}; choose another path"
        raise ConfigError(Problem(str(path), reason)) from None


def _report(written: list[str], following: list[str]) -> None:
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

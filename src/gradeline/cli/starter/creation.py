"""Creates a suite: asks for the agent where no option describes it, and writes all files or none."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from gradeline.cli.options import current_settings
from gradeline.cli.starter.agents import KINDS, AgentChoice, example_service
from gradeline.cli.starter.options import agent_choice
from gradeline.cli.starter.pipelines import (
    IGNORE_FILE,
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
from gradeline.suite.schema import schema_text


class NewSuite(NamedTuple):
    """The files that were written, and the next steps."""

    written: tuple[str, ...]
    commands: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def create_suite(
    folder: Path, kind: str | None, forge: str | None, values: Mapping[str, str], *, force: bool
) -> NewSuite:
    """Write a suite for the agent that the options describe; without options, ask for it in a terminal."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(Problem(str(folder), "is a file; choose a folder"))
    if not str(folder).isprintable():
        raise ConfigError(Problem(repr(str(folder)), "contains a control character; choose another folder"))
    repository = repository_of(folder)
    root = repository or folder
    if kind or values or not _in_terminal():
        choice = agent_choice(kind, values, folder)
    else:
        if not force:
            _refuse_existing(folder / name for name in (*ALWAYS, SCHEMA))
        choice = ask_for_agent(folder)
        if not forge and not has_pipeline(root):
            forge = ask_for_pipeline(default_forge(root))
    pipeline = pipeline_files(root, folder / SUITE, choice, forge)
    files = {folder / name: text for name, text in {**starter_files(choice), SCHEMA: schema_text()}.items()}
    files.update(pipeline.files)
    if not force:
        _refuse_existing(files)
    written = _write_all(files, root / IGNORE_FILE, "w" if force else "x")
    notes = [*pipeline.notes, _own_content(folder, choice)]
    if repository is None and pipeline.files:
        notes.append(f"{folder} is not in a git repository; a pipeline must be in the root of one")
    return NewSuite(tuple(map(str, written)), tuple(_next_commands(folder / SUITE, choice)), tuple(notes))


def write_text(path: Path, text: str, mode: str) -> None:
    """Write a file, and the folders that it is in."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode, encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise _unwritable(path, error) from None


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
    """A note that names the example files in the new suite."""
    agent = [name for name in KINDS[choice.kind].files(choice) if name != "target.py"]
    return f"then replace the examples with your own: {', '.join(str(folder / name) for name in (CASES, *agent))}"


def _refuse_existing(files: Iterable[Path]) -> None:
    # a broken link counts too: writing would follow it
    existing = [path for path in files if path.exists() or path.is_symlink()]
    if existing:
        remedy = "overwrite them with --force, or choose another folder"
        raise ConfigError([*(Problem(str(path), "already exists") for path in existing), Problem("", remedy)])


def _write_all(files: Mapping[Path, str], ignored: Path, mode: str) -> list[Path]:
    """Write these files and extend ``.gitignore``, or leave nothing new; returns the paths."""
    new = [path for path in files if not path.exists()]
    try:
        for path, text in files.items():
            write_text(path, text, mode)
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


def _unwritable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(Problem(str(path), f"cannot write: {error.strerror}; choose another path"))

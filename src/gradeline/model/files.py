"""Output files that appear complete or not at all: written under a temporary name, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gradeline.errors import ConfigError, Problem


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path next to ``path``: renamed to it on success, removed in any case."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def output_path(path: Path) -> Iterator[Path]:
    """`atomic_path` for a path that the user named; `ConfigError` if it cannot be written."""
    with _write_errors(path), atomic_path(path) as partial:
        yield partial


@contextmanager
def output_file(path: Path) -> Iterator[IO[bytes]]:
    """The file at `output_path`, open for writing; a pipe or a device is written directly."""
    target = replaceable_path(path)
    if target is None:
        with _write_errors(path), path.open("wb") as file:
            yield file
    else:
        with output_path(target) as partial, partial.open("wb") as file:
            yield file


def replaceable_path(path: Path) -> Path | None:
    """The resolved path; None for something that cannot be replaced, such as a pipe. `ConfigError` for a folder."""
    path = path.resolve()
    if path.is_dir():
        raise ConfigError(Problem(str(path), "is a folder; name a file"))
    return None if path.exists() and not path.is_file() else path


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot write: {error.strerror}; choose another path")) from None

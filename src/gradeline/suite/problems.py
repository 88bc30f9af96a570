"""Faults in files that users write, with their positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from gradeline.errors import ConfigError, Problem

KeyPath = tuple[str | int, ...]


class SourcePosition(NamedTuple):
    """A position in a file; lines and columns start at one, zero is unknown."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part)


PositionOf = Callable[[KeyPath], SourcePosition]
"""Returns the position of the value at a key path, as `SuiteDocument.position` does."""


class SuiteProblem(NamedTuple):
    """A fault in a file that a user wrote."""

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}"

    def without_line(self) -> SuiteProblem:
        return SuiteProblem("", 0, 0, self.path, self.message)

    @property
    def where(self) -> str:
        """Position and key path in one string."""
        return ": ".join(part for part in (str(SourcePosition(self.file, self.line, self.column)), self.path) if part)


class SourceError(ConfigError):
    """A faulty file; ``suite_problems`` are the faults as data, ``problems`` as text."""

    def __init__(self, problems: SuiteProblem | Iterable[SuiteProblem]) -> None:
        self.suite_problems = (problems,) if isinstance(problems, SuiteProblem) else tuple(problems)
        super().__init__(Problem(problem.where, problem.message) for problem in self.suite_problems)


class DocumentError(SourceError):
    """A faulty suite or other document."""

    def without_lines(self) -> DocumentError:
        """The same faults by key path only, for data that is in no file."""
        return DocumentError(problem.without_line() for problem in self.suite_problems)


_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def path_steps(path: str) -> Iterator[str | int]:
    """The keys and indexes of a path such as ``rules[0].value``."""
    for name, index in _STEP.findall(path):
        yield name or int(index)


def show_path(path: KeyPath) -> str:
    """A key path as written in messages: ``graders.rules[0].value``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def problem_at(position: SourcePosition, path: KeyPath, message: str) -> SuiteProblem:
    """A fault of the value at ``path``."""
    return SuiteProblem(*position, show_path(path), message)


def file_error(file: str, message: str) -> DocumentError:
    """A fault of a whole file."""
    return DocumentError(SuiteProblem(file, 0, 0, "", message))

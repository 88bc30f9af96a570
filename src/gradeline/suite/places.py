"""Where something stands in a file, and what is wrong there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gradeline.errors import ConfigError, Problem

KeyPath = tuple[str | int, ...]


class Place(NamedTuple):
    """Where something stands; lines and columns count from one, zero is unknown."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part)


PlaceOf = Callable[[KeyPath], Place]
"""Says where the value at a key path stands, as `Document.place` does."""


class SuiteProblem(NamedTuple):
    """One fault in a file that a person wrote."""

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
        """The place and the key path in one text."""
        return ": ".join(part for part in (str(Place(self.file, self.line, self.column)), self.path) if part)


class PlacedError(ConfigError):
    """A config is wrong; ``placed`` says where as data, ``problems`` as text."""

    def __init__(self, placed: SuiteProblem | Iterable[SuiteProblem]) -> None:
        self.placed = (placed,) if isinstance(placed, SuiteProblem) else tuple(placed)
        super().__init__(Problem(problem.where, problem.message) for problem in self.placed)


class DocumentError(PlacedError):
    """A file that cannot be read as one document."""

    def without_lines(self) -> DocumentError:
        """The same faults by key path only, for data that is in no file."""
        return DocumentError(problem.without_line() for problem in self.placed)


def show_path(path: KeyPath) -> str:
    """A key path as messages write it: ``graders.rules[0].value``."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def problem_at(place: Place, path: KeyPath, message: str) -> SuiteProblem:
    """A problem of the value at ``path``."""
    return SuiteProblem(*place, show_path(path), message)


def whole_file(file: str, message: str) -> DocumentError:
    return DocumentError(SuiteProblem(file, 0, 0, "", message))

"""Files of JSON lines that may be larger than memory: read once for where things stand, then line by line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gradeline.errors import Problem
from gradeline.model.text import quote
from gradeline.parsing.jsontext import NotJsonError, parse_json

T = TypeVar("T")

MAX_PROBLEMS = 20
"""How many faulty lines are told at once."""


def entries(path: Path, read: Callable[[bytes], T], problems: list[Problem]) -> Iterator[tuple[int, T]]:
    """Each line's offset with what ``read`` makes of it; blank lines are left out.

    Where ``read`` raises `ValueError` the line is added to the problems. Raises `OSError`.
    """
    at = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    entry = read(line)
                except ValueError as error:
                    problems.append(Problem(f"{path}:{number}", str(error)))
                    if len(problems) >= MAX_PROBLEMS:
                        return
                else:
                    yield at, entry
            at += len(line)


def line_at(path: Path, offset: int) -> bytes:
    """The line that begins there."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.readline()


def json_object(line: bytes) -> dict[str, Any]:
    """The object in a line, or a `ValueError` that says what is wrong with it."""
    try:
        data = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8") from None
    except NotJsonError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, got {quote(data)}")
    return data

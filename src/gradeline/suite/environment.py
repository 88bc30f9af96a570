"""``${NAME}`` in the values of a target, and the ``.env`` file in the suite's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.model.variables import fill_variables
from gradeline.suite.document import decode_utf8
from gradeline.suite.problems import DocumentError, KeyPath, PositionOf, SourcePosition, SuiteProblem, problem_at


class Substitution(NamedTuple):
    """A tree with its variables replaced."""

    tree: Any
    secrets: set[str]
    """The values of the variables, which must never be shown or stored."""
    problems: list[SuiteProblem]


class DotEnv(NamedTuple):
    """The variables of a ``.env`` file, and its faulty lines."""

    values: dict[str, str]
    problems: list[SuiteProblem]


def substitute(
    tree: object, environment: Mapping[str, str], position_of: PositionOf, path: KeyPath = ()
) -> Substitution:
    """Replace ``${NAME}`` in every string of the tree; keys do not change and ``$${X}`` becomes ``${X}``.

    ``path`` is the path of the tree in its document, for the positions of faults. A faulty reference is not replaced.
    """
    found = Substitution(None, set(), [])
    return found._replace(tree=_walk(tree, environment, position_of, path, found))


def _walk(
    value: object,
    environment: Mapping[str, str],
    position_of: PositionOf,
    path: KeyPath,
    found: Substitution,
) -> object:
    if isinstance(value, dict):
        return {key: _walk(item, environment, position_of, (*path, key), found) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, environment, position_of, (*path, index), found) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    filled = fill_variables(value, environment)
    found.secrets.update(filled.values)
    found.problems.extend(problem_at(position_of(path), path, fault) for fault in filled.faults)
    return filled.text


def read_environment(folder: Path, exported: Mapping[str, str] | None = None) -> DotEnv:
    """The variables of a suite in ``folder``: its ``.env``, overridden by exported variables."""
    file = read_dotenv(folder)
    return file._replace(values={**file.values, **(os.environ if exported is None else exported)})


# a quoted value may span several lines; an unquoted one ends at a comment
_ASSIGNMENT = re.compile(
    r"""
    (?:export[ \t]+)?
    (?P<name>[A-Za-z_][A-Za-z0-9_]*+) [ \t]*+ = [ \t]*+
    (?: '(?P<single>[^']*)' | "(?P<double>(?:[^"\\]|\\.)*)" | (?P<bare>(?!['"])(?:(?![ \t]\#)[^\n])*) )
    [ \t]* (?:\#[^\n]*)? (?:\n|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_NOTHING = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_LINE = re.compile(r"[^\n]*+\n?")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$"}


def read_dotenv(folder: Path) -> DotEnv:
    """The variables of the folder's ``.env``, which need not exist."""
    path = folder / ".env"
    try:
        text = decode_utf8(path.read_bytes(), str(path)).replace("\r\n", "\n")
    except DocumentError as error:
        return DotEnv({}, list(error.suite_problems))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return DotEnv({}, [])
    except OSError as error:
        return DotEnv({}, [SuiteProblem(str(path), 0, 0, "", f"cannot be read: {error.strerror}")])
    found = DotEnv({}, [])
    at = 0
    while at < len(text):
        start = at + len(text[at : at + 200]) - len(text[at : at + 200].lstrip(" \t"))
        if nothing := _NOTHING.match(text, at):
            at = nothing.end()
        elif assignment := _ASSIGNMENT.match(text, start):
            found.values[assignment["name"]] = _value(assignment)
            at = assignment.end()
        else:
            # the line is not quoted, because it may contain half a secret
            position = SourcePosition(str(path), text.count("\n", 0, at) + 1, start - at + 1)
            found.problems.append(problem_at(position, (), "is not NAME=value; the line is ignored"))
            line = _LINE.match(text, at)
            at = line.end() if line else len(text)
    return found


def _value(assignment: re.Match[str]) -> str:
    if assignment["double"] is not None:
        return _ESCAPE.sub(lambda match: _ESCAPES.get(match[1], match[0]), assignment["double"])
    if assignment["single"] is not None:
        return assignment["single"]
    bare = assignment["bare"].strip()
    return "" if bare.startswith("#") else bare

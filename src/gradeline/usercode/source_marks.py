"""Marked functions as the text of a file has them: nothing is executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from gradeline.usercode.marks import ROLES, Mark


class MarkedDef(NamedTuple):
    """A marked function of a file: what it is marked as, the name of its def and the line of it."""

    mark: Mark
    attribute: str
    line: int


class MarkedInFile(NamedTuple):
    """A marked function and the file that has it."""

    file: Path
    found: MarkedDef


def parse_source(content: bytes) -> ast.Module | None:
    """The tree of a Python file, or None where it has no valid syntax."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def marked_defs(tree: ast.Module, body: Iterable[ast.stmt] | None = None) -> Iterator[MarkedDef]:
    """The functions that the top level of a file marks; of names that are computed, none."""
    renamed = _renamed_decorators(tree)
    for node in tree.body if body is None else body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            written = ast.unparse(call.func if call else decorator).rpartition(".")[2]
            role = renamed.get(written, written)
            given = [word.value for word in call.keywords if word.arg == "name"] if call else []
            names = [value.value if isinstance(value, ast.Constant) else None for value in given] or [node.name]
            if role in ROLES and isinstance(names[0], str):
                yield MarkedDef(Mark(role, names[0]), node.name, node.lineno)


def find_marked(folder: Path, wanted: Collection[Mark]) -> list[MarkedInFile]:
    """Where the Python files of a folder mark functions as one of these, by file and line."""
    found: list[MarkedInFile] = []
    for file in sorted(folder.glob("*.py")):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        # parsing is slow, and few files have such a name in them at all
        if not any(mark.role.encode() in content and mark.name.encode() in content for mark in wanted):
            continue
        tree = parse_source(content)
        if tree is not None:
            statements = list(_top_level(tree.body))
            found += [MarkedInFile(file, one) for one in marked_defs(tree, statements) if one.mark in wanted]
    return found


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, those under ``if``, ``try`` and ``with`` included."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _top_level(handler.body)


def _renamed_decorators(tree: ast.Module) -> dict[str, str]:
    """The decorators that the file imports under another name."""
    return {
        alias.asname: alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None and alias.name in ROLES
    }

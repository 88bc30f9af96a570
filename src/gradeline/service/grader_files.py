"""Python graders: functions marked with @grader in the files of the one folder that the operator named."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from threading import Lock

from msgspec import Struct
from msgspec.structs import replace

from gradeline.api.threads import wait_for
from gradeline.errors import ConfigError
from gradeline.graders.registry import ALIASES, registry
from gradeline.usercode.loader import CodeSpec, Entry, Wanted
from gradeline.usercode.pool import WorkerPool

_ROLE = "grader"
_MARKED = re.compile(r"^[ \t]*@(?:\w+\.)*grader\b", re.MULTILINE)
_State = tuple[tuple[str, int, int], ...]


class PythonGrader(Struct, frozen=True, kw_only=True):
    """A function of a file, or a file that cannot be loaded: ``error`` says why then."""

    id: str
    reference: str
    """``file.py:function``, as the workers know it."""
    place: str = ""
    """``file.py:line``"""
    description: str = ""
    fingerprint: str = ""
    error: str | None = None


class GraderFolder:
    """The graders of a folder, loaded in worker processes; loaded anew when a file of it was changed.

    None of its code ever runs in this process. Thread-safe.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else Path(os.path.realpath(folder))
        self._lock = Lock()
        self._state: _State | None = None
        self._found: dict[str, PythonGrader] = {}

    def graders(self) -> dict[str, PythonGrader]:
        """What there is, by id, in the order of the files' names."""
        if self.folder is None:
            return {}
        with self._lock:
            state = _state(self.folder)
            if state != self._state:
                self._found = {one.id: one for one in _loaded(self.folder)}
                self._state = state
            return dict(self._found)

    def code(self, references: Iterable[str]) -> CodeSpec:
        """What a worker pool loads to run these graders."""
        return CodeSpec(str(self.folder), tuple(Wanted(_ROLE, reference) for reference in references))


def _state(folder: Path) -> _State:
    """What tells that a file was written to; helpers count too, for graders import them."""
    seen = []
    for path in sorted(folder.rglob("*.py")):
        try:
            stat = path.stat()
        except OSError:
            continue
        seen.append((str(path), stat.st_mtime_ns, stat.st_size))
    return tuple(seen)


def _loaded(folder: Path) -> list[PythonGrader]:
    files = [path.name for path in sorted(folder.glob("*.py")) if _holds_graders(path)]
    if not files:
        return []
    try:
        found = [_grader(folder, entry) for entry in _entries(folder, files)]
    except ConfigError:
        # one bad file must not hide the others
        found = [one for file in files for one in _of_file(folder, file)]
    return list(_unambiguous(found))


def _of_file(folder: Path, file: str) -> list[PythonGrader]:
    try:
        return [_grader(folder, entry) for entry in _entries(folder, [file])]
    except ConfigError as error:
        return [PythonGrader(id=file, reference=file, error=_without_folder(str(error).strip(), folder))]


def _entries(folder: Path, files: Sequence[str]) -> tuple[Entry, ...]:
    spec = CodeSpec(str(folder), tuple(Wanted(_ROLE, f"{file}:*") for file in files))

    async def load() -> tuple[Entry, ...]:
        async with WorkerPool(spec, size=1) as pool:
            return (await pool.start()).entries

    return wait_for(lambda _: load())


def _grader(folder: Path, entry: Entry) -> PythonGrader:
    return PythonGrader(
        id=entry.name,
        reference=entry.reference,
        place=f"{Path(entry.file).name}:{entry.line}",
        description=_docstring(folder / entry.file, entry.line),
        fingerprint=entry.fingerprint,
    )


def _unambiguous(found: Iterable[PythonGrader]) -> Iterator[PythonGrader]:
    """A name that two functions have, or that is a built-in's, names neither of them."""
    found = list(found)
    times = Counter(one.id for one in found)
    for one in found:
        if times[one.id] > 1:
            places = " and ".join(other.place for other in found if other.id == one.id)
            reason = f"{times[one.id]} functions are marked as grader {one.id!r}: {places}; rename all but one"
            yield _faulty(one, reason)
        elif one.error is None and (builtin := ALIASES.get(one.id, one.id)) in registry:
            reason = (
                f"the {registry.origin(builtin)} {one.id!r} has the name of this function ({one.place});"
                f' rename the function, for instance @grader(name="my_{one.id}")'
            )
            yield _faulty(one, reason)
        else:
            yield one


def _faulty(one: PythonGrader, error: str) -> PythonGrader:
    return replace(one, id=one.reference, error=error)


def _holds_graders(path: Path) -> bool:
    """Whether the text marks a grader; a helper that marks none is no concern of ours."""
    return path.is_file() and not path.name.startswith(".") and _MARKED.search(_text(path)) is not None


def _docstring(path: Path, line: int) -> str:
    """The first paragraph of what the function at that line says of itself; the file is read, never run."""
    try:
        tree = ast.parse(_text(path))
    except (SyntaxError, ValueError, RecursionError):
        return ""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            if first <= line <= node.lineno:
                return cleandoc(ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _without_folder(text: str, folder: Path) -> str:
    """Where the folder lies on the server is nobody's business."""
    return text.replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder of graders")

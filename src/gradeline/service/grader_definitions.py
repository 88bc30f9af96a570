"""Grader definitions from requests, checked before they are stored or run, and the graders of the operator's folder."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from inspect import cleandoc
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gradeline import graders
from gradeline.engine.lifecycle import wait_for
from gradeline.errors import ConfigError, DataError, Problem
from gradeline.graders.registry import ALIASES, registry
from gradeline.model import GraderProtocol, clean_data, clean_text, quote
from gradeline.service.errors import Code, ServiceError
from gradeline.service.run_access import ServiceEgress, definition_connections, definition_faults
from gradeline.usercode.loader import CodeRequest, CodeSpec, FunctionEntry
from gradeline.usercode.pool import WorkerPool

MAX_NAME = 100
MAX_DESCRIPTION = 500
MAX_CONFIG = 200_000
"""Maximum length of a config as JSON, in characters."""
ID_PATTERN = "^[A-Za-z0-9_.-]{1,100}$"
UNSAVED = "new"
"""The id of a definition that is not stored."""
PYTHON = "python"
"""The type of the operator's own functions, which cannot be defined over REST."""

_ID_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


class GraderDraft(NamedTuple):
    """A valid definition."""

    name: str
    description: str | None
    kind: str
    config: dict[str, Any]
    fingerprint: str


def read_definition(
    fields: Mapping[str, object], egress: ServiceEgress | None, allowed: Collection[str] = ()
) -> GraderDraft:
    """A definition: ``{name, description?, type or kind, config?, rules?}``, or `ServiceError`."""
    name, description = fields.get("name"), fields.get("description")
    if name is None:
        raise ServiceError(Code.MISSING_FIELD, "Field 'name' is required")
    name_ = checked_text("name", name, MAX_NAME)
    description_ = None
    if description is not None:
        description_ = checked_text("description", description, MAX_DESCRIPTION, least=0)
    kind = _checked_kind(fields)
    config = checked_config(_whole_config(fields))
    return GraderDraft(name_, description_, kind, config, build_grader(kind, config, egress, allowed).fingerprint)


def build_grader(
    kind: str, config: Mapping[str, Any], egress: ServiceEgress | None, allowed: Collection[str] = ()
) -> GraderProtocol:
    """The grader of a definition; `ServiceError` with all faults of the definition.

    ``allowed`` are the kinds of graders that may run programs.
    """
    try:
        grader = graders.create(kind, config)
        problems = list(definition_faults(kind, config, grader, allowed))
    except ConfigError as error:
        problems = list(error.problems)
    if problems:
        raise problems_error(Code.INVALID_GRADER, problems)
    if egress is not None:
        for connection in definition_connections(kind, config):
            if connection.base_url is not None:
                egress.check_url(connection.base_url, f"{connection.path}.{connection.url_option}")
    return grader


def _whole_config(fields: Mapping[str, object]) -> Mapping[str, Any]:
    """The config, including rules that are next to it."""
    config: Any = fields.get("config")
    config = {} if config is None else config
    rules = fields.get("rules")
    if rules is None:
        return dict(config)
    if "rules" in config:
        raise problems_error(Code.INVALID_GRADER, [Problem("rules", "is both next to and inside 'config'; keep one")])
    return {**config, "rules": rules}


def _checked_kind(fields: Mapping[str, object]) -> str:
    named = [str(fields[key]) for key in ("type", "kind") if fields.get(key) is not None]
    if not named:
        raise ServiceError(Code.MISSING_FIELD, "Field 'type' is required: the kind of the grader, such as custom-rules")
    if len(set(named)) > 1:
        problem = Problem("kind", f"{quote(named[1], 60)} is not the type {quote(named[0], 60)}; keep one")
        raise problems_error(Code.INVALID_GRADER, [problem])
    kind = ALIASES.get(named[0], named[0])
    if kind == PYTHON:
        problem = Problem("type", "Python graders are files in the operator's folder; see --graders-dir")
        raise problems_error(Code.INVALID_GRADER, [problem])
    try:
        known = not clean_text(kind).changed and registry.get(kind)
    except ConfigError as error:
        raise problems_error(Code.INVALID_GRADER, [problem.within("type") for problem in error.problems]) from None
    if not known:
        raise problems_error(Code.INVALID_GRADER, [Problem("type", f"no grader of the kind {quote(kind, 60)}")])
    return kind


def checked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config, if it can be stored unchanged."""
    try:
        cleaned: dict[str, Any] = clean_data(config, "config")
    except DataError as error:
        raise ServiceError(Code.INVALID_INPUT, f"Field 'config': {error}") from None
    if cleaned != config:
        raise ServiceError(Code.INVALID_INPUT, "Field 'config' contains NUL or half a surrogate pair; remove it")
    size = len(msgspec.json.encode(cleaned).decode())
    if size > MAX_CONFIG:
        reason = f"Field 'config' must have at most {MAX_CONFIG:,} characters as JSON, it has {size:,}"
        raise ServiceError(Code.INVALID_LENGTH, reason)
    return cleaned


def checked_id(wanted: object) -> str:
    """The id that a caller chose for a grader, if it is valid."""
    grader = checked_text("id", wanted, MAX_NAME)
    if grader == UNSAVED or not _ID_CHARACTERS.issuperset(grader):
        reason = f"Field 'id' must consist of letters a to z, digits, '-', '_' and '.', and must not be {UNSAVED!r}"
        raise ServiceError(Code.INVALID_INPUT, f"{reason}; got {quote(grader, 60)}")
    return grader


def checked_text(field: str, text: object, most: int, least: int = 1) -> str:
    """The text, if it is valid in a request."""
    if not isinstance(text, str):
        raise ServiceError(Code.INVALID_INPUT, f"Field '{field}' must be a string, got {quote(text, 60)}")
    if not least <= len(text) <= most:
        reason = f"Field '{field}' must have {least} to {most:,} characters, it has {len(text):,}"
        raise ServiceError(Code.INVALID_LENGTH, reason)
    if text and not text.strip():
        raise ServiceError(Code.INVALID_INPUT, f"Field '{field}' must not be blank")
    if clean_text(text).changed:
        raise ServiceError(Code.INVALID_INPUT, f"Field '{field}' contains NUL or half a surrogate pair; remove it")
    return text


def problems_error(code: Code, problems: Sequence[Problem]) -> ServiceError:
    """An error with all problems and their paths."""
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    errors = [{"field": problem.path, "message": problem.message} for problem in problems]
    return ServiceError(code, f"{first}{more}", details={"errors": errors})


_ROLE = "grader"
_MARKED = re.compile(r"^[ \t]*@(?:\w+\.)*grader\b", re.MULTILINE)
_State = tuple[tuple[str, int, int], ...]


class PythonGrader(Struct, frozen=True, kw_only=True):
    """A function in a file, or a file that cannot be loaded, with ``error`` as the reason."""

    id: str
    reference: str
    """``file.py:function``, as the workers load it."""
    place: str = ""
    """``file.py:line``"""
    description: str = ""
    fingerprint: str = ""
    error: str | None = None


class GraderFolder:
    """The graders of a folder, loaded in worker processes, and again when a file has changed.

    Its code never runs in this process. Thread-safe.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else Path(os.path.realpath(folder))
        self._lock = Lock()
        self._state: _State | None = None
        self._found: dict[str, PythonGrader] = {}

    def graders(self) -> dict[str, PythonGrader]:
        """The graders by id, in the order of the names of their files."""
        if self.folder is None:
            return {}
        with self._lock:
            state = _state(self.folder)
            if state != self._state:
                self._found = {one.id: one for one in _loaded(self.folder)}
                self._state = state
            return dict(self._found)

    def code(self, references: Iterable[str]) -> CodeSpec:
        """The code that a worker pool loads to run these graders."""
        return CodeSpec(str(self.folder), tuple(CodeRequest(_ROLE, reference) for reference in references))


def _state(folder: Path) -> _State:
    """The state of all files, including helper modules, which graders may import."""
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
        # one invalid file must not hide the others
        found = [one for file in files for one in _of_file(folder, file)]
    return list(_unambiguous(found))


def _of_file(folder: Path, file: str) -> list[PythonGrader]:
    try:
        return [_grader(folder, entry) for entry in _entries(folder, [file])]
    except ConfigError as error:
        return [PythonGrader(id=file, reference=file, error=_without_folder(str(error).strip(), folder))]


def _entries(folder: Path, files: Sequence[str]) -> tuple[FunctionEntry, ...]:
    spec = CodeSpec(str(folder), tuple(CodeRequest(_ROLE, f"{file}:*") for file in files))

    async def load() -> tuple[FunctionEntry, ...]:
        async with WorkerPool(spec, size=1) as pool:
            return (await pool.start()).entries

    return wait_for(lambda _: load())


def _grader(folder: Path, entry: FunctionEntry) -> PythonGrader:
    return PythonGrader(
        id=entry.name,
        reference=entry.reference,
        place=f"{Path(entry.file).name}:{entry.line}",
        description=_docstring(folder / entry.file, entry.line),
        fingerprint=entry.fingerprint,
    )


def _unambiguous(found: Iterable[PythonGrader]) -> Iterator[PythonGrader]:
    """Mark graders as faulty whose name belongs to several functions or to a built-in grader."""
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
    """Whether the file declares a grader; helper modules declare none."""
    return path.is_file() and not path.name.startswith(".") and _MARKED.search(_text(path)) is not None


def _docstring(path: Path, line: int) -> str:
    """The first paragraph of the docstring of the function at that line; the file is read, never run."""
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
    """The text without the path of the folder on the server."""
    return text.replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder of graders")

"""The files of a suite: executed once, remembered as they were read.

Only a worker process may call this.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from hashlib import sha256
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import NamedTuple

from gradeline.errors import closest
from gradeline.usercode.marks import ROLES, Mark

_SOURCE = "__gradeline_source__"
"""Set on each module whose bytes were read, so that a later edit of its file changes nothing."""


class Trouble(NamedTuple):
    """A fault before it is known which reference suffers from it."""

    message: str
    file: str | None = None
    line: int | None = None


class RefusedError(Exception):
    """A reference gives no function; carries one or more reasons."""

    def __init__(self, *troubles: Trouble) -> None:
        self.troubles = troubles


class Source(NamedTuple):
    """What is kept of a file's text: enough for fingerprints and for names given twice."""

    digest: str
    imports: tuple[tuple[int, str], ...]
    """(level of a relative import, dotted name)"""
    marked: tuple[tuple[Mark, int], ...]
    """What stands marked at the top level by this text, with the def's line."""


class SuiteFiles:
    """Loads files and modules, each once, and knows what was read of them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        self._failed: dict[Path | str, Trouble] = {}
        self._loaded: dict[Path, ModuleType] = {}
        self._sources: dict[Path, Source | None] = {}
        sys.path[:] = [str(self.folder), *(entry for entry in sys.path if entry != str(self.folder))]
        importlib.invalidate_caches()

    def path(self, file: str | Path) -> Path:
        """Absolute; links in folders are followed, for the import system compares texts."""
        whole = Path(self.folder, file)
        return Path(os.path.realpath(whole.parent), whole.name)

    def shown(self, path: str | Path) -> str:
        """As people know it: relative to the folder where it lies in it."""
        return Path(path).relative_to(self.folder).as_posix() if self.is_local(path) else str(path)

    def is_local(self, path: str | Path) -> bool:
        return str(path).startswith(f"{self.folder}{os.sep}")

    def python_files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.py") if path.is_file() and not path.name.startswith("."))

    def failures(self) -> list[Trouble]:
        return [trouble for key, trouble in self._failed.items() if isinstance(key, Path)]

    def local_modules(self) -> list[ModuleType]:
        """Every loaded module whose file lies in the folder, by path."""
        local = {
            file: module
            for module in list(sys.modules.values())
            if (file := file_of(module)) is not None and self.is_local(file)
        }
        return [module for _, module in sorted(local.items())]

    def load(self, path: Path) -> ModuleType:
        """The module of that file, under its plain name where ``import`` would give the same."""
        if path in self._failed:
            raise RefusedError(self._failed[path])
        if not path.is_file():
            raise RefusedError(self._no_file(path))
        module = self._module_of(path)
        if module is None:
            try:
                module = self._execute(path)
            except BaseException as error:
                self._failed[path] = _trouble(error, str(path), self)
                raise RefusedError(self._failed[path]) from None
        self._loaded[path] = module
        self.source(path)
        return module

    def load_module(self, name: str) -> ModuleType:
        """The module of that name; a file of the folder goes before anything installed."""
        local = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        if local.is_file():
            return self.load(local)
        if name in self._failed:
            raise RefusedError(self._failed[name])
        try:
            return _import(name)
        except BaseException as error:
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            if absent is not None and (name == absent or name.startswith(f"{absent}.")):
                known = [path.stem for path in self.python_files()]
                near = closest(name, known)
                remedy = f"did you mean {near!r}?" if near else f"install it or put it into {self.folder}"
                self._failed[name] = Trouble(f"no module named {absent!r}; {remedy}")
            else:
                self._failed[name] = _trouble(error, None, self)
            raise RefusedError(self._failed[name]) from None

    def source(self, path: Path) -> Source | None:
        """What the file said when it was loaded, or says now if it was not; None if it cannot be read."""
        if path not in self._sources:
            module = self._module_of(path)
            kept = vars(module).get(_SOURCE) if module else None
            source = kept if isinstance(kept, Source) else _read(path)
            if module:
                vars(module)[_SOURCE] = source
            self._sources[path] = source
        return self._sources[path]

    def digests(self, roots: Iterable[Path]) -> dict[str, str]:
        """SHA-256 by relative path of these files and of all in the folder that they import."""
        found: dict[str, str] = {}
        seen: set[Path] = set()
        todo = list(roots)
        while todo:
            path = todo.pop()
            source = None if path in seen else self.source(path)
            seen.add(path)
            if source is None:
                continue
            # Outside the folder only the name counts: where a machine keeps it decides no score.
            found[self.shown(path) if self.is_local(path) else path.name] = source.digest
            for level, name in source.imports:
                todo.extend(self._resolve(path, level, name))
        return found

    def _module_of(self, path: Path) -> ModuleType | None:
        loaded = (module for module in list(sys.modules.values()) if file_of(module) == str(path))
        return self._loaded.get(path) or next(loaded, None)

    def _execute(self, path: Path) -> ModuleType:
        name = self._import_name(path)
        if name is not None and _would_import(name, path):
            return _import(name)
        name = f"_gradeline_{sha256(os.fsencode(path)).hexdigest()[:12]}_{path.stem}"
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path.name} is no Python file")
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    def _import_name(self, path: Path) -> str | None:
        if not self.is_local(path):
            return None
        parts = path.relative_to(self.folder).with_suffix("").parts
        return ".".join(parts) if all(part.isidentifier() for part in parts) else None

    def _resolve(self, importer: Path, level: int, name: str) -> Iterator[Path]:
        """The files of the folder that importing this name runs: the module's and its packages'."""
        base = importer.parents[level - 1] if 0 < level <= len(importer.parents) else self.folder
        parts = name.split(".")
        for length in range(0 if level else 1, len(parts) + 1):
            stem = base.joinpath(*parts[:length])
            for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
                if self.is_local(path) and path.is_file():
                    yield path
                    break

    def _no_file(self, path: Path) -> Trouble:
        known = [known.name for known in self.python_files()]
        near = closest(path.name, known)
        hint = f"did you mean {near!r}?" if near else f"{self.folder} has {', '.join(known) or 'no .py files'}"
        return Trouble(f"no file {self.shown(path)!r}; {hint}")


def file_of(module: ModuleType) -> str | None:
    file = vars(module).get("__file__") if is_module(module) else None
    return file if isinstance(file, str) else None


def is_module(value: object) -> bool:
    """By type alone: isinstance asks the object, and a proxy may raise."""
    return issubclass(type(value), ModuleType)


def _import(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if not is_module(module):
        raise TypeError(
            f"{name} puts an object of type {type(module).__name__} in its own place in sys.modules; keep the module"
        )
    return module


def _would_import(name: str, path: Path) -> bool:
    """Whether ``import name`` would execute that file: the name may be the standard library's."""
    if name in sys.modules:
        return False
    try:
        spec = find_spec(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return False
    return spec is not None and spec.origin == str(path)


def _trouble(error: BaseException, file: str | None, files: SuiteFiles) -> Trouble:
    """Where in the file its loading ended, and why."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    frames = [(name, line) for name, line in frames if not name.startswith("<frozen") and name not in _OWN_FILES]
    if file is None:
        file, line = frames[-1] if frames else (None, None)
    else:
        line = next((line for name, line in reversed(frames) if name == file), None)
    if isinstance(error, SyntaxError) and error.filename == file:
        line = error.lineno
    message = _described(error)
    if frames and frames[-1][0] != file and files.is_local(frames[-1][0]):
        message += f" (raised at {files.shown(frames[-1][0])}:{frames[-1][1]})"
    return Trouble(message, file, line)


_OWN_FILES = (__file__, importlib.__file__)


def _described(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # an error that cannot even be shown is still only a fault
        text = "(its text cannot be shown)"
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{message}; install it or remove the import"
    if isinstance(error, SystemExit):
        return f'{message}; a file must not exit while it loads: put that under if __name__ == "__main__"'
    return message


def _read(path: Path) -> Source | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest = sha256(content).hexdigest()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Source(digest, (), ())
    return Source(digest, tuple(_imports(tree)), tuple(_marked_defs(tree)))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            yield from ((node.level, f"{prefix}{alias.name}") for alias in node.names)


def _marked_defs(tree: ast.Module) -> Iterator[tuple[Mark, int]]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            role = ast.unparse(call.func if call else decorator).rpartition(".")[2]
            given = [word.value for word in call.keywords if word.arg == "name"] if call else []
            names = [value.value if isinstance(value, ast.Constant) else None for value in given] or [node.name]
            if role in ROLES and isinstance(names[0], str):
                yield Mark(role, names[0]), node.lineno

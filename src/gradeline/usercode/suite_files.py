"""The Python files of a suite: each is executed once, and its text is read once."""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import ModuleType
from typing import NamedTuple

from gradeline.errors import closest_match
from gradeline.model.text import exception_text
from gradeline.usercode.decorators import Mark, MarkError, marked_functions, parse_source

_SOURCE = "__gradeline_source__"
"""The attribute of a loaded module that holds its `SourceText`, so that a later edit of its file has no effect."""


_PROJECT_FILES = ("pyproject.toml", "setup.py", ".git", ".gradeline")


def project_root(folder: str | Path) -> Path | None:
    """The nearest folder, from this one upwards, that has a project file; None where none has one."""
    start = Path(os.path.realpath(folder))
    return next((at for at in (start, *start.parents) if any((at / name).exists() for name in _PROJECT_FILES)), None)


def user_folders(folder: str | Path) -> tuple[str, ...]:
    """The folders of the user's own files: the suite's folder, then its project."""
    root = project_root(folder)
    own = os.path.realpath(folder)
    return (own,) if root is None or str(root) == own else (own, str(root))


class LoadProblem(NamedTuple):
    """Why a function or a file cannot be loaded, independent of the reference that needs it."""

    message: str
    file: str | None = None
    line: int | None = None
    of_file: bool = False
    """True if the file itself is faulty, whichever reference needs it."""


class UnresolvedError(Exception):
    """A reference cannot be resolved to a function, for one or more reasons."""

    def __init__(self, *problems: LoadProblem) -> None:
        self.problems = problems


class SourceText(NamedTuple):
    """What is stored of a file's text: enough for fingerprints and to detect duplicate names."""

    digest: str
    imports: tuple[tuple[int, str], ...]
    """(level of a relative import, dotted name)"""
    marked: tuple[tuple[Mark, int], ...]
    """The marks at the top level of the text, with the lines of the defs."""


class SuiteFiles:
    """Loads files and modules, each once, and stores what was read of them."""

    def __init__(
        self, folder: str | Path, on_load: Callable[[str], None] = lambda _: None, *, interruptible: bool = False
    ) -> None:
        """``on_load`` is called with a file, or the name of a module, before its code runs.

        ``interruptible``: Ctrl-C while a file loads is raised, instead of being a fault of the file.
        """
        self._on_load = on_load
        self._faults = Exception, SystemExit, GeneratorExit, *(() if interruptible else (KeyboardInterrupt,))
        self.folder = Path(os.path.realpath(folder))
        self._failed: dict[Path | str, LoadProblem] = {}
        self._loaded: dict[Path, ModuleType] = {}
        self._sources: dict[Path, SourceText | None] = {}
        self._by_file: dict[str | None, ModuleType] = {}
        self._indexed: tuple[int, str] | None = None
        self.root = project_root(self.folder) or self.folder
        self._import_from = _import_folders(self.folder, self.root)
        first = [str(folder) for folder in self._import_from]
        sys.path[:] = [*first, *(entry for entry in sys.path if entry not in first)]
        importlib.invalidate_caches()

    def path(self, file: str | Path) -> Path:
        """The absolute path; links in folders are resolved, since the import system compares strings."""
        whole = Path(self.folder, file)
        return Path(os.path.realpath(whole.parent), whole.name)

    def shown(self, path: str | Path) -> str:
        """The path for messages: relative to the folder for files in it."""
        return Path(path).relative_to(self.folder).as_posix() if self.is_local(path) else str(path)

    def is_local(self, path: str | Path) -> bool:
        return str(path).startswith(f"{self.folder}{os.sep}")

    def python_files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.py") if path.is_file() and not path.name.startswith("."))

    def failures(self) -> list[LoadProblem]:
        return [problem for key, problem in self._failed.items() if isinstance(key, Path)]

    def local_modules(self) -> list[ModuleType]:
        """All loaded modules whose file is in the folder, sorted by path."""
        local = {
            file: module
            for module in list(sys.modules.values())
            if (file := file_of(module)) is not None and self.is_local(file)
        }
        return [module for _, module in sorted(local.items())]

    def loaded_modules(self) -> list[ModuleType]:
        """The modules of the folder, and those of files elsewhere that references named."""
        return [*self.local_modules(), *self._loaded.values()]

    def refuse(self, source: str, problem: LoadProblem) -> None:
        """Do not load this file or module."""
        self._failed[Path(source) if source.endswith(".py") else source] = problem

    def load(self, path: Path) -> ModuleType:
        """The module of that file, under its plain name where ``import`` would find the same file."""
        if path in self._failed:
            raise UnresolvedError(self._failed[path])
        if not path.is_file():
            raise UnresolvedError(self._no_file(path))
        module = self._module_of(path)
        if module is None:
            self._on_load(str(path))
            try:
                module = self._execute(path)
            except self._faults as error:
                self._failed[path] = _problem_of(error, str(path), self)
                raise UnresolvedError(self._failed[path]) from None
        self._loaded[path] = module
        self.source(path)
        return module

    def load_module(self, name: str) -> ModuleType:
        """The module of that name; a file of the folder has priority over installed modules."""
        local = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        if local.is_file():
            return self.load(local)
        if name in self._failed:
            raise UnresolvedError(self._failed[name])
        self._on_load(name)
        try:
            return _import(name)
        except self._faults as error:
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            if absent is not None and (name == absent or name.startswith(f"{absent}.")):
                known = [path.stem for path in self.python_files()]
                near = closest_match(name, known)
                remedy = f"did you mean {near!r}?" if near else f"install it or put it into {self.folder}"
                self._failed[name] = LoadProblem(f"no module named {absent!r}; {remedy}")
            else:
                self._failed[name] = _problem_of(error, None, self)
            raise UnresolvedError(self._failed[name]) from None

    def source(self, path: Path) -> SourceText | None:
        """The file's text when it was loaded, or its present text; None if it cannot be read."""
        if path not in self._sources:
            module = self._module_of(path)
            stored = vars(module).get(_SOURCE) if module else None
            source = stored if isinstance(stored, SourceText) else _read(path)
            if module:
                vars(module)[_SOURCE] = source
            self._sources[path] = source
        return self._sources[path]

    def digests(self, roots: Iterable[Path]) -> dict[str, str]:
        """SHA-256 digests, by relative path, of these files and of all project files that they import."""
        found: dict[str, str] = {}
        seen: set[Path] = set()
        todo = list(roots)
        while todo:
            path = todo.pop()
            source = None if path in seen else self.source(path)
            seen.add(path)
            if source is None:
                continue
            found[self._digest_key(path)] = source.digest
            for level, name in source.imports:
                todo.extend(self._resolve(path, level, name))
        return found

    def _digest_key(self, path: Path) -> str:
        """The key of a file: outside the project only its name, since its location on a machine affects no score."""
        if self.is_local(path):
            return self.shown(path)
        return os.path.relpath(path, self.folder) if path.is_relative_to(self.root) else path.name

    def _module_of(self, path: Path) -> ModuleType | None:
        state = len(sys.modules), next(reversed(sys.modules), "")
        if state != self._indexed:
            self._indexed = state
            self._by_file = {file_of(module): module for module in reversed(list(sys.modules.values()))}
        return self._loaded.get(path) or self._by_file.get(str(path))

    def _execute(self, path: Path) -> ModuleType:
        name = self._import_name(path)
        if name is not None and _would_import(name, path):
            return _import(name)
        name = f"_gradeline_{sha256(os.fsencode(path)).hexdigest()[:12]}_{path.stem}"
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path.name} is not a Python file")
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
        """The project files that run when this name is imported: those of the module and of its packages."""
        parts = name.split(".")
        if level:
            bases: Sequence[Path] = importer.parents[level - 1 : level]
        elif parts[0] == "gradeline":  # its version is part of every run's fingerprint
            bases = ()
        else:
            regular = [base for base in self._import_from if _has_module(base, parts[0])]
            bases = regular[:1] or [base for base in self._import_from if (base / parts[0]).is_dir()]
        for base in bases:
            for length in range(0 if level else 1, len(parts) + 1):
                stem = base.joinpath(*parts[:length])
                for path in (stem / "__init__.py", stem.with_name(f"{stem.name}.py")):
                    if path.is_relative_to(self.root) and path.is_file():
                        yield path
                        break

    def _no_file(self, path: Path) -> LoadProblem:
        known = [known.name for known in self.python_files()]
        near = closest_match(path.name, known)
        hint = f"did you mean {near!r}?" if near else f"{self.folder} has {', '.join(known) or 'no .py files'}"
        return LoadProblem(f"no file {self.shown(path)!r}; {hint}")


def _import_folders(folder: Path, root: Path) -> list[Path]:
    """The first entries of ``sys.path``: the suite's folder, its project, and the project's ``src``."""
    source = root / "src"
    return list(dict.fromkeys([folder, root, *([source] if source.is_dir() else [])]))


def _has_module(folder: Path, name: str) -> bool:
    """True if an import finds the name here; a folder without ``__init__.py`` has the lowest priority."""
    return (folder / name / "__init__.py").is_file() or (folder / f"{name}.py").is_file()


def file_of(module: ModuleType) -> str | None:
    file = vars(module).get("__file__") if is_module(module) else None
    return file if isinstance(file, str) else None


def is_module(value: object) -> bool:
    """Checks only the type: `isinstance` runs code of the object, and a proxy may raise."""
    return issubclass(type(value), ModuleType)


def _import(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if not is_module(module):
        raise TypeError(
            f"{name} replaces itself in sys.modules with an object of type {type(module).__name__}; keep the module"
        )
    return module


def _would_import(name: str, path: Path) -> bool:
    """True if ``import name`` would execute that file, not a module of the same name elsewhere."""
    if name in sys.modules:
        return False
    try:
        spec = find_spec(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return False
    return spec is not None and spec.origin == str(path)


def _problem_of(error: BaseException, file: str | None, files: SuiteFiles) -> LoadProblem:
    """Why a file could not be loaded, and at which line."""
    if isinstance(error, MarkError):
        return LoadProblem(error.reason, *error.location)
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
    return LoadProblem(message, file, line)


_OWN_FILES = (__file__, importlib.__file__)


_DISTRIBUTIONS = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dotenv": "python-dotenv",
    "google.genai": "google-genai",
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""The package to install for modules whose name differs from that of their package."""
_EXTRAS = {"asyncpg": "postgres", "duckdb": "export", "ray": "ray", "wordllama": "embeddings"}
"""The extras of gradeline that install a module."""


def _how_to_install(module: str) -> str:
    from gradeline.compat.stand_ins import DISTRIBUTIONS  # loads importlib.abc, for this message only

    top = module.partition(".")[0]
    if top in _EXTRAS:
        return f"run: pip install 'gradeline[{_EXTRAS[top]}]'"
    package = _DISTRIBUTIONS.get(module) or _DISTRIBUTIONS.get(top) or DISTRIBUTIONS.get(top) or top
    return f"run: pip install {package}"


def _described(error: BaseException) -> str:
    text = exception_text(error)
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if isinstance(error, ImportError) and "pip install" in message:
        return message
    if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "letta_client":
        from gradeline.usercode.agent_factories import (  # only code for letta has such an import
            INSTALL_COMMAND,
            INSTALL_OLD_COMMAND,
        )

        return f"{message}; run: {INSTALL_COMMAND}, or for code from before its release 1.0: {INSTALL_OLD_COMMAND}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        return f"{message}; {_how_to_install(error.name)}, or remove the import"
    if isinstance(error, SystemExit):
        return f'{message}; a file must not exit while it loads: put that under if __name__ == "__main__"'
    return message


def _read(path: Path) -> SourceText | None:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest = sha256(content).hexdigest()
    tree = parse_source(content)
    if tree is None:
        return SourceText(digest, (), ())
    marked = tuple((found.mark, found.line) for found in marked_functions(tree))
    return SourceText(digest, tuple(_imports(tree)), marked)


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            prefix = f"{node.module}." if node.module else ""
            yield from ((node.level, f"{prefix}{alias.name}") for alias in node.names)

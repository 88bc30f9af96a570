"""Finds a suite's own functions and loads the files they stand in.

This executes people's code: only a worker process may call it. Whatever that code raises
while it loads, `SystemExit` included, comes back as a `LoadFault`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import msgspec

from gradeline.errors import closest
from gradeline.model.fingerprint import fingerprint
from gradeline.usercode.marks import ROLES, Mark, Place, innermost, mark_of, place

Function = Callable[..., Any]

_SETUP = "suite_setup"
_NEVER_DISCOVERED = frozenset({"__init__.py", "__main__.py"})
_SOURCE = "__gradeline_source__"
"""Set on each module whose bytes were read, so that a later edit of its file changes nothing."""


class Wanted(msgspec.Struct, frozen=True):
    """One function a suite asks for: ``name``, ``module:name`` or ``file.py:name``."""

    role: str
    reference: str


class CodeSpec(msgspec.Struct, frozen=True):
    """All that a suite asks for."""

    folder: str
    """The suite's folder, absolute; it becomes the first entry of ``sys.path``."""
    wanted: tuple[Wanted, ...]
    setup: str | None = None
    """``setup.py:function`` or ``module:function``; its module is loaded first, the function is not called."""
    exclude: tuple[str, ...] = ()
    """Files that discovery never loads, relative to the folder."""


class Entry(msgspec.Struct, frozen=True):
    """One function that was found. Call it by position; await what it returns if that is awaitable."""

    role: str
    reference: str
    name: str
    file: str
    line: int
    is_async: bool
    parameters: tuple[str, ...]
    fingerprint: str


class LoadFault(msgspec.Struct, frozen=True):
    """Why one reference gives no function, where, and what to do."""

    reference: str
    file: str | None
    line: int | None
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        return f"{where}{self.message}"


class Manifest(msgspec.Struct, frozen=True):
    """Everything that was found and everything that was not."""

    entries: tuple[Entry, ...]
    faults: tuple[LoadFault, ...]


class Loaded:
    """A manifest with its functions; ``setup`` also has an entry, of role ``suite_setup``."""

    def __init__(self, manifest: Manifest, functions: dict[tuple[str, str], Function], setup: Function | None) -> None:
        self.manifest = manifest
        self.setup = setup
        self._functions = functions

    def function(self, role: str, reference: str) -> Function:
        """The function that a reference stands for, or `LookupError` where a fault stands instead."""
        try:
            return self._functions[role, reference]
        except KeyError:
            raise LookupError(f"no {role} {reference!r} was loaded; see the manifest's faults") from None


def load(spec: CodeSpec) -> Loaded:
    """Load what a suite asks for. All faults are reported at once, in the manifest.

    A bare name is looked for in what the setup script imports and, when it is not there, in
    every ``*.py`` of the folder.
    """
    files = _Files(spec.folder)
    finder = _Finder(files, spec.exclude)
    functions: dict[tuple[str, str], Function] = {}
    entries: list[Entry] = []
    faults: list[LoadFault] = []
    setup = None
    if spec.setup is not None:
        try:
            found = finder.setup(spec.setup)
            entries.append(_entry(files, _SETUP, spec.setup, found))
            setup = found.function
        except _RefusedError as refusal:
            faults.extend(refusal.faults(spec.setup))
    for wanted in dict.fromkeys(spec.wanted):
        try:
            found = finder.find(wanted)
            entries.append(_entry(files, wanted.role, wanted.reference, found))
            functions[wanted.role, wanted.reference] = found.function
        except _RefusedError as refusal:
            faults.extend(refusal.faults(wanted.reference))
    return Loaded(Manifest(tuple(entries), tuple(faults)), functions, setup)


def list_marked(folder: str | Path, file: str | Path) -> Manifest:
    """Every marked function of one file, in the file's order; those it imports are not its own."""
    files = _Files(folder)
    try:
        module = files.load(files.path(file))
    except _RefusedError as refusal:
        return Manifest((), tuple(refusal.faults(str(file))))
    own = [found for found in _distinct(_marked([module])) if not _is_imported(found)]
    entries = [_entry(files, found.mark.role, f"{file}:{found.attribute}", found) for found in own]
    return Manifest(tuple(sorted(entries, key=lambda entry: (entry.line, entry.reference))), ())


class _Trouble(NamedTuple):
    """A fault before it is known which reference suffers from it."""

    message: str
    file: str | None = None
    line: int | None = None


class _RefusedError(Exception):
    """A reference gives no function; carries one or more reasons."""

    def __init__(self, *troubles: _Trouble) -> None:
        self.troubles = troubles

    def faults(self, reference: str) -> Iterator[LoadFault]:
        return (LoadFault(reference, file, line, message) for message, file, line in self.troubles)


class _Found(NamedTuple):
    """A function, the innermost one it wraps, and the module it was seen in."""

    attribute: str
    function: Function
    inner: Any
    """A `FunctionType`, which mypy would take for a method here."""
    mark: Mark
    module: ModuleType


class _Source(NamedTuple):
    """What is kept of a file's text: enough for fingerprints and for names given twice."""

    digest: str
    imports: tuple[tuple[int, str], ...]
    """(level of a relative import, dotted name)"""
    marked: tuple[tuple[Mark, int], ...]
    """What stands marked at the top level by this text, with the def's line."""


class _Files:
    """Loads files and modules, each once, and knows what was read of them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(os.path.realpath(folder))
        self._failed: dict[Path | str, _Trouble] = {}
        self._loaded: dict[Path, ModuleType] = {}
        self._sources: dict[Path, _Source | None] = {}
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

    def failures(self) -> list[_Trouble]:
        return [trouble for key, trouble in self._failed.items() if isinstance(key, Path)]

    def local_modules(self) -> list[ModuleType]:
        """Every loaded module whose file lies in the folder, by path."""
        local = {
            file: module
            for module in list(sys.modules.values())
            if (file := _file_of(module)) is not None and self.is_local(file)
        }
        return [module for _, module in sorted(local.items())]

    def load(self, path: Path) -> ModuleType:
        """The module of that file, under its plain name where ``import`` would give the same."""
        if path in self._failed:
            raise _RefusedError(self._failed[path])
        if not path.is_file():
            raise _RefusedError(self._no_file(path))
        module = self._module_of(path)
        if module is None:
            try:
                module = self._execute(path)
            except BaseException as error:
                self._failed[path] = _trouble(error, str(path), self)
                raise _RefusedError(self._failed[path]) from None
        self._loaded[path] = module
        self.source(path)
        return module

    def load_module(self, name: str) -> ModuleType:
        """The module of that name; a file of the folder goes before anything installed."""
        local = self.folder.joinpath(*name.split(".")).with_suffix(".py")
        if local.is_file():
            return self.load(local)
        if name in self._failed:
            raise _RefusedError(self._failed[name])
        try:
            return _import(name)
        except BaseException as error:
            absent = error.name if isinstance(error, ModuleNotFoundError) else None
            if absent is not None and (name == absent or name.startswith(f"{absent}.")):
                known = [path.stem for path in self.python_files()]
                near = closest(name, known)
                remedy = f"did you mean {near!r}?" if near else f"install it or put it into {self.folder}"
                self._failed[name] = _Trouble(f"no module named {absent!r}; {remedy}")
            else:
                self._failed[name] = _trouble(error, None, self)
            raise _RefusedError(self._failed[name]) from None

    def source(self, path: Path) -> _Source | None:
        """What the file said when it was loaded, or says now if it was not; None if it cannot be read."""
        if path not in self._sources:
            module = self._module_of(path)
            kept = vars(module).get(_SOURCE) if module else None
            source = kept if isinstance(kept, _Source) else _read(path)
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
        loaded = (module for module in list(sys.modules.values()) if _file_of(module) == str(path))
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

    def _no_file(self, path: Path) -> _Trouble:
        known = [known.name for known in self.python_files()]
        near = closest(path.name, known)
        hint = f"did you mean {near!r}?" if near else f"{self.folder} has {', '.join(known) or 'no .py files'}"
        return _Trouble(f"no file {self.shown(path)!r}; {hint}")


class _Finder:
    """Answers references, with one look through the folder for all bare names."""

    def __init__(self, files: _Files, exclude: Iterable[str]) -> None:
        self._files = files
        self._exclude = {files.path(file) for file in exclude}
        self._imported: list[ModuleType] = []
        self._everything: list[ModuleType] | None = None

    def setup(self, reference: str) -> _Found:
        """The setup function, marked or not; what its module imports becomes known."""
        module, name = self._module(reference)
        bound = [value for value in vars(module).values() if _is_module(value)]
        self._imported = [module, *self._files.local_modules(), *bound]
        if name in vars(module) and mark_of(vars(module)[name]) is None:
            value = vars(module)[name]
            inner = innermost(value)
            if not callable(value) or inner is None:
                raise _RefusedError(self._no_function(name, value, module))
            fault = ROLES[_SETUP].fault(inner)
            # The seed's own setup has no mark, and such a one may call its one parameter what it likes.
            if fault is not None and inner.__code__.co_argcount != 1:
                described = f"{inner.__name__}{inspect.signature(inner)} cannot set up a suite: {fault}"
                raise _RefusedError(_Trouble(described, *place(inner)))
            return _Found(name, value, inner, Mark(_SETUP, name), module)
        return self._named(_SETUP, name, module)

    def find(self, wanted: Wanted) -> _Found:
        if ":" not in wanted.reference:
            return self._bare(wanted.role, wanted.reference)
        module, name = self._module(wanted.reference)
        return self._named(wanted.role, name, module)

    def _module(self, reference: str) -> tuple[ModuleType, str]:
        where, _, name = reference.rpartition(":")
        if not where or not name:
            raise _RefusedError(_Trouble(f"{reference!r} names no function; write file.py:function or module:function"))
        if where.endswith(".py"):
            path = self._files.path(where)
            self._exclude.add(path)  # loaded here: discovery has nothing left to do with it
            return self._files.load(path), name
        return self._files.load_module(where), name

    def _named(self, role: str, name: str, module: ModuleType) -> _Found:
        """By its name in the module, else by the name its mark gives it."""
        if name not in vars(module):
            marked = [found for found in _marked([module]) if found.mark == Mark(role, name)]
            if not marked:
                raise _RefusedError(self._not_found(role, name, [module], _file_of(module)))
            return self._only(role, marked)
        value = vars(module)[name]
        mark, inner = mark_of(value), innermost(value)
        if not callable(value) or inner is None:
            raise _RefusedError(self._no_function(name, value, module))
        if mark is None:
            raise _RefusedError(self._unmarked(role, name, inner, module))
        found = _Found(name, value, inner, mark, module)
        if mark.role != role:
            raise _RefusedError(_other_role(role, found))
        return self._only(role, [found])

    def _bare(self, role: str, name: str) -> _Found:
        known = self._imported
        marked = [found for found in _marked(known) if found.mark == Mark(role, name)]
        if not marked:
            known = self._discovered()
            marked = [found for found in _marked(known) if found.mark == Mark(role, name)]
        if not marked:
            raise _RefusedError(*self._why_not(role, name, known))
        found = self._only(role, marked)
        if role == "grader" and name in _builtin_graders():
            message = f"{name!r} is a built-in grader's name; rename this one, for instance @grader(name='my_{name}')"
            raise _RefusedError(_Trouble(message, *place(found.inner)))
        return found

    def _discovered(self) -> list[ModuleType]:
        if self._everything is None:
            for path in self._files.python_files():
                if path.name not in _NEVER_DISCOVERED and path not in self._exclude:
                    try:
                        self._files.load(path)
                    except _RefusedError:
                        continue  # remembered: it matters only if a name is found nowhere
            self._everything = [*self._imported, *self._files.local_modules()]
        return self._everything

    def _only(self, role: str, marked: list[_Found]) -> _Found:
        """The one function among these, or a refusal that names all places."""
        distinct = _distinct(marked)
        first = distinct[0]
        places = [place(found.inner) for found in distinct]
        if len(distinct) == 1:
            file = places[0].file
            source = self._files.source(self._files.path(file))
            # A second def of one name leaves no trace of the first but in the text.
            places = [Place(file, line) for mark, line in (source.marked if source else ()) if mark == first.mark]
            if len(places) < 2:
                return first
        shown = " and ".join(f"{self._files.shown(file)}:{line}" for file, line in places)
        message = f"{len(places)} functions are marked as {role} {first.mark.name!r}: {shown}; rename one"
        raise _RefusedError(_Trouble(message, *places[0]))

    def _why_not(self, role: str, name: str, known: list[ModuleType]) -> Iterator[_Trouble]:
        other = [found for found in _marked(known) if found.mark.name == name or found.attribute == name]
        if other and all(found.mark.role != role for found in other):
            yield _other_role(role, other[0])
            return
        for module in known:
            value = vars(module).get(name)
            if type(value) is not FunctionType or mark_of(value) is not None:
                continue
            if self._files.is_local(value.__code__.co_filename):
                yield self._unmarked(role, name, value, module)
                return
        failures = self._files.failures()
        guilty = [trouble for trouble in failures if _mentions(trouble.file, name)]
        if not guilty:
            yield self._not_found(role, name, known, None)
        for trouble in guilty or failures:
            message = f"this file could not be loaded, and no {role} named {name!r} is elsewhere: {trouble.message}"
            yield trouble._replace(message=message)

    def _not_found(self, role: str, name: str, modules: list[ModuleType], file: str | None) -> _Trouble:
        names = sorted({found.mark.name for found in _marked(modules) if found.mark.role == role})
        near = closest(name, names)
        hint = f"did you mean {near!r}? " if near else ""
        where = self._files.shown(file) if file else f"a .py file of {self._files.folder}"
        what = f"found: {', '.join(names)}" if names else f"no function there is marked @{role}"
        return _Trouble(f"no {role} named {name!r} in {where}; {hint}{what}", file)

    def _unmarked(self, role: str, name: str, inner: FunctionType, module: ModuleType) -> _Trouble:
        file = _file_of(module)
        source = self._files.source(Path(file)) if file else None
        for mark, line in source.marked if source else ():
            if mark == Mark(role, name):
                return _Trouble(
                    f"{name!r} lost its mark to a decorator above @{role}; give that functools.wraps", file, line
                )
        return _Trouble(f"{name!r} is not marked; add @{role} above def {inner.__name__}", *place(inner))

    def _no_function(self, name: str, value: object, module: ModuleType) -> _Trouble:
        return _Trouble(f"{name!r} is of type {type(value).__name__}, not a function; name a def", _file_of(module))


def _entry(files: _Files, role: str, reference: str, found: _Found) -> Entry:
    inner = found.inner
    where = place(inner)
    roots = {files.path(file) for file in (where.file, _file_of(found.module)) if file is not None}
    return Entry(
        role,
        reference,
        found.mark.name,
        where.file,
        where.line,
        # Letta wraps async graders in plain functions that return the coroutine.
        inspect.iscoroutinefunction(found.function) or inspect.iscoroutinefunction(inner),
        tuple(inspect.signature(inner).parameters),
        fingerprint("usercode", role, found.mark.name, inner.__qualname__, files.digests(roots)),
    )


def _marked(modules: Iterable[ModuleType]) -> Iterator[_Found]:
    for module in {id(module): module for module in modules}.values():
        for attribute, value in list(vars(module).items()):
            mark = mark_of(value)
            inner = innermost(value) if mark else None
            if mark and inner and callable(value):
                yield _Found(attribute, value, inner, mark, module)


def _distinct(marked: Iterable[_Found]) -> list[_Found]:
    """One for each function, as its own module has it; imports and aliases are not others."""
    groups: list[list[_Found]] = []
    for found in marked:
        group = next((group for group in groups if _is_same(group[0], found)), None)
        if group is None:
            groups.append([found])
        else:
            group.append(found)
    return [max(group, key=_is_at_home) for group in groups]


def _is_same(one: _Found, other: _Found) -> bool:
    if one.mark != other.mark:
        return False
    # A file that was executed under two module names gives two objects of one function.
    twice = one.module is not other.module and one.attribute == other.attribute
    return one.inner is other.inner or (twice and place(one.inner) == place(other.inner))


def _is_at_home(found: _Found) -> tuple[bool, bool]:
    return found.inner.__module__ == found.module.__name__, found.attribute == found.inner.__name__


def _is_imported(found: _Found) -> bool:
    home = sys.modules.get(found.inner.__module__)
    return home is not None and home is not found.module and any(v is found.function for v in vars(home).values())


def _other_role(role: str, found: _Found) -> _Trouble:
    message = f"{found.mark.name!r} is marked @{found.mark.role}, not @{role}; name a function marked @{role}"
    return _Trouble(message, *place(found.inner))


def _builtin_graders() -> set[str]:
    # The registry brings all of gradeline.graders with it: only bare names of graders need it.
    from gradeline.graders.registry import ALIASES, BUILTINS

    return {*BUILTINS, *ALIASES}


def _file_of(module: ModuleType) -> str | None:
    file = vars(module).get("__file__") if _is_module(module) else None
    return file if isinstance(file, str) else None


def _is_module(value: object) -> bool:
    """By type alone: isinstance asks the object, and a proxy may raise."""
    return issubclass(type(value), ModuleType)


def _import(name: str) -> ModuleType:
    module = importlib.import_module(name)
    if not _is_module(module):
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


def _mentions(file: str | None, name: str) -> bool:
    try:
        return file is not None and re.search(rf"\b{re.escape(name)}\b".encode(), Path(file).read_bytes()) is not None
    except OSError:
        return False


def _trouble(error: BaseException, file: str | None, files: _Files) -> _Trouble:
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
    return _Trouble(message, file, line)


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


def _read(path: Path) -> _Source | None:
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
        return _Source(digest, (), ())
    return _Source(digest, tuple(_imports(tree)), tuple(_marked_defs(tree)))


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

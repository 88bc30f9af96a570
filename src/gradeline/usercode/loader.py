"""Find the functions that a suite names.

This executes user code: call it only in a worker process. An exception while code loads, `SystemExit` included, becomes
a `LoadFault`.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import msgspec

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model.fingerprint import fingerprint
from gradeline.usercode.decorators import (
    ROLES,
    Mark,
    SourceLocation,
    definition_location,
    mark_of,
    name_conflict,
    unwrapped_function,
)
from gradeline.usercode.function_calls import ParameterError, read_parameters
from gradeline.usercode.process_control import GRADER_MEMORY
from gradeline.usercode.suite_files import LoadProblem, SuiteFiles, UnresolvedError, file_of, is_module

Function = Callable[..., Any]

TARGET = "target"
"""The role of a function that is the agent itself; it needs no decorator."""
SETUP = "suite_setup"
"""The role of a suite's setup function."""
_PACKAGES = frozenset({"gradeline", "letta_evals"})
"""The packages of built-in functions: importing one of these does not define a user function."""
_NEVER_DISCOVERED = frozenset({"__init__.py", "__main__.py"})


class CodeRequest(msgspec.Struct, frozen=True):
    """A function that a suite names: ``name``, ``module:name``, ``file.py:name``, or ``file.py:*`` for all of it."""

    role: str
    reference: str
    memory: int = GRADER_MEMORY
    """Memory limit of the process that runs it, in bytes; 0: no limit."""


class ReservedName(msgspec.Struct, frozen=True):
    """A bare name that a suite uses for one of gradeline's graders or extractors; ``origin`` describes that one."""

    role: str
    name: str
    origin: str


class LoadFailure(msgspec.Struct, frozen=True):
    """A file, or a module by name, that must not be loaded again: it ended the process or hung."""

    source: str
    file: str
    line: int | None
    message: str


class CodeSpec(msgspec.Struct, frozen=True):
    """All functions that a suite names."""

    folder: str
    """The suite's folder, absolute; it becomes the first entry of ``sys.path``."""
    requests: tuple[CodeRequest, ...]
    setup: str | None = None
    """``setup.py:function`` or ``module:function``; its module is loaded first, and the function is not called."""
    exclude: tuple[str, ...] = ()
    """Files that discovery never loads, relative to the folder."""
    reserved: tuple[ReservedName, ...] = ()
    """Names that no loaded function may have."""
    failed: tuple[LoadFailure, ...] = ()
    """Files and modules that are not loaded, since they failed before; a fault where a reference needs one."""


class FunctionEntry(msgspec.Struct, frozen=True):
    """A function that was found. Call it with positional arguments, and await its result if that is awaitable."""

    role: str
    reference: str
    name: str
    file: str
    line: int
    is_async: bool
    parameters: tuple[str, ...]
    fingerprint: str


class LoadFault(msgspec.Struct, frozen=True):
    """Why a reference cannot be resolved, where, and what to do."""

    reference: str
    file: str | None
    line: int | None
    message: str
    role: str = ""
    """The role of the reference; empty where a file itself is faulty."""

    @property
    def location(self) -> str:
        """The file and line, or the reference where no file is known."""
        if self.file is None:
            return self.reference
        return self.file if self.line is None else f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.location}: {self.message}" if self.file else self.message


class LoadError(ConfigError):
    """Code of a suite cannot be loaded: ``faults`` has the reasons as data, ``problems`` as text."""

    def __init__(self, faults: Iterable[LoadFault]) -> None:
        self.faults = tuple(faults)
        super().__init__(Problem(fault.location, fault.message) for fault in self.faults)


class Manifest(msgspec.Struct, frozen=True):
    """The functions that were found, and a fault for each that was not."""

    entries: tuple[FunctionEntry, ...]
    faults: tuple[LoadFault, ...]


class LoadedFunctions:
    """A manifest with its functions; ``setup`` also has an entry, of role ``suite_setup``."""

    def __init__(self, manifest: Manifest, functions: dict[tuple[str, str], Function], setup: Function | None) -> None:
        self.manifest = manifest
        self.setup = setup
        self._functions = functions

    def function(self, role: str, reference: str) -> Function:
        """The function that a reference names, or `LookupError` where there is a fault instead."""
        try:
            return self._functions[role, reference]
        except KeyError:
            raise LookupError(f"no {role} {reference!r} was loaded; see the manifest's faults") from None


def load(
    spec: CodeSpec, on_load: Callable[[str], None] = lambda _: None, *, interruptible: bool = False
) -> LoadedFunctions:
    """Load the functions that a suite names. The manifest reports all faults at once.

    ``on_load`` is called with a file, or the name of a module, before its code runs.

    A bare name is searched in the modules that the setup script imports, then in all ``*.py`` files of the folder.
    ``interruptible`` is for the user's own process, where Ctrl-C ends the command.
    """
    files = SuiteFiles(spec.folder, on_load, interruptible=interruptible)
    for failed in spec.failed:
        files.refuse(failed.source, LoadProblem(failed.message, failed.file, failed.line))
    finder = _Finder(files, spec.exclude)
    functions: dict[tuple[str, str], Function] = {}
    entries: list[FunctionEntry] = []
    faults: list[LoadFault] = []
    setup = None
    if spec.setup is not None:
        try:
            found = finder.setup(spec.setup)
            entries.append(_entry(files, SETUP, spec.setup, found))
            setup = found.function
        except UnresolvedError as refusal:
            faults.extend(_faults(refusal, SETUP, spec.setup))
    for request in dict.fromkeys(spec.requests):
        try:
            for reference, found in finder.find(request):
                entries.append(_entry(files, request.role, reference, found))
                functions[request.role, reference] = found.function
        except UnresolvedError as refusal:
            faults.extend(_faults(refusal, request.role, request.reference))
    for reserved in dict.fromkeys(spec.reserved):
        try:
            finder.check_reserved(reserved)
        except UnresolvedError as refusal:
            faults.extend(_faults(refusal, reserved.role, reserved.name))
    return LoadedFunctions(Manifest(tuple(entries), tuple(faults)), functions, setup)


def _faults(refusal: UnresolvedError, role: str, reference: str) -> Iterator[LoadFault]:
    for problem in refusal.problems:
        if problem.of_file:
            yield LoadFault("", problem.file, problem.line, problem.message)
        else:
            yield LoadFault(reference, problem.file, problem.line, problem.message, role)


class _FoundFunction(NamedTuple):
    """A function, the innermost function that it wraps, and the module where it was found."""

    attribute: str
    function: Function
    inner: Any
    """A `FunctionType`, which mypy would take for a method here."""
    mark: Mark
    module: ModuleType


class _Finder:
    """Resolves references; searches the folder once for all bare names."""

    def __init__(self, files: SuiteFiles, exclude: Iterable[str]) -> None:
        self._files = files
        self._exclude = {files.path(file) for file in exclude}
        self._imported: list[ModuleType] = []
        self._everything: list[ModuleType] | None = None

    def setup(self, reference: str) -> _FoundFunction:
        """The setup function, with or without a decorator; bare names are then searched in its imports first."""
        module, name = self._module(reference)
        bound = [value for value in vars(module).values() if is_module(value)]
        self._imported = [module, *self._files.local_modules(), *bound]
        if name in vars(module) and mark_of(vars(module)[name]) is None:
            value = vars(module)[name]
            inner = unwrapped_function(value)
            if not callable(value) or inner is None:
                raise UnresolvedError(self._not_a_function(name, value, module))
            fault = ROLES[SETUP].fault(inner)
            # A setup function without a decorator may give its one parameter any name.
            if fault is not None and inner.__code__.co_argcount != 1:
                described = f"{inner.__name__}{inspect.signature(inner)} cannot set up a suite: {fault}"
                raise UnresolvedError(LoadProblem(described, *definition_location(inner)))
            return _FoundFunction(name, value, inner, Mark(SETUP, name), module)
        return self._named(SETUP, name, module)

    def find(self, request: CodeRequest) -> list[tuple[str, _FoundFunction]]:
        """The functions that a request names, each with a reference of its own."""
        if ":" not in request.reference:
            return [(request.reference, self._bare(request.role, request.reference))]
        module, name = self._module(request.reference)
        if name == "*":
            return self._all_of_file(request, module)
        if request.role == TARGET:
            return [(request.reference, self._target(name, module))]
        if request.role == "agent_factory" and isinstance(vars(module).get(name), type):
            return [(request.reference, self._factory_class(name, module))]
        return [(request.reference, self._named(request.role, name, module))]

    def _factory_class(self, name: str, module: ModuleType) -> _FoundFunction:
        """A class that creates agents, which needs no decorator."""
        factory = vars(module)[name]
        method = getattr(factory, "create_agent", None) or vars(factory).get("__call__")
        inner = unwrapped_function(method)
        if inner is None:
            message = f"the class {name!r} creates no agents; add async def create_agent(self, client, sample) -> str"
            raise UnresolvedError(LoadProblem(message, file_of(module)))
        return _FoundFunction(name, factory, inner, Mark("agent_factory", name), module)

    def _target(self, name: str, module: ModuleType) -> _FoundFunction:
        """A function that needs no decorator."""
        if name not in vars(module):
            known = [other for other, value in vars(module).items() if unwrapped_function(value) is not None]
            near = closest_match(name, known)
            raise UnresolvedError(
                LoadProblem(f"no function {name!r}" + (f"; did you mean {near!r}?" if near else ""), file_of(module))
            )
        value = vars(module)[name]
        inner = unwrapped_function(value)
        if not callable(value) or inner is None:
            raise UnresolvedError(self._not_a_function(name, value, module))
        try:
            read_parameters(value)
        except ParameterError as error:
            described = f"{inner.__name__}{inspect.signature(inner)} {error}"
            raise UnresolvedError(LoadProblem(described, *definition_location(inner))) from None
        return _FoundFunction(name, value, inner, Mark(TARGET, name), module)

    def _all_of_file(self, request: CodeRequest, module: ModuleType) -> list[tuple[str, _FoundFunction]]:
        """All functions of the role that the file itself defines, in its order."""
        marked = [found for found in _marked_functions([module]) if found.mark.role == request.role]
        own = [self._only(request.role, [found]) for found in _distinct(marked) if not _is_imported(found)]
        if not own:
            raise UnresolvedError(LoadProblem(f"no function is marked @{request.role}", file_of(module)))
        where = request.reference.removesuffix("*")
        return [
            (f"{where}{found.attribute}", found)
            for found in sorted(own, key=lambda found: definition_location(found.inner).line)
        ]

    def _module(self, reference: str) -> tuple[ModuleType, str]:
        where, _, name = reference.rpartition(":")
        if not where or not name:
            raise UnresolvedError(
                LoadProblem(f"{reference!r} does not name a function; write file.py:function or module:function")
            )
        if where.endswith(".py"):
            path = self._files.path(where)
            self._exclude.add(path)  # loaded here, so discovery must not load it
            return self._files.load(path), name
        return self._files.load_module(where), name

    def _named(self, role: str, name: str, module: ModuleType) -> _FoundFunction:
        """The function with this name in the module, else the one whose mark has this name."""
        if name not in vars(module):
            marked = [found for found in _marked_functions([module]) if found.mark == Mark(role, name)]
            if not marked:
                raise UnresolvedError(self._not_found(role, name, [module], file_of(module)))
            return self._only(role, marked)
        value = vars(module)[name]
        mark, inner = mark_of(value), unwrapped_function(value)
        if not callable(value) or inner is None:
            raise UnresolvedError(self._not_a_function(name, value, module))
        if mark is None:
            raise UnresolvedError(self._unmarked(role, name, inner, module))
        found = _FoundFunction(name, value, inner, mark, module)
        if mark.role != role:
            raise UnresolvedError(_other_role(role, found))
        return self._only(role, [found])

    def _bare(self, role: str, name: str) -> _FoundFunction:
        known = self._imported
        marked = [found for found in _marked_functions(known) if found.mark == Mark(role, name)]
        if not marked:
            known = self._discovered()
            marked = [found for found in _marked_functions(known) if found.mark == Mark(role, name)]
        if not marked:
            raise UnresolvedError(*self._why_not(role, name, known))
        if name in _builtins(role):
            raise UnresolvedError(self._name_conflict(ReservedName(role, name, f"built-in {role}"), marked))
        return self._only(role, marked)

    def check_reserved(self, reserved: ReservedName) -> None:
        """Refuse a loaded function whose name the suite uses for one of gradeline's."""
        known = [*self._imported, *self._files.loaded_modules()]
        marked = [found for found in _marked_functions(known) if found.mark == Mark(reserved.role, reserved.name)]
        own = [found for found in marked if found.inner.__module__.partition(".")[0] not in _PACKAGES]
        if own:
            raise UnresolvedError(self._name_conflict(reserved, own))

    def _name_conflict(self, reserved: ReservedName, marked: list[_FoundFunction]) -> LoadProblem:
        distinct = _distinct(marked)
        locations = [definition_location(found.inner) for found in distinct]
        shown = [f"{self._files.shown(file)}:{line}" for file, line in locations]
        reference = self._reference(distinct[0])
        return LoadProblem(
            name_conflict(reserved.role, reserved.name, reserved.origin, shown, reference), *locations[0]
        )

    def _reference(self, found: _FoundFunction) -> str:
        """A reference that names only this function."""
        file = file_of(found.module)
        where = self._files.shown(file) if file and self._files.is_local(file) else found.module.__name__
        return f"{where}:{found.attribute}"

    def _discovered(self) -> list[ModuleType]:
        if self._everything is None:
            for path in self._files.python_files():
                if path.name not in _NEVER_DISCOVERED and path not in self._exclude:
                    try:
                        self._files.load(path)
                    except UnresolvedError:
                        continue  # `failures` reports it if a name is not found
            self._everything = [*self._imported, *self._files.local_modules()]
        return self._everything

    def _only(self, role: str, marked: list[_FoundFunction]) -> _FoundFunction:
        """The one function among these; `UnresolvedError` with all locations where there are several."""
        distinct = _distinct(marked)
        first = distinct[0]
        locations = [definition_location(found.inner) for found in distinct]
        if len(distinct) == 1:
            file = locations[0].file
            source = self._files.source(self._files.path(file))
            # A second def with the same name replaces the first, so only the source text shows both.
            locations = [
                SourceLocation(file, line) for mark, line in (source.marked if source else ()) if mark == first.mark
            ]
            if len(locations) < 2:
                return first
        shown = " and ".join(f"{self._files.shown(file)}:{line}" for file, line in locations)
        message = f"{len(locations)} functions are marked as {role} {first.mark.name!r}: {shown}; rename one"
        raise UnresolvedError(LoadProblem(message, *locations[0]))

    def _why_not(self, role: str, name: str, known: list[ModuleType]) -> Iterator[LoadProblem]:
        other = [found for found in _marked_functions(known) if found.mark.name == name or found.attribute == name]
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
        yield self._not_found(role, name, known, None)
        failures = self._files.failures()
        related = [problem for problem in failures if _mentions(problem.file, name)]
        for problem in related or failures:
            yield problem._replace(of_file=True)

    def _not_found(self, role: str, name: str, modules: list[ModuleType], file: str | None) -> LoadProblem:
        names = sorted({found.mark.name for found in _marked_functions(modules) if found.mark.role == role})
        builtins = [] if file else sorted(_builtins(role))
        near = closest_match(name, [*names, *builtins])
        built_in = f"the built-in {role} " if near in builtins and near not in names else ""
        hint = f"did you mean {built_in}{near!r}? " if near else ""
        where = self._files.shown(file) if file else f"a .py file of {self._files.folder}"
        what = f"found: {', '.join(names)}" if names else f"no function is marked @{role}"
        failures = "" if file else self._failures()
        return LoadProblem(f"no {role} named {name!r} in {where}; {hint}{what}{failures}", file)

    def _failures(self) -> str:
        """The files that could not be loaded, which may define the function."""
        failed = [self._files.shown(problem.file) for problem in self._files.failures() if problem.file]
        return f"; {', '.join(failed)} could not be loaded" if failed else ""

    def _unmarked(self, role: str, name: str, inner: FunctionType, module: ModuleType) -> LoadProblem:
        file = file_of(module)
        source = self._files.source(Path(file)) if file else None
        for mark, line in source.marked if source else ():
            if mark == Mark(role, name):
                return LoadProblem(
                    f"a decorator above @{role} hides the mark of {name!r}; use functools.wraps in it", file, line
                )
        return LoadProblem(
            f"{name!r} is not marked; add @{role} above def {inner.__name__}", *definition_location(inner)
        )

    def _not_a_function(self, name: str, value: object, module: ModuleType) -> LoadProblem:
        return LoadProblem(f"{name!r} is of type {type(value).__name__}, not a function; name a def", file_of(module))


def _entry(files: SuiteFiles, role: str, reference: str, found: _FoundFunction) -> FunctionEntry:
    inner = found.inner
    where = definition_location(inner)
    roots = {files.path(file) for file in (where.file, file_of(found.module)) if file is not None}
    return FunctionEntry(
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


def _marked_functions(modules: Iterable[ModuleType]) -> Iterator[_FoundFunction]:
    for module in {id(module): module for module in modules}.values():
        for attribute, value in list(vars(module).items()):
            mark = mark_of(value)
            inner = unwrapped_function(value) if mark else None
            if mark and inner and callable(value):
                yield _FoundFunction(attribute, value, inner, mark, module)


def _distinct(marked: Iterable[_FoundFunction]) -> list[_FoundFunction]:
    """One entry per function, as its own module has it; imports and aliases count as the same."""
    groups: list[list[_FoundFunction]] = []
    for found in marked:
        group = next((group for group in groups if _is_same(group[0], found)), None)
        if group is None:
            groups.append([found])
        else:
            group.append(found)
    return [max(group, key=_is_at_home) for group in groups]


def _is_same(one: _FoundFunction, other: _FoundFunction) -> bool:
    if one.mark != other.mark:
        return False
    # A file that was executed under two module names has two objects of one function.
    twice = one.module is not other.module and one.attribute == other.attribute
    return one.inner is other.inner or (twice and definition_location(one.inner) == definition_location(other.inner))


def _is_at_home(found: _FoundFunction) -> tuple[bool, bool]:
    return found.inner.__module__ == found.module.__name__, found.attribute == found.inner.__name__


def _is_imported(found: _FoundFunction) -> bool:
    home = sys.modules.get(found.inner.__module__)
    return home is not None and home is not found.module and any(v is found.function for v in vars(home).values())


def _other_role(role: str, found: _FoundFunction) -> LoadProblem:
    message = f"{found.mark.name!r} is marked @{found.mark.role}, not @{role}; name a function marked @{role}"
    return LoadProblem(message, *definition_location(found.inner))


def _builtins(role: str) -> set[str]:
    # Importing the registries is slow, and only bare names need them.
    if role == "grader":
        from gradeline.graders.registry import ALIASES, BUILTINS

        return {*BUILTINS, *ALIASES}
    if role == "extractor":
        from gradeline.extractors.base import BUILTINS as EXTRACTORS

        return set(EXTRACTORS)
    return set()


def _mentions(file: str | None, name: str) -> bool:
    try:
        return file is not None and re.search(rf"\b{re.escape(name)}\b".encode(), Path(file).read_bytes()) is not None
    except OSError:
        return False

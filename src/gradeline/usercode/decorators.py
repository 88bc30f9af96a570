"""The decorators for users' functions. They only mark a function: nothing is registered anywhere."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, overload

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__gradeline_mark__"


class Mark(NamedTuple):
    """What a function is for (the decorator's name), and the name a suite calls it by."""

    role: str
    name: str


class SourceLocation(NamedTuple):
    """Where a function's ``def`` stands."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class MarkError(TypeError):
    """A decorator above a function that has the wrong form; ``reason`` leaves out where that is."""

    def __init__(self, location: SourceLocation, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


class Decorator:
    """Marks a function for one role: ``@grader``, ``@grader()`` or ``@grader(name="x")``.

    The function itself comes back, so it stays directly callable. One that has the wrong form
    raises `TypeError` with its place, its signature and what to write instead.
    """

    def __init__(
        self,
        role: str,
        *forms: tuple[str, ...],
        returns: str | None = None,
        sync_only: bool = False,
        defaults: bool = True,
    ) -> None:
        self.role = role
        self._forms = forms
        self._returns = returns
        self._sync_only = sync_only
        self._defaults = defaults

    def __repr__(self) -> str:
        return f"@{self.role}"

    @overload
    def __call__(self, function: F, /) -> F: ...

    @overload
    def __call__(self, /, *, name: str | None = None) -> Callable[[F], F]: ...

    def __call__(self, function: Any = None, /, *, name: str | None = None) -> Any:
        if name is not None and (not isinstance(name, str) or not name.strip() or ":" in name):
            raise TypeError(f"{self}(name={name!r}): a name is a text that is not empty and has no ':'")
        if function is not None:
            return self._marked_functions(function, name)
        return lambda function: self._marked_functions(function, name)

    def fault(self, function: FunctionType) -> str | None:
        """What is wrong with this function's form, and what to write instead; None when it will do."""
        parameters = list(inspect.signature(function).parameters.values())
        if tuple(parameter.name for parameter in parameters) not in self._forms:
            reason = f"it must take {self._wanted()}"
        elif any(parameter.kind not in _POSITIONAL for parameter in parameters):
            reason = "its parameters must be positional"
        elif not self._defaults and any(parameter.default is not parameter.empty for parameter in parameters):
            reason = "its parameters must have no defaults"
        elif self._sync_only and inspect.iscoroutinefunction(function):
            reason = "it must not be async"
        elif self._returns and not _returns(function, self._returns):
            reason = f"it must return {self._returns}"
        else:
            return None
        return f"{reason}; write `{self._example(function)}`"

    def _marked_functions(self, function: F, name: str | None) -> F:
        inner = unwrapped_function(function)
        if not callable(function) or inner is None:
            hint = f'; write {self}(name="{function}")' if isinstance(function, str) else "; put it above a def"
            raise TypeError(f"{self} marks functions, got {function!r}{hint}")
        fault = self.fault(inner)
        if fault is not None:
            raise MarkError(
                definition_location(inner), f"{self} cannot mark {inner.__name__}{inspect.signature(inner)}: {fault}"
            )
        setattr(function, ATTRIBUTE, Mark(self.role, name or inner.__name__))
        return function

    def _wanted(self) -> str:
        return " or ".join(f"({', '.join(form)})" for form in self._forms)

    def _example(self, function: FunctionType) -> str:
        prefix = "async " if inspect.iscoroutinefunction(function) and not self._sync_only else ""
        count = function.__code__.co_argcount
        form = next((form for form in self._forms if len(form) == count), self._forms[0])
        arrow = f" -> {self._returns}" if self._returns else ""
        return f"{prefix}def {function.__name__}({', '.join(form)}){arrow}"


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

grader = Decorator("grader", ("sample", "submission"), returns="GradeResult", defaults=False)
extractor = Decorator(
    "extractor",
    ("trajectory", "config"),
    ("trajectory", "config", "agent_state"),
    returns="str",
    sync_only=True,
)
agent_factory = Decorator("agent_factory", ("client", "sample"))
# Letta's suites called the second parameter model_name before 0.19.1.
suite_setup = Decorator(
    "suite_setup", ("client",), (), ("client", "model_handle"), ("suite",), ("client", "model_name")
)
reward_composer = Decorator("reward_composer", ("ctx",))

ROLES = {mark.role: mark for mark in (grader, extractor, agent_factory, suite_setup, reward_composer)}

_LETTA_FLAGS = {f"_is_{role}": role for role in ROLES}
_LETTA_REGISTRIES = {"grader": "GRADER_REGISTRY", "extractor": "EXTRACTOR_REGISTRY"}


def mark_of(value: object) -> Mark | None:
    """The mark on a function or on one it wraps; those of the letta_evals package count too."""
    if not callable(value):
        return None
    chain = _chain(value)
    inner = chain[-1]
    if type(inner) is not FunctionType:
        return None
    for layer in chain:
        own = _own_attributes(layer)
        mark = own.get(ATTRIBUTE)
        if isinstance(mark, Mark):
            return mark
        for flag, role in _LETTA_FLAGS.items():
            if own.get(flag) is True:
                return Mark(role, _letta_name(role, chain) or inner.__name__)
    return None


def name_conflict(role: str, name: str, origin: str, places: Sequence[str], reference: str) -> str:
    """Why a bare name is refused that both a grader (or extractor) of gradeline's and a user's function have.

    ``origin`` is what gradeline's is, such as ``built-in grader``; ``reference`` names the user's function.
    """
    key = "function" if role == "grader" else role
    other = f"kind: {name} for the {origin}" if role == "grader" else "rename the function"
    marked = " and ".join(places)
    return (
        f"{name!r} is the name of a {origin}, and a function is marked @{role} with the same name at {marked};"
        f" write {key}: {reference} for that function, or {other}"
    )


def unwrapped_function(value: object) -> FunctionType | None:
    """The function at the bottom of all wrappers that `functools.wraps` made."""
    inner = _chain(value)[-1]
    return inner if type(inner) is FunctionType else None


def definition_location(function: FunctionType) -> SourceLocation:
    """Where the ``def`` stands, which is below the decorators that Python counts as its start."""
    code = function.__code__
    start = re.compile(rf"\s*(async\s+)?def\s+{re.escape(code.co_name)}\b")
    lines = linecache.getlines(code.co_filename)
    for number in range(code.co_firstlineno, len(lines) + 1):
        if start.match(lines[number - 1]):
            return SourceLocation(code.co_filename, number)
    return SourceLocation(code.co_filename, code.co_firstlineno)


def _chain(value: object) -> list[object]:
    chain = [value]
    while (inner := _own_attributes(chain[-1]).get("__wrapped__")) is not None:
        if any(inner is seen for seen in chain):
            break
        chain.append(inner)
    return chain


def _own_attributes(value: object) -> Mapping[str, Any]:
    """Without asking the object, as even isinstance does: a module may hold proxies that raise or never end."""
    try:
        own: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own


def _letta_name(role: str, chain: list[object]) -> str | None:
    """Letta keeps the name only in its registries, which hold the function before wrapping."""
    decorators = sys.modules.get("letta_evals.decorators")
    registry = getattr(decorators, _LETTA_REGISTRIES.get(role, ""), None)
    if not isinstance(registry, dict):
        return None
    return next((str(name) for name, known in registry.items() if any(known is layer for layer in chain)), None)


def _returns(function: FunctionType, wanted: str) -> bool:
    """Whether the return annotation, if there is one, names that class; texts are not evaluated."""
    annotation = function.__annotations__.get("return", inspect.Signature.empty)
    if isinstance(annotation, str):
        text = annotation.strip().strip("'\"")
        if text.rpartition(".")[2] == wanted:
            return True
        annotation = function.__globals__.get(text)
    if annotation is inspect.Signature.empty:
        return True
    return isinstance(annotation, type) and any(base.__name__ == wanted for base in annotation.__mro__)


class MarkedFunction(NamedTuple):
    """A marked function of a file: what it is marked as, the name of its def and the line of it."""

    mark: Mark
    attribute: str
    line: int


class MarkedFunctionInFile(NamedTuple):
    """A marked function and the file that has it."""

    file: Path
    found: MarkedFunction


def parse_source(content: bytes) -> ast.Module | None:
    """The tree of a Python file, or None where it has no valid syntax."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def marked_functions(tree: ast.Module, body: Iterable[ast.stmt] | None = None) -> Iterator[MarkedFunction]:
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
                yield MarkedFunction(Mark(role, names[0]), node.name, node.lineno)


def find_marked_functions(folder: Path, wanted: Collection[Mark]) -> list[MarkedFunctionInFile]:
    """Where the Python files of a folder mark functions as one of these, by file and line."""
    found: list[MarkedFunctionInFile] = []
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
            found += [
                MarkedFunctionInFile(file, one) for one in marked_functions(tree, statements) if one.mark in wanted
            ]
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

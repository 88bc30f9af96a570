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
from types import FunctionType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, overload

F = TypeVar("F", bound=Callable[..., Any])

ATTRIBUTE = "__gradeline_mark__"


class Mark(NamedTuple):
    """The role of a function (its decorator's name), and the name that a suite uses for it."""

    role: str
    name: str


class SourceLocation(NamedTuple):
    """The file and line of a function's ``def``."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class MarkError(TypeError):
    """A decorator on a function with the wrong signature; ``reason`` is the message without the location."""

    def __init__(self, location: SourceLocation, reason: str) -> None:
        super().__init__(f"{location}: {reason}")
        self.location = location
        self.reason = reason


class Decorator:
    """Marks a function for one role: ``@grader``, ``@grader()`` or ``@grader(name="x")``.

    It returns the function itself, which stays directly callable. A function with the wrong signature raises
    `TypeError` with its location, its signature and what to write instead.
    """

    def __init__(
        self,
        role: str,
        *forms: tuple[str, ...],
        returns: tuple[str, ...] = (),
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
            raise TypeError(f"{self}(name={name!r}): a name is a non-empty string without ':'")
        if function is not None:
            return self._marked_functions(function, name)
        return lambda function: self._marked_functions(function, name)

    def fault(self, function: FunctionType) -> str | None:
        """What is wrong with this function's signature, and what to write instead; None where it is valid."""
        parameters = list(inspect.signature(function).parameters.values())
        if tuple(parameter.name for parameter in parameters) not in self._forms:
            reason = f"it must take {self._expected()}"
        elif any(parameter.kind not in POSITIONAL for parameter in parameters):
            reason = "its parameters must be positional"
        elif not self._defaults and any(parameter.default is not parameter.empty for parameter in parameters):
            reason = "its parameters must have no defaults"
        elif self._sync_only and inspect.iscoroutinefunction(function):
            reason = "it must not be async"
        elif self._returns and not _returns(function, self._returns):
            reason = f"it must return {one_of(self._returns)}"
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

    def _expected(self) -> str:
        return one_of([f"({', '.join(form)})" for form in self._forms])

    def _example(self, function: FunctionType) -> str:
        prefix = "async " if inspect.iscoroutinefunction(function) and not self._sync_only else ""
        count = function.__code__.co_argcount
        form = next((form for form in self._forms if len(form) == count), self._forms[0])
        arrow = f" -> {self._returns[0]}" if self._returns else ""
        return f"{prefix}def {function.__name__}({', '.join(form)}){arrow}"


POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

grader = Decorator(
    "grader",
    ("sample", "submission"),
    ("sample", "submission", "response"),
    ("ctx",),
    returns=("GradeResult", "bool", "float", "dict"),
    defaults=False,
)
extractor = Decorator(
    "extractor",
    ("trajectory", "config"),
    ("trajectory", "config", "agent_state"),
    returns=("str",),
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
    """The mark of a function or of a function that it wraps; marks of the letta_evals package count too."""
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


def name_conflict(role: str, name: str, origin: str, locations: Sequence[str], reference: str) -> str:
    """The message for a bare name that both one of gradeline's graders or extractors and a user's function have.

    ``origin`` describes gradeline's, such as ``built-in grader``; ``reference`` names the user's function.
    """
    key = "function" if role == "grader" else role
    other = f"kind: {name} for the {origin}" if role == "grader" else "rename the function"
    marked = " and ".join(locations)
    return (
        f"{name!r} is the name of a {origin}, and a function is marked @{role} with the same name at {marked};"
        f" write {key}: {reference} for that function, or {other}"
    )


def unwrapped_function(value: object) -> FunctionType | None:
    """The innermost function, below all wrappers that `functools.wraps` made."""
    inner = _chain(value)[-1]
    return inner if type(inner) is FunctionType else None


def definition_location(function: FunctionType) -> SourceLocation:
    """The location of the ``def`` line; Python itself reports the line of the first decorator."""
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
    """The object's ``__dict__``, without running its code: a module may hold proxies that raise or never return."""
    try:
        own: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return own


def _letta_name(role: str, chain: list[object]) -> str | None:
    """The name from letta's registries, which hold the function before it is wrapped."""
    decorators = sys.modules.get("letta_evals.decorators")
    registry = getattr(decorators, _LETTA_REGISTRIES.get(role, ""), None)
    if not isinstance(registry, dict):
        return None
    return next((str(name) for name, known in registry.items() if any(known is layer for layer in chain)), None)


def one_of(names: Sequence[str]) -> str:
    """The names as ``a, b or c``."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _returns(function: FunctionType, class_names: Collection[str]) -> bool:
    """True if the return annotation is missing or names only these classes; strings are not evaluated."""
    annotation = function.__annotations__.get("return", inspect.Signature.empty)
    return annotation is inspect.Signature.empty or _names_only(annotation, class_names, function.__globals__)


def _names_only(annotation: object, class_names: Collection[str], scope: Mapping[str, object]) -> bool:
    if isinstance(annotation, str):
        parts = _written_types(annotation)
        return bool(parts) and all(_is_written_type(part, class_names, scope) for part in parts)
    if get_origin(annotation) in (Union, UnionType):
        return all(_names_only(one, class_names, scope) for one in get_args(annotation))
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and any(base.__name__ in class_names for base in kind.__mro__)


def _is_written_type(text: str, class_names: Collection[str], scope: Mapping[str, object]) -> bool:
    if text.rpartition(".")[2] in class_names:
        return True
    value = scope.get(text)
    return value is not None and not isinstance(value, str) and _names_only(value, class_names, scope)


def _written_types(annotation: str) -> list[str]:
    """The names of the types in a written annotation, such as ``dict`` and ``float`` of ``dict[str, int] | float``."""
    try:
        found: list[ast.expr] = [ast.parse(annotation.strip(), mode="eval").body]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    names: list[str] = []
    while found:
        node = found.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            found += [node.left, node.right]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).rpartition(".")[2] in ("Union", "Optional"):
            found += node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names += _written_types(node.value)
        else:
            names.append(ast.unparse(node.value if isinstance(node, ast.Subscript) else node))
    return names


class MarkedFunction(NamedTuple):
    """A marked function in the source text: its mark, and the name and line of its def."""

    mark: Mark
    attribute: str
    line: int


class MarkedFunctionInFile(NamedTuple):
    """A marked function and its file."""

    file: Path
    found: MarkedFunction


def parse_source(content: bytes) -> ast.Module | None:
    """The syntax tree of a Python file, or None where its syntax is invalid."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def marked_functions(tree: ast.Module, body: Iterable[ast.stmt] | None = None) -> Iterator[MarkedFunction]:
    """The functions marked at the top level of a file, except those whose name is computed."""
    renamed = _renamed_decorators(tree)
    for node in tree.body if body is None else body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            written = ast.unparse(call.func if call else decorator).rpartition(".")[2]
            role = renamed.get(written, written)
            own = [word.value for word in call.keywords if word.arg == "name"] if call else []
            names = [value.value if isinstance(value, ast.Constant) else None for value in own] or [node.name]
            if role in ROLES and isinstance(names[0], str):
                yield MarkedFunction(Mark(role, names[0]), node.name, node.lineno)


def find_marked_functions(folder: Path, marks: Collection[Mark]) -> list[MarkedFunctionInFile]:
    """The functions in the Python files of a folder that have one of these marks, by file and line."""
    found: list[MarkedFunctionInFile] = []
    for file in sorted(folder.glob("*.py")):
        try:
            content = file.read_bytes()
        except OSError:
            continue
        # parsing is slow, and few files contain such a name
        if not any(mark.role.encode() in content and mark.name.encode() in content for mark in marks):
            continue
        tree = parse_source(content)
        if tree is not None:
            statements = list(_top_level(tree.body))
            found += [
                MarkedFunctionInFile(file, one) for one in marked_functions(tree, statements) if one.mark in marks
            ]
    return found


def _top_level(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, including those under ``if``, ``try`` and ``with``."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            for part in ("body", "orelse", "finalbody"):
                yield from _top_level(getattr(node, part, ()))
            for handler in getattr(node, "handlers", ()):
                yield from _top_level(handler.body)


def _renamed_decorators(tree: ast.Module) -> dict[str, str]:
    """The decorators that the file imports under another name, by that name."""
    return {
        alias.asname: alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname is not None and alias.name in ROLES
    }

"""Which code a Python object stands for: what decides its results, as far as that can be told without running it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

from gradeline.errors import DataError
from gradeline.model import clean_data, fingerprint
from gradeline.model.secrets import is_secret_name

_DEEPEST = 8


def code_fingerprint(role: str, name: str, given: Callable[..., Any]) -> str:
    """A digest of the file that defines a function, or of its own text where there is no file, and of what it holds.

    Default values, closures, the arguments of a `functools.partial` and the attributes of a callable object count;
    what is secret by its name does not.
    """
    return fingerprint("given", role, name, _parts(given, 0))


def shown_name(given: object) -> str:
    """What people call it."""
    if isinstance(given, partial):
        return shown_name(given.func)
    name = getattr(given, "__qualname__", None)
    return name if isinstance(name, str) else type(given).__qualname__


def _parts(value: object, depth: int) -> Any:
    if depth > _DEEPEST:
        return None
    if isinstance(value, partial):
        return ["partial", *(_parts(part, depth + 1) for part in (value.func, list(value.args), value.keywords))]
    if isinstance(value, MethodType):
        return ["method", _parts(value.__func__, depth + 1), _parts(value.__self__, depth + 1)]
    if isinstance(value, FunctionType):
        return ["function", value.__qualname__, _source(value), _held(value, depth)]
    wrapped = inspect.getattr_static(value, "__wrapped__", None)
    if isinstance(wrapped, FunctionType):
        return ["wrapped", type(value).__qualname__, _parts(wrapped, depth + 1)]
    if isinstance(value, list | tuple):
        return [_parts(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {
            str(key): _parts(item, depth + 1)
            for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))
            if not is_secret_name(str(key))
        }
    try:
        return clean_data(value)
    except DataError:
        return _object(value, depth)


def _object(value: object, depth: int) -> Any:
    """A callable object is its class and its attributes; of any other only its class can be told."""
    kind = value if isinstance(value, type) else type(value)
    named = [kind.__module__, kind.__qualname__]
    call = vars(kind).get("__call__") if callable(value) else None
    if not isinstance(call, FunctionType):
        return named
    return [*named, _source(call), _parts(getattr(value, "__dict__", {}), depth + 1)]


def _held(function: FunctionType, depth: int) -> Any:
    names = function.__code__.co_freevars
    cells = {name: _content(cell) for name, cell in zip(names, function.__closure__ or (), strict=True)}
    inner = getattr(function, "__wrapped__", None)
    held = {"closure": cells, "defaults": function.__defaults__ or (), "keywords": function.__kwdefaults__ or {}}
    return _parts({**held, "wrapped": inner}, depth + 1)


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a function that is still being defined
        return None


def _source(function: FunctionType) -> str:
    """The file it stands in; in a notebook its own text; where neither is kept, the code Python made of it."""
    file = Path(function.__code__.co_filename)
    try:
        content = file.read_bytes()
    except (OSError, ValueError):
        try:
            content = inspect.getsource(function).encode()
        except (OSError, TypeError):
            content = repr(_compiled(function.__code__)).encode()
    return sha256(content).hexdigest()


def _compiled(code: CodeType) -> list[Any]:
    constants = [_compiled(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]


def _constant(value: object) -> object:
    """Sets have no order of their own."""
    return sorted(map(repr, value)) if isinstance(value, frozenset) else value

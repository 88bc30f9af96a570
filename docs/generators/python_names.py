"""The reference of public Python names: signatures and the first paragraph of each docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import is_typeddict

from gradeline.usercode.decorators import Decorator

from .tables import GENERATED, cell, code, page, table

MODULES = (
    "gradeline",
    "gradeline.api",
    "gradeline.graders",
    "gradeline.extractors",
    "gradeline.judges",
    "gradeline.adapters",
    "gradeline.ledger",
    "gradeline.stats",
    "gradeline.store",
    "gradeline.trust",
    "gradeline.errors",
    "gradeline.compat",
)


def python_names() -> str:
    return page(_lines())


def _lines() -> Iterator[str]:
    yield from ("# Python names", "", "All public names with their signatures. Other names may change without notice.")
    yield from ("`python -c 'import gradeline; help(gradeline.run_suite)'` shows one in full.", GENERATED, "")
    top = set(import_module("gradeline").__all__)
    for name in MODULES:
        module = import_module(name)
        shown = [(public, value) for public, value in _public(module) if name == "gradeline" or public not in top]
        yield from (f"## {name}", "", cell(_summary(module)), "")
        yield from table(
            ("name", "description"), ((code(_shown(public, value)), cell(_summary(value))) for public, value in shown)
        )


def _public(module: ModuleType) -> Iterator[tuple[str, object]]:
    names = getattr(module, "__all__", None)
    if names is None:
        own = [(name, value) for name, value in vars(module).items() if callable(value)]
        names = [name for name, value in own if value.__module__ == module.__name__]
    for name in sorted(names, key=str.lower):
        if not name.startswith("_"):
            yield name, getattr(module, name)


def _shown(name: str, value: object) -> str:
    """The name with its signature; exceptions and enumerations have none."""
    if is_typeddict(value):
        return f"{name}: {', '.join(getattr(value, '__annotations__', {}))}"
    if not callable(value) or (isinstance(value, type) and issubclass(value, BaseException)) or _is_enum(value):
        return name
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter.default))
        for parameter in signature.parameters.values()
        if not parameter.name.startswith("_")
    ]
    return f"{name}{signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)}"


class _Literal:
    """A default whose repr is the given text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _default(value: object) -> object:
    """The default, or an ellipsis when its repr is long."""
    short = len(repr(value)) < 20 and "<" not in repr(value)
    return value if short or value is inspect.Parameter.empty else _Literal("…")


def _is_enum(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Enum)


def _summary(value: object) -> str:
    if isinstance(value, Decorator):
        return f"Decorator for {value.role.replace('_', ' ')} functions; returns the function unchanged."
    if not callable(value) and not isinstance(value, ModuleType):
        return f"A {type(value).__name__}."
    text = inspect.cleandoc(value.__doc__ or "") if value.__doc__ else ""
    return text.split("\n\n")[0].replace("\n", " ")

"""Public names of a package that are imported on first use, so that importing the package stays cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    namespace: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: ``__getattr__, __dir__ = lazy_exports(globals(), _HOMES)``.

    ``homes`` has the module of each name, or ``module:name`` where it has another name there.
    """

    def resolve(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        module, _, attribute = homes[name].partition(":")
        value: object = getattr(import_module(module), attribute or name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*namespace, *namespace["__all__"]})

    return resolve, names

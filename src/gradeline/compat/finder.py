"""Modules that are made up when they are imported, their names looked up in `TABLES` when they are used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from gradeline.compat.tables import DISTRIBUTIONS, TABLES


class StandInModule(ModuleType):
    """A module whose attributes are its table's names and its submodules, each imported when first used."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if f"{self.__name__}.{name}" in TABLES:
            return import_module(f"{self.__name__}.{name}")
        if name not in TABLES[self.__name__]:
            raise AttributeError(_missing(self.__name__, name), name=name, obj=self)
        home, _, attribute = TABLES[self.__name__][name].partition(":")
        value: object = getattr(import_module(home), attribute)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *_names(self.__name__)})


class StandInFinder(MetaPathFinder, Loader):
    """Finds the modules of `TABLES`. It stands last, so it is asked only for what is not installed."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        package, _, inner = fullname.partition(".")
        if package not in DISTRIBUTIONS:
            return None
        if inner and not isinstance(sys.modules.get(package), StandInModule):
            return None
        if fullname in TABLES:
            # All are packages: only then does "from m import unknown" end up here, where the
            # message is ours, and not in the interpreter's "cannot import name (unknown location)".
            return ModuleSpec(fullname, self, origin="gradeline.compat", is_package=True)
        parent, _, name = fullname.rpartition(".")
        # An error that names fullname would be swallowed by "from m import unknown".
        raise ModuleNotFoundError(_missing(parent, name), name=package)

    def create_module(self, spec: ModuleSpec) -> StandInModule:
        return StandInModule(spec.name, f"gradeline's stand-in for {spec.name}.")

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__all__"] = list(TABLES[module.__name__])


def install() -> None:
    """Make the stand-ins importable in this process, behind everything that is really installed."""
    if not any(isinstance(finder, StandInFinder) for finder in sys.meta_path):
        sys.meta_path.append(StandInFinder())


def uninstall() -> None:
    """Undo `install` and forget the stand-ins that were imported; what was taken from them stays in use."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, StandInFinder)]
    for name in [name for name, module in sys.modules.items() if isinstance(module, StandInModule)]:
        del sys.modules[name]


def _names(module: str) -> list[str]:
    inner = (name.rpartition(".") for name in TABLES)
    return [*TABLES[module], *(name for parent, _, name in inner if parent == module)]


def _missing(module: str, name: str) -> str:
    from gradeline.errors import closest  # only when something is missing

    package = module.partition(".")[0]
    known = [other for other in _names(module) if other != name] if module in TABLES else []
    close = closest(name, known)
    hint = f"; did you mean {close!r}?" if close else "."
    source = DISTRIBUTIONS[package]
    remedy = f"The real package has everything: pip install {source}" if source else "The real package may have it."
    return f"gradeline's stand-in for {package} has no {module}.{name}{hint} {remedy}"

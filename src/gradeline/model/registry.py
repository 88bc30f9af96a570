"""Names to declarations: a table of import strings for the built-ins, entry points for the rest."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gradeline.errors import ConfigError, Problem, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")

_METADATA = (".dist-info", ".egg-info")
"""What the folders of installed packages' metadata end with."""


class Registry(Generic[T]):
    """Finds declarations by name. Nothing is imported before it is asked for."""

    def __init__(
        self,
        noun: str,
        base: type,
        builtins: Mapping[str, str],
        group: str,
        describe: Callable[[str, type[T]], dict[str, Any]],
    ) -> None:
        self._noun = noun
        self._describe = describe
        self._base = base
        self._builtins = builtins
        self._group = group

    def names(self) -> list[str]:
        """All names, built-ins first in their own order."""
        return [*self._builtins, *sorted(self._plugins())]

    def is_builtin(self, name: str) -> bool:
        """Whether the declaration of that name is gradeline's own; others come from installed packages."""
        return name in self._builtins

    def get(self, name: str) -> type[T]:
        """The declaration of that name, or `UnknownNameError` that offers the closest.

        A name that a built-in and a plugin have, or two plugins, is refused: either could be meant.
        """
        where = self._builtins.get(name)
        plugins = self._plugins()
        points = plugins.get(name, ())
        if len(points) + (where is not None) > 1:
            raise self._conflict(name, points)
        if where is not None:
            module, _, attribute = where.partition(":")
            found: type[T] = getattr(import_module(module), attribute)
            return found
        if not points:
            raise UnknownNameError(self._noun, name, [*self._builtins, *plugins])
        return self._load(points[0])

    def origin(self, name: str) -> str:
        """What a known name is, for messages: ``built-in grader``, or ``grader of polite-graders 1.0``."""
        if name in self._builtins:
            return f"built-in {self._noun}"
        return f"{self._noun} of {_distribution(self._plugins()[name][0])}"

    def list(self) -> list[dict[str, Any]]:
        """What there is: one entry a declaration, with its options as JSON Schema."""
        return [self._describe(name, self.get(name)) for name in self.names()]

    def __iter__(self) -> Iterator[type[T]]:
        return (self.get(name) for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._builtins or name in self._plugins()

    def _plugins(self) -> dict[str, tuple[EntryPoint, ...]]:
        """The entry points by name; one that is installed twice counts once."""
        if self._group not in _installed_groups(tuple(sys.path)):
            return {}
        from importlib.metadata import entry_points  # slow to import: only where a package has such entry points

        found: dict[str, tuple[EntryPoint, ...]] = {}
        for point in entry_points(group=self._group):
            others = found.get(point.name, ())
            if all(other.value != point.value for other in others):
                found[point.name] = (*others, point)
        return found

    def _conflict(self, name: str, points: tuple[EntryPoint, ...]) -> ConfigError:
        owners = [f"{point.value} of {_distribution(point)}" for point in points]
        if name in self._builtins:
            owners.insert(0, f"the built-in {self._noun} of gradeline")
        reason = f"is the name of {len(owners)} {self._noun}s: {', '.join(owners)}; uninstall or rename one"
        return ConfigError(Problem(f"{self._noun} {name!r}", reason))

    def _load(self, point: EntryPoint) -> type[T]:
        place = f"entry point {point.name} = {point.value} of {_distribution(point)}"
        try:
            found: Any = point.load()
        except Exception as error:
            raise ConfigError(Problem(place, f"cannot be loaded: {type(error).__name__}: {error}")) from error
        if not isinstance(found, type) or not issubclass(found, self._base):
            raise ConfigError(Problem(place, f"is not a subclass of {self._base.__module__}.{self._base.__qualname__}"))
        kind = getattr(found, "kind", point.name)
        if kind != point.name:
            raise ConfigError(Problem(place, f"is of kind {kind!r}; name the entry point after it"))
        return cast(type[T], found)


def _distribution(point: EntryPoint) -> str:
    """The package an entry point comes from, with its version."""
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


@lru_cache(maxsize=4)
def _installed_groups(path: tuple[str, ...]) -> frozenset[str]:
    """The groups of gradeline's that installed packages have entry points for.

    Reads the files themselves: `importlib.metadata` takes longer to import than most commands take in all.
    """
    found: set[str] = set()
    for entry in path:
        try:
            with os.scandir(entry or ".") as folder:
                files = [f"{one.path}/entry_points.txt" for one in folder if one.name.endswith(_METADATA)]
        except OSError:
            continue
        for file in files:
            found.update(_groups_in(file))
    return frozenset(found)


def _groups_in(path: str) -> Iterator[str]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a Path for each installed package takes longer than reading
            text = file.read()
    except OSError:
        return
    if b"gradeline." in text:
        for line in text.decode(errors="replace").splitlines():
            if line.strip().startswith("[gradeline."):
                yield line.strip().strip("[]").strip()

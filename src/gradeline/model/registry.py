"""Names to declarations: a table of import strings for the built-ins, entry points for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from gradeline.errors import ConfigError, Problem, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


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

    def get(self, name: str) -> type[T]:
        """The declaration of that name, or `UnknownNameError` that offers the closest."""
        where = self._builtins.get(name)
        if where is not None:
            module, _, attribute = where.partition(":")
            found: type[T] = getattr(import_module(module), attribute)
            return found
        plugins = self._plugins()
        if name not in plugins:
            raise UnknownNameError(self._noun, name, [*self._builtins, *plugins])
        return self._load(plugins[name])

    def list(self) -> list[dict[str, Any]]:
        """What there is: one entry a declaration, with its options as JSON Schema."""
        return [self._describe(name, self.get(name)) for name in self.names()]

    def __iter__(self) -> Iterator[type[T]]:
        return (self.get(name) for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._builtins or name in self._plugins()

    def _plugins(self) -> dict[str, EntryPoint]:
        from importlib.metadata import entry_points  # reads the disk: only when a name is no built-in's

        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self._group):
            if point.name in self._builtins:
                raise ConfigError(
                    Problem(
                        f"entry point {point.name} = {point.value}",
                        f"{self._group} already has a built-in {self._noun} of that name; rename it",
                    )
                )
            if point.name in found and found[point.name].value != point.value:
                raise ConfigError(
                    Problem(
                        f"entry point {point.name} = {point.value}",
                        f"{found[point.name].value} has that name already; uninstall or rename one",
                    )
                )
            found[point.name] = point
        return found

    def _load(self, point: EntryPoint) -> type[T]:
        place = f"entry point {point.name} = {point.value}"
        try:
            found: Any = point.load()
        except Exception as error:
            raise ConfigError(Problem(place, f"cannot be loaded: {type(error).__name__}: {error}")) from error
        if not isinstance(found, type) or not issubclass(found, self._base):
            raise ConfigError(Problem(place, f"is no subclass of {self._base.__module__}.{self._base.__qualname__}"))
        kind = getattr(found, "kind", point.name)
        if kind != point.name:
            raise ConfigError(Problem(place, f"is of kind {kind!r}; name the entry point after it"))
        return cast(type[T], found)

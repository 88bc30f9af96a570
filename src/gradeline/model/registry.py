"""Declarations (kind, version, typed options) and the registry that finds them by name."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib import import_module
from inspect import cleandoc
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, get_args, get_origin

from gradeline.errors import ConfigError, Problem, UnknownNameError
from gradeline.model.config import Config, Reader, Reading, canonical_options, config_schema, read_struct
from gradeline.model.fingerprint import fingerprint

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_log = logging.getLogger("gradeline")

C = TypeVar("C", bound=Config)
T = TypeVar("T")


class NoOptions(Config, frozen=True):
    """No options."""


class Declaration(Generic[C]):
    """Base class of graders, extractors and targets: subclass it with the config struct as the type argument.

    The class is the listing entry (`describe`); an instance has options. Reading is lenient: an invalid option falls
    back to its default and `validate_config` reports it, while `check` refuses it. A missing or invalid required option
    always raises.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Part of the fingerprint; increased whenever the same config may give a different result."""
    noun: ClassVar[str]
    readers: ClassVar[Mapping[str, Reader]] = {}
    """Custom readers of options, see `read_struct`."""
    _config_type: ClassVar[type[Config]] = NoOptions

    config: Mapping[str, Any]
    options: C

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Declaration):
                config_type = get_args(base)[0]
                if isinstance(config_type, type):
                    cls._config_type = config_type

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return cls._config_type.__struct_encode_fields__

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = {} if config is None else config
        self._reading = self.read(self.config)
        if self._reading.options is None:
            raise ConfigError(self._reading.problems, self.kind)
        self.options = self._reading.options

    @classmethod
    def read(cls, config: object, path: str = "config") -> Reading[C]:
        """The options in a config and all faults."""
        reading: Reading[Any] = read_struct(cls._config_type, config, path, cls.readers)
        return reading

    @classmethod
    def check(cls, config: object) -> None:
        """Raise `ConfigError` with all faults of a config, unknown keys included."""
        reading = cls.read({} if config is None else config)
        if reading.problems or reading.unknown:
            raise ConfigError([*reading.problems, *reading.unknown], cls.kind)

    def validate_config(self) -> bool:
        """Whether the config is valid; faults are logged. Unknown keys only warn."""
        for problem in self._reading.unknown:
            _log.warning("%s %r: %s", self.noun, self.kind, problem)
        for problem in self._reading.problems:
            _log.error("%s %r: %s", self.noun, self.kind, problem)
        return not self._reading.problems

    @cached_property
    def fingerprint(self) -> str:
        """Digest of kind, version and options; writing out a default does not change it."""
        return fingerprint(self.noun, self.kind, self.version_of(self.options), canonical_options(self.options))

    @classmethod
    def version_of(cls, options: C) -> int:  # noqa: ARG003
        """The version that these options got their meaning in; earlier than `version` if later ones left them as is."""
        return cls.version

    @classmethod
    def describe(cls) -> dict[str, Any]:
        """The listing entry."""
        return {
            "id": cls.kind,
            "name": cls.name,
            "description": cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " "),
            "type": cls.kind,
            "config_schema": config_schema(cls._config_type),
            "version": cls.version,
            "fingerprint": fingerprint(cls.noun, cls.kind, cls.version),
        }


_METADATA = (".dist-info", ".egg-info")
"""Suffixes of the metadata folders of installed packages."""


class Registry(Generic[T]):
    """Finds declarations by name: built-ins by import string, plugins by entry point. Imports on first use."""

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
        """All names, built-ins first in the order of their table."""
        return [*self._builtins, *sorted(self._plugins())]

    def is_builtin(self, name: str) -> bool:
        """Whether the name is a built-in; others come from installed packages."""
        return name in self._builtins

    def get(self, name: str) -> type[T]:
        """The declaration of that name; `UnknownNameError` suggests the closest one.

        A name shared by a built-in and a plugin, or by two plugins, is refused as ambiguous.
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
        """The origin for messages: ``built-in grader`` or ``grader of polite-graders 1.0``."""
        if name in self._builtins:
            return f"built-in {self._noun}"
        return f"{self._noun} of {_distribution(self._plugins()[name][0])}"

    def list(self) -> list[dict[str, Any]]:
        """One entry per declaration, with its options as JSON Schema."""
        return [self._describe(name, self.get(name)) for name in self.names()]

    def __iter__(self) -> Iterator[type[T]]:
        return (self.get(name) for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._builtins or name in self._plugins()

    def _plugins(self) -> dict[str, tuple[EntryPoint, ...]]:
        """Entry points by name; duplicates of the same value count once."""
        if self._group not in _installed_groups(tuple(sys.path)):
            return {}
        from importlib.metadata import entry_points  # slow to import; only needed if a package has such entry points

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
    """Package and version of an entry point."""
    return "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"


@lru_cache(maxsize=4)
def _installed_groups(path: tuple[str, ...]) -> frozenset[str]:
    """The ``gradeline.*`` entry point groups of installed packages.

    Reads the files directly: importing `importlib.metadata` takes longer than most commands.
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
        with open(path, "rb") as file:  # noqa: PTH123 - creating a Path takes longer than reading
            text = file.read()
    except OSError:
        return
    if b"gradeline." in text:
        for line in text.decode(errors="replace").splitlines():
            if line.strip().startswith("[gradeline."):
                yield line.strip().strip("[]").strip()

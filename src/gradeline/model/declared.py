"""What graders and extractors have in common: a kind, declared once with its typed options."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from inspect import cleandoc
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin

from gradeline.errors import ConfigError
from gradeline.model.config import Config, Reader, Reading, canonical_options, config_schema, read_struct
from gradeline.model.fingerprint import fingerprint

_log = logging.getLogger("gradeline")

C = TypeVar("C", bound=Config)


class NoOptions(Config, frozen=True):
    """For what takes no options."""


class Declared(Generic[C]):
    """A declaration: subclass it with its config struct as the type argument.

    The class is the listing entry (`describe`), an instance is one use of it with options.
    Reading is lenient: a faulty option falls back to its default and `validate_config` says so;
    `check` refuses it. Only a required option that is missing or faulty always raises.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Counted up whenever the same config may give another result: it is part of the fingerprint."""
    noun: ClassVar[str]
    readers: ClassVar[Mapping[str, Reader]] = {}
    """Options that are read by hand, see `read_struct`."""
    _config_type: ClassVar[type[Config]] = NoOptions

    config: Mapping[str, Any]
    options: C

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, Declared):
                config_type = get_args(base)[0]
                if isinstance(config_type, type):
                    cls._config_type = config_type

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self.config = {} if config is None else config
        self._reading = self.read(self.config)
        if self._reading.options is None:
            raise ConfigError(self._reading.problems, self.kind)
        self.options = self._reading.options

    @classmethod
    def read(cls, config: object, path: str = "config") -> Reading[C]:
        """The options in a config, with every fault in it."""
        reading: Reading[Any] = read_struct(cls._config_type, config, path, cls.readers)
        return reading

    @classmethod
    def check(cls, config: object) -> None:
        """Refuse a config with any fault at all, unknown keys too, naming all of them at once."""
        reading = cls.read({} if config is None else config)
        if reading.problems or reading.unknown:
            raise ConfigError([*reading.problems, *reading.unknown], cls.kind)

    def validate_config(self) -> bool:
        """Whether the config is right; what is not is logged. Unknown keys only warn."""
        for problem in self._reading.unknown:
            _log.warning("%s %r: %s", self.noun, self.kind, problem)
        for problem in self._reading.problems:
            _log.error("%s %r: %s", self.noun, self.kind, problem)
        return not self._reading.problems

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what decides the result; spelling out a default does not change it."""
        return fingerprint(self.noun, self.kind, self.version, canonical_options(self.options))

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

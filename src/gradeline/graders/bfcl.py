"""Tool calls by the rules of the Berkeley function calling leaderboard (BFCL).

The rules behind its published verdicts:

- ``.`` and ``_`` in function names are equivalent.
- The function's description defines each argument's type. An integer is accepted as a float, but not inside an array;
  a list is accepted as a tuple; a boolean is not an integer; ``any`` is a string.
- A value of the same type as the first allowed one is accepted too, and is then compared exactly.
- Strings, and the strings in a list, are compared without case, spaces and ``, . / - _ * ^``.
- A dict is compared key by key, each key with its own list of allowed values.
- An optional argument may also be an empty list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

from gradeline.errors import UngradableError
from gradeline.model import quote
from gradeline.parsing.json_text import json_key

MismatchReason = Literal["missing", "unexpected", "type", "value"]
"""Why an argument does not match."""


class ArgumentRule(Protocol):
    """The values allowed for one argument."""

    @property
    def optional(self) -> bool: ...

    @property
    def size(self) -> int:
        """Maximum number of comparisons for one value."""

    def mismatch(self, given: ArgumentValue, /) -> MismatchReason | None: ...


class Signature(NamedTuple):
    """An expected call: the rules of its arguments, and the required arguments."""

    name: str
    rules: Mapping[str, ArgumentRule]
    required: Sequence[str] = ()


class ArgumentValue:
    """An argument of the agent's call, with cached keys for comparisons."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.type = type(value)

    @cached_property
    def key(self) -> str:
        return json_key(self.value)

    @cached_property
    def loose_key(self) -> str:
        return json_key(_loose(self.value))

    @cached_property
    def item_types(self) -> frozenset[type]:
        return frozenset(map(type, self.value))

    @cached_property
    def items(self) -> list[ArgumentValue]:
        return [ArgumentValue(item) for item in self.value]

    @cached_property
    def fields(self) -> dict[str, ArgumentValue]:
        return {name: ArgumentValue(item) for name, item in self.value.items()}


class Functions:
    """The functions that a case offers to the agent, read from its metadata."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        functions = metadata.get("functions")
        if functions is None:
            raise UngradableError("metadata.functions is missing: preset bfcl needs the functions' descriptions")
        single = isinstance(functions, Mapping)
        self._by_name: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for index, description in enumerate([functions] if single else _list(functions, "metadata.functions")):
            path = "metadata.functions" if single else f"metadata.functions[{index}]"
            name = _mapping(description, path).get("name")
            if not isinstance(name, str):
                raise UngradableError(f"{path}.name must be a string, got {quote(name)}")
            self._by_name[plain_name(name)] = (path, description)

    def signature(self, name: str, allowed: Mapping[str, Sequence[Any]]) -> Signature:
        """The signature of one expected call.

        If only one function is described, it is used whatever name is expected. For a function without a description
        the types are those of the allowed values.
        """
        name = plain_name(name)
        if name not in self._by_name and len(self._by_name) == 1:
            (name,) = self._by_name
        if name not in self._by_name:
            return Signature(name, {argument: Typed(values) for argument, values in allowed.items()})
        path, description = self._by_name[name]
        path += ".parameters"
        parameters = _mapping(description.get("parameters", {}), path)
        properties = _mapping(parameters.get("properties", {}), f"{path}.properties")
        required = _list(parameters.get("required", []), f"{path}.required")
        rules = {
            argument: _typed(values, properties[argument], f"{path}.properties.{argument}")
            if argument in properties
            else Undeclared(values)
            for argument, values in allowed.items()
        }
        return Signature(name, rules, [argument for argument in required if isinstance(argument, str)])


class Undeclared:
    """An expected argument that the function does not declare: it can only be omitted."""

    size = 1

    def __init__(self, allowed: Sequence[Any]) -> None:
        self.optional = "" in allowed

    def mismatch(self, _: ArgumentValue) -> MismatchReason | None:
        return "unexpected"


class Typed:
    """An argument with a declared type, and an item type for lists; None: the type of the allowed values."""

    def __init__(self, allowed: Sequence[Any], declared: type | None = None, item: type | None = None) -> None:
        self.optional = "" in allowed
        self._own = _first_type(allowed)
        self._declared = declared or self._own or str
        self._item = item
        self._exact = frozenset(map(json_key, allowed))
        self._loose = frozenset(
            json_key([] if value == "" and self._declared is list else _loose(value)) for value in allowed
        )
        # A list fits if its items have the declared type, or the type of the first item of an allowed list.
        self._item_types = (
            None
            if item is None
            else [{item, _first_type(value)} if isinstance(value, list) else None for value in allowed]
        )
        self._dicts = [_Fields(value) for value in allowed if isinstance(value, Mapping)]
        self._dict_lists = [
            [_Fields(entry) for entry in value]
            for value in ([] if value == "" else value for value in allowed)
            if isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)
        ]
        self.size = 1 + len(self._item_types or ()) + sum(fields.size for fields in self._all_fields())

    def _all_fields(self) -> Iterator[_Fields]:
        yield from self._dicts
        for entries in self._dict_lists:
            yield from entries

    def mismatch(self, given: ArgumentValue) -> MismatchReason | None:
        declared = self._declared
        kind = float if declared is float and given.type is int else given.type
        if kind is declared:
            if not self._items_fit(given):
                return "type"
            exactly = self._own not in (None, declared)
        elif kind is self._own:
            exactly = True
        else:
            return "type"
        return None if self._allows(given, exactly) else "value"

    def _items_fit(self, given: ArgumentValue) -> bool:
        return self._item_types is None or any(types is None or given.item_types <= types for types in self._item_types)

    def _allows(self, given: ArgumentValue, exactly: bool) -> bool:
        if exactly or self._declared not in (str, list, dict):
            return given.key in self._exact
        if self._declared is dict:
            return any(fields.allow(given) for fields in self._dicts)
        if self._item is dict:
            return any(
                len(entries) == len(given.value)
                and all(fields.allow(item) for fields, item in zip(entries, given.items, strict=True))
                for entries in self._dict_lists
            )
        return given.loose_key in self._loose


class _Fields:
    """An allowed dict: each key with its own list of allowed values."""

    def __init__(self, allowed: Mapping[str, Any]) -> None:
        self._keys: dict[str, frozenset[str]] = {}
        self._optional: set[str] = set()
        for name, values in allowed.items():
            values = values if isinstance(values, list) else [values]
            self._keys[name] = frozenset(json_key(_loose_text(value)) for value in values)
            if "" in values:
                self._optional.add(name)
        self.size = 1 + len(self._keys)

    def allow(self, given: ArgumentValue) -> bool:
        if given.type is not dict:
            return False
        known = 0
        for name, keys in self._keys.items():
            field = given.fields.get(name)
            if field is None:
                if name not in self._optional:
                    return False
                continue
            known += 1
            if (field.loose_key if field.type is str else field.key) not in keys:
                return False
        return known == len(given.fields)


def plain_name(name: str) -> str:
    """A function's name as the benchmark compares it."""
    return name.replace(".", "_")


_TYPES: Mapping[str, type] = {
    "string": str,
    "integer": int,
    "float": float,
    "number": float,
    "boolean": bool,
    "array": list,
    "tuple": list,
    "dict": dict,
    "object": dict,
    "any": str,
}

_IGNORED = re.compile(r"[ ,./\-_*^]")


def _loose_text(value: Any) -> Any:
    return _IGNORED.sub("", value).lower().replace("'", '"') if isinstance(value, str) else value


def _loose(value: Any) -> Any:
    return [_loose_text(item) for item in value] if isinstance(value, list) else _loose_text(value)


def _first_type(allowed: Sequence[Any]) -> type | None:
    return next((type(value) for value in allowed if value != ""), None)


def _typed(allowed: Sequence[Any], description: object, path: str) -> Typed:
    description = _mapping(description, path)
    declared = _declared_type(description, path)
    items = description.get("items")
    if declared is not list or items is None:
        return Typed(allowed, declared)
    return Typed(allowed, declared, _declared_type(_mapping(items, f"{path}.items"), f"{path}.items"))


def _declared_type(description: Mapping[str, Any], path: str) -> type | None:
    name = description.get("type")
    if name is None:
        return None
    if not isinstance(name, str) or name not in _TYPES:
        raise UngradableError(f"{path}.type must be one of {', '.join(_TYPES)}, got {quote(name)}")
    return _TYPES[name]


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UngradableError(f"{path} must be a mapping, got {quote(value)}")
    return value


def _list(value: object, path: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise UngradableError(f"{path} must be a list, got {quote(value)}")
    return value

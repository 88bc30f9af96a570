"""Tool calls by the rules of the Berkeley function calling leaderboard.

What its published verdicts hold to:

- ``.`` and ``_`` in function names are alike.
- The function's description decides each argument's type. An integer passes for a float, but not
  inside an array; a list passes for a tuple; a boolean is no integer; ``any`` is a string.
- A value of the same type as the first allowed one passes too, and is then compared exactly.
- Texts, and the texts in a list, are compared without case, spaces and ``, . / - _ * ^``.
- A dict is compared key by key, each key with its own list of allowed values.
- Where an argument may be left out, an empty list is as good as none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

from gradeline.errors import UngradableError
from gradeline.model import quote

Why = Literal["missing", "unexpected", "type", "value"]


class Mismatch(NamedTuple):
    """The argument that keeps a call from being the expected one."""

    argument: str
    why: Why


class Given:
    """A value as the agent gave it; what comparing it needs is worked out once."""

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
    def items(self) -> list[Given]:
        return [Given(item) for item in self.value]

    @cached_property
    def fields(self) -> dict[str, Given]:
        return {name: Given(item) for name, item in self.value.items()}


def json_key(value: Any) -> str:
    """A text that two JSON values share if and only if they are equal: 1 is 1.0, true is not 1.

    Walks without recursion, so that no depth of nesting exhausts the stack, and gives texts
    because only their hashes cannot be made to collide on purpose.
    """
    pieces: list[str] = []
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            pieces.append(f"{len(item)}:{item}")
        elif isinstance(item, bool) or item is None:
            pieces.append(f"{item},")
        elif isinstance(item, int | float):
            pieces.append(f"{_number_key(item)},")
        elif isinstance(item, Mapping):
            pieces.append(f"{{{len(item)},")
            for name in sorted(item, reverse=True):
                pending += (item[name], name)
        else:
            pieces.append(f"[{len(item)},")
            pending += reversed(item)
    return "".join(pieces)


def _number_key(number: float) -> str:
    try:
        as_float = float(number)
    except OverflowError:
        return hex(int(number))
    # adding 0.0 makes one zero of the two
    return (as_float + 0.0).hex() if as_float == number else hex(int(number))


class Functions:
    """The functions that a case offers to the agent, read from its metadata."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        described = metadata.get("functions")
        if described is None:
            raise UngradableError("metadata.functions is absent: preset bfcl needs the functions' descriptions")
        alone = isinstance(described, Mapping)
        self._by_name: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for index, description in enumerate([described] if alone else _list(described, "metadata.functions")):
            place = "metadata.functions" if alone else f"metadata.functions[{index}]"
            name = _mapping(description, place).get("name")
            if not isinstance(name, str):
                raise UngradableError(f"{place}.name must be text, got {quote(name)}")
            self._by_name[plain_name(name)] = (place, description)

    def expected_call(self, name: str, allowed: Mapping[str, Sequence[Any]]) -> BfclCall:
        """The expectation of one call.

        Where one function alone is described, it is meant whatever the expectation calls it. A
        function without description has no types but those of the allowed values.
        """
        name = plain_name(name)
        if name not in self._by_name and len(self._by_name) == 1:
            (name,) = self._by_name
        if name not in self._by_name:
            return BfclCall(name, {argument: Parameter(None, None, values) for argument, values in allowed.items()})
        place, description = self._by_name[name]
        place += ".parameters"
        parameters = _mapping(description.get("parameters", {}), place)
        properties = _mapping(parameters.get("properties", {}), f"{place}.properties")
        required = _list(parameters.get("required", []), f"{place}.required")
        rules: dict[str, Parameter | None] = {
            argument: _parameter(properties[argument], f"{place}.properties.{argument}", values)
            if argument in properties
            else None
            for argument, values in allowed.items()
        }
        return BfclCall(name, rules, [argument for argument in required if isinstance(argument, str)])


class BfclCall:
    """One expected call. A rule of None: the argument is not among the function's parameters."""

    def __init__(self, name: str, rules: Mapping[str, Parameter | None], required: Sequence[str] = ()) -> None:
        self.name = name
        self._rules = rules
        self._required = required
        self.size = 1 + len(required) + sum(1 if rule is None else rule.size for rule in rules.values())

    def mismatch(self, arguments: Mapping[str, Given]) -> Mismatch | None:
        """What keeps a call of this function with these arguments from being the expected one."""
        for argument in self._required:
            if argument not in arguments:
                return Mismatch(argument, "missing")
        known = 0
        for argument, rule in self._rules.items():
            given = arguments.get(argument)
            if given is None:
                if rule is None or not rule.optional:
                    return Mismatch(argument, "missing")
                continue
            known += 1
            why = rule.mismatch(given) if rule else "unexpected"
            if why:
                return Mismatch(argument, why)
        if known < len(arguments):
            return Mismatch(next(argument for argument in arguments if argument not in self._rules), "unexpected")
        return None


class Parameter:
    """What may be given for one argument: its declared type (None: any) and its allowed values."""

    def __init__(self, declared: type | None, item: type | None, allowed: Sequence[Any]) -> None:
        self.optional = "" in allowed
        self._own = _first_type(allowed)
        self._declared = declared or self._own or str
        self._item = item
        self._exact = frozenset(map(json_key, allowed))
        self._loose = frozenset(
            json_key([] if value == "" and self._declared is list else _loose(value)) for value in allowed
        )
        # A list fits when its items are of the declared type or of the type that an allowed list begins with.
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
        self.size = 1 + len(allowed) + sum(fields.size for fields in self._all_fields())

    def _all_fields(self) -> Iterator[_Fields]:
        yield from self._dicts
        for entries in self._dict_lists:
            yield from entries

    def mismatch(self, given: Given) -> Why | None:
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

    def _items_fit(self, given: Given) -> bool:
        return self._item_types is None or any(
            types is None or given.item_types <= types for types in self._item_types
        )

    def _allows(self, given: Given, exactly: bool) -> bool:
        if exactly or self._declared not in (str, list, dict):
            return given.key in self._exact
        if self._declared is dict:
            return any(fields.allow(given) for fields in self._dicts)
        if self._item is dict:
            return any(
                len(entries) == len(given.items)
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

    def allow(self, given: Given) -> bool:
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


def _parameter(description: object, place: str, allowed: Sequence[Any]) -> Parameter:
    description = _mapping(description, place)
    declared = _declared_type(description, place)
    items = description.get("items")
    if declared is not list or items is None:
        return Parameter(declared, None, allowed)
    return Parameter(declared, _declared_type(_mapping(items, f"{place}.items"), f"{place}.items"), allowed)


def _declared_type(description: Mapping[str, Any], place: str) -> type | None:
    name = description.get("type")
    if name is None:
        return None
    if not isinstance(name, str) or name not in _TYPES:
        raise UngradableError(f"{place}.type must be one of {', '.join(_TYPES)}, got {quote(name)}")
    return _TYPES[name]


def _mapping(value: object, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UngradableError(f"{place} must be a mapping, got {quote(value)}")
    return value


def _list(value: object, place: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise UngradableError(f"{place} must be a list, got {quote(value)}")
    return value

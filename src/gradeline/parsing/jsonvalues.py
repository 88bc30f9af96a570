"""JSON values: when two are equal, how large and how deep one is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


def json_equal(left: Any, right: Any) -> bool:
    """Equal as JSON: key order is free, 1 is 1.0, and true is not 1."""
    return json_key(left) == json_key(right)


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


def levels(value: object, most: int | None = None) -> list[list[Any]]:
    """The objects and lists in a value by depth, outermost first; ``most`` levels of them."""
    levels: list[list[Any]] = []
    level = [value] if isinstance(value, dict | list) else []
    while level and len(levels) != most:
        levels.append(level)
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
    return levels


class Size(NamedTuple):
    """How large a JSON value is."""

    values: int
    """It and all values in it."""
    chars: int
    """Of all strings and keys."""


def size_of(value: object, most: int | None = None) -> Size:
    """The size of a JSON value; counting ends once there are more than ``most`` values."""
    values = chars = 0
    pending = [value]
    while pending:
        item = pending.pop()
        values += 1
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, dict):
            chars += sum(map(len, item))
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        if most is not None and values > most:
            break
    return Size(values, chars)

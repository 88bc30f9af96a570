"""Damaged copies of JSON data: values of other types, missing keys, hostile strings."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e308, 10**30, [], {}, [None], {"a": 1}, [[]], [{}], {"": ""}, ["a", "b"], {"type": "x"}),
    *("", "x", "\0", "\u2028", "../../x", "9" * 400, "{{", "{{ item.x }}", "{{ sample.output_text }}", "$metadata.x"),
    *("${HOME}", "item.x"),
)
KEYS = ("name", "type", "item", "error", "range", "\0")


def mutated(data: Any, seed: int) -> Any:
    """A copy of the data with one to three changes, which depend only on the seed."""
    random = Random(seed)
    data = deepcopy(data)
    for _ in range(random.randint(1, 3)):
        places = [(parent, key) for parent, key in _places(data)]
        parent, key = random.choice(places)
        chance = random.random()
        if chance < 0.2 and isinstance(parent, dict):
            del parent[key]
        elif chance < 0.3 and isinstance(parent, dict):
            parent[random.choice(KEYS)] = deepcopy(random.choice(VALUES))
        else:
            parent[key] = deepcopy(random.choice(VALUES))
    return data


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """All entries of the mappings and lists, as the mapping or list and the key."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield data, key
        yield from _places(value)

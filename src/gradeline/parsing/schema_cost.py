"""What a JSON Schema may cost: an upper bound of the work on a value of a given size.

A subschema is evaluated once for each value that it applies to, and once more for each reference to it. So the
visits of a schema without recursion are at most its size, with each reference replaced by what it refers to, times
the size of the value. A reference that leads back to itself begins again on a part of the value: where two of them
apply to the same part, the work may double with each level of the value.

Every mapping and list within a schema counts as a subschema, whatever its keyword: the bound has to hold for keywords
that are not known here, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log
from typing import Any, NamedTuple
from urllib.parse import unquote

from gradeline.parsing.jsonvalues import Size
from gradeline.parsing.patterns import pattern_states

_VISIT_NS = 15
"""What the engine takes for one visit of a value, and for one state of a pattern at one character."""
_CHAR_NS = 2
"""What a visit of a string takes for each of its characters: its length, its format."""
_COMPILE_NS = 2_000
"""For each subschema; a pattern takes `_STATE_NS` for each of its states."""
_STATE_NS = 300
_MOST_NAMES = 300
_MOST_NODES = 100_000
"""A schema with more references, or with more in what they refer to, is not looked through and has no bound. Neither
has one whose references are not all pointers into it (``#/$defs/name``)."""
_LOG_MOST = 700.0
"""The largest exponent of a float."""


class SchemaCost(NamedTuple):
    """Upper bounds of the work of a schema."""

    once: float
    """Visits of subschemas that each apply to one value, such as that of a property."""
    visits: float
    """Visits of subschemas for each value, until a recursive reference begins again."""
    states: float
    """Of patterns, each of which may be looked at for each character."""
    restarts: float
    """How many recursive references may begin again on the same part of a value; one alone does not multiply."""
    recursive: int
    """How many different references are recursive."""
    compile_ns: float

    @property
    def ns_per_char(self) -> float:
        """For each character of the JSON text that a value was read from."""
        return inf if self.restarts >= 2 else _VISIT_NS * (self.once + self.visits + self.states)

    def visits_of(self, size: Size, depth: int) -> float:
        """All visits for a value of that size, nested ``depth`` levels deep."""
        if self.restarts:
            return (self.once + self.visits) * size.values * self._repeats(depth)
        return self.once + self.visits * size.values

    def nanoseconds(self, size: Size, depth: int) -> float:
        """To validate such a value."""
        for_strings = size.chars * (self.states * _VISIT_NS + (self.once + self.visits) * _CHAR_NS)
        return self.visits_of(size, depth) * _VISIT_NS + for_strings * self._repeats(depth)

    def _repeats(self, depth: int) -> float:
        if self.restarts < 2:
            return 1.0
        levels = depth + 1 + self.recursive
        return inf if levels * log(self.restarts) > _LOG_MOST else self.restarts**levels


def schema_cost(schema: dict[str, Any] | bool) -> SchemaCost:
    """The cost of a schema that is nested no deeper than the stack allows."""
    if isinstance(schema, bool):
        return SchemaCost(1.0, 0.0, 0.0, 0.0, 0, _COMPILE_NS)
    parts = _Parts(schema)
    if not parts.read():
        return SchemaCost(inf, inf, inf, inf, 0, _compile_cost(schema))
    known: dict[str, _Weight] = {}
    waiting = dict(parts.references)
    while ready := [name for name, targets in waiting.items() if targets.isdisjoint(waiting)]:
        for name in ready:
            del waiting[name]
        for name in ready:
            known[name] = _weigh(parts.nodes[name], known)
    # what is left refers to itself, or to something that does
    begun = [_weigh(parts.nodes[name], known) for name in waiting] or [known["#"]]
    return SchemaCost(
        max(weight.once for weight in begun),
        max(weight.visits for weight in begun),
        max(weight.states for weight in begun),
        max(weight.restarts for weight in begun),
        len(waiting),
        _compile_cost(schema),
    )


class _Parts:
    """The parts of a schema that references name: ``#`` is all of it."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self.nodes: dict[str, object] = {}
        self.references: dict[str, set[str]] = {}

    def read(self) -> bool:
        """Whether it is known what each reference names, and there are few enough of them."""
        if any(part is not self._schema and _has_own_base(part) for part in _walk(self._schema)):
            return False
        waiting = ["#"]
        looked_at = 0
        while waiting:
            name = waiting.pop()
            if name in self.nodes:
                continue
            node = self.nodes[name] = _resolve(self._schema, name)
            parts = _walk(node)
            looked_at += len(parts)
            if node is None or looked_at > _MOST_NODES or len(self.nodes) > _MOST_NAMES:
                return False
            found = self.references[name] = {target for part in parts for target in _targets(part)}
            waiting += found
        return True


class _Weight(NamedTuple):
    once: float = 1.0
    visits: float = 0.0
    states: float = 0.0
    restarts: float = 0.0


def _weigh(node: object, known: Mapping[str, _Weight], keyword: str = "") -> _Weight:
    """A part of a schema with what it refers to; a reference that is not known is a recursive one."""
    if isinstance(node, list):
        return _sum([_Weight(), *(_weigh(item, known) for item in node)])
    if not isinstance(node, dict):
        return _Weight(states=pattern_states(node) if keyword == "pattern" and isinstance(node, str) else 0.0)
    named = keyword in _NAMED_SCHEMAS
    own = _Weight(states=sum(map(pattern_states, node)) if keyword == "patternProperties" else 0.0)
    parts = [
        _weigh(item, known, "" if named else key) if named or key in _ONCE else _for_each(_weigh(item, known, key))
        for key, item in node.items()
        if named or key not in _DEFINITIONS  # what is there is evaluated only where it is referred to
    ]
    parts = [_for_each(part) for part in parts] if keyword == "patternProperties" else parts
    referred = [known.get(name, _Weight(restarts=1.0)) for name in _targets(node)]
    weight = _sum([own, *parts, *referred])
    if keyword == "properties":  # each applies to another part of the value
        most = _Weight(*map(max, zip(_Weight(), *parts, strict=True)))
        return weight._replace(states=most.states, restarts=most.restarts)
    if "unevaluatedProperties" in node or "unevaluatedItems" in node:  # what was evaluated is found out once more
        return _sum([weight, weight])
    return weight


def _for_each(weight: _Weight) -> _Weight:
    """For a subschema that applies to several values, such as that of ``items``."""
    return weight._replace(once=0.0, visits=weight.once + weight.visits)


def _sum(parts: list[_Weight]) -> _Weight:
    return _Weight(*map(sum, zip(*parts, strict=True)))


_DEFINITIONS = ("$defs", "definitions")
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", *_DEFINITIONS})
"""Keywords whose value is a mapping from names to schemas."""

_ONCE = frozenset(
    {"properties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies"}
    | {"prefixItems", "type", "enum", "const", "required", "$ref", "format", "title", "description", "default"}
    | {"examples", "pattern", "minimum", "maximum", "minLength", "maxLength", "$schema", "$comment", "$id"}
)
"""Keywords that look at the value itself, or give each of their subschemas one part of it; others count for all."""


def _walk(node: object) -> list[object]:
    """A part of a schema and all parts of it, at most one more than are looked at."""
    found: list[object] = []
    waiting = [node]
    while waiting and len(found) <= _MOST_NODES:
        part = waiting.pop()
        found.append(part)
        if isinstance(part, dict):
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return found


def _has_own_base(part: object) -> bool:
    """Whether references within a part may be relative to it."""
    return isinstance(part, dict) and (isinstance(part.get("$id"), str) or isinstance(part.get("id"), str))


def _targets(part: object) -> list[str]:
    if not isinstance(part, dict):
        return []
    return [str(part[key]) for key in ("$ref", "$dynamicRef", "$recursiveRef") if key in part]


def _resolve(schema: object, reference: str) -> object:
    """What a pointer into the schema names; None for any other reference."""
    if reference == "#":
        return schema
    if not reference.startswith("#/"):
        return None
    target = schema
    for part in unquote(reference[2:]).split("/"):
        if isinstance(target, list):
            target = {str(index): item for index, item in enumerate(target)}
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            return None
        target = target[name]
    return target


def _compile_cost(schema: dict[str, Any]) -> float:
    parts = _walk(schema)
    cost = float(len(parts) * _COMPILE_NS)
    for part in parts:
        if isinstance(part, dict):
            named = part.get("patternProperties")
            patterns = [part.get("pattern"), *(named if isinstance(named, dict) else ())]
            cost += _STATE_NS * sum(pattern_states(pattern) for pattern in patterns if isinstance(pattern, str))
    return cost if len(parts) <= _MOST_NODES else inf

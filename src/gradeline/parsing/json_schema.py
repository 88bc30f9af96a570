"""JSON Schema validation of untrusted data: no remote references, linear-time patterns, bounded time.

`schema_cost` is an upper bound of the work. A subschema is evaluated once for each value it applies to, and once more
for each reference to it. So the visits of a schema without recursion are at most its size, with all references
resolved, times the size of the value. A recursive reference restarts on a part of the value: if two apply to the same
part, the work may double with each level of the value. Every mapping and list within a schema counts as a subschema,
so that the bound holds for unknown keywords too.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, log
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from gradeline.errors import DataError
from gradeline.model import clean_data, quote
from gradeline.parsing.isolation import MOST_NS, needs_worker, too_costly
from gradeline.parsing.json_text import Size, levels, size_of
from gradeline.parsing.patterns import pattern_states


class SchemaError(ValueError):
    """Invalid JSON Schema; the message says where and why."""


class Schema:
    """A JSON Schema, compiled on first use.

    Validation raises `NeedsIsolationError` if it may take too much time or memory for this process.
    """

    def __init__(self, schema: dict[str, Any] | bool, *, formats: bool = False) -> None:
        """``formats``: whether ``format`` is checked too."""
        self._schema = schema
        self._formats = formats
        self._cost = schema_cost(schema)
        self._cheap_chars = MOST_NS / self._cost.ns_per_char if self._cost.ns_per_char else inf
        self._validator: _SchemaValidator | None = None
        if self._compiles_here:
            self._validator = _compile(schema, formats)
        else:
            _check_form(schema)

    def is_valid(self, value: object, chars: int) -> bool:
        """Whether a value, parsed from ``chars`` characters of JSON, is valid.

        Raises `SchemaError` if the engine cannot process the value.
        """
        if chars > self._cheap_chars:
            self._require_bound(self._cost.nanoseconds(size_of(value), len(levels(value))))
        validator = self._validator
        try:
            return self._engine().is_valid(value) if validator is None else validator.is_valid(value)
        except (ValueError, RuntimeError) as error:  # the latter if it is out of memory
            raise SchemaError(f"the schema cannot be applied: {quote_plain(str(error))}") from None

    def errors(self, value: object, most: int = 5) -> list[str]:
        """The first faults of an invalid value, each with its path.

        The engine collects all faults, each with a copy of its value, before it returns the first: if there may be more
        than `MAX_EXPLAINED`, they are not listed.
        """
        size = size_of(value)
        visits = self._cost.visits_of(size, len(levels(value)))
        if visits > MAX_EXPLAINED or visits * (size.chars + size.values) > _MAX_COPIED:
            return [_UNEXPLAINED]
        self._require_bound(visits * _FAULT_NS)
        found: list[str] = []
        try:
            for error in self._engine().iter_errors(value):
                if len(found) == most:
                    return [*found, "and more"]
                found.append(f"{_path(error.instance_path)}: {quote_plain(error.message)}")
        except (ValueError, RuntimeError):  # too deep for the engine; `is_valid` does not descend like this
            return [_UNEXPLAINED]
        return found

    @property
    def _compiles_here(self) -> bool:
        return not too_costly(self._cost.compile_ns)

    def _engine(self) -> _SchemaValidator:
        if self._validator is None:
            self._require_bound(self._cost.compile_ns)
            self._validator = _compile(self._schema, self._formats)
        return self._validator

    def _require_bound(self, nanoseconds: float) -> None:
        if too_costly(nanoseconds):
            raise needs_worker("validation against the JSON Schema")


MAX_EXPLAINED = 50_000
"""Maximum values visited to list faults; each takes about `_FAULT_NS` and 5 kB."""
_MAX_COPIED = 100_000_000
_FAULT_NS = 20_000
_UNEXPLAINED = "$: invalid, and too large to list the faults"


class _SchemaValidator(Protocol):
    def is_valid(self, instance: Any) -> bool: ...
    def iter_errors(self, instance: Any) -> Any: ...


def compile_schema(schema: object, *, formats: bool = False) -> Schema:
    """Compile a schema; `SchemaError` if it is invalid.

    If compiling takes long, its patterns are only checked on use, in a worker process.
    """
    if not isinstance(schema, dict | bool):
        raise SchemaError(f"expected a JSON Schema (a mapping, true or false), got {quote(schema)}")
    try:
        clean: Any = clean_data(schema, "schema")
    except DataError as error:
        raise SchemaError(str(error)) from None
    return Schema(clean, formats=formats)


def _compile(schema: dict[str, Any] | bool, formats: bool) -> _SchemaValidator:
    import jsonschema_rs  # keeps start-up light

    try:
        options = jsonschema_rs.RegexOptions()
        return jsonschema_rs.validator_for(
            schema, pattern_options=options, retriever=_fetch_nothing, validate_formats=formats or None
        )
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise _as_schema_error(error) from None


def _check_form(schema: dict[str, Any] | bool) -> None:
    """Validate against the meta-schema without compiling patterns."""
    import jsonschema_rs

    try:
        jsonschema_rs.meta.validate(schema)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise _as_schema_error(error) from None


def _as_schema_error(error: Exception) -> SchemaError:
    where = _path(getattr(error, "instance_path", []))
    reason = str(getattr(error, "message", error)).splitlines()[0]
    return SchemaError(f"{where}: {quote_plain(reason)}")


def quote_plain(text: str, limit: int = 300) -> str:
    """Shorten a message that may quote untrusted data."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"references to other documents are not fetched ({uri}); put the schema under $defs")


def _path(parts: list[str | int]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)


_VISIT_NS = 15
"""Time of one visit of a value, and of one pattern state at one character."""
_CHAR_NS = 2
"""Time per character of a visited string, for its length and format."""
_COMPILE_NS = 2_000
"""Per subschema; patterns take `_STATE_NS` per state."""
_STATE_NS = 300
_MOST_NAMES = 300
_MOST_NODES = 100_000
"""A schema with more references or more referenced nodes has no bound. Neither has one with references other than
pointers into itself (``#/$defs/name``)."""
_LOG_MOST = 700.0
"""The largest exponent of a float."""


class SchemaCost(NamedTuple):
    """Upper bounds of the work to compile and apply a schema."""

    once: float
    """Visits of subschemas that apply to one value, such as that of a property."""
    visits: float
    """Visits of subschemas per value, until a recursive reference restarts."""
    states: float
    """States of patterns, each of which may be visited at each character."""
    restarts: float
    """Recursive references that may restart on the same part of a value; a single one does not multiply."""
    recursive: int
    """Number of distinct recursive references."""
    compile_ns: float

    @property
    def ns_per_char(self) -> float:
        """Time per character of the JSON text of the value."""
        return inf if self.restarts >= 2 else _VISIT_NS * (self.once + self.visits + self.states)

    def visits_of(self, size: Size, depth: int) -> float:
        """All visits for a value of this size and nesting depth."""
        if self.restarts:
            return (self.once + self.visits) * size.values * self._repeats(depth)
        return self.once + self.visits * size.values

    def nanoseconds(self, size: Size, depth: int) -> float:
        """Time to validate a value of this size and nesting depth."""
        for_strings = size.chars * (self.states * _VISIT_NS + (self.once + self.visits) * _CHAR_NS)
        return self.visits_of(size, depth) * _VISIT_NS + for_strings * self._repeats(depth)

    def _repeats(self, depth: int) -> float:
        if self.restarts < 2:
            return 1.0
        levels = depth + 1 + self.recursive
        return inf if levels * log(self.restarts) > _LOG_MOST else self.restarts**levels


def schema_cost(schema: dict[str, Any] | bool) -> SchemaCost:
    """The cost of a schema whose nesting fits the stack."""
    if isinstance(schema, bool):
        return SchemaCost(1.0, 0.0, 0.0, 0.0, 0, _COMPILE_NS)
    parts = _ReferencedParts(schema)
    if not parts.read():
        return SchemaCost(inf, inf, inf, inf, 0, _compile_cost(schema))
    known: dict[str, _Weight] = {}
    waiting = dict(parts.references)
    while ready := [name for name, targets in waiting.items() if targets.isdisjoint(waiting)]:
        for name in ready:
            del waiting[name]
        for name in ready:
            known[name] = _weigh(parts.nodes[name], known)
    # the rest is recursive, or refers to something recursive
    weights = [_weigh(parts.nodes[name], known) for name in waiting] or [known["#"]]
    return SchemaCost(
        max(weight.once for weight in weights),
        max(weight.visits for weight in weights),
        max(weight.states for weight in weights),
        max(weight.restarts for weight in weights),
        len(waiting),
        _compile_cost(schema),
    )


class _ReferencedParts:
    """The parts of a schema by reference; ``#`` is the whole schema."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self.nodes: dict[str, object] = {}
        self.references: dict[str, set[str]] = {}

    def read(self) -> bool:
        """Whether all references can be resolved and are within the limits."""
        if any(part is not self._schema and _has_own_base(part) for part in _walk(self._schema)):
            return False
        waiting = ["#"]
        visited = 0
        while waiting:
            name = waiting.pop()
            if name in self.nodes:
                continue
            node = self.nodes[name] = _resolve(self._schema, name)
            parts = _walk(node)
            visited += len(parts)
            if node is None or visited > _MOST_NODES or len(self.nodes) > _MOST_NAMES:
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
    """The weight of a part of a schema and its references; an unknown reference is recursive."""
    if isinstance(node, list):
        return _sum([_Weight(), *(_weigh(item, known) for item in node)])
    if not isinstance(node, dict):
        return _Weight(states=pattern_states(node) if keyword == "pattern" and isinstance(node, str) else 0.0)
    named = keyword in _NAMED_SCHEMAS
    own = _Weight(states=sum(map(pattern_states, node)) if keyword == "patternProperties" else 0.0)
    parts = [
        _weigh(item, known, "" if named else key) if named or key in _ONCE else _for_each(_weigh(item, known, key))
        for key, item in node.items()
        if named or key not in _DEFINITIONS  # definitions are only evaluated through references
    ]
    parts = [_for_each(part) for part in parts] if keyword == "patternProperties" else parts
    referred = [known.get(name, _Weight(restarts=1.0)) for name in _targets(node)]
    weight = _sum([own, *parts, *referred])
    if keyword == "properties":  # each applies to a different part of the value
        most = _Weight(*map(max, zip(_Weight(), *parts, strict=True)))
        return weight._replace(states=most.states, restarts=most.restarts)
    if "unevaluatedProperties" in node or "unevaluatedItems" in node:  # evaluated twice
        return _sum([weight, weight])
    return weight


def _for_each(weight: _Weight) -> _Weight:
    """The weight of a subschema that applies to several values, such as that of ``items``."""
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
"""Keywords that apply to the value itself, or each of whose subschemas applies to one part of it."""


def _walk(node: object) -> list[object]:
    """A part of a schema and all its descendants, up to one more than the limit."""
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
    """Whether references within a part may be relative to the part."""
    return isinstance(part, dict) and (isinstance(part.get("$id"), str) or isinstance(part.get("id"), str))


def _targets(part: object) -> list[str]:
    if not isinstance(part, dict):
        return []
    return [str(part[key]) for key in ("$ref", "$dynamicRef", "$recursiveRef") if key in part]


def _resolve(schema: object, reference: str) -> object:
    """Resolve a pointer into the schema; None for any other reference."""
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

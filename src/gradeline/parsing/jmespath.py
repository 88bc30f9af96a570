"""JMESPath expressions, checked before use: syntax, function names and arguments, and cost.

A path of two kilobytes can double its data a hundred times. So compiling a path computes the growth of each part as a
linear function of the size of the data, which gives an upper bound of the time for a value.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator
from math import inf
from typing import Any, NamedTuple

from gradeline.errors import UngradableError, closest_match
from gradeline.model import quote
from gradeline.parsing.isolation import MOST_NS, needs_worker, too_costly
from gradeline.parsing.json_text import Size, size_of

MAX_PATH = 10_000
"""Maximum characters of a path."""
_VISIT_NS = 3_000
"""Time of one part of a path on one value."""
_COMPARE_NS = 0.2
"""Time to copy or compare one character."""
_WRITE_NS = 3
"""Time to write one character of the result as JSON."""
_VALUE_CHARS = 30
"""Usual maximum length of a number as text; strings count by length."""

_CHAINS = frozenset(
    ("subexpression", "index_expression", "pipe", "projection", "value_projection", "filter_projection", "flatten")
)
"""Parts of a path that begin with their first child."""
_PREFIX = re.compile(r"\A(?:Bad|Invalid) jmespath expression: ", re.IGNORECASE)


class BadPathError(ValueError):
    """Invalid JMESPath; the message quotes it and says why."""


class JmesPath:
    """A compiled JMESPath."""

    def __init__(self, path: str) -> None:
        import jmespath  # takes 10 ms, and most commands never need it

        if len(path) > MAX_PATH:
            raise BadPathError(
                f"a JMESPath of {len(path):,} characters is too long (at most {MAX_PATH:,}): {quote(path, 40)}"
            )
        try:
            with warnings.catch_warnings(action="ignore"):  # deprecated literal syntax, still supported
                compiled = jmespath.compile(path)
        except RecursionError:
            raise BadPathError(f"{quote(path)} is not a valid JMESPath: nested too deeply") from None
        except (ValueError, LookupError) as error:
            raise BadPathError(f"{quote(path)} is not a valid JMESPath: {_first_line(error)}") from None
        for fault in _faults(compiled.parsed):
            raise BadPathError(f"{quote(path)} is not a valid JMESPath: {fault}")
        self._path = path
        self._compiled = compiled
        self._field: str | None = compiled.parsed["value"] if compiled.parsed["type"] == "field" else None
        """Set if the whole path is one name: then the interpreter is not needed."""
        self._cost = _cost_of(compiled.parsed)

    def __str__(self) -> str:
        return self._path

    @property
    def first_field(self) -> str | None:
        """The name with which the path begins; None if it begins with something else, such as a function."""
        node = self._compiled.parsed
        while node["type"] in _CHAINS:
            node = node["children"][0]
        return node["value"] if node["type"] == "field" else None

    def search(self, data: object) -> Any:
        """The value at the path; None if there is none.

        Raises `UngradableError` if a function does not support the data, `NeedsIsolationError` if the search may take
        too much time or memory for this process.
        """
        if self._field is not None and type(data) is dict:
            return data.get(self._field)
        if self._cost.grows and too_costly(self._cost.nanoseconds(size_of(data, MOST_NS // _VISIT_NS))):
            raise needs_worker(f"the JMESPath {quote(self._path)}")
        from jmespath.exceptions import JMESPathTypeError

        try:
            return self._compiled.search(data)
        except JMESPathTypeError as error:
            # its message contains the whole value
            reason = (
                f"{error.function_name}() takes {' or '.join(error.expected_types)}, got {quote(error.current_value)}"
            )
        except RecursionError:
            reason = "the data is nested too deeply"
        except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
            reason = _first_line(error)
        raise UngradableError(f"the JMESPath {quote(self._path)} fails on this data: {reason}")


class _Linear(NamedTuple):
    """A linear function: ``slope`` times a size, plus a constant."""

    slope: float
    constant: float

    def __call__(self, size: float) -> float:
        return _times(self.slope, size) + self.constant

    def plus(self, other: _Linear) -> _Linear:
        return _Linear(self.slope + other.slope, self.constant + other.constant)

    def of(self, inner: _Linear) -> _Linear:
        """The composition of this function with another."""
        return _Linear(_times(self.slope, inner.slope), self(inner.constant))

    def times(self, factor: float) -> _Linear:
        return _Linear(_times(self.slope, factor), _times(self.constant, factor))


def _times(one: float, other: float) -> float:
    return one * other if one and other else 0.0  # zero times infinity is not a number


class _Cost(NamedTuple):
    """Upper bounds as functions of the size of the data: parts visited, and size of the result."""

    visits: _Linear
    found: _Linear

    @property
    def grows(self) -> bool:
        """Whether the cost depends on the data."""
        return self.visits.slope > 0 or self.found != _SAME or self.visits.constant > MOST_NS / _VISIT_NS

    def nanoseconds(self, size: Size) -> float:
        chars = size.chars + size.values * _VALUE_CHARS
        return _VISIT_NS * self.visits(size.values) + _COMPARE_NS * self.visits(chars) + _WRITE_NS * self.found(chars)


_NONE = _Linear(0.0, 0.0)
_ONE = _Linear(0.0, 1.0)
_SAME = _Linear(1.0, 0.0)
_UNBOUNDED = _Cost(_Linear(inf, inf), _Linear(inf, inf))
_TO_STRING = 6.0
"""Growth of a string as JSON: a control character becomes six."""


def _cost_of(tree: dict[str, Any]) -> _Cost:
    try:
        return _cost(tree)
    except RecursionError:
        return _UNBOUNDED


def _cost(node: dict[str, Any]) -> _Cost:
    """The cost of a part of a path as a function of the size of its input."""
    kind = node["type"]
    if kind in ("field", "index", "current", "identity"):
        return _Cost(_ONE, _SAME)
    if kind == "literal":
        size = size_of(node["value"])
        return _Cost(_ONE, _Linear(0.0, size.values + size.chars))
    if kind == "slice":
        return _Cost(_Linear(1.0, 1.0), _SAME)
    if kind == "function_expression":
        return _function_cost(node)
    if kind == "expref":  # evaluated by the function it is passed to
        return _Cost(_ONE, _ONE)
    parts = [_cost(child) for child in node["children"]]
    if kind in ("subexpression", "index_expression", "pipe"):
        return _in_turn(parts)
    if kind in ("projection", "value_projection"):
        return _for_each(parts[0], parts[1])
    if kind == "filter_projection":
        each, condition = parts[1:]
        return _for_each(parts[0], _Cost(each.visits.plus(condition.visits), each.found))
    visits = _sum(part.visits for part in parts).plus(_ONE)
    found = _sum(part.found for part in parts)
    if kind == "flatten":
        return _Cost(visits.plus(found), found)
    if kind in ("comparator", "not_expression"):
        return _Cost(visits.plus(found), _ONE)
    if kind in ("or_expression", "and_expression", "key_val_pair"):
        return _Cost(
            visits, _Linear(max(part.found.slope for part in parts), max(part.found.constant for part in parts))
        )
    if kind in ("multi_select_list", "multi_select_dict"):
        return _Cost(visits, found.plus(_Linear(0.0, len(parts) + 1.0)))
    return _UNBOUNDED


def _in_turn(parts: list[_Cost]) -> _Cost:
    """Each part on the result of the previous one."""
    visits, found = _ONE, _SAME
    for part in parts:
        visits = visits.plus(part.visits.of(found))
        found = part.found.of(found)
    return _Cost(visits, found)


def _for_each(left: _Cost, each: _Cost) -> _Cost:
    """A part on each of the values found, whose number is at most their size."""
    one = each.visits.slope + each.visits.constant + 1.0
    grown = each.found.slope + each.found.constant
    return _Cost(left.visits.plus(left.found.times(one)).plus(_ONE), left.found.times(grown).plus(_ONE))


_CALLS = {"map": 0, "sort_by": 1, "min_by": 1, "max_by": 1}
"""Index of the argument that is an expression."""


def _function_cost(node: dict[str, Any]) -> _Cost:
    called = _CALLS.get(node["value"])
    if called is not None and node["children"][called]["type"] != "expref":
        return _UNBOUNDED  # the expression comes from elsewhere in the path
    plain = [child for child in node["children"] if child["type"] != "expref"]
    costs = [_cost(child) for child in plain]
    arguments = _Cost(_sum(one.visits for one in costs).plus(_ONE), _sum(one.found for one in costs).plus(_ONE))
    for child in node["children"]:
        if child["type"] == "expref":
            arguments = _for_each(arguments, _with_itself(_cost(child["children"][0])))
    visits, found = arguments.visits.plus(arguments.found), arguments.found
    if node["value"] == "join":
        if plain[0]["type"] != "literal":  # the separator times the number of values
            return _UNBOUNDED
        found = found.times(1.0 + costs[0].found.constant)
    elif node["value"] == "to_string":
        found = found.times(_TO_STRING)
    return _Cost(visits, found)


def _with_itself(each: _Cost) -> _Cost:
    """A value and the result of an expression on it: functions may return either."""
    return _Cost(each.visits, each.found.plus(_SAME))


def _sum(parts: Iterable[_Linear]) -> _Linear:
    total = _NONE
    for part in parts:
        total = total.plus(part)
    return total


def _faults(tree: dict[str, Any]) -> Iterator[str]:
    """Faults that jmespath itself reports only on evaluation."""
    from jmespath.functions import Functions

    known = Functions.FUNCTION_TABLE
    nodes: list[Any] = [tree]
    while nodes:
        node = nodes.pop()
        if not isinstance(node, dict):
            continue
        children = node.get("children", [])
        nodes += children
        if node["type"] == "slice" and children[2] == 0:
            yield "the step of a slice cannot be 0"
        if node["type"] != "function_expression":
            continue
        name, count = node["value"], len(children)
        if name not in known:
            close = closest_match(name, known)
            yield f"no function named {name!r}; " + (
                f"did you mean {close!r}?" if close else f"use one of {', '.join(sorted(known))}"
            )
            continue
        signature = known[name]["signature"]
        variadic = bool(signature) and signature[-1].get("variadic", False)
        if count < len(signature) or (count > len(signature) and not variadic):
            arguments = "argument" if len(signature) == 1 else "arguments"
            yield f"{name}() takes {'at least ' if variadic else ''}{len(signature)} {arguments}, got {count}"


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0].removesuffix(", for expression:").rstrip(":.")
    return _PREFIX.sub("", line)[:200] or type(error).__name__

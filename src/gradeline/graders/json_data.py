"""Is the answer the expected JSON, or JSON of the expected shape?"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from gradeline.errors import ConfigError, Problem, TooLargeError, UngradableError
from gradeline.graders.base import DeclaredGrader, verdict
from gradeline.model import Config, GradeContext, GradeResult, described, quote
from gradeline.parsing.jsontext import NotJsonError, parse_fenced_json, parse_json
from gradeline.parsing.schemas import SchemaError, compile_schema

MAX_DEPTH = 100
"""How deep an expectation may nest: the comparison descends as deep, and the stack is finite."""
MAX_UNORDERED = 1_000
"""How long a list may be whose elements are matched in any order, one by one."""
MAX_STEPS = 2_000_000
"""How many pairs of values such a matching may look at in all: about two seconds."""
MAX_EXPLAINED = 20_000
"""How many values a schema may look at to say what is wrong: the engine collects every fault there is."""


class JsonMatchConfig(Config, frozen=True):
    """Options of `JsonMatchGrader`."""

    mode: Annotated[
        Literal["equal", "subset"],
        described("equal: the same data. subset: the response may hold further keys beside the expected ones."),
    ] = "equal"
    ignore_list_order: Annotated[
        bool, described("Lists match in any order; in mode subset they may hold further elements then.")
    ] = False


class JsonMatchGrader(DeclaredGrader[JsonMatchConfig]):
    """Compares the JSON in the response with the JSON in the ground truth.

    The order of keys is free, 1 equals 1.0, and true is not 1. A code fence around the response is
    allowed. The reason names the path of the first difference.
    """

    kind = "json_match"
    name = "JSON match"
    scoring_guide = "1.0 when the data match, else 0.0; a response that is no JSON scores 0.0."

    def result(self, ctx: GradeContext) -> GradeResult:
        expected = _expected_json(ctx.expected)
        try:
            actual = parse_fenced_json(ctx.submission)
        except NotJsonError as error:
            return _not_json(error)
        subset = self.options.mode == "subset"
        comparison = _Comparison(subset, self.options.ignore_list_order)
        try:
            difference = comparison.difference(expected, actual)
        except RecursionError:
            raise UngradableError("the stack is too full to compare values nested this deep") from None
        if difference is not None:
            return verdict(False, str(difference), {"path": difference.where})
        return verdict(True, "The response holds the expected data" if subset else "The response is the expected data")


class JsonSchemaConfig(Config, frozen=True):
    """Options of `JsonSchemaGrader`."""

    schema: Annotated[
        dict[str, Any] | bool,
        described(
            "A JSON Schema, by default of draft 2020-12. Nothing is fetched: what it refers to stands under $defs. "
            "Patterns run on a linear engine, without lookaround and backreferences."
        ),
    ]

    def faults(self) -> Iterator[Problem]:
        try:
            compile_schema(self.schema)
        except SchemaError as error:
            linear = " (patterns run on a linear engine: no lookaround, no backreferences)"
            yield Problem("schema", f"{error}{linear if str(error).endswith('"regex"') else ''}")


class JsonSchemaGrader(DeclaredGrader[JsonSchemaConfig]):
    """Validates the JSON in the response against a JSON Schema.

    A code fence around the response is allowed. The reason lists the first faults with their paths.
    """

    kind = "json_schema"
    name = "JSON Schema"
    scoring_guide = "1.0 when the response is JSON that the schema allows, else 0.0; needs no ground truth."

    def __init__(
        self, grader_id: str | Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(grader_id, config)
        try:
            self._schema = compile_schema(self.options.schema)
        except SchemaError:
            raise ConfigError(self._reading.problems, self.kind) from None
        self._recursive_references = _recursive_references(self.options.schema)

    def result(self, ctx: GradeContext) -> GradeResult:
        try:
            value = parse_fenced_json(ctx.submission)
        except NotJsonError as error:
            return _not_json(error)
        try:
            valid = self._schema.is_valid(value)
        except ValueError as error:
            raise UngradableError(f"the schema cannot be applied to this response: {quote(str(error))}") from None
        if valid:
            return verdict(True, "The response is valid")
        errors = self._errors(value)
        return verdict(False, "\n".join(errors), {"errors": errors})

    def _errors(self, value: object) -> list[str]:
        if _visits(value, self._recursive_references) <= MAX_EXPLAINED:
            try:
                return self._schema.errors(value)
            except ValueError:  # deeper than the engine follows; `is_valid` needs no such descent
                pass
        return ["The response is not valid; it is too large to list what is wrong"]


def _expected_json(truth: str | None) -> Any:
    if truth is None:
        raise UngradableError("there is no ground_truth: json_match needs the expected JSON there")
    try:
        expected = parse_json(truth)
    except NotJsonError as error:
        raise UngradableError(f"the ground_truth {quote(truth)} is no JSON: {error}") from None
    if len(_levels(expected, MAX_DEPTH + 1)) > MAX_DEPTH:
        raise UngradableError(f"the ground_truth is nested more than {MAX_DEPTH} levels deep")
    return expected


def _not_json(error: NotJsonError) -> GradeResult:
    return verdict(False, f"The response is not JSON: {error}")


Path = tuple[str | int, ...]


class _Difference(NamedTuple):
    """Where two values differ, and how."""

    path: Path
    what: str

    @property
    def where(self) -> str:
        shown = "$" + "".join(f"[{step}]" if isinstance(step, int) else _key(step) for step in self.path)
        return shown if len(shown) <= 300 else f"{shown[:300]}…"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class _Comparison:
    """Compares two JSON values; the expected one says how deep. Used once."""

    def __init__(self, subset: bool, any_order: bool) -> None:
        self._subset = subset
        self._any_order = any_order
        self._steps = 0
        self._numbers: dict[Hashable, int] = {}

    def difference(self, expected: object, actual: object, path: Path = ()) -> _Difference | None:
        """The first difference, in the order of the expectation."""
        if isinstance(expected, dict) and isinstance(actual, dict):
            return self._in_objects(expected, actual, path)
        if isinstance(expected, list) and isinstance(actual, list):
            return self._in_lists(expected, actual, path)
        if _scalar_key(expected) == _scalar_key(actual):
            return None
        return _Difference(path, f"expected {_show(expected)}, got {_show(actual)}")

    def _in_objects(self, expected: dict[str, Any], actual: dict[str, Any], path: Path) -> _Difference | None:
        for key, value in expected.items():
            if key not in actual:
                return _Difference((*path, key), f"expected {_show(value)}, but it is missing")
            found = self.difference(value, actual[key], (*path, key))
            if found is not None:
                return found
        if not self._subset:
            for key, value in actual.items():
                if key not in expected:
                    return _Difference((*path, key), f"not expected, got {_show(value)}")
        return None

    def _in_lists(self, expected: list[Any], actual: list[Any], path: Path) -> _Difference | None:
        if len(expected) > len(actual) or (len(expected) < len(actual) and not (self._subset and self._any_order)):
            return _Difference(path, f"expected {len(expected)} elements, got {len(actual)}")
        if self._any_order:
            unmatched = self._match(expected, actual) if self._subset else self._first_missing(expected, actual)
            if unmatched is None:
                return None
            return _Difference(path, f"no element matches the expected [{unmatched}], {_show(expected[unmatched])}")
        for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
            found = self.difference(left, right, (*path, index))
            if found is not None:
                return found
        return None

    def _first_missing(self, expected: list[Any], actual: list[Any]) -> int | None:
        """The first expected element that the other list holds less often."""
        left, right = _canonical(expected, self._numbers), _canonical(actual, self._numbers)
        counts = Counter(right)
        for index, number in enumerate(left):
            if not counts[number]:
                return index
            counts[number] -= 1
        return None

    def _match(self, expected: list[Any], actual: list[Any]) -> int | None:
        """The first expected element that is left over when each takes another element that it matches."""
        if len(actual) > MAX_UNORDERED:
            raise TooLargeError(
                f"a list of {len(actual):,} elements is too long to match in any order (at most {MAX_UNORDERED:,})"
            )
        matches = [
            [index for index, right in enumerate(actual) if self._step() and self.difference(left, right) is None]
            for left in expected
        ]
        return _unmatched(matches, len(actual), self._step)

    def _step(self) -> bool:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise TooLargeError("the lists are too large to match in any order; leave ignore_list_order out")
        return True


def _unmatched(matches: Sequence[Sequence[int]], size: int, step: Callable[[], bool]) -> int | None:
    """The first left node that no matching can serve, by augmenting paths; ``matches`` are its right nodes."""
    taken_by: list[int | None] = [None] * size
    for start in range(len(matches)):
        reached_from: dict[int, int] = {}
        waiting = deque([start])
        free = None
        while waiting and free is None:
            left = waiting.popleft()
            for right in matches[left]:
                step()
                if right in reached_from:
                    continue
                reached_from[right] = left
                holder = taken_by[right]
                if holder is None:
                    free = right
                    break
                waiting.append(holder)
        if free is None:
            return start
        held = {holder: right for right, holder in enumerate(taken_by) if holder is not None}
        while True:
            left = reached_from[free]
            taken_by[free] = left
            if left == start:
                break
            free = held[left]
    return None


def _canonical(values: list[Any], numbers: dict[Hashable, int]) -> list[int]:
    """A number for each value, the same for equal values whatever the order of their lists.

    Works from the leaves up and without recursion, so that depth and size cost what they must.
    """
    of_container: dict[int, int] = {}

    def number(value: object) -> int:
        if isinstance(value, dict | list):
            return of_container[id(value)]
        return numbers.setdefault(_scalar_key(value), len(numbers))

    for level in reversed(_levels(values)):
        for node in level:
            key: Hashable
            if isinstance(node, dict):
                key = ("object", frozenset((name, number(value)) for name, value in node.items()))
            else:
                key = ("list", tuple(sorted(map(number, node))))
            of_container[id(node)] = numbers.setdefault(key, len(numbers))
    return [number(value) for value in values]


def _scalar_key(value: object) -> Hashable:
    """Equal for equal scalars: 1 and 1.0 are, 1 and true are not; a container is like no other value."""
    if isinstance(value, dict | list):
        return ("container", id(value))
    return ("bool" if isinstance(value, bool) else "scalar", value)


def _levels(value: object, most: int | None = None) -> list[list[Any]]:
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


def _visits(value: object, branches: int) -> int:
    """About how many values are looked at when ``branches`` references lead from each level to the next."""
    visits = 0
    for depth, level in enumerate(_levels(value)):
        visits += (1 + sum(map(len, level))) * max(branches, 1) ** depth
        if visits > MAX_EXPLAINED:
            break
    return visits


def _recursive_references(schema: object) -> int:
    """How many references of a schema lead back to themselves: each may multiply the work on every level.

    A reference that is no plain pointer into the schema counts as one to all of it.
    """
    targets: dict[str, object] = {}
    references: dict[str, list[str]] = {}
    waiting = ["#"]
    while waiting:
        name = waiting.pop()
        if name not in references:
            targets[name] = _resolve(schema, name)
            references[name] = _references(targets[name])
            waiting += references[name]
    recursive = {name for name in references if name in _reachable(name, references)}
    return sum(name in recursive for name in references["#"])


def _references(schema: object) -> list[str]:
    found: list[str] = []
    for level in _levels(schema):
        for node in level:
            if isinstance(node, dict):
                found += [str(node[key]) for key in ("$ref", "$dynamicRef", "$recursiveRef") if key in node]
    return found


def _reachable(start: str, references: Mapping[str, list[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(references[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += references[name]
    return reached


def _resolve(schema: object, reference: str) -> object:
    if not reference.startswith("#/"):
        return schema
    target = schema
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return schema
    return target


_PLAIN_KEY = re.compile(r"[^\W\d]\w*")


def _key(key: str) -> str:
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{quote(key, 80)}]"


_WORDS = {None: "null", True: "true", False: "false"}


def _show(value: object) -> str:
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, list):
        return f"a list of {len(value)} elements"
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    return quote(value, 80)

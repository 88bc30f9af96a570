"""Graders of JSON answers: comparison with the expected JSON, and validation by JSON Schema."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Annotated, Any, Literal, NamedTuple

from gradeline.errors import ConfigError, Problem, TooLargeError, UngradableError
from gradeline.graders.base import DeclaredGrader, binary_result
from gradeline.model import Config, GradeContext, GradeResult, described, quote
from gradeline.parsing.isolation import needs_worker, too_costly
from gradeline.parsing.json_schema import SchemaError, compile_schema
from gradeline.parsing.json_text import NotJsonError, levels, parse_fenced_json, parse_json

MAX_DEPTH = 100
"""Maximum nesting of an expectation; the comparison is recursive."""
MAX_UNORDERED = 1_000
"""Maximum length of a list whose elements are matched pairwise in any order."""
MAX_STEPS = 3_000_000
"""Maximum values that such a matching visits: some seconds, in a worker process."""
_STEP_NS = 1_000


class JsonMatchConfig(Config, frozen=True):
    """Options of `JsonMatchGrader`."""

    mode: Annotated[
        Literal["equal", "subset"],
        described("equal (default): the same data. subset: the response may have additional keys."),
    ] = "equal"
    ignore_list_order: Annotated[
        bool, described("Match lists in any order; in mode subset they may have additional elements.")
    ] = False


class JsonMatchGrader(DeclaredGrader[JsonMatchConfig]):
    """Compares the JSON in the response with the JSON in the ground truth.

    The order of keys does not matter, 1 equals 1.0, and true is not 1. A code fence around the response is allowed.
    The reason names the path of the first difference.
    """

    kind = "json_match"
    name = "JSON match"
    scoring_guide = "1.0 when the data match, else 0.0; a response that is not JSON scores 0.0."
    local_chars = 150_000  # up to 320 ns each, for long lists of numbers in any order

    def result(self, ctx: GradeContext) -> GradeResult:
        expected = _expected_json(ctx.expected)
        try:
            actual = parse_fenced_json(ctx.submission)
        except NotJsonError as error:
            return _not_json(error)
        subset = self.options.mode == "subset"
        numbers = _Numbers(expected, actual) if self.options.ignore_list_order else None
        try:
            difference = _Comparison(subset, numbers).difference(expected, actual)
        except RecursionError:
            raise UngradableError("the values are nested too deeply to be compared") from None
        if difference is not None:
            return binary_result(False, str(difference), {"path": difference.where})
        return binary_result(
            True, "The response contains the expected data" if subset else "The response is the expected data"
        )


_LINEAR = " (patterns run on a linear engine: no lookaround, no backreferences)"


class JsonSchemaConfig(Config, frozen=True):
    """Options of `JsonSchemaGrader`."""

    schema: Annotated[
        dict[str, Any] | bool,
        described(
            "JSON Schema (default draft 2020-12). References must be in the schema ($defs); nothing is fetched. "
            "Patterns run on a linear engine, without lookaround and backreferences."
        ),
    ]

    def faults(self) -> Iterator[Problem]:
        try:
            compile_schema(self.schema)
        except SchemaError as error:
            about_pattern = str(error).endswith('is not a "regex"')
            yield Problem("schema", f"{error}{_LINEAR if about_pattern else ''}")


class JsonSchemaGrader(DeclaredGrader[JsonSchemaConfig]):
    """Validates the JSON in the response against a JSON Schema.

    A code fence around the response is allowed. The reason lists the first errors with their paths.
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

    def result(self, ctx: GradeContext) -> GradeResult:
        try:
            value = parse_fenced_json(ctx.submission)
        except NotJsonError as error:
            return _not_json(error)
        try:
            if self._schema.is_valid(value, len(ctx.submission)):
                return binary_result(True, "The response is valid")
        except SchemaError as error:
            raise UngradableError(str(error)) from None
        return binary_result(False, "\n".join(self._schema.errors(value)))


def _expected_json(truth: str | None) -> Any:
    if truth is None:
        raise UngradableError("there is no ground_truth: json_match needs the expected JSON there")
    try:
        expected = parse_json(truth)
    except NotJsonError as error:
        raise UngradableError(f"the ground_truth {quote(truth)} is not JSON: {error}") from None
    if len(levels(expected, MAX_DEPTH + 1)) > MAX_DEPTH:
        raise UngradableError(f"the ground_truth is nested more than {MAX_DEPTH} levels deep")
    return expected


def _not_json(error: NotJsonError) -> GradeResult:
    return binary_result(False, f"The response is not JSON: {error}")


Path = tuple[str | int, ...]


class _Difference(NamedTuple):
    """The path and description of a difference."""

    path: Path
    what: str

    @property
    def where(self) -> str:
        shown = "$" + "".join(f"[{step}]" if isinstance(step, int) else _key(step) for step in self.path)
        return shown if len(shown) <= 300 else f"{shown[:300]}…"

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class _Comparison:
    """Compares two JSON values. For a single use."""

    def __init__(self, subset: bool, numbers: _Numbers | None) -> None:
        self._subset = subset
        self._numbers = numbers
        self._steps = 0

    def difference(self, expected: object, actual: object, path: Path = ()) -> _Difference | None:
        """The first difference, in the order of the expectation."""
        self._step()
        if isinstance(expected, dict) and isinstance(actual, dict):
            return self._in_objects(expected, actual, path)
        if isinstance(expected, list) and isinstance(actual, list):
            return self._in_lists(expected, actual, path)
        if isinstance(expected, bool) or isinstance(actual, bool):
            same = expected is actual
        else:
            same = expected == actual
        return None if same else _Difference(path, f"expected {_show(expected)}, got {_show(actual)}")

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
        if self._numbers is not None:
            return self._in_any_order(expected, actual, path, self._numbers)
        if len(expected) != len(actual):
            return _lengths_differ(expected, actual, path)
        for index, (left, right) in enumerate(zip(expected, actual, strict=True)):
            found = self.difference(left, right, (*path, index))
            if found is not None:
                return found
        return None

    def _in_any_order(
        self, expected: list[Any], actual: list[Any], path: Path, numbers: _Numbers
    ) -> _Difference | None:
        self._step(len(expected) + len(actual))
        if len(expected) > len(actual) or (len(expected) < len(actual) and not self._subset):
            return _lengths_differ(expected, actual, path)
        # Equal elements may be paired first: anything that matches one of them matches the other too.
        left_over, available = numbers.without_equals(expected, actual)
        if self._subset:
            left_over = self._unmatched(expected, left_over, actual, available)
        if not left_over:
            return None
        first = left_over[0]
        return _Difference(path, f"no element matches the expected [{first}], {_show(expected[first])}")

    def _unmatched(
        self, expected: list[Any], left_over: list[int], actual: list[Any], available: list[int]
    ) -> list[int]:
        """The expected elements without a partner after a maximum matching with the available ones."""
        if left_over and len(available) > MAX_UNORDERED:
            raise TooLargeError(
                f"{len(available):,} elements are too many to match in any order (at most {MAX_UNORDERED:,})"
            )
        matches = maximum_matching(
            [
                sum(
                    1 << position
                    for position, right in enumerate(available)
                    if self.difference(expected[left], actual[right]) is None
                )
                for left in left_over
            ]
        )
        return [left for position, left in enumerate(left_over) if position not in matches]

    def _step(self, values: int = 1) -> None:
        self._steps += values
        # Only in this mode values are visited more than once.
        if self._subset and self._numbers is not None:
            if self._steps > MAX_STEPS:
                raise TooLargeError("the lists are too large to match in any order; remove ignore_list_order")
            if too_costly(self._steps * _STEP_NS):
                raise needs_worker("matching the lists in any order")


def _lengths_differ(expected: list[Any], actual: list[Any], path: Path) -> _Difference:
    return _Difference(path, f"expected {_counted(expected, 'element')}, got {len(actual)}")


class _Numbers:
    """Numbers the values of JSON trees so that values that are equal in any list order have the same number.

    Works bottom-up, without recursion. Keys are strings because Python salts only their hashes: a response full of
    numbers with colliding hashes would take quadratic time.
    """

    def __init__(self, *trees: object) -> None:
        self._by_key: dict[str, int] = {}
        self._by_container: dict[int, int] = {}
        for tree in trees:
            for level in reversed(levels(tree)):
                for node in level:
                    if isinstance(node, dict):
                        key = f"object {sorted((name, self._of(value)) for name, value in node.items())}"
                    else:
                        key = f"list {sorted(map(self._of, node))}"
                    self._by_container[id(node)] = self._of_key(key)

    def without_equals(self, left: list[Any], right: list[Any]) -> tuple[list[int], list[int]]:
        """The indexes of the elements of two lists that have no equal partner."""
        left_numbers, right_numbers = list(map(self._of, left)), list(map(self._of, right))
        shared = Counter(left_numbers) & Counter(right_numbers)
        return _beyond(left_numbers, shared), _beyond(right_numbers, shared)

    def _of(self, value: object) -> int:
        if isinstance(value, dict | list):
            return self._by_container[id(value)]
        return self._of_key(_scalar_key(value))

    def _of_key(self, key: str) -> int:
        return self._by_key.setdefault(key, len(self._by_key))


def _beyond(numbers: list[int], shared: Mapping[int, int]) -> list[int]:
    remaining = dict(shared)
    indexes = []
    for index, number in enumerate(numbers):
        if remaining.get(number):
            remaining[number] -= 1
        else:
            indexes.append(index)
    return indexes


def _scalar_key(value: object) -> str:
    """Equal for equal scalars: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(value, str):
        return f"text {value}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return repr(value)


_PLAIN_KEY = re.compile(r"[^\W\d]\w*")


def _key(key: str) -> str:
    return f".{key}" if _PLAIN_KEY.fullmatch(key) else f"[{quote(key, 80)}]"


_WORDS = {None: "null", True: "true", False: "false"}


def _show(value: object) -> str:
    if isinstance(value, dict):
        return f"an object of {_counted(value, 'key')}"
    if isinstance(value, list):
        return f"a list of {_counted(value, 'element')}"
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    return quote(value, 80)


def _counted(values: Sized, noun: str) -> str:
    return f"{len(values)} {noun}" + ("" if len(values) == 1 else "s")


def maximum_matching(fits: Sequence[int]) -> dict[int, int]:
    """A maximum bipartite matching: as many pairs (left, right) as possible, each side used at most once.

    Bit r of ``fits[l]`` is set if l and r may be paired. Uses augmenting paths found by breadth-first search; each
    search visits every right node once, so the total is at most left times right steps.
    """
    pairs: dict[int, int] = {}
    owners: dict[int, int] = {}
    for start in range(len(fits)):
        reached_from: dict[int, int] = {}
        unseen = -1
        queue = [start]
        for left in queue:
            fresh = fits[left] & unseen
            unseen &= ~fresh
            free = None
            while fresh and free is None:
                lowest = fresh & -fresh
                fresh ^= lowest
                right = lowest.bit_length() - 1
                reached_from[right] = left
                if right in owners:
                    queue.append(owners[right])
                else:
                    free = right
            if free is not None:
                _flip(free, reached_from, pairs, owners)
                break
    return pairs


def _flip(right: int | None, reached_from: Mapping[int, int], pairs: dict[int, int], owners: dict[int, int]) -> None:
    while right is not None:
        left = reached_from[right]
        before = pairs.get(left)
        pairs[left], owners[right] = right, left
        right = before

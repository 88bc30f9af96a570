"""Gates from data, with every fault and its path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from msgspec.structs import fields

from gradeline.errors import Problem, closest
from gradeline.model import quote, read_struct
from gradeline.verdict.logical import Gate
from gradeline.verdict.simple import SimpleGate
from gradeline.verdict.weighted import read_weights

MAX_DEPTH = 32
MAX_CONDITIONS = 1_000

KINDS: dict[str, type[Gate]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Gate)}


class GateReading(NamedTuple):
    """A gate, or what is wrong with it. Paths are relative to the gate: ``conditions[1].metric_key``."""

    gate: Gate | None
    problems: list[Problem]
    warnings: list[Problem]
    """What is allowed but will hardly do what was meant."""


def read_gate(given: object, graders: Sequence[str]) -> GateReading:
    """Read any kind of gate; one without a kind is simple.

    ``graders`` are the keys that it may name; where there are none, names are not checked.
    """
    reader = _Reader(graders)
    problems: list[Problem] = []
    gate = reader.read(given, "", problems)
    return GateReading(
        None if problems else gate,
        [_rooted(problem) for problem in problems],
        [_rooted(warning) for warning in reader.warnings],
    )


class _Reader:
    def __init__(self, graders: Sequence[str]) -> None:
        self._graders = graders
        self.warnings: list[Problem] = []

    def read(self, given: object, path: str, problems: list[Problem], depth: int = 1) -> Gate | None:
        if not isinstance(given, Mapping):
            expected = "expected a gate such as {metric_key: …, op: gte, value: 0.8}"
            problems.append(Problem(path, f"{expected}, got {quote(given)}"))
            return None
        kind = _kind(given, path, problems)
        if kind is None:
            return None

        def conditions(value: object, where: str, found: list[Problem]) -> tuple[Gate, ...]:
            return self._conditions(value, where, found, depth)

        # null is the same as nothing, as it was for letta's releases
        optional = {field.encode_name for field in fields(kind) if not field.required}
        data = {key: value for key, value in given.items() if value is not None or key not in optional}
        reading = read_struct(kind, data, path, {"conditions": conditions, "weights": read_weights})
        problems += [*reading.problems, *reading.unknown, *self._misnamed(given, path)]
        if reading.options is not None:
            self.warnings += [warning.within(path) for warning in reading.options.warnings()]
        return reading.options

    def _conditions(self, given: object, path: str, problems: list[Problem], depth: int) -> tuple[Gate, ...]:
        if not isinstance(given, list | tuple) or not given:
            fault = f"expected a list of at least one condition, got {quote(given)}"
        elif len(given) > MAX_CONDITIONS:
            fault = f"has {len(given):,} conditions; at most {MAX_CONDITIONS:,} are read"
        elif depth >= MAX_DEPTH:
            fault = f"is nested more than {MAX_DEPTH} levels deep"
        else:
            read = [self.read(each, f"{path}[{index}]", problems, depth + 1) for index, each in enumerate(given)]
            return tuple(gate for gate in read if gate is not None)
        problems.append(Problem(path, fault))
        return ()

    def _misnamed(self, given: Mapping[Any, Any], path: str) -> Iterator[Problem]:
        """The graders that it names and that are not there."""
        key, weights = given.get("metric_key"), given.get("weights")
        named = {f"{path}.metric_key": key} if isinstance(key, str) else {}
        if isinstance(weights, Mapping):
            named |= {f"{path}.weights.{each}": str(each) for each in weights}
        for where, name in named.items():
            if self._graders and name not in self._graders:
                near = closest(name, self._graders)
                hint = f"did you mean {near!r}?" if near else f"the graders are {', '.join(self._graders)}"
                yield Problem(where, f"no grader {quote(name)}; {hint}")


def _kind(given: Mapping[Any, Any], path: str, problems: list[Problem]) -> type[Gate] | None:
    name = given.get("kind")
    if name is None:
        meant = _meant(given)
        if meant is not None:
            problems.append(Problem(f"{path}.kind", f"is required: with these keys it is {meant!r}"))
        return SimpleGate if meant is None else None
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        near = closest(name, KINDS) if isinstance(name, str) else None
        hint = f" (did you mean {near!r}?)" if near else ""
        problems.append(Problem(f"{path}.kind", f"expected one of {', '.join(KINDS)}{hint}, got {quote(name)}"))
    return kind


def _meant(given: Mapping[Any, Any]) -> str | None:
    """The kind that has all these keys, where a simple gate has not."""
    keys = {key for key in given if key != "kind" and not str(key).startswith("x-")}
    if keys <= set(SimpleGate.__struct_encode_fields__):
        return None
    return next((name for name, kind in KINDS.items() if keys <= set(kind.__struct_encode_fields__)), None)


def _rooted(problem: Problem) -> Problem:
    return problem._replace(path=problem.path.removeprefix("."))

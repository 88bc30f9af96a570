"""Rules from data: every fault is named with the path of its rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from gradeline.errors import Problem, closest
from gradeline.graders.rules.base import Rule
from gradeline.graders.rules.conditions import COMBINATORS, AnyRule
from gradeline.model import quote, read_struct

MAX_DEPTH = 32
MAX_RULES = 10_000

CONDITIONS: dict[str, type[Rule]] = {str(rule.__struct_config__.tag): rule for rule in get_args(AnyRule)}


def read_rules(data: object, path: str, problems: list[Problem]) -> list[Rule]:
    """The top-level list of rules."""
    return _read_list(data, path, problems, depth=1)


def _read_list(data: object, path: str, problems: list[Problem], depth: int) -> list[Rule]:
    if not isinstance(data, list | tuple):
        problems.append(Problem(path, f"expected a list of rules, got {quote(data)}"))
        return []
    if not data:
        problems.append(Problem(path, "is empty: give at least one rule"))
    if len(data) > MAX_RULES:
        problems.append(Problem(path, f"has {len(data):,} rules; at most {MAX_RULES:,} are read"))
        return []
    if depth > MAX_DEPTH:
        problems.append(Problem(path, f"is nested more than {MAX_DEPTH} levels deep"))
        return []
    rules = [_read_rule(item, f"{path}[{index}]", problems, depth) for index, item in enumerate(data)]
    return [rule for rule in rules if rule is not None]


def _read_rule(data: object, path: str, problems: list[Problem], depth: int) -> Rule | None:
    if not isinstance(data, Mapping):
        problems.append(Problem(path, f"expected a rule such as {{condition: contains, value: …}}, got {quote(data)}"))
        return None
    if "condition" in data:
        return _read_condition(data["condition"], data, path, f"{path}.rules", problems, depth)
    named = [name for name in COMBINATORS if name in data]
    if len(named) != 1:
        fault = f"names both {' and '.join(map(repr, named))}; keep one" if named else "has no 'condition'"
        problems.append(Problem(path, f"{fault}, got {quote(dict(data))}"))
        return None
    return _read_short(named[0], data, path, problems, depth)


def _read_short(name: str, data: Mapping[Any, Any], path: str, problems: list[Problem], depth: int) -> Rule | None:
    """``{"all": [...]}`` and ``{"at_least": {"n": 2, "rules": [...]}}``."""
    body = data[name]
    rest = {key: value for key, value in data.items() if key != name}
    if name != "at_least":
        return _read_condition(name, {**rest, "rules": body}, path, f"{path}.{name}", problems, depth)
    if not isinstance(body, Mapping):
        problems.append(Problem(f"{path}.at_least", f"expected {{n: …, rules: […]}}, got {quote(body)}"))
        return None
    return _read_condition(name, {**rest, **body}, path, f"{path}.at_least.rules", problems, depth)


def _read_condition(
    name: object, data: Mapping[Any, Any], path: str, rules_path: str, problems: list[Problem], depth: int
) -> Rule | None:
    kind = CONDITIONS.get(name) if isinstance(name, str) else None
    if kind is None:
        close = closest(name, CONDITIONS) if isinstance(name, str) else None
        hint = f"did you mean {close!r}?" if close else f"known are {', '.join(CONDITIONS)}"
        problems.append(Problem(f"{path}.condition", f"no condition named {quote(name)}; {hint}"))
        return None

    def nested(value: object, _: str, found: list[Problem]) -> tuple[Rule, ...]:
        return tuple(_read_list(value, rules_path, found, depth + 1))

    reading = read_struct(kind, data, path, {"rules": nested})
    faults = reading.problems + reading.unknown
    if reading.options is not None and not faults:
        faults = [fault.within(path) for fault in reading.options.faults()]
    problems += faults
    return None if faults else reading.options

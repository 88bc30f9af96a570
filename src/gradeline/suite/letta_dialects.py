"""letta-evals' six suite dialects, rewritten to gradeline's spelling before anything else reads a suite.

The dialects do not contradict each other, so one table of aliases serves all of them. A suite can be recognised by:

| dialect | releases | recognised by |
|---|---|---|
| D1 | 0.2-0.4, the published docs | `target.kind: agent`, `kind: rubric`, a gate with `metric` and no `kind` |
| D2 | 0.5-0.6 | `kind: letta_agent` or `letta_code`, `kind: model_judge`, a gate with `metric` and no `kind` |
| D3 | 0.7-0.16 | `gate.kind: simple`, `weighted_average` or `logical`; `max_concurrent`, `output`, `cleanup` |
| D4 | 0.17-0.19.0 | D3 with `sandbox`, and `sample_id`, `rubric` or `rubric_path` in cases |
| D5 | 0.19.1-0.20 | D4 with `kind: letta_code` only |
| D6 | 0.21-0.26 | `reward` instead of `gate`; a target without a `kind` is `letta_code` |
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from gradeline.errors import closest_match
from gradeline.model import quote
from gradeline.suite.problems import KeyPath

Section = Literal["suite", "target", "gate", "case"]


class Alias(NamedTuple):
    """letta-evals' name of a key. Only one of the two may have a value, except in a case."""

    section: Section
    spelling: str
    key: str
    dialects: str
    values: tuple[str, ...] = ()
    """The accepted values, where they are fewer than the key's."""
    overrides: bool = False
    """In a case that has both, this one is used and the other becomes metadata; otherwise the reverse."""


ALIASES = (
    Alias("suite", "num_runs", "repeats", "D1-D6"),
    Alias("suite", "max_concurrent", "concurrency", "D3-D6"),
    Alias("target", "model_handles", "models", "D1-D6"),
    Alias("gate", "metric", "aggregation", "D1-D2", values=("avg_score", "accuracy")),
    Alias("gate", "pass_value", "pass_threshold", "D1-D2"),
    Alias("case", "prompt", "input", "D1-D6"),
    Alias("case", "sample_id", "id", "D4-D6", overrides=True),
)

IGNORED = {"sandbox": "has no effect here"}
"""Top-level keys that are accepted with a warning."""

TARGET_KINDS = {"agent": "letta_agent"}
DEFAULT_TARGET_KIND = "letta_code"
"""The kind of a D6 target that has none."""
LETTA_TARGETS = ("letta_agent", "letta_code")

RUBRIC = "rubric"
AGENT_JUDGE = "letta_judge"
AGENT_JUDGE_OPTIONS = ("agent_file", "agent_id", "judge_tool_name")
"""Any of these on `kind: rubric` makes an agent the judge, as in the published docs (D1)."""

CASE_VARIABLES = ("agent_args", "rubric_vars", "extra_vars")
"""Keys of a case that are also read from inside its metadata (from 0.14)."""

_CONNECTION_OPTIONS = ("base_url", "project_id")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def aliases_of(section: Section) -> Iterator[Alias]:
    return (alias for alias in ALIASES if alias.section == section)


def key_names(section: Section, key: str) -> tuple[str, ...]:
    """The key and its aliases."""
    return (key, *(alias.spelling for alias in aliases_of(section) if alias.key == key))


def target_kind(kind: object) -> str:
    """gradeline's name of a target kind."""
    return TARGET_KINDS.get(str(kind), str(kind))


class RewrittenSuite(NamedTuple):
    """A suite file's data in gradeline's spelling. Paths of problems and warnings are those of the file."""

    data: dict[str, Any]
    problems: list[tuple[KeyPath, str]]
    warnings: list[tuple[KeyPath, str]]
    renamed: dict[KeyPath, KeyPath]

    def written(self, path: KeyPath) -> KeyPath:
        """The path in the file of a path in the data."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.renamed:
                return (*self.renamed[path[:end]], *path[end:])
        return path

    def moved(self, places: Mapping[KeyPath, KeyPath]) -> RewrittenSuite:
        """The same suite with the values at some paths written elsewhere in the file."""
        kept = {
            path: place
            for path, place in self.renamed.items()
            if not any(path[:end] in places for end in range(1, len(path) + 1))
        }
        return self._replace(renamed={**kept, **places})


def rewrite_suite(data: Mapping[str, Any]) -> RewrittenSuite:
    """Rewrite a suite of any dialect; the data itself is not changed."""
    found = RewrittenSuite({}, [], [], {})
    for key, value in _rename(found, "suite", data, ()).items():
        if key in IGNORED:
            found.warnings.append(((key,), IGNORED[key]))
        else:
            found.data[key] = value
    target, graders, gate = (found.data.get(key) for key in ("target", "graders", "gate"))
    if isinstance(target, Mapping):
        found.data["target"] = _rewrite_target(found, target, with_reward="reward" in data and "gate" not in data)
    if isinstance(graders, Mapping):
        found.data["graders"] = {key: _rewrite_grader(entry) for key, entry in graders.items()}
    if isinstance(gate, Mapping):
        found.data["gate"] = _rewrite_gate(found, gate, ("gate",))
    return found


def _rename(found: RewrittenSuite, section: Section, entry: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    """The entry with gradeline's keys; of two names of one key, the first in the file is used."""
    aliases = {alias.spelling: alias for alias in aliases_of(section)}
    keys = {alias.key for alias in aliases.values()}
    used: dict[str, str] = {}
    renamed: dict[str, Any] = {}
    for spelling, value in entry.items():
        alias = aliases.get(spelling)
        key = spelling if alias is None else alias.key
        if alias is not None and value is None:
            continue
        if key in keys and value is not None:
            if key in used:
                message = f"is another name of {used[key]!r}; keep one of them"
                found.problems.append(((*path, spelling), message))
                continue
            used[key] = spelling
        if key in used and used[key] != spelling:
            continue
        if alias is not None:
            found.renamed[*path, key] = (*path, spelling)
            if alias.values and value not in alias.values:
                found.problems.append(((*path, spelling), _one_of(alias.values, value)))
                continue
        renamed[key] = value
    return renamed


def _one_of(values: tuple[str, ...], value: object) -> str:
    near = closest_match(value, values) if isinstance(value, str) else None
    hint = f" (did you mean {near!r}?)" if near else ""
    return f"expected one of {', '.join(values)}{hint}, got {quote(value)}"


def _rewrite_target(found: RewrittenSuite, target: Mapping[str, Any], *, with_reward: bool) -> dict[str, Any]:
    rewritten = _rename(found, "target", target, ("target",))
    kind = rewritten.get("kind", DEFAULT_TARGET_KIND if with_reward else None)
    return {**rewritten, "kind": target_kind(kind)} if isinstance(kind, str) else rewritten


def _rewrite_grader(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return entry
    key = "kind" if "kind" in entry else "type"
    config = entry.get("config")
    options = {**config, **entry} if isinstance(config, Mapping) else entry
    if entry.get(key) == RUBRIC and any(options.get(name) is not None for name in AGENT_JUDGE_OPTIONS):
        return {**entry, key: AGENT_JUDGE}
    return entry


def _rewrite_gate(found: RewrittenSuite, gate: Mapping[str, Any], path: KeyPath) -> dict[str, Any]:
    conditions = gate.get("conditions")
    if isinstance(conditions, list):
        rewritten = [
            _rewrite_gate(found, each, (*path, "conditions", index)) if isinstance(each, Mapping) else each
            for index, each in enumerate(conditions)
        ]
        return {**gate, "conditions": rewritten}
    if gate.get("kind") not in (None, "simple"):
        return dict(gate)
    simple = _rename(found, "gate", gate, path)
    pass_value = found.renamed.get((*path, "pass_threshold"))
    if pass_value is not None and simple.get("pass_op") is None and simple.get("op") in ("gt", "lte", "lt", "eq"):
        simple["pass_op"] = simple["op"]  # in D1 and D2 a case passes by the operator of the gate
        found.renamed[*path, "pass_op"] = pass_value
    return simple


_CASE_NAMES = {
    alias.key: (alias.spelling, alias.key) if alias.overrides else (alias.key, alias.spelling)
    for alias in aliases_of("case")
}


def rewrite_gate(gate: object) -> object:
    """A gate as stored with a run, in gradeline's spelling."""
    return _rewrite_gate(RewrittenSuite({}, [], [], {}), gate, ()) if isinstance(gate, Mapping) else gate


def case_spelling(case: Mapping[str, Any], key: str) -> str:
    """The name under which a case has the key."""
    first, second = _CASE_NAMES[key]
    return second if case.get(first) is None and case.get(second) is not None else first


def case_variables(case: Mapping[str, Any], metadata: dict[str, Any], key: str) -> Any:
    """Variables of a case; those in its metadata are removed from there, and used where the case itself has none."""
    inside = metadata.pop(key, None)
    return inside if case.get(key) is None else case[key]


def judge_connection(
    options: Mapping[str, Any], kind: str, target: Mapping[str, Any], written_key: object
) -> tuple[dict[str, Any], str | None]:
    """The connection that an agent as judge takes over from a target of letta, and a fault of ``api_key_env``.

    A judge with a ``base_url`` of its own gets nothing: the target's key must not be sent there. ``written_key`` is the
    target's ``api_key`` as written in the file.
    """
    if kind not in LETTA_TARGETS or options.get("base_url") is not None:
        return {}, None
    inherited = {
        name: target[name]
        for name in _CONNECTION_OPTIONS
        if isinstance(target.get(name), str) and options.get(name) is None
    }
    if written_key is None or options.get("api_key_env") is not None:
        return inherited, None
    variable = _VARIABLE.fullmatch(written_key) if isinstance(written_key, str) else None
    if variable is None:
        return inherited, (
            "a judge's key is read from a variable, but the target's key is in the suite; write"
            " api_key: ${LETTA_API_KEY} there, and export it"
        )
    return {**inherited, "api_key_env": variable[1]}, None

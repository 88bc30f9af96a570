"""A suite after reading: one form, whatever spelling its file uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from gradeline.model.run import TurnRule
from gradeline.model.secrets import REDACTED, is_secret_name
from gradeline.suite.clusters import ClusterPath
from gradeline.suite.declaration import BudgetSpec, GraderEntry, PriceSpec, default_of
from gradeline.usercode.process_control import GRADER_MEMORY
from gradeline.verdict import Gate
from gradeline.verdict.evidence import AgentErrors


class GraderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A grader of a suite.

    ``function`` names a custom grader; without it ``kind`` is a built-in grader. An extractor that is not built in is
    a custom one.
    """

    key: str
    kind: str
    config: dict[str, Any] = {}
    function: str | None = None
    extractor: str = default_of(GraderEntry, "extractor")
    extractor_config: dict[str, Any] = {}
    when: dict[str, Any] | str | None = None
    """The cases that it applies to, as written; None: all."""
    expected: str | None = None
    """The value of the case that replaces its ground truth."""
    pass_threshold: float | None = None
    noise: float = default_of(GraderEntry, "noise")
    """In comparisons, a smaller change of a case's score counts as the same."""
    turns: TurnRule = default_of(GraderEntry, "turns")
    timeout: float = default_of(GraderEntry, "timeout")
    memory: int = GRADER_MEMORY
    """Memory limit of the process of a custom grader or extractor, in bytes; 0: no limit."""


class CodeReference(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a suite that refers to code, and its position; 0 and empty for a suite that is in no file.

    ``origin`` describes a bare name that gradeline defines, such as ``built-in grader``; None: the user's code.
    """

    role: str
    name: str
    path: str
    """The key path."""
    file: str = ""
    line: int = 0
    column: int = 0
    grader: str | None = None
    """The key of the grader that uses it."""
    origin: str | None = None


class TargetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The agent of a suite. ``config`` has the values of its ``${NAME}``; ``secrets`` are those values."""

    kind: str
    config: dict[str, Any] = {}
    secrets: frozenset[str] = frozenset()
    models: tuple[str, ...] = ()
    """One run each."""


class SuiteDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The cases, the agent under test, and how its responses are graded."""

    name: str
    description: str | None
    file: Path
    digest: str
    dataset: Path | list[Any]
    target: TargetSpec
    graders: tuple[GraderSpec, ...]
    gate: Gate | None
    setup: str | None
    repeats: int
    concurrency: int
    limit: int
    tags: tuple[str, ...]
    coverage_floor: float
    agent_errors: AgentErrors
    require_calibrated: bool
    primary: tuple[str, ...]
    """The graders that decide a comparison; none: those of the gate, else the first."""
    cluster: ClusterPath | None
    """Field of a case that names its cluster."""
    reward: str | None
    """The function that computes one score from all others."""
    budget: BudgetSpec
    prices: dict[str, PriceSpec]
    """By model; they override the built-in table."""
    cache: bool
    cleanup: bool
    """Delete the agents that were created for the cases."""
    seed: int | None
    output: Path | None
    """Folder that letta-evals' result files are also written to."""
    shown: dict[str, Any]
    """The file's data with ``${NAME}`` not replaced, for setup functions and exports."""
    warnings: tuple[str, ...]
    references: tuple[CodeReference, ...]
    """The functions that the suite names, in the order of the file."""

    @property
    def folder(self) -> Path:
        """Start of relative paths and of custom code."""
        return self.file.parent

    @property
    def masked(self) -> dict[str, Any]:
        """The file's data without secrets."""
        return {**self.shown, "target": _redact(self.shown.get("target"))}

    @property
    def reward_key(self) -> str:
        """The column of the reward; a grader may have the key ``reward``."""
        return "reward_composer" if "reward" in {spec.key for spec in self.graders} else "reward"

    @property
    def columns(self) -> tuple[str, ...]:
        """All keys that have scores, in order."""
        keys = tuple(spec.key for spec in self.graders)
        return keys if self.reward is None else (*keys, self.reward_key)


def _redact(value: Any, name: str = "") -> Any:
    """Redact values whose key is a secret's name, unless they only name a variable."""
    if isinstance(value, dict):
        return {key: _redact(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact(item, name) for item in value]
    return REDACTED if isinstance(value, str) and "${" not in value and is_secret_name(name) else value

"""A suite after reading: one form, whatever spelling its file uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gradeline.model.run import TurnRule
from gradeline.model.secrets import REDACTED, is_secret_name
from gradeline.suite.clusters import ClusterPath
from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.declaration import BudgetSpec, GraderEntry, PriceSpec, default_of
from gradeline.usercode.process_control import GRADER_MEMORY
from gradeline.verdict import Gate
from gradeline.verdict.evidence import AgentErrors

TARGET_KEYS = ("target", "variants")
"""The keys of a suite with values of targets, which may contain secrets."""

_JOIN = "@"


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


class Variant(msgspec.Struct, frozen=True):
    """A configuration of the target: one run. The name is None if there is only the suite's own target."""

    name: str | None
    target: TargetSpec

    def has(self, name: str) -> bool:
        """True if the name is its own, or that of its variant, prompt or model, or several of these joined."""
        return self.name is not None and {*name.split(_JOIN)} <= {*self.name.split(_JOIN)}

    def with_model(self, model: str) -> Variant:
        """The same configuration with another model, which becomes part of the name."""
        target = replace(self.target, config={**self.target.config, "model": model})
        return Variant(joined_name(self.name, model), target)


def joined_name(*names: str | None) -> str | None:
    """The name of a run from those of its variant, prompt and model: ``short@gpt-4o``."""
    return _JOIN.join(name for name in names if name is not None) or None


class SuiteDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """The cases, the agent under test, and how its responses are graded."""

    name: str
    description: str | None
    file: Path
    digest: str
    dataset: DatasetSource
    variants: tuple[Variant, ...]
    """The configurations of the target, at least one. With ``models``, one run for each of both."""
    models: tuple[str, ...] = ()
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
    corrected: bool | None
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
    def target(self) -> TargetSpec:
        """The target of the first variant, which is the only one once a run is planned."""
        return self.variants[0].target

    def run_variants(self, models: Sequence[str] = ()) -> tuple[Variant, ...]:
        """The configuration of each run, in order; ``models`` replace those of the suite."""
        chosen = models or self.models
        if not chosen:
            return self.variants
        return tuple(variant.with_model(model) for variant in self.variants for model in chosen)

    def with_variant(self, variant: Variant) -> SuiteDefinition:
        """The suite of one run."""
        return replace(self, variants=(variant,), models=())

    def with_targets(self, change: Callable[[TargetSpec], TargetSpec]) -> SuiteDefinition:
        """The suite with the target of every variant changed."""
        return replace(self, variants=tuple(replace(one, target=change(one.target)) for one in self.variants))

    @property
    def folder(self) -> Path:
        """Start of relative paths and of custom code."""
        return self.file.parent

    @property
    def masked(self) -> dict[str, Any]:
        """The file's data without secrets."""
        return {key: _redact(value) if key in TARGET_KEYS else value for key, value in self.shown.items()}

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
        # a variant sets a value by its path
        return {key: _redact(item, str(key).rpartition(".")[2]) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact(item, name) for item in value]
    return REDACTED if isinstance(value, str) and "${" not in value and is_secret_name(name) else value

"""A suite as it was read: one form for every dialect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gradeline.graders.base import DEFAULT_EXTRACTOR
from gradeline.model import Config, described
from gradeline.model.run import TurnRule
from gradeline.model.secrets import REDACTED, is_secret_name
from gradeline.suite.clusters import ClusterPath
from gradeline.usercode.process_control import GRADER_MEMORY
from gradeline.verdict import Gate


class GraderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A grader of a suite and what it is given.

    ``function`` names a custom grader; without it ``kind`` is a built-in's. An extractor that is no
    built-in's is a custom one.
    """

    key: str
    kind: str
    config: dict[str, Any] = {}
    function: str | None = None
    extractor: str = DEFAULT_EXTRACTOR
    extractor_config: dict[str, Any] = {}
    pass_threshold: float | None = None
    noise: float = 0.0
    """A smaller change of a case's score counts as same where runs are compared."""
    turns: TurnRule = "all"
    timeout: float = 5.0
    memory: int = GRADER_MEMORY
    """Bytes that the process of a custom grader or extractor may take; 0: no limit."""


class CodeReference(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a suite that refers to code, and where it is written; 0 and empty where that is in no file.

    ``origin`` says what a bare name is that gradeline knows, such as ``built-in grader``; None: the user's code.
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
    """The agent of a suite. ``config`` holds what ``${NAME}`` stood for; ``secrets`` are those values."""

    kind: str
    config: dict[str, Any] = {}
    secrets: frozenset[str] = frozenset()
    models: tuple[str, ...] = ()
    """Each makes a run of its own."""


class BudgetSpec(Config, frozen=True):
    """What a run may spend before it is ended."""

    cost: Annotated[
        Annotated[float, Meta(gt=0)] | None, described("What the agent's answers and its judges may cost in all.")
    ] = None
    calls: Annotated[Annotated[int, Meta(ge=1)] | None, described("How often the agent is asked.")] = None


class PriceSpec(Config, frozen=True):
    """What a model costs, in US dollars per million tokens."""

    input: Annotated[float, described("Input tokens.", ge=0)]
    output: Annotated[float, described("Output tokens, those of its reasoning included.", ge=0)]
    cached_input: Annotated[
        Annotated[float, Meta(ge=0)] | None, described("Input tokens read from the cache; as input if left out.")
    ] = None
    cache_write: Annotated[
        Annotated[float, Meta(ge=0)] | None, described("Input tokens written to the cache; as input if left out.")
    ] = None


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """What to ask, whom, and how to grade it."""

    name: str
    file: Path
    digest: str
    dataset: Path | list[Any]
    target: TargetSpec
    graders: tuple[GraderSpec, ...]
    gate: Gate | None = None
    description: str | None = None
    setup: str | None = None
    repeats: int = 1
    concurrency: int = 15
    limit: int = 0
    tags: tuple[str, ...] = ()
    coverage_floor: float = 0.95
    agent_errors: Literal["exclude", "fail"] = "exclude"
    require_calibrated: bool = False
    primary: tuple[str, ...] = ()
    """The graders that decide a comparison; none: those of the gate, else the first."""
    cluster: ClusterPath | None = None
    """Where a case names its cluster."""
    reward: str | None = None
    """The function that makes one score of all others."""
    budget: BudgetSpec = BudgetSpec()
    prices: dict[str, PriceSpec] = {}
    """By model; they come before those of the table."""
    cache: bool = False
    cleanup: bool = False
    """Delete the agents that were made for the cases."""
    seed: int | None = None
    output: Path | None = None
    """Where letta's files are written too."""
    shown: dict[str, Any] = {}
    """The file's data, as a setup function or an export may see it: without what ``${NAME}`` stood for."""
    warnings: tuple[str, ...] = ()
    references: tuple[CodeReference, ...] = ()
    """The functions that the suite names, in the order of the file."""

    @property
    def folder(self) -> Path:
        """Where relative paths and custom code are looked for."""
        return self.file.parent

    @property
    def masked(self) -> dict[str, Any]:
        """The file's data as anybody may see it."""
        return {**self.shown, "target": _masked(self.shown.get("target"))}

    @property
    def reward_key(self) -> str:
        """The column of the reward; a grader may have taken the plain word."""
        return "reward_composer" if "reward" in {spec.key for spec in self.graders} else "reward"

    @property
    def columns(self) -> tuple[str, ...]:
        """All that gives scores, in order."""
        keys = tuple(spec.key for spec in self.graders)
        return keys if self.reward is None else (*keys, self.reward_key)


def _masked(value: Any, name: str = "") -> Any:
    """What stands under a secret's name is left out, unless it is only the name of a variable."""
    if isinstance(value, dict):
        return {key: _masked(item, str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_masked(item, name) for item in value]
    return REDACTED if isinstance(value, str) and "${" not in value and is_secret_name(name) else value

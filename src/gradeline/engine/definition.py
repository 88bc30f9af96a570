"""The definition of a run, as the run stores it: options, rules of the verdict, baselines, the suite."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct, to_builtins
from msgspec.json import decode
from msgspec.structs import replace

from gradeline.errors import ConfigError, Problem
from gradeline.model import Run, Storage
from gradeline.store.rows import PROBE_RUN
from gradeline.suite.case_ids import CaseIdScheme
from gradeline.suite.letta_dialects import rewrite_gate
from gradeline.verdict import Gate, primary_graders, read_gate

if TYPE_CHECKING:
    from gradeline.suite.spec import SuiteDefinition

FAIL_FAST = "fail-fast: "
"""Prefix of the reason of a run that ended at its first failure; such a run has failed."""
_RUN_KEYS = ("id", "name", "suite", "status", "target", "group", "parent", "seed", "started_at", "completed_at")


class RunBudget(NamedTuple):
    """The most that a run may spend; None is unlimited."""

    calls: int | None = None
    cost: float | None = None


class RunOptions(NamedTuple):
    """Which part of a suite is run, and how."""

    limit: int | None = None
    tags: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()
    graders: tuple[str, ...] = ()
    repeats: int | None = None
    concurrency: int | None = None
    model: str | None = None
    """The model of a run that was stored before runs had variants."""
    cached: str | None = None
    """A folder of letta-evals results that is used instead of calling the agent."""
    overrides: tuple[str, ...] = ()
    """``key=value`` strings that override values of the suite file."""
    budget: RunBudget | None = None
    comparing: bool = True
    """False: leave out graders that need a baseline, and the gate with them."""
    models: tuple[str, ...] = ()
    """Models that replace those of the suite."""
    output: str | None = None
    """A folder for letta-evals result files."""
    prices: tuple[str, ...] = ()
    """``0.15/0.60`` or ``MODEL=0.15/0.60``: US dollars per million input and output tokens."""
    variants: tuple[str, ...] = ()
    """The variants to run; of a stored run those of its group, in order."""
    variant: str | None = None
    """The variant of a stored run."""

    @property
    def own_variant(self) -> str | None:
        """The name of a stored run's variant."""
        return self.variant or self.model

    @property
    def group_variants(self) -> tuple[str, ...]:
        """The names of all variants of a stored run's group, in order."""
        return self.variants or self.models

    @property
    def chosen_models(self) -> tuple[str, ...]:
        """The models that replace those of the suite."""
        return self.models or (() if self.model is None else (self.model,))


class Rules(Struct, frozen=True):
    """How the verdict of a run is reached."""

    gate: Any = None
    """As written in the suite."""
    coverage_floor: float = 0.95
    agent_errors: Literal["exclude", "fail"] = "exclude"
    require_calibrated: bool = False
    primary: tuple[str, ...] = ()
    """The graders that decide a comparison, as named in the suite."""
    corrected: bool | None = None
    """Whether gates decide on values of judges that labels correct; None: comparisons do where they can."""

    @classmethod
    def of(cls, run: Run) -> Rules:
        """The rules stored with a run, else the defaults."""
        try:
            return decode(run.definition or "", type=_StoredRules).rules
        except ValueError:
            return cls()

    def read(self, run: Run) -> Gate | None:
        """The gate over that run's graders."""
        if self.gate is None:
            return None
        reading = read_gate(rewrite_gate(self.gate), tuple(run.graders))
        if reading.problems:
            raise ConfigError(reading.problems, "gate")
        return reading.gate

    def primary_of(self, run: Run, graders: Sequence[str]) -> tuple[str, ...]:
        """The graders that decide a comparison: those named in the suite, else those of its gate, else the first."""
        return self.primary or primary_graders(self.read(run), graders)


class _StoredRules(Struct, frozen=True):
    rules: Rules = Rules()


class RunDefinition(Struct, frozen=True):
    """What a run executes, and how; stored with the run as JSON."""

    suite: str
    """The path of the suite file; empty in a copy of a run of another store."""
    options: RunOptions
    rules: Rules = Rules()
    baselines: dict[str, str] = {}
    """The baseline run of each grader that needs one."""
    document: dict[str, Any] | None = None
    """The suite itself, where there is no file; the cases of such a run are stored when it is created."""
    case_ids: CaseIdScheme = "number"
    """How cases without an id are named; runs stored by older releases have numbers."""
    revisions: dict[str, str] = {}
    """The commit of each dataset of the Hugging Face Hub that the suite names without one."""
    calibrations: dict[str, int] | None = None
    """The calibrations that its judges use, as `CalibrationLookup.used`; None in runs of earlier releases."""

    @classmethod
    def of(cls, run: Run) -> RunDefinition:
        """The definition stored with a run; `ConfigError` where there is none."""
        try:
            return decode(run.definition or "", type=cls)
        except ValueError:
            reason = "the run does not record which suite it is of"
            if run.id.startswith(PROBE_RUN):
                reason = "probes a judge; repeat or continue that with: gradeline probe JUDGE SUITE"
            raise ConfigError(Problem(run.id, reason)) from None

    @property
    def suite_file(self) -> Path:
        """The path of the suite file; `ConfigError` for a run that was copied without it."""
        if not self.suite:
            reason = (
                "the run was copied from another store, without its suite; resume it there, or regrade it with --suite"
            )
            raise ConfigError(Problem("", reason))
        return Path(self.suite)

    def without_suite(self) -> RunDefinition:
        """The definition of a run from elsewhere: nothing that a resume would read, write or execute is left."""
        return replace(
            self, suite="", document=None, options=self.options._replace(overrides=(), output=None, cached=None)
        )


class _StoredIds(Struct, frozen=True):
    case_ids: CaseIdScheme = "number"


def case_ids_of(run: Run) -> CaseIdScheme | None:
    """How a run names cases without an id; None if it records nothing of its suite."""
    try:
        return decode(run.definition or "", type=_StoredIds).case_ids
    except ValueError:
        return None


class RequestedConcurrency(NamedTuple):
    """The concurrency that a run requests, and the key that sets it."""

    calls: int
    path: str

    def check(self, maximum: int) -> None:
        """`ConfigError` above the maximum."""
        if self.calls > maximum:
            reason = (
                f"{self.calls:,} calls in flight are more than the maximum of {maximum:,}; use {maximum:,} or fewer"
            )
            raise ConfigError(Problem(self.path, reason))


def requested_concurrency(suite: SuiteDefinition, options: RunOptions) -> RequestedConcurrency:
    """The option, else the target's value, else the suite's."""
    own = suite.target.config.get("concurrency")
    if options.concurrency:
        return RequestedConcurrency(options.concurrency, "concurrency")
    if isinstance(own, int) and own > 0:
        return RequestedConcurrency(own, "target.concurrency")
    return RequestedConcurrency(suite.concurrency, "concurrency")


def run_data(run: Run) -> dict[str, Any]:
    """A run as JSON output shows it; ``variant`` and ``code_version`` are in those that have one."""
    variant = {} if run.variant is None else {"variant": run.variant}
    version = {} if run.code_version is None else {"code_version": to_builtins(run.code_version)}
    return {key: getattr(run, key) for key in _RUN_KEYS} | variant | version | stopped_data(run)


def stopped_data(run: Run) -> dict[str, Any]:
    """The look at which a run stopped early, as JSON output shows it; empty for other runs."""
    stopped = None if run.early is None else run.early.to_data()
    return {} if stopped is None else {"stopped": stopped}


def command(verb: str, run: str, store: str | None = None, *options: str) -> str:
    """A complete command for messages: ``gradeline resume RUN``, with ``--store`` unless it is the default.

    A store URL with a password is replaced by ``URL``.
    """
    words = ["gradeline", verb, run, *options]
    if store is not None:
        words += ["--store", "URL" if urlsplit(store).password else shlex.quote(store)]
    return " ".join(words)


def how_to_continue(run: str, storage: Storage, store: str | None = None) -> str:
    """How to continue a run that ended early, for the end of a message; ``store`` is the store as the user wrote it."""
    from gradeline.store import InMemoryStorage  # most commands open no such store

    if isinstance(storage, InMemoryStorage):
        return "start the run again: its store was in memory and is not kept, so it cannot be resumed"
    return f"continue with: {command('resume', run, store)}"


def now() -> str:
    """The current time, as records store it."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

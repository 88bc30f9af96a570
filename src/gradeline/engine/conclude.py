"""What a stored run comes to: its summary, its verdict, and the exit code that says it to a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from gradeline.engine.aggregate import Summary, complete, measure, summarise
from gradeline.engine.pairing import paired
from gradeline.errors import ConfigError
from gradeline.model import Record, Run, Storage
from gradeline.verdict import Column, Gate, Paired, Verdict, baselines_of, decide, graders_of, read_gate

INTERRUPTED = 130
FAIL_FAST = "fail-fast: "
"""Begins the reason of a run that ended at its first failure: that one is enough to know."""

_EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3}
_NOTHING_GRADED = 4
_RUN_KEYS = ("id", "name", "suite", "status", "target", "group", "parent", "seed", "started_at", "completed_at")


class Rules(Struct, frozen=True):
    """How a run is judged, as the run keeps it: the gate as it was written, and what stands beside it."""

    gate: Any = None
    coverage_floor: float = 0.95
    agent_errors: Literal["exclude", "fail"] = "exclude"
    require_calibrated: bool = False

    @classmethod
    def of(cls, run: Run) -> Rules:
        """The rules a run was begun with; none where it does not say."""
        try:
            return msgspec.json.decode(run.definition or "", type=_Kept).rules
        except ValueError:
            return cls(coverage_floor=0.0)

    def read(self, run: Run) -> Gate | None:
        """The gate over that run's graders."""
        if self.gate is None:
            return None
        reading = read_gate(self.gate, tuple(run.graders))
        if reading.problems:
            raise ConfigError(reading.problems, "gate")
        return reading.gate


class _Kept(Struct, frozen=True):
    rules: Rules = Rules(coverage_floor=0.0)


class RunReport(NamedTuple):
    """A run with what it comes to."""

    run: Run
    summary: Summary
    verdict: Verdict
    exit_code: int
    records: Callable[[], Iterator[Record]]

    def to_data(self) -> dict[str, Any]:
        """The report as ``--json`` prints it."""
        return {
            "run": run_data(self.run),
            "summary": msgspec.to_builtins(self.summary),
            "verdict": msgspec.to_builtins(self.verdict._asdict()),
            "exit_code": self.exit_code,
        }


def conclude(storage: Storage, run: Run, rules: Rules | None = None) -> RunReport:
    """The report of a stored run, by the rules it was begun with or by others."""
    rules = Rules.of(run) if rules is None else rules
    measured = measure(run, storage.columns(run.id, named=run.repeats > 1))
    summary = complete(summarise(run, storage.counts(run.id)), measured)
    gate = rules.read(run)
    verdict = decide(
        gate,
        measured.columns,
        coverage_floor=rules.coverage_floor,
        agent_errors=rules.agent_errors,
        require_calibrated=rules.require_calibrated,
        uncalibrated=[key for key, grader in run.graders.items() if grader.judges],
        paired=_pairs(storage, run, gate),
    )
    verdict = _of_a_part(run, verdict)
    return RunReport(run, summary, verdict, _exit_code(verdict, measured.columns), lambda: storage.records(run.id))


def _pairs(storage: Storage, run: Run, gate: Gate | None) -> dict[tuple[str, str], Paired]:
    """For each baseline that the gate names, the scores of the cases that both runs have."""
    if gate is None:
        return {}
    keys = graders_of(gate, tuple(run.graders))
    return {
        (name, key): pair
        for name in baselines_of(gate)
        for key, pair in paired(storage, storage.find_run(name), run, keys).items()
    }


def _of_a_part(run: Run, verdict: Verdict) -> Verdict:
    """A run that has not come to its end decides nothing, whatever its cases so far say."""
    if run.status == "completed":
        return verdict
    why = f": {run.error_message}" if run.error_message else ""
    reasons = (f"the run is not complete ({run.status}{why})", *verdict.reasons)
    if run.error_message is not None and run.error_message.startswith(FAIL_FAST):
        return verdict._replace(result="fail", reasons=reasons)
    return verdict._replace(result="none" if verdict.result == "none" else "undecided", reasons=reasons)


def _exit_code(verdict: Verdict, columns: Mapping[str, Column]) -> int:
    if not any(column.scores for column in columns.values()):
        return _NOTHING_GRADED
    if verdict.result == "none":
        return 3 if verdict.reasons else 0
    return _EXIT_CODES[verdict.result]


def worst_of(codes: list[int]) -> int:
    """The exit code of several runs: the one that asks for a person first."""
    return next((code for code in (INTERRUPTED, 4, 2, 1, 3) if code in codes), 0)


def run_data(run: Run) -> dict[str, Any]:
    """A run as JSON shows it."""
    return {key: getattr(run, key) for key in _RUN_KEYS}

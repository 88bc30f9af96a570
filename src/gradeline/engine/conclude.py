"""What a stored run comes to: its summary, its verdict, and the exit code that says it to a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from gradeline.engine.aggregate import Measured, Summary, complete, measure, order_findings, summarise, with_orders
from gradeline.engine.comparison import paired
from gradeline.engine.definition import FAIL_FAST, Rules, run_data, stopped_data
from gradeline.model import Counts, EarlyStopping, Record, Run, Storage
from gradeline.verdict import (
    Gate,
    PairedScores,
    Verdict,
    baselines_of,
    decide,
    graders_of,
)

INTERRUPTED = 130

_EXIT_CODES = {"pass": 0, "fail": 1, "undecided": 3}
_NOTHING_GRADED = 4


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
            **stopped_data(self.run),
        }


def conclude(storage: Storage, run: Run, rules: Rules | None = None) -> RunReport:
    """The report of a stored run, by the rules it was begun with or by others."""
    rules = Rules.of(run) if rules is None else rules
    summary, measured = measured_summary(storage, run)
    gate = rules.read(run)
    verdict = decide(
        gate,
        measured.columns,
        coverage_floor=rules.coverage_floor,
        agent_errors=rules.agent_errors,
        require_calibrated=rules.require_calibrated,
        primary=rules.primary_of(run, tuple(run.graders)),
        uncalibrated=[key for key, grader in run.graders.items() if grader.judges],
        paired=_pairs(storage, run, gate),
        orders={key: column.orders for key, column in summary.graders.items() if column.orders is not None},
    )
    verdict = _of_looks(run, _of_a_part(run, verdict))
    return RunReport(run, summary, verdict, _exit_code(verdict, summary), lambda: storage.records(run.id))


def measured_summary(storage: Storage, run: Run) -> tuple[Summary, Measured]:
    """A stored run in numbers; one pass over its rows."""
    counts = storage.counts(run.id)
    measured = measure_run(storage, run, counts)
    return with_orders(complete(summarise(run, counts), measured), order_findings(storage, run, counts)), measured


def measure_run(storage: Storage, run: Run, counts: Counts) -> Measured:
    """What only the rows of a stored run tell."""
    clusters = storage.clusters(run.id)
    return measure(run, storage.columns(run.id, named=run.repeats > 1 or bool(clusters)), counts, clusters)


def _pairs(storage: Storage, run: Run, gate: Gate | None) -> dict[tuple[str, str], PairedScores]:
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


def _of_looks(run: Run, verdict: Verdict) -> Verdict:
    """The verdict with how many cases it took, where looks decided or could have."""
    told = None if run.early is None or run.status != "completed" else _looks_in_words(run, run.early)
    return verdict if told is None else verdict._replace(reasons=(told, *verdict.reasons))


def _looks_in_words(run: Run, early: EarlyStopping) -> str | None:
    if early.obstacle is not None:
        return f"all cases were asked, the run did not end early: {early.obstacle}"
    if early.stopped:
        saved = run.calls_saved
        calls = f"; {saved:,} call{'s' * (saved != 1)} saved" if run.parent is None else ""
        return f"decided after {early.n:,} of {early.of:,} cases{calls}"
    if early.all_cases and 0 < early.n < early.of:
        return f"all {early.of:,} cases are asked: this verdict replaces the one after {early.n:,} of them"
    return None


def _exit_code(verdict: Verdict, summary: Summary) -> int:
    """A judge that was asked in both orders has judged, also where the order decided every case."""
    if not any(column.scored or (column.orders and column.orders.decided) for column in summary.graders.values()):
        return _NOTHING_GRADED
    if verdict.result == "none":
        return 3 if verdict.reasons else 0
    return _EXIT_CODES[verdict.result]


def worst_of(codes: list[int]) -> int:
    """The exit code of several runs: the one that asks for a person first."""
    return next((code for code in (INTERRUPTED, 4, 2, 1, 3) if code in codes), 0)

"""The runs of one suite over time: means with intervals, costs, and where the series breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gradeline.analysis.ranking import all_runs
from gradeline.engine.aggregate import GraderSummary, measured_summary
from gradeline.engine.comparison import target_differences
from gradeline.engine.definition import Rules, run_data
from gradeline.engine.judge_breaks import JudgeBreak, breaks_before, judge_breaks
from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model import Run, RunGrader, Storage, quote
from gradeline.stats.paired import Range

LAST = 20

Change = Literal["grader", "judge", "cases", "target"]
"""What differs from the previous run: the grader, its judge (which drifted), the cases, or the agent."""


class TrendPoint(Struct, frozen=True, kw_only=True):
    """One run of the series."""

    run: Run
    mean: float | None
    mean_ci: Range | None
    scored: int
    total: int
    cost: dict[str, float | None]
    """Costs of agent and judges; None is unknown, not free."""
    cost_unknown: int
    latency_ms: dict[str, float] | None
    segment: int
    """Means are comparable only within a segment: a new one begins where the grader changed or its judge drifted."""
    changes: tuple[Change, ...]
    """What changed since the previous run."""
    reasons: tuple[str, ...]
    """The changes as text."""


class Trend(Struct, frozen=True, kw_only=True):
    """The newest runs of a suite by one grader, the oldest first."""

    suite: str
    grader: str
    points: tuple[TrendPoint, ...]
    runs: int
    """All runs of the suite in the store that have the grader."""

    def to_data(self) -> dict[str, Any]:
        """The trend as ``--json`` prints it."""
        points: list[dict[str, Any]] = [
            {**msgspec.to_builtins(point), "run": run_data(point.run)} for point in self.points
        ]
        return {"suite": self.suite, "grader": self.grader, "runs": self.runs, "points": points}


def trend(storage: Storage, suite: str, *, grader: str | None = None, last: int = LAST) -> Trend:
    """The newest ``last`` runs of a suite by one grader: by default the primary one of the newest run."""
    if last < 1:
        raise ConfigError(Problem("last", f"expected a number of 1 or more, got {quote(last)}"))
    runs = runs_of_suite(storage, suite)
    newest = runs[0]
    if grader is None:
        grader = next(iter(Rules.of(newest).primary_of(newest, tuple(newest.graders))), None)
    graded = [run for run in runs if grader in run.graders]
    if grader is None or not graded:
        raise _unknown_grader(suite, grader, runs)
    shown = graded[:last][::-1]
    return Trend(suite=suite, grader=grader, runs=len(graded), points=tuple(_points(storage, shown, grader)))


def runs_of_suite(storage: Storage, suite: str) -> list[Run]:
    """All runs of a suite, the newest first; `ConfigError` if there is none."""
    known: dict[str, None] = {}
    found = []
    for run in all_runs(storage):
        known[run.suite] = None
        if run.suite == suite:
            found.append(run)
    if not found:
        raise ConfigError(
            Problem("suite", f"no run of a suite {quote(suite)} in the store; {_hint(suite, list(known))}")
        )
    return found


def _hint(suite: str, known: Sequence[str]) -> str:
    if not known:
        return "it holds no runs yet; start one with: gradeline run SUITE"
    close = closest_match(suite, known)
    if close is not None:
        return f"did you mean {quote(close)}?"
    return f"there are runs of {', '.join(map(quote, islice(known, 5)))}{' and others' if len(known) > 5 else ''}"


def _unknown_grader(suite: str, grader: str | None, runs: Sequence[Run]) -> ConfigError:
    known = list(dict.fromkeys(key for run in runs for key in run.graders))
    if not known:
        return ConfigError(Problem("grader", f"the runs of {quote(suite)} have no grader"))
    close = closest_match(str(grader), known)
    hint = f"did you mean {quote(close)}?" if close else f"they have {', '.join(map(quote, known))}"
    return ConfigError(Problem("grader", f"no run of {quote(suite)} has a grader {quote(grader)}; {hint}"))


def _points(storage: Storage, runs: Sequence[Run], key: str) -> Iterator[TrendPoint]:
    segment = 0
    breaks = judge_breaks(storage, runs[0].suite, key)
    seen = set(breaks_before(breaks, runs[0], key))
    before: tuple[Run, dict[str, str]] | None = None
    for run in runs:
        asked = _cases(storage, run)
        changes = (
            {}
            if before is None
            else dict(
                _changes(before[0], run, key, [one for one in breaks_before(breaks, run, key) if one not in seen])
            )
        )
        if before is not None and (reason := _other_cases(before[1], asked)):
            changes["cases"] = reason
        before = run, asked
        seen.update(breaks_before(breaks, run, key))
        segment += not changes.keys().isdisjoint(("grader", "judge"))
        summary = measured_summary(storage, run)[0]
        column: GraderSummary = summary.graders[key]
        yield TrendPoint(
            run=run,
            mean=column.mean,
            mean_ci=column.mean_ci,
            scored=column.scored,
            total=column.total,
            cost=summary.cost,
            cost_unknown=summary.cost_unknown,
            latency_ms=summary.latency_ms,
            segment=segment,
            changes=tuple(changes),
            reasons=tuple(changes.values()),
        )


def _changes(before: Run, after: Run, key: str, drifts: Sequence[JudgeBreak]) -> Iterator[tuple[Change, str]]:
    first, second = before.graders[key], after.graders[key]
    if first.fingerprint != second.fingerprint:
        change = f"{_shown(first)} to {_shown(second)}"
        yield "grader", f"grader {quote(key)} changed: {change}; the means are not comparable"
    if drifts and first.fingerprint == second.fingerprint:
        found = f"anchors showed it on {drifts[-1].found[:10]}"
        yield "judge", f"the judge of {quote(key)} drifted: {found}; the means are not comparable"
    if other := "; ".join(target_differences(before.target, after.target)):
        yield "target", other


def _shown(grader: RunGrader) -> str:
    return f"{grader.kind} {grader.fingerprint[:12]}"


def _cases(storage: Storage, run: Run) -> dict[str, str]:
    """The digest of every case."""
    return {
        case: digest
        for responses, _ in storage.columns(run.id, digests=True)
        for case, digest in zip(responses.cases, responses.digests, strict=True)
    }


def _other_cases(before: dict[str, str], after: dict[str, str]) -> str | None:
    if before == after:
        return None
    counts = {
        "added": len(after.keys() - before.keys()),
        "removed": len(before.keys() - after.keys()),
        "edited": sum(before[case] != after[case] for case in before.keys() & after.keys()),
    }
    return "cases: " + ", ".join(f"{number:,} {what}" for what, number in counts.items() if number)

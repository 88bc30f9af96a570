"""A run in numbers: its summary and its histograms, from counters and from values computed once over all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor, inf, log10, nextafter

from msgspec import Struct
from msgspec.structs import replace

from gradeline.engine.aggregate import (
    GraderSummary,
    Latencies,
    complete,
    measure_run,
    order_findings,
    summarise,
    with_calibrations,
    with_corrections,
    with_probes,
    with_selective,
)
from gradeline.engine.aggregate import Summary as RunSummary
from gradeline.engine.corrected import labelled_scores
from gradeline.engine.definition import Rules
from gradeline.engine.judge_probes import probe_findings
from gradeline.engine.judge_trust import judge_states, trust_version
from gradeline.model import Counts, Run, Storage
from gradeline.model.calibration import JudgeState
from gradeline.model.probe import ProbeFinding
from gradeline.rest_types import Bin, Coverage, EvaluationSummary, Figure, RunHistograms
from gradeline.service.events import ENDED
from gradeline.service.run_cache import RunCache
from gradeline.stats import wilson
from gradeline.store.database import Database
from gradeline.store.labels import has_label_tables, last_label_number
from gradeline.store.queries import (
    count_scored,
    latency_bins,
    max_latency,
    score_bins,
    successful_latencies,
)
from gradeline.store.sql_storage import response_chain, response_source
from gradeline.verdict import OrderFinding, SelectiveFinding
from gradeline.verdict.corrected import CorrectedRate

_MAX_RESULTS_TO_WAIT_FOR = 50_000
"""Results of a run in progress up to which a request waits for statistics over all rows."""


class RowStatistics(Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """The part of a summary for which all rows have to be read."""

    graded: int
    """Responses with at least one pass or fail."""
    latency_ms: dict[str, float]
    mean_intervals: dict[str, tuple[float, float] | None]
    rate_intervals: dict[str, tuple[float, float] | None]
    orders: dict[str, OrderFinding] = {}
    clusters: int | None = None


class JudgedNumbers(Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """The part of a summary that labels, calibrations and probes of judges change after the run has ended."""

    calibration: dict[str, JudgeState] = {}
    corrected: dict[str, CorrectedRate] = {}
    corrected_means: dict[str, CorrectedRate] = {}
    selective: dict[str, SelectiveFinding] = {}
    probes: dict[str, tuple[ProbeFinding, ...]] = {}


class Summaries:
    """The summaries of the runs of a store. Counts are always exact; the latencies of a large run in progress may be
    older."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage
        self._statistics = RunCache(database, RowStatistics, "statistics")
        self._judged = RunCache(database, JudgedNumbers, "judged", self._trust)

    def of(self, run: Run) -> EvaluationSummary:
        """The summary of a run as it is now."""
        counts = self._storage.counts(run.id)
        judged = self._judged.get(run, counts, lambda: self._compute_judged(run, counts))
        return _summary(summarise(run, counts), counts, self._of_rows(run, counts), judged)

    def _trust(self, run: Run) -> object:
        """Changes with what is known of the run's judges, and with its labels."""
        read = self._database.read
        labels = last_label_number(read, response_chain(read, run.id)) if has_label_tables(read) else 0
        return *trust_version(self._storage, run), labels

    def _compute_judged(self, run: Run, counts: Counts) -> JudgedNumbers:
        summary = with_selective(self._storage, run, summarise(run, counts))
        summary = with_calibrations(summary, judge_states(self._storage, run))
        summary = with_probes(summary, probe_findings(self._storage, run))
        summary = with_corrections(summary, labelled_scores(self._storage, run), Rules.of(run))
        graders = summary.graders
        return JudgedNumbers(
            calibration={key: one.calibration for key, one in graders.items() if one.calibration is not None},
            corrected={key: one.corrected for key, one in graders.items() if one.corrected is not None},
            corrected_means={key: one.corrected_mean for key, one in graders.items() if one.corrected_mean is not None},
            selective={key: one.selective for key, one in graders.items() if one.selective is not None},
            probes={key: one.probes for key, one in graders.items() if one.probes},
        )

    def _of_rows(self, run: Run, counts: Counts) -> RowStatistics:
        is_large = sum(counts.responses.values()) >= _MAX_RESULTS_TO_WAIT_FOR
        if run.status not in ENDED and is_large:
            return self._statistics.fresh(run, counts) or self._stale(run, counts)
        return self._statistics.get(run, counts, lambda: self._compute(run, counts))

    def _stale(self, run: Run, counts: Counts) -> RowStatistics:
        """The last statistics of a large run in progress, while new ones are computed; at first only the counts."""
        known = self._statistics.stale(run)
        self._statistics.compute_in_background(run, counts, lambda: self._compute(run, counts))
        if known is not None:
            return known
        scored = (grader.outcomes["pass"] + grader.outcomes["fail"] for grader in counts.graders.values())
        unknown = dict.fromkeys(run.graders) if self._is_grouped(run) else {}
        return RowStatistics(
            graded=max(scored, default=0), latency_ms={}, mean_intervals=unknown, rate_intervals=unknown
        )

    def _is_grouped(self, run: Run) -> bool:
        """Whether scores are not independent, so that the counts are not enough for an interval."""
        return run.repeats > 1 or bool(self._storage.clusters(run.id))

    def _compute(self, run: Run, counts: Counts) -> RowStatistics:
        orders = order_findings(self._storage, run, counts)
        if self._is_grouped(run):
            return replace(self._compute_by_case(run), orders=orders)
        latencies = Latencies()
        for some in successful_latencies(self._database.read, response_source(self._database.read, run.id)):
            latencies.extend(some)
        return RowStatistics(
            graded=count_scored(self._database.read, run.id),
            latency_ms=latencies.summary() or {},
            # those from the counts are better
            mean_intervals={},
            rate_intervals={},
            orders=orders,
        )

    def _compute_by_case(self, run: Run) -> RowStatistics:
        """Statistics over cases: repeats of a case, or cases of a cluster, count for less than independent cases."""
        measured = measure_run(self._storage, run, Counts({}, {}))
        graders = complete(summarise(run, Counts({}, {})), measured).graders
        return RowStatistics(
            graded=count_scored(self._database.read, run.id),
            latency_ms=measured.latencies.summary() or {},
            mean_intervals={key: column.mean_ci for key, column in graders.items()},
            rate_intervals={key: column.pass_rate_ci for key, column in graders.items()},
            clusters=measured.clusters,
        )


def _summary(run: RunSummary, counts: Counts, statistics: RowStatistics, judged: JudgedNumbers) -> EvaluationSummary:
    graders = run.graders
    errors = sum(column.errors for column in graders.values())
    return EvaluationSummary(
        total_results=sum(counts.responses.values()),
        successful_responses=counts.responses.get("success", 0),
        failed_responses=counts.responses.get("error", 0),
        timeout_responses=counts.responses.get("timeout", 0),
        grader_pass_counts={key: column.passed for key, column in graders.items()},
        grader_fail_counts={key: column.failed for key, column in graders.items()},
        grader_error_counts={key: column.errors for key, column in graders.items()},
        grader_skipped_counts={key: column.skipped for key, column in graders.items()},
        grader_not_applicable_counts={key: column.not_applicable for key, column in graders.items()},
        average_scores={key: _average(key, column, statistics.mean_intervals) for key, column in graders.items()},
        pass_rates={key: _rate(key, column, statistics.rate_intervals) for key, column in graders.items()},
        average_latency_ms=statistics.latency_ms.get("mean"),
        p50_latency_ms=statistics.latency_ms.get("p50"),
        p95_latency_ms=statistics.latency_ms.get("p95"),
        p99_latency_ms=statistics.latency_ms.get("p99"),
        coverage={
            key: Coverage(column.scored, column.total, column.scored / column.total if column.total else None)
            for key, column in graders.items()
        },
        orders=statistics.orders,
        sentence=f"{_number(statistics.graded, 'response')} graded, {_number(errors, 'grader error')}",
        clusters=statistics.clusters,
        calibration=judged.calibration,
        corrected=judged.corrected,
        corrected_means=judged.corrected_means,
        selective=judged.selective,
        probes=judged.probes,
    )


def _average(key: str, column: GraderSummary, by_case: Mapping[str, tuple[float, float] | None]) -> Figure:
    low, high = by_case.get(key) or (None if key in by_case else column.mean_ci) or (None, None)
    return Figure(column.mean, low, high, column.scored, column.total)


def _rate(key: str, column: GraderSummary, by_case: Mapping[str, tuple[float, float] | None]) -> Figure:
    low: float | None
    high: float | None
    low, high = by_case.get(key) or (None, None)
    if key not in by_case and column.scored:
        interval = wilson(column.passed, column.scored)
        low, high = interval.low, interval.high
    return Figure(column.pass_rate, low, high, column.scored, column.total)


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


_BINS = 10
_ROUND_NUMBERS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Ends of a latency axis, to be multiplied by a power of ten."""
_DIGITS = 12


class Histograms:
    """Histograms of the scores and latencies of runs, counted by the database. Those of a run in progress may be older
    than the run."""

    def __init__(self, database: Database, storage: Storage, summaries: Summaries) -> None:
        self._read = database.read
        self._storage = storage
        self._summaries = summaries
        self._cache = RunCache(database, RunHistograms, "histograms")

    def of(self, run: Run) -> RunHistograms:
        return self._cache.get(run, self._storage.counts(run.id), lambda: self._compute(run))

    def _compute(self, run: Run) -> RunHistograms:
        return RunHistograms(evaluation_id=run.id, scores=self._scores(run), latency_ms=self._latencies(run))

    def _scores(self, run: Run) -> dict[str, list[Bin]]:
        edges = [number / _BINS for number in range(_BINS + 1)]
        counts: dict[str, dict[int, int]] = {grader: {} for grader in run.graders}
        for grader, index, count in score_bins(self._read, run.id, edges):
            counts.setdefault(grader, {})[index] = count
        return {grader: _bins(edges, found) for grader, found in counts.items()}

    def _latencies(self, run: Run) -> list[Bin]:
        source = response_source(self._read, run.id)
        edges = _edges_up_to(self._upper_end(run, source))
        bins = latency_bins(self._read, source, edges)
        if not bins:
            return []
        # the outermost bins also have the values beyond the axis
        edges[0] = min(edges[0], *(one.low for one in bins))
        edges[-1] = max(edges[-1], *(one.high for one in bins))
        return _bins(edges, {one.bin: one.number for one in bins})

    def _upper_end(self, run: Run, source: str) -> float:
        """The 99th percentile, so that one slow response does not push all others into one bin."""
        p99 = self._summaries.of(run).p99_latency_ms
        # for a large run in progress it may not be known yet
        return max_latency(self._read, source) if p99 is None else p99


def _bins(edges: Sequence[float], counts: dict[int, int]) -> list[Bin]:
    last = len(edges) - 2
    return [
        Bin(low=low, high=high if index == last else nextafter(high, -inf), count=counts.get(index, 0))
        for index, (low, high) in enumerate(pairwise(edges))
    ]


def _edges_up_to(value: float) -> list[float]:
    """Edges from 0 to a round number that is not below the value."""
    power = 10.0 ** floor(log10(value)) if value > 0 else 0.1
    end = next((number * power for number in _ROUND_NUMBERS if number * power >= value), value)
    return [_rounded(end * number / _BINS) for number in range(_BINS + 1)]


def _rounded(value: float) -> float:
    # 3 * 0.1 becomes 0.3
    return float(f"{value:.{_DIGITS}g}")

"""A run in numbers, as the API shows it: from counters, and from one walk over its rows that is done once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gradeline.engine.aggregate import GraderSummary, Latencies, complete, order_findings, summarise
from gradeline.engine.aggregate import Summary as RunSummary
from gradeline.engine.conclude import measure_run
from gradeline.model import Counts, Run, Storage
from gradeline.rest_types import Coverage, EvaluationSummary, Figure
from gradeline.service.findings import Findings
from gradeline.service.run_rows import ENDED, source_of
from gradeline.stats import wilson
from gradeline.store.database import Database, Dialect, Step, Transaction, migrate
from gradeline.verdict import OrderFinding

_TOO_LONG_TO_WAIT = 50_000
"""Results of a run that goes on for whose walk nobody is kept waiting."""
_ROWS_AT_ONCE = 10_000


class Walk(Struct, frozen=True, kw_only=True, tag_field="schema", tag=1):
    """What only the rows themselves tell."""

    graded: int
    """Responses with at least one pass or fail."""
    latency_ms: dict[str, float]
    mean_intervals: dict[str, tuple[float, float] | None]
    rate_intervals: dict[str, tuple[float, float] | None]
    orders: dict[str, OrderFinding] = {}
    clusters: int | None = None


def _create_walks(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        """CREATE TABLE result_walks (
            run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
            version TEXT NOT NULL,
            walk TEXT NOT NULL
        )"""
    )


SUMMARY_STEPS: tuple[Step, ...] = (_create_walks,)


class Summaries:
    """The summaries of a store's runs. Counts are exact at any moment; of a large run that still goes on, the
    latencies may be a little older."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage
        self._walks = Findings(database, Walk, "result_walks", "walk")
        migrate(database, "summaries", SUMMARY_STEPS)

    def of(self, run: Run) -> EvaluationSummary:
        """The summary of a run as it stands."""
        counts = self._storage.counts(run.id)
        return _summary(summarise(run, counts), counts, self._walk(run, counts))

    def _walk(self, run: Run, counts: Counts) -> Walk:
        is_large = sum(counts.responses.values()) >= _TOO_LONG_TO_WAIT
        if run.status not in ENDED and is_large:
            return self._walks.usable(run, counts) or self._older(run, counts)
        return self._walks.of(run, counts, lambda: _walk_over(run, counts, self._storage, self._database))

    def _older(self, run: Run, counts: Counts) -> Walk:
        """What is known of a large run that goes on, while a newer walk is under way; at first the counts alone."""
        known = self._walks.latest(run)
        self._walks.find_in_background(run, counts, lambda: _walk_over(run, counts, self._storage, self._database))
        if known is not None:
            return known
        scored = (grader.outcomes["pass"] + grader.outcomes["fail"] for grader in counts.graders.values())
        unknown = dict.fromkeys(run.graders) if _is_grouped(run, self._storage) else {}
        return Walk(graded=max(scored, default=0), latency_ms={}, mean_intervals=unknown, rate_intervals=unknown)


def _is_grouped(run: Run, storage: Storage) -> bool:
    """Whether the intervals take a walk: over scores that are not independent, the counts give none."""
    return run.repeats > 1 or bool(storage.clusters(run.id))


def _walk_over(run: Run, counts: Counts, storage: Storage, database: Database) -> Walk:
    orders = order_findings(storage, run, counts)
    if _is_grouped(run, storage):
        return replace(_walk_by_case(run, storage, database), orders=orders)
    latencies = Latencies()
    for some in _latencies(database, source_of(database.read, run.id)):
        latencies.extend(some)
    return Walk(
        graded=_graded(database, run.id),
        latency_ms=latencies.summary() or {},
        # the counts have better ones
        mean_intervals={},
        rate_intervals={},
        orders=orders,
    )


def _latencies(database: Database, source: str) -> Iterator[list[float]]:
    case, repeat = "", -1
    while True:
        rows = database.read(
            "SELECT case_key, repeat, latency_ms FROM responses WHERE run = ? AND (case_key, repeat) > (?, ?)"
            " AND status = 'success' ORDER BY case_key, repeat LIMIT ?",
            source,
            case,
            repeat,
            _ROWS_AT_ONCE,
        )
        if not rows:
            return
        yield [latency_ms for _, _, latency_ms in rows if latency_ms is not None]
        case, repeat = rows[-1][:2]


def _graded(database: Database, run: str) -> int:
    """How many results have a score, counted in pages: over millions one statement would take minutes."""
    graded, case, repeat = 0, "", -1
    while True:
        rows = database.read(
            "SELECT case_key, repeat FROM grades WHERE run = ? AND (case_key, repeat) > (?, ?)"
            " AND outcome IN ('pass', 'fail') GROUP BY case_key, repeat ORDER BY case_key, repeat LIMIT ?",
            run,
            case,
            repeat,
            _ROWS_AT_ONCE,
        )
        if not rows:
            return graded
        graded += len(rows)
        case, repeat = rows[-1]


def _walk_by_case(run: Run, storage: Storage, database: Database) -> Walk:
    """Repeats of a case, and cases of a cluster, say less than as many cases: the intervals are over all its scores."""
    measured = measure_run(storage, run, Counts({}, {}))
    whole = complete(summarise(run, Counts({}, {})), measured).graders
    return Walk(
        graded=_graded(database, run.id),
        latency_ms=measured.latencies.summary() or {},
        mean_intervals={key: column.mean_ci for key, column in whole.items()},
        rate_intervals={key: column.pass_rate_ci for key, column in whole.items()},
        clusters=measured.clusters,
    )


def _summary(run: RunSummary, counts: Counts, walk: Walk) -> EvaluationSummary:
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
        average_scores={key: _average(key, column, walk.mean_intervals) for key, column in graders.items()},
        pass_rates={key: _rate(key, column, walk.rate_intervals) for key, column in graders.items()},
        average_latency_ms=walk.latency_ms.get("mean"),
        p50_latency_ms=walk.latency_ms.get("p50"),
        p95_latency_ms=walk.latency_ms.get("p95"),
        p99_latency_ms=walk.latency_ms.get("p99"),
        coverage={
            key: Coverage(column.scored, column.total, column.scored / column.total if column.total else None)
            for key, column in graders.items()
        },
        orders=walk.orders,
        sentence=f"{_number(walk.graded, 'response')} graded, {_number(errors, 'grader error')}",
        clusters=walk.clusters,
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

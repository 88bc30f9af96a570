"""How the scores and latencies of a run are spread, counted by the database and remembered while nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import floor, inf, log10, nextafter

from gradeline.model import Run, Storage
from gradeline.rest_types import Bin, RunHistograms
from gradeline.service.findings import Findings
from gradeline.service.run_rows import source_of
from gradeline.service.summaries import Summaries
from gradeline.store.database import Database, Dialect, Row, Step, Transaction, migrate

_BINS = 10
_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
"""Where an axis of latencies ends, but for the power of ten."""
_DIGITS = 12


def _create_histograms(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        """CREATE TABLE result_histograms (
            run TEXT PRIMARY KEY REFERENCES runs (id) ON DELETE CASCADE,
            version TEXT NOT NULL,
            histograms TEXT NOT NULL
        )"""
    )


STEPS: tuple[Step, ...] = (_create_histograms,)


class Histograms:
    """The histograms of a store's runs. Those of a run that goes on may be a little old."""

    def __init__(self, database: Database, storage: Storage, summaries: Summaries) -> None:
        self._database = database
        self._storage = storage
        self._summaries = summaries
        self._counted = Findings(database, RunHistograms, "result_histograms", "histograms")
        migrate(database, "histograms", STEPS)

    def of(self, run: Run) -> RunHistograms:
        """The histograms of a run as it stands, or stood a moment ago."""
        return self._counted.of(run, self._storage.counts(run.id), lambda: self._count(run))

    def _count(self, run: Run) -> RunHistograms:
        return RunHistograms(evaluation_id=run.id, scores=self._scores(run), latency_ms=self._latencies(run))

    def _scores(self, run: Run) -> dict[str, list[Bin]]:
        edges = [number / _BINS for number in range(_BINS + 1)]
        rows = self._database.read(
            f"""SELECT grader, bin, count(*) FROM (
                SELECT grader, {_bin_of("score")} AS bin FROM grades WHERE run = ? AND score IS NOT NULL
            ) AS scores GROUP BY grader, bin""",  # noqa: S608 - made of constants
            *edges[1:-1],
            run.id,
        )
        counts: dict[str, dict[int, int]] = {grader: {} for grader in run.graders}
        for grader, place, count in rows:
            counts.setdefault(grader, {})[place] = count
        return {grader: _bins(edges, found) for grader, found in counts.items()}

    def _latencies(self, run: Run) -> list[Bin]:
        source = source_of(self._database.read, run.id)
        edges = _edges_up_to(self._usual_most(run, source))
        rows = self._database.read(
            f"""SELECT bin, count(*), min(latency_ms), max(latency_ms) FROM (
                SELECT latency_ms, {_bin_of("latency_ms")} AS bin FROM responses
                WHERE run = ? AND status = 'success' AND latency_ms IS NOT NULL
            ) AS latencies GROUP BY bin""",  # noqa: S608 - made of constants
            *edges[1:-1],
            source,
        )
        if not rows:
            return []
        # the outermost bins take what lies outside, and say how far that goes
        edges[0] = min(edges[0], *(row[2] for row in rows))
        edges[-1] = max(edges[-1], *(row[3] for row in rows))
        return _bins(edges, {place: count for place, count, _, _ in rows})

    def _usual_most(self, run: Run, source: str) -> float:
        """A latency that few are above, so that one slow answer does not push all others into one bin."""
        usual = self._summaries.of(run).p99_latency_ms
        if usual is not None:
            return usual
        # of a large run that goes on it may not be known yet
        rows: list[Row] = self._database.read(
            "SELECT max(latency_ms) FROM responses WHERE run = ? AND status = 'success'", source
        )
        return float(rows[0][0] or 0.0)


def _bin_of(column: str) -> str:
    """The place of the bin that a value is in, told by the inner edges. Comparing is exact, dividing would not be."""
    whens = " ".join(f"WHEN {column} < ? THEN {place}" for place in range(_BINS - 1))
    return f"CASE {whens} ELSE {_BINS - 1} END"


def _bins(edges: Sequence[float], counts: dict[int, int]) -> list[Bin]:
    last = len(edges) - 2
    return [
        Bin(low=low, high=high if place == last else nextafter(high, -inf), count=counts.get(place, 0))
        for place, (low, high) in enumerate(pairwise(edges))
    ]


def _edges_up_to(value: float) -> list[float]:
    """Edges from 0 to a number not below the value, all pleasant to read."""
    power = 10.0 ** floor(log10(value)) if value > 0 else 0.1
    most = next((step * power for step in _STEPS if step * power >= value), value)
    return [_rounded(most * number / _BINS) for number in range(_BINS + 1)]


def _rounded(value: float) -> float:
    # 3 * 0.1 is to be 0.3
    return float(f"{value:.{_DIGITS}g}")

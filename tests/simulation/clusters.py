"""Clusters, simulated: how often an interval over clusters contains the truth, and how often chance decides.

Uses the product's own intervals and comparison. ``figures`` gives every figure with its limit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from math import fsum
from pathlib import Path
from random import Random
from typing import NamedTuple

from gradeline.verdict.evidence import PairedScores, interval_of
from gradeline.verdict.paired_decision import GraderComparison, compare_cases

_HOME = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = Path(os.environ.get("GRADELINE_SHARED_DATA") or _HOME)
SIZES = ((10, 10), (20, 20), (40, 25))
"""Clusters and cases of each, for MMLU by subject."""

Subjects = Mapping[str, Sequence[tuple[float, float]]]
"""The scores of a weak and a strong model, by subject."""


class Row(NamedTuple):
    """A figure, its limit, and whether it is within the limit."""

    name: str
    figure: float
    limit: float
    holds: bool


class Coverage(NamedTuple):
    """How often an interval contains the truth."""

    mean: float
    difference: float


def false_decisions(draws: int, seed: int = 0, clusters: int = 40, size: int = 3, changing: float = 0.2) -> float:
    """The share of better or worse where both runs are equally good and the cases of a cluster change together."""
    random = Random(seed)
    found = 0
    for _ in range(draws):
        pairs = [(name, _changed(random, changing)) for name in range(clusters)]
        rows = [(str(name), *scores) for name, scores in pairs for _ in range(size)]
        found += _compared(rows).decision in ("better", "worse")
    return found / draws


def coverage(subjects: Subjects, draws: int, seed: int = 0, clusters: int = 10, size: int = 10) -> Coverage:
    """Cases of subjects that are drawn at random, both with replacement, against the mean over all subjects."""
    random = Random(seed)
    pools = list(subjects.values())
    strong, difference = _truth(pools)
    covered = [0, 0]
    for _ in range(draws):
        rows = [(str(number), *random.choice(pool)) for number, pool in _chosen(random, pools, clusters, size)]
        interval = interval_of([after for _, _, after in rows], [int(name) for name, _, _ in rows])
        compared = _compared(rows).difference_ci
        covered[0] += interval is not None and interval[0] <= strong <= interval[1]
        covered[1] += compared is not None and compared[0] <= difference <= compared[1]
    return Coverage(covered[0] / draws, covered[1] / draws)


def mmlu() -> Subjects | None:
    """Which answers to MMLU two models have right; None where the data is absent."""
    path = DATA / "routellm_mmlu" / "rows.jsonl"
    if not path.exists():
        return None
    subjects: dict[str, list[tuple[float, float]]] = {}
    for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        subjects.setdefault(row["subject"], []).append((float(row["mixtral"]), float(row["gpt4"])))
    return subjects


def figures(full: bool = False) -> list[Row]:
    """Every figure with its limit; those of MMLU only where the data is there."""
    draws, seed = 2_000 if full else 150, 0
    wrong = false_decisions(draws, seed)
    rows = [Row("40 clusters of 3, equally good: better or worse", wrong, 0.05, wrong <= 0.05)]
    subjects = mmlu()
    for clusters, size in SIZES if subjects is not None else ():
        found = coverage(subjects or {}, draws, seed, clusters, size)
        for name, figure in found._asdict().items():
            rows.append(Row(f"MMLU {clusters} × {size}: coverage of the {name}", figure, 0.93, figure >= 0.93))
    return rows


def _changed(random: Random, changing: float) -> tuple[float, float]:
    if random.random() >= changing:
        return 1.0, 1.0
    return (0.0, 1.0) if random.random() < 0.5 else (1.0, 0.0)


def _chosen(
    random: Random, pools: Sequence[Sequence[tuple[float, float]]], clusters: int, size: int
) -> list[tuple[int, Sequence[tuple[float, float]]]]:
    return [(number, pool) for number in range(clusters) for pool in [random.choice(pools)] for _ in range(size)]


def _truth(pools: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    strong = [fsum(after for _, after in pool) / len(pool) for pool in pools]
    gains = [fsum(after - before for before, after in pool) / len(pool) for pool in pools]
    return fsum(strong) / len(pools), fsum(gains) / len(pools)


def _compared(rows: Sequence[tuple[str, float, float]]) -> GraderComparison:
    return compare_cases(
        PairedScores(
            [str(number) for number in range(len(rows))],
            [(before,) for _, before, _ in rows],
            [(after,) for _, _, after in rows],
            clusters=[cluster for cluster, _, _ in rows],
        )
    )

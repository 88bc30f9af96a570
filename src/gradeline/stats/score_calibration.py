"""How a judge's scores relate to labels: isotonic calibration, Brier score, expected calibration error, the curve."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from math import fsum
from typing import NamedTuple

from gradeline.stats.intervals import finite_values


class IsotonicFit(NamedTuple):
    """A step function that never decreases: the calibrated value of a score."""

    scores: tuple[float, ...]
    """The distinct scores of the fit, ascending."""
    values: tuple[float, ...]

    def __call__(self, score: float) -> float:
        """The value at the greatest fitted score up to this one; below all of them, the first value."""
        return self.values[max(0, bisect_right(self.scores, score) - 1)]


def isotonic(scores: Sequence[float], labels: Sequence[float]) -> IsotonicFit:
    """Fits labels by a function of the score that never decreases, by pooling adjacent violators.

    Needs about 100 labels or more: with few, the steps follow chance.
    """
    _check(scores, labels)
    pairs = sorted(zip(scores, labels, strict=True))
    distinct: list[float] = []
    blocks: list[tuple[float, int, int]] = []  # sum of labels, labels, distinct scores
    for score, group in groupby(pairs, key=lambda pair: pair[0]):
        own = [label for _, label in group]
        distinct.append(score)
        block = (fsum(own), len(own), 1)
        while blocks and blocks[-1][0] * block[1] > block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    values = [total / items for total, items, places in blocks for _ in range(places)]
    return IsotonicFit(tuple(distinct), tuple(values))


def brier(scores: Sequence[float], labels: Sequence[float]) -> float:
    """The mean squared difference of score and label: 0 is perfect, 0.25 is what a constant 0.5 gets."""
    _check(scores, labels)
    return fsum((score - label) ** 2 for score, label in zip(scores, labels, strict=True)) / len(scores)


class CalibrationBin(NamedTuple):
    """Scores of one bin against their labels."""

    low: float
    high: float
    score: float
    """The mean score."""
    label: float
    """The mean label."""
    n: int


def calibration_curve(scores: Sequence[float], labels: Sequence[float], bins: int = 10) -> list[CalibrationBin]:
    """Mean score and mean label in equal bins of 0..1; bins without scores are left out."""
    _check(scores, labels)
    if bins < 1:
        raise ValueError(f"at least 1 bin is needed, got {bins!r}")
    members: dict[int, list[tuple[float, float]]] = {}
    for index, (score, label) in enumerate(zip(scores, labels, strict=True)):
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"score {index} is {score!r}; a calibration curve needs scores from 0 to 1")
        members.setdefault(min(bins - 1, int(score * bins)), []).append((score, label))
    return [_bin(number, bins, members[number]) for number in sorted(members)]


def expected_calibration_error(scores: Sequence[float], labels: Sequence[float], bins: int = 10) -> float:
    """The mean distance of mean score and mean label over the bins, weighted by their scores."""
    curve = calibration_curve(scores, labels, bins)
    return fsum(found.n * abs(found.score - found.label) for found in curve) / len(scores)


def _bin(number: int, bins: int, members: Sequence[tuple[float, float]]) -> CalibrationBin:
    n = len(members)
    score, label = (fsum(values) / n for values in zip(*members, strict=True))
    return CalibrationBin(number / bins, (number + 1) / bins, score, label, n)


def _check(scores: Sequence[float], labels: Sequence[float]) -> None:
    if len(scores) != len(labels):
        raise ValueError(f"{len(scores)} scores but {len(labels)} labels: pass one label for each score")
    finite_values(scores)
    finite_values(labels)

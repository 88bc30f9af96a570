"""How a judge's scores relate to labels: isotonic calibration, Brier score, expected calibration error, the curve."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby
from math import fsum
from typing import NamedTuple, TypeAlias

from gradeline.stats.agreement import check_weights
from gradeline.stats.intervals import finite_values

_Weighted: TypeAlias = tuple[float, float, float]
"""Score, label and weight."""


class IsotonicFit(NamedTuple):
    """A step function that never decreases: the calibrated value of a score."""

    scores: tuple[float, ...]
    """The distinct scores of the fit, ascending."""
    values: tuple[float, ...]

    def __call__(self, score: float) -> float:
        """The value at the greatest fitted score up to this one; below all of them, the first value."""
        return self.values[max(0, bisect_right(self.scores, score) - 1)]


def isotonic(scores: Sequence[float], labels: Sequence[float], weights: Sequence[float] | None = None) -> IsotonicFit:
    """Fits labels by a function of the score that never decreases, by pooling adjacent violators.

    Needs about 100 labels or more: with few, the steps follow chance. ``weights``, here and below, are 1/sampling
    probability of each label, where labels were not drawn with equal probability.
    """
    triples = sorted(_weighted(scores, labels, weights))
    distinct: list[float] = []
    blocks: list[tuple[float, float, int]] = []  # sum of labels, of weights, distinct scores
    for score, group in groupby(triples, key=lambda triple: triple[0]):
        own = list(group)
        distinct.append(score)
        block = (fsum(label * weight for _, label, weight in own), fsum(weight for _, _, weight in own), 1)
        while blocks and blocks[-1][0] * block[1] > block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    values = [total / items for total, items, places in blocks for _ in range(places)]
    return IsotonicFit(tuple(distinct), tuple(values))


def brier(scores: Sequence[float], labels: Sequence[float], weights: Sequence[float] | None = None) -> float:
    """The mean squared difference of score and label: 0 is perfect, 0.25 is what a constant 0.5 gets."""
    found = _weighted(scores, labels, weights)
    return fsum(weight * (score - label) ** 2 for score, label, weight in found) / _total(found)


class CalibrationBin(NamedTuple):
    """Scores of one bin against their labels."""

    low: float
    high: float
    score: float
    """The mean score."""
    label: float
    """The mean label."""
    n: int


def calibration_curve(
    scores: Sequence[float], labels: Sequence[float], bins: int = 10, weights: Sequence[float] | None = None
) -> list[CalibrationBin]:
    """Mean score and mean label in equal bins of 0..1; bins without scores are left out."""
    return [_bin(number, bins, members) for number, members in _binned(scores, labels, bins, weights)]


def _binned(
    scores: Sequence[float], labels: Sequence[float], bins: int, weights: Sequence[float] | None
) -> list[tuple[int, list[_Weighted]]]:
    found = _weighted(scores, labels, weights)
    if bins < 1:
        raise ValueError(f"at least 1 bin is needed, got {bins!r}")
    members: dict[int, list[_Weighted]] = {}
    for index, (score, label, weight) in enumerate(found):
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"score {index} is {score!r}; a calibration curve needs scores from 0 to 1")
        members.setdefault(min(bins - 1, int(score * bins)), []).append((score, label, weight))
    return sorted(members.items())


def expected_calibration_error(
    scores: Sequence[float], labels: Sequence[float], bins: int = 10, weights: Sequence[float] | None = None
) -> float:
    """The mean distance of mean score and mean label over the bins, weighted by their scores."""
    binned = _binned(scores, labels, bins, weights)
    distances = [(_total(members), _bin(number, bins, members)) for number, members in binned]
    return fsum(total * abs(one.score - one.label) for total, one in distances) / fsum(total for total, _ in distances)


def _bin(number: int, bins: int, members: Sequence[_Weighted]) -> CalibrationBin:
    total = _total(members)
    score = fsum(score * weight for score, _, weight in members) / total
    label = fsum(label * weight for _, label, weight in members) / total
    return CalibrationBin(number / bins, (number + 1) / bins, score, label, len(members))


def _total(found: Sequence[_Weighted]) -> float:
    return fsum(weight for _, _, weight in found)


def _weighted(scores: Sequence[float], labels: Sequence[float], weights: Sequence[float] | None) -> list[_Weighted]:
    _check(scores, labels)
    if weights is None:
        return [(score, label, 1.0) for score, label in zip(scores, labels, strict=True)]
    check_weights(weights, len(labels))
    return list(zip(scores, labels, weights, strict=True))


def _check(scores: Sequence[float], labels: Sequence[float]) -> None:
    if len(scores) != len(labels):
        raise ValueError(f"{len(scores)} scores but {len(labels)} labels: pass one label for each score")
    finite_values(scores)
    finite_values(labels)

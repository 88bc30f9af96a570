"""How much the length of an answer moves verdicts, given the label of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log2, sqrt
from typing import NamedTuple

from gradeline.stats.logistic import fit_logistic

MIN_LABELS = 30
_RIDGE = 1e-6
"""Keeps the fit finite where length or label separate the verdicts."""


class LabelledLength(NamedTuple):
    """The length of an answer, whether the judge passes it, and its true score."""

    characters: int
    passed: bool
    truth: float


class LengthCoefficient(NamedTuple):
    """What each doubling of the length adds to the log-odds of a pass, given the label."""

    coefficient: float
    z: float
    n: int


def length_coefficient(answers: Sequence[LabelledLength]) -> LengthCoefficient | None:
    """The coefficient of log length in a logistic model with the label; None with fewer than 30 labels of two kinds."""
    used = [one for one in answers if one.characters > 0]
    rows = [(log2(one.characters), one.truth) for one in used]
    return log_odds_of_length(rows, [one.passed for one in used])


def log_odds_of_length(rows: Sequence[tuple[float, float]], passed: Sequence[bool]) -> LengthCoefficient | None:
    """As `length_coefficient`, for rows of (log length, truth)."""
    n = len(rows)
    if n < MIN_LABELS or len(set(passed)) < 2 or len({length for length, _ in rows}) < 2:
        return None
    centre = fsum(length for length, _ in rows) / n
    centred = [(length - centre, truth) for length, truth in rows]
    model = fit_logistic(centred, passed, _RIDGE)
    error = _standard_error(centred, [model.probability(row) for row in centred])
    if error is None:
        return None
    return LengthCoefficient(model.coefficients[0], model.coefficients[0] / error, n)


def _standard_error(rows: Sequence[tuple[float, float]], chances: Sequence[float]) -> float | None:
    """Of the first coefficient: from the inverse of Fisher's information, of intercept, length and label."""
    weights = [chance * (1.0 - chance) for chance in chances]
    columns = [[1.0] * len(rows), [row[0] for row in rows], [row[1] for row in rows]]
    constant = len(set(columns[2])) < 2
    used = columns[:2] if constant else columns
    information = [
        [fsum(w * a * b for w, a, b in zip(weights, one, other, strict=True)) for other in used] for one in used
    ]
    if constant:
        (a, b), (_, d) = information
        determinant, cofactor = a * d - b * b, a
    else:
        (a, b, c), (_, d, e), (_, _, f) = information
        determinant = a * (d * f - e * e) - b * (b * f - c * e) + c * (b * e - c * d)
        cofactor = a * f - c * c
    return sqrt(cofactor / determinant) if determinant > 1e-12 and cofactor > 0.0 else None

"""Logistic regression with a ridge penalty, for a few features."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, fsum, isfinite, log1p
from typing import NamedTuple

from gradeline.stats.agreement import check_weights

_STEPS = 100
_CLOSE = 1e-10


class LogisticModel(NamedTuple):
    """The probability of a label as a function of features."""

    coefficients: tuple[float, ...]
    intercept: float

    def probability(self, row: Sequence[float]) -> float:
        """P(label is true) for one row of features."""
        if len(row) != len(self.coefficients):
            raise ValueError(f"{len(row)} features, but the model was fitted on {len(self.coefficients)}")
        return _logistic(_linear(self.intercept, self.coefficients, row))


def fit_logistic(
    rows: Sequence[Sequence[float]],
    labels: Sequence[bool],
    ridge: float,
    weights: Sequence[float] | None = None,
) -> LogisticModel:
    """Maximizes the log likelihood minus ridge/2 times the sum of squared coefficients, by Newton's method.

    The intercept is not penalized. Scale the features alike before: the penalty treats them equally.
    """
    _check(rows, labels, ridge, weights)
    share = weights or [1.0] * len(rows)
    design = [(1.0, *map(float, row)) for row in rows]
    penalty = [0.0, *[ridge] * (len(design[0]) - 1)]
    beta = [0.0] * len(penalty)
    loss = _loss(design, labels, share, penalty, beta)
    for _ in range(_STEPS):
        step = _newton_step(design, labels, share, penalty, beta)
        size = 1.0
        moved = [b + d for b, d in zip(beta, step, strict=True)]
        following = _loss(design, labels, share, penalty, moved)
        # far from the optimum a full step can overshoot
        while following > loss + _CLOSE and size > 1e-6:
            size /= 2.0
            moved = [b + size * d for b, d in zip(beta, step, strict=True)]
            following = _loss(design, labels, share, penalty, moved)
        beta, loss = moved, following
        if max(map(abs, step)) * size <= _CLOSE:
            break
    return LogisticModel(tuple(beta[1:]), beta[0])


def _check(
    rows: Sequence[Sequence[float]], labels: Sequence[bool], ridge: float, weights: Sequence[float] | None
) -> None:
    if len(rows) != len(labels):
        raise ValueError(f"{len(rows)} rows but {len(labels)} labels: pass one label for each row")
    if not isfinite(ridge) or ridge <= 0.0:
        raise ValueError(f"ridge must be a number above 0, got {ridge!r}: without it, separable labels have no fit")
    if len({bool(label) for label in labels}) < 2:
        raise ValueError("labels of both kinds are needed: there is nothing to tell apart")
    for index, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise ValueError(f"row {index} has {len(row)} features, the first one {len(rows[0])}")
        if not all(map(isfinite, row)):
            raise ValueError(f"row {index} is {list(row)!r}; leave out rows with missing values")
    if weights is not None:
        check_weights(weights, len(rows))


def _linear(intercept: float, coefficients: Sequence[float], row: Sequence[float]) -> float:
    return intercept + fsum(c * x for c, x in zip(coefficients, row, strict=True))


def _logistic(x: float) -> float:
    if x >= 0.0:
        return 1.0 / (1.0 + exp(-x))
    odds = exp(x)
    return odds / (1.0 + odds)


def _loss(
    design: Sequence[Sequence[float]],
    labels: Sequence[bool],
    weights: Sequence[float],
    penalty: Sequence[float],
    beta: Sequence[float],
) -> float:
    total = 0.5 * sum(p * b * b for p, b in zip(penalty, beta, strict=True))
    for row, label, weight in zip(design, labels, weights, strict=True):
        x = sum(b * value for b, value in zip(beta, row, strict=True))
        x = -x if label else x
        total += weight * (max(x, 0.0) + log1p(exp(-abs(x))))
    return total


def _newton_step(
    design: Sequence[Sequence[float]],
    labels: Sequence[bool],
    weights: Sequence[float],
    penalty: Sequence[float],
    beta: Sequence[float],
) -> list[float]:
    size = range(len(beta))
    gradient = [-p * b for p, b in zip(penalty, beta, strict=True)]
    hessian = [[penalty[i] if i == j else 0.0 for j in size] for i in size]
    for row, label, weight in zip(design, labels, weights, strict=True):
        p = _logistic(sum(b * value for b, value in zip(beta, row, strict=True)))
        error, spread = weight * (label - p), weight * p * (1.0 - p)
        for i in size:
            gradient[i] += error * row[i]
            own = hessian[i]
            scaled = spread * row[i]
            for j in range(i + 1):
                own[j] += scaled * row[j]
    for i in size:
        # all probabilities may be 0 or 1 on the way
        hessian[i][i] += 1e-12
        for j in range(i):
            hessian[j][i] = hessian[i][j]
    return _solve(hessian, gradient)


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """The solution of a symmetric positive definite system, by elimination without pivoting."""
    n = len(right)
    for i in range(n):
        for k in range(i + 1, n):
            factor = matrix[k][i] / matrix[i][i]
            if factor:
                for j in range(i, n):
                    matrix[k][j] -= factor * matrix[i][j]
                right[k] -= factor * right[i]
    found = [0.0] * n
    for i in reversed(range(n)):
        found[i] = (right[i] - sum(matrix[i][j] * found[j] for j in range(i + 1, n))) / matrix[i][i]
    return found

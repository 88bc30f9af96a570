"""Normal, beta and Student distributions in double precision."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import erfc, exp, inf, lgamma, log, log1p, pi, sqrt

_TINY = 1e-300
_CLOSE = 1e-16


def normal_cdf(x: float) -> float:
    """P(Z <= x) of a standard normal Z."""
    return 0.5 * erfc(-x / sqrt(2.0))


def normal_quantile(p: float) -> float:
    """The x with P(Z <= x) = p: Acklam's rational approximation, refined by Halley's method."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"a probability must be between 0 and 1, got {p!r}")
    if p > 0.5:
        return -normal_quantile(1.0 - p)
    x = _start(p)
    for _ in range(3):
        error = (normal_cdf(x) - p) * sqrt(2.0 * pi) * exp(x * x / 2.0)
        x -= error / (1.0 + x * error / 2.0)
    return x


def _start(p: float) -> float:
    # accurate to about 1e-3 in the lower half, which suffices as a start
    t = sqrt(-2.0 * log(p))
    return -(t - (2.515517 + 0.802853 * t + 0.010328 * t * t) / (1 + t * (1.432788 + t * (0.189269 + t * 0.001308))))


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, 10_000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + step * d
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = 1.0 + step / c
            c = c if abs(c) > _TINY else _TINY
            value *= c * d
        if abs(c * d - 1.0) < _CLOSE:
            break
    return value


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x with I_x(a, b) = p."""
    return inverse(lambda x: beta_cdf(x, a, b), p)


def inverse(increasing: Callable[[float], float], value: float) -> float:
    """The x in 0..1 at which an increasing function has the value, by bisection to full precision."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2.0
        if middle in (low, high):
            return middle
        if increasing(middle) < value:
            low = middle
        else:
            high = middle


@lru_cache(maxsize=1024)
def student_quantile(p: float, freedom: float) -> float:
    """The t with P(T <= t) = p of Student's T with ``freedom`` degrees of freedom."""
    if freedom == inf:
        return normal_quantile(p)
    if p == 0.5:
        return 0.0
    tail = beta_quantile(2.0 * min(p, 1.0 - p), freedom / 2.0, 0.5)
    t = sqrt(freedom * (1.0 - tail) / tail)
    return t if p > 0.5 else -t


def student_two_sided(t: float, freedom: float) -> float:
    """P(|T| >= |t|)."""
    return beta_cdf(freedom / (freedom + t * t), freedom / 2.0, 0.5)

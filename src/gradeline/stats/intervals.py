"""Intervals for proportions and means, bootstrap, and pass@k over repeats."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import comb, fsum, inf, isfinite, sqrt
from random import Random
from typing import NamedTuple

from gradeline.stats.distributions import beta_quantile, normal_quantile, student_quantile


class Interval(tuple[float, float]):
    """``(low, high)``, with the estimate, its standard error and the number of values as attributes."""

    estimate: float
    se: float | None
    n: int

    def __new__(cls, low: float, high: float, *, estimate: float, se: float | None = None, n: int = 0) -> Interval:
        made = super().__new__(cls, (low, high))
        made.estimate = estimate
        made.se = se
        made.n = n
        return made

    @property
    def low(self) -> float:
        return self[0]

    @property
    def high(self) -> float:
        return self[1]

    def __repr__(self) -> str:
        return f"Interval({self.low:.6g}, {self.high:.6g}, estimate={self.estimate:.6g}, n={self.n})"


def wilson(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's interval of k successes in n trials, for display. Keeps its coverage at small n, unlike k/n ± 2 SE."""
    _check_counts(k, n)
    low, high = _wilson_bounds(k / n, n, normal_quantile(0.5 + _level(confidence) / 2.0))
    return Interval(low, high, estimate=k / n, n=n)


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Interval:
    """The exact interval of k successes in n trials, for gates: its coverage is never below the confidence."""
    _check_counts(k, n)
    tail = (1.0 - _level(confidence)) / 2.0
    low = 0.0 if k == 0 else beta_quantile(tail, k, n - k + 1)
    high = 1.0 if k == n else beta_quantile(1.0 - tail, k + 1, n - k)
    return Interval(low, high, estimate=k / n, n=n)


def mean_interval(
    values: Iterable[float], clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Interval:
    """The mean of values with Student's interval.

    Values that share a cluster (a document, a task, the repeats of one case) are not independent: pass the clusters,
    and the standard error is computed from their sums. For one value or one cluster the interval is infinite.
    """
    mean = _mean_of(values, clusters)
    if mean.groups < 2:
        return Interval(-inf, inf, estimate=mean.estimate, se=None, n=mean.n)
    se = sqrt(mean.variance)
    reach = student_quantile(0.5 + _level(confidence) / 2.0, mean.groups - 1) * se
    return Interval(mean.estimate - reach, mean.estimate + reach, estimate=mean.estimate, se=se, n=mean.n)


def score_interval(
    values: Iterable[float], clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Interval | None:
    """The mean of scores in 0..1 with its interval, within 0..1; None for one score, or one cluster.

    It is Wilson's interval for an effective number of cases: for scores of 0 and 1 it equals Wilson's, and identical
    scores have an interval with a width. Clusters are as in `mean_interval`.
    """
    return _score_interval(_mean_of(values, clusters), confidence)


def score_sums_interval(n: int, total: float, squares: float, confidence: float = 0.95) -> Interval | None:
    """`score_interval` from the number, the sum and the sum of squares of the scores."""
    if n < 1:
        raise ValueError(f"at least one value is needed, got n={n!r}")
    mean = total / n
    # rounding may make the difference slightly negative
    variance = max(0.0, squares - total * mean) / (n * (n - 1)) if n > 1 else inf
    return _score_interval(_Mean(mean, variance, n, n), confidence)


class _Mean(NamedTuple):
    """A mean, and its squared standard error over independent groups."""

    estimate: float
    variance: float
    groups: int
    n: int


_NO_VARIANCE = 1e-12
"""A smaller variance is due to rounding: the sums of ten scores of 0.7 give about 1e-16."""

_ROUNDING = 1e-9
"""A smaller relative difference is due to rounding."""


def _mean_of(values: Iterable[float], clusters: Iterable[Hashable] | None) -> _Mean:
    data = finite_values(values)
    n = len(data)
    mean = fsum(data) / n
    if clusters is None:
        variance = fsum((value - mean) * (value - mean) for value in data) / (n * (n - 1)) if n > 1 else inf
        return _Mean(mean, variance, n, n)
    sums = _cluster_sums([value - mean for value in data], list(clusters))
    groups = len(sums)
    if groups < 2:
        return _Mean(mean, inf, groups, n)
    # CR1 correction for a small number of clusters
    correction = groups / (groups - 1)
    return _Mean(mean, correction * fsum(total * total for total in sums) / (n * n), groups, n)


def _score_interval(mean: _Mean, confidence: float) -> Interval | None:
    if mean.groups < 2:
        return None
    return effective_interval(mean.estimate, mean.variance, mean.groups, mean.n, confidence)


def effective_interval(estimate: float, variance: float, groups: float, n: int, confidence: float = 0.95) -> Interval:
    """The interval of `score_interval` for any estimate in 0..1, its squared standard error, and independent groups."""
    estimate = min(1.0, max(0.0, estimate))
    spread = estimate * (1.0 - estimate)
    tail = 0.5 + _level(confidence) / 2.0
    equal = variance * groups <= _NO_VARIANCE
    cases = groups if equal else max(groups, spread / variance)
    q = normal_quantile(tail) if cases <= groups * (1.0 + _ROUNDING) else student_quantile(tail, groups - 1)
    low, high = _wilson_bounds(estimate, cases, q)
    return Interval(low, high, estimate=estimate, se=sqrt(variance), n=n)


def _wilson_bounds(share: float, cases: float, q: float) -> tuple[float, float]:
    """Wilson's interval of a share, for a fractional number of cases and any quantile."""
    centre = share * cases + q * q / 2.0
    reach = q * sqrt(cases * share * (1.0 - share) + q * q / 4.0)
    low = 0.0 if share == 0.0 else (centre - reach) / (cases + q * q)
    high = 1.0 if share == 1.0 else (centre + reach) / (cases + q * q)
    return min(share, max(0.0, low)), max(share, min(1.0, high))


def finite_values(values: Iterable[float]) -> array[float]:
    """The values as an array of finite numbers (there may be millions); `ValueError` if there are none."""
    if isinstance(values, array) and values.typecode == "d":
        data = values
    else:
        items = values if isinstance(values, list | tuple) else list(values)
        try:
            data = array("d", items)
        except TypeError:  # types that only `float` converts
            data = array("d", map(float, items))
    if not data:
        raise ValueError("no values: there is nothing to estimate")
    if not all(map(isfinite, data)):
        index, value = next((index, value) for index, value in enumerate(data) if not isfinite(value))
        raise ValueError(f"value {index} is {value!r}; leave out missing values")
    return data


def _cluster_sums(deviations: Sequence[float], clusters: Sequence[Hashable]) -> list[float]:
    if len(clusters) != len(deviations):
        raise ValueError(f"{len(deviations)} values but {len(clusters)} clusters; pass one for each value")
    members: dict[Hashable, list[float]] = {}
    for cluster, deviation in zip(clusters, deviations, strict=True):
        members.setdefault(cluster, []).append(deviation)
    return [fsum(group) for group in members.values()]


def _check_counts(k: int, n: int) -> None:
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"k successes of n trials need 0 <= k <= n and n >= 1, got k={k!r}, n={n!r}")


def _level(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}")
    return confidence


def bootstrap(
    values: Iterable[float],
    statistic: Callable[[Sequence[float]], float],
    seed: int = 0,
    samples: int = 2_000,
    confidence: float = 0.95,
) -> Interval:
    """The percentile interval of a statistic, the same for the same seed. Use it for at least about 50 values."""
    data = finite_values(values)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}")
    random = Random(seed)
    drawn = sorted(float(statistic(random.choices(data, k=len(data)))) for _ in range(samples))
    tail = (1.0 - confidence) / 2.0
    return Interval(
        percentile(drawn, tail), percentile(drawn, 1.0 - tail), estimate=float(statistic(data)), n=len(data)
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which this share of the ordered values lies, interpolated linearly."""
    position = share * (len(ordered) - 1)
    index = int(position)
    following = min(index + 1, len(ordered) - 1)
    return ordered[index] + (position - index) * (ordered[following] - ordered[index])


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that at least one of k attempts passes, estimated from c passes in n attempts."""
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The probability that all of k attempts pass, estimated from c passes in n attempts."""
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def flakiness(passes: Sequence[bool]) -> float:
    """Variability of a case over its repeats: 0.0 always the same, 1.0 a coin flip."""
    if not passes:
        raise ValueError("no repeats: flakiness is undefined")
    share = sum(passes) / len(passes)
    return 4.0 * share * (1.0 - share)


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"c passes of n attempts need 0 <= c <= n, got c={c!r}, n={n!r}")
    if not 1 <= k <= n:
        raise ValueError(f"k of n attempts need 1 <= k <= n, got k={k!r}, n={n!r}: with fewer than k it is unknown")

"""How sure is a number? Intervals for proportions and means."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from math import fsum, inf, isfinite, sqrt

from gradeline.stats.distributions import beta_quantile, normal_quantile, student_quantile


class Interval(tuple[float, float]):
    """``(low, high)``, with the estimate, its standard error and the number of values beside it."""

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
    """For showing: k successes in n trials. It holds its coverage at small n, where k/n ± 2 SE does not."""
    _check_counts(k, n)
    z = normal_quantile(0.5 + _level(confidence) / 2.0)
    centre = (k + z * z / 2.0) / (n + z * z)
    reach = z / (n + z * z) * sqrt(k * (n - k) / n + z * z / 4.0)
    low = 0.0 if k == 0 else centre - reach
    high = 1.0 if k == n else centre + reach
    return Interval(low, high, estimate=k / n, n=n)


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> Interval:
    """For gates: covers at least as often as it says, whatever the truth is."""
    _check_counts(k, n)
    tail = (1.0 - _level(confidence)) / 2.0
    low = 0.0 if k == 0 else beta_quantile(tail, k, n - k + 1)
    high = 1.0 if k == n else beta_quantile(1.0 - tail, k + 1, n - k)
    return Interval(low, high, estimate=k / n, n=n)


def mean_interval(
    values: Iterable[float], clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Interval:
    """The mean of values with Student's interval.

    Values that share a cluster (a document, a task, the repeats of one case) are not independent:
    give the clusters, and the standard error is that of their sums. One value, or one cluster,
    says nothing of its own uncertainty: the interval is then infinite.
    """
    data = checked(values)
    n = len(data)
    mean = fsum(data) / n
    if clusters is None:
        groups = n
        se = sqrt(fsum((value - mean) * (value - mean) for value in data) / (n * (n - 1))) if n > 1 else inf
    else:
        sums = _cluster_sums([value - mean for value in data], list(clusters))
        groups = len(sums)
        # CR1: a few clusters must not look surer than they are
        correction = groups / (groups - 1) if groups > 1 else inf
        se = sqrt(correction * fsum(total * total for total in sums)) / n if groups > 1 else inf
    if groups < 2:
        return Interval(-inf, inf, estimate=mean, se=None, n=n)
    reach = student_quantile(0.5 + _level(confidence) / 2.0, groups - 1) * se
    return Interval(mean - reach, mean + reach, estimate=mean, se=se, n=n)


def moments_interval(n: int, total: float, squares: float, confidence: float = 0.95) -> Interval:
    """`mean_interval` of n values of which only the sum and the sum of squares are known."""
    if n < 1:
        raise ValueError(f"at least one value is needed, got n={n!r}")
    mean = total / n
    if n == 1:
        return Interval(-inf, inf, estimate=mean, se=None, n=1)
    # the difference of two sums may come out a hair below 0
    se = sqrt(max(0.0, squares - total * mean) / (n * (n - 1)))
    reach = student_quantile(0.5 + _level(confidence) / 2.0, n - 1) * se
    return Interval(mean - reach, mean + reach, estimate=mean, se=se, n=n)


def checked(values: Iterable[float]) -> array[float]:
    """The values as finite numbers, at least one of them, or `ValueError`. Eight bytes each: there may be millions."""
    if isinstance(values, array) and values.typecode == "d":
        data = values
    else:
        data = array("d", (float(value) for value in values))
    if not data:
        raise ValueError("no values: there is nothing to estimate")
    for index, value in enumerate(data):
        if not isfinite(value):
            raise ValueError(f"value {index} is {value!r}; leave out what is missing")
    return data


def _cluster_sums(deviations: Sequence[float], clusters: Sequence[Hashable]) -> list[float]:
    if len(clusters) != len(deviations):
        raise ValueError(f"{len(deviations)} values but {len(clusters)} clusters; give one for each value")
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

"""Group-sequential testing of a paired difference: boundaries that keep the error rate, and repeated intervals.

Testing a difference repeatedly as cases arrive inflates the error rate of a single test. Here the error rate of 5 % is
distributed over 20 looks by the spending function of Hwang, Shih and DeCani (gamma -4):
little of it early, most of it late. The intervals of all looks hold together with 95 %, so whichever look is the last,
and for whatever reason, its interval is valid.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from math import cos, erfc, exp, expm1, fsum, log, pi, sqrt
from typing import NamedTuple, TypeAlias

from gradeline.stats.distributions import normal_quantile

LOOKS = 20
"""Number of looks at a run; the last one is when all cases are done."""

_GAMMA = -4.0
_NODES = 24
_SMALLEST_P = 1e-12
_LEAST_SQUARE = 1e-18
_PRECISION = 1e-4
"""Tolerance of the search for the error rate of a boundary."""

Range: TypeAlias = tuple[float, float]


def look_sizes(cases: int) -> tuple[int, ...]:
    """The number of cases at each look."""
    return tuple(-(-look * cases // LOOKS) for look in range(1, LOOKS + 1))


def alpha_spent(alpha: float, look: int) -> float:
    """The error rate that all looks up to this one may spend."""
    return alpha * expm1(-_GAMMA * look / LOOKS) / expm1(-_GAMMA)


@cache
def boundaries(alpha: float, looks: int = LOOKS) -> tuple[float, ...]:
    """Half the width of the interval at each of the first looks, in standard errors.

    Computed by recursive integration: the variance of the sum of differences grows by 1 at each look, and paths outside
    the boundary of a look stop there.
    """
    if not 0.0 < alpha <= 1.0:
        raise ValueError(f"an error rate above 0 and up to 1 is needed, got {alpha!r}")
    bound = normal_quantile(1.0 - alpha_spent(alpha, 1) / 2.0)
    found = [bound]
    inside = [(bound * at, 2.0 * bound * weight * _density(bound * at)) for at, weight in _legendre()]
    for look in range(2, looks + 1):
        bound = _bound(inside, alpha_spent(alpha, look) - alpha_spent(alpha, look - 1), bound)
        found.append(bound / sqrt(look))
        inside = [
            (
                bound * at,
                bound
                * weight
                * sum(mass * (_density(bound * at - u) + _density(bound * at + u)) for u, mass in inside),
            )
            for at, weight in _legendre()
        ]
    return tuple(found)


class RepeatedInterval(NamedTuple):
    """The mean difference at one look, with its repeated interval."""

    look: int
    cases: int
    mean: float
    se: float
    alpha: float
    """The error rate over all looks: 0.05 divided by the number of graders."""

    @property
    def test(self) -> str:
        return "repeated_looks"

    @property
    def interval(self) -> Range:
        """Simultaneously valid with the intervals of all other looks."""
        reach = boundaries(self.alpha)[self.look - 1] * self.se
        return max(-1.0, self.mean - reach), min(1.0, self.mean + reach)

    @property
    def p(self) -> float:
        """The smallest error rate over all looks at which the interval of this look excludes 0."""
        reach = abs(self.mean) / self.se
        found = _least_alpha(reach, self.look)
        # p must agree with the interval: at most alpha if it excludes 0, otherwise above
        significant = reach > boundaries(self.alpha)[self.look - 1]
        return min(found, self.alpha) if significant else max(found, self.alpha * (1.0 + 1e-9))


class DifferenceSums:
    """Running sums over the differences of cases, for the interval at a look."""

    def __init__(self, cases: int = 0, total: float = 0.0, squares: float = 0.0) -> None:
        """Start from known sums."""
        self.cases = cases
        self._sum = total
        self._squares = squares
        self._clusters: dict[Hashable, tuple[int, float, float]] = {}

    def add(self, difference: float, cluster: Hashable | None = None) -> None:
        """Add a case; cases of the same ``cluster`` are not independent."""
        self.cases += 1
        if difference:
            self._sum += difference
            self._squares += difference * difference
        if cluster is not None:
            number, total, squares = self._clusters.get(cluster, (0, 0.0, 0.0))
            self._clusters[cluster] = (number + 1, total + difference, squares + difference * difference)

    @property
    def units(self) -> int:
        """The number of independent units: clusters, and cases without a cluster."""
        return self.cases - sum(number for number, _, _ in self._clusters.values()) + len(self._clusters)

    def at(self, look: int, alpha: float) -> RepeatedInterval:
        """The interval at a look over the cases so far, at least one."""
        mean = self._sum / self.cases
        # one squared difference of 1 is added, because a few equal cases do not prove that all are equal
        added = self._sum / (self.cases + 1)
        squared = ((self._squares + 1.0) / (self.cases + 1) - added * added) / self.cases
        if self._clusters:
            squared = max(squared, self._clustered(mean))
        return RepeatedInterval(look, self.cases, mean, sqrt(max(squared, _LEAST_SQUARE)), alpha)

    def _clustered(self, mean: float) -> float:
        """The squared standard error by CR1, with the same added square; a case without a cluster counts as one."""
        clusters = self._clusters.values()
        unclustered = self.cases - sum(number for number, _, _ in clusters)
        total = self._sum - sum(one for _, one, _ in clusters)
        squares = self._squares - sum(one for _, _, one in clusters)
        groups = self.units
        if groups == 1:
            return 1.0
        spread = squares - 2.0 * mean * total + unclustered * mean * mean
        spread += sum((one - number * mean) ** 2 for number, one, _ in clusters)
        return (spread + 1.0) * groups / (groups - 1) / (self.cases * self.cases)


def sum_differences(changes: Sequence[float], clusters: Iterable[Hashable | None] | None = None) -> DifferenceSums:
    """The sums over all these differences."""
    if clusters is None:
        return DifferenceSums(len(changes), fsum(changes), fsum(change * change for change in changes))
    found = DifferenceSums()
    for change, cluster in zip(changes, clusters, strict=True):
        found.add(change, cluster)
    return found


def _least_alpha(reach: float, look: int) -> float:
    """The error rate whose boundary at this look is ``reach``.

    The logarithm of the rate is nearly linear in the square of the boundary, so a few secant steps find it.
    """
    highest = boundaries(1.0, look)[-1]
    if reach <= highest:
        return 1.0
    usual = 0.05
    rates, squares = [0.0, log(usual)], [highest**2, boundaries(usual)[look - 1] ** 2]
    while abs(squares[-1] - reach**2) > _PRECISION * reach and squares[-1] != squares[-2]:
        slope = (rates[-1] - rates[-2]) / (squares[-1] - squares[-2])
        rate = max(log(_SMALLEST_P), min(0.0, rates[-1] + slope * (reach**2 - squares[-1])))
        rates.append(rate)
        squares.append(boundaries(exp(rate), look)[-1] ** 2)
    return exp(rates[-1])


def _bound(nodes: Sequence[tuple[float, float]], allowed: float, start: float) -> float:
    """The bound that the sum exceeds with probability ``allowed`` at the next look, by Newton's method.

    ``nodes`` are non-negative values of the sum at the previous look, with the probability mass of both signs.
    """
    bound = start
    for _ in range(50):
        outside = sum(mass * (_tail(bound - at) + _tail(bound + at)) for at, mass in nodes)
        slope = sum(mass * (_density(bound - at) + _density(bound + at)) for at, mass in nodes)
        step = (outside - allowed) / max(slope, 1e-300)
        step = max(-0.5, min(0.5, step))
        bound = max(0.0, bound + step)
        if abs(step) < 1e-9 or bound == 0.0:
            break
    return bound


def _tail(x: float) -> float:
    return 0.5 * erfc(x / sqrt(2.0))


def _density(x: float) -> float:
    return exp(-0.5 * x * x) / sqrt(2.0 * pi)


@cache
def _legendre() -> tuple[tuple[float, float], ...]:
    """Nodes and weights of Gauss-Legendre quadrature on 0..1."""
    found = []
    for place in range(_NODES):
        x = cos(pi * (place + 0.75) / (_NODES + 0.5))
        for _ in range(20):
            before, value = 1.0, x
            for degree in range(2, _NODES + 1):
                before, value = value, ((2 * degree - 1) * x * value - (degree - 1) * before) / degree
            slope = _NODES * (x * value - before) / (x * x - 1.0)
            x -= value / slope
        found.append(((1.0 - x) / 2.0, 1.0 / ((1.0 - x * x) * slope * slope)))
    return tuple(found)

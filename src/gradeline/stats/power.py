"""How many cases does it take?"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, fsum, inf, sqrt
from operator import mul

from gradeline.stats.distributions import normal_quantile
from gradeline.stats.intervals import checked


def minimum_detectable_effect(
    n: int,
    variance: float,
    within_a: float = 0.0,
    within_b: float = 0.0,
    repeats_a: int = 1,
    repeats_b: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """The smallest mean difference that n paired cases find with this power.

    ``variance`` is that of the differences between cases, ``within_a`` and ``within_b`` those between
    repeats of one case.
    """
    if n < 1:
        raise ValueError(f"at least one case is needed, got n={n!r}")
    return _reach(alpha, power) * sqrt(_total(variance, within_a, within_b, repeats_a, repeats_b) / n)


def cases_needed(
    effect: float,
    variance: float,
    within_a: float = 0.0,
    within_b: float = 0.0,
    repeats_a: int = 1,
    repeats_b: int = 1,
    alpha: float = 0.05,
    power: float = 0.8,
) -> float:
    """The number of paired cases that find a mean difference of this size with this power."""
    if effect == 0.0:
        return inf
    total = _total(variance, within_a, within_b, repeats_a, repeats_b)
    return _reach(alpha, power) ** 2 * total / effect**2


def cases_to_decide(mean_square: float, margin: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """The number of paired cases in all that shows with this power that a candidate is not worse by the margin, if both
    are equally good; ``mean_square`` is the mean of the squared differences."""
    if margin <= 0.0:
        raise ValueError(f"a margin above 0 is needed, got {margin!r}: equality itself is never certain")
    return max(2, ceil(cases_needed(margin, mean_square, alpha=alpha, power=power)))


def noise_threshold(differences: Iterable[float], alpha: float = 0.05) -> float:
    """Half the width of the interval of a mean paired difference where both are equally good.

    One more change of the usual size (of 1 where nothing changed) is counted: a few equal cases are not certain.
    """
    data = checked(differences)
    squares = fsum(map(mul, data, data))
    changed = len(data) - data.count(0.0)
    usual = squares / changed if changed else 1.0
    mean_square = (squares + usual) / (len(data) + 2)
    return min(1.0, normal_quantile(1.0 - _share("alpha", alpha) / 2.0) * sqrt(mean_square / len(data)))


def _reach(alpha: float, power: float) -> float:
    return normal_quantile(1.0 - _share("alpha", alpha) / 2.0) + normal_quantile(_share("power", power))


def _share(name: str, value: float) -> float:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
    return value


def _total(variance: float, within_a: float, within_b: float, repeats_a: int, repeats_b: int) -> float:
    if min(variance, within_a, within_b) < 0.0:
        raise ValueError(f"a variance cannot be negative, got {min(variance, within_a, within_b)!r}")
    if min(repeats_a, repeats_b) < 1:
        raise ValueError(f"at least one repeat is needed, got {min(repeats_a, repeats_b)!r}")
    return variance + within_a / repeats_a + within_b / repeats_b

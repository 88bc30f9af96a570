"""Sample sizes and detectable effects."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, fsum, inf, sqrt
from operator import mul

from gradeline.stats.distributions import normal_quantile
from gradeline.stats.intervals import finite_values


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
    """The smallest mean difference that n paired cases detect with this power.

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
    """The number of paired cases that detect a mean difference of this size with this power."""
    if effect == 0.0:
        return inf
    total = _total(variance, within_a, within_b, repeats_a, repeats_b)
    return _reach(alpha, power) ** 2 * total / effect**2


def cases_to_decide(mean_square: float, margin: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """The number of paired cases that show with this power that a candidate is not worse by the margin, if both are
    equally good; ``mean_square`` is the mean of the squared differences."""
    if margin <= 0.0:
        raise ValueError(f"a margin above 0 is needed, got {margin!r}: equality itself is never certain")
    return max(2, ceil(cases_needed(margin, mean_square, alpha=alpha, power=power)))


def noise_threshold(differences: Iterable[float], alpha: float = 0.05) -> float:
    """Half the width of the interval of a mean paired difference if both are equally good.

    One more change of average size (1 if nothing changed) is added, because a few equal cases prove little.
    """
    data = finite_values(differences)
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


def labels_for_rate(half_width: float, rate: float = 0.5, confidence: float = 0.95) -> int:
    """The number of labels for an interval of a rate with this half width: z² p (1 - p) / w²."""
    return _needed(rate * (1.0 - rate), half_width, confidence)


def labels_for_kappa(half_width: float, agreement: float, chance: float = 0.5, confidence: float = 0.95) -> int:
    """The number of labels for an interval of Cohen's kappa with this half width: z² a (1 - a) / (w (1 - c))².

    a is the agreement, c the agreement expected by chance.
    """
    if not 0.0 <= chance < 1.0:
        raise ValueError(f"the agreement by chance must be from 0 to below 1, got {chance!r}")
    return _needed(agreement * (1.0 - agreement) / (1.0 - chance) ** 2, half_width, confidence)


def cases_for_half_width(half_width: float, variance: float, confidence: float = 0.95) -> int:
    """The number of cases for an interval of a mean with this half width: z² v / w², for scores of variance v."""
    return _needed(variance, half_width, confidence)


def _needed(variance: float, half_width: float, confidence: float) -> int:
    if half_width <= 0.0:
        raise ValueError(f"a half width above 0 is needed, got {half_width!r}: nothing is ever certain")
    z = normal_quantile(0.5 + confidence / 2.0)
    return max(2, ceil(z * z * variance / half_width**2 - 1e-9))

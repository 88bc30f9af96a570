"""How many cases does it take?"""

from __future__ import annotations

from math import ceil, inf, sqrt

from gradeline.stats.distributions import normal_quantile


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


def cases_to_decide(difference: float, variance: float, margin: float = 0.0, alpha: float = 0.05) -> int | None:
    """About how many paired cases in all would settle a difference like the one seen.

    Settled is: its interval lies wholly on one side of 0, or of -margin. None where no number of
    cases would, because the difference seen is 0 and there is no margin.
    """
    distance = max(abs(difference), abs(difference + margin))
    if distance * distance == 0.0:  # so small a distance is none
        return None
    z = normal_quantile(1.0 - alpha / 2.0)
    return max(2, ceil(z * z * variance / distance**2))


def _reach(alpha: float, power: float) -> float:
    for name, value in (("alpha", alpha), ("power", power)):
        if not 0.0 < value < 1.0:
            raise ValueError(f"{name} must be between 0 and 1, got {value!r}")
    return normal_quantile(1.0 - alpha / 2.0) + normal_quantile(power)


def _total(variance: float, within_a: float, within_b: float, repeats_a: int, repeats_b: int) -> float:
    if min(variance, within_a, within_b) < 0.0:
        raise ValueError(f"a variance cannot be negative, got {min(variance, within_a, within_b)!r}")
    if min(repeats_a, repeats_b) < 1:
        raise ValueError(f"at least one repeat is needed, got {min(repeats_a, repeats_b)!r}")
    return variance + within_a / repeats_a + within_b / repeats_b

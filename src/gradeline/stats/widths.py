"""How many cases or labels does it take until an interval is as narrow as this?"""

from __future__ import annotations

from math import ceil

from gradeline.stats.distributions import normal_quantile


def labels_for_rate(half_width: float, rate: float = 0.5, confidence: float = 0.95) -> int:
    """The labels until the interval of a rate has this half width: z² p (1 - p) / w². A rate of 0.5 takes the most."""
    return _needed(rate * (1.0 - rate), half_width, confidence)


def labels_for_kappa(half_width: float, agreement: float, chance: float = 0.5, confidence: float = 0.95) -> int:
    """The same for Cohen's kappa: z² a (1 - a) / (w (1 - c))², for an agreement a of which c is expected by chance."""
    if not 0.0 <= chance < 1.0:
        raise ValueError(f"the agreement by chance must be from 0 to below 1, got {chance!r}")
    return _needed(agreement * (1.0 - agreement) / (1.0 - chance) ** 2, half_width, confidence)


def cases_for_half_width(half_width: float, variance: float, confidence: float = 0.95) -> int:
    """The cases until the interval of a mean has this half width: z² v / w², for scores of variance v."""
    return _needed(variance, half_width, confidence)


def _needed(variance: float, half_width: float, confidence: float) -> int:
    if half_width <= 0.0:
        raise ValueError(f"a half width above 0 is needed, got {half_width!r}: nothing is ever certain")
    z = normal_quantile(0.5 + confidence / 2.0)
    return max(2, ceil(z * z * variance / half_width**2 - 1e-9))

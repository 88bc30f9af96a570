"""The power of the sign test on order flips."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import exp, lgamma, log

from gradeline.stats import mcnemar
from gradeline.verdict.evidence import MIN_FLIPS, POSITION_BIAS_ALPHA

ERROR = 0.1
"""Assumed share of wrong verdicts where the position does not decide."""


@lru_cache(maxsize=64)
def position_power(pairs: int, bias: float, error: float = ERROR) -> float:
    """The chance to flag a judge that picks the answer shown first in a share ``bias`` of its calls.

    In the others it picks the better answer, except for a share ``error``. Two answers are never equally good.
    """
    when_first, when_second = bias + (1.0 - bias) * (1.0 - error), bias + (1.0 - bias) * error
    to_first = when_first * when_second
    to_second = (1.0 - when_first) * (1.0 - when_second)
    flips = to_first + to_second
    return sum(
        chance * _flagged(number, to_first / flips) for number, chance in _binomial(pairs, flips) if number >= MIN_FLIPS
    )


def _flagged(flips: int, share: float) -> float:
    """The chance that so many flips are flagged, if this share of them is to the first position."""
    most = _largest_minority(flips)
    if most is None:
        return 0.0
    return sum(chance for number, chance in _binomial(flips, share) if min(number, flips - number) <= most)


@lru_cache(maxsize=4096)
def _largest_minority(flips: int) -> int | None:
    """The largest number of flips to the other position that is still flagged; None if no number is."""
    low, high = -1, flips // 2
    while low < high:
        middle = (low + high + 1) // 2
        if mcnemar(middle, flips - middle).exact < POSITION_BIAS_ALPHA:
            low = middle
        else:
            high = middle - 1
    return low if low >= 0 else None


def _binomial(trials: int, share: float) -> Iterator[tuple[int, float]]:
    """Each number of successes with its probability; those below 1e-12 are left out."""
    if share in (0.0, 1.0):
        yield (trials if share else 0), 1.0
        return
    for number in range(trials + 1):
        ways = lgamma(trials + 1) - lgamma(number + 1) - lgamma(trials - number + 1)
        chance = exp(ways + number * log(share) + (trials - number) * log(1.0 - share))
        if chance > 1e-12:
            yield number, chance

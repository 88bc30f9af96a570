"""Is the difference real? Candidate and baseline on the same cases."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable
from itertools import accumulate
from math import comb, exp, fsum, lgamma, log
from operator import getitem
from random import Random
from typing import NamedTuple

from gradeline.stats.intervals import Interval, checked, mean_interval

_EXACT = 15
"""Up to so many differences all signs are tried: 32,768 ways."""

_WHOLE_NUMBERS = 2_000
"""Up to so many changes McNemar's test counts in whole numbers; the work grows with the square of them."""

_BLOCK = 8
"""So many signs are looked up at once."""


def paired_difference(
    a: Iterable[float], b: Iterable[float], clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Interval:
    """The mean of a - b, case by case, with its interval."""
    left, right = checked(a), checked(b)
    if len(left) != len(right):
        raise ValueError(f"{len(left)} values against {len(right)}: pairs are needed")
    return mean_interval([x - y for x, y in zip(left, right, strict=True)], clusters, confidence)


class McNemar(NamedTuple):
    """Two-sided p-values for b cases that changed one way and c that changed the other."""

    exact: float
    mid_p: float


def mcnemar(b: int, c: int) -> McNemar:
    """Whether changes go one way more often than a coin would."""
    if b < 0 or c < 0:
        raise ValueError(f"counts cannot be negative, got b={b!r}, c={c!r}")
    n, least = b + c, min(b, c)
    if n == 0:
        return McNemar(1.0, 1.0)
    if n > _WHOLE_NUMBERS:
        return _many(n, least)
    # integers are exact however many there are; one division at the end
    ways = 2**n
    tail = _tail(n, least)
    at_least = comb(n, least)
    exact = min(1.0, 2 * tail / ways)
    return McNemar(exact, min(1.0, (2 * tail - at_least) / ways) if b != c else 1.0 - at_least / ways)


def _tail(n: int, most: int) -> int:
    """The sum of C(n, 0) to C(n, most)."""
    term, total = 1, 1
    for index in range(most):
        term = term * (n - index) // (index + 1)
        total += term
    return total


def _many(n: int, least: int) -> McNemar:
    """The same in floats: the terms of the tail shrink so fast that some hundreds of them are all of it."""
    at_least = exp(lgamma(n + 1) - lgamma(least + 1) - lgamma(n - least + 1) - n * log(2.0))
    term, tail = at_least, at_least
    for index in range(least, 0, -1):
        term *= index / (n - index + 1)
        tail += term
        if term <= 1e-17 * tail:
            break
    if 2 * least == n:
        return McNemar(1.0, 1.0 - at_least)
    return McNemar(min(1.0, 2.0 * tail), min(1.0, 2.0 * tail - at_least))


def sign_flip_test(differences: Iterable[float], seed: int = 0, samples: int = 10_000) -> float:
    """Two-sided p that the mean difference is nothing but chance: every difference might have had the other sign.

    Exact up to 15 values that are not 0, by seeded sampling beyond.
    """
    values = [value for value in checked(differences) if value != 0.0]
    observed = abs(fsum(values))
    # sums in another order differ in their last bits, and scores such as thirds are rounded: 1/3 + 1/3 is 2/3
    slack = 1e-8 * max(map(abs, values), default=0.0)
    if len(values) <= _EXACT:
        sums = [0.0]
        for value in values:
            sums = [total + sign for total in sums for sign in (value, -value)]
        return sum(1 for total in sums if abs(total) >= observed - slack) / len(sums)
    return _sampled(values, observed - slack, seed, samples)


def _sampled(values: list[float], observed: float, seed: int, samples: int) -> float:
    random = Random(seed)
    total = fsum(values)
    blocks = [_sums_of_choices(values[start : start + _BLOCK]) for start in range(0, len(values), _BLOCK)]
    hits = 0
    for _ in range(samples):
        chosen = random.getrandbits(len(values)).to_bytes(len(blocks), "little")
        hits += abs(total - 2.0 * sum(map(getitem, blocks, chosen))) >= observed
    return (hits + 1) / (samples + 1)


def _sums_of_choices(values: list[float]) -> array[float]:
    """The sum of each choice among the values; bit n of its index says whether value n is in it."""
    sums = array("d", [0.0])
    for value in values:
        sums.extend([total + value for total in sums])
    return sums


def holm(ps: Iterable[float]) -> list[float]:
    """p-values of a few claims, adjusted so that the chance of any false one keeps its level."""
    values = _probabilities(ps)
    order = sorted(range(len(values)), key=values.__getitem__)
    raised = accumulate(((len(values) - rank) * values[index] for rank, index in enumerate(order)), max)
    return _restored(order, raised)


def benjamini_hochberg(ps: Iterable[float]) -> list[float]:
    """p-values of many findings, adjusted so that the share of false ones keeps its level."""
    values = _probabilities(ps)
    order = sorted(range(len(values)), key=values.__getitem__, reverse=True)
    count = len(values)
    lowered = accumulate((count / (count - rank) * values[index] for rank, index in enumerate(order)), min)
    return _restored(order, lowered)


def _restored(order: list[int], adjusted: Iterable[float]) -> list[float]:
    result = [0.0] * len(order)
    for index, value in zip(order, adjusted, strict=True):
        result[index] = min(1.0, value)
    return result


def _probabilities(ps: Iterable[float]) -> list[float]:
    values = [float(p) for p in ps]
    for p in values:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"a p-value lies between 0 and 1, got {p!r}")
    return values

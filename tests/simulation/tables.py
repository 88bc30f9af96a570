"""Pass and fail in two runs: how likely each table of changes is, so that figures are sums instead of draws."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, lgamma, log, sqrt
from typing import NamedTuple

_NEGLIGIBLE = 1e-8


class Table(NamedTuple):
    """The number of cases that passed only in the candidate, and of those only in the baseline."""

    up: int
    down: int
    chance: float


def tables(cases: int, up: float, down: float) -> Iterator[Table]:
    """Every table that is not quite unlikely, when each case goes up and down with these chances."""
    for ups in _near(cases, up):
        for downs in _near(cases, down):
            same = cases - ups - downs
            if same < 0:
                continue
            ways = lgamma(cases + 1) - lgamma(ups + 1) - lgamma(downs + 1) - lgamma(same + 1)
            chance = exp(ways + _power(up, ups) + _power(down, downs) + _power(1.0 - up - down, same))
            if chance > _NEGLIGIBLE:
                yield Table(ups, downs, chance)


def _near(cases: int, share: float) -> range:
    reach = 7.0 * sqrt(cases * share) + 10.0 if share else 0.0
    return range(max(0, int(cases * share - reach)), min(cases, int(cases * share + reach)) + 1)


def _power(base: float, times: int) -> float:
    return times * log(base) if times else 0.0

"""Tests of paired scores, each with the interval that belongs to it: the test finds a difference just where the
interval leaves out 0.

A case that did not change says nothing of the direction, only of how often anything changes. So with few changes the
difference is taken apart into the share of cases that changed and the mean change among those. The direction is
tested among the changed cases, and the intervals of both parts are put together so that the direction alone decides
on which side of 0 the whole lies. With many changes of several sizes Student's paired t is near enough, and
its interval is the test turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, hypot
from typing import NamedTuple, TypeAlias

from gradeline.stats.distributions import beta_cdf, inverse, student_quantile, student_two_sided
from gradeline.stats.intervals import checked, mean_interval, wilson
from gradeline.stats.paired import mcnemar, sign_flip_test

ALPHA = 0.05
"""The level of every test here; the intervals are those of 95 %."""

_EXACT = 15
"""Up to so many changes all their signs are tried."""

_DECIMALS = 9
"""A smaller difference of scores is rounding: 0.1 + 0.2 is 0.3."""

_SUM_DECIMALS = 7
"""The same for a sum of rounded differences: twice 0.333333333 is 0.666666667."""

Range: TypeAlias = tuple[float, float]


class OneSize(NamedTuple):
    """Changes that are all as large as each other, as those of pass and fail are: McNemar's mid-p.

    The interval of the direction is that test turned round.
    """

    cases: int
    up: int
    down: int
    size: float = 1.0

    @property
    def test(self) -> str:
        return "mcnemar_mid_p"

    @property
    def p(self) -> float:
        return mcnemar(self.up, self.down).mid_p

    @property
    def interval(self) -> Range:
        """The 95 % interval of the mean difference."""
        changed = self.up + self.down
        low, high = _least_share(self.up, self.down), 1.0 - _least_share(self.down, self.up)
        mean = self.size * (self.up - self.down) / changed if changed else 0.0
        return _product(changed, self.cases, mean, (self.size * (2.0 * low - 1.0), self.size * (2.0 * high - 1.0)))


class FewChanges(NamedTuple):
    """Up to 15 changes of whatever size: each might have had the other sign.

    The interval of their mean is that test turned round.
    """

    cases: int
    changes: tuple[float, ...]

    @property
    def test(self) -> str:
        return "sign_flip_exact"

    @property
    def p(self) -> float:
        return sign_flip_test(self.changes) if self.changes else 1.0

    @property
    def interval(self) -> Range:
        """The 95 % interval of the mean difference."""
        changed = len(self.changes)
        mean = fsum(self.changes) / changed if changed else 0.0
        return _product(changed, self.cases, mean, _typical_values(self.changes))


class ManyChanges(NamedTuple):
    """More changes, of several sizes: Student's paired t over all cases."""

    cases: int
    mean: float
    se: float

    @property
    def test(self) -> str:
        return "paired_t"

    @property
    def p(self) -> float:
        return student_two_sided(self.mean / self.se, self.cases - 1)

    @property
    def interval(self) -> Range:
        """The 95 % interval of the mean difference."""
        reach = student_quantile(1.0 - ALPHA / 2.0, self.cases - 1) * self.se
        return max(-1.0, self.mean - reach), min(1.0, self.mean + reach)


Weighed: TypeAlias = OneSize | FewChanges | ManyChanges


def weigh(differences: Sequence[float], *, pass_or_fail: bool) -> Weighed:
    """What the differences of `changes_of` tell of their mean; ``pass_or_fail`` says that every score is 0 or 1."""
    cases = len(differences)
    changes = [difference for difference in differences if difference]
    if pass_or_fail:
        up = changes.count(1.0)
        return OneSize(cases, up, len(changes) - up)
    if len(changes) <= _EXACT:
        return FewChanges(cases, tuple(changes))
    size = abs(changes[0])
    if all(abs(change) == size for change in changes):
        up = changes.count(size)
        return OneSize(cases, up, len(changes) - up, size)
    whole = mean_interval(differences)
    return ManyChanges(cases, whole.estimate, whole.se or 0.0)


def skewed(differences: Sequence[float]) -> bool:
    """Whether some changes are so much larger than the others that Student's t is unreliable.

    By Cochran's rule, it needs more cases than 25 times the squared skewness.
    """
    cases = len(differences)
    mean = fsum(differences) / cases
    squares = fsum((difference - mean) ** 2 for difference in differences)
    cubes = fsum((difference - mean) ** 3 for difference in differences)
    # 25 g² >= n with g = sqrt(n) cubes / squares^1.5; changes that are all equal have no skewness
    return 25.0 * cubes * cubes >= squares**3 > 1e-24


def changes_of(baseline: Sequence[float], candidate: Sequence[float], noise: float = 0.0) -> list[float]:
    """candidate - baseline of scores in 0..1, one pair for each case; rounding and what is below ``noise`` is 0."""
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(candidate)} values against {len(baseline)}: pairs are needed")
    return list(checked([change_of(before, after, noise) for before, after in zip(baseline, candidate, strict=True)]))


def change_of(before: float, after: float, noise: float = 0.0) -> float:
    """The same of one case. A change of exactly ``noise`` counts."""
    change = round(after - before, _DECIMALS)
    return change if abs(change) >= noise else 0.0


def _least_share(hits: int, misses: int) -> float:
    """The lower bound of the share of hits: half the chance of these hits, plus that of more, is 0.025 there."""
    if hits == 0:
        return 0.0

    def mid_p(share: float) -> float:
        more = beta_cdf(share, hits + 1, misses) if misses else 0.0
        return (beta_cdf(share, hits, misses + 1) + more) / 2.0

    return inverse(mid_p, ALPHA / 2.0)


def _typical_values(changes: Sequence[float]) -> Range:
    """The means that the exact sign-flip test does not refuse.

    Against a mean m speak the ways to flip signs about m that lead as far off: as many as there are choices among
    the changes whose own mean lies beyond m. So the bounds are means of such choices.
    """
    sums, counts = [0.0], [0]
    for change in changes:
        sums += [total + change for total in sums]
        counts += [count + 1 for count in counts]
    allowed = int(ALPHA / 2.0 * len(sums))
    if allowed == 0:
        return -1.0, 1.0
    chosen = zip(sums[1:], counts[1:], strict=True)
    means = sorted(round(total, _SUM_DECIMALS) / count for total, count in chosen)
    return means[allowed - 1], means[-allowed]


def _product(changed: int, cases: int, mean: float, among: Range) -> Range:
    """The interval of (share that changed) x (mean change among those), from the intervals of the two.

    That of the share is Wilson's. The distances to the bounds are added as squares. A bound of the product is 0 where
    that of the mean change is: its sign is decided there alone.
    """
    share = changed / cases
    fewest, most = wilson(changed, cases)
    low, high = among
    below = hypot(share * (mean - low), low * (share - (fewest if low > 0.0 else most)))
    above = hypot(share * (high - mean), high * (share - (most if high > 0.0 else fewest)))
    return max(-1.0, share * mean - below), min(1.0, share * mean + above)

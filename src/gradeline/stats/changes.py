"""Tests of paired scores, each with the interval that belongs to it: the test finds a difference just where the
interval leaves out 0.

A case that did not change says nothing of the direction, only of how often anything changes. So with few changes the
difference is taken apart into the share of cases that changed and the mean change among those. The direction is
tested exactly among the changed cases, and the intervals of both parts are put together so that the direction alone
decides on which side of 0 the whole lies. With many changes of several sizes Student's paired t is near enough, and
its interval is the test turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, hypot, sqrt
from typing import NamedTuple, TypeAlias

from gradeline.stats.distributions import beta_quantile, student_quantile, student_two_sided
from gradeline.stats.intervals import checked, mean_interval
from gradeline.stats.paired import mcnemar, sign_flip_test

ALPHA = 0.05
"""The level of every test here; the intervals are those of 95 %."""

_EXACT = 15
"""Up to so many changes all their signs are tried."""

_FEWEST = 6
"""With fewer changes nothing is significant: 2 / 2**6 is below 0.05, 2 / 2**5 is not."""

_DECIMALS = 9
"""A smaller difference of scores is rounding: 0.1 + 0.2 is 0.3."""

Range: TypeAlias = tuple[float, float]


class OneSize(NamedTuple):
    """Changes that are all as large as each other, as those of pass and fail are: the exact test of McNemar.

    Its interval is that of Clopper and Pearson, for the direction and for the share that changed.
    """

    cases: int
    up: int
    down: int
    size: float = 1.0

    @property
    def test(self) -> str:
        return "mcnemar_exact" if self.size == 1.0 else "sign_flip_exact"

    @property
    def p(self) -> float:
        return mcnemar(self.up, self.down).exact

    def interval(self, cases: int) -> Range:
        """The 95 % interval of the mean difference that so many cases like these would give."""
        scale = cases / self.cases
        changed = self.up + self.down
        low, high = _proportion(self.up * scale, self.down * scale)
        mean = self.size * (self.up - self.down) / changed if changed else 0.0
        among = self.size * (2.0 * low - 1.0), self.size * (2.0 * high - 1.0)
        return _product(changed, self.cases, scale, mean, among)


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

    def interval(self, cases: int) -> Range:
        """The 95 % interval of the mean difference that so many cases like these would give; for another number of
        cases than there are, about that."""
        changed = len(self.changes)
        scale = cases / self.cases
        mean = fsum(self.changes) / changed if changed else 0.0
        among = _typical_values(self.changes) if cases == self.cases else _about(self.changes, changed * scale)
        return _product(changed, self.cases, scale, mean, among)


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

    def interval(self, cases: int) -> Range:
        """The 95 % interval of the mean difference that so many cases like these would give."""
        reach = student_quantile(1.0 - ALPHA / 2.0, cases - 1) * self.se * sqrt(self.cases / cases)
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


def changes_of(baseline: Sequence[float], candidate: Sequence[float]) -> list[float]:
    """candidate - baseline of scores in 0..1, one pair for each case; what is only rounding is 0."""
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(candidate)} values against {len(baseline)}: pairs are needed")
    return list(checked([round(after - before, _DECIMALS) for before, after in zip(baseline, candidate, strict=True)]))


def _proportion(hits: float, misses: float) -> Range:
    """The interval of Clopper and Pearson, for counts that need not be whole; of no count at all, everything."""
    low = 0.0 if hits == 0.0 else beta_quantile(ALPHA / 2.0, hits, misses + 1.0)
    high = 1.0 if misses == 0.0 else beta_quantile(1.0 - ALPHA / 2.0, hits + 1.0, misses)
    return low, high


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
    means = sorted(round(total, _DECIMALS) / count for total, count in chosen)
    return means[allowed - 1], means[-allowed]


def _about(changes: Sequence[float], count: float) -> Range:
    """What so many changes like these would tell of their mean."""
    if count < _FEWEST:
        return -1.0, 1.0
    seen = mean_interval(changes)
    # one change alone shows no spread: the next might be its opposite
    spread = abs(seen.estimate) if seen.se is None else seen.se * sqrt(len(changes))
    reach = student_quantile(1.0 - ALPHA / 2.0, count - 1.0) * spread / sqrt(count)
    return max(-1.0, seen.estimate - reach), min(1.0, seen.estimate + reach)


def _product(changed: int, cases: int, scale: float, mean: float, among: Range) -> Range:
    """The interval of (share that changed) x (mean change among those), from the intervals of the two.

    The distances to the bounds are added as squares. A bound of the product is 0 where that of the mean change is:
    its sign is decided there alone.
    """
    share = changed / cases
    fewest, most = _proportion(changed * scale, (cases - changed) * scale)
    low, high = among
    below = hypot(share * (mean - low), low * (share - (fewest if low > 0.0 else most)))
    above = hypot(share * (high - mean), high * (share - (most if high > 0.0 else fewest)))
    return max(-1.0, share * mean - below), min(1.0, share * mean + above)

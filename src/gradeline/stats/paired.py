"""Tests and intervals of paired differences: candidate and baseline on the same cases."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate
from math import comb, exp, fsum, hypot, lgamma, log
from operator import getitem
from random import Random
from typing import NamedTuple, TypeAlias

from gradeline.stats.distributions import beta_cdf, inverse, student_quantile, student_two_sided
from gradeline.stats.intervals import Interval, finite_values, mean_interval, wilson

_EXACT = 15
"""Maximum number of differences for the exact sign-flip test: 32,768 combinations."""

_WHOLE_NUMBERS = 2_000
"""Maximum number of changes for McNemar's test in integers, whose work is quadratic."""

_BLOCK = 8
"""Number of signs per table lookup."""


def paired_difference(
    a: Iterable[float], b: Iterable[float], clusters: Iterable[Hashable] | None = None, confidence: float = 0.95
) -> Interval:
    """The mean of the paired differences a - b with its interval."""
    left, right = finite_values(a), finite_values(b)
    if len(left) != len(right):
        raise ValueError(f"{len(left)} values against {len(right)}: pairs are needed")
    return mean_interval([x - y for x, y in zip(left, right, strict=True)], clusters, confidence)


class McNemar(NamedTuple):
    """Two-sided p-values for b cases that changed one way and c that changed the other."""

    exact: float
    mid_p: float


def mcnemar(b: int, c: int) -> McNemar:
    """McNemar's test: do b and c differ by more than chance?"""
    if b < 0 or c < 0:
        raise ValueError(f"counts cannot be negative, got b={b!r}, c={c!r}")
    n, least = b + c, min(b, c)
    if n == 0:
        return McNemar(1.0, 1.0)
    if n > _WHOLE_NUMBERS:
        return _many(n, least)
    # integers are exact; the only division is the last step
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
    """The same in floats: the terms decrease so fast that some hundreds suffice."""
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
    """Two-sided p-value of the mean difference, if every difference could have had either sign.

    Exact for up to 15 nonzero values, by seeded sampling for more.
    """
    values = [value for value in finite_values(differences) if value != 0.0]
    observed = abs(fsum(values))
    # sums in another order differ in their last bits, and scores such as 1/3 are rounded
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
    """The sums of all subsets of the values; bit n of the index says whether value n is included."""
    sums = array("d", [0.0])
    for value in values:
        sums.extend([total + value for total in sums])
    return sums


def holm(ps: Iterable[float]) -> list[float]:
    """p-values adjusted by Holm, which controls the family-wise error rate."""
    values = _probabilities(ps)
    order = sorted(range(len(values)), key=values.__getitem__)
    raised = accumulate(((len(values) - rank) * values[index] for rank, index in enumerate(order)), max)
    return _restored(order, raised)


def benjamini_hochberg(ps: Iterable[float]) -> list[float]:
    """p-values adjusted by Benjamini and Hochberg, which controls the false discovery rate."""
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


ALPHA = 0.05
"""The level of all tests; intervals are 95 %."""

_DECIMALS = 9
"""Precision of differences; smaller ones are rounding errors, as in 0.1 + 0.2."""

_SUM_DECIMALS = 7
"""Precision of sums of rounded differences: 2 × 0.333333333 equals 0.666666667."""

Range: TypeAlias = tuple[float, float]


class McNemarTest(NamedTuple):
    """Changes that all have the same size, such as between pass and fail: McNemar's mid-p.

    The interval is the inversion of that test.
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


class SignFlipTest(NamedTuple):
    """Up to 15 changes of different sizes: the exact sign-flip test.

    The interval of the mean is the inversion of that test.
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


class PairedTTest(NamedTuple):
    """More than 15 changes of different sizes: Student's paired t over all cases."""

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


PairedTest: TypeAlias = McNemarTest | SignFlipTest | PairedTTest


def changes_test(differences: Sequence[float], *, pass_or_fail: bool) -> PairedTest:
    """The test of the differences of `score_changes`; ``pass_or_fail``: every score is 0 or 1."""
    cases = len(differences)
    changes = [difference for difference in differences if difference]
    if pass_or_fail:
        up = changes.count(1.0)
        return McNemarTest(cases, up, len(changes) - up)
    if len(changes) <= _EXACT:
        return SignFlipTest(cases, tuple(changes))
    size = abs(changes[0])
    if all(abs(change) == size for change in changes):
        up = changes.count(size)
        return McNemarTest(cases, up, len(changes) - up, size)
    whole = mean_interval(differences)
    return PairedTTest(cases, whole.estimate, whole.se or 0.0)


def is_skewed(differences: Sequence[float]) -> bool:
    """Whether the differences are too skewed for Student's t.

    By Cochran's rule it needs more cases than 25 times the squared skewness.
    """
    cases = len(differences)
    mean = fsum(differences) / cases
    squares = fsum((difference - mean) ** 2 for difference in differences)
    cubes = fsum((difference - mean) ** 3 for difference in differences)
    # 25 g² >= n with g = sqrt(n) cubes / squares^1.5; changes that are all equal have no skewness
    return 25.0 * cubes * cubes >= squares**3 > 1e-24


def score_changes(baseline: Sequence[float], candidate: Sequence[float], noise: float = 0.0) -> list[float]:
    """candidate - baseline of scores in 0..1, one pair per case; rounding errors and changes below ``noise`` are 0."""
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(candidate)} values against {len(baseline)}: pairs are needed")
    return list(
        finite_values([score_change(before, after, noise) for before, after in zip(baseline, candidate, strict=True)])
    )


def score_change(before: float, after: float, noise: float = 0.0) -> float:
    """The same for one case. A change of exactly ``noise`` counts."""
    change = round(after - before, _DECIMALS)
    return change if abs(change) >= noise else 0.0


def _least_share(hits: int, misses: int) -> float:
    """The lower mid-p bound of the share of hits: half the probability of these hits plus that of more is 0.025."""
    if hits == 0:
        return 0.0

    def mid_p(share: float) -> float:
        more = beta_cdf(share, hits + 1, misses) if misses else 0.0
        return (beta_cdf(share, hits, misses + 1) + more) / 2.0

    return inverse(mid_p, ALPHA / 2.0)


def _typical_values(changes: Sequence[float]) -> Range:
    """The means that the exact sign-flip test does not reject.

    The p-value of a mean m is the share of sign flips about m with at least the same deviation, which equals the share
    of subsets of the changes whose mean is beyond m. So the bounds are means of such subsets.
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
    that of the mean change is: only the mean change decides the sign.
    """
    share = changed / cases
    fewest, most = wilson(changed, cases)
    low, high = among
    below = hypot(share * (mean - low), low * (share - (fewest if low > 0.0 else most)))
    above = hypot(share * (high - mean), high * (share - (most if high > 0.0 else fewest)))
    return max(-1.0, share * mean - below), min(1.0, share * mean + above)


MIN_CLUSTERS = 6
"""With fewer clusters nothing is decided: 5 that all change in one direction have a p-value of 1/16."""


class ClusteredTest(NamedTuple):
    """The test of the mean difference over the cases, with clusters as units."""

    differences: tuple[float, ...]
    """One per cluster: the sum over its cases, divided by the mean cluster size."""
    found: PairedTest
    """The test of the differences, as shares of the greatest possible one."""
    largest: float
    """The greatest possible difference of a cluster: 1 if all have the same size."""

    @property
    def test(self) -> str:
        return self.found.test

    @property
    def p(self) -> float:
        return self.found.p

    @property
    def interval(self) -> Range:
        """The 95 % interval of the mean difference."""
        low, high = self.found.interval
        return max(-1.0, low * self.largest), min(1.0, high * self.largest)


def clusters_test(differences: Sequence[float], clusters: Sequence[Hashable]) -> ClusteredTest:
    """Test the differences of cases (see `score_changes`) with clusters as units.

    Up to 15 changed clusters the exact sign-flip test is used, for more Student's t over the clusters.
    """
    if len(differences) != len(clusters):
        raise ValueError(f"{len(differences)} differences but {len(clusters)} clusters; pass one for each")
    members: dict[Hashable, list[float]] = {}
    for cluster, difference in zip(clusters, differences, strict=True):
        members.setdefault(cluster, []).append(difference)
    size = len(differences) / len(members)
    largest = max(map(len, members.values())) / size
    sums = tuple(fsum(group) / size for group in members.values())
    return ClusteredTest(
        sums, changes_test([round(total / largest, _DECIMALS) for total in sums], pass_or_fail=False), largest
    )

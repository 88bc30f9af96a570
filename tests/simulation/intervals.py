"""How often the 95 % intervals that gradeline prints contain the truth.

Pass and fail are summed over all tables; the rest is drawn. Where the audit of the formulas found an interval short of
92 %, the row has that lower limit: the interval is known to fail there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb
from random import Random

from measured import Row, at_least, monte_carlo_error
from tables import tables

from gradeline.stats import score_interval, wilson
from gradeline.stats.paired import McNemarTest, changes_test, score_changes

COVERAGE = 0.92

Draw = Callable[[Random], float]
Pair = Callable[[Random], tuple[float, float]]


def figures(full: bool = False) -> list[Row]:
    draws = 10_000 if full else 250
    return [*shares(full), *means(draws), *repeats(draws), *pass_and_fail(full), *scores(draws // 4 if full else draws)]


def shares(full: bool) -> list[Row]:
    """Wilson's interval of a pass rate, summed over all outcomes."""
    limits = {(0.9, 5): 0.91, (0.95, 10): 0.91, (0.99, 10): 0.90}
    sizes = (5, 10, 30, 100, 1000) if full else (10, 100)
    found = []
    for p in (0.5, 0.9, 0.95, 0.99):
        for n in sizes:
            covered = sum(
                comb(n, k) * p**k * (1.0 - p) ** (n - k)
                for k in range(n + 1)
                if (interval := wilson(k, n)).low <= p <= interval.high
            )
            found.append(at_least(f"rate, p {p:g}, n {n}", covered, limits.get((p, n), COVERAGE)))
    return found


def _often_full(share: float) -> Draw:
    return lambda random: 1.0 if random.random() < share else random.random()


def _choice(values: Sequence[float], weights: Sequence[float]) -> Draw:
    return lambda random: random.choices(values, weights)[0]


_RUBRIC = ((0.0, 0.25, 0.5, 0.75, 1.0), (0.02, 0.05, 0.13, 0.3, 0.5))

_MEANS: dict[str, tuple[Draw, float, dict[int, float]]] = {
    "uniform": (lambda random: random.random(), 0.5, {10: COVERAGE, 30: COVERAGE, 100: COVERAGE}),
    "judge N(.8, .05)": (
        lambda random: min(1.0, max(0.0, random.gauss(0.8, 0.05))),
        0.8,
        {10: COVERAGE, 30: COVERAGE, 100: COVERAGE},
    ),
    "Beta(8, 1)": (lambda random: random.betavariate(8, 1), 8 / 9, {5: COVERAGE, 10: COVERAGE}),
    "rubric of 5 steps": (
        _choice(*_RUBRIC),
        sum(value * weight for value, weight in zip(*_RUBRIC, strict=True)),
        {10: COVERAGE, 30: COVERAGE, 100: COVERAGE},
    ),
    "85 % full, rest uniform": (_often_full(0.85), 0.925, {10: COVERAGE, 30: COVERAGE, 100: COVERAGE}),
    "95 % full, rest uniform": (_often_full(0.95), 0.975, {10: COVERAGE, 30: 0.9, 100: COVERAGE}),
    "97 % .95, 3 % 0": (_choice((0.95, 0.0), (0.97, 0.03)), 0.95 * 0.97, {10: COVERAGE, 30: COVERAGE, 100: COVERAGE}),
    "90 % 1, 9 % .9, 1 % 0": (
        _choice((1.0, 0.9, 0.0), (0.9, 0.09, 0.01)),
        0.981,
        {10: COVERAGE, 30: COVERAGE, 100: 0.7},
    ),
}


def means(draws: int) -> list[Row]:
    """The interval of a mean of scores."""
    found = []
    for name, (draw, truth, limits) in _MEANS.items():
        for n, limit in limits.items():
            random = Random(n)
            covered = sum(_holds([draw(random) for _ in range(n)], None, truth) for _ in range(draws)) / draws
            found.append(at_least(f"mean, {name}, n {n}", covered, limit, _slack(limit, draws)))
    return found


def _steady(share: float) -> Draw:
    return lambda random: random.betavariate(share, 1.0 - share)


def _two_kinds(share: float) -> Draw:
    return lambda random: 0.99 if random.random() < (share - 0.1) / 0.89 else 0.1


_REPEATS: tuple[tuple[str, Callable[[float], Draw], int, float, dict[int, float]], ...] = (
    ("steady cases", _steady, 3, 0.9, {10: COVERAGE, 30: COVERAGE, 100: COVERAGE}),
    ("steady cases", _steady, 5, 0.95, {10: COVERAGE, 30: 0.88, 100: COVERAGE}),
    ("cases that pass by .99 or .1", _two_kinds, 3, 0.9, {10: COVERAGE, 30: COVERAGE, 100: COVERAGE}),
    ("cases that pass by .99 or .1", _two_kinds, 5, 0.95, {10: COVERAGE, 30: 0.8, 100: COVERAGE}),
)
"""Steady cases pass with a chance of Beta(mean, 1 - mean): most always, some never."""


def repeats(draws: int) -> list[Row]:
    """The same with repeats, clustered by case."""
    found = []
    for kind, chance_of, times, share, limits in _REPEATS:
        chance = chance_of(share)
        for n, limit in limits.items():
            random = Random(n)
            clusters = [case for case in range(n) for _ in range(times)]
            covered = 0
            for _ in range(draws):
                chances = [chance(random) for _ in range(n)]
                covered += _holds([float(random.random() < chances[case]) for case in clusters], clusters, share)
            name = f"mean, {times} repeats, {kind}, mean {share:g}, n {n}"
            found.append(at_least(name, covered / draws, limit, _slack(limit, draws)))
    return found


def _holds(values: Sequence[float], clusters: Sequence[int] | None, truth: float) -> bool:
    interval = score_interval(values, clusters)
    return interval is not None and interval.low <= truth <= interval.high


def pass_and_fail(full: bool) -> list[Row]:
    """The interval of the difference of two runs by pass and fail, summed over all tables."""
    found = []
    for up, down in ((0.1, 0.1), (0.02, 0.02), (0.2, 0.05), (0.0, 0.03)):
        for n in (10, 30, 100, 200) if full else (10, 30):
            covered = 0.0
            for table in tables(n, up, down):
                low, high = McNemarTest(n, table.up, table.down).interval
                covered += table.chance * (low <= up - down <= high)
            found.append(at_least(f"difference, pass and fail, up {up:g}, down {down:g}, n {n}", covered, 0.94))
    return found


def _changing(share: float, change: Draw) -> Pair:
    def pair(random: Random) -> tuple[float, float]:
        before = random.uniform(0.45, 0.55)
        return before, before + change(random) if random.random() < share else before

    return pair


def _rubrics(random: Random) -> tuple[float, float]:
    draw = _choice(*_RUBRIC)
    return draw(random), draw(random)


def _repeats(random: Random) -> tuple[float, float]:
    chance = random.betavariate(4, 1)
    before, after = (sum(random.random() < chance for _ in range(3)) / 3 for _ in range(2))
    return before, after


_PAIRS: dict[str, tuple[Pair, float, dict[int, float]]] = {
    "N(0, .1)": (_changing(1.0, lambda random: max(-0.4, min(0.4, random.gauss(0, 0.1)))), 0.0, {30: 0.93, 100: 0.93}),
    "two independent rubrics": (_rubrics, 0.0, {30: 0.93, 100: 0.93}),
    "30 % change, by 0 to .4": (
        _changing(0.3, lambda random: random.uniform(0.0, 0.4)),
        0.06,
        {30: COVERAGE, 100: COVERAGE},
    ),
    "3 repeats, equal": (_repeats, 0.0, {30: 0.93, 100: 0.93}),
    "20 %: +.1 x 80 %, -.4 x 20 %": (_changing(0.2, _choice((0.1, -0.4), (0.8, 0.2))), 0.0, {30: 0.86, 100: 0.9}),
    "all: +.05 x 90 %, -.45 x 10 %": (
        _changing(1.0, _choice((0.05, -0.45), (0.9, 0.1))),
        0.0,
        {30: 0.93, 100: COVERAGE},
    ),
}


def scores(draws: int) -> list[Row]:
    """The interval of the difference of two runs by scores."""
    found = []
    for name, (pair, truth, limits) in _PAIRS.items():
        for n, limit in limits.items():
            random = Random(n)
            covered = 0
            for _ in range(draws):
                before, after = zip(*(pair(random) for _ in range(n)), strict=True)
                low, high = changes_test(score_changes(before, after), pass_or_fail=False).interval
                covered += low <= truth <= high
            found.append(at_least(f"difference, {name}, n {n}", covered / draws, limit, _slack(limit, draws)))
    return found


def _slack(limit: float, draws: int) -> float:
    return monte_carlo_error(limit, draws) if draws < 1_000 else 0.0

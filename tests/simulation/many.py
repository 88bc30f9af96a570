"""How often ranks of equally good runs are wrong, and how often the intervals of all pairs are right simultaneously."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

from measured import Row, at_most, monte_carlo_error

from gradeline.verdict.evidence import PairedScores
from gradeline.verdict.paired_decision import ComparisonRule
from gradeline.verdict.ranking import PairDifference, compare_pairs, rank_ranges

RUNS = 5
LIMIT = 0.05
Draw = Callable[[Random], list[float]]
"""The scores of one case in every run."""


def pass_or_fail(change: float) -> Draw:
    """Equally good runs: a case has one outcome, which each run misses with this chance."""

    def draw(random: Random) -> list[float]:
        usual = float(random.random() < 0.7)
        return [1.0 - usual if random.random() < change else usual for _ in range(RUNS)]

    return draw


def rubric(random: Random) -> list[float]:
    """Equally good runs graded from 0 to 1 in quarters, around what the case deserves."""
    deserved = random.choice((1, 2, 3))
    return [(deserved + random.choice((-1, 0, 0, 1))) / 4 for _ in range(RUNS)]


SETTINGS: dict[str, tuple[Draw, int]] = {
    "pass or fail, 5 % change, 200 cases": (pass_or_fail(0.05), 200),
    "pass or fail, 20 % change, 50 cases": (pass_or_fail(0.2), 50),
    "pass or fail, 20 % change, 500 cases": (pass_or_fail(0.2), 500),
    "rubric, 50 cases": (rubric, 50),
    "rubric, 300 cases": (rubric, 300),
}


SMALL = [name for name, (_, cases) in SETTINGS.items() if cases == 50]


def compared(scores: Sequence[Sequence[float]]) -> tuple[PairDifference, ...]:
    """The runs of some cases, all pairs."""
    names = [str(number) for number in range(RUNS)]
    cases = [str(number) for number in range(len(scores))]

    def pair(baseline: str, candidate: str) -> PairedScores:
        first, second = int(baseline), int(candidate)
        return PairedScores(cases, [(row[first],) for row in scores], [(row[second],) for row in scores])

    return compare_pairs(pair, dict.fromkeys(names, 1.0), ComparisonRule())


def figures(full: bool) -> list[Row]:
    """The share of data sets in which any two equally good runs are ranked apart, and that in which any interval
    leaves out the true difference, which is 0."""
    sets = 2_000 if full else 20
    return [row for name in (SETTINGS if full else SMALL) for row in _figures_of(name, sets)]


def _figures_of(name: str, sets: int) -> Iterator[Row]:
    draw, cases = SETTINGS[name]
    random = Random(name)
    apart = outside = 0
    for _ in range(sets):
        pairs = compared([draw(random) for _ in range(cases)])
        placed = rank_ranges([str(number) for number in range(RUNS)], pairs)
        apart += any(rank != (1, RUNS) for rank in placed.values())
        outside += any(not pair.difference_ci[0] <= 0.0 <= pair.difference_ci[1] for pair in pairs)
    slack = monte_carlo_error(LIMIT, sets)  # what chance may add
    for title, count in ((f"{RUNS} equal runs ranked apart", apart), ("an interval leaves out the truth", outside)):
        yield at_most(f"{title}: {name}", count / sets, LIMIT, slack)

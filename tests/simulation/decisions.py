"""How often gradeline decides wrongly, and how often the number of cases that it names settles a comparison."""

from __future__ import annotations

from functools import cache
from random import Random

from measured import Row, at_least, at_most, monte_carlo_error
from tables import tables

from gradeline.stats import cases_to_decide
from gradeline.stats.paired import McNemarTest
from gradeline.verdict.evidence import PairedScores
from gradeline.verdict.paired_decision import (
    MARGIN,
    Decision,
    GraderComparison,
    adjust_p_values,
    compare_cases,
    decide_difference,
    overall_decision,
)


def figures(full: bool = False) -> list[Row]:
    sizes = {50: (0.1, 0.2, 0.3), 200: (0.1, 0.2, 0.3), 1000: (0.1, 0.2)} if full else {50: (0.1, 0.2), 200: (0.1,)}
    found = []
    for n, shares in sizes.items():
        for share in shares:
            found += equally_good(n, share)
            found += losses(n, share)
    found += several_graders(200, 10, 4_000 if full else 150)
    for n in (50, 200) if full else (50,):
        for share in (0.1, 0.2):
            found += settled(n, share, 1_500 if full else 60)
    return found


@cache
def decided(cases: int, up: int, down: int, margin: float = MARGIN) -> Decision:
    """What `compare_cases` decides for pass and fail, without making the cases."""
    found = McNemarTest(cases, up, down)
    return decide_difference((up - down) / cases, found.interval, found.p, margin)


@cache
def compared(cases: int, up: int, down: int) -> GraderComparison:
    same = cases - up - down
    baseline = [(0.0,)] * up + [(1.0,)] * (down + same)
    candidate = [(1.0,)] * up + [(0.0,)] * down + [(1.0,)] * same
    return compare_cases(PairedScores([str(case) for case in range(cases)], baseline, candidate))


def decisions(cases: int, share: float, difference: float) -> dict[Decision, float]:
    """How often each decision is made, if a share of the cases changes and the means differ by this amount."""
    rates: dict[Decision, float] = {"better": 0.0, "not_worse": 0.0, "worse": 0.0, "undecided": 0.0}
    for table in tables(cases, (share + difference) / 2.0, (share - difference) / 2.0):
        rates[decided(cases, table.up, table.down)] += table.chance
    return rates


def equally_good(n: int, share: float) -> list[Row]:
    """Both are equally good: neither better nor worse is true."""
    rates = decisions(n, share, 0.0)
    significant = sum(
        table.chance for table in tables(n, share / 2.0, share / 2.0) if McNemarTest(n, table.up, table.down).p <= 0.05
    )
    name = f"equal, {share:g} change, n {n}"
    return [
        at_most(f"{name}: false better", rates["better"], 0.03),
        at_most(f"{name}: false worse", rates["worse"], 0.03),
        at_most(f"{name}: p at most 0.05", significant, 0.054),
    ]


def losses(n: int, share: float) -> list[Row]:
    """A loss within the margin is not worse, and one of the margin itself seldom passes."""
    found = []
    for loss in (0.01, 0.015):
        rate = decisions(n, share, -loss)["worse"]
        found.append(at_most(f"loss of {loss:g} within the margin, {share:g} change, n {n}: worse", rate, 0.025))
    rates = decisions(n, share, -MARGIN)
    passed = rates["better"] + rates["not_worse"]
    return [*found, at_most(f"loss of the margin, {share:g} change, n {n}: false better or not worse", passed, 0.03)]


def several_graders(n: int, graders: int, draws: int) -> list[Row]:
    """Of several graders, none of which changed, the first is primary: false worse over all of them."""
    random = Random(n)
    worse = 0
    for _ in range(draws):
        found = adjust_p_values({str(key): compared(n, *_drawn(random, n, 0.1)) for key in range(graders)})
        worse += overall_decision(found, ["0"]) == "worse"
    slack = monte_carlo_error(0.04, draws) if draws < 1_000 else 0.0
    return [at_most(f"equal, {graders} graders, n {n}: worse", worse / draws, 0.04, slack)]


def settled(n: int, share: float, draws: int) -> list[Row]:
    """Undecided at n: with the number of cases in all that the comparison names, how often it is settled."""
    random = Random(n)
    asked = settled = 0
    while asked < draws:
        up, down = _drawn(random, n, share)
        if decided(n, up, down) != "undecided":
            continue
        asked += 1
        enough = cases_to_decide((up + down + 1) / (n + 2), MARGIN)
        more_up, more_down = _drawn(random, max(0, enough - n), share)
        settled += decided(max(n, enough), up + more_up, down + more_down) != "undecided"
    slack = monte_carlo_error(0.8, draws) if draws < 1_000 else 0.0
    name = f"equal, {share:g} change, undecided at n {n}: settled by the cases named"
    return [
        at_least(name, settled / draws, 0.73, slack),
        at_most(name, settled / draws, 0.85, slack),
    ]


def _drawn(random: Random, cases: int, share: float) -> tuple[int, int]:
    changed = sum(random.random() < share for _ in range(cases))
    up = sum(random.random() < 0.5 for _ in range(changed))
    return up, changed - up

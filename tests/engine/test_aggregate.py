"""Intervals have their nominal coverage."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from gradeline.engine.aggregate import GraderSummary, complete, measure, summarise
from gradeline.model import Columns, Counts, GradeColumns, GraderCounts, ResponseColumns, Run, RunGrader

RUN = Run(name="n", suite="s", graders={"exact": RunGrader("exact_match", "f")})


def summary(scores: list[float]) -> GraderSummary:
    passed = sum(score >= 0.5 for score in scores)
    outcomes = {"pass": passed, "fail": len(scores) - passed, "error": 0, "skipped": 0}
    counts = GraderCounts(outcomes, sum(scores), sum(score * score for score in scores))
    return summarise(RUN, Counts({"success": len(scores), "error": 0, "timeout": 0}, {"exact": counts})).graders[
        "exact"
    ]


def passes(draw: random.Random) -> tuple[float, Callable[[], float]]:
    rate = draw.uniform(0.02, 0.98)
    return rate, lambda: float(draw.random() < rate)


def graded(draw: random.Random) -> tuple[float, Callable[[], float]]:
    a, b = draw.uniform(0.5, 6.0), draw.uniform(0.5, 6.0)
    return a / (a + b), lambda: draw.betavariate(a, b)


@pytest.mark.parametrize("family", [passes, graded])
@pytest.mark.parametrize(("cases", "trials"), [(10, 4000), (30, 2500), (100, 1500), (1000, 1000)])
def test_an_interval_has_its_nominal_coverage(
    family: Callable[[random.Random], tuple[float, Callable[[], float]]], cases: int, trials: int
) -> None:
    draw = random.Random(20261116)
    of_mean = of_rate = 0
    for _ in range(trials):
        truth, score = family(draw)
        result = summary([score() for _ in range(cases)])
        assert result.mean_ci is not None
        assert result.pass_rate_ci is not None
        of_mean += result.mean_ci[0] <= truth <= result.mean_ci[1]
        of_rate += result.pass_rate_ci[0] <= truth <= result.pass_rate_ci[1]
    assert 0.93 <= of_mean / trials <= 0.99
    if family is passes:
        assert 0.93 <= of_rate / trials <= 0.99


def test_scores_of_0_and_1_have_the_interval_of_a_proportion() -> None:
    result = summary([1.0] * 8 + [0.0] * 2)
    assert result.mean_ci == result.pass_rate_ci
    assert (result.mean, result.pass_rate) == (0.8, 0.8)


def test_few_equal_scores_have_an_interval_with_a_width() -> None:
    result = summary([0.6] * 5)
    assert result.mean == pytest.approx(0.6)
    assert result.mean_ci is not None
    assert result.mean_ci[1] - result.mean_ci[0] > 0.3


def repeated(rates: list[float], repeats: int, draw: random.Random) -> GraderSummary:
    """A run whose every case passes at its own rate."""
    run = msgspec.structs.replace(RUN, repeats=repeats, total=len(rates) * repeats)
    scores = [(case, float(draw.random() < rate)) for case, rate in enumerate(rates) for _ in range(repeats)]
    cases = [str(case) for case, _ in scores]
    nothing = [None] * len(cases)
    outcomes = ["pass" if score else "fail" for _, score in scores]
    page = Columns(
        ResponseColumns(cases, ["success"] * len(cases), nothing, nothing),
        GradeColumns(
            cases, ["exact"] * len(cases), outcomes, [score for _, score in scores], [0] * len(cases), nothing
        ),
    )
    total = sum(score for _, score in scores)
    number = {"pass": int(total), "fail": len(scores) - int(total), "error": 0, "skipped": 0}
    counts = Counts({"success": len(scores), "error": 0, "timeout": 0}, {"exact": GraderCounts(number, total, total)})
    return complete(summarise(run, counts), measure(run, [page], counts)).graders["exact"]


def test_repeats_do_not_count_as_cases() -> None:
    draw = random.Random(3)
    covered = 0
    for _ in range(500):
        result = repeated([draw.choice([0.05, 0.95]) for _ in range(60)], 5, draw)
        assert result.mean_ci is not None
        assert result.mean_ci == result.pass_rate_ci
        covered += result.mean_ci[0] <= 0.5 <= result.mean_ci[1]
    assert 0.93 <= covered / 500 <= 0.99


def test_repeats_that_all_pass_have_the_interval_of_their_cases() -> None:
    assert repeated([1.0] * 10, 5, random.Random(1)).mean_ci == summary([1.0] * 10).mean_ci


@pytest.mark.parametrize(
    ("statuses", "costs", "agent", "unknown"),
    [
        (["success"] * 3, [0.5, None, 0.25], 0.75, 1),
        (["success"] * 2, [0.5, 0.0], 0.5, 0),
        (["success"] * 2, [None, None], None, 2),
        (["success", "error", "success"], [0.5, None, None], 0.5, 1),
    ],
)
def test_responses_of_unknown_cost_are_counted_and_not_free(
    statuses: list[str], costs: list[float | None], agent: float | None, unknown: int
) -> None:
    cases = [str(number) for number in range(len(costs))]
    page = Columns(ResponseColumns(cases, statuses, [None] * len(costs), costs), GradeColumns())
    counts = Counts({}, {})
    whole = complete(summarise(RUN, counts), measure(RUN, [page], counts))
    assert (whole.cost["agent"], whole.cost_unknown) == (agent, unknown)

"""Ranks of several runs, with ties if no difference is significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from gradeline.stats import holm
from gradeline.verdict.evidence import PairedScores
from gradeline.verdict.paired_decision import ComparisonRule, compare_cases
from gradeline.verdict.ranking import PairDifference, compare_pairs, interval_scale, pareto_front, rank_ranges, widen


def compared(
    scores: Mapping[str, Sequence[float]], coverage: Mapping[str, float] | None = None
) -> dict[tuple[str, str], PairDifference]:
    def pair(baseline: str, candidate: str) -> PairedScores:
        cases = [str(place) for place in range(len(scores[baseline]))]
        return PairedScores(cases, [(one,) for one in scores[baseline]], [(one,) for one in scores[candidate]])

    found = compare_pairs(pair, coverage or dict.fromkeys(scores, 1.0), ComparisonRule())
    return {(one.baseline, one.candidate): one for one in found}


def passing(count: int, cases: int = 100) -> list[float]:
    return [float(place < count) for place in range(cases)]


RUNS = {"low": passing(50), "mid": passing(80), "high": passing(83)}


def test_runs_whose_difference_is_not_certain_are_tied() -> None:
    pairs = compared(RUNS)
    assert {names: pair.winner for names, pair in pairs.items()} == {
        ("low", "mid"): "mid",
        ("low", "high"): "high",
        ("mid", "high"): None,
    }
    assert rank_ranges(list(RUNS), list(pairs.values())) == {"low": (3, 3), "mid": (1, 2), "high": (1, 2)}


def test_the_p_values_are_adjusted_over_all_pairs() -> None:
    pairs = list(compared(RUNS).values())
    assert [pair.p_adjusted for pair in pairs] == list(holm([pair.p_value for pair in pairs]))
    assert pairs[2].p_adjusted == pairs[2].p_value > 0.05


def test_equal_runs_share_all_ranks() -> None:
    pairs = compared(dict.fromkeys("abc", passing(50)))
    assert {pair.difference for pair in pairs.values()} == {0.0}
    assert set(rank_ranges(list("abc"), list(pairs.values())).values()) == {(1, 3)}


def test_a_run_with_missing_answers_is_not_ranked_above_another_but_can_be_below() -> None:
    pairs = compared(RUNS, {"low": 1.0, "mid": 1.0, "high": 0.5})
    assert pairs["low", "high"].winner is None
    assert pairs["low", "high"].decision == "undecided"
    assert rank_ranges(list(RUNS), list(pairs.values())) == {"low": (2, 3), "mid": (1, 2), "high": (1, 3)}
    below = compared(RUNS, {"low": 0.5, "mid": 1.0, "high": 1.0})
    assert below["low", "mid"].winner == "mid"


def test_the_simultaneous_intervals_of_all_pairs_are_wider() -> None:
    pair = compared(RUNS)["low", "mid"]
    single = compare_cases(
        PairedScores([*map(str, range(100))], [(x,) for x in RUNS["low"]], [(x,) for x in RUNS["mid"]])
    )
    assert single.difference_ci is not None
    assert pair.difference_ci[0] < single.difference_ci[0]
    assert pair.difference_ci[1] > single.difference_ci[1]


def test_one_pair_has_its_own_interval_and_intervals_stay_within_the_scale() -> None:
    assert interval_scale(1, 50) == 1.0
    assert interval_scale(10, 1_000_001) == pytest.approx(2.807 / 1.960, abs=1e-3)  # normal quantiles, two-sided
    assert widen(0.1, (0.0, 0.2), 1.5) == pytest.approx((-0.05, 0.25))
    assert widen(0.9, (0.2, 1.0), 3.0) == (-1.0, 1.0)


def test_the_front_has_the_runs_that_no_other_dominates() -> None:
    points: dict[str, tuple[float | None, float | None]] = {
        "cheap": (0.7, 1.0),
        "good": (0.9, 3.0),
        "dear": (0.9, 4.0),
        "bad": (0.6, 2.0),
        "twin": (0.7, 1.0),
        "unpriced": (0.99, None),
        "unscored": (None, 0.0),
    }
    assert pareto_front(points) == {
        "cheap": True,
        "good": True,
        "dear": False,
        "bad": False,
        "twin": True,
        "unpriced": None,
        "unscored": None,
    }

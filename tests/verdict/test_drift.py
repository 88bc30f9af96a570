"""Two processes say whether a judge or the system that it judges changed; neither speaks without a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle, permutations
from math import exp, log
from random import Random
from statistics import fmean

import pytest

from gradeline.verdict import drift
from gradeline.verdict.drift import (
    CaseDifferences,
    DriftLook,
    DriftWatch,
    FrozenAnswer,
    anchors_of_run,
    case_differences,
    detect_drift,
    threshold,
)

REPEATABLE = {f"a{n}": FrozenAnswer((float(n % 3 > 0),) * 3) for n in range(60)}
NO_CASES = CaseDifferences()
SAME_CASES = CaseDifferences(((0.0, 100),))


def look(at: int, anchors: Mapping[str, float], cases: CaseDifferences = NO_CASES) -> DriftLook:
    return DriftLook(f"2026-01-{at:02}", list(anchors.items()), cases)


def frozen_scores(*names: str) -> dict[str, float]:
    return {name: REPEATABLE[name].scores[0] for name in names}


def flipped(*names: str) -> dict[str, float]:
    return {name: 1.0 - score for name, score in frozen_scores(*names).items()}


def test_a_repeatable_judge_costs_nothing_and_few_other_scores_name_it() -> None:
    watch = DriftWatch(REPEATABLE)
    for day in range(1, 10):
        watch.add(look(day, frozen_scores(f"a{day}", f"a{day + 10}")))
    assert watch.drift().judge.evidence == pytest.approx(0.5)  # the weight of the first pass
    for day, name in enumerate(("a30", "a31", "a32", "a33", "a34"), 10):
        watch.add(look(day, flipped(name)))
        found = watch.drift()
        if found.answer == "judge":
            break
    assert found.answer == "judge"
    assert found.changed <= 5
    assert found.judge.alarm == f"2026-01-{day}"
    assert found.onset == "2026-01-10"
    watch.add(look(20, frozen_scores("a40")))
    assert watch.drift().answer == "judge"  # it stays so


def test_a_few_anchors_that_stay_other_are_enough_in_the_end() -> None:
    looks = []
    for day in range(1, 9):
        looks.append(look(day, {**frozen_scores(*REPEATABLE), **flipped("a5", "a6", "a7", "a8")}))
    found = detect_drift(REPEATABLE, looks)
    assert (found.answer, found.changed) == ("judge", 4)
    assert detect_drift(REPEATABLE, looks[:1]).answer == "none"


def test_the_judges_own_noise_is_no_change() -> None:
    random = Random(1)
    noisy = {f"a{n}": FrozenAnswer(tuple(float(random.random() < 0.5) for _ in range(3))) for n in range(60)}
    watch = DriftWatch(noisy)
    for day in range(1, 29):
        watch.add(look(day, {name: float(random.random() < 0.5) for name in noisy}))
    found = watch.drift()
    assert found.answer == "none"
    assert found.judge.evidence < 1.0


def test_a_small_shift_of_all_scores_is_a_change() -> None:
    random = Random(2)
    scores = {f"a{n}": random.random() * 0.6 + 0.2 for n in range(60)}
    frozen = {
        name: FrozenAnswer(tuple(score + random.gauss(0, 0.05) for _ in range(3))) for name, score in scores.items()
    }
    same = [look(1, {name: score + random.gauss(0, 0.05) for name, score in scores.items()})]
    assert detect_drift(frozen, same).answer == "none"
    moved = [look(1, {name: score + random.gauss(-0.1, 0.05) for name, score in scores.items()})]
    found = detect_drift(frozen, moved)
    assert (found.answer, found.shift) == ("judge", pytest.approx(-0.1, abs=0.03))


@pytest.mark.parametrize(
    "scores", [(0.0, 0.0, 1.0, 1.0), (0.1, 0.5, 0.5, 0.9), (0.0, 0.0, 0.0, 1.0), (0.2, 0.25, 0.9, 1.0)]
)
@pytest.mark.parametrize("window", [1, 2])
def test_every_bet_is_fair_over_the_orders_of_exchangeable_scores(scores: Sequence[float], window: int) -> None:
    bets = [drift._bets(order, 4 - window, window) for order in permutations(scores)]
    for strategy in range(len(bets[0])):
        assert fmean(exp(bet[strategy]) for bet in bets) == pytest.approx(1.0)


def test_the_passes_share_the_error_rate() -> None:
    assert sum(drift._pass_weight(number) for number in range(1, 100_000)) == pytest.approx(1.0, abs=1e-4)
    assert threshold(0.05) == 40.0


def worse(share: float, cases: int = 100) -> CaseDifferences:
    return CaseDifferences(((-1.0, round(share * cases)), (0.0, cases - round(share * cases))))


def test_a_worse_system_with_the_same_judge_is_named() -> None:
    looks = [look(1, frozen_scores("a1", "a2", "a3"), SAME_CASES), look(2, frozen_scores("a4", "a5"), worse(0.3))]
    assert detect_drift(REPEATABLE, looks).answer == "none"
    looks.append(look(3, frozen_scores(*REPEATABLE)))  # a check of all anchors, without a run
    found = detect_drift(REPEATABLE, looks)
    assert (found.answer, found.moved, found.onset) == ("system", -0.3, "2026-01-02")
    assert found.judge.alarm is None


def test_a_better_system_is_named_too() -> None:
    cases = CaseDifferences(((1.0, 30), (0.0, 70)))
    assert detect_drift(REPEATABLE, [look(1, frozen_scores(*REPEATABLE), cases)]).answer == "system"


def test_scores_that_fall_with_those_of_the_anchors_are_the_judges() -> None:
    """Anchors and cases lose the same: nothing is left for the system, however clear the loss is."""
    passing = [name for name, one in REPEATABLE.items() if one.scores[0] == 1.0]
    scores = {**frozen_scores(*REPEATABLE), **flipped(*passing[:18])}
    found = detect_drift(REPEATABLE, [look(1, scores, worse(0.3))])
    assert found.answer == "judge"
    assert found.system.evidence < 1.0


def test_the_system_gains_nothing_by_an_abrupt_change_of_the_judge() -> None:
    """The expected factor of a look is at most 1 whatever the judge's shift is, computed by enumeration."""
    frozen = {"a": FrozenAnswer((0.5, 0.5)), "b": FrozenAnswer((0.5, 0.5))}
    for fall in (0.0, 0.3, 0.7, 1.0):
        process = drift._SystemProcess(frozen, threshold())
        total = 0.0
        for first in (0, 1):
            for second in (0, 1):
                for fallen in range(4):
                    scores = {"a": 0.5 - 0.5 * first, "b": 0.5 - 0.5 * second}
                    cases = CaseDifferences(((-0.5, fallen), (0.0, 3 - fallen)))
                    ways = {0: 1, 1: 3, 2: 3, 3: 1}[fallen]
                    share = ways
                    for fell in (first, second, *(1,) * fallen, *(0,) * (3 - fallen)):
                        share *= fall if fell else 1.0 - fall
                    for_look = DriftLook(
                        "t", list(scores.items()), CaseDifferences(tuple(c for c in cases.counts if c[1]))
                    )
                    total += share * exp(process._factor(for_look, -1, 0.9, 0.0))
        assert total <= 1.0 + 1e-12


def test_missing_scores_are_no_change() -> None:
    found = detect_drift(REPEATABLE, [look(1, {}, SAME_CASES), look(2, {}), look(3, {"unknown": 0.0})])
    assert (found.answer, found.judged, found.anchors, found.shift) == ("none", 0, 0, None)


def test_no_looks() -> None:
    found = detect_drift(REPEATABLE, [])
    assert (found.answer, found.looks, found.moved, found.onset) == ("none", 0, None, None)


def test_cases_are_paired_by_key_and_clusters_count_once() -> None:
    reference = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 1.0}
    assert case_differences(reference, {"a": 0.0, "b": 0.0, "x": 1.0}) == CaseDifferences(((-1.0, 1), (0.0, 1)))
    clustered = case_differences(reference, {"a": 0.0, "b": 0.0, "c": 0.5}, {"a": "x", "b": "x"})
    assert clustered == CaseDifferences(((-0.5, 1), (0.0, 1)))
    assert case_differences(reference, {}) == case_differences({}, {"a": 1.0}) == CaseDifferences()


def test_new_cases_are_compared_with_the_mean_and_its_error() -> None:
    found = case_differences({"a": 1.0, "b": 0.0}, {"x": 1.0, "y": 0.5, "a": 1.0})
    assert found.counts == ((0.0, 1), (0.5, 2))
    assert found.reference_error == pytest.approx(0.5 / 2**0.5)


def test_a_run_judges_one_anchor_again_for_20_calls() -> None:
    assert [anchors_of_run(calls, 60) for calls in (0, 19, 20, 100, 10_000)] == [0, 0, 1, 5, 60]


def test_a_late_drift_is_found_in_a_later_pass() -> None:
    names = cycle(REPEATABLE)
    watch = DriftWatch(REPEATABLE)
    for number in range(120):
        watch.add(DriftLook(f"{number}", list(frozen_scores(next(names)).items())))
    for number in range(120, 180):
        name = next(names)
        scores = flipped(name) if number % 5 == 0 else frozen_scores(name)
        watch.add(DriftLook(f"{number}", list(scores.items())))
    found = watch.drift()
    assert found.answer == "judge"
    assert int(found.onset or 0) >= 119
    assert log(found.judge.evidence) > log(threshold())

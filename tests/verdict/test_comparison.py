"""Better, not worse, worse, undecided: one rule over the scores of the same cases."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import stats
from gradeline.verdict.comparison import (
    GraderComparison,
    PairedCases,
    adjusted,
    compare_cases,
    decide_difference,
    worst_of,
)


def compared(baseline: Sequence[float], candidate: Sequence[float], margin: float = 0.02) -> GraderComparison:
    return compare_cases(PairedCases([f"c{n}" for n in range(len(baseline))], baseline, candidate), margin)


def table(up: int, down: int, same: int, margin: float = 0.02) -> GraderComparison:
    """Pass and fail: so many cases that passed only now, only before, both times."""
    baseline = [0.0] * up + [1.0] * down + [1.0] * same
    return compared(baseline, [1.0] * up + [0.0] * down + [1.0] * same, margin)


class TestOneGrader:
    def test_all_that_is_said(self) -> None:
        pairs = PairedCases(["a", "b", "c", "d"], [1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 0.0], ["e", "f"], ["g"])
        found = compare_cases(pairs)
        assert found.difference_ci is not None
        low, high = found.difference_ci
        assert -1.0 < low < 0.25 < high < 1.0
        assert found == GraderComparison(
            baseline=0.5,
            candidate=0.75,
            difference=0.25,
            difference_ci=(low, high),
            test="mcnemar_exact",
            p_value=1.0,
            improved=2,
            worse=1,
            same=1,
            missing=2,
            decision="undecided",
            cases_to_decide=found.cases_to_decide,
            changed=("b", "c", "d"),
            edited=("g",),
            improved_cases=("b", "c"),
            worse_cases=("d",),
            missing_cases=("e", "f"),
        )
        assert found.pairs == 4

    def test_json_has_the_names_of_the_contract(self) -> None:
        assert set(table(1, 2, 3).to_data()) == {
            "baseline", "candidate", "difference", "difference_ci", "test", "p_value", "p_adjusted", "improved", "worse",
            "same", "missing", "decision", "cases_to_decide", "changed", "edited",
        }  # fmt: skip

    def test_without_a_pair_nothing_is_said(self) -> None:
        found = compare_cases(PairedCases([], [], [], ["a"]))
        assert (found.baseline, found.difference_ci, found.test, found.p_value) == (None, None, None, None)
        assert (found.pairs, found.missing, found.decision, found.cases_to_decide) == (0, 1, "undecided", None)

    def test_the_test_fits_the_scores(self) -> None:
        random = Random(1)
        many = [random.random() for _ in range(40)]
        assert compared([0.0, 1.0], [1.0, 1.0]).test == "mcnemar_exact"
        assert compared([0.0, 0.5], [1.0, 1.0]).test == "sign_flip_exact"
        assert compared(many, many[::-1]).test == "paired_t"

    def test_p_is_that_of_the_test(self) -> None:
        assert table(8, 2, 10).p_value == stats.mcnemar(8, 2).exact
        changes = [0.3, -0.1, 0.2, 0.2, 0.4, 0.1]
        assert compared([0.5] * 6, [0.5 + change for change in changes]).p_value == stats.sign_flip_test(changes)


class TestTheRule:
    def test_a_planted_gain_of_ten_points_is_found_at_400_cases(self) -> None:
        random = Random(7)
        found = 0
        for _ in range(20):
            hard = [random.random() for _ in range(400)]
            baseline = [float(case < 0.7) if random.random() < 0.8 else float(random.random() < 0.7) for case in hard]
            candidate = [float(case < 0.8) if random.random() < 0.8 else float(random.random() < 0.8) for case in hard]
            found += compared(baseline, candidate).decision == "better"
            assert compared(candidate, baseline).decision in ("worse", "undecided")
        assert found >= 19

    def test_an_equal_candidate_seldom_differs_significantly(self) -> None:
        random = Random(3)
        alarms = 0
        for _ in range(300):
            baseline, candidate = ([float(random.random() < 0.7) for _ in range(100)] for _ in range(2))
            p = compared(baseline, candidate, margin=1.0).p_value
            alarms += p is not None and p <= 0.05
        assert alarms / 300 <= 0.05

    @given(st.integers(1, 400), st.sampled_from([0.0, 0.02, 0.1]))
    def test_identical_runs_are_never_better_or_worse(self, cases: int, margin: float) -> None:
        for scores in ([1.0] * cases, [0.25] * cases):
            assert compared(scores, scores, margin).decision in ("not_worse", "undecided")

    def test_a_few_identical_cases_are_no_proof_but_many_are(self) -> None:
        few, many = table(0, 0, 50), table(0, 0, 400)
        assert (few.decision, many.decision) == ("undecided", "not_worse")
        assert few.cases_to_decide is not None
        assert 180 <= few.cases_to_decide <= 195

    @given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 300), st.floats(0, 1))
    def test_what_is_not_significant_is_neither_better_nor_worse(
        self, up: int, down: int, same: int, margin: float
    ) -> None:
        if up + down + same == 0:
            return
        found = table(up, down, same, margin)
        assert found.p_value is not None
        assert found.difference_ci is not None
        low, high = found.difference_ci
        significant = found.p_value <= 0.05
        assert (found.decision == "better") == (significant and up > down) == (low > 0.0)
        assert found.decision != "worse" or (significant and down > up and high < 0.0 and low < -margin)
        assert (found.cases_to_decide is None) or found.decision == "undecided"

    @pytest.mark.parametrize(
        ("difference", "interval", "p", "decision"),
        [
            (0.05, (0.01, 0.09), 0.01, "better"),
            (0.01, (-0.02, 0.04), 0.5, "not_worse"),
            (0.0, (-0.0200000001, 0.02), 1.0, "not_worse"),
            (-0.01, (-0.015, -0.005), 0.001, "not_worse"),
            (-0.03, (-0.05, -0.01), 0.001, "worse"),
            (-0.01, (-0.03, 0.01), 0.3, "undecided"),
            (0.05, (-0.1, 0.2), 0.5, "undecided"),
        ],
    )
    def test_the_margin_says_how_much_worse_is_still_not_worse(
        self, difference: float, interval: tuple[float, float], p: float, decision: str
    ) -> None:
        assert decide_difference(difference, interval, p, 0.02) == decision

    def test_a_small_loss_that_is_certain_is_worse_without_a_margin(self) -> None:
        assert table(100, 200, 30_000).decision == "not_worse"
        assert table(100, 200, 30_000, margin=0.0).decision == "worse"


class TestCasesToDecide:
    @pytest.mark.parametrize(("up", "down", "same"), [(3, 1, 16), (1, 0, 49), (10, 8, 82), (2, 3, 45), (30, 28, 342)])
    def test_so_many_cases_of_the_same_kind_settle_it(self, up: int, down: int, same: int) -> None:
        cases = up + down + same
        found = table(up, down, same)
        assert found.decision == "undecided"
        assert found.cases_to_decide is not None
        assert found.cases_to_decide > cases
        times = -(-found.cases_to_decide // cases)
        assert table(up * times, down * times, same * times).decision != "undecided"

    def test_scores_too(self) -> None:
        random = Random(2)
        baseline = [random.random() for _ in range(30)]
        candidate = [min(1.0, max(0.0, score + random.gauss(0.03, 0.2))) for score in baseline]
        found = compared(baseline, candidate)
        assert found.decision == "undecided"
        assert found.cases_to_decide is not None
        times = -(-found.cases_to_decide // 30) + 1
        assert compared(baseline * times, candidate * times).decision != "undecided"

    def test_few_changes_too(self) -> None:
        found = compared([0.5] * 20, [0.5] * 17 + [0.6, 0.7, 0.8])
        assert found.decision == "undecided"
        assert found.cases_to_decide is not None
        assert 40 <= found.cases_to_decide <= 60

    def test_one_change_alone_too(self) -> None:
        found = compared([0.5] * 20, [0.5] * 19 + [0.9])
        assert found.decision == "undecided"
        assert found.cases_to_decide is not None
        assert 100 <= found.cases_to_decide <= 200

    def test_no_number_of_cases_tells_equal_ones_apart_without_a_margin(self) -> None:
        assert table(5, 5, 40, margin=0.0).cases_to_decide is None
        assert compared([0.3] * 20, [0.1 + 0.2] * 20, margin=0.0).cases_to_decide is None


class TestSeveralGraders:
    def test_p_is_adjusted_for_their_number(self) -> None:
        graders = {"a": table(12, 2, 10), "b": table(1, 2, 10), "none": compare_cases(PairedCases([], [], []))}
        found = adjusted(graders)
        p = stats.mcnemar(12, 2).exact
        assert {key: grader.p_adjusted for key, grader in found.items()} == {"a": 2 * p, "b": 1.0, "none": None}
        assert {key: grader.decision for key, grader in found.items()} == {
            "a": "better",
            "b": "undecided",
            "none": "undecided",
        }

    def test_the_worst_decides(self) -> None:
        assert worst_of(["better", "worse", "undecided"]) == "worse"
        assert worst_of(["better", "undecided", "not_worse"]) == "undecided"
        assert worst_of(["better", "not_worse"]) == "not_worse"
        assert worst_of(["better"]) == "better"

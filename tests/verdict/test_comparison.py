"""Better, not worse, worse, undecided: one rule over the scores of the same cases."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import stats
from gradeline.verdict.early_stopping import StoppingRule, WatchedGate
from gradeline.verdict.evidence import Look, PairedScores, RepeatScores
from gradeline.verdict.paired_decision import (
    ComparisonRule,
    Drop,
    GraderComparison,
    adjust_p_values,
    compare_cases,
    decide_difference,
    overall_decision,
)


def compared(baseline: Sequence[float], candidate: Sequence[float], margin: float = 0.02) -> GraderComparison:
    cases = [f"c{n}" for n in range(len(baseline))]
    return compare_cases(PairedScores(cases, once(baseline), once(candidate)), ComparisonRule(margin))


def once(scores: Sequence[float | None]) -> list[RepeatScores]:
    """Cases without repeats; None is a failed call."""
    return [(score,) for score in scores]


def table(up: int, down: int, same: int, margin: float = 0.02) -> GraderComparison:
    """Pass and fail: numbers of cases that passed only now, only before, both times."""
    baseline = [0.0] * up + [1.0] * down + [1.0] * same
    return compared(baseline, [1.0] * up + [0.0] * down + [1.0] * same, margin)


class TestOneGrader:
    def test_the_complete_result(self) -> None:
        paired = PairedScores(
            ["a", "b", "c", "d", "e"], once([1.0, 0.0, 0.0, 1.0, 1.0]), once([1.0, 1.0, 1.0, 0.0, None]), ["f"], ["g"]
        )
        found = compare_cases(paired)
        assert found.difference_ci is not None
        low, high = found.difference_ci
        assert -1.0 < low < 0.25 < high < 1.0
        assert found == GraderComparison(
            baseline=0.5,
            candidate=0.75,
            difference=0.25,
            difference_ci=(low, high),
            difference_bounds=(0.0, 0.2),
            coverage=0.8,
            test="mcnemar_mid_p",
            p_value=0.625,
            noise_threshold=stats.noise_threshold([0.0, 1.0, 1.0, -1.0]),
            largest_drops=(Drop("d", 1.0, 0.0),),
            improved=2,
            worse=1,
            same=1,
            missing=2,
            decision="undecided",
            reasons=(
                f"a loss above {-low:.3g} is ruled out",
                "13,082 cases in all (13,078 more) settle it with a power of 80 % if both are equally good",
            ),
            cases_to_decide=13_082,
            changed=("b", "c", "d"),
            edited=("g",),
            improved_cases=("b", "c"),
            worse_cases=("d",),
            missing_cases=("e", "f"),
        )
        assert found.pairs == 4

    def test_json_has_the_documented_names(self) -> None:
        assert set(table(1, 2, 3).to_data()) == {
            "baseline", "candidate", "difference", "difference_ci", "test", "p_value", "p_adjusted", "improved", "worse",
            "same", "missing", "decision", "cases_to_decide", "changed", "edited", "coverage", "difference_bounds",
            "reasons", "clusters", "corrected", "noise_threshold", "skewed", "largest_drops", "noise", "within_noise",
            "not_applicable",
        }  # fmt: skip

    def test_without_a_pair_there_is_no_result(self) -> None:
        found = compare_cases(PairedScores([], [], [], ["a"]))
        assert (found.baseline, found.difference_ci, found.test, found.p_value) == (None, None, None, None)
        assert (found.pairs, found.missing, found.decision, found.cases_to_decide) == (0, 1, "undecided", None)

    def test_the_test_fits_the_scores(self) -> None:
        random = Random(1)
        many = [random.random() for _ in range(40)]
        assert compared([0.0, 1.0], [1.0, 1.0]).test == "mcnemar_mid_p"
        assert compared([0.0, 0.5], [1.0, 1.0]).test == "sign_flip_exact"
        assert compared(many, many[::-1]).test == "paired_t"

    def test_p_equals_that_of_the_test(self) -> None:
        assert table(8, 2, 10).p_value == stats.mcnemar(8, 2).mid_p
        changes = [0.3, -0.1, 0.2, 0.2, 0.4, 0.1]
        assert compared([0.5] * 6, [0.5 + change for change in changes]).p_value == stats.sign_flip_test(changes)


class TestDecisionRule:
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

    def test_an_equal_candidate_rarely_differs_significantly(self) -> None:
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
        assert few.cases_to_decide == 378  # (1.960 + 0.842)² · (1 / 52) / 0.02²
        assert few.reasons[0] == "a loss above 0.0713 is ruled out"

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
        assert found.decision != "worse" or (significant and down > up and high < -margin)
        assert (found.cases_to_decide is None) or found.decision == "undecided"

    @pytest.mark.parametrize(
        ("difference", "interval", "p", "decision"),
        [
            (0.05, (0.01, 0.09), 0.01, "better"),
            (0.01, (-0.02, 0.04), 0.5, "not_worse"),
            (0.0, (-0.0200000001, 0.02), 1.0, "not_worse"),
            (-0.01, (-0.015, -0.005), 0.001, "not_worse"),
            (-0.05, (-0.07, -0.03), 0.001, "worse"),
            (-0.03, (-0.05, -0.01), 0.001, "undecided"),
            (-0.05, (-0.08, -0.02), 0.001, "undecided"),
            (-0.01, (-0.03, 0.01), 0.3, "undecided"),
            (0.05, (-0.1, 0.2), 0.5, "undecided"),
        ],
    )
    def test_a_loss_within_the_margin_is_not_worse(
        self, difference: float, interval: tuple[float, float], p: float, decision: str
    ) -> None:
        assert decide_difference(difference, interval, p, 0.02) == decision

    def test_a_small_loss_that_is_certain_is_worse_without_a_margin(self) -> None:
        assert table(100, 200, 30_000).decision == "not_worse"
        assert table(100, 200, 30_000, margin=0.0).decision == "worse"


class TestCoverage:
    def test_missing_answers_never_make_a_candidate_better(self) -> None:
        """400 cases; the candidate fails at every fifth call, the baseline is wrong on 8 others."""
        baseline = once([0.0] * 8 + [1.0] * 392)
        candidate = once([1.0] * 320 + [None] * 80)
        names = [str(n) for n in range(400)]
        found = compare_cases(PairedScores(names, baseline, candidate))
        assert (found.decision, found.coverage, found.missing) == ("undecided", 0.8, 80)
        assert found.difference_bounds == pytest.approx((-0.18, 0.02))
        assert found.reasons == (
            "only 320 of the baseline's 400 cases have a score in both runs, below the floor of 0.95; with the missing"
            " scores the difference is -0.180 to +0.020",
        )
        assert (
            compare_cases(PairedScores(names, baseline, candidate), ComparisonRule(coverage_floor=0.8)).decision
            == "better"
        )

    def test_a_failed_call_counts_as_0_where_the_suite_says_so(self) -> None:
        paired = PairedScores([str(n) for n in range(40)], once([1.0] * 40), once([1.0] * 20 + [None] * 20))
        assert compare_cases(paired).decision == "undecided"
        found = compare_cases(paired, ComparisonRule(agent_errors="fail"))
        assert (found.decision, found.coverage, found.difference) == ("worse", 1.0, -0.5)

    def test_a_loss_is_a_loss_whatever_is_missing(self) -> None:
        paired = PairedScores([str(n) for n in range(100)], once([1.0] * 100), once([0.0] * 60 + [None] * 40))
        assert compare_cases(paired).decision == "worse"

    def test_cases_that_the_candidate_does_not_have_are_missing_and_added_ones_are_not(self) -> None:
        less = PairedScores([str(n) for n in range(100)], once([1.0] * 100), [*once([1.0] * 90), *[()] * 10])
        more = PairedScores(
            [str(n) for n in range(90)], once([1.0] * 90), once([1.0] * 90), [str(n) for n in range(90, 200)]
        )
        assert compare_cases(less, ComparisonRule(margin=0.5)).decision == "undecided"
        assert compare_cases(more, ComparisonRule(margin=0.5)).decision == "not_worse"

    def test_any_number_of_repeats_counts_with_their_mean(self) -> None:
        """Three repeats against two: 2/3 against 1/2, in 60 cases."""
        paired = PairedScores([str(n) for n in range(60)], [(1.0, 1.0, 0.0)] * 60, [(1.0, 0.0)] * 60)
        found = compare_cases(paired)
        assert (found.decision, found.difference) == ("worse", pytest.approx(-1 / 6))


class TestUndecidedReasons:
    def test_a_certain_loss_that_may_be_within_the_margin_is_undecided(self) -> None:
        """0 up and 6 down of 400: -0.015, significant, and perhaps less than 0.02."""
        found = table(0, 6, 394)
        assert (found.decision, found.difference) == ("undecided", -0.015)
        assert found.reasons[0] == "lower for certain (p 0.016), perhaps by less than the margin of 0.02"
        assert found.reasons[1].startswith("a loss above 0.0")

    def test_the_number_of_cases_depends_on_how_often_anything_changes(self) -> None:
        assert [table(up, up, 50 - 2 * up).cases_to_decide for up in (0, 2, 5)] == [378, 1887, 4151]

    def test_near_the_margin_more_cases_may_not_settle_it(self) -> None:
        found = table(100, 200, 4_700)
        assert found.decision == "undecided"
        assert found.reasons[-1] == "the difference is close to the margin, so that more cases may not settle it"

    def test_no_number_of_cases_shows_equality_without_a_margin(self) -> None:
        found = table(5, 5, 40, margin=0.0)
        assert found.cases_to_decide is None
        assert found.reasons[-1] == "no number of cases shows that it is not worse without a margin"


class TestNoise:
    def test_noise_is_the_range_of_chance_for_equal_candidates(self) -> None:
        found = table(10, 10, 80)
        assert found.noise_threshold == pytest.approx(1.959964 * (21 / 102 / 100) ** 0.5, rel=1e-6)
        assert found.difference_ci is not None
        assert found.noise_threshold == pytest.approx(found.difference_ci[1], rel=0.1)

    def test_more_equal_cases_have_less_noise(self) -> None:
        thresholds = [table(0, 0, cases).noise_threshold for cases in (1, 10, 100, 1_000)]
        assert thresholds == sorted(thresholds, reverse=True, key=lambda one: one or 0.0)
        assert all(one is not None and 0.0 < one <= 1.0 for one in thresholds)

    @pytest.mark.parametrize("cases", [50, 200])
    def test_equal_candidates_stay_within_the_noise_95_times_of_100(self, cases: int) -> None:
        """400 rounds: the standard error of the simulation is 1.1 points."""
        random = Random(cases)
        rounds, within = 400, 0
        for _ in range(rounds):
            before = [random.betavariate(4, 2) for _ in range(cases)]
            after = [score if random.random() < 0.6 else random.betavariate(4, 2) for score in before]
            changes = [second - first for first, second in zip(before, after, strict=True)]
            within += abs(sum(changes) / cases) <= stats.noise_threshold(changes)
        assert 0.92 <= within / rounds <= 0.98

    def test_without_a_pair_there_is_no_noise(self) -> None:
        assert compare_cases(PairedScores([], [], [])).noise_threshold is None


class TestLargestDrops:
    def test_largest_drops_are_the_cases_that_fell_most(self) -> None:
        found = compared([0.9, 0.5, 1.0, 0.4, 0.8, 0.7, 0.6, 0.3], [0.8, 0.9, 0.1, 0.4, 0.6, 0.5, 0.1, 0.0])
        assert found.largest_drops == (
            Drop("c2", 1.0, 0.1),
            Drop("c6", 0.6, 0.1),
            Drop("c7", 0.3, 0.0),
            Drop("c4", 0.8, 0.6),
            Drop("c5", 0.7, 0.5),
        )

    def test_dependence_on_symmetry_is_flagged_where_small_gains_can_hide_drops(self) -> None:
        gains = [0.5] * 98
        few = compared([0.5] * 9 + [0.9], [0.55] * 9 + [0.45])
        rare = compared([*gains, 1.0, 1.0], [0.52] * 98 + [0.02, 0.02])
        random = Random(5)
        even = compared([0.5] * 100, [random.uniform(0.3, 0.7) for _ in range(100)])
        assert [(found.test, found.skewed, found.depends_on_symmetry) for found in (few, rare, even)] == [
            ("sign_flip_exact", False, True),
            ("paired_t", True, True),
            ("paired_t", False, False),
        ]
        assert [drop.case for drop in rare.largest_drops] == ["c98", "c99"]

    def test_pass_and_fail_do_not_depend_on_symmetry(self) -> None:
        assert table(40, 1, 10).depends_on_symmetry is False


class TestSeveralGraders:
    def test_p_is_adjusted_for_their_number(self) -> None:
        graders = {"a": table(12, 2, 10), "b": table(1, 2, 10), "none": compare_cases(PairedScores([], [], []))}
        found = adjust_p_values(graders)
        p = stats.mcnemar(12, 2).mid_p
        assert {key: grader.p_adjusted for key, grader in found.items()} == {"a": 2 * p, "b": 0.625, "none": None}
        assert {key: grader.decision for key, grader in found.items()} == {
            "a": "better",
            "b": "undecided",
            "none": "undecided",
        }

    def decided(self, *primary: str, **tables: GraderComparison) -> str:
        return overall_decision(adjust_p_values(tables), primary)

    def test_the_primary_graders_decide(self) -> None:
        better, same, unsure = table(30, 2, 68), table(0, 0, 400), table(3, 2, 45)
        assert self.decided("a", a=better, b=unsure) == "better"
        assert self.decided("a", "b", a=better, b=unsure) == "undecided"
        assert self.decided("a", "b", a=better, b=same) == "better"
        assert self.decided("b", a=better, b=same) == "not_worse"
        assert self.decided("absent", a=better) == "undecided"
        assert self.decided("a", "absent", a=better) == "undecided"

    def test_any_grader_can_veto_by_a_significant_loss(self) -> None:
        better, fallen = table(30, 2, 68), table(0, 100, 0)
        assert self.decided("a", a=better, b=fallen) == "worse"

    def test_a_loss_that_is_significant_only_by_itself_is_no_veto(self) -> None:
        slight = table(0, 5, 0)
        assert (slight.decision, slight.p_value) == ("worse", pytest.approx(0.03125))
        same = {f"same{n}": table(0, 0, 400) for n in range(3)}
        assert self.decided("same0", slight=slight, **same) == "not_worse"
        assert self.decided("slight", slight=slight, **same) == "worse"


class TestChangesBelowTheNoise:
    """A suite's `noise` for a grader: smaller changes of a case count as same."""

    CASES = ("small gain", "small loss", "gain", "loss", "equal")
    BEFORE = (0.5, 0.5, 0.5, 0.5, 0.5)
    AFTER = (0.508, 0.495, 0.7, 0.4, 0.5)

    def found(self, noise: float = 0.01, **fields: Any) -> GraderComparison:
        return compare_cases(PairedScores(self.CASES, once(self.BEFORE), once(self.AFTER), noise=noise, **fields))

    def test_smaller_changes_count_as_same_and_the_means_are_those_of_the_scores(self) -> None:
        found = self.found()
        assert (found.improved_cases, found.worse_cases, found.same) == (("gain",), ("loss",), 3)
        assert (found.noise, found.within_noise) == (0.01, 2)
        assert found.difference == pytest.approx(0.02)
        assert (found.baseline, found.candidate) == (0.5, pytest.approx(0.5206))
        assert found.largest_drops == (Drop("loss", 0.5, 0.4),)
        assert found.difference_bounds == pytest.approx((0.02, 0.02))
        assert found.changed == ("gain", "loss")

    def test_the_test_and_the_interval_are_those_of_the_changes_that_count(self) -> None:
        found, counted = self.found(), compared(list(self.BEFORE), [0.5, 0.5, 0.7, 0.4, 0.5])
        assert (found.p_value, found.difference_ci) == (counted.p_value, counted.difference_ci)
        assert (found.test, found.noise_threshold) == (counted.test, counted.noise_threshold)
        assert found.cases_to_decide == counted.cases_to_decide

    def test_the_interval_of_an_interim_look_is_of_the_changes_that_count(self) -> None:
        look = Look(3, 0.05)
        counted = compare_cases(PairedScores(self.CASES, once(self.BEFORE), once([0.5, 0.5, 0.7, 0.4, 0.5]), look=look))
        assert self.found(look=look).difference_ci == counted.difference_ci

    def test_clusters_are_made_of_the_changes_that_count(self) -> None:
        clusters = ["a", "a", "b", "b", None]
        counted = compare_cases(
            PairedScores(self.CASES, once(self.BEFORE), once([0.5, 0.5, 0.7, 0.4, 0.5]), clusters=clusters)
        )
        assert self.found(clusters=clusters).p_value == counted.p_value

    def test_many_tiny_losses_are_not_a_loss(self) -> None:
        before, after = [0.9] * 400, [0.892] * 400
        names = [str(case) for case in range(400)]
        assert compared(before, after, margin=0.0).decision == "worse"
        found = compare_cases(PairedScores(names, once(before), once(after), noise=0.01))
        assert (found.decision, found.difference, found.same, found.within_noise) == ("not_worse", 0.0, 400, 400)

    def test_losses_that_add_up_to_more_than_the_margin_are_not_hidden(self) -> None:
        before, after = [0.9] * 400, [0.86] * 400
        names = [str(case) for case in range(400)]
        found = compare_cases(PairedScores(names, once(before), once(after), noise=0.05), ComparisonRule(margin=0.02))
        assert found.decision == "undecided"
        assert found.reasons == (
            "changes below the noise of 0.05 add up to a loss beyond the margin of 0.02: with them the difference is"
            " -0.04; set a noise below the margin",
        )
        rule = StoppingRule([WatchedGate(("a",), ("a",), ComparisonRule(margin=0.02), "base")], 400, {"a": 0.05})
        looks = [rule.add([(0.9,)], [(0.86,)]) for _ in range(400)]
        assert {look.decision for look in looks if look is not None} == {"undecided"}

    def test_repeats_count_with_the_change_of_their_mean(self) -> None:
        paired = PairedScores(["a"], [(0.5, 0.5)], [(0.6, 0.41)], noise=0.01)  # a mean of 0.505
        assert compare_cases(paired).within_noise == 1

    def test_missing_scores_are_bounded_by_the_same_rule(self) -> None:
        paired = PairedScores(["a", "b", "c"], once([0.5, 0.5, 0.005]), once([0.505, 0.7, None]), noise=0.01)
        # the third is from 0.005 to 0, which is noise, or to 1
        assert compare_cases(paired).difference_bounds == pytest.approx((0.2 / 3, 1.195 / 3))

    def test_the_result_explains_the_noise_threshold(self) -> None:
        assert self.found().noise_rule == (
            "changes below 0.010 count as same (2 of 5 cases); with them the difference is +0.0206"
        )
        assert self.found(0.001).noise_rule == "changes below 0.001 count as same (0 of 5 cases)"
        assert self.found(0.00025).noise_rule == "changes below 0.00025 count as same (0 of 5 cases)"
        assert self.found(0.0).noise_rule is None

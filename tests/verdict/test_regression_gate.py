from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gradeline.stats import mcnemar
from gradeline.verdict import GateResult, PairedScores, RegressionGate, ScoreColumn, decide, read_gate
from gradeline.verdict.evidence import RepeatScores
from gradeline.verdict.paired_decision import compare_cases

COLUMNS = {"exact": ScoreColumn([1.0] * 20, 20)}


def gate(**fields: Any) -> RegressionGate:
    reading = read_gate({"kind": "regression", "baseline": "latest~1", **fields}, [])
    assert reading.problems == []
    assert isinstance(reading.gate, RegressionGate)
    return reading.gate


def result(paired: PairedScores | None, columns: dict[str, ScoreColumn] = COLUMNS, **fields: Any) -> GateResult:
    pairs = {} if paired is None else {("latest~1", "exact"): paired}
    (judged,) = decide(gate(**fields), columns, paired=pairs).gates
    return judged


def changed(better: int = 0, worse: int = 0, same: int = 0) -> PairedScores:
    """Numbers of cases that improved, got worse, or did not change."""
    return paired_once([0.0] * better + [1.0] * worse + [1.0] * same, [1.0] * better + [0.0] * worse + [1.0] * same)


def paired_once(baseline: Sequence[float | None], candidate: Sequence[float | None]) -> PairedScores:
    """Cases without repeats; None is a failed call."""
    first, second = ([(score,) for score in side] for side in (baseline, candidate))
    return PairedScores([str(place) for place in range(len(first))], first, second)


@pytest.mark.parametrize(
    ("paired", "margin", "expected"),
    [
        (changed(same=20), 0.0, "undecided"),
        (changed(same=20), 0.2, "pass"),
        (changed(better=30, same=70), 0.0, "pass"),
        (changed(worse=30, same=70), 0.0, "fail"),
        (changed(worse=30, same=70), 0.5, "pass"),
        (changed(worse=3, better=2, same=95), 0.0, "undecided"),
        (changed(worse=3, better=2, same=95), 0.1, "pass"),
        (changed(worse=90, same=10), 0.5, "fail"),
        (changed(worse=50, same=50), 0.5, "undecided"),
        (paired_once([0.5, 0.6, 0.7], [0.51, 0.61, 0.71]), 0.0, "undecided"),
        (paired_once([0.5, 0.6, 0.7], [0.9, 0.2, 0.7]), 0.02, "undecided"),
    ],
)
def test_better_and_not_worse_pass_and_worse_fails(paired: PairedScores, margin: float, expected: str) -> None:
    assert result(paired, margin=margin).result == expected


def test_the_result_has_everything_a_report_shows() -> None:
    paired = changed(better=30, same=70)
    found = compare_cases(paired)
    assert result(paired) == GateResult(
        kind="regression",
        metric_key="exact",
        aggregation="difference",
        op="gte",
        value=-0.02,
        observed=0.3,
        observed_ci=found.difference_ci,
        result="pass",
        reasons=(
            "exact: +0.3 against run 'latest~1', over 100 cases, 95 % +0.213 to +0.3958, p 9.31e-10; "
            "not worse by more than 0.02 is true",
        ),
    )
    assert result(changed(worse=30, same=70)).reasons[0].endswith("not worse by more than 0.02 is false")


def test_it_decides_as_compare_does() -> None:
    for worse in range(12):
        for better in range(12):
            paired = changed(worse=worse, better=better, same=76)
            expected = compare_cases(paired)
            wanted = {"better": "pass", "not_worse": "pass", "worse": "fail"}.get(expected.decision, "undecided")
            assert result(paired).result == wanted, (worse, better)


class TestFewChanges:
    """By its interval a handful of changes is significant; by the test it is not."""

    @pytest.mark.parametrize(("worse", "better"), [(2, 0), (4, 0), (5, 0), (6, 0), (9, 2), (10, 2), (30, 15)])
    def test_it_fails_only_when_the_test_agrees(self, worse: int, better: int) -> None:
        judged = result(changed(worse=worse, better=better, same=100 - worse - better), margin=0)
        assert (judged.result == "fail") is (mcnemar(worse, better).mid_p <= 0.05)

    @pytest.mark.parametrize(("cases", "expected"), [(2, "undecided"), (4, "undecided"), (5, "fail")])
    def test_equal_differences_are_not_certain(self, cases: int, expected: str) -> None:
        assert result(changed(worse=cases)).result == expected

    def test_differences_of_many_sizes_are_tested_too(self) -> None:
        assert result(paired_once([0.9, 0.9, 0.9, 0.9], [0.1, 0.11, 0.12, 0.1])).result == "undecided"
        assert result(paired_once([0.9] * 8, [0.1, 0.11, 0.12, 0.1, 0.09, 0.1, 0.12, 0.11])).result == "fail"


class TestUndecided:
    def test_it_estimates_the_number_of_cases_to_decide(self) -> None:
        (reason,) = result(changed(worse=2)).reasons
        assert reason.endswith(
            "not worse by more than 0.02 is open; a loss above 1 is ruled out; 14,717 cases in all (14,715 more) settle it"
            " with a power of 80 % if both are equally good"
        )

    def test_without_a_difference_or_margin_no_number_of_cases_decides(self) -> None:
        (reason,) = result(changed(worse=1, better=1), margin=0).reasons
        assert reason.endswith("no number of cases shows that it is not worse without a margin")

    def test_one_case_is_undecided(self) -> None:
        judged = result(changed(better=1))
        assert (judged.result, judged.observed) == ("undecided", 1.0)

    def test_without_a_baseline_or_common_cases(self) -> None:
        assert result(None).reasons == ("exact: run 'latest~1' has no scores of the same grader to compare with",)
        assert result(PairedScores([], [], [])).reasons == (
            "exact: no case has a score both here and in run 'latest~1'",
        )
        assert result(None).result == result(PairedScores([], [], [])).result == "undecided"

    def test_low_coverage_of_the_candidate(self) -> None:
        thin = {"exact": ScoreColumn([1.0] * 18, 20)}
        assert result(changed(same=18), thin).result == "undecided"
        assert result(changed(worse=18), thin).result == "fail"

    def test_a_candidate_without_scores(self) -> None:
        assert result(changed(same=5), {"exact": ScoreColumn([], 5)}).reasons == ("exact: none of 5 has a score",)


class TestRepeatsAndFailedCalls:
    def test_repeats_count_as_one_case(self) -> None:
        once = changed(worse=4, better=1, same=5)
        first, second = ([tries * 2 for tries in side] for side in (once.baseline, once.candidate))
        assert result(PairedScores(once.cases, first, second)) == result(once)

    def test_unequal_repeats_count_with_their_means(self) -> None:
        """Three repeats against two: 2/3 against 1/2, in 60 cases."""
        first: RepeatScores = (1.0, 1.0, 0.0)
        paired = PairedScores([str(place) for place in range(60)], [first] * 60, [(1.0, 0.0)] * 60)
        assert (result(paired).result, result(paired).observed) == ("fail", pytest.approx(-1 / 6))

    def test_a_failed_call_leaves_its_pair_out_or_counts_as_0(self) -> None:
        baseline: Sequence[float | None] = [1.0] * 12 + [None]
        candidate: Sequence[float | None] = [1.0] * 6 + [None] * 6 + [1.0]
        paired = paired_once(baseline, candidate)
        columns = {"exact": ScoreColumn([1.0] * 7, 13, 6)}
        judged = result(paired, columns, coverage_floor=0.4, margin=0.5)
        assert (judged.result, judged.observed) == ("pass", 0.0)
        judged = result(paired, columns, agent_errors="fail", margin=0.1)
        assert (judged.result, judged.observed) == ("undecided", pytest.approx(-5 / 13))


class TestEveryGrader:
    """Without a metric_key."""

    def judged(self, right: PairedScores, short: PairedScores | None, primary: Sequence[str] = ()) -> GateResult:
        columns = {"right": ScoreColumn([1.0] * 300, 300), "short": ScoreColumn([1.0] * 300, 300)}
        pairs = {("latest~1", key): pair for key, pair in (("right", right), ("short", short)) if pair is not None}
        (found,) = decide(gate(), columns, paired=pairs, primary=primary).gates
        return found

    def test_one_significant_loss_fails_the_gate(self) -> None:
        found = self.judged(changed(same=300), changed(worse=300))
        assert (found.result, found.metric_key, found.observed) == ("fail", None, 0.0)
        assert [reason.partition(":")[0] for reason in found.reasons] == ["right", "short"]
        assert found.reasons[1].endswith("not worse by more than 0.02 is false")

    def test_the_primary_grader_decides_and_the_other_is_reported(self) -> None:
        unsure = changed(worse=3, better=2, same=295)
        assert self.judged(changed(same=300), unsure).result == "pass"
        assert self.judged(changed(same=300), unsure, ["short"]).result == "undecided"
        assert (
            self.judged(changed(same=300), unsure)
            .reasons[1]
            .endswith("2 up, 3 down of 300; a loss above 0.0248 is ruled out")
        )

    def test_a_grader_missing_in_the_baseline_is_named(self) -> None:
        found = self.judged(changed(same=300), None)
        assert found.result == "pass"
        assert found.reasons[1] == "short: run 'latest~1' has no scores of the same grader to compare with"
        assert self.judged(changed(same=300), None, ["short"]).result == "undecided"


def test_several_baselines_are_separate() -> None:
    gates = [{"kind": "regression", "baseline": name, "margin": 0} for name in ("main", "best")]
    reading = read_gate({"kind": "logical", "operator": "and", "conditions": gates}, ["exact"])
    pairs = {("main", "exact"): changed(better=9), ("best", "exact"): changed(worse=9)}
    expected = decide(reading.gate, COLUMNS, paired=pairs)
    assert [each.result for each in expected.gates[0].conditions] == ["pass", "fail"]


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({"baseline": None}, ["baseline: expected the name of a run, got None"]),
        ({"baseline": ""}, ["baseline: expected the name of a run, got ''"]),
        ({"baseline": 7}, ["baseline: expected the name of a run, got 7"]),
        ({"margin": -0.1}, ["margin: expected a number from 0 to 1, got -0.1"]),
        ({"margin": 2}, ["margin: expected a number from 0 to 1, got 2"]),
        ({"margin": "5%"}, ["margin: expected a number from 0 to 1, got '5%'"]),
        ({"margin": float("inf")}, ["margin: inf is not a finite number; leave it out or use null"]),
        ({"metric_key": "exat"}, ["metric_key: no grader 'exat'; did you mean 'exact'?"]),
        ({"base": "x"}, ["base: unknown option; did you mean 'baseline'?"]),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], problems: list[str]) -> None:
    reading = read_gate({"kind": "regression", "baseline": "latest~1", **fields}, ["exact"])
    assert reading.gate is None
    assert [str(problem) for problem in reading.problems] == problems


def test_a_baseline_is_required() -> None:
    assert [str(problem) for problem in read_gate({"kind": "regression"}, []).problems] == ["baseline: is required"]


def test_changes_that_are_noise_to_the_grader_count_as_same() -> None:
    either_way = paired_once([0.5] * 400, [0.8, 0.2] * 200)
    assert result(either_way).result == "undecided"
    noisy = result(either_way._replace(noise=0.31))
    assert (noisy.result, noisy.observed) == ("pass", 0.0)
    assert noisy.reasons[0].endswith("is true; changes below 0.310 count as same (400 of 400 cases)")


def test_noise_hides_no_loss_beyond_the_margin() -> None:
    noisy = result(paired_once([0.9] * 400, [0.87] * 400)._replace(noise=0.05))
    assert (noisy.result, noisy.observed) == ("undecided", 0.0)
    assert "add up to a loss beyond the margin of 0.02: with them the difference is -0.03" in noisy.reasons[0]

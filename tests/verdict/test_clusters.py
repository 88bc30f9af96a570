"""Gates and comparisons of cases that belong to clusters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gradeline.stats import score_interval
from gradeline.verdict import (
    ConsistencyGate,
    Gate,
    PairedScores,
    RegressionGate,
    ScoreColumn,
    SimpleGate,
    Verdict,
    decide,
)
from gradeline.verdict.paired_decision import ComparisonRule, GraderComparison, compare_cases

DEMO = [None] * 16 + [name for name in ("fr", "es", "no", "pe", "jp", "ke", "ca", "au") for _ in range(3)]
"""40 cases in 24 clusters, of which the last three improve."""
BEFORE = [1.0] * 31 + [0.0] * 9


def compared(
    before: Sequence[float], after: Sequence[float], clusters: Sequence[str | None] = (), **rule: float
) -> GraderComparison:
    cases = [f"c{place}" for place in range(len(before))]
    pairs = PairedScores(cases, [(one,) for one in before], [(one,) for one in after], clusters=clusters)
    return compare_cases(pairs, ComparisonRule(**rule))  # type: ignore[arg-type]


def judged(gate: Gate, column: ScoreColumn) -> Verdict:
    return decide(gate, {"right": column})


class TestComparison:
    def test_nine_paraphrases_of_three_questions_decide_nothing(self) -> None:
        found = compared(BEFORE, [1.0] * 40, DEMO)
        assert (found.decision, found.p_value, found.clusters) == ("undecided", 0.25, 24)
        assert found.compared == "40 cases in 24 clusters"
        assert (found.improved, found.worse, found.same) == (9, 0, 31)
        assert compared(BEFORE, [1.0] * 40).decision == "better"

    def test_clusters_of_one_equal_no_clusters(self) -> None:
        alone = [f"document {place}" for place in range(40)]
        found, plain = compared(BEFORE, [1.0] * 40, alone), compared(BEFORE, [1.0] * 40)
        assert found.clusters == 40
        assert (found.p_value, found.difference_ci, found.test) == (plain.p_value, plain.difference_ci, plain.test)

    def test_a_case_without_a_cluster_does_not_join_one_with_its_name(self) -> None:
        found = compared([0.0] * 8, [1.0] * 8, ["c7", "c7", *[None] * 6])
        assert found.clusters == 7

    @pytest.mark.parametrize(
        ("clusters", "message"),
        [
            (1, "20 cases in 1 cluster, and fewer than 6 clusters decide nothing; add cases of other clusters"),
            (5, "20 cases in 5 clusters, and fewer than 6 clusters decide nothing; add cases of other clusters"),
        ],
    )
    def test_few_clusters_decide_nothing_whatever_their_scores(self, clusters: int, message: str) -> None:
        names = [f"d{place % clusters}" for place in range(20)]
        for before, after in (([0.0] * 20, [1.0] * 20), ([1.0] * 20, [0.0] * 20), ([1.0] * 20, [1.0] * 20)):
            found = compared(before, after, names, margin=0.5)
            assert (found.decision, found.reasons) == ("undecided", (message,))

    def test_six_clusters_may_decide(self) -> None:
        found = compared([0.0] * 18, [1.0] * 18, [f"d{place % 6}" for place in range(18)])
        assert (found.decision, found.p_value) == ("better", pytest.approx(2 / 2**6))

    def test_the_estimate_of_required_cases_counts_clusters(self) -> None:
        before, after = [1.0] * 120, [1.0] * 114 + [0.0] * 6
        names = [f"d{place // 3}" for place in range(120)]
        found, plain = compared(before, after, names), compared(before, after)
        assert found.cases_to_decide is not None
        assert plain.cases_to_decide is not None
        assert 2 * plain.cases_to_decide < found.cases_to_decide < 4 * plain.cases_to_decide
        assert f"{found.cases_to_decide:,} cases in {found.cases_to_decide // 3:,} clusters in all" in found.reasons[-1]

    def test_missing_scores_are_left_out_of_their_clusters(self) -> None:
        pairs = PairedScores(
            [f"c{place}" for place in range(8)],
            [(1.0,)] * 8,
            [(1.0,)] * 6 + [(), ()],
            clusters=["a", "a", "b", "b", "c", "c", "d", "e"],
        )
        assert compare_cases(pairs).clusters == 3


class TestGates:
    SCORES = (1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0)
    COLUMN = ScoreColumn(SCORES, 12, cases=range(12), clusters=[place // 3 for place in range(12)])

    def test_the_interval_of_a_bound_is_over_clusters(self) -> None:
        (gate,) = judged(SimpleGate(op="gte", value=0.5), self.COLUMN).gates
        expected = score_interval(self.SCORES, [place // 3 for place in range(12)])
        assert expected is not None
        assert gate.observed_ci == (expected.low, expected.high)
        assert gate.reasons == ("right: avg_score 0.6667 ≥ 0.5 is true; 12 cases in 4 clusters",)

    def test_one_cluster_has_no_interval(self) -> None:
        column = self.COLUMN._replace(clusters=[0] * 12)
        (gate,) = judged(SimpleGate(op="gte", value=0.5), column).gates
        assert (gate.result, gate.observed_ci) == ("pass", None)
        assert gate.reasons[0].endswith("; 12 cases in 1 cluster, which has no interval")

    def test_few_clusters_are_not_confident(self) -> None:
        column = ScoreColumn([1.0] * 500, 500, cases=range(500), clusters=[place // 100 for place in range(500)])
        (gate,) = judged(SimpleGate(op="gte", value=0.1, confidence=0.95), column).gates
        assert gate.result == "undecided"
        assert "500 cases in 5 clusters, and fewer than 6 clusters decide nothing" in gate.reasons[0]

    def test_consistency_is_the_mean_over_cases_with_an_interval_over_clusters(self) -> None:
        scores = [score for score in self.SCORES for _ in range(2)]
        cases = [place // 2 for place in range(24)]
        column = ScoreColumn(scores, 24, cases=cases, clusters=[place // 3 for place in range(12)])
        (gate,) = judged(ConsistencyGate(pass_hat=2, op="gte", value=0.5), column).gates
        expected = score_interval(self.SCORES, [place // 3 for place in range(12)])
        assert expected is not None
        assert gate.observed_ci == (expected.low, expected.high)
        assert gate.reasons == ("right: pass^2 over 12 cases in 4 clusters 0.6667 ≥ 0.5 is true",)

    def test_failed_calls_belong_to_the_clusters_of_their_cases(self) -> None:
        column = ScoreColumn([1.0, 1.0, 1.0, 1.0], 6, 2, range(4), [4, 5], clusters=[0, 0, 1, 1, 2, 2])
        (gate,) = judged(SimpleGate(op="gte", value=0.5, agent_errors="fail"), column).gates
        expected = score_interval([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [0, 0, 1, 1, 2, 2])
        assert expected is not None
        assert gate.observed_ci == (expected.low, expected.high)

    def test_a_regression_gate_decides_as_the_comparison_does(self) -> None:
        cases = [f"c{place}" for place in range(40)]
        pairs = PairedScores(cases, [(one,) for one in BEFORE], [(1.0,)] * 40, clusters=DEMO)
        found = decide(
            RegressionGate(baseline="old"), {"right": ScoreColumn([1.0] * 40, 40)}, paired={("old", "right"): pairs}
        )
        assert found.result == "undecided"
        assert "over 40 cases in 24 clusters, 95 %" in found.reasons[0]

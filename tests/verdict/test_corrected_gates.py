"""Gates that decide on values corrected by labels."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline.verdict import ScoreColumn, Verdict, decide, order_finding, read_gate
from gradeline.verdict.corrected import JudgedLabel, LabelledScores
from gradeline.verdict.evidence import JudgeDoubt

RATE = {"aggregation": "accuracy", "op": "gte", "value": 0.6, "corrected": True}
COLUMNS = {"quality": ScoreColumn([1.0] * 160 + [0.0] * 40, 200, passes=[1] * 160 + [0] * 40)}


def labels(count: int = 100, passing: int = 50, *, judge: bool = True) -> LabelledScores:
    """People pass half of what the judge passes most of."""
    labelled = [
        JudgedLabel(n, float(n % 5 > 0), n % 5 > 0, n * passing // count < (n + 1) * passing // count, None, 0.5)
        for n in range(count)
    ]
    rest = 200 - count
    scores = [float(n % 5 > 0) for n in range(rest)]
    return LabelledScores(
        labelled, scores, [int(score) for score in scores], range(count, 200), total=200, has_judge=judge
    )


def verdict(gate: dict[str, Any], found: LabelledScores | None = None, **settings: Any) -> Verdict:
    reading = read_gate(gate, list(COLUMNS))
    assert reading.problems == []
    labelled = {"quality": labels() if found is None else found}
    return decide(reading.gate, COLUMNS, labelled=labelled, **settings)


@pytest.mark.parametrize(("value", "result"), [(0.3, "pass"), (0.6, "fail")])
def test_a_rate_decides_after_its_correction(value: float, result: str) -> None:
    assert verdict({**RATE, "corrected": False, "value": value}).result == "pass"  # 0.8 by the judge
    found = verdict({**RATE, "value": value})
    (gate,) = found.gates
    assert found.result == result
    assert gate.observed == pytest.approx(0.5, abs=0.03)
    assert gate.observed_ci is not None
    assert found.reasons[0].startswith(f"quality: corrected accuracy {gate.observed:.4g} ≥ {value:g} is ")
    assert found.reasons[1].startswith("quality: 0.800 judge → 0.")


def test_with_a_confidence_its_whole_interval_must_agree() -> None:
    assert verdict({**RATE, "value": 0.45}).result == "pass"
    found = verdict({**RATE, "value": 0.45, "confidence": 0.95})
    assert found.result == "undecided"
    assert found.reasons[0].endswith("uncertain at a confidence of 0.95")
    assert verdict({**RATE, "value": 0.2, "confidence": 0.95}).result == "pass"


def test_it_is_undecided_where_labels_are_missing() -> None:
    found = verdict(RATE, labels(20, 10))
    assert (found.result, found.gates[0].observed) == ("undecided", None)
    assert "20 labels, at least 30 are needed: label 10 more" in found.reasons[0]
    assert verdict(RATE, LabelledScores(has_judge=True)).result == "undecided"


def test_a_mean_of_0_and_1_is_a_rate() -> None:
    found = verdict({"op": "gte", "value": 0.6, "corrected": True})
    assert found.result == "fail"
    assert found.reasons[0].startswith("quality: corrected avg_score 0.")


def test_the_gates_own_rule_for_passing_applies_to_the_judge() -> None:
    assert verdict({**RATE, "pass_threshold": 0.5}).gates[0].observed == verdict(RATE).gates[0].observed


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        (
            {"aggregation": "median", "op": "gte", "value": 0.6, "corrected": True},
            "corrected: labels correct avg_score and accuracy only, not median",
        ),
        (
            {"kind": "consistency", "pass_hat": 2, "op": "gte", "value": 0.6, "corrected": True},
            "corrected: labels correct avg_score and accuracy only, not the share of repeats that pass",
        ),
        (
            {
                "kind": "weighted_average", "aggregation": "p95", "weights": {"quality": 1}, "op": "gte", "value": 0.6,
                "corrected": True,
            },
            "corrected: labels correct avg_score and accuracy only, not p95",
        ),
        ({**RATE, "corrected": "yes"}, "corrected: expected true or false, got 'yes'"),
    ],
)  # fmt: skip
def test_a_value_that_labels_cannot_correct_is_a_problem(gate: dict[str, Any], problem: str) -> None:
    reading = read_gate(gate, list(COLUMNS))
    assert list(map(str, reading.problems)) == [problem]


class TestInheritance:
    PLAIN = {"aggregation": "accuracy", "op": "gte", "value": 0.6}

    def logical(self, *conditions: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "logical", "operator": "and", "conditions": list(conditions), "corrected": True}

    def test_conditions_inherit_it(self) -> None:
        assert verdict(self.logical(self.PLAIN)).result == "fail"
        assert verdict(self.logical({**self.PLAIN, "corrected": False})).result == "pass"

    def test_the_suite_sets_it_for_all_gates(self) -> None:
        assert verdict(self.PLAIN, corrected=True).result == "fail"
        assert verdict({**self.PLAIN, "corrected": False}, corrected=True).result == "pass"

    def test_a_grader_without_a_judge_needs_no_labels_unless_its_own_gate_says_so(self) -> None:
        plain = LabelledScores(has_judge=False)
        assert verdict(self.PLAIN, plain, corrected=True).result == "pass"
        assert verdict(RATE, plain).result == "undecided"

    @pytest.mark.parametrize(
        "gate",
        [
            {"aggregation": "min", "op": "gte", "value": 0.0},
            {"kind": "consistency", "pass_hat": 1, "op": "gte", "value": 0.1},
        ],
    )
    def test_what_labels_cannot_correct_is_undecided(self, gate: dict[str, Any]) -> None:
        found = verdict(gate, corrected=True)
        assert found.result == "undecided"
        assert "labels correct avg_score and accuracy only" in found.reasons[0]


class TestWeightedAverages:
    GATE = {"kind": "weighted_average", "aggregation": "accuracy", "weights": {"quality": 1}, "op": "gte", "value": 0.6}

    def test_the_corrected_parts_are_averaged(self) -> None:
        assert verdict(self.GATE).result == "pass"
        found = verdict({**self.GATE, "corrected": True})
        assert found.result == "fail"
        assert found.gates[0].observed == verdict(RATE).gates[0].observed
        assert any(reason.startswith("quality: 0.800 judge → ") for reason in found.reasons)

    def test_one_refused_part_leaves_it_undecided(self) -> None:
        found = verdict({**self.GATE, "corrected": True}, labels(20, 10))
        assert (found.result, found.gates[0].observed) == ("undecided", None)


class TestJudgesThatAreNotTrusted:
    """Labels of the run itself measure what such a judge gets wrong."""

    ORDERS = {"quality": order_finding(20, 0, 180)}

    def test_a_position_biased_judge_passes_only_by_labels(self) -> None:
        gate = {"aggregation": "accuracy", "op": "gte", "value": 0.3}
        assert verdict(gate, orders=self.ORDERS).result == "undecided"
        found = verdict({**gate, "corrected": True}, orders=self.ORDERS)
        assert found.result == "pass"
        assert not any("position biased" in reason for reason in found.reasons)
        assert verdict({**gate, "corrected": True}, labels(20, 10), orders=self.ORDERS).result == "undecided"

    @pytest.mark.parametrize("state", ["uncalibrated", "failed", "expired", "drifted"])
    def test_so_does_one_that_is_not_calibrated(self, state: Any) -> None:
        gate = {"aggregation": "accuracy", "op": "gte", "value": 0.3, "require_calibrated": True}
        doubts = {"quality": JudgeDoubt(state, "why")}
        assert verdict(gate, uncalibrated=doubts).result == "undecided"
        found = verdict({**gate, "corrected": True}, uncalibrated=doubts)
        assert found.result == "pass"
        assert not any("not calibrated" in reason for reason in found.reasons)

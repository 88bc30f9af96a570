from __future__ import annotations

from typing import Any

import pytest

from gradeline.verdict import GateResult, ScoreColumn, WeightedGate, decide, read_gate

COLUMNS = {"quality": ScoreColumn([0.5, 0.7], 2), "ascii": ScoreColumn([1.0, 0.0], 2)}


def gate(**fields: Any) -> WeightedGate:
    given = {"kind": "weighted_average", "aggregation": "avg_score", "op": "gte", "value": 0.5, **fields}
    reading = read_gate({"weights": {"quality": 0.7, "ascii": 0.3}, **given}, [])
    assert reading.problems == []
    assert isinstance(reading.gate, WeightedGate)
    return reading.gate


def result(columns: dict[str, ScoreColumn] = COLUMNS, **fields: Any) -> GateResult:
    (judged,) = decide(gate(**fields), columns).gates
    return judged


def test_the_weighted_mean_is_compared_and_its_parts_are_reported() -> None:
    assert result(value=0.57) == GateResult(
        kind="weighted_average",
        aggregation="avg_score",
        op="gte",
        value=0.57,
        observed=pytest.approx(0.57),
        result="pass",
        reasons=("weighted avg_score 0.57 ≥ 0.57 is true: 0.7 × quality 0.6 + 0.3 × ascii 0.5",),
    )
    assert result(value=0.58).result == "fail"


@pytest.mark.parametrize("scale", [1, 0.01, 7, 100])
def test_weights_are_shares_of_their_sum(scale: float) -> None:
    weights = {"quality": 0.7 * scale, "ascii": 0.3 * scale}
    assert gate(weights=weights).normalized() == pytest.approx({"quality": 0.7, "ascii": 0.3})
    assert result(weights=weights).observed == pytest.approx(0.57)


def test_accuracy_is_weighted_as_a_fraction_and_its_bound_can_be_a_percentage() -> None:
    columns = {"quality": ScoreColumn([1.0, 0.7], 2), "ascii": ScoreColumn([1.0, 1.0], 2)}
    assert result(columns, aggregation="accuracy", value=65).result == "pass"
    assert result(columns, aggregation="accuracy", value=0.65).result == "pass"
    assert result(columns, aggregation="accuracy", value=66).result == "fail"


@pytest.mark.parametrize(("aggregation", "found"), [("min", 0.35), ("max", 0.79), ("median", 0.57), ("p95", 0.768)])
def test_every_aggregation_can_be_weighted(aggregation: str, found: float) -> None:
    assert result(aggregation=aggregation).observed == pytest.approx(found)


def test_a_grader_of_weight_0_is_ignored() -> None:
    weights = {"quality": 1, "ascii": 0}
    assert gate(weights=weights).grader_keys(["ascii", "quality"]) == ("quality",)
    assert result({"quality": ScoreColumn([0.5], 1), "ascii": ScoreColumn([], 1)}, weights=weights).result == "pass"


def test_one_grader_without_scores_leaves_it_undecided() -> None:
    judged = result({"quality": ScoreColumn([1.0], 1), "ascii": ScoreColumn([], 1)})
    assert (judged.result, judged.observed) == ("undecided", None)
    assert judged.reasons == ("ascii: none of 1 has a score",)


def test_the_least_coverage_of_its_graders_counts() -> None:
    columns = {"quality": ScoreColumn([1.0] * 20, 20), "ascii": ScoreColumn([1.0] * 18, 20)}
    assert result(columns).result == "undecided"
    assert result(columns, coverage_floor=0.9).result == "pass"
    assert result(columns, value=2).result == "fail"


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({"weights": {}}, ["weights: expected the weight of each grader, such as {exact: 2}, got {}"]),
        ({"weights": [1]}, ["weights: expected the weight of each grader, such as {exact: 2}, got [1]"]),
        ({"weights": {"quality": -1}}, ["weights.quality: expected a number from 0 to 1e+09, got -1"]),
        ({"weights": {"quality": "2"}}, ["weights.quality: expected a number from 0 to 1e+09, got '2'"]),
        ({"weights": {"quality": True}}, ["weights.quality: expected a number from 0 to 1e+09, got True"]),
        ({"weights": {"quality": float("nan")}}, ["weights.quality: expected a number from 0 to 1e+09, got nan"]),
        (
            {"weights": {"quality": 0, "ascii": 0.0}},
            ["weights: are all 0: set a weight above 0 for at least one grader"],
        ),
        ({"weights": {"qualty": 1}}, ["weights.qualty: no grader 'qualty'; did you mean 'quality'?"]),
        ({"pass_threshold": 1}, ["pass_threshold: unknown option; use one of "]),
        ({"aggregation": None}, ["aggregation: expected one of avg_score, accuracy, min, max"]),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], problems: list[str]) -> None:
    given = {"kind": "weighted_average", "aggregation": "avg_score", "weights": {"quality": 1}, "op": "gt", "value": 0}
    reading = read_gate({**given, **fields}, ["quality", "ascii"])
    assert reading.gate is None
    assert [str(problem)[: len(text)] for problem, text in zip(reading.problems, problems, strict=True)] == problems


def test_everything_required_is_reported_at_once() -> None:
    assert [str(problem) for problem in read_gate({"kind": "weighted_average"}, ["a"]).problems] == [
        "aggregation: is required",
        "weights: is required",
        "op: is required",
        "value: is required",
    ]

from __future__ import annotations

from typing import Any

import pytest

from gradeline.model import read_struct
from gradeline.verdict.gates import Column, Gate, Verdict, decide

SCORES = [1.0, 1.0, 0.5, 0.0]


def gate(**fields: Any) -> Gate:
    reading = read_struct(Gate, {"op": "gte", "value": 0.5, **fields})
    assert reading.problems == []
    assert reading.options is not None
    return reading.options


def verdict(scores: list[float], total: int | None = None, floor: float = 0.95, **fields: Any) -> Verdict:
    column = Column(scores, len(scores) if total is None else total)
    return decide(gate(**fields), {"exact": column}, floor)


@pytest.mark.parametrize(
    ("fields", "value", "result"),
    [
        ({}, 0.625, "pass"),
        ({}, 0.626, "fail"),
        ({"op": "gt"}, 0.625, "fail"),
        ({"op": "lt"}, 0.7, "pass"),
        ({"op": "lte"}, 0.625, "pass"),
        ({"op": "eq"}, 0.625, "pass"),
        ({"aggregation": "accuracy"}, 0.5, "pass"),
        ({"aggregation": "accuracy"}, 51, "fail"),
        ({"aggregation": "accuracy"}, 50, "pass"),
        ({"aggregation": "accuracy", "pass_threshold": 0.5}, 0.75, "pass"),
        ({"metric": "accuracy"}, 0.5, "pass"),
        ({"metric": "accuracy", "pass_op": "gt", "pass_value": 0.4}, 0.75, "pass"),
        ({"aggregation": "min"}, 0.1, "fail"),
        ({"aggregation": "max"}, 1.0, "pass"),
        ({"aggregation": "median"}, 0.75, "pass"),
        ({"aggregation": "p50"}, 0.76, "fail"),
        ({"aggregation": "p95"}, 1.0, "pass"),
    ],
)
def test_a_gate_compares_what_it_says(fields: dict[str, Any], value: float, result: str) -> None:
    assert verdict(SCORES, value=value, **fields).result == result


def test_too_few_scores_make_a_pass_undecided_and_leave_a_fail_a_fail() -> None:
    assert verdict([1.0] * 18, total=20).result == "undecided"
    assert verdict([1.0] * 19, total=20).result == "pass"
    assert verdict([0.0] * 18, total=20).result == "fail"
    assert verdict([1.0] * 18, total=20, floor=0.9).result == "pass"


def test_no_score_at_all_is_undecided() -> None:
    assert verdict([], total=3) == Verdict("undecided", ("exact: none of 3 has a score",))


def test_the_reason_says_what_was_compared() -> None:
    assert verdict(SCORES, value=0.8).reasons == ("exact: avg_score 0.625 ≥ 0.8 is false",)


def test_without_a_gate_there_is_no_verdict_but_thin_coverage_is_told() -> None:
    assert decide(None, {"exact": Column([1.0], 1)}, 0.95) == Verdict("none", ())
    assert decide(None, {"exact": Column([1.0], 2)}, 0.95).reasons == (
        "exact: only 1 of 2 have a score, below the floor of 0.95",
    )


def test_the_first_grader_is_meant_when_none_is_named() -> None:
    columns = {"first": Column([1.0], 1), "second": Column([0.0], 1)}
    assert decide(gate(), columns, 0.95).result == "pass"
    assert decide(gate(metric_key="second"), columns, 0.95).result == "fail"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"aggregation": "accuracy", "metric": "accuracy"}, "metric: is the older name of aggregation"),
        ({"pass_threshold": 0.5, "pass_value": 0.5}, "pass_threshold: stands beside pass_op or pass_value"),
        ({"op": "above"}, "op: expected one of gt, gte, lt, lte, eq"),
        ({"kind": "weighted"}, "kind: expected one of simple"),
    ],
)
def test_a_wrong_gate_is_explained(fields: dict[str, Any], message: str) -> None:
    problems = read_struct(Gate, {"op": "gte", "value": 0.5, **fields}, "gate").problems
    assert any(message in str(problem) for problem in problems)

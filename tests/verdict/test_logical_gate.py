from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from gradeline.verdict import LogicalGate, ScoreColumn, Verdict, decide, read_gate

# a column of each name makes a condition on it say so
COLUMNS = {"pass": ScoreColumn([1.0], 1), "fail": ScoreColumn([0.0], 1), "undecided": ScoreColumn([], 1)}


def condition(key: str) -> dict[str, Any]:
    return {"metric_key": key, "aggregation": "avg_score", "op": "gte", "value": 0.5}


def logical(operator: str, *conditions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"kind": "logical", "operator": operator, "conditions": list(conditions), **fields}


def verdict(given: dict[str, Any], columns: dict[str, ScoreColumn] = COLUMNS, **settings: Any) -> Verdict:
    reading = read_gate(given, list(columns))
    assert reading.problems == []
    return decide(reading.gate, columns, **settings)


@pytest.mark.parametrize(
    ("operator", "conditions", "result"),
    [
        ("and", ["pass", "pass"], "pass"),
        ("and", ["pass", "fail"], "fail"),
        ("and", ["pass", "undecided"], "undecided"),
        ("and", ["fail", "fail"], "fail"),
        ("and", ["fail", "undecided"], "fail"),
        ("and", ["undecided", "undecided"], "undecided"),
        ("or", ["pass", "pass"], "pass"),
        ("or", ["pass", "fail"], "pass"),
        ("or", ["pass", "undecided"], "pass"),
        ("or", ["fail", "fail"], "fail"),
        ("or", ["fail", "undecided"], "undecided"),
        ("or", ["undecided", "undecided"], "undecided"),
    ],
)
def test_the_truth_table_of_three_values(operator: str, conditions: list[str], result: str) -> None:
    for order in (conditions, conditions[::-1]):
        assert verdict(logical(operator, *map(condition, order))).result == result


@pytest.mark.parametrize("operator", ["and", "or"])
@pytest.mark.parametrize("result", ["pass", "fail", "undecided"])
def test_a_single_condition_is_that_condition(operator: str, result: str) -> None:
    assert verdict(logical(operator, condition(result))).result == result


def test_gates_nest() -> None:
    nested = logical("or", condition("fail"), logical("and", condition("pass"), condition("pass")))
    assert verdict(nested).result == "pass"
    nested = logical("and", condition("pass"), logical("or", condition("fail"), condition("undecided")))
    assert verdict(nested).result == "undecided"


def test_the_example_suite_of_letta_is_decided_as_documented() -> None:
    given = logical(
        "and",
        {"metric_key": "quality", "aggregation": "avg_score", "op": "gte", "value": 0.6},
        {"metric_key": "ascii", "aggregation": "accuracy", "pass_threshold": 1, "op": "gte", "value": 60},
    )
    good = {"quality": ScoreColumn([0.7, 0.6, 0.5], 3), "ascii": ScoreColumn([1.0, 1.0, 0.0], 3)}
    assert verdict(given, good).result == "pass"
    assert verdict(given, good | {"ascii": ScoreColumn([1.0, 0.0, 0.0], 3)}).result == "fail"
    assert verdict(given, good | {"quality": ScoreColumn([0.5, 0.5, 0.5], 3)}).result == "fail"


def test_every_kind_of_gate_can_be_a_condition() -> None:
    columns = {"a": ScoreColumn([1.0, 1.0, 1.0, 0.0], 4, 0, [0, 0, 1, 1])}
    given = logical(
        "or",
        {"kind": "simple", "op": "gte", "value": 0.9},
        {"kind": "weighted_average", "aggregation": "avg_score", "weights": {"a": 1}, "op": "gte", "value": 0.9},
        {"kind": "regression", "baseline": "latest~1"},
        {"kind": "consistency", "k": 2, "n": 2, "op": "gte", "value": 0.5},
    )
    decided = verdict(given, columns)
    assert decided.result == "pass"
    assert [(each.kind, each.result) for each in decided.gates[0].conditions] == [
        ("simple", "fail"),
        ("weighted_average", "fail"),
        ("regression", "undecided"),
        ("consistency", "pass"),
    ]


def test_reasons_go_from_the_gate_to_its_conditions() -> None:
    decided = verdict(logical("and", condition("pass"), logical("or", condition("fail"), condition("undecided"))))
    assert decided.reasons == (
        "all of 2 conditions must pass: 1 passed, 1 undecided",
        "pass: avg_score 1 ≥ 0.5 is true",
        "one of 2 conditions must pass: 1 failed, 1 undecided",
        "fail: avg_score 0 ≥ 0.5 is false",
        "undecided: none of 1 has a score",
    )
    (whole,) = decided.gates
    assert (whole.kind, whole.op, whole.reasons) == ("logical", "and", decided.reasons[:1])
    assert [each.op for each in whole.conditions] == ["gte", "or"]


class TestSettings:
    THIN = {"a": ScoreColumn([1.0] * 8, 10, 2), "b": ScoreColumn([1.0] * 10, 10)}

    def results(self, given: dict[str, Any], **settings: Any) -> list[str]:
        return [each.result for each in verdict(given, self.THIN, **settings).gates[0].conditions]

    def test_conditions_inherit_settings(self) -> None:
        both = [condition("a"), condition("b")]
        assert self.results(logical("and", *both)) == ["undecided", "pass"]
        assert self.results(logical("and", *both, coverage_floor=0.8)) == ["pass", "pass"]
        assert self.results(logical("and", *both), coverage_floor=0.8) == ["pass", "pass"]
        assert self.results(logical("and", *both, coverage_floor=0.9), coverage_floor=0.8) == ["undecided", "pass"]
        assert self.results(logical("and", logical("or", *both), coverage_floor=0.8)) == ["pass"]

    def test_a_condition_overrides_settings_of_the_gate(self) -> None:
        own = condition("a") | {"coverage_floor": 0.5}
        assert self.results(logical("and", own, condition("a"), coverage_floor=0.9)) == ["pass", "undecided"]

    def test_failed_calls_count_if_the_gate_counts_them(self) -> None:
        strict = condition("a") | {"value": 0.9}
        assert self.results(logical("and", strict, agent_errors="fail")) == ["fail"]
        assert self.results(logical("and", strict, strict | {"agent_errors": "exclude"}, agent_errors="fail")) == [
            "fail",
            "undecided",
        ]

    def test_a_pass_that_does_not_depend_on_the_low_coverage_is_a_pass(self) -> None:
        assert verdict(logical("or", condition("a"), condition("b")), self.THIN).result == "pass"
        assert verdict(logical("and", condition("a"), condition("b")), self.THIN).result == "undecided"


def test_it_uses_each_grader_of_its_conditions_once() -> None:
    reading = read_gate(
        logical(
            "and",
            condition("b"),
            logical("or", {"op": "gt", "value": 0}, condition("b")),
            {"kind": "regression", "metric_key": "c", "baseline": "main"},
            {"kind": "regression", "baseline": "latest~1"},
            {"kind": "regression", "metric_key": "b", "baseline": "main"},
        ),
        ["a", "b", "c"],
    )
    assert isinstance(reading.gate, LogicalGate)
    assert reading.gate.grader_keys(["a", "b", "c"]) == ("b", "a", "c")
    assert reading.gate.baselines() == ("main", "latest~1")


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        (logical("and"), ["conditions: expected a list of at least one condition, got []"]),
        (logical("and") | {"conditions": {}}, ["conditions: expected a list of at least one condition, got {}"]),
        (logical("xor", condition("a")), ["operator: expected one of and, or (did you mean 'or'?), got 'xor'"]),
        (
            logical("and", condition("a"), condition("bb")),
            ["conditions[1].metric_key: no grader 'bb'; did you mean 'b'?"],
        ),
        (
            logical("and", logical("or", condition("a"), {"op": "gte", "valu": 1})),
            [
                "conditions[0].conditions[1].value: is required",
                "conditions[0].conditions[1].valu: unknown option; did you mean 'value'?",
            ],
        ),
        (
            logical("and", {"operator": "or", "conditions": [condition("a")]}),
            ["conditions[0].kind: is required: with these keys it is 'logical'"],
        ),
        (
            logical("and", "a >= 0.5"),
            ["conditions[0]: expected a gate such as {metric_key: …, op: gte, value: 0.8}, got 'a >= 0.5'"],
        ),
        (logical("and", condition("a"), operators="and"), ["operators: unknown option; did you mean 'operator'?"]),
        (logical("and", *[condition("a")] * 1001), ["conditions: has 1,001 conditions; at most 1,000 are read"]),
    ],
)
def test_bad_input_is_named(given: dict[str, Any], problems: list[str]) -> None:
    reading = read_gate(given, ["a", "b"])
    assert reading.gate is None
    assert [str(problem) for problem in reading.problems] == problems


def test_nesting_is_limited() -> None:
    def nested(levels: int) -> dict[str, Any]:
        given = condition("a")
        for _ in range(levels):
            given = logical("and", given)
        return given

    assert read_gate(nested(31), ["a"]).problems == []
    (problem,) = read_gate(nested(500), ["a"]).problems
    assert problem.path.count("conditions") == 32
    assert problem.message == "is nested more than 32 levels deep"


def test_a_better_condition_never_lowers_the_verdict() -> None:
    rank = {"fail": 0, "undecided": 1, "pass": 2}
    for operator, conditions in product(("and", "or"), product(rank, repeat=3)):
        lower = rank[verdict(logical(operator, *map(condition, conditions))).result]
        for index, raised in product(range(3), rank):
            if rank[raised] >= rank[conditions[index]]:
                changed = [*conditions[:index], raised, *conditions[index + 1 :]]
                assert rank[verdict(logical(operator, *map(condition, changed))).result] >= lower

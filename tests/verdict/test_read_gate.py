"""Gates as written in suites: what is accepted, what is refused with which message, and the schema."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from gradeline.model import config_schema
from gradeline.verdict import (
    KINDS,
    ConsistencyGate,
    Gate,
    LogicalGate,
    RegressionGate,
    SimpleGate,
    WeightedGate,
    baselines_of,
    gate_schema,
    graders_of,
    read_gate,
)

SIMPLE = {"op": "gte", "value": 0.8}
CONSISTENCY = {"kind": "consistency", "op": "gte", "value": 0.9}
WEIGHTED = {"kind": "weighted_average", "aggregation": "avg_score", "weights": {"a": 2, "b": 1}, **SIMPLE}
REGRESSION = {"kind": "regression", "metric_key": "b", "baseline": "latest~1", "margin": 0.02}
LOGICAL = {"kind": "logical", "operator": "and", "conditions": [SIMPLE, WEIGHTED, REGRESSION]}

RIGHT: list[dict[str, Any]] = [
    SIMPLE,
    {"aggregation": "accuracy", "op": "gte", "value": 100, "pass_op": "gte", "pass_threshold": 1.0},
    {"metric_key": None, "pass_op": None, "pass_threshold": None, **SIMPLE},
    {"kind": None, "aggregation": None, "coverage_floor": None, "agent_errors": None, **SIMPLE},
    {"kind": "simple", "metric_key": "a", "aggregation": "p95", "pass_threshold": 1, **SIMPLE},
    {"coverage_floor": 0.5, "agent_errors": "fail", "require_calibrated": True, **SIMPLE},
    {"x-note": "ours", **SIMPLE},
    WEIGHTED,
    REGRESSION,
    {**CONSISTENCY, "k": 2, "n": 3},
    {**CONSISTENCY, "pass_hat": 3, "pass_threshold": 0.5, "k": None, "n": None},
    {**REGRESSION, "metric_key": None, "margin": None},
    LOGICAL,
    {**LOGICAL, "coverage_floor": 1, "conditions": [LOGICAL, {**CONSISTENCY, "pass_hat": 1}]},
]


def problems(given: object, graders: list[str] | None = None) -> list[str]:
    reading = read_gate(given, ["a", "b"] if graders is None else graders)
    assert (reading.gate is None) is bool(reading.problems)
    return [str(problem) for problem in reading.problems]


@pytest.mark.parametrize(
    ("given", "gate"),
    [
        (SIMPLE, SimpleGate(op="gte", value=0.8)),
        (
            {"kind": "simple", "metric_key": "a", "aggregation": "accuracy", "pass_threshold": 1, **SIMPLE},
            SimpleGate(metric_key="a", aggregation="accuracy", pass_threshold=1.0, op="gte", value=0.8),
        ),
        (WEIGHTED, WeightedGate(aggregation="avg_score", weights={"a": 2.0, "b": 1.0}, op="gte", value=0.8)),
        (REGRESSION, RegressionGate(metric_key="b", baseline="latest~1", margin=0.02)),
        ({**CONSISTENCY, "k": 2, "n": 3}, ConsistencyGate(k=2, n=3, op="gte", value=0.9)),
        (
            {**LOGICAL, "agent_errors": "fail"},
            LogicalGate(
                operator="and",
                agent_errors="fail",
                conditions=(
                    SimpleGate(op="gte", value=0.8),
                    WeightedGate(aggregation="avg_score", weights={"a": 2.0, "b": 1.0}, op="gte", value=0.8),
                    RegressionGate(metric_key="b", baseline="latest~1", margin=0.02),
                ),
            ),
        ),
    ],
)
def test_every_kind_is_read(given: dict[str, Any], gate: Gate) -> None:
    assert read_gate(given, ["a", "b"]) == (gate, [], [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [": expected a gate such as {metric_key: …, op: gte, value: 0.8}, got None"]),
        ([SIMPLE], [": expected a gate such as"]),
        ("accuracy >= 0.9", [": expected a gate such as"]),
        ({}, ["op: is required", "value: is required"]),
        ({**SIMPLE, "kind": "simpel"}, ["kind: expected one of simple, weighted_average, logical"]),
        ({**SIMPLE, "kind": 3}, ["kind: expected one of simple, weighted_average, logical"]),
        ({**SIMPLE, "kind": ["simple"]}, ["kind: expected one of simple, weighted_average, logical"]),
        ({**SIMPLE, "op": ">="}, ["op: expected one of gt, gte, lt, lte, eq, got '>='"]),
        ({**SIMPLE, "op": "ge"}, ["op: expected one of gt, gte, lt, lte, eq (did you mean 'gte'?), got 'ge'"]),
        ({**SIMPLE, "op": None}, ["op: expected one of gt, gte, lt, lte, eq, got None"]),
        ({**SIMPLE, "value": "0.8"}, ["value: expected a number, got '0.8'"]),
        ({**SIMPLE, "value": True}, ["value: expected a number, got True"]),
        ({**SIMPLE, "value": float("nan")}, ["value: nan is not a finite number"]),
        ({**SIMPLE, "aggregation": "mean"}, ["aggregation: expected one of avg_score, accuracy, min, max, median"]),
        ({**SIMPLE, "pass_threshold": "1"}, ["pass_threshold: expected a number, got '1'"]),
        (
            {**SIMPLE, "pass_op": "ge"},
            ["pass_op: expected one of gt, gte, lt, lte, eq (did you mean 'gte'?), got 'ge'"],
        ),
        ({**SIMPLE, "pass_threshold": [1]}, ["pass_threshold: expected a number, got [1]"]),
        ({**SIMPLE, "metric_key": 1}, ["metric_key: expected the name of a grader, got 1"]),
        ({**SIMPLE, "metric_key": "c"}, ["metric_key: no grader 'c'; the graders are a, b"]),
        ({**SIMPLE, "coverage_floor": 95}, ["coverage_floor: expected a number from 0 to 1, got 95"]),
        ({**SIMPLE, "coverage_floor": -0.1}, ["coverage_floor: expected a number from 0 to 1, got -0.1"]),
        ({**SIMPLE, "agent_errors": "skip"}, ["agent_errors: expected one of exclude, fail, got 'skip'"]),
        ({**SIMPLE, "require_calibrated": "yes"}, ["require_calibrated: expected bool, got 'yes'"]),
        ({**SIMPLE, "agregation": "min"}, ["agregation: unknown option; did you mean 'aggregation'?"]),
        ({**SIMPLE, 1: 2}, ["1: unknown option; use one of"]),
        ({"weights": {"a": 1}, **SIMPLE}, ["kind: is required: with these keys it is 'weighted_average'"]),
        ({"baseline": "main"}, ["kind: is required: with these keys it is 'regression'"]),
        ({"pass_hat": 2, **SIMPLE}, ["kind: is required: with these keys it is 'consistency'"]),
    ],
)
def test_every_fault_is_reported(given: object, expected: list[str]) -> None:
    found = [f": {text}" if text.startswith("expected a gate") else text for text in problems(given)]
    assert [text[: len(start)] for text, start in zip(found, expected, strict=True)] == expected


def test_all_faults_are_reported_at_once() -> None:
    assert problems({"kind": "simple", "op": "gtee", "metric_key": "aa", "valu": 1, "coverage_floor": 3}) == [
        "coverage_floor: expected a number from 0 to 1, got 3",
        "op: expected one of gt, gte, lt, lte, eq (did you mean 'gte'?), got 'gtee'",
        "value: is required",
        "valu: unknown option; did you mean 'value'?",
        "metric_key: no grader 'aa'; did you mean 'a'?",
    ]


def test_null_is_the_same_as_nothing() -> None:
    nothing = dict.fromkeys(("kind", "aggregation", "pass_op", "coverage_floor", "metric_key"))
    assert read_gate({**nothing, **SIMPLE}, ["a"]) == read_gate(SIMPLE, ["a"])
    assert problems({**SIMPLE, "note": None}) == [
        "note: unknown option; use one of coverage_floor, agent_errors, require_calibrated, corrected, metric_key, "
        "aggregation, op, value, pass_threshold, pass_op, confidence"
    ]


def test_names_are_not_checked_where_the_graders_are_not_known() -> None:
    assert problems({**SIMPLE, "metric_key": "whatever"}, []) == []
    assert problems(WEIGHTED, []) == []


@pytest.mark.parametrize(
    ("given", "warnings"),
    [
        ({"op": "gte", "value": 80}, ["value: avg_score lies in 0 to 1: 80 decides it before any case is run"]),
        ({"op": "gte", "value": -1}, ["value: avg_score lies in 0 to 1: -1 decides it before any case is run"]),
        (
            {"aggregation": "accuracy", "op": "gte", "value": 101},
            ["value: accuracy lies in 0 to 1, or to 100 as a percentage: 101 decides it before any case is run"],
        ),
        (
            {"op": "gte", "value": 0.8, "pass_threshold": 0.5},
            ["pass_threshold: has no effect on avg_score; only accuracy depends on which cases pass"],
        ),
        (
            {"aggregation": "accuracy", "op": "gte", "value": 80, "pass_op": "gt"},
            ["pass_op: has no effect without pass_threshold: a case passes as it was graded"],
        ),
        (
            {**WEIGHTED, "value": 75},
            ["value: avg_score lies in 0 to 1: 75 decides it before any case is run"],
        ),
        (
            {"kind": "logical", "operator": "or", "conditions": [SIMPLE, {"op": "gte", "value": 80}]},
            ["conditions[1].value: avg_score lies in 0 to 1: 80 decides it before any case is run"],
        ),
        ({"aggregation": "accuracy", "op": "gte", "value": 100}, []),
        ({"op": "eq", "value": 0}, []),
    ],
)
def test_a_valid_but_suspicious_gate_is_a_warning(given: dict[str, Any], warnings: list[str]) -> None:
    reading = read_gate(given, ["a", "b"])
    assert reading.problems == []
    assert [str(warning) for warning in reading.warnings] == warnings


@pytest.mark.parametrize(
    ("given", "graders", "baselines"),
    [
        (SIMPLE, ("a",), ()),
        ({**SIMPLE, "metric_key": "b"}, ("b",), ()),
        (WEIGHTED, ("a", "b"), ()),
        (REGRESSION, ("b",), ("latest~1",)),
        ({**CONSISTENCY, "pass_hat": 2}, ("a",), ()),
        ({**LOGICAL, "conditions": [REGRESSION, SIMPLE]}, ("b", "a"), ("latest~1",)),
    ],
)
def test_a_gate_lists_what_it_requires(
    given: dict[str, Any], graders: tuple[str, ...], baselines: tuple[str, ...]
) -> None:
    gate = read_gate(given, ["a", "b"]).gate
    assert gate is not None
    assert graders_of(gate, ["a", "b"]) == graders
    assert baselines_of(gate) == baselines


class TestSchema:
    def test_the_schema_accepts_what_the_reader_accepts(self) -> None:
        validator = jsonschema_rs.validator_for(gate_schema())
        for given in RIGHT:
            assert problems(given) == []
            assert validator.is_valid(given), given

    def test_the_schema_of_each_kind_accepts_the_same(self) -> None:
        for given in RIGHT:
            kind = KINDS[given.get("kind") or "simple"]
            assert jsonschema_rs.validator_for(config_schema(kind)).is_valid(given), given

    @pytest.mark.parametrize(
        "given",
        [
            {},
            [SIMPLE],
            {**SIMPLE, "op": ">="},
            {**SIMPLE, "value": "0.8"},
            {**SIMPLE, "agregation": "min"},
            {**SIMPLE, "kind": "simpel"},
            {**SIMPLE, "coverage_floor": 95},
            {**WEIGHTED, "weights": {}},
            {**WEIGHTED, "weights": {"a": -1}},
            {**REGRESSION, "margin": -1},
            {**CONSISTENCY, "k": 0, "n": 1},
            {**LOGICAL, "conditions": []},
            {**LOGICAL, "conditions": [{"op": "gte"}]},
            {"operator": "and", "conditions": [SIMPLE]},
        ],
    )
    def test_the_schema_refuses_what_the_reader_refuses(self, given: object) -> None:
        assert problems(given) != []
        assert not jsonschema_rs.validator_for(gate_schema()).is_valid(given)

    def test_every_option_is_described(self) -> None:
        for kind in KINDS.values():
            options = config_schema(kind)["properties"]
            assert [name for name, option in options.items() if "description" not in option] == ["kind"]

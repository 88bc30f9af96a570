"""Properties of gates for any scores."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradeline.verdict import PairedScores, ScoreColumn, Verdict, WeightedGate, decide, read_gate

SCORE = st.floats(0, 1)
NUMBER = st.floats(-2, 200, allow_nan=False)
OPS = st.sampled_from(["gt", "gte", "lt", "lte", "eq"])
AGGREGATIONS = st.sampled_from(["avg_score", "accuracy", "min", "max", "median", "p50", "p95", "p99"])
KEYS = ("a", "b")
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "coverage_floor": SCORE,
        "agent_errors": st.sampled_from(["exclude", "fail"]),
        "require_calibrated": st.booleans(),
    },
)


def with_settings(fields: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(fields, SETTINGS).map(lambda parts: parts[0] | parts[1])


KEY = st.none() | st.sampled_from(KEYS)
SIMPLE = with_settings(
    st.fixed_dictionaries(
        {"op": OPS, "value": NUMBER, "metric_key": KEY, "aggregation": AGGREGATIONS},
        optional={"pass_threshold": SCORE},
    )
)
UNKINDED = st.fixed_dictionaries(
    {"op": OPS, "value": NUMBER}, optional={"aggregation": st.just("accuracy"), "pass_op": OPS, "pass_threshold": SCORE}
)
WEIGHTED = st.fixed_dictionaries(
    {
        "kind": st.just("weighted_average"),
        "op": OPS,
        "value": NUMBER,
        "aggregation": AGGREGATIONS,
        "weights": st.dictionaries(st.sampled_from(KEYS), st.floats(1e-300, 1e9), min_size=1),
    }
)
REGRESSION = with_settings(
    st.fixed_dictionaries(
        {"kind": st.just("regression"), "baseline": st.just("main"), "margin": SCORE, "metric_key": KEY}
    )
)
COUNTS = st.tuples(st.integers(1, 4), st.integers(1, 4)).map(lambda pair: {"k": min(pair), "n": max(pair)})
CONSISTENCY = st.tuples(
    COUNTS | st.fixed_dictionaries({"pass_hat": st.integers(1, 4)}),
    st.fixed_dictionaries({"kind": st.just("consistency"), "op": OPS, "value": NUMBER}),
).map(lambda parts: parts[0] | parts[1])
LEAVES = SIMPLE | UNKINDED | WEIGHTED | REGRESSION | CONSISTENCY


def logical(conditions: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return with_settings(
        st.fixed_dictionaries(
            {
                "kind": st.just("logical"),
                "operator": st.sampled_from(["and", "or"]),
                "conditions": st.lists(conditions, min_size=1, max_size=3),
            }
        )
    )


GATES = st.recursive(LEAVES, logical, max_leaves=6)


@st.composite
def columns(draw: st.DrawFn, scores: st.SearchStrategy[float] = SCORE) -> ScoreColumn:
    values = draw(st.lists(scores, max_size=12))
    failed = draw(st.integers(0, 3))
    places = st.integers(0, 5)
    cases = draw(st.just([]) | st.lists(places, min_size=len(values), max_size=len(values)))
    failed_cases = draw(st.lists(places, max_size=failed))
    return ScoreColumn(values, len(values) + failed + draw(st.integers(0, 3)), failed, cases, failed_cases)


@st.composite
def pairs(draw: st.DrawFn, scores: st.SearchStrategy[float] = SCORE) -> PairedScores:
    tries = st.lists(st.none() | scores, max_size=3).map(tuple)
    rows = draw(st.lists(st.tuples(tries, tries), max_size=12))
    return PairedScores([str(place) for place in range(len(rows))], [row[0] for row in rows], [row[1] for row in rows])


def verdict(
    given_gate: dict[str, Any], a: ScoreColumn, b: ScoreColumn, paired: PairedScores, **settings: Any
) -> Verdict:
    reading = read_gate(given_gate, KEYS)
    assert reading.problems == []
    return decide(reading.gate, {"a": a, "b": b}, paired={("main", key): paired for key in KEYS}, **settings)


WIDE = st.floats(-1e100, 1e100)


@pytest.mark.slow
@settings(max_examples=300)
@given(GATES, columns(SCORE | WIDE), columns(), pairs(SCORE | WIDE), SETTINGS)
def test_any_gate_decides_on_any_scores(
    gate: dict[str, Any], a: ScoreColumn, b: ScoreColumn, paired: PairedScores, suite: dict[str, Any]
) -> None:
    decided = verdict(gate, a, b, paired, uncalibrated=["b"], **suite)
    assert decided.result in ("pass", "fail", "undecided")
    assert decided.reasons
    assert all(isinstance(reason, str) for reason in decided.reasons)


@pytest.mark.slow
@settings(max_examples=200)
@given(LEAVES, columns(), columns(), pairs())
def test_what_was_observed_lies_in_its_interval(
    gate: dict[str, Any], a: ScoreColumn, b: ScoreColumn, paired: PairedScores
) -> None:
    (result,) = verdict(gate, a, b, paired).gates
    if result.observed_ci is not None:
        assert result.observed is not None
        low, high = result.observed_ci
        assert low - 1e-9 <= result.observed <= high + 1e-9


@pytest.mark.slow
@settings(max_examples=200)
@given(LEAVES, columns(), columns(), pairs(), SCORE, SCORE)
def test_a_higher_floor_can_only_remove_a_pass(
    gate: dict[str, Any], a: ScoreColumn, b: ScoreColumn, paired: PairedScores, floor: float, other: float
) -> None:
    gate = {key: value for key, value in gate.items() if key != "coverage_floor"}
    low = verdict(gate, a, b, paired, coverage_floor=min(floor, other)).result
    high = verdict(gate, a, b, paired, coverage_floor=max(floor, other)).result
    assert high == low or (low, high) == ("pass", "undecided")


@given(st.lists(LEAVES, min_size=1, max_size=4), columns(), columns(), pairs())
def test_and_is_the_minimum_of_its_conditions_and_or_the_maximum(
    conditions: list[dict[str, Any]], a: ScoreColumn, b: ScoreColumn, paired: PairedScores
) -> None:
    rank = {"fail": 0, "undecided": 1, "pass": 2}
    alone = [rank[verdict(each, a, b, paired).result] for each in conditions]
    together = {"kind": "logical", "conditions": conditions}
    assert rank[verdict({**together, "operator": "and"}, a, b, paired).result] == min(alone)
    assert rank[verdict({**together, "operator": "or"}, a, b, paired).result] == max(alone)


@given(st.dictionaries(st.text(min_size=1), st.floats(0, 1e9), min_size=1))
def test_weights_are_normalized(weights: dict[str, float]) -> None:
    gate = WeightedGate(aggregation="avg_score", weights=weights, op="gte", value=0.5)
    shares = gate.normalized()
    assert not shares or abs(sum(shares.values()) - 1.0) < 1e-9
    assert all(0.0 <= share <= 1.0 for share in shares.values())


@given(columns(), columns(), st.floats(0.01, 1000), st.floats(0.01, 100), st.floats(0.01, 100))
def test_only_the_ratio_of_weights_matters(
    a: ScoreColumn, b: ScoreColumn, scale: float, first: float, second: float
) -> None:
    def observed(factor: float) -> float | None:
        weights = {"a": first * factor, "b": second * factor}
        gate = WeightedGate(aggregation="avg_score", weights=weights, op="gte", value=0.5)
        return decide(gate, {"a": a, "b": b}).gates[0].observed

    one, other = observed(1.0), observed(scale)
    assert one == other or (one is not None and other is not None and abs(one - other) < 1e-9)


@given(st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.text(max_size=5)))
def test_reading_never_raises_and_never_returns_a_gate_with_problems(data: dict[str, Any]) -> None:
    reading = read_gate(data, KEYS)
    assert (reading.gate is None) is bool(reading.problems)


@given(LEAVES, st.sampled_from([None, [], {}, "x", -1, True, float("nan")]), st.data())
def test_a_gate_with_one_corrupted_field_is_read_or_refused(given_gate: dict[str, Any], bad: object, data: Any) -> None:
    spoilt = data.draw(st.sampled_from(sorted(given_gate)))
    reading = read_gate({**given_gate, spoilt: bad}, KEYS)
    assert (reading.gate is None) is bool(reading.problems)
    assert all(problem.message for problem in reading.problems)

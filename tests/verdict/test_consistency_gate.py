from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradeline.stats import pass_at_k, pass_hat_k
from gradeline.verdict import ConsistencyGate, GateResult, ScoreColumn, decide, read_gate

TRIES = {"steady": [1.0, 1.0, 1.0], "mostly": [1.0, 0.0, 1.0], "once": [0.0, 0.0, 1.0], "never": [0.0, 0.0, 0.0]}


def gate(**fields: Any) -> ConsistencyGate:
    reading = read_gate({"kind": "consistency", "op": "gte", "value": 0.5, **fields}, [])
    assert reading.problems == []
    assert isinstance(reading.gate, ConsistencyGate)
    return reading.gate


def column(*tries: list[float], missing: int = 0) -> ScoreColumn:
    cases = [case for case, scores in enumerate(tries) for _ in scores]
    return ScoreColumn([score for scores in tries for score in scores], len(cases) + missing, 0, cases)


def result(scores: ScoreColumn, **fields: Any) -> GateResult:
    (judged,) = decide(gate(**fields), {"exact": scores}).gates
    return judged


@pytest.mark.parametrize(("k", "share"), [(1, 0.75), (2, 0.5), (3, 0.25)])
def test_k_of_n_repeats_of_a_case_must_pass(k: int, share: float) -> None:
    assert result(column(*TRIES.values()), k=k, n=3).observed == share
    assert result(column(*TRIES.values()), k=k, n=3, value=share).result == "pass"
    assert result(column(*TRIES.values()), k=k, n=3, op="gt", value=share).result == "fail"
    assert result(column(*TRIES.values()), k=k, n=3, value=share * 100 + 1).result == "fail"


def test_the_bound_can_be_a_fraction_or_a_percentage() -> None:
    assert result(column(*TRIES.values()), k=2, n=3, value=50).result == "pass"
    assert result(column(*TRIES.values()), k=2, n=3, value=51).result == "fail"


@pytest.mark.parametrize(("tries", "passed"), [(4, 3), (4, 4), (5, 2), (8, 1)])
def test_with_more_repeats_than_n_every_choice_of_them_counts(tries: int, passed: int) -> None:
    scores = column([1.0] * passed + [0.0] * (tries - passed))
    for size in range(1, tries + 1):
        assert result(scores, k=size, n=size).observed == pytest.approx(pass_hat_k(tries, passed, size))
        assert result(scores, k=1, n=size).observed == pytest.approx(pass_at_k(tries, passed, size))
        assert result(scores, pass_hat=size).observed == pytest.approx(pass_hat_k(tries, passed, size))
        assert result(scores, pass_at=size).observed == pytest.approx(pass_at_k(tries, passed, size))


def test_pass_hat_is_the_mean_over_cases() -> None:
    scores = column([1.0, 1.0, 1.0, 0.0], [1.0] * 4)
    assert result(scores, pass_hat=2, value=0.75).observed == pytest.approx((0.5 + 1.0) / 2)
    assert result(scores, pass_hat=2, value=0.75).reasons == ("exact: pass^2 over 2 cases 0.75 ≥ 0.75 is true",)
    assert result(scores, pass_hat=2, value=0.76).result == "fail"


def test_pass_at_is_the_mean_over_cases() -> None:
    scores = column([1.0, 0.0, 0.0, 0.0], [0.0] * 4)
    judged = result(scores, pass_at=2, value=0.25)
    assert (judged.observed, judged.aggregation) == (pytest.approx(0.25), "pass_at_2")
    assert judged.reasons == ("exact: pass@2 over 2 cases 0.25 ≥ 0.25 is true",)
    assert result(scores, pass_at=2, value=0.3).result == "fail"
    assert result(column([1.0], [1.0]), pass_at=2).result == "undecided"


def test_only_one_form_of_the_gate_can_be_set() -> None:
    fields = {"kind": "consistency", "op": "gte", "value": 0.5}
    reading = read_gate({**fields, "pass_at": 2, "pass_hat": 2, "n": 3}, ["exact"])
    assert [str(problem) for problem in reading.problems] == [
        "n: conflicts with pass_hat; keep either k and n, or pass_hat",
        "pass_at: conflicts with pass_hat; keep either pass_at, or pass_hat",
    ]


def test_a_repeat_passes_at_1_or_at_the_threshold() -> None:
    scores = column([0.7, 0.8], [0.9, 1.0])
    assert result(scores, k=1, n=2).observed == 0.5
    assert result(scores, k=2, n=2, pass_threshold=0.8).observed == 0.5
    assert result(scores, k=2, n=2, pass_threshold=0.7).observed == 1.0


def test_a_repeat_passes_as_it_was_graded() -> None:
    graded = column([0.2, 0.3], [0.9, 1.0])._replace(passes=[1, 1, 0, 1])
    assert result(graded, k=2, n=2).observed == 0.5
    assert result(graded, k=1, n=2).observed == 1.0
    assert result(graded, k=1, n=2, pass_threshold=0.5).observed == 0.5


def test_a_case_with_too_few_repeats_is_left_out_with_its_passes() -> None:
    graded = column([0.9], [0.9, 0.1])._replace(passes=[1, 0, 1])
    assert result(graded, k=2, n=2).observed == 0.0
    assert result(graded, k=1, n=2).observed == 1.0


def test_the_result_has_everything_a_report_shows() -> None:
    assert result(column(*TRIES.values()), k=2, n=3) == GateResult(
        kind="consistency",
        metric_key="exact",
        aggregation="2_of_3",
        op="gte",
        value=0.5,
        observed=0.5,
        observed_ci=pytest.approx((0.15004, 0.84996), abs=1e-5),
        result="pass",
        reasons=("exact: share of 4 cases with 2 of 3 repeats passed 0.5 ≥ 0.5 is true",),
    )
    assert result(column(*TRIES.values()), pass_hat=3).aggregation == "pass_hat_3"


def test_the_interval_is_over_cases() -> None:
    assert result(column([1.0] * 50), pass_hat=2).observed_ci is None
    assert result(column([1.0] * 50, [1.0] * 50), pass_hat=2).observed_ci == pytest.approx((0.3424, 1.0), abs=1e-4)
    found = result(column([1.0, 1.0, 0.0], [1.0, 0.0, 0.0]), pass_hat=1).observed_ci
    assert found == pytest.approx((0.0134, 0.9866), abs=1e-4)  # two cases, of 2/3 and 1/3


class TestMissingRepeats:
    def test_a_case_with_too_few_repeats_lowers_the_coverage(self) -> None:
        scores = column(*[[1.0, 1.0]] * 9, [1.0], missing=1)
        judged = result(scores, k=1, n=2)
        assert (judged.result, judged.observed) == ("undecided", 1.0)
        assert judged.reasons == (
            "exact: share of 9 cases with 1 of 2 repeats passed 1 ≥ 0.5 is true",
            "exact: only 18 of 20 have a score in a case with 2 of them, below the floor of 0.95",
        )
        assert result(scores, k=1, n=2, coverage_floor=0.9).result == "pass"

    def test_an_early_pass_does_not_include_an_unfinished_case(self) -> None:
        judged = result(column([1.0], [0.0, 0.0], missing=1), k=1, n=2)
        assert (judged.result, judged.observed) == ("fail", 0.0)

    def test_too_few_repeats_everywhere_is_undecided_with_the_remedy(self) -> None:
        for scores in (column([1.0], [1.0]), ScoreColumn([1.0, 1.0], 2)):
            judged = result(scores, pass_hat=3)
            assert (judged.result, judged.observed) == ("undecided", None)
            assert judged.reasons[0] == "exact: no case has 3 scored repeats; run with repeats: 3"

    def test_scores_without_cases_are_cases_of_one_repeat(self) -> None:
        assert result(ScoreColumn([1.0, 0.0], 2), k=1, n=1).observed == 0.5


class TestFailedCalls:
    SCORES = ScoreColumn([1.0, 1.0, 1.0], 4, 1, [0, 0, 1], [1])

    def test_failed_calls_are_missing(self) -> None:
        judged = result(self.SCORES, k=2, n=2)
        assert (judged.result, judged.observed) == ("undecided", 1.0)

    def test_failed_calls_are_failed_repeats_if_the_gate_counts_them(self) -> None:
        judged = result(self.SCORES, k=2, n=2, agent_errors="fail")
        assert (judged.result, judged.observed) == ("pass", 0.5)
        assert judged.reasons[1:] == ("exact: 1 failed call counts as 0",)

    def test_a_failed_call_of_an_unknown_case_belongs_to_no_case(self) -> None:
        unplaced = self.SCORES._replace(failed_cases=())
        judged = result(unplaced, k=2, n=2, agent_errors="fail")
        assert (judged.result, judged.observed) == ("undecided", 1.0)


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        ({}, ["k: is required: set k and n (k of n repeats pass), pass_hat or pass_at"]),
        ({"k": 2}, ["n: is required: k of n repeats"]),
        ({"n": 2}, ["k: is required: k of n repeats"]),
        ({"k": 3, "n": 2}, ["k: 3 of 2 repeats can never pass; k is at most n"]),
        ({"k": 0, "n": 2}, ["k: expected a whole number from 1 to 10,000, got 0"]),
        ({"k": 1.5, "n": 2}, ["k: expected a whole number from 1 to 10,000, got 1.5"]),
        ({"pass_hat": "2"}, ["pass_hat: expected a whole number from 1 to 10,000, got '2'"]),
        (
            {"pass_hat": 2, "k": 1, "n": 2},
            [
                "k: conflicts with pass_hat; keep either k and n, or pass_hat",
                "n: conflicts with pass_hat; keep either k and n, or pass_hat",
            ],
        ),
        ({"pass_hat": 2, "pass_threshold": "1"}, ["pass_threshold: expected a number, got '1'"]),
        ({"pass_hat": 2, "value": None}, ["value: expected a number, got None"]),
        ({"pass_hat": 2, "metric_key": "exat"}, ["metric_key: no grader 'exat'; did you mean 'exact'?"]),
        ({"pass_hat": 2, "metric_key": 3}, ["metric_key: expected the name of a grader, got 3"]),
        ({"pass_hat": 2, "pass_on": 2}, ["pass_on: unknown option; did you mean 'pass_at'?"]),
    ],
)
def test_bad_input_is_named(fields: dict[str, Any], problems: list[str]) -> None:
    reading = read_gate({"kind": "consistency", "op": "gte", "value": 0.5, **fields}, ["exact"])
    assert reading.gate is None
    found = [str(problem) for problem in reading.problems]
    assert [problem for problem in found if problem in problems] == problems


def test_pass_hat_of_a_benchmark_equals_the_published_value(
    shared_rows: Callable[[str], Iterator[dict[str, Any]]],
) -> None:
    rows = list(shared_rows("tau_airline/trajectories.jsonl"))
    scores = ScoreColumn([row["reward"] for row in rows], len(rows), 0, [row["item_id"] for row in rows])
    expected = [0.4, 0.26666666666666666, 0.22, 0.2]
    assert [result(scores, pass_hat=k).observed for k in (1, 2, 3, 4)] == pytest.approx(expected)

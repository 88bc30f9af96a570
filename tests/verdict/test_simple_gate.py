"""The simple gate, in the spelling of every dialect."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

from gradeline.verdict import GateResult, ScoreColumn, SimpleGate, Verdict, decide, read_gate

SCORES = [1.0, 1.0, 0.5, 0.0]


def gate(**fields: Any) -> SimpleGate:
    reading = read_gate({"op": "gte", "value": 0.5, **fields}, [])
    assert reading.problems == []
    assert isinstance(reading.gate, SimpleGate)
    return reading.gate


def verdict(scores: list[float], total: int | None = None, floor: float = 0.95, **fields: Any) -> Verdict:
    column = ScoreColumn(scores, len(scores) if total is None else total)
    return decide(gate(**fields), {"exact": column}, floor)


def observed(scores: list[float], cases: tuple[int, ...] = (), **fields: Any) -> GateResult:
    (result,) = decide(gate(**fields), {"exact": ScoreColumn(scores, len(scores), 0, cases)}).gates
    return result


@pytest.mark.parametrize(
    ("fields", "value", "result"),
    [
        ({}, 0.625, "pass"),
        ({}, 0.626, "fail"),
        ({"op": "gt"}, 0.625, "fail"),
        ({"op": "gt"}, 0.624, "pass"),
        ({"op": "lt"}, 0.7, "pass"),
        ({"op": "lt"}, 0.625, "fail"),
        ({"op": "lte"}, 0.625, "pass"),
        ({"op": "lte"}, 0.624, "fail"),
        ({"op": "eq"}, 0.625, "pass"),
        ({"op": "eq"}, 0.6251, "fail"),
        ({"aggregation": "accuracy"}, 0.5, "pass"),
        ({"aggregation": "accuracy"}, 0.51, "fail"),
        ({"aggregation": "accuracy"}, 51, "fail"),
        ({"aggregation": "accuracy"}, 50, "pass"),
        ({"aggregation": "accuracy"}, 1, "fail"),
        ({"aggregation": "accuracy", "pass_threshold": 0.5}, 0.75, "pass"),
        ({"aggregation": "accuracy", "pass_threshold": 0.5}, 76, "fail"),
        ({"aggregation": "accuracy", "pass_threshold": 0}, 100, "pass"),
        ({"aggregation": "accuracy", "pass_op": "gt", "pass_threshold": 0.4}, 0.75, "pass"),
        ({"aggregation": "min"}, 0.1, "fail"),
        ({"aggregation": "max"}, 1.0, "pass"),
        ({"aggregation": "median"}, 0.75, "pass"),
        ({"aggregation": "p50"}, 0.76, "fail"),
        ({"aggregation": "p95"}, 1.0, "pass"),
    ],
)
def test_a_gate_compares_its_metric(fields: dict[str, Any], value: float, result: str) -> None:
    assert verdict(SCORES, value=value, **fields).result == result


class TestPassRules:
    """The rules of accuracy."""

    @pytest.mark.parametrize(
        ("fields", "passing"),
        [
            ({}, [1.0]),
            ({"pass_threshold": None, "pass_op": None}, [1.0]),
            ({"pass_threshold": 0.5}, [0.5, 0.8, 1.0]),
            ({"pass_threshold": 0.8}, [0.8, 1.0]),
            ({"pass_threshold": 0.8, "op": "gt"}, [0.8, 1.0]),
            ({"pass_threshold": 0.8, "pass_op": "gt"}, [1.0]),
            ({"pass_threshold": 0.8, "op": "gt", "pass_op": "lte"}, [0.0, 0.5, 0.8]),
            ({"pass_threshold": 0.5, "pass_op": "eq"}, [0.5]),
            ({"pass_op": "lt"}, [1.0]),
        ],
    )
    def test_a_case_passes_by_its_own_rule(self, fields: dict[str, Any], passing: list[float]) -> None:
        scores = [0.0, 0.5, 0.8, 1.0]
        passes = gate(aggregation="accuracy", **fields).passes(ScoreColumn(scores, 4))
        assert [score for score, passed in zip(scores, passes, strict=True) if passed] == passing

    def test_a_score_is_compared_unrounded(self) -> None:
        assert gate(aggregation="accuracy").passes(ScoreColumn([0.9999999999], 1)) == [0]

    @pytest.mark.parametrize(
        ("fields", "observed"), [({}, 0.75), ({"pass_threshold": 0.9}, 0.25), ({"pass_threshold": 0.5}, 0.5)]
    )
    def test_a_case_passes_as_it_was_graded_unless_the_gate_has_a_rule(
        self, fields: dict[str, Any], observed: float
    ) -> None:
        graded = ScoreColumn([0.2, 0.3, 0.8, 1.0], 4, passes=[1, 0, 1, 1])
        for aggregation in ("accuracy", "avg_score"):
            found = decide(gate(aggregation=aggregation, value=0.1, **fields), {"exact": graded}).gates[0]
            assert found.observed == pytest.approx(observed if aggregation == "accuracy" else 0.575)

    def test_a_failed_call_that_counts_as_0_does_not_pass(self) -> None:
        graded = ScoreColumn([0.6, 0.6], 3, failed_calls=1, passes=[1, 1])
        found = decide(gate(aggregation="accuracy", agent_errors="fail"), {"exact": graded}).gates[0]
        assert found.observed == pytest.approx(2 / 3)

    def test_the_example_suites_of_letta_are_decided_as_documented(self) -> None:
        whole = {"aggregation": "accuracy", "op": "gte", "value": 100, "pass_op": "gte", "pass_threshold": 1.0}
        assert verdict([1.0, 1.0, 1.0], **whole).result == "pass"
        assert verdict([1.0, 1.0, 0.9], **whole).result == "fail"
        most = {"kind": "simple", "aggregation": "accuracy", "pass_threshold": 1, "value": 60}
        assert verdict([1.0, 1.0, 0.0], **most).result == "pass"
        assert verdict([1.0, 0.0, 0.0], **most).result == "fail"

    def test_a_fraction_of_accuracy_is_not_a_percentage(self) -> None:
        assert verdict([1.0] + [0.0] * 99, aggregation="accuracy", value=0.9).result == "fail"


class TestNumbers:
    @pytest.mark.parametrize("scores", [[0.25], [0.0, 1.0], [0.1, 0.2, 0.9], [0.0, 0.1, 0.3, 0.6, 1.0]])
    def test_percentiles_are_between_their_neighbours(self, scores: list[float]) -> None:
        backwards = scores[::-1]
        assert gate(aggregation="median").aggregate(ScoreColumn(backwards, 9)) == pytest.approx(median(scores))
        assert gate(aggregation="p50").aggregate(ScoreColumn(backwards, 9)) == pytest.approx(median(scores))
        assert gate(aggregation="min").aggregate(ScoreColumn(backwards, 9)) == scores[0]
        assert gate(aggregation="max").aggregate(ScoreColumn(backwards, 9)) == scores[-1]

    def test_high_percentiles_are_interpolated_linearly(self) -> None:
        scores = [0.0, 0.25, 0.5, 0.75, 1.0]
        assert gate(aggregation="p95").aggregate(ScoreColumn(scores, 9)) == pytest.approx(0.95)
        assert gate(aggregation="p99").aggregate(ScoreColumn(scores, 9)) == pytest.approx(0.99)
        assert gate(aggregation="p95").aggregate(ScoreColumn([0.0, 1.0, 1.0], 9)) == pytest.approx(1.0)
        assert gate(aggregation="p99").aggregate(ScoreColumn([0.2, 0.4], 9)) == pytest.approx(0.398)

    @pytest.mark.parametrize("op", ["gte", "lte", "eq"])
    def test_rounding_of_a_mean_decides_nothing(self, op: str) -> None:
        assert sum([0.7, 0.8, 0.9]) / 3 < 0.8
        assert verdict([0.7, 0.8, 0.9], op=op, value=0.8).result == "pass"
        assert verdict([0.1] * 10, op=op, value=0.1).result == "pass"

    @pytest.mark.parametrize("op", ["gt", "lt"])
    def test_rounding_does_not_make_a_number_differ_from_its_bound(self, op: str) -> None:
        assert verdict([0.7, 0.8, 0.9], op=op, value=0.8).result == "fail"


class TestIntervals:
    def test_accuracy_has_wilsons(self) -> None:
        found = observed([1.0] * 8 + [0.0] * 2, aggregation="accuracy", value=60)
        assert (found.observed, found.value) == (0.8, 0.6)
        assert found.observed_ci == pytest.approx((0.4902, 0.9433), abs=1e-4)

    def test_a_mean_has_wilsons_for_its_effective_number_of_cases(self) -> None:
        # variance 0.01 / 3, so 75 effective cases, with Student's quantile of 2 degrees of freedom
        assert observed([0.4, 0.5, 0.6]).observed_ci == pytest.approx((0.27753, 0.72247), abs=1e-5)

    def test_a_mean_of_0_and_1_has_that_of_accuracy(self) -> None:
        scores = [1.0] * 9 + [0.0]
        assert observed(scores).observed_ci == observed(scores, aggregation="accuracy").observed_ci
        assert observed(scores).observed_ci == pytest.approx((0.5958, 0.9821), abs=1e-4)

    def test_scores_that_are_all_the_same_are_not_certain(self) -> None:
        assert observed([1.0] * 4).observed_ci == pytest.approx((0.5101, 1.0), abs=1e-4)

    def test_repeats_of_a_case_count_as_one_case(self) -> None:
        scores, cases = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0], (0, 0, 0, 1, 1, 1)
        alone = observed(scores, aggregation="accuracy").observed_ci
        repeated = observed(scores, cases, aggregation="accuracy").observed_ci
        assert alone == pytest.approx((0.1876, 0.8124), abs=1e-4)
        assert repeated == pytest.approx((0.0945, 0.9055), abs=1e-4)
        assert observed([1.0] * 6, cases).observed_ci == pytest.approx((0.3424, 1.0), abs=1e-4)

    def test_one_case_has_no_interval_however_many_repeats(self) -> None:
        assert observed([1.0]).observed_ci is None
        assert observed([1.0], aggregation="accuracy").observed_ci is None
        assert observed([1.0, 0.0], (7, 7), aggregation="accuracy").observed_ci is None

    @pytest.mark.parametrize("aggregation", ["min", "max", "median", "p50", "p95", "p99"])
    def test_order_statistics_have_no_interval(self, aggregation: str) -> None:
        assert observed(SCORES, aggregation=aggregation).observed_ci is None

    def test_a_simple_gate_uses_the_observed_value_whatever_its_interval(self) -> None:
        found = observed([1.0, 0.8], value=0.89)
        assert found.result == "pass"
        assert found.observed_ci is not None
        assert found.observed_ci[0] < 0.89


def test_too_few_scores_make_a_pass_undecided_and_leave_a_fail_a_fail() -> None:
    assert verdict([1.0] * 18, total=20).result == "undecided"
    assert verdict([1.0] * 19, total=20).result == "pass"
    assert verdict([0.0] * 18, total=20).result == "fail"
    assert verdict([1.0] * 18, total=20, floor=0.9).result == "pass"


def test_no_score_at_all_is_undecided() -> None:
    decided = verdict([], total=3)
    assert (decided.result, decided.reasons) == ("undecided", ("exact: none of 3 has a score",))


def test_the_reason_names_what_was_compared() -> None:
    assert verdict(SCORES, value=0.8).reasons == ("exact: avg_score 0.625 ≥ 0.8 is false",)
    assert verdict(SCORES, value=80, aggregation="accuracy").reasons == ("exact: accuracy 0.5 ≥ 0.8 is false",)


def test_the_reason_distinguishes_two_close_numbers() -> None:
    assert verdict([0.79999], value=0.8).reasons == ("exact: avg_score 0.79999 ≥ 0.8 is false",)


def test_the_result_has_everything_a_report_shows() -> None:
    assert observed(SCORES, value=80, aggregation="accuracy", pass_threshold=0.5) == GateResult(
        kind="simple",
        metric_key="exact",
        aggregation="accuracy",
        op="gte",
        value=0.8,
        observed=0.75,
        observed_ci=pytest.approx((0.30064, 0.95441), abs=1e-5),
        result="fail",
        reasons=("exact: accuracy 0.75 ≥ 0.8 is false (a case passes from 0.5)",),
    )


def test_the_reason_states_the_gates_own_rule_for_a_case() -> None:
    fields: dict[str, Any] = {
        "aggregation": "accuracy",
        "value": 0.5,
        "op": "gt",
        "pass_op": "gt",
        "pass_threshold": 0.4,
    }
    assert verdict(SCORES, **fields).reasons == ("exact: accuracy 0.75 > 0.5 is true (a case passes at a score > 0.4)",)
    assert verdict(SCORES, value=0.5, pass_threshold=0.9).reasons == ("exact: avg_score 0.625 ≥ 0.5 is true",)


def test_without_a_gate_there_is_no_verdict_but_low_coverage_is_reported() -> None:
    assert decide(None, {"exact": ScoreColumn([1.0], 1)}, 0.95) == Verdict("none", ())
    assert decide(None, {"exact": ScoreColumn([1.0], 2)}, 0.95).reasons == (
        "exact: only 1 of 2 have a score, below the floor of 0.95",
    )


def test_the_default_grader_is_the_first() -> None:
    columns = {"first": ScoreColumn([1.0], 1), "second": ScoreColumn([0.0], 1)}
    assert decide(gate(), columns, 0.95).result == "pass"
    assert decide(gate(metric_key=None), columns, 0.95).result == "pass"
    assert decide(gate(metric_key="second"), columns, 0.95).result == "fail"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"op": "above"}, "op: expected one of gt, gte, lt, lte, eq"),
        ({"kind": "weighted"}, "kind: expected one of simple"),
    ],
)
def test_a_wrong_gate_is_explained(fields: dict[str, Any], message: str) -> None:
    problems = read_gate({"op": "gte", "value": 0.5, **fields}, []).problems
    assert any(message in str(problem) for problem in problems)


class TestConfidence:
    @pytest.mark.parametrize(
        ("passed", "op", "result"),
        [
            (98, "gte", "pass"),
            (85, "gte", "undecided"),
            (60, "gte", "fail"),
            (60, "lt", "pass"),
            (85, "lte", "undecided"),
        ],
    )
    def test_the_interval_must_lie_on_one_side_of_the_bound(self, passed: int, op: str, result: str) -> None:
        scores = [1.0] * passed + [0.0] * (100 - passed)
        found = observed(scores, aggregation="accuracy", op=op, value=0.8, confidence=0.95)
        assert found.result == result
        assert found.observed == passed / 100

    def test_the_reason_shows_the_interval(self) -> None:
        (reason,) = observed([1.0] * 8 + [0.0] * 2, value=0.7, confidence=0.9).reasons
        assert reason == ("exact: avg_score 0.8 ≥ 0.7 is true; uncertain at a confidence of 0.9: 0.541 to 0.931")

    def test_one_case_is_undecided(self) -> None:
        found = observed([1.0], value=0.5, confidence=0.95)
        assert (found.result, found.observed_ci) == ("undecided", None)
        assert found.reasons[0].endswith("uncertain at a confidence of 0.95: one case has no interval")

    @pytest.mark.parametrize(
        ("fields", "problem"),
        [
            ({"confidence": 1.5}, "confidence: expected a number between 0 and 1, got 1.5"),
            (
                {"confidence": 0.95, "aggregation": "min"},
                "confidence: min has no interval; use it with avg_score or accuracy",
            ),
            (
                {"confidence": 0.95, "op": "eq"},
                "confidence: no interval lies on one side of an equality; use gte, gt, lte or lt",
            ),
        ],
    )
    def test_bad_input_is_named(self, fields: dict[str, Any], problem: str) -> None:
        reading = read_gate({"kind": "simple", "op": "gte", "value": 0.5, **fields}, [])
        assert [str(found) for found in reading.problems] == [problem]

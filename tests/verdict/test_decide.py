"""Every kind of gate in every situation, with every setting."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gradeline.verdict import Gate, JudgeDoubt, PairedScores, ScoreColumn, Verdict, decide, order_finding, read_gate

KINDS: dict[str, dict[str, Any]] = {
    "unkinded": {"aggregation": "accuracy", "op": "gte", "value": 0.5},
    "simple": {"kind": "simple", "metric_key": "a", "aggregation": "avg_score", "op": "gte", "value": 0.5},
    "weighted_average": {
        "kind": "weighted_average",
        "aggregation": "avg_score",
        "weights": {"a": 1},
        "op": "gte",
        "value": 0.5,
    },
    "logical and": {"kind": "logical", "operator": "and", "conditions": [{"op": "gte", "value": 0.5}]},
    "logical or": {"kind": "logical", "operator": "or", "conditions": [{"op": "gte", "value": 0.5}]},
    "regression": {"kind": "regression", "metric_key": "a", "baseline": "main", "margin": 0.2},
    "consistency": {"kind": "consistency", "k": 1, "n": 1, "op": "gte", "value": 0.5},
    "pass_hat": {"kind": "consistency", "pass_hat": 1, "op": "gte", "value": 0.5},
}


def gate(given: dict[str, Any]) -> Gate:
    reading = read_gate(given, ["a", "b"])
    assert reading.gate is not None, reading.problems
    return reading.gate


def verdict_of(given: dict[str, Any], column: ScoreColumn, **settings: Any) -> Verdict:
    """The verdict against a baseline that always scored 1."""
    candidate = [*column.scores, *[None] * column.failed_calls]
    paired = {
        ("main", "a"): PairedScores(
            [str(n) for n in range(len(candidate))], [(1.0,)] * len(candidate), [(score,) for score in candidate]
        )
    }
    return decide(gate(given), {"a": column, "b": ScoreColumn([], 0)}, paired=paired, **settings)


@pytest.mark.parametrize("kind", KINDS)
class TestTruthTable:
    """Each kind of gate for a grader with a bound of 0.5, whose baseline scored 1."""

    @pytest.mark.parametrize(
        ("situation", "column", "result"),
        [
            ("all good", ScoreColumn([1.0] * 20, 20), "pass"),
            ("all bad", ScoreColumn([0.0] * 20, 20), "fail"),
            ("good, one error in twenty", ScoreColumn([1.0] * 19, 20), "pass"),
            ("good, two errors in twenty", ScoreColumn([1.0] * 18, 20), "undecided"),
            ("bad, two errors in twenty", ScoreColumn([0.0] * 18, 20), "fail"),
            ("nothing but errors", ScoreColumn([], 20), "undecided"),
            ("nothing was asked", ScoreColumn([], 0), "undecided"),
            ("all skipped", ScoreColumn([], 20, 20), "undecided"),
            ("good, two skipped", ScoreColumn([1.0] * 18, 20, 2), "undecided"),
        ],
    )
    def test_without_settings(self, kind: str, situation: str, column: ScoreColumn, result: str) -> None:
        assert verdict_of(KINDS[kind], column).result == result, situation

    @pytest.mark.parametrize(
        ("situation", "column", "result"),
        [
            ("all skipped", ScoreColumn([], 20, 20), "fail"),
            ("good, few skipped", ScoreColumn([1.0] * 39, 40, 1), "pass"),
            ("good, few skipped, many errors", ScoreColumn([1.0] * 18, 40, 1), "undecided"),
            ("half skipped", ScoreColumn([1.0] * 15, 40, 25), "fail"),
            ("nothing but errors", ScoreColumn([], 20), "undecided"),
        ],
    )
    def test_with_failed_calls_as_0(self, kind: str, situation: str, column: ScoreColumn, result: str) -> None:
        assert verdict_of(KINDS[kind], column, agent_errors="fail").result == result, situation
        assert verdict_of(KINDS[kind] | {"agent_errors": "fail"}, column).result == result, situation

    def test_one_sample(self, kind: str) -> None:
        alone = "undecided" if kind == "regression" else "pass"
        assert verdict_of(KINDS[kind], ScoreColumn([1.0], 1)).result == alone
        alone = "undecided" if kind == "regression" else "fail"
        assert verdict_of(KINDS[kind], ScoreColumn([0.0], 1)).result == alone

    def test_no_floor(self, kind: str) -> None:
        thin = ScoreColumn([1.0] * 30, 100)
        assert verdict_of(KINDS[kind], thin).result == "undecided"
        assert verdict_of(KINDS[kind], thin, coverage_floor=0.0).result == "pass"
        assert verdict_of(KINDS[kind] | {"coverage_floor": 0}, thin).result == "pass"

    def test_a_gate_overrides_its_suite(self, kind: str) -> None:
        thin, failed = ScoreColumn([1.0] * 18, 20), ScoreColumn([1.0] * 39, 40, 1)
        assert verdict_of(KINDS[kind] | {"coverage_floor": 1}, thin, coverage_floor=0.0).result == "undecided"
        assert verdict_of(
            KINDS[kind] | {"agent_errors": "exclude"}, ScoreColumn([], 9, 9), agent_errors="fail"
        ).result == ("undecided")
        assert verdict_of(KINDS[kind] | {"coverage_floor": 1}, failed, agent_errors="fail").result == "pass"

    def test_an_uncalibrated_judge_is_reported_and_may_be_refused(self, kind: str) -> None:
        good, bad = ScoreColumn([1.0] * 20, 20), ScoreColumn([0.0] * 20, 20)
        warned = verdict_of(KINDS[kind], good, uncalibrated={"a"})
        assert (warned.result, warned.uncalibrated) == ("pass", True)
        assert warned.reasons[-1] == "a: its judge is not calibrated"
        for column in (good, bad):
            refused = verdict_of(KINDS[kind], column, uncalibrated={"a"}, require_calibrated=True)
            assert (refused.result, refused.uncalibrated) == ("undecided", True)
            assert refused.reasons[-1] == "a: its judge is not calibrated, which this gate requires"
            assert verdict_of(KINDS[kind] | {"require_calibrated": True}, column, uncalibrated={"a"}) == refused
        allowed = verdict_of(
            KINDS[kind] | {"require_calibrated": False}, good, uncalibrated={"a"}, require_calibrated=True
        )
        assert allowed == warned
        other = verdict_of(KINDS[kind], good, uncalibrated={"b"}, require_calibrated=True)
        assert (other.result, other.uncalibrated) == ("pass", False)

    def test_a_judge_that_prefers_a_position_decides_nothing(self, kind: str) -> None:
        biased, fair = order_finding(8, 0, 12), order_finding(7, 0, 13)
        for column in (ScoreColumn([1.0] * 20, 20), ScoreColumn([0.0] * 20, 20), ScoreColumn([], 20)):
            verdict = verdict_of(KINDS[kind], column, orders={"a": biased})
            assert verdict.result == "undecided"
            assert verdict.reasons[-1] == (
                "a: order decided 8 of 20 (shown first 8, second 0; p 0.0078): the judge is position biased, so its"
                " scores decide no gate"
            )
        assert verdict_of(KINDS[kind], ScoreColumn([1.0] * 20, 20), orders={"a": fair, "b": biased}).result == "pass"

    def test_reasons_and_results_can_be_written_as_json(self, kind: str) -> None:
        for column in (
            ScoreColumn([1.0] * 20, 20),
            ScoreColumn([0.0] * 18, 20, 1),
            ScoreColumn([], 3),
            ScoreColumn([1.0], 1),
        ):
            verdict = verdict_of(KINDS[kind], column)
            (judged,) = verdict.gates
            assert verdict.reasons
            assert judged.result == verdict.result
            written = msgspec.json.decode(msgspec.json.encode(verdict._asdict()))
            assert set(written) == {"result", "reasons", "gates", "uncalibrated"}
            assert written["gates"][0]["kind"] == KINDS[kind].get("kind", "simple")

    def test_a_grader_that_the_run_does_not_have_is_undecided(self, kind: str) -> None:
        unknown = decide(gate(KINDS[kind]), {})
        assert unknown.result == "undecided"
        assert unknown.reasons[-1] in ("a: is not among the graders of this run", "there is no grader to evaluate")


class TestFailedCalls:
    def test_counted_failed_calls_change_the_value_and_are_reported(self) -> None:
        column = ScoreColumn([1.0] * 3, 5, 1)
        verdict = verdict_of(KINDS["simple"], column, agent_errors="fail")
        assert verdict.gates[0].observed == 0.75
        assert verdict.reasons == (
            "a: avg_score 0.75 ≥ 0.5 is true",
            "a: only 4 of 5 have a score, below the floor of 0.95",
            "a: 1 failed call counts as 0",
        )

    def test_failed_calls_belong_to_their_cases(self) -> None:
        column = ScoreColumn([1.0, 1.0, 1.0], 6, 3, [0, 0, 0], [1, 1, 1])
        placed = verdict_of(KINDS["unkinded"], column, agent_errors="fail").gates[0]
        alone = verdict_of(KINDS["unkinded"], column._replace(cases=(), failed_cases=()), agent_errors="fail").gates[0]
        assert (placed.observed, alone.observed) == (0.5, 0.5)
        assert placed.observed_ci == pytest.approx((0.0945, 0.9055), abs=1e-4)  # as of two cases
        assert alone.observed_ci == pytest.approx((0.1876, 0.8124), abs=1e-4)

    def test_a_failed_call_can_be_the_lowest_score(self) -> None:
        lowest = {"aggregation": "min", "op": "gt", "value": 0}
        column = ScoreColumn([0.5], 2, 1)
        assert verdict_of(lowest, column, coverage_floor=0.5).result == "pass"
        assert verdict_of(lowest, column, agent_errors="fail").result == "fail"


class TestWithoutAGate:
    def test_every_grader_with_low_coverage_is_reported(self) -> None:
        columns = {"a": ScoreColumn([1.0], 2, 1), "b": ScoreColumn([], 3), "c": ScoreColumn([1.0], 1)}
        assert decide(None, columns) == Verdict(
            "none",
            (
                "a: only 1 of 2 have a score, below the floor of 0.95",
                "b: only 0 of 3 have a score, below the floor of 0.95",
            ),
        )

    def test_failed_calls_are_missing_without_a_gate_too(self) -> None:
        assert decide(None, {"a": ScoreColumn([1.0], 2, 1)}, agent_errors="fail").reasons != ()

    def test_an_uncalibrated_judge_decides_nothing_and_is_marked(self) -> None:
        verdict = decide(None, {"a": ScoreColumn([1.0], 1)}, uncalibrated=["a"], require_calibrated=True)
        assert verdict == Verdict("none", (), (), True)

    def test_no_scores(self) -> None:
        assert decide(None, {}) == Verdict("none")


def test_a_reason_is_reported_once() -> None:
    twice = {"kind": "logical", "operator": "and", "conditions": [KINDS["simple"], KINDS["simple"] | {"value": 0.4}]}
    verdict = verdict_of(twice, ScoreColumn([1.0] * 4, 4), uncalibrated=["a"])
    assert verdict.reasons.count("a: its judge is not calibrated") == 1


def test_the_reason_that_a_judge_is_not_calibrated_is_told() -> None:
    doubt = JudgeDoubt("expired", "the prompt changed since 2026-11-01")
    verdict = verdict_of(KINDS["simple"], ScoreColumn([1.0] * 4, 4), uncalibrated={"a": doubt})
    assert verdict.result == "pass"
    assert verdict.reasons[-1] == "a: its judge is not calibrated (expired: the prompt changed since 2026-11-01)"


def test_no_gate_is_decided_by_a_judge_that_drifted() -> None:
    drifted = {"a": JudgeDoubt("drifted", "its scores changed")}
    sentence = "a: its judge is not calibrated (drifted: its scores changed)"
    for scores in ([1.0] * 4, [0.0] * 4):
        verdict = verdict_of(KINDS["simple"], ScoreColumn(scores, 4), uncalibrated=drifted)
        assert (verdict.result, verdict.uncalibrated) == ("undecided", True)
        assert verdict.reasons[-1] == f"{sentence}, so its scores decide no gate"
    verdict = verdict_of(KINDS["simple"], ScoreColumn([1.0], 1), uncalibrated=drifted, require_calibrated=True)
    assert verdict.reasons[-1] == f"{sentence}, which this gate requires"


def test_an_uncalibrated_judge_does_not_change_a_verdict_of_others() -> None:
    conditions = [{"metric_key": key, "op": "gte", "value": 0.5} for key in ("a", "b")]
    columns = {"a": ScoreColumn([0.0], 1), "b": ScoreColumn([1.0], 1)}
    given = {"kind": "logical", "operator": "and", "conditions": conditions}
    verdict = decide(gate(given), columns, uncalibrated=["b"], require_calibrated=True)
    assert (verdict.result, verdict.uncalibrated) == ("fail", True)
    columns["a"] = ScoreColumn([1.0], 1)
    assert decide(gate(given), columns, uncalibrated=["b"], require_calibrated=True).result == "undecided"


def test_the_number_of_scores_must_equal_that_of_cases() -> None:
    with pytest.raises(ValueError, match="zip"):
        verdict_of(KINDS["consistency"], ScoreColumn([1.0, 1.0], 2, 0, [0]))

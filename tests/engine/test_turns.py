"""Conversations with an expectation for each turn."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import pytest

from gradeline.engine.grade import GraderUse, Grading, UserGrader, UserReward
from gradeline.engine.plan import Graded, Work, joined_grade, planned_for, turns_of
from gradeline.errors import Fault, Outcome
from gradeline.extractors import create as extractor
from gradeline.graders import create as grader
from gradeline.model import (
    ErrorInfo,
    Grade,
    Message,
    Response,
    ResponseKey,
    Sample,
    StoredKey,
    Trajectory,
    digest_of,
    to_json,
)
from gradeline.model.run import TurnRule
from gradeline.usercode.loader import CodeRequest, CodeSpec
from gradeline.usercode.pool import WorkerPool

EXACT = GraderUse("exact", grader("exact_match"), extractor("last_assistant"))
JSON = GraderUse("schema", grader("json_match"), extractor("last_assistant"))
SAMPLE = Sample("talk", ["a?", "b?", "c?"], ["A", "B", "C"])


def response_of(*texts: str) -> Response:
    turns = tuple((Message("assistant", text),) for text in texts)
    return Response(text=texts[-1] if texts else "", trajectory=Trajectory(turns))


def graded(sample: Sample, response: Response, *uses: GraderUse) -> dict[str, Graded]:
    return asyncio.run(Grading(uses, None).grade(sample, response))


def test_each_turn_is_graded_with_its_own_expectation() -> None:
    submission, grade = graded(SAMPLE, response_of("A", "B", "x"), EXACT)["exact"]
    assert submission == "[Turn 0] A | [Turn 1] B | [Turn 2] x"
    assert (grade.score, grade.outcome, grade.rationale) == (2 / 3, Outcome.FAIL, "2/3 passed: ✓ ✓ ✗")
    assert (grade.metadata["turns_passed"], grade.metadata["turns_total"]) == (2, 3)
    assert [turn["score"] for turn in grade.metadata["per_turn_grades"]] == [1.0, 1.0, 0.0]


def test_a_turn_keeps_its_known_tool_use() -> None:
    for texts in (response_of("A", "B", "C").steps, Trajectory.of_turn_texts(["A", "B", "C"])):
        turns = turns_of(SAMPLE, Response(text="C", trajectory=texts))
        assert [turn.response.text for turn in turns] == ["A", "B", "C"]
        assert {turn.response.steps.tools_known for turn in turns} == {texts.tools_known}


def test_a_conversation_passes_if_every_turn_passes() -> None:
    grade = graded(SAMPLE, response_of("A", "B", "C"), EXACT)["exact"].grade
    assert (grade.score, grade.outcome, grade.rationale) == (1.0, Outcome.PASS, "3/3 passed: ✓ ✓ ✓")
    assert grade.metadata["turns"] == "all"


def test_a_turn_with_an_empty_answer_scores_0() -> None:
    trajectory = Trajectory(((Message("assistant", "A"),), (), ()))
    grade = graded(SAMPLE, Response(text="A", trajectory=trajectory), EXACT)["exact"].grade
    assert (grade.score, grade.outcome) == (1 / 3, Outcome.FAIL)
    assert grade.metadata["per_turn_grades"][2]["rationale"] == "Empty submission - extractor found no content"


@pytest.mark.parametrize("trajectory", [None, Trajectory(), Trajectory(((), ()))])
def test_a_conversation_without_answers_scores_0(trajectory: Trajectory | None) -> None:
    grade = graded(SAMPLE, Response(text="", trajectory=trajectory), EXACT)["exact"].grade
    assert (grade.score, grade.outcome, grade.rationale) == (0.0, Outcome.FAIL, "0/3 passed: ✗ ✗ ✗")


@pytest.mark.parametrize(
    ("texts", "found"),
    [(["A"], "a trajectory of 1 turn"), (["A", "B"], "a trajectory of 2 turns"), (["A", "B", "C", "D"], "4 turns")],
)
def test_with_a_wrong_number_of_turns_the_response_to_each_is_unknown(texts: list[str], found: str) -> None:
    forbidden = GraderUse("tools", grader("trajectory", {"forbidden_tools": ["rm"]}), extractor("last_assistant"))
    grades = graded(SAMPLE, response_of(*texts), EXACT, forbidden)
    grade = grades["exact"].grade
    assert (grade.outcome, grade.score) == (Outcome.ERROR, None)
    assert grade.error is not None
    assert grade.error.type == "missing"
    assert f"{found} for a conversation of 3 turns" in grade.error.message
    assert grades["tools"].grade.outcome is Outcome.PASS, "the calls of the whole conversation are known"


def test_a_baseline_whose_turns_are_unknown_is_named() -> None:
    same = GraderUse("same", grader("baseline", {"judge": "exact-match"}), extractor("last_assistant"))
    known = same._replace(baseline=lambda sample, repeat: response_of("A", "B", "C"))
    assert graded(SAMPLE, response_of("A", "B", "C"), known)["same"].grade.outcome is Outcome.PASS
    unknown = same._replace(baseline=lambda sample, repeat: Response(text="A B C"))
    error = graded(SAMPLE, response_of("A", "B", "C"), unknown)["same"].grade.error
    assert error is not None
    assert error.message.startswith("the baseline's response: the response has one text for a conversation of 3")


def test_the_one_turn_of_a_conversation_has_the_whole_response() -> None:
    sample = Sample("talk", ["a?"], ["B"])
    assert graded(sample, response_of("A", "B"), EXACT)["exact"].grade.outcome is Outcome.PASS


def test_the_latency_of_a_conversation_is_unknown_if_a_turns_is() -> None:
    grades = [Grade("exact_match", "f", Outcome.PASS, 1.0, True, latency_ms=took) for took in (2.0, None)]
    assert joined_grade(grades).latency_ms is None
    assert joined_grade(grades[:1] * 2).latency_ms == 4.0


def test_turns_are_unknown_if_one_text_answers_the_conversation() -> None:
    use = GraderUse("latency", grader("latency"), extractor("last_assistant"))
    grades = graded(SAMPLE, Response(text="A\nB\nC", latency_ms=5.0), EXACT, use)
    submission, grade = grades["exact"]
    assert (submission, grade.outcome, grade.score) == (None, Outcome.ERROR, None)
    assert grade.error is not None
    assert grade.error.type == "missing"
    assert grade.error.message.startswith("the response has one text for a conversation of 3 turns")
    assert grades["latency"].grade.outcome is Outcome.PASS


def test_a_conversation_of_one_turn_needs_no_trajectory() -> None:
    assert graded(Sample("talk", ["a?"], ["A"]), Response(text="A"), EXACT)["exact"].grade.score == 1.0


def test_a_turn_records_that_only_texts_are_known() -> None:
    sample = Sample("talk", ["a?", "b?"], ["[]", "[]"])
    turns = ((Message("assistant", "A"),), (Message("assistant", "B"),))
    calls = GraderUse("calls", grader("tool_calls"), extractor("tool_calls"))
    known = Response(text="B", trajectory=Trajectory(turns))
    assert graded(sample, known, calls)["calls"].grade.score == 1.0
    unknown = Response(text="B", trajectory=Trajectory(turns, tools_known=False))
    error = graded(sample, unknown, calls)["calls"].grade.error
    assert error is not None
    assert (error.type, error.message[:8]) == ("missing", "turn 0: ")


def test_a_turn_without_a_score_gives_no_total_score() -> None:
    sample = Sample("talk", ["a?", "b?"], ["1", "not json"])
    submission, grade = graded(sample, response_of("1", "2"), JSON)["schema"]
    assert grade.outcome is Outcome.ERROR
    assert grade.score is None
    assert grade.error is not None
    assert grade.error.message.startswith("turn 1: ")
    assert submission == "[Turn 0] 1 | [Turn 1] 2"


def test_a_conversation_with_one_expectation_is_graded_once() -> None:
    grade = graded(Sample("talk", ["a?", "b?"], "B"), response_of("A", "B"), EXACT)["exact"].grade
    assert (grade.score, grade.rationale) == (1.0, "Exact match: True")


def test_each_turn_passes_by_the_threshold() -> None:
    fuzzy = GraderUse("fuzzy", grader("similarity"), extractor("last_assistant"), 0.4)
    sample, response = Sample("talk", ["a?", "b?"], ["AAAA", "BBBB"]), response_of("AAAA", "BBcc")
    grade = graded(sample, response, fuzzy)["fuzzy"].grade
    assert (grade.score, grade.outcome) == (0.75, Outcome.PASS)
    grade = graded(sample, response, fuzzy._replace(pass_threshold=0.6))["fuzzy"].grade
    assert (grade.score, grade.outcome, grade.rationale) == (0.75, Outcome.FAIL, "1/2 passed: ✓ ✗")


@pytest.mark.parametrize(
    ("pass_threshold", "outcome", "least"),
    [(None, Outcome.PASS, 0.5), (0.6, Outcome.PASS, 0.6), (0.7, Outcome.FAIL, 0.7)],
)
def test_with_turns_mean_the_mean_decides_and_the_rationale_states_the_threshold(
    pass_threshold: float | None, outcome: Outcome, least: float
) -> None:
    use = EXACT._replace(turns="mean", pass_threshold=pass_threshold)
    grade = graded(SAMPLE, response_of("A", "B", "x"), use)["exact"].grade
    assert (grade.score, grade.outcome) == (2 / 3, outcome)
    assert grade.rationale == f"2/3 passed: ✓ ✓ ✗ (mean 0.6667, passes from {least:g})"
    assert grade.metadata["turns"] == "mean"


def test_the_other_turns_are_stored_if_one_could_not_be_graded() -> None:
    sample = Sample("talk", ["a?", "b?"], ["1", "not json"])
    grade = graded(sample, response_of("1", "2"), JSON)["schema"].grade
    first, second = grade.metadata["per_turn_grades"]
    assert (first["turn"], first["outcome"], first["score"]) == (0, "pass", 1.0)
    assert (second["turn"], second["outcome"], second["score"]) == (1, "error", None)
    assert second["error"]["type"] == "ungradable"


class TestFingerprints:
    """What was joined by an older rule, or by another one, is not taken for the same."""

    def plans(self, rule: TurnRule, sample: Sample, stored: str) -> str:
        use = EXACT._replace(turns=rule)
        key = ResponseKey("run", sample.case_key, 0)
        found = StoredKey(key, "success", {"exact": stored}, digest_of(to_json(sample)))
        return planned_for(key, sample, 0, {"exact": use.fingerprint}, found).work

    def test_existing_grades_are_not_repeated(self) -> None:
        for rule in get_args(TurnRule):
            for sample in (SAMPLE, Sample("one", "a?", "A")):
                grade = graded(sample, response_of("A", "B", "C"), EXACT._replace(turns=rule))["exact"].grade
                assert self.plans(rule, sample, grade.fingerprint) == Work.REUSE

    def test_a_skipped_conversation_is_not_graded_again(self) -> None:
        failed = Response(status="error", error=ErrorInfo("status", "500", Fault.AGENT))
        grade = graded(SAMPLE, failed, EXACT)["exact"].grade
        assert self.plans("all", SAMPLE, grade.fingerprint) == Work.REUSE

    def test_a_conversation_is_graded_again_after_the_rule_changed(self) -> None:
        as_all = graded(SAMPLE, response_of("A", "B", "C"), EXACT)["exact"].grade.fingerprint
        assert self.plans("mean", SAMPLE, as_all) == Work.REGRADE

    def test_only_a_conversation_of_an_older_version_is_graded_again(self) -> None:
        older = EXACT.fingerprint  # as it was before the rule was part of it
        assert self.plans("all", SAMPLE, older) == Work.REGRADE
        assert self.plans("all", Sample("one", "a?", "A"), older) == Work.REUSE


REWARD = """
from letta_evals import RewardOutput, reward_composer

@reward_composer
async def compose(ctx):
    share = sum(grade.score for grade in ctx.grades.values()) / len(ctx.grades)
    return RewardOutput(score=share, metadata={"saw": sorted(ctx.submissions), "turns": len(ctx.trajectory)})

@reward_composer
def beyond(ctx):
    return 2

@reward_composer
def yes(ctx):
    return True

@reward_composer
def as_graded(ctx):
    return {"score": 1.0, "metadata": {key: grade.passed for key, grade in ctx.grades.items()}}
"""


async def rewarded(
    folder: Path, name: str, response: Response, *keys: str, first: GraderUse = EXACT
) -> dict[str, Graded]:
    (folder / "rewards.py").write_text(REWARD)
    reference = f"rewards.py:{name}"
    uses = (
        first,
        GraderUse("well", UserGrader("rewards.py:compose", "f"), extractor("last_assistant"))._replace(
            grader=grader("contains")
        ),
        GraderUse("reward", UserReward(reference, "f1"), extractor("last_assistant")),
    )
    async with WorkerPool(CodeSpec(str(folder), (CodeRequest("reward_composer", reference),))) as pool:
        await pool.start()
        return await Grading(uses, pool).grade(Sample("a", "q", "yes"), response, keys or None)


def test_a_reward_is_made_of_all_the_other_grades(tmp_path: Path) -> None:
    grades = asyncio.run(rewarded(tmp_path, "compose", Response(text="yes, it is")))
    reward = grades["reward"].grade
    assert (reward.kind, reward.score, reward.outcome) == ("reward", 0.5, Outcome.PASS)
    assert reward.metadata == {"saw": ["exact", "well"], "turns": 1}
    assert asyncio.run(rewarded(tmp_path, "yes", Response(text="yes")))["reward"].grade.score == 1.0


def test_a_reward_sees_whether_each_grade_passed(tmp_path: Path) -> None:
    strict = EXACT._replace(key="exact", grader=grader("similarity"), pass_threshold=0.9)
    grades = asyncio.run(rewarded(tmp_path, "as_graded", Response(text="yess"), first=strict))
    assert (grades["exact"].grade.score or 0.0) > 0.5
    assert grades["reward"].grade.metadata == {"exact": False, "well": True}


def test_a_reward_beyond_1_is_an_error_of_its_own(tmp_path: Path) -> None:
    grades = asyncio.run(rewarded(tmp_path, "beyond", Response(text="yes")))
    assert grades["exact"].grade.score == 1.0
    assert grades["reward"].grade.outcome is Outcome.ERROR
    assert grades["reward"].grade.error is not None
    assert "0.0 to 1.0, got 2" in grades["reward"].grade.error.message


def test_a_reward_selected_without_the_others_still_gets_their_grades(tmp_path: Path) -> None:
    grades = asyncio.run(rewarded(tmp_path, "compose", Response(text="yes"), "reward"))
    assert grades["reward"].grade.score == 1.0

"""Conversations with an expectation for each turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gradeline.engine.grade import Graded, GraderUse, Grading, UserGrader, UserReward
from gradeline.errors import Outcome
from gradeline.extractors import create as extractor
from gradeline.graders import create as grader
from gradeline.model import Message, Response, Sample, Trajectory
from gradeline.usercode.loader import CodeSpec, Wanted
from gradeline.usercode.pool import WorkerPool

EXACT = GraderUse("exact", grader("exact_match"), extractor("last_assistant"))
JSON = GraderUse("schema", grader("json_match"), extractor("last_assistant"))
SAMPLE = Sample("talk", ["a?", "b?", "c?"], ["A", "B", "C"])


def said(*texts: str) -> Response:
    turns = tuple((Message("assistant", text),) for text in texts)
    return Response(text=texts[-1] if texts else "", trajectory=Trajectory(turns))


def graded(sample: Sample, response: Response, *uses: GraderUse) -> dict[str, Graded]:
    return asyncio.run(Grading(uses, None).grade(sample, response))


def test_each_turn_is_graded_with_its_own_expectation() -> None:
    submission, grade = graded(SAMPLE, said("A", "B", "x"), EXACT)["exact"]
    assert submission == "[Turn 0] A | [Turn 1] B | [Turn 2] x"
    assert (grade.score, grade.outcome, grade.rationale) == (2 / 3, Outcome.PASS, "2/3 passed: ✓ ✓ ✗")
    assert (grade.metadata["turns_passed"], grade.metadata["turns_total"]) == (2, 3)
    assert [turn["score"] for turn in grade.metadata["per_turn_grades"]] == [1.0, 1.0, 0.0]


def test_a_turn_that_the_agent_never_came_to_scores_0() -> None:
    grade = graded(SAMPLE, said("A"), EXACT)["exact"].grade
    assert (grade.score, grade.outcome) == (1 / 3, Outcome.FAIL)
    assert grade.metadata["per_turn_grades"][2]["rationale"] == "Empty submission - extractor found no content"


def test_a_turn_without_a_score_leaves_the_whole_without_one() -> None:
    sample = Sample("talk", ["a?", "b?"], ["1", "not json"])
    submission, grade = graded(sample, said("1", "2"), JSON)["schema"]
    assert grade.outcome is Outcome.ERROR
    assert grade.score is None
    assert grade.error is not None
    assert grade.error.message.startswith("turn 1: ")
    assert submission == "[Turn 0] 1 | [Turn 1] 2"


def test_a_conversation_with_one_expectation_is_graded_once() -> None:
    grade = graded(Sample("talk", ["a?", "b?"], "B"), said("A", "B"), EXACT)["exact"].grade
    assert (grade.score, grade.rationale) == (1.0, "Exact match: True")


def test_a_threshold_is_that_of_the_mean() -> None:
    grade = graded(SAMPLE, said("A", "B", "x"), EXACT._replace(pass_threshold=0.7))["exact"].grade
    assert (grade.score, grade.passed) == (2 / 3, False)


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
"""


async def rewarded(folder: Path, name: str, response: Response, *keys: str) -> dict[str, Graded]:
    (folder / "rewards.py").write_text(REWARD)
    reference = f"rewards.py:{name}"
    uses = (
        EXACT,
        GraderUse("well", UserGrader("rewards.py:compose", "f"), extractor("last_assistant"))._replace(
            grader=grader("contains")
        ),
        GraderUse("reward", UserReward(reference, "f1"), extractor("last_assistant")),
    )
    async with WorkerPool(CodeSpec(str(folder), (Wanted("reward_composer", reference),))) as pool:
        await pool.start()
        return await Grading(uses, pool).grade(Sample("a", "q", "yes"), response, keys or None)


def test_a_reward_is_made_of_all_the_other_grades(tmp_path: Path) -> None:
    grades = asyncio.run(rewarded(tmp_path, "compose", Response(text="yes, it is")))
    reward = grades["reward"].grade
    assert (reward.kind, reward.score, reward.outcome) == ("reward", 0.5, Outcome.PASS)
    assert reward.metadata == {"saw": ["exact", "well"], "turns": 1}
    assert asyncio.run(rewarded(tmp_path, "yes", Response(text="yes")))["reward"].grade.score == 1.0


def test_a_reward_beyond_1_is_an_error_of_its_own(tmp_path: Path) -> None:
    grades = asyncio.run(rewarded(tmp_path, "beyond", Response(text="yes")))
    assert grades["exact"].grade.score == 1.0
    assert grades["reward"].grade.outcome is Outcome.ERROR
    assert grades["reward"].grade.error is not None
    assert "0.0 to 1.0, got 2" in grades["reward"].grade.error.message


def test_a_reward_asked_for_alone_still_sees_the_others(tmp_path: Path) -> None:
    grades = asyncio.run(rewarded(tmp_path, "compose", Response(text="yes"), "reward"))
    assert grades["reward"].grade.score == 1.0

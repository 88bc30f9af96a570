"""Exact match: the same text or not."""

from __future__ import annotations

import asyncio

import pytest

from gradeline.judges import ExactMatchJudge, GradingResult, Judge
from gradeline.model.llm import LLMResponse, RunConfig

CONFIG = RunConfig(model="m")


def judged(judge: ExactMatchJudge, baseline: str, candidate: str) -> tuple[float, str]:
    result = judge.judge(LLMResponse(baseline), LLMResponse(candidate), prompt="?", run_config=CONFIG)
    return result.quality_score, result.notes


@pytest.mark.parametrize(
    ("judge", "baseline", "candidate", "score", "notes"),
    [
        (ExactMatchJudge(), "Paris", "Paris", 1.0, "match (stripped)"),
        (ExactMatchJudge(), "Paris", " Paris\n", 1.0, "match (stripped)"),
        (ExactMatchJudge(), "", "  ", 1.0, "match (stripped)"),
        (ExactMatchJudge(), "Paris", "paris", 0.0, "no match (stripped)"),
        (ExactMatchJudge(), "a b", "a  b", 0.0, "no match (stripped)"),
        (ExactMatchJudge(), "Paris", "Paris.", 0.0, "no match (stripped)"),
        (ExactMatchJudge(case_sensitive=False), "STRASSE", "straße", 1.0, "match (stripped, case ignored)"),
        (
            ExactMatchJudge(normalize_whitespace=True),
            "a b",
            " a\n\tb ",
            1.0,
            "match (stripped, whitespace normalized)",
        ),
        (
            ExactMatchJudge("x", False, True),
            "A  b",
            "a B!",
            0.0,
            "no match (stripped, case ignored, whitespace normalized)",
        ),
    ],
)
def test_the_score_and_how_it_was_compared(
    judge: ExactMatchJudge, baseline: str, candidate: str, score: float, notes: str
) -> None:
    assert judged(judge, baseline, candidate) == (score, notes)


def test_the_result_is_complete_in_both_forms() -> None:
    judge, first, second = ExactMatchJudge(), LLMResponse("a", model="x"), LLMResponse("a", model="y")
    expected = GradingResult(1.0, "match (stripped)", "exact-match", first, second)
    assert judge.judge(first, second, prompt="?", run_config=CONFIG) == expected
    assert asyncio.run(judge.ajudge(first, second, prompt="?", run_config=CONFIG)) == expected
    assert isinstance(judge, Judge)


@pytest.mark.parametrize("grader_id", ["", "  ", None])
def test_an_empty_name_is_refused(grader_id: str) -> None:
    with pytest.raises(ValueError, match="grader_id must name the judge"):
        ExactMatchJudge(grader_id)


def test_the_fingerprint_covers_what_could_change_a_score() -> None:
    assert ExactMatchJudge().fingerprint == ExactMatchJudge(grader_id="mine").fingerprint
    assert (
        len({ExactMatchJudge("x", case, space).fingerprint for case in (True, False) for space in (True, False)}) == 4
    )

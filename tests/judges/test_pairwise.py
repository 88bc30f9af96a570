"""A submission and a baseline's answer, judged in both orders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradeline import GradeContext, GradeResult, Response, Sample
from gradeline.adapters import ChatRequest, RunConfig
from gradeline.errors import ConfigError, Fault, GraderError
from gradeline.graders import create, run_async_grader
from gradeline.judges.pairwise import PairwiseGrader
from gradeline.model import AsyncGrader, ErrorInfo, MeteredResult
from gradeline.model.resources import Resources
from gradeline.testing import ScriptedAdapter
from gradeline.testing.fake_judge import FakeJudge, Truth, with_mark

SAMPLE = Sample("s", "What is the capital of France?", "The capital is Paris.")


def context(candidate: str = "Paris", baseline: str = "London", sample: Sample = SAMPLE) -> GradeContext:
    return GradeContext(sample, candidate, baseline=Response(text=baseline))


def ask(grader: PairwiseGrader, ctx: GradeContext) -> MeteredResult:
    return asyncio.run(grader.agrade(ctx))


def result(grader: PairwiseGrader, ctx: GradeContext) -> GradeResult:
    found = ask(grader, ctx).result
    assert isinstance(found, GradeResult), found
    return found


def by_text(scores: dict[str, float], first_bonus: float = 0.0) -> Callable[[str, RunConfig], str]:
    """A judge with a known score for each text, and optionally a preference for the first position."""

    def say(prompt: str, _: RunConfig) -> str:
        shown = sorted(scores, key=lambda text: prompt.index(f"\n{text}\n"))
        values = [scores[shown[0]] + first_bonus, scores[shown[1]]]
        return f'{{"score_first": {values[0]}, "score_second": {values[1]}, "rationale": "{shown[0]} first"}}'

    return say


def scripted(script: Any, **config: Any) -> tuple[PairwiseGrader, ScriptedAdapter]:
    adapter = ScriptedAdapter(script)
    return PairwiseGrader(config=config, adapter=adapter), adapter


def test_both_orders_are_judged_and_the_difference_counts() -> None:
    grader, adapter = scripted(by_text({"Paris": 0.75, "London": 0.25}))
    graded = result(grader, context())
    metadata = dict(graded.metadata)
    assert len(metadata.pop("prompt")) == 32
    assert (graded.score, graded.passed) == (0.75, True)
    assert graded.rationale == "shown first: Paris first\nshown second: London first"
    assert metadata == {
        "judge": "scripted",
        "model": "",
        "winner": "candidate",
        "difference": 0.5,
        "differences": {"candidate_first": 0.5, "candidate_second": 0.5},
        "flipped": False,
        "usage": None,
    }
    assert len(adapter.calls) == 2


def test_a_verdict_that_depends_on_the_order_has_no_score() -> None:
    grader, _ = scripted(by_text({"Paris": 0.25, "London": 0.5}, first_bonus=0.5))
    grade = asyncio.run(run_async_grader(grader, context()))
    assert (grade.outcome, grade.score, grade.passed) == ("error", None, None)
    assert grade.error == ErrorInfo(
        "order_decided",
        "no score, because the orders disagree: the submission is better (+0.25) when shown first, and is worse"
        " (-0.75) when shown second",
        Fault.GRADER,
    )
    assert grade.rationale == "shown first: Paris first\nshown second: London first"
    kept = {key: grade.metadata[key] for key in ("favoured", "flipped", "difference", "differences")}
    assert kept == {
        "favoured": "first",
        "flipped": True,
        "difference": -0.25,
        "differences": {"candidate_first": 0.25, "candidate_second": -0.75},
    }


def test_a_tie_in_one_order_and_a_winner_in_the_other_has_no_score() -> None:
    replies = ['{"score_first": 0.5, "score_second": 0.5}', '{"score_first": 0.25, "score_second": 0.5}']
    grader, _ = scripted(replies)
    found = ask(grader, context()).result
    assert isinstance(found, GraderError)
    assert (found.type, found.metadata["favoured"]) == ("order_decided", "second")
    assert "the submission ties (+0) when shown first" in str(found)


def test_two_ties_are_a_tie() -> None:
    grader, _ = scripted('{"score_first": 0.75, "score_second": 0.75}')
    graded = result(grader, context())
    assert (graded.score, graded.passed, graded.metadata["winner"]) == (0.5, True, "tie")


def test_a_worse_answer_fails() -> None:
    grader, _ = scripted(by_text({"Paris": 0.5, "London": 0.75}))
    graded = result(grader, context())
    assert (graded.score, graded.passed, graded.metadata["winner"]) == (0.375, False, "baseline")


def test_identical_texts_are_a_tie_without_a_call() -> None:
    grader, adapter = scripted([])
    judged = ask(grader, context("Paris", "Paris"))
    assert isinstance(judged.result, GradeResult)
    assert (judged.result.score, judged.result.passed, judged.usage) == (0.5, True, None)
    assert judged.result.metadata == {"winner": "tie", "difference": 0.0, "flipped": False, "identical": True}
    assert adapter.calls == []


@pytest.mark.parametrize(("behaviour", "score"), [("", 0.6), ("position,b=1", None), ("inverted", 0.4)])
def test_a_served_judge_is_called_in_both_orders(behaviour: str, score: float | None) -> None:
    items = {"good": Truth(quality=0.8), "fair": Truth(quality=0.6)}
    with FakeJudge(items=items).in_thread() as server:
        grader = PairwiseGrader(config={"model": "m", "base_url": server.base_url(behaviour)}).bind(
            Resources(environment={})
        )
        found = ask(grader, context(with_mark("Paris", "good"), with_mark("London", "fair"))).result
        assert [decision.items for decision in sorted(server.decisions, key=lambda one: one.items)] == [
            ("fair", "good"),
            ("good", "fair"),
        ]
    if score is None:
        assert isinstance(found, GraderError)
        assert (found.type, found.metadata["favoured"]) == ("order_decided", "first")
    else:
        assert isinstance(found, GradeResult)
        assert (found.score, found.metadata["flipped"]) == (pytest.approx(score), False)


def test_neither_answer_is_called_candidate_or_baseline() -> None:
    grader, adapter = scripted(
        by_text({"Paris": 0.5, "London": 0.5}), prompt="Prefer {tone}.", rubric_vars={"tone": "brevity"}
    )
    ask(grader, context())
    for call in adapter.calls:
        assert isinstance(call.prompt, ChatRequest)
        assert "# Rubric\n\nPrefer brevity.\n" in call.text
        assert "candidate" not in call.text.lower()
        assert "baseline" not in call.text.lower()
        assert "scripted" not in call.text


def test_the_extracted_baseline_is_compared() -> None:
    grader, _ = scripted(by_text({"Paris": 0.5, "London": 0.25}))
    ctx = GradeContext(SAMPLE, "Paris", baseline=Response(text="thinking… London"), baseline_submission="London")
    assert result(grader, ctx).score == 0.625


FAILED = Response(status="timeout", error=ErrorInfo("timeout", "30 s", Fault.AGENT))


@pytest.mark.parametrize(
    ("ctx", "message"),
    [
        (GradeContext(SAMPLE, "Paris"), "there is no baseline"),
        (GradeContext(SAMPLE, "Paris", baseline=FAILED), "the baseline's call failed (timeout)"),
        (GradeContext(SAMPLE, "Paris", baseline=Response()), "the baseline has no response to this case"),
    ],
)
def test_without_a_baseline_there_is_no_grade(ctx: GradeContext, message: str) -> None:
    grader, adapter = scripted([])
    found = ask(grader, ctx).result
    assert isinstance(found, GraderError)
    assert (found.type, str(found)[: len(message)]) == ("missing", message)
    assert adapter.calls == []


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ('{"score_first": 0.5}', "lacks 'score_second'"),
        ('{"score_first": 0.5, "score_second": 1.5}', "outside 0.0 to 1.0"),
        ('{"score_first": 0.9, "score_second": 0.1, "winner": "second"}', "names 'second' the winner of 0.9 to 0.1"),
        ('{"score_first": 0.9, "score_second": 0.1, "winner": "A"}', "names 'A' the winner"),
    ],
)
def test_a_reply_without_two_valid_scores_is_invalid(reply: str, message: str) -> None:
    grader, _ = scripted(reply)
    found = ask(grader, context()).result
    assert isinstance(found, GraderError)
    assert found.type == "invalid_reply"
    assert message in str(found)


def test_equal_scores_are_a_tie_whichever_winner_is_named() -> None:
    grader, _ = scripted('{"score_first": 0.5, "score_second": 0.5, "winner": "first"}')
    assert result(grader, context()).metadata["winner"] == "tie"


def test_one_order_without_a_verdict_is_an_error() -> None:
    grader, adapter = scripted(['{"score_first": 0.5, "score_second": 0.5}', "none"])
    found = ask(grader, context()).result
    assert isinstance(found, GraderError)
    assert len(adapter.calls) == 2


def test_it_requires_a_baseline_from_the_engine() -> None:
    grader = create("pairwise", {"model": "m", "baseline": "latest"})
    assert isinstance(grader, AsyncGrader)
    assert (grader.needs, grader.judges) == ({"baseline"}, ("openai:m",))


def test_the_baseline_and_the_prompts_text_are_part_of_its_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Prefer brevity.")
    changes: list[dict[str, Any]] = [{}, {"baseline": "a"}, {"baseline": "b"}, {"prompt": "x"}, {"reasoning": True}]
    assert len({create("pairwise", {"model": "m", **change}).fingerprint for change in changes}) == len(changes)
    local = {"model": "m", "base_url": "http://127.0.0.1:1"}
    placed = PairwiseGrader(config={"prompt_path": "p.txt", **local}).bind(Resources(tmp_path))
    assert placed.fingerprint == create("pairwise", {"prompt": "Prefer brevity.", **local}).fingerprint


def test_the_fingerprint_does_not_depend_on_the_baseline_run() -> None:
    changes: list[dict[str, Any]] = [{}, {"baseline": "a"}, {"prompt": "x"}, {"reasoning": True}, {"model": "n"}]
    judges = [PairwiseGrader(config={"model": "m", **change}).judge_id for change in changes]
    assert judges[0] == judges[1]
    assert judges[0].startswith("pairwise:openai:m@")
    assert len(set(judges)) == 4


def test_a_missing_file_is_reported_before_any_call(tmp_path: Path) -> None:
    grader = PairwiseGrader(config={"model": "m", "prompt_path": "none.txt", "base_url": "http://127.0.0.1:1"})
    assert [(one.problem.path, one.fatal) for one in grader.config_issues(tmp_path, None)] == [("prompt_path", True)]
    with pytest.raises(ConfigError, match=r"'none\.txt' cannot be read: no such file"):
        grader.bind(Resources(tmp_path))

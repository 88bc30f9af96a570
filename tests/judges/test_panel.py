"""A panel of judges has one score, and its disagreement is stored."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gradeline import GradeContext, GradeResult, Sample
from gradeline.adapters import Usage
from gradeline.errors import ConfigError, GraderError
from gradeline.graders import create
from gradeline.judges.panel import PanelGrader, family, shared_family
from gradeline.model import AsyncGrader, MeteredResult
from gradeline.model.llm import LLMResponse
from gradeline.model.resources import Resources
from gradeline.testing import ScriptedAdapter
from gradeline.testing.fake_judge import FakeJudge, Truth, with_mark

TWO = [{"model": "gpt-4o"}, {"provider": "anthropic", "model": "claude-x"}]
THREE = [*TWO, {"provider": "google", "model": "gemini-x"}]
CONTEXT = GradeContext(Sample("s", "q", "a"), "text")


def scored(score: float, cost: float | None = 0.5) -> LLMResponse:
    text = f'{{"score": {score}, "rationale": "said {score}"}}'
    return LLMResponse(text, finish_reason="stop", usage=Usage(10, 5, 0, cost))


def panel(*replies: Any, **config: Any) -> PanelGrader:
    judges = THREE[: len(replies)]
    adapters = [
        ScriptedAdapter([reply] * 3, f"{judge.get('provider', 'openai')}:{judge['model']}")
        for judge, reply in zip(judges, replies, strict=True)
    ]
    return PanelGrader(config={"prompt": "Is it right?", "judges": judges, **config}, adapters=adapters)


def ask(grader: PanelGrader) -> MeteredResult:
    return asyncio.run(grader.agrade(CONTEXT))


@pytest.mark.parametrize(("aggregation", "score"), [("mean", 0.6), ("median", 0.8)])
def test_the_score_is_the_mean_or_the_median(aggregation: str, score: float) -> None:
    judged = ask(panel(scored(0.8), scored(0.1), scored(0.9), aggregation=aggregation))
    assert isinstance(judged.result, GradeResult)
    assert judged.result.score == pytest.approx(score)
    assert judged.usage == Usage(30, 15, 0, 1.5)
    assert [(one["judge"], one["family"], one["score"]) for one in judged.result.metadata["judges"]] == [
        ("openai:gpt-4o", "openai", 0.8),
        ("anthropic:claude-x", "anthropic", 0.1),
        ("google:gemini-x", "google", 0.9),
    ]
    assert judged.result.metadata["disagreement"] == {
        "range": pytest.approx(0.8),
        "sd": pytest.approx(0.4358898943540674),
    }
    assert judged.result.rationale == (
        "openai:gpt-4o 0.80: said 0.8\nanthropic:claude-x 0.10: said 0.1\ngoogle:gemini-x 0.90: said 0.9"
    )


def test_one_unknown_cost_makes_the_total_unknown() -> None:
    assert ask(panel(scored(0.8), scored(0.1, cost=None))).usage == Usage(20, 10, 0, None)


def test_a_judge_without_a_score_makes_it_an_error_that_names_it() -> None:
    judged = ask(panel(scored(0.8), "no", scored(0.9)))
    assert isinstance(judged.result, GraderError)
    assert judged.result.type == "invalid_reply"
    assert str(judged.result).startswith("1 of 3 judges gave no score: anthropic:claude-x: the judge's reply ")


def test_a_quorum_tolerates_a_missing_judge() -> None:
    judged = ask(panel(scored(0.8), "no", scored(0.9), quorum=2))
    assert isinstance(judged.result, GradeResult)
    assert judged.result.score == pytest.approx(0.85)
    assert judged.result.metadata["judges"][1]["error"]["type"] == "invalid_reply"


def test_a_quorum_that_is_missed_is_an_error() -> None:
    judged = ask(panel("no", "no", scored(0.9), quorum=2))
    assert isinstance(judged.result, GraderError)
    assert str(judged.result).startswith("2 of 3 judges gave no score: openai:gpt-4o: ")


def test_the_shipped_rubrics_threshold_decides_what_passes() -> None:
    grader = panel(scored(0.7), scored(0.7), rubric="faithfulness@1", rubric_vars={"context": "c"}, prompt=None)
    judged = ask(grader)
    assert isinstance(judged.result, GradeResult)
    assert (judged.result.score, judged.result.passed) == (0.7, False)


def test_a_case_without_required_fields_is_reported_once_without_calls() -> None:
    grader = panel(scored(0.7), scored(0.7), rubric="faithfulness@1", prompt=None)
    judged = ask(grader)
    assert isinstance(judged.result, GraderError)
    assert (judged.result.type, judged.usage) == ("missing", None)
    assert str(judged.result).startswith("the rubric mentions {context}; the documents of the response are unknown")


def test_members_of_three_formats_are_called_concurrently() -> None:
    with FakeJudge(items={"right": Truth(quality=0.8)}).in_thread() as server:
        judges = [
            {"model": "gpt-4o", "base_url": server.base_url()},
            {"provider": "anthropic", "model": "claude-x", "base_url": server.url},
            {"provider": "google", "model": "gemini-x", "base_url": server.url},
        ]
        grader = create("panel", {"prompt": "Is it right?", "judges": judges})
        assert isinstance(grader, PanelGrader)
        assert isinstance(grader, AsyncGrader)
        assert grader.judges == ("openai:gpt-4o", "anthropic:claude-x", "gemini:gemini-x")
        placed = grader.bind(Resources(environment={}))
        graded = placed.grade(GradeContext(Sample("s", "q"), with_mark("text", "right")))
        assert graded.score == pytest.approx(0.8)
        assert server.counts().requests == 3


def test_options_of_a_member_override_those_of_the_panel() -> None:
    adapters = [ScriptedAdapter(['{"score": 1}']), ScriptedAdapter(['{"score": 1}'])]
    judges = [{"model": "a"}, {"model": "b", "temperature": 0.7, "max_tokens": 9}]
    grader = PanelGrader(config={"prompt": "x", "judges": judges, "seed": 3, "max_tokens": 50}, adapters=adapters)
    ask(grader)
    configs = [adapter.calls[0].run_config for adapter in adapters]
    assert [(one.model, one.temperature, one.max_tokens, one.model_params) for one in configs] == [
        ("a", 0.0, 50, {"seed": 3}),
        ("b", 0.7, 9, {"seed": 3}),
    ]


def test_everything_missing_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        PanelGrader(config={"prompt_path": "none.txt", "judges": TWO}).bind(Resources(tmp_path, {}))
    assert [problem.path for problem in caught.value.problems] == [
        "prompt_path",
        "judges[0].api_key_env",
        "judges[1].api_key_env",
    ]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"judges": [{"model": "a"}]}, "judges: expected array of length >= 2, got [{'model': 'a'}]"),
        (
            {"judges": [{"model": "a"}, {"provider": "vllm"}]},
            "judges[1].model: name the judging model of vllm, here or with --set",
        ),
        ({"quorum": 3}, "quorum: requires 3 of 2 judges"),
        ({"judges": [{"modle": "a"}, {}]}, "judges[0]: object contains unknown field modle, got [{'modle': 'a'}, {}]"),
    ],
)
def test_every_fault_is_reported(change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create("panel", {"prompt": "x", "judges": TWO, **change})
    assert [str(one).removeprefix("config.") for one in caught.value.problems] == [problem]


def test_the_fingerprint_covers_members_and_aggregation() -> None:
    base = {"prompt": "x", "judges": TWO}
    changes: list[dict[str, Any]] = [{}, {"prompt": "y"}, {"aggregation": "median"}, {"quorum": 1}, {"judges": THREE}]
    assert len({create("panel", {**base, **change}).fingerprint for change in changes}) == len(changes)
    assert create("panel", {**base, "timeout": 3}).fingerprint == create("panel", base).fingerprint


@pytest.mark.parametrize(
    ("judge", "name"),
    [
        ("openai:gpt-4o-mini", "openai"),
        ("openai:o3-mini", "openai"),
        ("openai_responses:gpt-5.2", "openai"),
        ("anthropic:claude-opus-4", "anthropic"),
        ("gemini:gemini-2.5-pro", "google"),
        ("vllm:meta-llama/Llama-3.1-8B", "meta"),
        ("ollama:qwen3:8b", "qwen"),
        ("claude-3", "anthropic"),
        ("vllm:123", "vllm:123"),
    ],
)
def test_the_family_is_found_by_the_name_of_the_model(judge: str, name: str) -> None:
    assert family(judge) == name


def test_judges_of_one_family_are_distinguished_from_a_mixed_panel(tmp_path: Path) -> None:
    assert shared_family(["openai:gpt-4o", "openai:o3"]) == "openai"
    assert shared_family(["openai:gpt-4o", "vllm:llama-3"]) is None
    alike = PanelGrader(config={"prompt": "{submission}", "judges": [{"model": "gpt-4o"}, {"model": "gpt-5"}]})
    assert [(one.problem.path, one.fatal) for one in alike.config_issues(tmp_path, None)] == [("judges", False)]

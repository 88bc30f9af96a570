"""A judge always sees the answer, whatever the source and content of its rubric."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline import GradeContext, Sample
from gradeline.api import run_suite
from gradeline.graders import create
from gradeline.judges.base import JudgeGrader
from gradeline.judges.fencing import Fence
from gradeline.judges.model_judge import ModelJudge
from gradeline.judges.prompts import PromptCase, judge_prompt, mentions_submission, with_submission
from gradeline.model import GradeResult
from gradeline.model.resources import Resources
from gradeline.testing import ScriptedAdapter
from gradeline.testing.fake_judge import FakeJudge, Truth, with_mark
from gradeline_command import COMMAND, run_command

ANSWER = with_mark("It is Paris.", "right")
OTHER = with_mark("It is Rome.", "wrong")
SAMPLE = Sample("s", "The capital of France? {submission}", "Paris", rubric_vars={"tone": "kind"})
RUBRICS = [
    "Is it right?",
    "Question: {input}. Is the reply right?",
    "Expected: {ground_truth}.",
    "Question: {input}, expected {ground_truth}, be {tone}.",
    "Question: {input}. The answer is {{submission}}.",
    "Question: {input}. The answer is { submission }.",
    'Question: {input}. Reply {"score": 1}.',
    "Question: {input}. {submission}",
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeJudge]:
    with FakeJudge(items={"right": Truth(quality=0.8), "wrong": Truth(quality=0.1)}).in_thread() as judge:
        yield judge


def shown(
    server: FakeJudge, kind: str, config: dict[str, Any], sample: Sample = SAMPLE, folder: Path | None = None
) -> list[tuple[str, ...]]:
    """The answers that each question to the judge showed."""
    server.reset()
    where = {"model": "judge-1", "base_url": server.base_url()}
    if kind == "panel":
        config = {**config, "judges": [where, {**where, "model": "judge-2"}]}
    else:
        config = {**config, **where}
    grader = create(kind, config)
    assert isinstance(grader, JudgeGrader)
    ctx = GradeContext(sample, ANSWER, baseline_submission=OTHER)
    judged = asyncio.run(grader.bind(Resources(folder)).agrade(ctx))
    assert isinstance(judged.result, GradeResult), judged.result
    return [decision.items for decision in server.decisions]


@pytest.mark.parametrize("rubric", RUBRICS)
class TestEveryRubric:
    def test_rubric_in_a_prompt(self, server: FakeJudge, rubric: str) -> None:
        assert shown(server, "model_judge", {"prompt": rubric}) == [("right",)]

    def test_rubric_in_a_file(self, server: FakeJudge, rubric: str, tmp_path: Path) -> None:
        (tmp_path / "rubric.txt").write_text(rubric)
        assert shown(server, "model_judge", {"prompt_path": "rubric.txt"}, folder=tmp_path) == [("right",)]

    def test_rubric_of_a_case(self, server: FakeJudge, rubric: str, tmp_path: Path) -> None:
        sample = Sample("s", "q {submission}", "Paris", rubric=rubric)
        assert shown(server, "model_judge", {"prompt": "{submission}"}, sample) == [("right",)]
        (tmp_path / "own.txt").write_text(rubric)
        sample = Sample("s", "q {submission}", "Paris", rubric_path="own.txt")
        assert shown(server, "model_judge", {"prompt": "{submission}"}, sample, tmp_path) == [("right",)]

    def test_rubric_with_a_system_prompt_that_names_the_answer(self, server: FakeJudge, rubric: str) -> None:
        config = {"prompt": rubric, "system_prompt": "You are given {submission}."}
        assert shown(server, "model_judge", config) == [("right",)]

    def test_rubric_with_a_checklist(self, server: FakeJudge, rubric: str) -> None:
        config = {"prompt": rubric, "checklist": ["Is it right?", "Is it short?"]}
        assert shown(server, "model_judge", config) == [("right",)]

    def test_rubric_of_a_panel(self, server: FakeJudge, rubric: str) -> None:
        assert shown(server, "panel", {"prompt": rubric}) == [("right",), ("right",)]

    def test_rubric_of_a_pairwise_judge(self, server: FakeJudge, rubric: str) -> None:
        found = shown(server, "pairwise", {"prompt": rubric, "baseline": "latest"})
        assert sorted(found) == [("right", "wrong"), ("wrong", "right")]


def test_the_baseline_judge_shows_both_answers(server: FakeJudge) -> None:
    (items,) = shown(server, "baseline", {"judge": "llm", "baseline": "latest"})
    assert sorted(items) == ["right", "wrong"]


def test_a_checklist_without_a_rubric_shows_the_answer(server: FakeJudge) -> None:
    assert shown(server, "model_judge", {"checklist": ["Is it right?"]}) == [("right",)]


def test_the_answer_is_appended_once_and_fenced() -> None:
    fence = Fence("0123456789abcdef")
    prompt = judge_prompt("Question: {input}.", PromptCase("2 + 2? {submission}", "It is 4.", "4"), "Reply.", fence)
    assert prompt == "\n\n".join(
        [
            "Question: 2 + 2? {submission}.",
            "# Submission",
            fence.wrap("submission", "It is 4."),
            fence.notice,
            "Reply.",
        ]
    )


@pytest.mark.parametrize("rubric", RUBRICS)
def test_only_a_placeholder_counts_as_a_mention(rubric: str) -> None:
    assert mentions_submission(rubric) is (rubric == RUBRICS[-1])


def test_the_prompt_that_is_sent_decides_the_fingerprint() -> None:
    def signed(prompt: str) -> str:
        return ModelJudge(config={"prompt": prompt}, adapter=ScriptedAdapter([])).fingerprint

    assert signed("Q: {input}") == signed("Q: {input}\n") == signed(with_submission("Q: {input}"))
    assert signed("Q: {input}") != signed("Q: {input} {submission}")


SUITE = """\
name: judged
dataset: cases.jsonl
target: {{kind: python, function: "agent.py:answer"}}
graders:
  quality: {{kind: model_judge, prompt: "{prompt}", model: judge-1, base_url: "{url}"}}
"""


@pytest.fixture
def folder(tmp_path: Path, server: FakeJudge) -> Path:
    server.reset()
    (tmp_path / "agent.py").write_text(f"def answer(question):\n    return {ANSWER!r}\n")
    (tmp_path / "suite.yaml").write_text(SUITE.format(prompt="Question: {input}", url=server.base_url()))
    rows = [
        {"id": "a", "input": "q"},
        {"id": "b", "input": "q", "rubric": "Q: {input}"},
        {"id": "c", "input": "q", "rubric": "Is it {submission}?"},
        {"id": "d", "input": "q", "rubric": "Is it kind?"},
    ]
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command([COMMAND, *arguments], text=True)


WARNED = [
    "graders.quality.prompt: the rubric does not mention {submission}; the submission is appended",
    "dataset: the rubric of case 'b' and 1 more does not mention {submission}; the submission is appended",
]


@pytest.mark.slow
def test_validate_warns_of_rubrics_that_leave_the_answer_out(folder: Path) -> None:
    data = json.loads(command("validate", str(folder / "suite.yaml"), "--json").stdout)
    assert data["valid"] is True
    assert [warning.removeprefix(f"{folder}/suite.yaml:5:40: ") for warning in data["warnings"]] == WARNED


@pytest.mark.slow
def test_run_warns_too_and_shows_every_answer(folder: Path, server: FakeJudge) -> None:
    found = command("run", str(folder / "suite.yaml"), "--store", str(folder / "store.sqlite"))
    assert found.returncode == 0, found.stderr
    assert all(warning in found.stderr for warning in WARNED)
    assert [decision.items for decision in server.decisions] == [("right",)] * 4


def test_the_python_api_shows_every_answer(folder: Path, server: FakeJudge) -> None:
    run_suite(folder / "suite.yaml", store="memory://")
    assert [decision.items for decision in server.decisions] == [("right",)] * 4


def test_unfilled_placeholders_in_pairwise_and_system_prompts_give_a_warning(tmp_path: Path) -> None:
    def config_issues(kind: str, **config: Any) -> list[str]:
        grader = create(kind, {"model": "m", **config})
        assert isinstance(grader, JudgeGrader)
        return [str(remark.problem) for remark in grader.config_issues(tmp_path, None)]

    assert config_issues("pairwise", prompt="Compare {submission}.", system_prompt="Q: {input}") == [
        "prompt: {submission} is not filled in here; both answers are appended",
        "system_prompt: {input} is not filled in here; use it in the rubric",
    ]
    assert config_issues("pairwise", prompt="Compare.") == []
    assert config_issues("model_judge", prompt="{submission}", system_prompt="Q: {input}") == [
        "system_prompt: {input} is not filled in here; use it in the rubric"
    ]

"""A provider's refusals from the command line: which end a run, with which exit code, and that resume finishes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.api import run_suite
from gradeline.cli import run_cli as gradeline
from gradeline.store import open_storage
from gradeline.testing.fake_judge import FakeJudge
from gradeline.testing.fake_judge.server import BehaviourRule

CASES = 12
MANY = 130

TEMPLATE = """\
name: judged
dataset: cases.jsonl
target: {{kind: python, function: "agent.py:answer", concurrency: {concurrency}}}
graders:
  same: {{kind: exact_match}}
  quality: {{{grader}}}
gate: {{kind: simple, metric_key: same, aggregation: accuracy, op: gte, value: 0.5}}
"""
GRADERS = {
    "model_judge": "kind: model_judge, prompt: '{{submission}}', model: m, base_url: '{url}', max_retries: 0",
    "panel": "kind: panel, prompt: '{{submission}}', max_retries: 0,"
    " judges: [{{model: a, base_url: '{url}'}}, {{model: m, base_url: '{url}'}}]",
}


class RefusingJudgeProject:
    """A suite whose judge refuses calls according to rules."""

    def __init__(self, folder: Path, server: FakeJudge, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.server = server
        (folder / "agent.py").write_text("def answer(question):\n    return question\n")
        rows = [{"id": f"c{n}", "input": f"answer-{n}.", "ground_truth": f"answer-{n}."} for n in range(CASES)]
        (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def suite(self, kind: str = "model_judge", concurrency: int = 4) -> None:
        grader = GRADERS[kind].format(url=self.server.base_url())
        (self.folder / "suite.yaml").write_text(TEMPLATE.format(grader=grader, concurrency=concurrency))

    def refuse(self, behaviour: str, *cases: int) -> None:
        """Refuse the questions about these cases; without any, all."""
        texts = [f"answer-{n}." for n in cases] or [None]
        self.server.rules = tuple(BehaviourRule(behaviour=behaviour, model="m", contains=text) for text in texts)

    def command(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        """What a script sees: the exit code, the one JSON object, and stderr."""
        code = gradeline(["--store", str(self.folder / "store.db"), *arguments, "--json"])
        printed = self.capsys.readouterr()
        (line,) = printed.out.splitlines()
        return code, json.loads(line), printed.err

    def outcomes(self, data: dict[str, Any]) -> dict[str, int]:
        counts: dict[str, int] = data["summary"]["graders"]["quality"]
        return {name: counts[name] for name in ("passed", "failed", "errors", "skipped") if counts[name]}


@pytest.fixture
def refusing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[RefusingJudgeProject]:
    monkeypatch.chdir(tmp_path)
    with FakeJudge("perfect").in_thread() as server:
        created = RefusingJudgeProject(tmp_path, server, capsys)
        created.suite()
        yield created


@pytest.mark.parametrize("kind", GRADERS)
@pytest.mark.parametrize("status", ["401", "403", "404"])
def test_a_judge_that_refuses_every_call_stops_the_run_and_resume_finishes_it(
    refusing: RefusingJudgeProject, kind: str, status: str
) -> None:
    refusing.suite(kind)
    refusing.refuse(status)
    code, data, err = refusing.command("run", "suite.yaml")
    assert (code, data["exit_code"], data["run"]["status"]) == (4, 4, "failed")
    assert f"HTTP {status}" in data["stopped"]
    assert f"HTTP {status}" in data["verdict"]["reasons"][0]
    assert f"{data['stopped']}; continue with: gradeline resume {data['run']['id']}" in err
    number_of_calls = refusing.server.counts().models["m"]
    assert number_of_calls <= 4 + 64
    refusing.refuse("perfect")
    code, data, _ = refusing.command("resume", "latest")
    assert (code, data["run"]["status"], refusing.outcomes(data)) == (0, "completed", {"passed": CASES})


def test_nothing_graded_has_its_exit_code(refusing: RefusingJudgeProject) -> None:
    refusing.refuse("401")
    code, data, _ = refusing.command("run", "suite.yaml", "--set", "gate=", "--grader", "quality")
    assert (code, data["exit_code"]) == (4, 4)


@pytest.mark.parametrize("status", ["400-context", "400-moderation", "403-moderation", "403", "404"])
@pytest.mark.parametrize("kind", GRADERS)
def test_a_refusal_of_one_request_is_the_error_of_that_case(
    refusing: RefusingJudgeProject, kind: str, status: str
) -> None:
    refusing.suite(kind)
    refusing.refuse(status, 5, 7)
    code, data, _ = refusing.command("run", "suite.yaml")
    assert (code, data["run"]["status"], refusing.outcomes(data)) == (
        0,
        "completed",
        {"passed": CASES - 2, "errors": 2},
    )
    assert "stopped" not in data
    with open_storage(str(refusing.folder / "store.db")) as storage:
        grades = {one.sample.case_key: one.grades["quality"] for one in storage.records(data["run"]["id"])}
    errors = {case: grade.error.type for case, grade in grades.items() if grade.error is not None}
    assert errors == {"c5": "refused", "c7": "refused"}


def test_resume_can_finish_a_run_with_only_a_refused_case_left(refusing: RefusingJudgeProject) -> None:
    refusing.refuse("403", 5)
    _, data, _ = refusing.command("run", "suite.yaml")
    for _ in range(2):
        code, data, _ = refusing.command("resume", "latest")
        assert (code, data["run"]["status"]) == (0, "completed")
        assert refusing.outcomes(data) == {"passed": CASES - 1, "errors": 1}
    refusing.refuse("perfect")
    code, data, _ = refusing.command("resume", "latest")
    assert refusing.outcomes(data) == {"passed": CASES}


def test_resume_can_finish_a_run_stopped_by_one_refusal(refusing: RefusingJudgeProject) -> None:
    refusing.suite(concurrency=1)
    refusing.refuse("403", 0)
    (refusing.folder / "cases.jsonl").write_text('{"id": "c0", "input": "answer-0.", "ground_truth": "answer-0."}\n')
    code, data, _ = refusing.command("run", "suite.yaml")
    assert (code, data["run"]["status"]) == (4, "failed")
    code, data, _ = refusing.command("resume", "latest")
    assert (code, data["run"]["status"], refusing.outcomes(data)) == (0, "completed", {"errors": 1})


@pytest.mark.parametrize("agent", ["model", "function"])
def test_resume_finishes_although_many_first_cases_are_refused(refusing: RefusingJudgeProject, agent: str) -> None:
    if agent == "model":
        target = f"kind: openai, model: m, base_url: '{refusing.server.base_url()}', api_key: none, concurrency: 1"
        graders = "same: {kind: custom-rules, config: {rules: [{condition: word_count_min, value: 1}]}}"
    else:
        target = "kind: python, function: 'agent.py:answer', concurrency: 1"
        graders = f"same: {{{GRADERS['model_judge'].format(url=refusing.server.base_url())}}}"
    suite = f"name: refused\ndataset: cases.jsonl\ntarget: {{{target}}}\ngraders: {{{graders}}}\n"
    (refusing.folder / "suite.yaml").write_text(suite)
    rows = [{"id": f"c{n}", "input": f"answer-{n}.", "ground_truth": f"answer-{n}."} for n in range(MANY)]
    (refusing.folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    refusing.refuse("403", *range(MANY - 1))
    code, data, _ = refusing.command("run", "suite.yaml")
    assert (code, data["run"]["status"]) == (4, "failed")
    for _ in range(7):  # 2, 6, 14, 30, 62, 126 and 254 refusals
        if data["run"]["status"] == "failed":
            code, data, _ = refusing.command("resume", "latest")
    assert data["run"]["status"] == "completed"
    counts = data["summary"]["graders"]["same"]
    assert (counts["scored"], counts["total"]) == (1, MANY)


def test_resume_can_finish_a_regrade_stopped_by_one_refusal(refusing: RefusingJudgeProject) -> None:
    refusing.suite(concurrency=1)
    (refusing.folder / "cases.jsonl").write_text('{"id": "c0", "input": "answer-0.", "ground_truth": "answer-0."}\n')
    _, data, _ = refusing.command("run", "suite.yaml")
    refusing.refuse("403", 0)
    code, data, _ = refusing.command("regrade", data["run"]["id"])
    assert (code, data["run"]["status"], refusing.outcomes(data)) == (4, "failed", {"errors": 1})
    code, data, _ = refusing.command("resume", data["run"]["id"])
    assert (data["run"]["status"], refusing.outcomes(data)) == ("completed", {"errors": 1})


@pytest.mark.parametrize("refused", ["quality", "other"])
def test_grades_of_other_judges_of_the_case_are_stored(refusing: RefusingJudgeProject, refused: str) -> None:
    models = {"quality": "m", "other": "m"} | {({"quality", "other"} - {refused}).pop(): "a"}
    judges = {
        key: GRADERS["model_judge"].format(url=refusing.server.base_url()).replace("model: m", f"model: {model}")
        for key, model in models.items()
    }
    (refusing.folder / "suite.yaml").write_text(
        "name: two\ndataset: cases.jsonl\ntarget: {kind: python, function: 'agent.py:answer', concurrency: 1}\n"
        + "graders:\n"
        + "".join(f"  {key}: {{{judge}}}\n" for key, judge in judges.items())
    )
    refusing.refuse("401")
    _, data, _ = refusing.command("run", "suite.yaml")
    assert data["run"]["status"] == "failed"
    graders = data["summary"]["graders"]
    other_grader = ({"quality", "other"} - {refused}).pop()
    assert graders[other_grader]["passed"] == refusing.server.counts().models["a"] == graders[refused]["errors"]
    refusing.refuse("perfect")
    _, data, _ = refusing.command("resume", "latest")
    assert data["summary"]["graders"][other_grader]["passed"] == CASES
    assert refusing.server.counts().models["a"] == CASES


def test_a_wrong_key_in_the_middle_stops_and_resume_finishes(refusing: RefusingJudgeProject) -> None:
    refusing.suite(concurrency=1)
    refusing.refuse("401", 6)
    code, data, _ = refusing.command("run", "suite.yaml")
    assert (code, data["run"]["status"]) == (3, "failed")
    assert refusing.outcomes(data)["passed"] >= 5
    refusing.refuse("perfect")
    assert refusing.command("resume", "latest")[0] == 0


def test_a_model_as_the_agent_follows_the_same_rule(refusing: RefusingJudgeProject) -> None:
    url = refusing.server.base_url()
    (refusing.folder / "suite.yaml").write_text(
        "name: asked\ndataset: cases.jsonl\n"
        f"target: {{kind: openai, model: m, base_url: '{url}', api_key: none, retries: 0}}\n"
        "graders: {long: {kind: custom-rules, config: {rules: [{condition: word_count_min, value: 1}]}}}\n"
    )
    refusing.refuse("403", 5)
    code, data, _ = refusing.command("run", "suite.yaml")
    assert (code, data["run"]["status"]) == (3, "completed")  # below the coverage floor
    assert data["summary"]["graders"]["long"]["skipped"] == 1
    refusing.refuse("403")
    code, data, err = refusing.command("run", "suite.yaml")
    assert (code, data["run"]["status"]) == (4, "failed")
    assert "HTTP 403" in data["stopped"]
    assert "continue with: gradeline resume" in err


def test_the_result_of_the_python_api_has_the_stop_reason(refusing: RefusingJudgeProject) -> None:
    refusing.refuse("401")
    result = run_suite(refusing.folder / "suite.yaml", store="memory://")
    assert (result.exit_code, result.run.status) == (4, "failed")
    assert "HTTP 401" in str(result.stopped)
    assert result.to_dict()["stopped"] == result.stopped

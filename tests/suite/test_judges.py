"""Judges in suites of every dialect; faults and warnings have their position."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradeline.judges.model_judge import NOT_MENTIONED
from gradeline.suite.problems import DocumentError
from gradeline.suite.read import read_suite
from gradeline.suite.spec import GraderSpec, SuiteDefinition

HEAD = "name: judged\ndataset: cases.jsonl\ntarget: {kind: http, url: 'http://127.0.0.1:9000'}\ngraders:\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cases.jsonl").write_text('{"input": "q", "ground_truth": "a", "rubric_vars": {"tone": "kind"}}\n')
    (tmp_path / "rubric.txt").write_text("Is it right?\n")
    return tmp_path


def read(folder: Path, graders: str, head: str = HEAD) -> SuiteDefinition:
    (folder / "suite.yaml").write_text(head + graders)
    return read_suite(folder / "suite.yaml")


def faults(folder: Path, graders: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        read(folder, graders)
    return [str(problem).removeprefix(f"{folder}/suite.yaml:") for problem in caught.value.suite_problems]


def warnings(folder: Path, graders: str) -> list[str]:
    return [warning.removeprefix(f"{folder}/suite.yaml:") for warning in read(folder, graders).warnings]


DIALECTS = {
    "D1": """\
target: {kind: agent, agent_id: agent-1}
graders:
  quality: {kind: rubric, prompt_path: rubric.txt, model: gpt-4o-mini, temperature: 0.0, provider: openai, rubric_vars: [tone]}
gate: {metric_key: quality, op: gte, value: 0.5}
""",
    "D2": """\
target: {kind: letta_agent, agent_id: agent-1}
graders:
  quality: {kind: model_judge, prompt: "Is it right?", model: gpt-4o-mini, max_retries: 5, timeout: 120.0, extractor: last_assistant}
gate: {metric: avg_score, op: gt, value: 0.5}
""",
    "D3": """\
target: {kind: letta_code, model_handles: [openai/gpt-4.1]}
graders:
  quality: {kind: model_judge, display_name: Quality, prompt_path: rubric.txt, provider: google, model: gemini-2.5-flash}
gate: {kind: simple, metric_key: quality, aggregation: avg_score, op: gte, value: 0.5}
""",
    "D4": """\
target: {kind: letta_code, model_handles: [openai/gpt-4.1]}
graders:
  quality: {kind: model_judge, prompt: "Q: {input}\\n{submission}\\n{{\\"score\\": 1}}", system_prompt: Be strict., model: m}
gate: {kind: simple, metric_key: quality, aggregation: avg_score, op: gte, value: 0.5}
""",
    "D5": """\
target: {kind: letta_code, model_handles: [openai/gpt-4.1]}
graders:
  quality: {kind: model_judge, prompt: "{submission}", provider: anthropic, model: claude-x, extractor: last_turn}
gate: {kind: simple, metric_key: quality, aggregation: avg_score, op: gte, value: 0.5}
""",
    "D6": """\
target: {model_handles: [openai/gpt-4.1]}
graders:
  quality: {kind: model_judge, prompt: "{submission} {ground_truth} {tone}", model: m}
reward: {kind: metric, metric_key: quality}
""",
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_judge_of_every_dialect_is_read_unmodified(folder: Path, dialect: str) -> None:
    suite = read(folder, DIALECTS[dialect], "name: letta\ndataset: cases.jsonl\n")
    assert [(spec.key, spec.kind, spec.timeout) for spec in suite.graders] == [("quality", "model_judge", 120.0)]
    assert [warning for warning in suite.warnings if NOT_MENTIONED not in warning] == []
    assert len(suite.warnings) == (1 if dialect in ("D1", "D2", "D3") else 0)


def test_options_are_separated_from_keys_of_every_grader(folder: Path) -> None:
    graders = """\
  a: {kind: model_judge, prompt: x, model: m, timeout: 30, pass_threshold: 0.7, extractor: first_assistant}
  b: {kind: rubric, config: {prompt: x, timeout: 40}, model: m}
  c: {kind: panel, prompt: x, judges: [{model: gpt-4o}, {provider: anthropic, model: claude-x}]}
  d: {kind: pairwise, model: m, baseline: latest}
  e: {kind: embedding}
  f: {kind: cost, max_cost: 0.1}
"""
    both: list[dict[str, Any]] = [{"model": "gpt-4o"}, {"provider": "anthropic", "model": "claude-x"}]
    assert read(folder, graders).graders == (
        GraderSpec(
            key="a",
            kind="model_judge",
            config={"prompt": "x", "model": "m", "timeout": 30},
            extractor="first_assistant",
            pass_threshold=0.7,
            timeout=30,
        ),
        GraderSpec(key="b", kind="model_judge", config={"prompt": "x", "timeout": 40, "model": "m"}, timeout=40),
        GraderSpec(key="c", kind="panel", config={"prompt": "x", "judges": both}, timeout=120),
        GraderSpec(key="d", kind="pairwise", config={"model": "m", "baseline": "latest"}, timeout=120),
        GraderSpec(key="e", kind="embedding", timeout=120),
        GraderSpec(key="f", kind="cost", config={"max_cost": 0.1}, timeout=5),
    )


UNNAMED = (
    "name the judging model, such as model: gpt-6-luna, here or with --set; earlier releases used gpt-4o-mini, which"
    " OpenAI retires on 14 January 2027"
)


@pytest.mark.parametrize("dialect", ["D4", "D6"])
def test_the_missing_default_model_of_letta_evals_is_reported(folder: Path, dialect: str) -> None:
    text = DIALECTS[dialect].replace(", model: m}", "}")
    (folder / "suite.yaml").write_text("name: letta\ndataset: cases.jsonl\n" + text)
    with pytest.raises(DocumentError) as caught:
        read_suite(folder / "suite.yaml")
    assert [problem.message for problem in caught.value.suite_problems] == [UNNAMED]
    assert read_suite(folder / "suite.yaml", ("graders.quality.model=gpt-6-luna",)).graders[0].kind == "model_judge"


def test_every_fault_is_reported_with_its_position(folder: Path) -> None:
    graders = """\
  a: {kind: model_judge, model: m}
  b: {kind: model_judge, prompt_path: rubrc.txt, model: m}
  c: {kind: model_judge, prompt: x, provider: anthropic}
  d: {kind: model_judge, prompt: x, modle: m}
  e: {kind: model_judge, prompt: x, timeout: 0, model: m}
  f: {kind: model_judge, config: {prompt: x, scoring: best}, model: m}
  g: {kind: model_judge, config: {prompt_path: none.txt}, model: m}
  h: {kind: letta_judge, prompt: x}
  i: {kind: rubric, prompt: x, agent_file: none.af}
  j: {kind: model_judge, prompt: x, timeout: 3, config: {timeout: 4}, model: m}
  k: {kind: panel, prompt: x, judges: [{model: a}, {provider: vllm}]}
  l: {kind: model_judge, prompt: x, config: 3, model: m}
"""
    bundled = (
        "name the agent that judges, here or by agent_id; the one that letta-evals 0.5 to 0.19.0 contains is in its"
        " wheel: pip download --no-deps letta-evals==0.19.0, then unzip -p letta_evals-0.19.0-*.whl"
        " letta_evals/graders/letta-evals-judge-agent.af > judge.af, and write agent_file: judge.af; or use a model"
        " with the same prompt: kind: model_judge"
    )
    assert faults(folder, graders) == [
        "5:6: graders.a.prompt: is required: define the grading with prompt, prompt_path, rubric or checklist",
        "6:39: graders.b.prompt_path: 'rubrc.txt' cannot be read: no such file",
        "7:6: graders.c.model: name the judging model, such as model: claude-haiku-5-5, here or with --set",
        f"8:6: graders.d.model: {UNNAMED}",
        "8:44: graders.d.modle: unknown option; did you mean 'model'?",
        "9:46: graders.e.timeout: expected float > 0.0, got 0",
        "10:55: graders.f.config.scoring: expected one of greedy, samples, logprobs, got 'best'",
        "11:48: graders.g.config.prompt_path: 'none.txt' cannot be read: no such file",
        f"12:6: graders.h.agent_file: {bundled}",
        f"13:44: graders.i.agent_file: {folder}/none.af cannot be read: No such file or directory",
        "14:46: graders.j.timeout: is written both inside 'config' and next to it; keep one",
        "15:52: graders.k.judges[1].model: name the judging model of vllm, here or with --set",
        "16:45: graders.l.config: expected a mapping, got 3",
    ]


JUDGE = {
    "agents": [{"name": "judge"}],
    "tools": [{"name": "submit_grade", "source_code": "def submit_grade(score: float, rationale: str): ..."}],
}
LETTA = """\
name: letta
dataset: cases.jsonl
target: {kind: agent, agent_id: agent-1, base_url: "http://letta.test", api_key: "${MY_KEY}", project_id: p-1}
graders:
"""


class TestAgentsAsJudges:
    @pytest.fixture(autouse=True)
    def agent(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "judge.af").write_text(json.dumps(JUDGE))
        monkeypatch.setenv("MY_KEY", "sk-let-0123456789")

    @pytest.mark.parametrize(
        "grader",
        [
            # 0.2 to 0.4, as the documentation writes it
            "{kind: rubric, agent_file: judge.af, prompt_path: rubric.txt, judge_tool_name: submit_grade, extractor: last_assistant}",
            # 0.5 to 0.19.0
            "{kind: letta_judge, agent_file: judge.af, prompt: 'Is it right?', rubric_vars: [tone], display_name: Quality}",
            "{kind: letta_judge, agent_id: agent-2, prompt_path: rubric.txt}",
            "{kind: rubric, config: {agent_id: agent-2, prompt: x}}",
            "{kind: tool, function: letta_judge, agent_id: agent-2, prompt: x}",
        ],
    )
    def test_judges_of_every_release_are_read_unmodified(self, folder: Path, grader: str) -> None:
        suite = read(folder, f"  quality: {grader}\n")
        assert [(spec.kind, spec.timeout) for spec in suite.graders] == [("letta_judge", 300.0)]
        (warning,) = suite.warnings
        assert warning.endswith(NOT_MENTIONED)

    @pytest.mark.parametrize(
        ("grader", "server"),
        [
            (
                "agent_id: a",
                {"base_url": "http://letta.test", "project_id": "p-1", "api_key_env": "MY_KEY"},
            ),
            (
                "agent_id: a, project_id: p-2, api_key_env: OTHER",
                {"base_url": "http://letta.test", "project_id": "p-2", "api_key_env": "OTHER"},
            ),
            # the target's key is not sent to another server
            ("agent_id: a, base_url: 'http://judge.test'", {"base_url": "http://judge.test"}),
        ],
    )
    def test_the_judge_uses_the_server_of_the_target(self, folder: Path, grader: str, server: dict[str, Any]) -> None:
        (spec,) = read(folder, f"  a: {{kind: letta_judge, prompt: x, {grader}}}\n", LETTA).graders
        assert spec.config == {"prompt": "x", "agent_id": "a", **server}

    def test_targets_of_other_kinds_pass_nothing_on(self, folder: Path) -> None:
        (spec,) = read(folder, "  a: {kind: letta_judge, prompt: x, agent_id: a}\n").graders
        assert spec.config == {"prompt": "x", "agent_id": "a"}

    def test_a_key_written_in_the_target_is_not_passed_to_the_judge(self, folder: Path) -> None:
        key = "sk-let-0123456789"
        with pytest.raises(DocumentError) as caught:
            read(folder, "  a: {kind: letta_judge, prompt: x, agent_id: a}\n", LETTA.replace("${MY_KEY}", key))
        assert [str(problem).removeprefix(f"{folder}/suite.yaml:") for problem in caught.value.suite_problems] == [
            "5:6: graders.a.api_key_env: a judge's key is read from a variable, but the target's key is in the suite;"
            " write api_key: ${LETTA_API_KEY} there, and export it"
        ]

    def test_a_judge_without_its_tool_is_reported_with_its_position(self, folder: Path) -> None:
        assert faults(folder, "  a: {kind: rubric, prompt: x, agent_file: judge.af, judge_tool_name: mark}\n") == [
            f"5:71: graders.a.judge_tool_name: the agent of {folder}/judge.af has no tool 'mark' to grade with; its"
            " tools: 'submit_grade'; name one of them, or add such a tool to the agent"
        ]

    def test_options_of_model_judges_give_a_warning(self, folder: Path) -> None:
        grader = (
            "{kind: rubric, prompt: '{submission} {mood}', agent_file: judge.af, model: gpt-4o-mini, provider: openai}"
        )
        none = "has no effect here: the agent that judges has its own model"
        assert warnings(folder, f"  a: {grader}\n") == [
            "5:29: graders.a.prompt: {mood} is literal text, not a placeholder, unless a case has 'mood' in its"
            " rubric_vars",
            f"5:81: graders.a.model: {none}",
            f"5:104: graders.a.provider: {none}",
        ]


def test_no_key_is_needed_to_read_a_suite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert read(folder, "  a: {kind: model_judge, prompt: x, model: m}\n").graders[0].kind == "model_judge"


@pytest.mark.parametrize(
    ("grader", "warned"),
    [
        ("{kind: model_judge, prompt: '{submission} {tone}', model: m}", []),
        ("{kind: model_judge, prompt: '{submission} {mood}', rubric_vars: {mood: x}, model: m}", []),
        ("{kind: model_judge, prompt: '{submission} {mood}', rubric_vars: [mood], model: m}", []),
        ("{kind: model_judge, rubric: closed_qa, model: m}", []),
        (
            "{kind: model_judge, prompt: '{submission} {mood}', model: m}",
            [
                "5:34: graders.a.prompt: {mood} is literal text, not a placeholder, unless a case has 'mood' in its"
                " rubric_vars"
            ],
        ),
        (
            "{kind: model_judge, config: {prompt: '{{input}}'}, model: m}",
            [
                f"5:43: graders.a.config.prompt: {NOT_MENTIONED}",
                "5:43: graders.a.config.prompt: {{input}} is literal text here; write {input} for the case's input",
            ],
        ),
        (
            "{kind: panel, prompt: x, judges: [{model: gpt-4o}, {model: gpt-5}]}",
            [
                f"5:28: graders.a.prompt: {NOT_MENTIONED}",
                "5:39: graders.a.judges: all judges are of the family openai and share its biases; add one of another"
                " family",
            ],
        ),
    ],
)
def test_suspicious_options_give_a_warning(folder: Path, grader: str, warned: list[str]) -> None:
    assert warnings(folder, f"  a: {grader}\n") == warned


def test_an_unknown_placeholder_in_a_file_gives_a_warning(folder: Path) -> None:
    (folder / "rubric.txt").write_text("{submission} {mood}")
    (warning,) = warnings(folder, "  a: {kind: model_judge, prompt_path: rubric.txt, model: m}\n")
    assert warning.startswith("5:39: graders.a.prompt_path: {mood} is literal text, not a placeholder")


def test_an_unreadable_dataset_is_reported_once(folder: Path) -> None:
    (folder / "cases.jsonl").write_text("not json\n")
    assert read(folder, "  a: {kind: model_judge, prompt: '{submission}', model: m}\n").warnings == ()

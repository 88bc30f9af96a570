from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradeline.suite.places import DocumentError
from gradeline.suite.read import read_suite
from gradeline.suite.spec import GraderSpec

SUITE = """\
name: capitals
dataset: cases.jsonl
target:
  kind: http
  url: http://127.0.0.1:9000/evaluate
  headers: {Authorization: "Bearer ${AGENT_KEY}"}
graders:
  exact: {kind: string-match, config: {case_sensitive: false}, pass_threshold: 1.0}
  rules:
    kind: custom-rules
    rules: [{condition: contains, value: Paris}]
  letta: {kind: tool, function: exact_match, extractor: pattern, extractor_config: {pattern: "A: (.*)", group: 1}}
  fields: {kind: tool, function: json_field_validator, extractor: own.py:mine, timeout: 2}
gate: {kind: simple, metric_key: exact, aggregation: avg_score, op: gte, value: 0.8}
max_samples: 10
num_runs: 2
max_concurrent: 4
sample_tags: [geo]
setup_script: setup.py:prepare
cleanup: true
sandbox: {kind: modal}
x-owner: me
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_KEY", "s3cret")
    (tmp_path / "cases.jsonl").write_text('{"input": "q"}\n')
    return tmp_path


def suite(folder: Path, text: str = SUITE) -> Any:
    path = folder / "suite.yaml"
    path.write_text(text)
    return read_suite(path)


def faults(folder: Path, text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        suite(folder, text)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.placed]


def test_a_suite_is_read_into_one_form(folder: Path) -> None:
    read = suite(folder)
    assert (read.name, read.dataset, read.folder) == ("capitals", folder / "cases.jsonl", folder)
    assert (read.limit, read.repeats, read.concurrency, read.tags) == (10, 2, 4, ("geo",))
    assert read.setup == "setup.py:prepare"
    assert read.graders == (
        GraderSpec(key="exact", kind="string-match", config={"case_sensitive": False}, pass_threshold=1.0),
        GraderSpec(key="rules", kind="custom-rules", config={"rules": [{"condition": "contains", "value": "Paris"}]}),
        GraderSpec(
            key="letta",
            kind="exact_match",
            extractor="pattern",
            extractor_config={"pattern": "A: (.*)", "group": 1},
        ),
        GraderSpec(key="fields", kind="tool", function="json_field_validator", extractor="own.py:mine", timeout=2),
    )
    assert read.gate is not None
    assert (read.gate.metric_key, read.gate.measured, read.gate.value) == ("exact", "avg_score", 0.8)


def test_what_the_environment_gives_is_a_secret(folder: Path) -> None:
    target = suite(folder).target
    assert target.config["headers"] == {"Authorization": "Bearer s3cret"}
    assert target.secrets == {"s3cret"}


def test_a_key_of_letta_without_effect_is_a_warning(folder: Path) -> None:
    assert suite(folder).warnings == (f"{folder}/suite.yaml:21:10: sandbox: has no effect here",)


def test_a_gate_of_the_oldest_dialect_is_read(folder: Path) -> None:
    old = SUITE.replace(
        "gate: {kind: simple, metric_key: exact, aggregation: avg_score, op: gte, value: 0.8}",
        "gate: {metric: accuracy, op: gte, value: 0.9, pass_op: gte, pass_value: 0.5}",
    )
    assert suite(folder, old).gate.measured == "accuracy"


def test_every_fault_is_told_at_once_in_the_files_order(folder: Path) -> None:
    wrong = """\
nam: capitals
dataset: case.jsonl
target: {kind: htp}
graders:
  exact: {kind: string-match, config: {mode: fuzy}, pass_threshold: 2}
  rules: {kind: custom-rules, rules: [{condition: contain, value: x}]}
  tool: {kind: tool}
  judge: {kind: model_judge}
  text: exact_match
  both: {kind: numeric, tolerance: 1, config: {tolerance: 2}}
gate: {op: gte, value: 1, metric_key: exat}
num_runs: 0
repeats: 2
coverage_floor: 95
"""
    assert faults(folder, wrong) == [
        "suite.yaml:1:1: name: is required",
        "suite.yaml:1:6: nam: unknown key; did you mean 'name'?",
        "suite.yaml:2:10: dataset: no file 'case.jsonl'; did you mean 'cases.jsonl'?",
        "suite.yaml:3:16: target.kind: no target named 'htp'; did you mean 'http'?",
        "suite.yaml:5:46: graders.exact.config.mode: expected one of exact, contains, starts_with, ends_with, fuzzy "
        "(did you mean 'fuzzy'?), got 'fuzy'",
        "suite.yaml:5:69: graders.exact.pass_threshold: must be a number from 0 to 1, got 2",
        "suite.yaml:6:51: graders.rules.rules[0].condition: no condition named 'contain'; did you mean 'contains'?",
        "suite.yaml:7:9: graders.tool.function: must name a grader, got None",
        "suite.yaml:8:10: graders.judge.prompt: is required: say how to grade by prompt, prompt_path, rubric or checklist",
        "suite.yaml:9:9: graders.text: must be a mapping such as {kind: exact_match}, got 'exact_match'",
        "suite.yaml:10:36: graders.both.tolerance: stands both beside and inside 'config'; keep one",
        "suite.yaml:11:39: gate.metric_key: no grader 'exat'; did you mean 'exact'?",
        "suite.yaml:12:11: num_runs: must be a whole number from 1 on, got 0",
        "suite.yaml:13:10: repeats: is another name of 'num_runs'; keep one of them",
        "suite.yaml:14:17: coverage_floor: must be a number from 0 to 1, got 95",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("${AGENT_KEY}", "${NO_SUCH_KEY}", "NO_SUCH_KEY"),
        ("  url: http://127.0.0.1:9000/evaluate\n", "", "target.url: is required"),
        ('pattern: "A: (.*)"', 'pattern: "("', "graders.letta.extractor_config.pattern"),
        ("timeout: 2", "timeout: 0", "graders.fields.timeout: must be a number of seconds, got 0"),
        ("function: json_field_validator", "function: json_field_validator, color: red", "takes no options"),
        ("dataset: cases.jsonl", "dataset: 3", "dataset: must be a path or a list of cases, got 3"),
        ("sample_tags: [geo]", "sample_tags: geo", "sample_tags: must be a list of texts, got 'geo'"),
        ("graders:\n", "graders: {}\nx-graders:\n", "graders: must name at least one grader, got {}"),
    ],
)
def test_a_fault_is_named(folder: Path, old: str, new: str, message: str) -> None:
    assert old in SUITE
    assert any(message in fault for fault in faults(folder, SUITE.replace(old, new)))


SHORT = """\
name: short
dataset: cases.jsonl
target: {kind: http, url: "http://127.0.0.1:9000"}
graders: {exact: {kind: exact_match}, near: {kind: similarity}}
"""


def test_what_a_run_may_spend_and_reuse(folder: Path) -> None:
    read = suite(folder, SHORT + "budget: {cost: 5, calls: 1000}\ncache: true\nseed: 7\noutput: results\n")
    assert (read.budget.cost, read.budget.calls) == (5.0, 1000)
    assert (read.cache, read.seed, read.output) == (True, 7, folder / "results")


def test_several_models_are_told_apart_from_the_target(folder: Path) -> None:
    for word in ("models", "model_handles"):
        read = suite(folder, SHORT.replace('9000"', f'9000", {word}: [small, large]'))
        assert read.target.models == ("small", "large")
        assert read.target.config == {"url": "http://127.0.0.1:9000"}


def test_a_reward_that_is_one_graders_score_is_its_column(folder: Path) -> None:
    read = suite(folder, SHORT + "reward: {kind: metric, metric_key: near}\n")
    assert (read.reward, read.columns, read.gate) == (None, ("exact", "near"), None)


def test_a_reward_of_ones_own_is_a_column_more(folder: Path) -> None:
    text = SHORT + "reward: {kind: custom, function: rewards.py:compose}\n"
    assert suite(folder, text).columns == ("exact", "near", "reward")
    gate = "gate: {kind: simple, metric_key: reward, aggregation: avg_score, op: gte, value: 0.5}\n"
    assert suite(folder, text + gate).gate is not None
    taken = text.replace("near:", "reward:")
    assert suite(folder, taken).columns == ("exact", "reward", "reward_composer")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget: {cost: 0}", "budget.cost: "),
        ("budget: 5", "budget: "),
        ("budget: {euros: 5}", "budget.euros: "),
        ("cache: maybe", "cache: must be true or false, got 'maybe'"),
        ("seed: seven", "seed: must be a whole number, got 'seven'"),
        ("agent_errors: ignore", "agent_errors: must be exclude or fail, got 'ignore'"),
        ("reward: {kind: metric, metric_key: nearr}", "reward.metric_key: no grader 'nearr'; did you mean 'near'?"),
        ("reward: {kind: custom}", "reward.function: is required"),
        ("reward: {kind: mean}", "reward: must be {kind: metric, metric_key: …} or {kind: custom, function: …}"),
        ("reward: {kind: metric, metric_key: near, weight: 2}", "reward.weight: unknown option; known are"),
    ],
)
def test_a_fault_beside_the_graders_is_named(folder: Path, text: str, message: str) -> None:
    (fault,) = faults(folder, f"{SHORT}{text}\n")
    assert fault.startswith("suite.yaml:5:")
    assert message in fault


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("models: small", "target.models: must be a list of names, got 'small'"),
        ("models: [a, a]", "target.models: names 'a' twice; for several runs of one, write repeats"),
        ("models: [a], model_handles: [b]", "target.model_handles: is another name of 'models'; keep one of them"),
        ("models: [a], model: b", "target.model: stands beside 'models'; keep one of them"),
    ],
)
def test_a_fault_in_the_models_is_named(folder: Path, models: str, message: str) -> None:
    (fault,) = faults(folder, SHORT.replace('9000"', f'9000", {models}'))
    assert message in fault


def test_what_others_see_of_a_suite_has_no_secret(folder: Path) -> None:
    text = SHORT.replace('9000"', '9000", headers: {Authorization: "Bearer abc", x-key: "${AGENT_KEY}", accept: text}')
    assert suite(folder, text).masked["target"]["headers"] == {
        "Authorization": "[redacted]",
        "x-key": "${AGENT_KEY}",
        "accept": "text",
    }

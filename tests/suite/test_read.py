from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.problems import DocumentError
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
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.suite_problems]


@pytest.mark.parametrize(
    ("entry", "extractor"),
    [
        ("kind: tool_calls", "tool_calls"),
        ("kind: tool, function: tool_calls", "tool_calls"),
        ("kind: tool_calls, preset: bfcl", "tool_calls"),
        ("kind: tool_calls, extractor: last_assistant", "last_assistant"),
        ("kind: trajectory", "last_assistant"),
        ("kind: string_match", "last_assistant"),
        ("kind: tool, function: own.py:mine", "last_assistant"),
    ],
)
def test_the_default_extractor_is_that_of_the_grader(folder: Path, entry: str, extractor: str) -> None:
    text = f"name: n\ndataset: cases.jsonl\ntarget: {{kind: http, url: 'http://x/'}}\ngraders: {{g: {{{entry}}}}}\n"
    (grader,) = suite(folder, text).graders
    assert grader.extractor == extractor


def test_a_suite_is_read_into_one_form(folder: Path) -> None:
    read = suite(folder)
    assert (read.name, read.dataset, read.folder) == (
        "capitals",
        DatasetSource((folder / "cases.jsonl",)),
        folder,
    )
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


def test_values_of_the_environment_are_secrets(folder: Path) -> None:
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


def test_all_faults_are_reported_at_once_in_file_order(folder: Path) -> None:
    wrong = """\
nam: capitals
dataset: case.jsonl
target: {kind: htp}
graders:
  exact: {kind: string-match, config: {mode: fuzy}, pass_threshold: 2, noise: 1%}
  rules: {kind: custom-rules, rules: [{condition: contain, value: x}]}
  tool: {kind: tool}
  judge: {kind: model_judge, model: m}
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
        "suite.yaml:5:46: graders.exact.config.mode: expected one of exact, contains, starts_with, ends_with, fuzzy, normalized "
        "(did you mean 'fuzzy'?), got 'fuzy'",
        "suite.yaml:5:69: graders.exact.pass_threshold: expected a number from 0 to 1, got 2",
        "suite.yaml:5:79: graders.exact.noise: expected a number from 0 to below 1, such as 0.01, got '1%'",
        "suite.yaml:6:51: graders.rules.rules[0].condition: no condition named 'contain'; did you mean 'contains'?",
        "suite.yaml:7:9: graders.tool.function: expected the name of a grader, got None",
        "suite.yaml:8:10: graders.judge.prompt: is required: define the grading with prompt, prompt_path, rubric or checklist",
        "suite.yaml:9:9: graders.text: expected a mapping such as {kind: exact_match}, got 'exact_match'",
        "suite.yaml:10:36: graders.both.tolerance: is written both inside 'config' and next to it; keep one",
        "suite.yaml:11:39: gate.metric_key: no grader 'exat'; did you mean 'exact'?",
        "suite.yaml:12:11: num_runs: expected a whole number, at least 1, got 0",
        "suite.yaml:13:10: repeats: is another name of 'num_runs'; keep one of them",
        "suite.yaml:14:17: coverage_floor: expected a number from 0 to 1, got 95",
    ]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("${AGENT_KEY}", "${NO_SUCH_KEY}", "NO_SUCH_KEY"),
        ("  url: http://127.0.0.1:9000/evaluate\n", "", "target.url: is required"),
        ('pattern: "A: (.*)"', 'pattern: "("', "graders.letta.extractor_config.pattern"),
        ("timeout: 2", "timeout: 0", "graders.fields.timeout: expected a number of seconds, got 0"),
        (
            "timeout: 2",
            "noise: 1",
            "graders.fields.noise: expected a number from 0 to below 1, such as 0.01, got 1",
        ),
        ("timeout: 2", "noise: -0.01", "noise: expected a number from 0 to below 1, such as 0.01, got -0.01"),
        ("timeout: 2", "noise: true", "noise: expected a number from 0 to below 1, such as 0.01, got True"),
        ("timeout: 2", "noise: 1%", "noise: expected a number from 0 to below 1, such as 0.01, got '1%'"),
        ("timeout: 2", "noise: .nan", "graders.fields.noise: '.nan' is not a finite number"),
        ("timeout: 2", "noise: [0.01]", "noise: expected a number from 0 to below 1, such as 0.01, got [0.01]"),
        ("timeout: 2", "nois: 0.1", "graders.fields.nois: unknown key; did you mean 'noise'?"),
        ("timeout: 2", "memory: 2G", "graders.fields.memory: invalid size '2G': write a size such as 512MB or 2GiB"),
        ("timeout: 2", "memory: 1", "graders.fields.memory: 1 is too small to start Python in; use at least 64 MiB"),
        (
            "pass_threshold: 1.0",
            "memory: 4GiB",
            "graders.exact.memory: only custom graders and extractors have a memory limit; leave it out",
        ),
        ("function: json_field_validator", "function: json_field_validator, color: red", "takes no options"),
        (
            "function: json_field_validator",
            "function: json_field_validator, pass_treshold: 0.5",
            "graders.fields.pass_treshold: unknown key; did you mean 'pass_threshold'?",
        ),
        (
            "exact: {kind: string-match,",
            "exact: {kind: string-match, extracter: last_turn,",
            "graders.exact.extracter: unknown key; did you mean 'extractor'?",
        ),
        ("dataset: cases.jsonl", "dataset: 3", "dataset: expected a path, a list of paths or a list of cases, got 3"),
        ("sample_tags: [geo]", "sample_tags: geo", "sample_tags: expected a list of strings, got 'geo'"),
        ("graders:\n", "graders: {}\nx-graders:\n", "graders: expected a mapping with at least one grader, got {}"),
    ],
)
def test_a_fault_is_reported(folder: Path, old: str, new: str, message: str) -> None:
    assert old in SUITE
    assert any(message in fault for fault in faults(folder, SUITE.replace(old, new)))


SHORT = """\
name: short
dataset: cases.jsonl
target: {kind: http, url: "http://127.0.0.1:9000"}
graders: {exact: {kind: exact_match}, near: {kind: similarity}}
"""


@pytest.mark.parametrize(("written", "noise"), [("0.01", 0.01), ("0", 0.0), ("null", 0.0)])
def test_noise_of_graders(folder: Path, written: str, noise: float) -> None:
    text = SUITE.replace("pass_threshold: 1.0", f"noise: {written}").replace("timeout: 2", f"noise: {written}")
    read = {spec.key: spec for spec in suite(folder, text).graders}
    assert (read["exact"].noise, read["fields"].noise, read["rules"].noise) == (noise, noise, 0.0)


@pytest.mark.parametrize(("written", "size"), [("4GiB", 4 * 1024**3), ("none", 0), ("null", 2 * 1024**3)])
def test_the_memory_of_custom_code(folder: Path, written: str, size: int) -> None:
    read = {spec.key: spec for spec in suite(folder, SUITE.replace("timeout: 2", f"memory: {written}")).graders}
    assert (read["fields"].memory, read["exact"].memory) == (size, 2 * 1024**3)


def test_budget_cache_seed_and_output(folder: Path) -> None:
    read = suite(folder, SHORT + "budget: {cost: 5, calls: 1000}\ncache: true\nseed: 7\noutput: results\n")
    assert (read.budget.cost, read.budget.calls) == (5.0, 1000)
    assert (read.cache, read.seed, read.output) == (True, 7, folder / "results")


def test_models_are_not_options_of_the_target(folder: Path) -> None:
    for word in ("models", "model_handles"):
        read = suite(folder, SHORT.replace('9000"', f'9000", {word}: [small, large]'))
        assert read.models == ("small", "large")
        assert read.target.config == {"url": "http://127.0.0.1:9000"}


def test_a_reward_that_is_one_graders_score_is_its_column(folder: Path) -> None:
    read = suite(folder, SHORT + "reward: {kind: metric, metric_key: near}\n")
    assert (read.reward, read.columns, read.gate) == (None, ("exact", "near"), None)


def test_a_custom_reward_is_an_additional_column(folder: Path) -> None:
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
        ("cache: maybe", "cache: expected true or false, got 'maybe'"),
        ("seed: seven", "seed: expected a whole number, got 'seven'"),
        ("agent_errors: ignore", "agent_errors: expected one of exclude, fail, got 'ignore'"),
        ("reward: {kind: metric, metric_key: nearr}", "reward.metric_key: no grader 'nearr'; did you mean 'near'?"),
        ("reward: {kind: custom}", "reward.function: is required"),
        ("reward: {kind: mean}", "reward: expected {kind: metric, metric_key: …} or {kind: custom, function: …}"),
        ("reward: {kind: metric, metric_key: near, weight: 2}", "reward.weight: unknown option; use one of"),
    ],
)
def test_a_fault_outside_the_graders_is_reported(folder: Path, text: str, message: str) -> None:
    (fault,) = faults(folder, f"{SHORT}{text}\n")
    assert fault.startswith("suite.yaml:5:")
    assert message in fault


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ("models: small", "target.models: expected a list of names, got 'small'"),
        ("models: [a, a]", "target.models: names 'a' twice; for several runs of one model use repeats"),
        ("models: [a], model_handles: [b]", "target.model_handles: is another name of 'models'; keep one of them"),
        ("models: [a], model: b", "target.model: conflicts with 'models'; keep one of them"),
    ],
)
def test_a_fault_in_the_models_is_reported(folder: Path, models: str, message: str) -> None:
    (fault,) = faults(folder, SHORT.replace('9000"', f'9000", {models}'))
    assert message in fault


def test_the_masked_suite_has_no_secret(folder: Path) -> None:
    text = SHORT.replace('9000"', '9000", headers: {Authorization: "Bearer abc", x-key: "${AGENT_KEY}", accept: text}')
    assert suite(folder, text).masked["target"]["headers"] == {
        "Authorization": "[redacted]",
        "x-key": "${AGENT_KEY}",
        "accept": "text",
    }


MARKED = "from gradeline import {role}\n\n@{mark}\ndef {name}({parameters}): ...\n"


def mark(folder: Path, file: str, name: str, *, role: str = "grader", mark: str | None = None) -> None:
    """A file that marks a function; what it does is never looked at."""
    parameters = "sample, submission" if role == "grader" else "trajectory, config"
    (folder / file).write_text(MARKED.format(role=role, mark=mark or role, name=name, parameters=parameters))


class TestNamesOfBuiltIns:
    """A bare name that a built-in and a function of the folder have is refused: either could be meant."""

    TOOL = SHORT.replace("{kind: exact_match}", "{kind: tool, function: contains}")

    @pytest.mark.parametrize(
        ("name", "marked", "reference"),
        [
            ("contains", "grader", "mine.py:contains"),
            ("mine", 'grader(name="contains")', "mine.py:mine"),
        ],
    )
    def test_a_grader_of_the_folder(self, folder: Path, name: str, marked: str, reference: str) -> None:
        mark(folder, "mine.py", name, mark=marked)
        (found,) = faults(folder, self.TOOL)
        assert found == (
            "suite.yaml:4:41: graders.exact.function: 'contains' is the name of a built-in grader, and a function is"
            f" marked @grader with the same name at mine.py:4; write function: {reference} for that function, or"
            " kind: contains for the built-in grader"
        )

    @pytest.mark.parametrize("written", ["", ", extractor: last_assistant"])
    def test_an_extractor_of_the_folder_even_where_the_suite_names_none(self, folder: Path, written: str) -> None:
        mark(folder, "mine.py", "last_assistant", role="extractor")
        found = faults(folder, SHORT.replace("{kind: exact_match}", f"{{kind: exact_match{written}}}"))
        assert [one.split(": ")[1] for one in found] == ["graders.exact.extractor", "graders.near.extractor"]
        assert found[0].endswith(
            "graders.exact.extractor: 'last_assistant' is the name of a built-in extractor, and a function is marked"
            " @extractor with the same name at mine.py:4; write extractor: mine.py:last_assistant for that function, or"
            " rename the function"
        )

    @pytest.mark.parametrize(
        "entry",
        [
            "{kind: contains}",
            "{kind: tool, function: mine.py:contains}",
            "{kind: tool, function: exact_match}",
        ],
    )
    def test_an_unambiguous_name_is_accepted(self, folder: Path, entry: str) -> None:
        mark(folder, "mine.py", "contains")
        suite(folder, SHORT.replace("{kind: exact_match}", entry))

    @pytest.mark.parametrize(
        "source",
        [
            "from gradeline import grader as g\n@g\ndef contains(sample, submission): ...\n",
            "import gradeline\n@gradeline.grader()\nasync def contains(sample, submission): ...\n",
            "from gradeline import grader\ntry:\n    import numpy\nexcept ImportError:\n    @grader\n    def contains(s, t): ...\n",
        ],
    )
    def test_other_ways_to_mark_one(self, folder: Path, source: str) -> None:
        (folder / "mine.py").write_text(source)
        assert "'contains' is the name of a built-in grader" in faults(folder, self.TOOL)[0]

    @pytest.mark.parametrize(
        "source",
        [
            "def contains(sample, submission): ...\n",
            "from gradeline import extractor\n@extractor\ndef contains(trajectory, config): ...\n",
            "@grader\ndef contains(sample, submission)\n",
        ],
    )
    def test_other_functions_of_that_name_are_no_conflict(self, folder: Path, source: str) -> None:
        (folder / "mine.py").write_text(source)
        suite(folder, self.TOOL)

    def test_every_function_of_the_name_is_listed(self, folder: Path) -> None:
        mark(folder, "a.py", "contains")
        mark(folder, "b.py", "contains")
        assert "at a.py:4 and b.py:4; write function: a.py:contains" in faults(folder, self.TOOL)[0]

    def test_another_spelling_of_a_built_ins_name_counts_too(self, folder: Path) -> None:
        text = SHORT.replace("{kind: exact_match}", "{kind: tool, function: string_match}")
        assert suite(folder, text).graders[0].kind == "string-match"
        mark(folder, "mine.py", "string_match")
        assert "'string_match' is the name of a built-in grader" in faults(folder, text)[0]

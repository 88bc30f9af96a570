"""Suites of every letta-evals dialect are read unmodified. Judges are tested in `test_judges`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradeline.suite.letta_dialects import rewrite_gate, rewrite_suite
from gradeline.suite.problems import DocumentError
from gradeline.suite.read import read_suite
from gradeline.suite.spec import SuiteDefinition
from gradeline.verdict import LogicalGate, SimpleGate, WeightedGate

TOOL = "graders: {right: {kind: tool, function: contains, extractor: last_assistant}, same: {kind: tool, function: exact_match}}"
DIALECTS = {
    "D1": """\
target: {kind: agent, agent_file: assistant.af, base_url: "http://localhost:8283"}
gate: {metric_key: right, metric: accuracy, op: gte, value: 0.9, pass_op: gte, pass_value: 0.5}
""",
    "D2": """\
target: {kind: letta_agent, agent_id: agent-1, api_key: "${LETTA_KEY}", timeout: 60, max_retries: 2}
gate: {metric: avg_score, op: gt, value: 0.5}
num_runs: 2
""",
    "D3": """\
target: {kind: letta_code, model_handles: [openai/gpt-4.1, anthropic/claude], working_dir: work}
gate: {kind: simple, metric_key: right, aggregation: p95, op: gte, value: 0.5}
max_concurrent: 4
output: results
cleanup: true
""",
    "D4": """\
target: {kind: letta_code, model_handles: [openai/gpt-4.1]}
gate: {kind: weighted_average, aggregation: avg_score, weights: {right: 2, same: 1}, op: gte, value: 0.5}
sandbox: {kind: modal, image: debian}
""",
    "D5": """\
target: {kind: letta_code, model_handles: [openai/gpt-4.1], flags: "--verbose"}
gate:
  kind: logical
  operator: and
  conditions:
    - {metric_key: right, aggregation: accuracy, op: gte, value: 90}
    - kind: logical
      operator: or
      conditions:
        - {metric_key: same, aggregation: avg_score, op: gte, value: 0.5}
        - {metric_key: right, aggregation: min, op: gt, value: 0}
""",
    "D6": """\
target: {model_handles: [openai/gpt-4.1], permission_mode: plan, pricing: {openai/gpt-4.1: {input_per_mtok: 2, output_per_mtok: 8}}}
reward: {kind: metric, metric_key: right}
""",
}


def read(folder: Path, dialect: str) -> SuiteDefinition:
    (folder / "data.jsonl").write_text(
        '{"input": "q", "ground_truth": "a", "extra_vars": {"x": 1}, "sample_id": "s-1"}\n'
    )
    (folder / "assistant.af").write_text("{}")
    (folder / "suite.yaml").write_text(f"name: letta\ndataset: data.jsonl\n{TOOL}\n{DIALECTS[dialect]}")
    return read_suite(folder / "suite.yaml")


@pytest.mark.parametrize(
    ("dialect", "kind", "gate"),
    [
        ("D1", "letta_agent", SimpleGate),
        ("D2", "letta_agent", SimpleGate),
        ("D3", "letta_code", SimpleGate),
        ("D4", "letta_code", WeightedGate),
        ("D5", "letta_code", LogicalGate),
        ("D6", "letta_code", type(None)),
    ],
)
def test_a_suite_of_a_dialect_is_read_unmodified(
    dialect: str, kind: str, gate: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETTA_KEY", "s3cret")
    suite = read(tmp_path, dialect)
    assert suite.target.kind == kind
    assert isinstance(suite.gate, gate)
    assert [(spec.key, spec.kind) for spec in suite.graders] == [("right", "contains"), ("same", "exact_match")]


def test_only_keys_without_effect_give_a_warning(tmp_path: Path) -> None:
    warned = {}
    for dialect in ("D1", "D3", "D4", "D5", "D6"):
        warned[dialect] = [warning.partition(": ")[2] for warning in read(tmp_path, dialect).warnings]
    assert warned == {
        "D1": [],
        "D3": [],
        "D4": ["sandbox: has no effect here"],
        "D5": [],
        "D6": [],
    }


def test_models_repeats_and_concurrency_have_one_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETTA_KEY", "s3cret")
    assert read(tmp_path, "D3").models == ("openai/gpt-4.1", "anthropic/claude")
    assert (read(tmp_path, "D2").repeats, read(tmp_path, "D3").concurrency) == (2, 4)
    assert read(tmp_path, "D3").output == tmp_path / "results"


@pytest.mark.parametrize(
    ("written", "rewritten"),
    [
        ({"metric": "accuracy", "op": "gte", "value": 90}, {"aggregation": "accuracy", "op": "gte", "value": 90}),
        ({"op": "gte", "pass_value": 0.5}, {"op": "gte", "pass_threshold": 0.5}),
        ({"op": "gt", "pass_value": 0.5}, {"op": "gt", "pass_threshold": 0.5, "pass_op": "gt"}),
        ({"op": "gt", "pass_value": 0.5, "pass_op": "eq"}, {"op": "gt", "pass_threshold": 0.5, "pass_op": "eq"}),
        ({"op": "gt", "pass_threshold": 0.5}, {"op": "gt", "pass_threshold": 0.5}),
        ({"metric": None, "aggregation": "min"}, {"aggregation": "min"}),
        (
            {"kind": "logical", "conditions": [{"metric": "accuracy"}]},
            {"kind": "logical", "conditions": [{"aggregation": "accuracy"}]},
        ),
        ({"kind": "weighted_average", "metric": "accuracy"}, {"kind": "weighted_average", "metric": "accuracy"}),
        (None, None),
    ],
)
def test_a_gate_without_a_kind_is_rewritten_to_a_simple_gate(written: Any, rewritten: Any) -> None:
    assert rewrite_gate(written) == rewritten


def test_the_path_of_a_renamed_key_is_the_one_in_the_file() -> None:
    suite = rewrite_suite({"num_runs": 2, "gate": {"metric": "accuracy"}, "target": {"model_handles": ["a"]}})
    assert suite.data == {"repeats": 2, "gate": {"aggregation": "accuracy"}, "target": {"models": ["a"]}}
    assert suite.written(("repeats",)) == ("num_runs",)
    assert suite.written(("gate", "aggregation")) == ("gate", "metric")
    assert suite.written(("target", "models", 0)) == ("target", "model_handles", 0)
    assert suite.written(("graders", "exact")) == ("graders", "exact")


@pytest.mark.parametrize(
    ("gate", "faults"),
    [
        (
            "{metric: median, op: gte, value: 1}",
            ["4:16: gate.metric: expected one of avg_score, accuracy, got 'median'"],
        ),
        (
            "{metric: accuracy, aggregation: accuracy, op: gte, value: 1}",
            ["4:39: gate.aggregation: is another name of 'metric'; keep one of them"],
        ),
        (
            "{metric: accuracy, op: gte, value: 1, pass_threshold: 1, pass_value: 1}",
            ["4:76: gate.pass_value: is another name of 'pass_threshold'; keep one of them"],
        ),
        (
            "{metric: accuracy, op: gt, value: 1, pass_value: x}",
            ["4:56: gate.pass_value: expected a number, got 'x'"],
        ),
    ],
)
def test_a_fault_has_the_position_and_the_name_of_the_file(tmp_path: Path, gate: str, faults: list[str]) -> None:
    (tmp_path / "suite.yaml").write_text(
        f"name: letta\ndataset: [{{input: q}}]\ntarget: {{kind: python, function: 'a.py:b'}}\ngate: {gate}\n{TOOL}\n"
    )
    with pytest.raises(DocumentError) as caught:
        read_suite(tmp_path / "suite.yaml")
    assert [str(problem).partition("suite.yaml:")[2] for problem in caught.value.suite_problems] == faults

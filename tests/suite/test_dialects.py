"""A suite of each of letta's dialects, as far as no judge is in it, reads as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradeline.suite.read import read_suite
from gradeline.suite.spec import Suite
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


def read(folder: Path, dialect: str) -> Suite:
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
def test_it_reads_as_it_stands(
    dialect: str, kind: str, gate: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LETTA_KEY", "s3cret")
    suite = read(tmp_path, dialect)
    assert suite.target.kind == kind
    assert isinstance(suite.gate, gate)
    assert [(spec.key, spec.kind) for spec in suite.graders] == [("right", "contains"), ("same", "exact_match")]


def test_only_what_has_no_effect_is_warned_of(tmp_path: Path) -> None:
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


def test_several_models_and_repeats_are_the_same_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LETTA_KEY", "s3cret")
    assert read(tmp_path, "D3").target.models == ("openai/gpt-4.1", "anthropic/claude")
    assert (read(tmp_path, "D2").repeats, read(tmp_path, "D3").concurrency) == (2, 4)
    assert read(tmp_path, "D3").output == tmp_path / "results"

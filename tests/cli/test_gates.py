"""Every kind of gate from the command line: output and exit code."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gradeline_command import COMMAND, run_command

GATES: dict[str, dict[str, Any]] = {
    "simple": {"kind": "simple", "metric_key": "right", "aggregation": "avg_score", "op": "gte", "value": 0.5},
    "un-kinded": {"metric": "accuracy", "op": "gte", "value": 50},
    "weighted": {
        "kind": "weighted_average", "aggregation": "avg_score", "weights": {"right": 3, "same": 1}, "op": "gte", "value": 0.5,
    },
    "logical": {
        "kind": "logical",
        "operator": "and",
        "conditions": [{"metric_key": key, "aggregation": "accuracy", "op": "gte", "value": 0.5} for key in ("right", "same")],
    },
    "regression": {"kind": "regression", "metric_key": "right", "baseline": "best", "margin": 0.2},
    "consistency": {"kind": "consistency", "metric_key": "right", "k": 2, "n": 2, "op": "gte", "value": 0.5},
    "pass_hat": {"kind": "consistency", "metric_key": "right", "pass_hat": 2, "op": "gte", "value": 0.5},
    "pass_at": {"kind": "consistency", "metric_key": "right", "pass_at": 2, "op": "gte", "value": 0.5},
}  # fmt: skip
SITUATIONS = {
    "good": ("a{n}", 0),
    "bad": ("wrong", 1),
    "half of it failed": ("a{n}", 3),
    "all of it failed": ("a{n}", 4),
}
CASES = 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"id": n, "input": f"q{n}", "ground_truth": f"a{n}"} for n in range(CASES)]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def run(folder: Path, situation: str, gate: dict[str, Any] | None, name: str) -> subprocess.CompletedProcess[str]:
    expected, _ = SITUATIONS[situation]
    failing = {"half of it failed": CASES // 2, "all of it failed": CASES}.get(situation, 0)
    answers = [
        {"id": n, "text": expected.format(n=n)}
        if n >= failing
        else {
            "id": n,
            "response": {"status": "error", "error": {"type": "connect", "message": "down", "fault": "infrastructure"}},
        }
        for n in range(CASES)
        for _ in range(2)
    ]
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, answers)))
    suite = {
        "name": name,
        "dataset": "cases.jsonl",
        "target": {"kind": "replay", "responses": "answers.jsonl"},
        "graders": {"right": {"kind": "contains"}, "same": {"kind": "exact_match"}},
        "repeats": 2,
        **({} if gate is None else {"gate": gate}),
    }
    (folder / "suite.json").write_text(json.dumps(suite))
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    return run_command(
        [COMMAND, "run", "suite.json", "--json"],
        cwd=folder,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("kind", GATES)
def test_the_exit_code_is_the_verdict_of_the_gate(folder: Path, kind: str) -> None:
    if kind == "regression":
        assert run(folder, "good", None, "best").returncode == 0
    for situation, (_, code) in SITUATIONS.items():
        ran = run(folder, situation, GATES[kind], "tried")
        reason = json.loads(ran.stdout)
        assert (ran.returncode, reason["exit_code"]) == (code, code), (situation, reason["verdict"])
        assert reason["verdict"]["result"] == {0: "pass", 1: "fail", 3: "undecided", 4: "undecided"}[code]
        assert reason["verdict"]["reasons"]


def test_without_a_gate_coverage_decides(folder: Path) -> None:
    codes = {situation: run(folder, situation, None, "tried").returncode for situation in SITUATIONS}
    assert codes == {"good": 0, "bad": 0, "half of it failed": 3, "all of it failed": 4}


def test_failed_calls_may_count_as_0(folder: Path) -> None:
    ran = run(folder, "half of it failed", {**GATES["simple"], "value": 0.6, "agent_errors": "fail"}, "tried")
    assert (ran.returncode, json.loads(ran.stdout)["verdict"]["gates"][0]["observed"]) == (1, 0.5)

"""A conversation passes or fails by one rule, whatever shows it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gradeline_command import COMMAND, run_command

ANSWERS = {"whole": ["Paris", "Lima"], "half": ["Paris", "no idea"]}


class Reports:
    """What each report of a run shows for its two conversations."""

    def __init__(self, folder: Path, grader: dict[str, Any], gate: dict[str, Any]) -> None:
        self._folder = folder
        cases = [{"id": name, "input": ["France", "Peru"], "ground_truth": ["Paris", "Lima"]} for name in ANSWERS]
        lines = [
            {
                "id": name,
                "response": {"text": texts[-1], "trajectory": {"turns": [[_sections(text)] for text in texts]}},
            }
            for name, texts in ANSWERS.items()
        ]
        (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, lines)))
        suite = {
            "name": "talk",
            "dataset": cases,
            "target": {"kind": "replay", "responses": "answers.jsonl"},
            "graders": {"same": {"kind": "exact_match", **grader}},
            "gate": {"metric_key": "same", "op": "gte", "value": 0.7, **gate},
        }
        (folder / "suite.json").write_text(json.dumps(suite))
        self.exit_code, report = self.call("run", "suite.json", "--json")
        self.report = json.loads(report)

    def call(self, *arguments: str) -> tuple[int, str]:
        command = [COMMAND, *arguments, "--store", "store.db"]
        ended = run_command(command, cwd=self._folder, text=True, timeout=60)
        assert ended.returncode in (0, 1, 2), ended.stderr
        return ended.returncode, ended.stdout + ended.stderr * (ended.returncode == 2)

    def outcomes(self) -> dict[str, dict[str, str]]:
        rows = list(csv.DictReader(io.StringIO(self.call("export", "--format", "csv")[1])))
        records = [json.loads(line) for line in self.call("export")[1].splitlines()]
        tests = ElementTree.fromstring(self.call("export", "--format", "junit")[1]).iter("testcase")
        return {
            "csv": {row["case"]: row["outcome"] for row in rows},
            "csv passed": {row["case"]: "pass" if row["passed"] == "true" else "fail" for row in rows},
            "records": {record["case"]: record["grades"]["same"]["outcome"] for record in records},
            "junit": {test.attrib["name"]: "pass" if test.find("failure") is None else "fail" for test in tests},
        }


def _sections(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("gate", [{"aggregation": "accuracy"}, {"kind": "consistency", "k": 1, "n": 1}])
@pytest.mark.parametrize(
    ("grader", "half"),
    [
        ({}, "fail"),
        ({"pass_threshold": 0.4}, "fail"),
        ({"turns": "all"}, "fail"),
        ({"turns": "mean"}, "pass"),
        ({"turns": "mean", "pass_threshold": 0.6}, "fail"),
    ],
)
def test_table_exports_rate_and_gate_agree(
    tmp_path: Path, grader: dict[str, Any], half: str, gate: dict[str, Any]
) -> None:
    reports = Reports(tmp_path, grader, gate)
    passing = 1 + (half == "pass")
    for name, outcomes in reports.outcomes().items():
        assert outcomes == {"whole": "pass", "half": half}, name
    column = reports.report["summary"]["graders"]["same"]
    assert (column["passed"], column["failed"], column["mean"]) == (passing, 2 - passing, 0.75)
    assert column["pass_rate"] == passing / 2
    assert reports.report["verdict"]["gates"][0]["observed"] == passing / 2
    assert reports.exit_code == (0 if half == "pass" else 1)
    assert (column["turns"], column["pass_threshold"]) == (grader.get("turns", "all"), grader.get("pass_threshold"))
    code, text = reports.call("run", "suite.json", "--failed-of", "latest", "--json")
    if half == "pass":
        assert (code, "every case of" in text) == (2, True)
    else:
        assert json.loads(text)["summary"]["cases"] == 1


@pytest.mark.parametrize(
    ("grader", "line"),
    [
        ({"pass_threshold": 0.6}, "same: passes from 0.6"),
        ({"turns": "mean"}, "same: a conversation passes from a mean of 0.5 over its turns"),
        (
            {"turns": "mean", "pass_threshold": 0.6},
            "same: passes from 0.6; a conversation passes from a mean of 0.6 over its turns",
        ),
    ],
)
def test_the_threshold_is_stated(tmp_path: Path, grader: dict[str, Any], line: str) -> None:
    reports = Reports(tmp_path, grader, {"aggregation": "accuracy"})
    assert line in reports.call("show", "latest")[1].splitlines()
    assert line.partition(": ")[2] in reports.call("export", "--format", "markdown")[1]
    assert line.partition(": ")[2] in reports.call("export", "--format", "html")[1]


def test_a_conversation_that_fails_by_one_turn_shows_the_rule(tmp_path: Path) -> None:
    reports = Reports(tmp_path, {}, {"aggregation": "accuracy"})
    assert "1/2 passed: ✓ ✗ (every turn must pass)" in reports.call("show", "latest")[1]


def test_regrade_takes_another_rule(tmp_path: Path) -> None:
    reports = Reports(tmp_path, {}, {"aggregation": "accuracy"})
    document = json.loads((tmp_path / "suite.json").read_text())
    document["graders"]["same"]["turns"] = "mean"
    (tmp_path / "suite.json").write_text(json.dumps(document))
    code, text = reports.call("regrade", "latest", "--json")
    assert (code, json.loads(text)["summary"]["graders"]["same"]["passed"]) == (0, 2)
    code, text = reports.call("compare", "latest~1", "latest")
    assert (code, "grader 'same' is not the same in both runs" in text) == (2, True)


def test_a_rule_that_is_unknown_is_refused(tmp_path: Path) -> None:
    reports = Reports(tmp_path, {}, {"aggregation": "accuracy"})
    code, text = reports.call("validate", "suite.json", "--set", "graders.same.turns=most")
    assert (code, text.partition(" ")[2]) == (2, "graders.same.turns: expected all or mean, got 'most'\n")

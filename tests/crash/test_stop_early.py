"""A run that may stop early is killed at some moment and resumed: it reaches the same decision at the same look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from gradeline_command import COMMAND, run_command

CASES = 200


def gradeline(folder: Path, *arguments: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GRADELINE_FAILPOINT": failpoint, "GRADELINE_STORE": "runs.db"}
    return run_command([COMMAND, *arguments, "--json"], cwd=folder, text=True, env=environment)


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def suite(folder: Path, wrong: int) -> str:
    cases = [{"id": case, "input": f"q{case}", "ground_truth": "yes"} for case in range(CASES)]
    rows = [{"id": case, "text": "no" if case % wrong == 0 else "yes"} for case in range(CASES)]
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    (folder / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))
    document = {
        "name": "killed",
        "dataset": "cases.jsonl",
        "target": {"kind": "replay", "responses": "answers.jsonl"},
        "graders": {"right": {"kind": "contains"}},
        "concurrency": 5,
    }
    (folder / "suite.json").write_text(json.dumps(document))
    return "suite.json"


def test_a_killed_run_reaches_the_same_decision(tmp_path: Path) -> None:
    assert gradeline(tmp_path, "run", suite(tmp_path, CASES), "--name", "base").returncode == 0
    options = ("--baseline", "base", "--stop-early", "--seed", "3")
    whole = result_of(gradeline(tmp_path, "run", suite(tmp_path, 4), *options))
    assert whole["stopped"]["n"] < CASES
    for failpoint in ("response-stored:7", "graded:33", "grade-queued:48", "run-ending"):
        killed = gradeline(tmp_path, "run", "suite.json", *options, "--name", failpoint, failpoint=failpoint)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        resumed = gradeline(tmp_path, "resume", failpoint)
        assert resumed.returncode == 1
        again = result_of(resumed)
        assert again["stopped"] == whole["stopped"]
        assert again["verdict"]["gates"] == whole["verdict"]["gates"]


def test_a_killed_resume_of_all_cases_runs_the_rest(tmp_path: Path) -> None:
    assert gradeline(tmp_path, "run", suite(tmp_path, CASES), "--name", "base").returncode == 0
    options = ("--baseline", "base", "--stop-early", "--seed", "3", "--name", "new")
    assert "stopped" in result_of(gradeline(tmp_path, "run", suite(tmp_path, 4), *options))
    assert gradeline(tmp_path, "resume", "new", "--all", failpoint="graded:5").returncode == -signal.SIGKILL
    done = result_of(gradeline(tmp_path, "resume", "new"))
    assert "stopped" not in done
    assert done["summary"]["responses"]["success"] == CASES
    assert "this verdict replaces the one after" in done["verdict"]["reasons"][0]

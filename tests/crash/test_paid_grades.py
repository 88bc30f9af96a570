"""A judge's grade was paid for: once its case counts as done, no kill makes the run pay for it again."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path

import pytest

from gradeline.testing.fake_judge import FakeJudge, Truth
from gradeline_command import COMMAND, run_command

CASES = 6

SUITE = """\
name: judged
dataset: cases.jsonl
concurrency: CONCURRENCY
target: {kind: command, command: [cat]}
graders:
  said: {kind: contains}
  quality: {kind: model_judge, prompt: "Is it good? {submission}", model: any, base_url: URL}
"""


def gradeline(folder: Path, *arguments: str, failpoint: str = "") -> int:
    environment = {**os.environ, "GRADELINE_FAILPOINT": failpoint, "OPENAI_API_KEY": "none"}
    command = [COMMAND, *arguments, "--store", "store.db", "--quiet"]
    return run_command(command, cwd=folder, env=environment).returncode


def judged(folder: Path) -> int:
    with sqlite3.connect(folder / "store.db") as store:
        (number,) = store.execute("SELECT count(*) FROM grades WHERE grader = 'quality'").fetchone()
    store.close()
    return int(number)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_finished_grade_is_stored_and_not_judged_again(tmp_path: Path, concurrency: int) -> None:
    with FakeJudge(items={"good": Truth(quality=0.9)}).in_thread() as judge:
        suite = SUITE.replace("URL", judge.base_url()).replace("CONCURRENCY", str(concurrency))
        (tmp_path / "suite.yaml").write_text(suite)
        rows = ({"id": number, "input": f"case {number}", "ground_truth": "case"} for number in range(CASES))
        (tmp_path / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

        assert gradeline(tmp_path, "run", "suite.yaml", failpoint="grade-queued:3") == -signal.SIGKILL
        stored = judged(tmp_path)
        assert stored >= 3, "three cases counted as done"

        assert gradeline(tmp_path, "resume", "latest") == 0
        assert judged(tmp_path) == CASES
        asked_again = judge.counts().requests - CASES
        assert asked_again <= CASES - stored, "only what was not stored"

"""A judge of two answers whose verdict depends on their order, as reported by the commands and the service."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.testing.fake_judge import FakeJudge, Truth, with_mark
from gradeline_command import COMMAND, run_command

CASES = 20
GATE = {"kind": "simple", "metric_key": "better", "aggregation": "accuracy", "op": "gte", "value": 0.5}
SENTENCE = "order decided 20 of 20 (shown first 20, second 0; p 2e-6): the judge is position biased"


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    with FakeJudge(items={"good": Truth(quality=0.9), "bad": Truth(quality=0.2)}).in_thread() as server:
        yield server


def gradeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    return run_command([COMMAND, *arguments], cwd=folder, text=True, env=environment)


def words(done: subprocess.CompletedProcess[str]) -> str:
    """What was printed, whatever the width of the terminal."""
    return " ".join(done.stdout.split())


def write_suite(folder: Path, name: str, answer: str, **keys: Any) -> str:
    cases = [{"id": case, "input": f"q{case}", "ground_truth": "yes"} for case in range(CASES)]
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    replies = [{"id": case, "text": with_mark(f"{name} {case}", answer)} for case in range(CASES)]
    (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, replies)))
    target = {"kind": "replay", "responses": f"{name}.jsonl"}
    (folder / f"{name}.json").write_text(json.dumps({"name": name, "dataset": "cases.jsonl", "target": target, **keys}))
    return f"{name}.json"


def compared(folder: Path, judge: FakeJudge, behaviour: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A worse candidate and its baseline."""
    (folder / ".gradeline").mkdir()
    assert gradeline(folder, "run", write_suite(folder, "old", "good", graders={"any": {"kind": "contains"}})).stdout
    better = {"kind": "pairwise", "model": "m", "base_url": judge.base_url(behaviour), "baseline": "old"}
    return gradeline(folder, "run", write_suite(folder, "new", "bad", graders={"better": better}, gate=GATE), *options)


def test_a_judge_that_prefers_the_first_answer_leaves_the_gate_undecided(tmp_path: Path, judge: FakeJudge) -> None:
    ran = compared(tmp_path, judge, "position,b=1.0", "--json")
    assert ran.returncode == 3, ran.stdout + ran.stderr
    output = json.loads(ran.stdout)
    assert output["verdict"]["result"] == "undecided"
    assert f"better: {SENTENCE}, so its scores decide no gate" in output["verdict"]["reasons"]
    column = output["summary"]["graders"]["better"]
    assert (column["scored"], column["errors"]) == (0, CASES)
    assert column["orders"] == {
        "decided": CASES,
        "of": CASES,
        "first": CASES,
        "second": 0,
        "p": pytest.approx(2 / 2**CASES),
        "verdict": "position_biased",
        "sentence": SENTENCE,
    }

    # all of it is read from the store again
    assert f"better: {SENTENCE} " in words(gradeline(tmp_path, "show", "new"))
    for kind, expected in (("markdown", f"</code> {SENTENCE}"), ("html", SENTENCE), ("junit", f"better: {SENTENCE}")):
        exported = gradeline(tmp_path, "export", "new", "--format", kind)
        assert expected in exported.stdout, (kind, exported.stderr)

    # the judge has given its verdicts: it is not called again until both orders agree
    calls = len(judge.decisions)
    resumed = gradeline(tmp_path, "resume", "new", "--json")
    assert (resumed.returncode, len(judge.decisions)) == (3, calls)


def test_a_fair_judge_fails_the_worse_candidate(tmp_path: Path, judge: FakeJudge) -> None:
    ran = compared(tmp_path, judge, "")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"better: order decided 0 of {CASES}: not enough flips to tell" in words(ran)


def test_cases_decided_by_the_order_count_in_the_denominator_of_coverage(tmp_path: Path, judge: FakeJudge) -> None:
    ran = compared(tmp_path, judge, "inverted,position_bias=0.3", "--json")
    assert ran.returncode == 3, ran.stdout + ran.stderr
    output = json.loads(ran.stdout)
    orders = output["summary"]["graders"]["better"]["orders"]
    assert orders["of"] == CASES
    assert 1 < orders["decided"] < 8
    assert orders["verdict"] == "not_enough_flips"
    assert any("below the floor of 0.95" in reason for reason in output["verdict"]["reasons"])

"""``gradeline judge tune``: rubrics judge labelled answers through a fake judge, and the better one is found."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gradeline.model.label import HumanVerdict
from gradeline.store import SqliteStorage
from gradeline.testing.fake_judge import BehaviourRule, FakeJudge, with_mark
from gradeline_command import COMMAND, run_command
from judged_run import put_labels

CASES = 120
RIGHT = {case: Random(case).random() < 0.6 for case in range(CASES)}
RULES = [
    BehaviourRule(contains="step by step", behaviour="sens-spec,a=0.97,b=0.97"),
    BehaviourRule(contains="broken", behaviour={"fault_rates": {"400-moderation": 1.0}, "fault_tries": 0}),
]


@pytest.fixture
def judge() -> Iterator[FakeJudge]:
    with FakeJudge("sens-spec,a=0.65,b=0.65", seed=3, rules=RULES).in_thread() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, judge: FakeJudge) -> Path:
    write_suite(tmp_path, judge.url)
    assert gradeline(tmp_path, "run", "suite.json").returncode == 0
    with SqliteStorage(tmp_path / ".gradeline" / "store.db") as storage:
        labels = [(f"c{case}", HumanVerdict("pass" if right else "fail")) for case, right in RIGHT.items()]
        put_labels(storage, storage.find_run("latest"), "quality", labels)
    (tmp_path / "steps.txt").write_text("Check {submission} step by step.")
    (tmp_path / "same.txt").write_text("Is {submission} right, all in all?")
    return tmp_path


def write_suite(folder: Path, url: str, **options: Any) -> None:
    cases = [{"id": f"c{case}", "input": f"q{case}", "ground_truth": "yes"} for case in range(CASES)]
    replies = [
        {"id": f"c{case}", "text": with_mark(f"answer {case}", f"i{case} quality={0.9 if right else 0.1}")}
        for case, right in RIGHT.items()
    ]
    quality = {"kind": "model_judge", "model": "m", "base_url": f"{url}/v1", "prompt": "Is it right? {submission}"}
    suite = {
        "name": "support",
        "dataset": "cases.jsonl",
        "target": {"kind": "replay", "responses": "replies.jsonl"},
        "graders": {"quality": quality | options, "exact": {"kind": "contains"}},
    }
    (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, cases)))
    (folder / "replies.jsonl").write_text("\n".join(map(json.dumps, replies)))
    (folder / "suite.json").write_text(json.dumps(suite))


def gradeline(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    return run_command([COMMAND, *arguments], cwd=folder, text=True, env=environment)


def tune(folder: Path, *arguments: str, code: int = 0) -> Any:
    done = gradeline(folder, "judge", "tune", "latest", *arguments, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_the_better_rubric_is_named_with_its_interval_and_written(folder: Path, judge: FakeJudge) -> None:
    report = tune(folder, "--rubric", "same.txt", "--rubric", "steps.txt", "--output", "better.txt")
    choice = report["choice"]
    assert (choice["winner"], choice["decision"], choice["labels"]) == ("steps", "better", CASES)
    assert choice["difference_ci"][0] > 0.0
    assert {one["name"]: one["of"] for one in choice["rubrics"]} == {"suite": CASES, "same": CASES, "steps": CASES}
    assert (folder / "better.txt").read_text() == "Check {submission} step by step.\n"

    asked = len(judge.requests)
    again = tune(folder, "--rubric", "same.txt", "--rubric", "steps.txt")
    assert len(judge.requests) == asked, "verdicts that are stored must not be paid again"
    assert again["choice"] == choice
    listed = json.loads(gradeline(folder, "list", "--json").stdout)
    assert gradeline(folder, "show", "latest", "--json").stdout.count(report["tune_run"]) == 0, listed


def test_the_output_for_people(folder: Path) -> None:
    done = gradeline(folder, "judge", "tune", "latest", "--grader", "quality", "--rubric", "steps.txt")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "better: steps; on labels that did not choose it: agreement" in " ".join(done.stdout.split())
    assert "cost of the verdicts: unknown" in done.stdout


def test_no_better_rubric_is_a_regular_answer(folder: Path) -> None:
    done = gradeline(folder, "judge", "tune", "latest", "--rubric", "same.txt", "--output", "better.txt")
    assert done.returncode == 3
    assert "no rubric is better for certain" in done.stdout
    assert "better.txt is not written: no rubric is better for certain" in done.stderr
    assert not (folder / "better.txt").exists()


def test_a_rubric_whose_judge_fails_takes_no_part(folder: Path) -> None:
    (folder / "bad.txt").write_text("broken {submission}")
    report = tune(folder, "--rubric", "bad.txt", "--rubric", "steps.txt")
    bad = next(one for one in report["choice"]["rubrics"] if one["name"] == "bad")
    assert bad["left_out"] == f"no verdict on {CASES} of {CASES} labelled results"
    assert report["choice"]["winner"] == "steps"


def test_an_exhausted_budget_is_continued_by_the_same_command(folder: Path, judge: FakeJudge) -> None:
    stopped = tune(folder, "--rubric", "steps.txt", "--assume-price", "100/100", "--budget", "1usd", code=3)
    assert "budget" in stopped["stopped"]
    report = tune(folder, "--rubric", "steps.txt", "--assume-price", "100/100")
    assert report["tune_run"] == stopped["tune_run"]
    assert len(judge.requests) == CASES + 2 * CASES, "verdicts that are stored must not be paid again"


class _Proposer(BaseHTTPRequestHandler):
    """Proposes a rubric, and passes everything else on to the fake judge."""

    judge = ""
    asked: list[str] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if b'"rubrics' in body or b"rubrics\\\\" in body or b'{\\"rubrics\\"' in body:
            self.asked.append(json.loads(body)["messages"][-1]["content"])
            reply = json.dumps({"rubrics": ["Check {submission} step by step.", "Is {submission} fine?"]})
            answer = json.dumps(
                {"choices": [{"message": {"content": reply}, "finish_reason": "stop"}], "model": "m"}
            ).encode()
        else:
            request = urllib.request.Request(
                self.judge + self.path, body, {"content-type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(request) as response:
                answer = response.read()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def test_a_model_proposes_rubrics_from_labels_that_do_not_compare_them(tmp_path: Path, judge: FakeJudge) -> None:
    _Proposer.judge, _Proposer.asked = judge.url, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Proposer)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        write_suite(tmp_path, f"http://127.0.0.1:{server.server_port}")
        assert gradeline(tmp_path, "run", "suite.json").returncode == 0
        with SqliteStorage(tmp_path / ".gradeline" / "store.db") as storage:
            labels = [(f"c{case}", HumanVerdict("pass" if right else "fail")) for case, right in RIGHT.items()]
            put_labels(storage, storage.find_run("latest"), "quality", labels)
        report = tune(tmp_path, "--propose", "2")
        again = tune(tmp_path, "--propose", "2")
    finally:
        server.shutdown()
        server.server_close()
    assert report["choice"]["winner"] == "proposal 1"
    assert report["choice"]["labels"] + report["shown"] == CASES
    assert again["choice"] == report["choice"]
    assert len(_Proposer.asked) == 1, "proposals are not paid again"
    assert "people say" in _Proposer.asked[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--rubric: is required: name a file with a rubric to try, or use --propose 3"),
        (("--grader", "exact", "--rubric", "steps.txt"), "has no judge"),
        (("--rubric", "empty.txt"), "empty.txt: is empty: write the rubric into it"),
        (("--rubric", "suite.txt"), "the name 'suite' is that of the suite's own rubric"),
        (("--question", "tone", "--rubric", "steps.txt"), "0 labels are too few to choose by: label 30 more"),
    ],
)
def test_bad_input(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    (folder / "empty.txt").write_text(" \n")
    (folder / "suite.txt").write_text("Grade {submission}.")
    done = gradeline(folder, "judge", "tune", "latest", *arguments)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split()), done.stderr

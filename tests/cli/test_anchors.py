"""Anchors from the command line: a judge that drifts after some calls, an agent that gets worse, and neither."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.store import SqliteStorage
from gradeline.testing.fake_judge import Behaviour, FakeJudge, Truth, read_behaviour, with_mark
from gradeline_command import COMMAND, run_command

CASES = 60
ITEMS = {f"{quality}-{case}": Truth(quality=quality / 10) for case in range(CASES) for quality in (2, 5, 8)}


def quality_of(case: int) -> int:
    return 8 if case % 4 else 2


class Project:
    """A folder with a suite whose judge is a `FakeJudge`, and a store."""

    def __init__(self, path: Path, judge: FakeJudge, *, fresh: bool = True) -> None:
        self.path = path
        self.judge = judge
        if not fresh:
            return
        (path / "cases.jsonl").write_text(
            "\n".join(json.dumps({"id": f"case-{case}", "input": f"Question {case}?"}) for case in range(CASES))
        )
        self.answer()
        self.suite()

    def answer(self, **changed: int) -> None:
        """The agent's answers; ``changed`` cases have another quality."""
        rows = [
            {
                "id": f"case-{case}",
                "text": with_mark("An answer.", f"{changed.get(f'c{case}', quality_of(case))}-{case}"),
            }
            for case in range(CASES)
        ]
        (self.path / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def suite(self, **options: Any) -> None:
        quality = {
            "kind": "model_judge",
            "prompt": "Is it good? {submission}",
            "model": "fake-judge",
            "base_url": self.judge.base_url(),
            **options,
        }
        suite = {
            "name": "advice",
            "dataset": "cases.jsonl",
            "target": {"kind": "replay", "responses": "answers.jsonl"},
            "graders": {"quality": quality},
        }
        (self.path / "suite.json").write_text(json.dumps(suite))

    def copy(self, path: Path) -> Project:
        shutil.copytree(self.path, path, dirs_exist_ok=True)
        return Project(path, self.judge, fresh=False)

    def __call__(self, *arguments: str, code: int | None = 0) -> str:
        done = run_command([COMMAND, *arguments], cwd=self.path, text=True)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def data(self, *arguments: str, code: int | None = 0) -> Any:
        done = run_command([COMMAND, *arguments, "--json"], cwd=self.path, text=True)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    def run(self) -> Any:
        return self.data("run", "suite.json")

    def check(self, code: int) -> Any:
        (found,) = self.data("anchors", "check", "--all", code=code)["checks"]
        return found


@pytest.fixture(scope="module")
def judge() -> Iterator[FakeJudge]:
    with FakeJudge(seed=3, items=ITEMS).in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def ran(judge: FakeJudge, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a run."""
    project = Project(tmp_path_factory.mktemp("ran"), judge)
    project.run()
    return project


@pytest.fixture(scope="module")
def ran_and_frozen(ran: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with a run, anchors, and another run."""
    project = ran.copy(tmp_path_factory.mktemp("frozen"))
    project("anchors", "freeze", "latest", "--n", "40")
    before = len(project.judge.requests)
    project.run()
    assert len(project.judge.requests) - before == CASES + CASES // 20
    return project


@pytest.fixture
def project(ran: Project, tmp_path: Path) -> Iterator[Project]:
    yield ran.copy(tmp_path)
    ran.judge.behaviour = Behaviour()


@pytest.fixture
def frozen(ran_and_frozen: Project, tmp_path: Path) -> Iterator[Project]:
    yield ran_and_frozen.copy(tmp_path)
    ran_and_frozen.judge.behaviour = Behaviour()


def test_nothing_changed(frozen: Project) -> None:
    assert frozen.check(0)["answer"] == "none"
    (listed,) = frozen.data("anchors", "list")["anchors"]
    assert (listed["anchors"], listed["looks"], listed["calls"]) == (40, 2, 120)
    assert (listed["last"]["judged"], listed["last"]["changed"], listed["last"]["moved"]) == (40, 0, 0.0)


def test_a_judge_that_drifts_after_some_calls_is_named_and_drifted(frozen: Project) -> None:
    calls = len(frozen.judge.requests)
    frozen.judge.behaviour = read_behaviour(f"drift,k={calls},g=-0.2")
    columns = [frozen.run()["summary"]["graders"]["quality"] for _ in range(3)]
    assert columns[-1]["calibration"]["state"] == "drifted"
    assert "judge" in [column["anchors"]["answer"] for column in columns if column["anchors"]]
    points = frozen.data("trend", "advice")["points"]
    assert [("judge" in point["changes"], point["segment"]) for point in points] == [
        (False, 0),
        (False, 0),
        (True, 1),
        (False, 1),
        (False, 1),
    ]
    found = frozen.check(1)
    assert (found["answer"], found["changed"], found["shift"]) == ("judge", 40, pytest.approx(-0.2))
    assert not found["stored"]  # a calibration that came meanwhile would be undone
    assert found["system"]["alarm"] is None
    shown = frozen("anchors", "show")
    assert "judge: the judge changed since" in shown
    assert "calibrate the judge again" in shown


def test_an_agent_that_gets_worse_is_the_system(frozen: Project) -> None:
    frozen.answer(**{f"c{case}": 2 for case in range(CASES) if case % 4 < 3})
    frozen.run()
    assert "anchors: the scores moved, and too few anchors were judged" in frozen("show")
    found = frozen.check(1)
    assert found["answer"] == "system"
    assert found["judge"]["alarm"] is None
    assert found["moved"] == pytest.approx(-0.3)
    column = frozen.run()["summary"]["graders"]["quality"]
    assert (column["calibration"]["state"], column["anchors"]["answer"]) == ("uncalibrated", "system")
    assert "anchors: the system changed since" in frozen("show")


def test_a_judge_that_is_down_is_no_change(frozen: Project) -> None:
    frozen.judge.behaviour = read_behaviour("refusal")
    found = frozen.check(4)
    assert found["answer"] == "none"
    assert found["judged"] == 3  # those of the run
    assert all(score["score"] is None and score["error"] for score in found["scores"])


def test_another_model_is_reported_and_not_stored(frozen: Project) -> None:
    frozen.suite(model="another-judge")
    frozen.run()
    found = frozen.check(0)
    assert found["changed_since"] == "the model changed from openai:fake-judge to openai:another-judge"
    (listed,) = frozen.data("anchors", "list")["anchors"]
    assert listed["looks"] == 1


def test_anchors_outlive_their_run(frozen: Project) -> None:
    first = frozen.data("list")["runs"][-1]["id"]
    with SqliteStorage(frozen.path / ".gradeline" / "store.db") as storage:
        assert storage.delete_run(first)
    assert frozen.check(0)["judged"] == 40


@pytest.mark.parametrize(("cause", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_a_stopped_freeze_continues_without_paying_twice(project: Project, cause: signal.Signals, code: int) -> None:
    project.judge.behaviour = read_behaviour({"fault_rates": {"slow-start": 1.0}, "delay_s": 0.1})
    before = len(project.judge.requests)
    freeze = [COMMAND, "anchors", "freeze", "latest", "--n", "40"]
    with subprocess.Popen(freeze, cwd=project.path, stderr=subprocess.DEVNULL) as process:
        while len(project.judge.requests) - before < 40 and process.poll() is None:
            time.sleep(0.005)
        process.send_signal(cause)
    assert process.returncode == code
    assert "none" in project("anchors", "check", code=2)  # they are in use when all scores are stored
    in_flight = 15
    found = project.data("anchors", "freeze", "latest", "--n", "40")
    assert (found["anchors"], found["calls"]) == (40, 120)
    assert 120 <= len(project.judge.requests) - before <= 120 + in_flight


def test_removed_anchors_are_judged_no_more(frozen: Project) -> None:
    frozen("anchors", "remove")
    before = len(frozen.judge.requests)
    frozen.run()
    assert len(frozen.judge.requests) - before == CASES
    assert "there are none" in frozen("anchors", "check", code=2)


def test_faults_are_reported_at_once(project: Project) -> None:
    said = project("anchors", "freeze", "latest", "--n", "5", "--repeats", "1", code=2)
    assert "--n: expected 10 or more, got 5" in said
    assert "--repeats: expected 2 to 10, got 1" in said
    said = project("anchors", "freeze", "latest", "--grader", "quantity", code=2)
    assert "--grader: no grader 'quantity' with a judge; there is 'quality'" in said

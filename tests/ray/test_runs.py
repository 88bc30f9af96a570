"""The same suite on a cluster as here: runs, resumes, regrades, limits, ends."""

from __future__ import annotations

import os
import signal
from time import monotonic, sleep
from typing import Any

import pytest

from gradeline.testing.fake_judge import FakeJudge
from gradeline.testing.fake_judge.server import BehaviourRule
from postgres_server import execute
from ray_cluster import RayCluster

from .conftest import Project

CUSTOM = """  mine: {kind: tool, function: "mine.py:mine"}
"""
MINE = """
from gradeline import GradeResult, grader

@grader
def mine(sample, submission):
    return GradeResult(score=len(submission) / 10)
"""


def records(project: Project, run: str) -> list[dict[str, Any]]:
    """Without what no two runs have in common."""
    import json

    lines = project.command("show", run, "--records").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    for record in found:
        record.pop("run", None)
        record["response"].pop("latency_ms", None)
        for grade in record["grades"].values():
            grade.pop("latency_ms", None)
            grade.pop("duration_ms", None)
    return found


@pytest.fixture
def on_cluster(cluster: RayCluster, project: Project) -> tuple[str, ...]:
    project.environment = cluster.environment
    return "--engine", "ray", "--ray-address", cluster.address


def test_the_records_are_those_of_the_local_engine(project: Project, on_cluster: tuple[str, ...]) -> None:
    """A custom grader too, whose code only the suite's folder has; the dataset is one that only the driver sees."""
    project.write(350, more=CUSTOM)
    (project.folder / "mine.py").write_text(MINE)
    (project.folder / "cases.jsonl").rename(project.folder.parent / "cases.jsonl")
    suite = project.folder / "suite.yaml"
    suite.write_text(suite.read_text().replace("cases.jsonl", "../cases.jsonl"))
    there = project.json("run", "suite.yaml", *on_cluster)
    here = project.json("run", "suite.yaml")
    assert there["exit_code"] == here["exit_code"] == 0
    assert there["summary"]["graders"] == here["summary"]["graders"]
    assert records(project, there["run"]["id"]) == records(project, here["run"]["id"])


def test_a_run_is_regraded_on_the_cluster_without_a_call(project: Project, on_cluster: tuple[str, ...]) -> None:
    project.write(250)
    run = project.json("run", "suite.yaml", *on_cluster)["run"]["id"]
    calls = project.call_count
    project.write(250, more=CUSTOM)
    (project.folder / "mine.py").write_text(MINE)
    again = project.json("regrade", run, *on_cluster)
    assert project.call_count == calls == 250
    assert again["run"]["parent"] == run
    assert {key: column["scored"] for key, column in again["summary"]["graders"].items()} == {"exact": 250, "mine": 250}


def test_a_stopped_run_continues_where_it_was(project: Project, on_cluster: tuple[str, ...]) -> None:
    """A SIGTERM finishes and stores calls in flight; here the run continues in this process, which is equivalent."""
    project.write(2_000, concurrency=20)
    driver = project.begin("run", "suite.yaml", *on_cluster)
    deadline = monotonic() + 120
    while project.call_count < 300:
        assert driver.poll() is None, driver.communicate()
        assert monotonic() < deadline
        sleep(0.05)
    os.kill(driver.pid, signal.SIGTERM)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 130, (out, err)
    ((run, stored),) = execute(project.store, "SELECT run, count(*) FROM gradeline.responses GROUP BY run")
    assert f"continue with: gradeline resume {run}" in err
    assert stored == project.call_count < 2_000
    assert project.json("resume", str(run))["summary"]["graders"]["exact"]["passed"] == 2_000
    assert project.call_count == 2_000


def test_a_judge_that_refuses_every_call_fails_the_run_and_resume_finishes_it(
    project: Project, on_cluster: tuple[str, ...]
) -> None:
    with FakeJudge("perfect").in_thread() as judge:
        options = (
            f"{{kind: model_judge, prompt: '{{submission}}', model: m, base_url: '{judge.base_url()}', max_retries: 0}}"
        )
        project.write(20, more=f"  quality: {options}\n")
        judge.rules = (BehaviourRule(behaviour="403"),)
        stopped = project.json("run", "suite.yaml", *on_cluster)
        assert (stopped["run"]["status"], "HTTP 403" in stopped["stopped"]) == ("failed", True)
        judge.rules = (BehaviourRule(behaviour="403-moderation", contains="q3"),)
        done = project.json("resume", "latest", *on_cluster)
        assert done["run"]["status"] == "completed"
        assert done["summary"]["graders"]["quality"]["total"] == 20
        assert done["summary"]["graders"]["quality"]["errors"] == 1


def test_all_workers_share_a_rate_limit(project: Project, on_cluster: tuple[str, ...]) -> None:
    project.write(60, seconds=0.0)
    suite = project.folder / "suite.yaml"
    suite.write_text(suite.read_text().replace("isolation: none", "isolation: none, rate: {calls: 20, per: second}"))
    agent = project.folder / "agent.py"
    agent.write_text(
        agent.read_text().replace('f"{sample.id}\\n"', 'f"{time.time()}\\n"').replace("import", "import time,")
    )
    assert project.json("run", "suite.yaml", *on_cluster)["exit_code"] == 0
    starts = sorted(map(float, project.calls))
    assert len(starts) == 60
    # 20 at once, 20 a second later, 20 after two; workers with a rate each would be done after one
    assert starts[-1] - starts[0] > 1.5


def test_a_budget_of_calls_ends_it(project: Project, on_cluster: tuple[str, ...]) -> None:
    project.write(1_000)
    report = project.json("run", "suite.yaml", "--budget", "150calls", *on_cluster)
    assert report["run"]["status"] == "cancelled"
    assert project.call_count == 150
    assert report["summary"]["responses"] == {"success": 150, "error": 0, "timeout": 0}


def test_fail_fast_stops_at_the_first_failure(project: Project, on_cluster: tuple[str, ...]) -> None:
    project.write(3_000)
    rows = (project.folder / "cases.jsonl").read_text()
    (project.folder / "cases.jsonl").write_text(rows.replace('"ground_truth": "q7"', '"ground_truth": "other"'))
    done = project.command("run", "suite.yaml", "--fail-fast", *on_cluster)
    assert done.returncode == 1, done.stderr
    assert "case 'c7': exact is fail" in done.stderr
    assert project.call_count < 3_000


def test_environment_variables_are_sent_with_the_run_and_not_with_the_folder(
    project: Project, on_cluster: tuple[str, ...]
) -> None:
    """``.env`` is not copied; the variables that the suite uses are sent to the workers."""
    project.write(100)
    (project.folder / ".env").write_text("GREETING=hello-from-home\n")
    suite = project.folder / "suite.yaml"
    echo = 'target: {kind: command, command: [sh, -c, \'ls -a .env 2>/dev/null; echo "$GREETING"\'], env: {GREETING: "${GREETING}"}}'
    lines = [echo if line.startswith("target:") else line for line in suite.read_text().splitlines()]
    suite.write_text("\n".join(lines))
    report = project.json("run", "suite.yaml", "--limit", "3", *on_cluster)
    assert report["summary"]["responses"] == {"success": 3, "error": 0, "timeout": 0}
    assert {record["response"]["text"].strip() for record in records(project, report["run"]["id"])} == {
        "hello-from-home"
    }


def test_a_run_on_the_cluster_ends_once_its_comparison_is_decided(
    project: Project, on_cluster: tuple[str, ...]
) -> None:
    project.write(400, concurrency=20)
    base = project.json("run", "suite.yaml", "--name", "base")
    assert base["exit_code"] == 0
    agent = project.folder / "agent.py"
    agent.write_text(
        agent.read_text().replace("str(sample.input)", "str(sample.input) if int(sample.id[1:]) % 2 else ''")
    )
    options = ("--baseline", "base", "--stop-early", "--seed", "1")
    here = project.json("run", "suite.yaml", *options)
    there = project.json("run", "suite.yaml", *options, *on_cluster)
    assert there["exit_code"] == here["exit_code"] == 1
    assert there["stopped"] == here["stopped"]
    assert there["verdict"]["gates"] == here["verdict"]["gates"]
    assert there["summary"]["responses"]["success"] < 400


def test_each_variant_is_a_run_on_the_cluster(project: Project, on_cluster: tuple[str, ...]) -> None:
    """Also one of another kind, whose worker loads no code of an agent."""
    more = "variants: [{name: own}, {name: program, set: {target: {kind: command, command: [echo, q1]}}}]"
    project.write(30, more=more)
    ran = project.json("run", "suite.yaml", *on_cluster)
    assert {one["run"]["variant"]: one["summary"]["graders"]["exact"]["passed"] for one in ran["runs"]} == {
        "own": 30,
        "program": 1,
    }
    assert len({one["run"]["group"] for one in ran["runs"]}) == 1

"""The command line on a PostgreSQL store, from a run to its resumption after a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from gradeline.store import open_storage
from gradeline_command import COMMAND, run_command
from postgres_server import execute

CASES, CONCURRENCY = 120, 8
SUITE = f"""\
name: doubling
dataset: cases.jsonl
target: {{kind: python, function: agent.py:answer}}
graders:
  right: {{kind: string-match, mode: exact}}
  short: {{kind: custom-rules, rules: [{{condition: word_count_max, value: 3}}]}}
concurrency: {CONCURRENCY}
gate: {{kind: simple, metric_key: right, aggregation: accuracy, op: gte, value: 0.9}}
"""
AGENT = """\
import os
from pathlib import Path

CALLS = os.open(Path(__file__).with_name("calls"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def answer(text):
    os.write(CALLS, f"{text}\\n".encode())
    return str(2 * int(text))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text(AGENT)
    cases = ({"id": n, "input": str(n), "ground_truth": str(2 * n if n % 20 else 0)} for n in range(CASES))
    (tmp_path / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    return tmp_path


def gradeline(folder: Path, url: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        [COMMAND, "--store", url, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        text=True,
        timeout=120,
    )


def check_intact(url: str) -> None:
    """Each case once, answered and graded, and the run done."""
    with open_storage(url) as store:
        (run,) = store.list_runs()
        records = list(store.records(run.id))
        counts = store.counts(run.id)
    assert run.status == "completed"
    assert [(record.case, record.repeat) for record in records] == [(str(case), 0) for case in range(CASES)]
    assert all(set(record.grades) == {"right", "short"} for record in records)
    wrong = sum(1 for case in range(1, CASES) if case % 20 == 0)
    without_score = {"error": 0, "skipped": 0, "not_applicable": 0}
    assert counts.graders["right"].outcomes == {"pass": CASES - wrong, "fail": wrong, **without_score}


def test_reading_commands_create_nothing(folder: Path, postgres_url: str) -> None:
    listed = gradeline(folder, postgres_url, "list", "--json")
    assert (listed.returncode, listed.stdout) == (0, '{"runs": []}\n')
    assert gradeline(folder, postgres_url, "list").stdout == "No runs yet. Start one with: gradeline run SUITE\n"
    assert gradeline(folder, postgres_url, "show").returncode == 2
    assert execute(postgres_url, "SELECT 1 FROM pg_namespace WHERE nspname = 'gradeline'") == []


def test_a_run_and_the_commands_that_read_it(folder: Path, postgres_url: str) -> None:
    ran = gradeline(folder, postgres_url, "run", "suite.yaml", "--quiet")
    assert (ran.returncode, ran.stderr) == (0, "")
    check_intact(postgres_url)
    report = gradeline(folder, postgres_url, "show", "latest", "--json")
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["run"]["name"] == "doubling"
    exported = gradeline(folder, postgres_url, "export", "latest", "--format", "jsonl")
    assert [json.loads(line)["case"] for line in exported.stdout.splitlines()] == [str(case) for case in range(CASES)]
    again = gradeline(folder, postgres_url, "run", "suite.yaml", "--quiet")
    assert again.returncode == 0
    compared = gradeline(folder, postgres_url, "compare", "latest~1", "latest")
    assert (compared.returncode, compared.stdout.splitlines()[-1].partition(".")[0]) == (
        3,
        "decision: undecided (right)",
    )


@pytest.mark.parametrize(
    "place",
    ["run-saved", "batch-begun:3", "batch-written:3", "batch-committed:1", "batch-committed:5", "run-ending"],
)
def test_a_killed_run_is_resumed(folder: Path, postgres_url: str, place: str) -> None:
    killed = gradeline(folder, postgres_url, "run", "suite.yaml", "--quiet", GRADELINE_FAILPOINT=place)
    assert killed.returncode == -signal.SIGKILL
    resumed = gradeline(folder, postgres_url, "resume", "latest", "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    check_intact(postgres_url)
    calls = Counter((folder / "calls").read_text().split())
    assert set(calls) == {str(case) for case in range(CASES)}
    # only calls in flight are repeated
    assert max(calls.values()) <= 2
    assert sum(calls.values()) - CASES <= CONCURRENCY

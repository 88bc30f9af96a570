"""Tracebacks and prints of user code, as the command line shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradeline_command import COMMAND, run_command

SUITE = """\
name: prices
dataset:
  - {id: tea, input: tea, ground_truth: "3"}
  - {id: coffee, input: coffee, ground_truth: "4"}
  - {id: cake, input: cake, ground_truth: "5"}
target: {kind: python, function: "agent.py:answer", isolation: worker}
graders: {right: {kind: contains}, own: {kind: tool, function: "graders.py:own"}}
"""
AGENT = """
def answer(text):
    print("asked for", text)
    for number in range(30 if text == "cake" else 0):
        print("line", number)
    return str({"tea": 3}[text])
"""
GRADERS = """
from gradeline import GradeResult, grader
@grader
def own(sample, submission):
    print("graded \\033[31mred")
    raise ValueError("no " + submission)
"""


def gradeline(folder: Path, *arguments: str) -> str:
    done = run_command([COMMAND, *arguments], cwd=folder, text=True)
    assert done.returncode in (0, 3), done.stderr
    return done.stdout


@pytest.mark.parametrize("isolation", ["worker", "none"])
def test_a_report_shows_where_user_code_failed_and_what_it_printed(tmp_path: Path, isolation: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("isolation: worker", f"isolation: {isolation}"))
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "graders.py").write_text(GRADERS)
    gradeline(tmp_path, "run", "suite.yaml", "--quiet")
    report = gradeline(tmp_path, "show")
    assert "agent_error: KeyError: 'coffee' (agent.py:6 in answer)" in report
    lines = report.splitlines()
    start = lines.index("traceback of coffee")
    assert lines[start + 1] == "  Traceback (most recent call last):"
    assert lines[start + 2] == f'    File "{tmp_path}/agent.py", line 6, in answer'
    end = lines.index("output of coffee")
    assert lines[end - 1] == "  KeyError: 'coffee'"
    assert lines[end + 1] == "  asked for coffee"
    cake = lines.index("output of cake")
    assert lines[cake + 1].startswith("  … (16 earlier lines; see all with: gradeline show ")
    assert lines[cake + 16] == "  line 29"
    assert "traceback of tea, own" not in lines  # two at most

    records = [json.loads(line) for line in gradeline(tmp_path, "show", "--records").splitlines()]
    by_case = {record["case"]: record for record in records}
    assert by_case["tea"]["response"]["output"] == "asked for tea\n"
    assert by_case["coffee"]["response"]["output"] == "asked for coffee\n"
    assert by_case["coffee"]["response"]["error"]["traceback"].endswith("KeyError: 'coffee'\n")


def test_a_graders_traceback_is_shown_without_control_characters(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text("def answer(text): return text")
    (tmp_path / "graders.py").write_text(GRADERS)
    lines = gradeline(tmp_path, "run", "suite.yaml").splitlines()
    assert "traceback of tea, own" in lines
    assert lines[lines.index("output of tea, own") + 1] == "  graded <1B>[31mred"


@pytest.mark.parametrize("definition", ["def", "async def"])
def test_a_graders_traceback_begins_at_the_users_code(tmp_path: Path, definition: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text("def answer(text): return text")
    (tmp_path / "graders.py").write_text(GRADERS.replace("def own", f"{definition} own"))
    lines = gradeline(tmp_path, "run", "suite.yaml").splitlines()
    start = lines.index("traceback of tea, own")
    assert lines[start + 1] == "  Traceback (most recent call last):"
    assert lines[start + 2] == f'    File "{tmp_path}/graders.py", line 6, in own'


def test_user_code_that_prints_does_not_break_json_output(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("isolation: worker", "isolation: none"))
    (tmp_path / "agent.py").write_text("def answer(text):\n    print('said', text)\n    return text")
    (tmp_path / "graders.py").write_text(GRADERS)
    command = [COMMAND, "run", "suite.yaml", "--json"]
    done = run_command(command, cwd=tmp_path, text=True)
    assert json.loads(done.stdout)["summary"]["responses"]["success"] == 3
    assert "said tea\n" in done.stderr


def test_a_problem_found_in_file_and_code_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.replace('"graders.py:own"', "contains"))
    (tmp_path / "agent.py").write_text("def other(text): ...\n")
    (tmp_path / "graders.py").write_text(GRADERS.replace("def own", "def contains"))
    done = run_command([COMMAND, "validate", "suite.yaml"], cwd=tmp_path, text=True)
    assert done.returncode == 2
    assert done.stderr.count("'contains' is the name of a built-in grader") == 1
    assert "'answer'" in done.stderr, "the other faults of the code are reported too"


@pytest.mark.parametrize("isolation", ["worker", "none"])
def test_code_that_ends_the_process_while_it_loads_is_named(tmp_path: Path, isolation: str) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("isolation: worker", f"isolation: {isolation}"))
    (tmp_path / "agent.py").write_text("import os\n\nos._exit(3)\n")
    (tmp_path / "graders.py").write_text(GRADERS)
    command = [COMMAND, "validate", "suite.yaml"]
    done = run_command(command, cwd=tmp_path, text=True)
    assert done.returncode == 2
    assert f"{tmp_path}/agent.py:3: target.function: " in done.stdout + done.stderr

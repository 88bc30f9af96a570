"""Suites from the command line, run as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.model import Record, from_json
from gradeline_command import COMMAND, run_command

SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer"}
graders:
  exact: {kind: string-match, mode: contains}
  polite: {kind: tool, function: polite}
gate: {kind: simple, metric_key: exact, aggregation: avg_score, op: gte, value: 0.7}
"""
AGENT = """
from pathlib import Path
import time
KNOWN = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}
def answer(text):
    with Path(__file__).with_name("calls").open("a") as calls:
        calls.write(text + "\\n")
    time.sleep(SECONDS)
    return f"It is {KNOWN.get(text.split()[-1], 'unknown')}, you are welcome."
"""
DEADLY_AGENT = """
import os, signal
from pathlib import Path
KNOWN = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}
def answer(text, model):
    deadly = Path(__file__).with_name("deadly")
    if model == "second" and "Spain" in text and deadly.exists():
        deadly.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"It is {KNOWN.get(text.split()[-1], 'unknown')}, you are welcome."
"""
GRADERS = """
from gradeline import GradeResult, grader
@grader
def polite(sample, submission):
    return GradeResult(score=1.0 if "welcome" in submission else 0.0)
"""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text(AGENT.replace("SECONDS", "0"))
    (tmp_path / "graders.py").write_text(GRADERS)
    countries = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo", "Peru": "Lima"}
    rows = [
        {"id": country, "input": f"Capital of {country}", "ground_truth": city} for country, city in countries.items()
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def gradeline(folder: Path, *arguments: str) -> CommandResult:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, *arguments], cwd=folder, env={**environment, "NO_COLOR": "1"})
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def calls(folder: Path) -> int:
    return len((folder / "calls").read_text().splitlines())


class TestRun:
    def test_a_suite_runs_and_its_gate_decides(self, folder: Path) -> None:
        ran = gradeline(folder, "run", "suite.yaml", "--json")
        assert ran.code == 0
        verdict = ran.json["verdict"]
        assert (verdict["result"], verdict["reasons"]) == ("pass", ["exact: avg_score 0.75 ≥ 0.7 is true"])
        assert [(gate["metric_key"], gate["observed"], gate["result"]) for gate in verdict["gates"]] == [
            ("exact", 0.75, "pass")
        ]
        assert ran.json["exit_code"] == 0
        assert set(ran.json["run"]) == {
            "id", "name", "suite", "status", "target", "group", "parent", "seed", "started_at", "completed_at",
        }  # fmt: skip
        exact = ran.json["summary"]["graders"]["exact"]
        assert (exact["mean"], exact["scored"], exact["total"], exact["passed"], exact["failed"]) == (0.75, 4, 4, 3, 1)
        assert ran.json["summary"]["responses"] == {"success": 4, "error": 0, "timeout": 0}
        assert set(ran.json["summary"]["latency_ms"]) == {"mean", "p50", "p95", "p99"}
        assert calls(folder) == 4

    def test_a_gate_that_fails_exits_with_1(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace("value: 0.7", "value: 0.8"))
        ran = gradeline(folder, "run", "suite.yaml")
        assert ran.code == 1
        assert "verdict: fail" in ran.out

    def test_failed_calls_make_the_verdict_undecided(self, folder: Path) -> None:
        (folder / "agent.py").write_text(AGENT.replace("SECONDS", "1 / 0 if 'Spain' in text else 0"))
        ran = gradeline(folder, "run", "suite.yaml", "--json")
        assert ran.code == 1
        (folder / "suite.yaml").write_text(SUITE.replace("value: 0.7", "value: 0.5"))
        ran = gradeline(folder, "run", "suite.yaml", "--json")
        assert (ran.code, ran.json["verdict"]["result"]) == (3, "undecided")
        assert ran.json["summary"]["graders"]["exact"]["skipped"] == 1

    def test_nothing_graded_exits_with_4(self, folder: Path) -> None:
        (folder / "agent.py").write_text("def answer(text): raise OSError('down')")
        assert gradeline(folder, "run", "suite.yaml").code == 4

    def test_parts_of_a_suite_can_be_chosen(self, folder: Path) -> None:
        one = gradeline(folder, "run", "suite.yaml", "--json", "--limit", "2", "--repeats", "3", "--grader", "polite")
        assert one.code == 2
        (folder / "suite.yaml").write_text(SUITE.rpartition("gate:")[0])
        one = gradeline(folder, "run", "suite.yaml", "--json", "--limit", "2", "--repeats", "3", "--grader", "polite")
        assert one.json["summary"]["graders"].keys() == {"polite"}
        assert (one.json["summary"]["cases"], one.json["summary"]["repeats"]) == (2, 3)
        two = gradeline(folder, "run", "suite.yaml", "--json", "--sample", "Peru", "--name", "peru")
        assert two.json["run"]["name"] == "peru"
        assert two.json["summary"]["cases"] == 1

    def test_an_invalid_suite_exits_with_2_and_makes_no_calls(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace("mode: contains", "mode: contain"))
        ran = gradeline(folder, "run", "suite.yaml")
        assert ran.code == 2
        assert "suite.yaml:5:37: graders.exact.mode: expected one of" in ran.err
        assert not (folder / "calls").exists()

    def test_ctrl_c_finishes_calls_in_flight_and_resume_continues(self, folder: Path) -> None:
        (folder / "agent.py").write_text(AGENT.replace("SECONDS", "0.05"))
        rows = [{"id": index, "input": f"Capital of {index}", "ground_truth": "x"} for index in range(100)]
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
        running = subprocess.Popen(
            [COMMAND, "run", "suite.yaml"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        while not (folder / "calls").exists():  # the agent is being called
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=30)
        assert running.returncode == 130
        assert "gradeline resume " in err
        calls_before = calls(folder)
        assert 0 < calls_before < 100
        resumed = gradeline(folder, "resume", "latest", "--json")
        assert resumed.json["summary"]["cases"] == 100
        assert resumed.json["run"]["status"] == "completed"
        assert calls(folder) == 100

    def test_messages_during_a_run_are_above_the_live_line(self, folder: Path) -> None:
        pty = pytest.importorskip("pty")
        (folder / "agent.py").write_text(AGENT.replace("SECONDS", "0.5"))
        rows = [{"id": index, "input": f"Capital of {index}", "ground_truth": "x"} for index in range(100)]
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
        master, terminal = pty.openpty()
        environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}
        command = [COMMAND, "run", "suite.yaml", "--set", "concurrency=2"]
        running = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        output = b""
        while not re.search(rb"[1-9]\d* of 100 done", output):
            output += os.read(master, 1000)
        running.send_signal(signal.SIGINT)
        with suppress(OSError):  # how a terminal ends whose last program has
            while more := os.read(master, 1000):
                output += more
        os.close(master)
        assert running.wait(timeout=30) == 130
        before, first_message, _ = output.partition(b"finishing calls in flight; press Ctrl-C again to stop now")
        assert first_message
        assert before.endswith((b"\n", b"\x1b[2K", b"\r")), before[-80:]


class TestStoredRuns:
    def test_runs_are_listed_shown_and_exported(self, folder: Path) -> None:
        nothing = f"No runs yet in {folder}/.gradeline/store.db. Start one with: gradeline run SUITE\n"
        assert gradeline(folder, "list").out == nothing
        run = gradeline(folder, "run", "suite.yaml", "--json").json["run"]
        assert [one["id"] for one in gradeline(folder, "list", "--json").json["runs"]] == [run["id"]]
        assert "capitals" in gradeline(folder, "list").out
        (sized,) = gradeline(folder, "list", "--usage", "--json").json["runs"]
        (used,) = gradeline(folder, "store", "usage", "--json").json["runs"]
        assert (sized["rows"], sized["estimated_bytes"]) == (used["rows"], used["estimated_bytes"])
        assert " KiB" in gradeline(folder, "list", "--usage").out
        assert gradeline(folder, "show", run["id"][:6], "--json").json["run"]["id"] == run["id"]
        lines = gradeline(folder, "export").out.splitlines()
        assert [from_json(Record, line).case for line in lines] == ["France", "Spain", "Norway", "Peru"]
        assert gradeline(folder, "export", "latest", "--output", "out.jsonl").code == 0
        assert (folder / "out.jsonl").read_text().splitlines() == lines
        assert gradeline(folder, "show", "nonsense").code == 2

    def test_a_regrade_makes_no_calls_and_names_its_parent(self, folder: Path) -> None:
        (folder / "agent.py").write_text(AGENT.replace("SECONDS", "1 / 0 if 'Spain' in text else 0"))
        first = gradeline(folder, "run", "suite.yaml", "--json").json["run"]["id"]
        (folder / "suite.yaml").write_text(SUITE.replace("mode: contains", "mode: exact"))
        ran = gradeline(folder, "regrade", "latest", "--json")
        assert ran.json["run"]["parent"] == first
        assert ran.json["summary"]["graders"]["exact"]["mean"] == 0.0
        assert ran.json["summary"]["responses"] == {"success": 3, "error": 1, "timeout": 0}
        assert calls(folder) == 4

    def test_a_suite_edited_before_resume_is_refused(self, folder: Path) -> None:
        gradeline(folder, "run", "suite.yaml")
        (folder / "suite.yaml").write_text(SUITE.replace("value: 0.7", "value: 0.1"))
        ran = gradeline(folder, "resume", "latest")
        assert ran.code == 2
        assert "changed since the run began" in ran.err

    def test_a_selection_of_cases_resumes_as_that_selection(self, folder: Path) -> None:
        gradeline(folder, "run", "suite.yaml", "--limit", "2", "--repeats", "2")
        resumed = gradeline(folder, "resume", "latest", "--json")
        assert (resumed.json["summary"]["cases"], resumed.json["summary"]["repeats"]) == (2, 2)
        assert calls(folder) == 4

    @pytest.mark.parametrize(("baseline", "code"), [((), 0), (("--baseline", "before"), 3)])
    def test_resume_runs_the_models_that_were_not_reached(
        self, folder: Path, baseline: tuple[str, ...], code: int
    ) -> None:
        """The first is whole, the second dies in its midst, the third was never begun; letta's files are of all.

        So few cases leave it undecided whether they are worse than the baseline, of the third as of the second.
        """
        (folder / "suite.yaml").write_text(SUITE.replace('"agent.py:answer"', '"agent.py:answer", isolation: none'))
        (folder / "agent.py").write_text(DEADLY_AGENT)
        gradeline(folder, "run", "suite.yaml", "--name", "before", "--model", "first")
        models = ("--model", "first", "--model", "second", "--model", "third")
        options = ("--name", "mine", "--seed", "7", "--limit", "3", "--output", "out", *baseline)
        (folder / "deadly").touch()
        died = gradeline(folder, "run", "suite.yaml", *models, *options)
        assert died.code == -signal.SIGKILL
        assert not list((folder / "out").iterdir())
        resumed = gradeline(folder, "resume", "latest", "--json")
        assert (resumed.code, resumed.err) == (code, "")
        assert [one["run"]["name"] for one in resumed.json["runs"]] == ["mine [second]", "mine [third]"]
        assert {one["summary"]["cases"] for one in resumed.json["runs"]} == {3}
        runs = gradeline(folder, "list", "--json").json["runs"][:3]
        assert [(one["name"], one["status"]) for one in runs] == [
            (f"mine [{model}]", "completed") for model in ("third", "second", "first")
        ]
        assert len({one["group"] for one in runs}) == 1
        assert {one["seed"] for one in runs} == {7}
        second, third = (one["verdict"] for one in resumed.json["runs"])
        assert third == second
        assert {path.name for path in (folder / "out").iterdir()} == {
            "suite.json", "summary.json", "first.jsonl", "second.jsonl", "third.jsonl"
        }  # fmt: skip
        again = gradeline(folder, "resume", "latest", "--json")
        assert again.json["run"]["name"] == "mine [third]"

    def test_a_live_run_cannot_be_resumed(self, folder: Path) -> None:
        (folder / "agent.py").write_text(AGENT.replace("SECONDS", "30"))
        running = subprocess.Popen([COMMAND, "run", "suite.yaml"], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            for _ in range(100):
                if (folder / "calls").exists():
                    break
                time.sleep(0.1)
            refused = gradeline(folder, "resume", "latest")
            assert refused.code == 2
            assert "is still running, in process" in refused.err
            assert gradeline(folder, "list", "--json").json["runs"][0]["status"] == "running"
        finally:
            running.kill()
            running.wait()
        assert gradeline(folder, "list", "--json").json["runs"][0]["status"] == "interrupted"
        assert "interrupted" in gradeline(folder, "list").out
        assert gradeline(folder, "show", "--json").json["run"]["status"] == "interrupted"
        output = gradeline(folder, "show").out
        assert "interrupted\n" in output
        assert "the run is not complete (interrupted)" in output
        (folder / "agent.py").write_text(AGENT.replace("SECONDS", "0"))
        refused = gradeline(folder, "resume", "latest")
        assert refused.code == 2
        assert "the target changed since the run began" in refused.err
        resumed = gradeline(folder, "resume", "latest", "--allow-changed", "--json")
        assert resumed.json["summary"]["cases"] == 4
        assert len(resumed.json["run"]["target"]["earlier_fingerprints"]) == 1

    def test_an_invalid_row_ends_the_run_with_its_place(self, folder: Path) -> None:
        with (folder / "cases.jsonl").open("a") as cases:
            cases.write('\n{"inptu": "q"}\n')
        ran = gradeline(folder, "run", "suite.yaml")
        assert ran.code == 2
        assert "cases.jsonl:5" in ran.err
        assert "Traceback" not in ran.err
        assert gradeline(folder, "list", "--json").json["runs"][0]["status"] == "failed"

    def test_the_store_can_be_named(self, folder: Path) -> None:
        gradeline(folder, "--store", "mine.db", "run", "suite.yaml")
        assert (folder / "mine.db").exists()
        assert not (folder / ".gradeline").exists()
        assert len(gradeline(folder, "list", "--json", "--store", "mine.db").json["runs"]) == 1


class TestCached:
    def test_a_setup_that_needs_a_client_is_skipped_with_a_warning(self, folder: Path) -> None:
        assert gradeline(folder, "run", "suite.yaml", "--output", "out").code == 0
        (folder / "prepare.py").write_text(
            "from letta_evals.decorators import suite_setup\n@suite_setup\ndef prepare(client): client.agents.list()\n"
        )
        (folder / "suite.yaml").write_text(SUITE + "setup_script: prepare.py:prepare\n")
        ran = gradeline(folder, "run", "suite.yaml", "--cached", "out")
        assert ran.code == 0
        reason = "it needs a client, and with --cached no agent is called"
        assert f"warning: setup_script: prepare.py:prepare was not called: {reason}\n" in ran.err


class TestValidate:
    def test_a_valid_suite_makes_no_calls(self, folder: Path) -> None:
        ran = gradeline(folder, "validate", "suite.yaml", "--json")
        assert (ran.code, ran.json) == (0, {"valid": True, "errors": [], "warnings": []})
        assert not (folder / "calls").exists()

    @pytest.mark.parametrize(
        ("old", "new", "message"),
        [
            ("function: polite", "function: polit", "did you mean 'polite'"),
            ("agent.py:answer", "agent.py:anser", "did you mean 'answer'"),
            ("metric_key: exact", "metric_key: exat", "did you mean 'exact'"),
            ("cases.jsonl", "case.jsonl", "did you mean 'cases.jsonl'"),
        ],
    )
    def test_missing_requirements_of_a_run_are_found(self, folder: Path, old: str, new: str, message: str) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace(old, new))
        ran = gradeline(folder, "validate", "suite.yaml", "--json")
        assert ran.code == 2
        assert any(message in error["message"] for error in ran.json["errors"])
        assert set(ran.json["errors"][0]) == {"file", "line", "column", "path", "message"}

    def test_problems_of_file_code_and_cases_are_reported_together(self, folder: Path) -> None:
        text = SUITE.replace("function: polite", "function: exact_mach, extractor: agent.py:answer")
        (folder / "suite.yaml").write_text(text)
        (folder / "cases.jsonl").write_text('{"input": "q"}\n{"inptu": "q"}\n')
        ran = gradeline(folder, "validate", "suite.yaml", "--json")
        grader, extractor, case = ran.json["errors"]
        assert (ran.code, grader.pop("message").split("; ")[1]) == (
            2,
            "did you mean the built-in grader 'exact_match'? found: polite",
        )
        assert grader == {"file": "suite.yaml", "line": 6, "column": 34, "path": "graders.polite.function"}
        assert extractor == {
            "file": str(folder / "agent.py"),
            "line": 5,
            "column": 0,
            "path": "graders.polite.extractor",
            "message": "'answer' is not marked; add @extractor above def answer",
        }
        assert (case["line"], case["path"]) == (2, "input")
        assert [line.split(": ")[0] for line in gradeline(folder, "run", "suite.yaml").err.splitlines()[1:]] == [
            "  suite.yaml:6:34",
            f"  {folder}/agent.py:5",
            f"  {folder}/cases.jsonl:2",
        ]

    def test_problems_of_code_are_reported_with_those_of_the_file(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace("mode: contains", "mode: contain"))
        (folder / "graders.py").write_text("import sys\nsys.exit(3)\n")
        ran = gradeline(folder, "validate", "suite.yaml")
        assert [line.split(": ")[:2] for line in ran.err.splitlines()] == [
            ["suite.yaml:5:37", "graders.exact.mode"],
            ["suite.yaml:6:34", "graders.polite.function"],
            [f"{folder}/graders.py:2", "SystemExit"],
        ]

    def test_code_that_ends_the_process_that_loads_it_is_named(self, folder: Path) -> None:
        (folder / "graders.py").write_text("import os\n\nos._exit(0)\n")
        for command in ("validate", "run"):
            ran = gradeline(folder, command, "suite.yaml")
            assert ran.code == 2
            assert f"{folder}/graders.py:3: ended the process that loads it (exit code 0)" in ran.err

    def test_a_function_used_as_a_kind_is_suggested(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace("kind: tool, function: polite", "kind: polite"))
        assert (
            "'polite' is a function of graders.py; write kind: tool, function: polite"
            in gradeline(folder, "validate", "suite.yaml").err
        )

    def test_an_invalid_dataset_row_is_found(self, folder: Path) -> None:
        (folder / "cases.jsonl").write_text('{"input": "q"}\n{"inptu": "q"}\n')
        ran = gradeline(folder, "validate", "suite.yaml")
        assert ran.code == 2
        assert "cases.jsonl:2" in ran.err


class TestOutput:
    def test_shell_completion_of_commands_and_runs(self, folder: Path) -> None:
        report = gradeline(folder, "run", "suite.yaml", "--json").json["run"]["id"]

        def completed(words: str, at: int) -> list[str]:
            environment = {
                **os.environ,
                "COMP_WORDS": words,
                "COMP_CWORD": str(at),
                "_GRADELINE_COMPLETE": "bash_complete",
            }
            done = subprocess.run([COMMAND], cwd=folder, capture_output=True, env=environment, text=True, check=False)
            return [line.partition(",")[2] for line in done.stdout.splitlines()]

        assert completed("gradeline reg", 1) == ["regrade"]
        assert completed("gradeline show ", 2) == ["latest", report[:8]]
        assert completed(f"gradeline resume {report[:3]}", 2) == [report[:8]]

    def test_a_ci_job_summary_is_written(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(folder / "summary.md"))
        gradeline(folder, "run", "suite.yaml")
        assert "exact" in (folder / "summary.md").read_text()
        assert "pass" in (folder / "summary.md").read_text().splitlines()[0].lower()

    def test_the_worst_cases_follow_the_table(self, folder: Path) -> None:
        (folder / "agent.py").write_text(AGENT.replace("SECONDS", "1 / 0 if 'Spain' in text else 0"))
        report = gradeline(folder, "run", "suite.yaml").out
        assert "worst cases" in report
        lines = report[report.index("worst cases") :].splitlines()
        assert [line.split()[:3] for line in lines[2:4]] == [["Spain", "–", "call"], ["Peru", "exact", "fail"]]
        assert "ZeroDivisionError: division by zero" in lines[2]

    def test_a_stored_run_is_shown_with_its_verdict(self, folder: Path) -> None:
        ran = gradeline(folder, "run", "suite.yaml", "--json").json
        output = gradeline(folder, "show", "latest", "--json")
        assert (output.code, output.json) == (0, ran)


def test_a_built_in_grader_that_needs_a_worker_gets_one(tmp_path: Path) -> None:
    rows = [{"id": number, "input": f"x{number}ab", "ground_truth": "a(?=b)"} for number in range(40)]
    suite = {
        "name": "lookahead",
        "dataset": rows,
        "target": {"kind": "command", "command": ["cat"]},
        "graders": {"found": {"kind": "tool", "function": "regex_match"}},
    }
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    ran = gradeline(tmp_path, "run", "suite.json", "--json")
    assert (ran.code, ran.json["summary"]["graders"]["found"]["passed"]) == (0, 40)

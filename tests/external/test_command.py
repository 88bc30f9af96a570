"""Programs as graders: their verdicts, and everything that can go wrong with them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gradeline.errors import ConfigError, Outcome
from gradeline.external.command import CommandGrader
from gradeline.graders import create, run_async_grader, run_grader
from gradeline.graders.base import DeclaredGrader
from gradeline.model import Grade, GradeContext, Response, Sample, ToolCall, Trajectory, Usage
from gradeline.model.resources import Resources
from gradeline.model.response import Document
from gradeline.model.trajectory import Message
from gradeline.usercode.process_control import TOKEN_VARIABLE
from invalid_verdicts import BAD_REPLIES

ONCE = "import json, sys; case = json.load(sys.stdin)\n"
LOOP = """
import json, os, sys, time
for line in sys.stdin:
    case = json.loads(line)
    text = case["submission"]
"""


def python(folder: Path, code: str, **config: Any) -> CommandGrader:
    """A grader whose program is this Python code."""
    (folder / "check.py").write_text(code)
    bound = CommandGrader(config={"command": [sys.executable, "check.py"], **config}).bind(Resources(folder))
    assert isinstance(bound, CommandGrader)
    return bound


def context(submission: str = "Paris") -> GradeContext:
    return GradeContext(Sample("one", "Where?", "Paris"), submission)


def grades(grader: CommandGrader, submissions: Iterable[str], *, together: bool = False) -> list[Grade]:
    """The grades of these submissions, one after the other or at the same time."""

    async def run() -> list[Grade]:
        pending = [run_async_grader(grader, context(text)) for text in submissions]
        try:
            return list(await asyncio.gather(*pending)) if together else [await one for one in pending]
        finally:
            await grader.aclose()

    return asyncio.run(run())


def fault(grader: CommandGrader, submission: str = "Paris") -> tuple[str, str]:
    (grade,) = grades(grader, [submission])
    assert grade.outcome is Outcome.ERROR, grade
    assert grade.score is None
    assert grade.error is not None
    return grade.error.type, grade.error.message


MARK = {"GRADER_TEST": str(os.getpid())}


def left_over() -> list[str]:
    """The processes of any program of this test that still run."""
    needle = f"\0GRADER_TEST={os.getpid()}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environment = (entry / "environ").read_bytes()
                if f"{TOKEN_VARIABLE}=".encode() in environment and needle in environment + b"\0":
                    found.append((entry / "cmdline").read_text())
            except OSError:
                continue
    return found


def test_a_program_gets_the_case_and_gives_a_verdict(tmp_path: Path) -> None:
    code = ONCE + "print(json.dumps({'score': 0.25, 'rationale': 'so-so', 'metadata': {'case': case}}))"
    response = Response(
        text="Paris",
        trajectory=Trajectory(((Message("assistant", "", (ToolCall("search", '{"q": 1}'),)),),)),
        usage=Usage(3, 4),
        latency_ms=12.5,
        documents=(Document("a text", "d1"),),
    )
    grader = python(tmp_path, code, parameters={"least": 3})
    ctx = GradeContext(Sample("one", "Where?", "Paris", {"x": [1]}), "Paris", response)
    grade = asyncio.run(run_async_grader(grader, ctx))
    assert (grade.outcome, grade.score, grade.rationale) == (Outcome.FAIL, 0.25, "so-so")
    case = grade.metadata["case"]
    assert case.keys() == {"sample", "submission", "response", "config"}
    assert (case["sample"]["id"], case["sample"]["ground_truth"], case["sample"]["metadata"]) == (
        "one",
        "Paris",
        {"x": [1]},
    )
    assert (case["submission"], case["config"]) == ("Paris", {"least": 3})
    assert case["response"]["text"] == "Paris"
    assert case["response"]["trajectory"]["turns"][0][0]["tool_calls"][0]["name"] == "search"
    assert (case["response"]["usage"]["input_tokens"], case["response"]["latency_ms"]) == (3, 12.5)
    assert case["response"]["documents"] == [{"text": "a text", "id": "d1"}]


@pytest.mark.parametrize(
    ("printed", "score"), [('{"passed": true}', 1.0), ('{"passed": false}', 0.0), ('{"score": 1}', 1)]
)
def test_a_verdict_is_a_score_or_passed(tmp_path: Path, printed: str, score: float) -> None:
    (grade,) = grades(python(tmp_path, f"print({printed!r})"), ["x"])
    assert (grade.score, grade.passed) == (score, score == 1.0)


def test_a_pass_threshold_decides_over_the_verdict(tmp_path: Path) -> None:
    grader = python(tmp_path, """print('{"score": 0.6}')""")
    grade = asyncio.run(run_async_grader(grader, context(), pass_threshold=0.7))
    assert grade.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("protocol", "printed", "reason"),
    [
        *(("once", *reply) for reply in BAD_REPLIES),
        # each line is an answer of its own
        *(("jsonl", *reply) for reply in BAD_REPLIES if "\n" not in reply[0]),
    ],
)
def test_anything_else_is_a_bad_reply(tmp_path: Path, protocol: str, printed: str, reason: str) -> None:
    show = (
        f"print({printed[0]!r} * {len(printed)}, flush=True)"
        if len(printed) > 999
        else f"print({printed!r}, flush=True)"
    )
    code = show if protocol == "once" else f"import sys\nfor line in sys.stdin: {show}"
    kind, message = fault(python(tmp_path, code, protocol=protocol))
    assert kind == "bad_reply"
    assert reason in message
    assert "check.py" in message
    assert len(message) < 1000


@pytest.mark.parametrize("protocol", ["once", "jsonl"])
def test_fifty_megabytes_of_output_are_an_error(tmp_path: Path, protocol: str) -> None:
    code = "import sys\nsys.stdin.readline()\nfor _ in range(500): sys.stdout.write('x' * 100_000)"
    kind, message = fault(python(tmp_path, code, protocol=protocol))
    assert kind == "too_large"
    assert "1,048,576" in message


@pytest.mark.parametrize("protocol", ["once", "jsonl"])
def test_logs_on_standard_error_are_kept_with_the_grade(tmp_path: Path, protocol: str) -> None:
    code = """
import sys
for line in sys.stdin:
    sys.stderr.write("x" * 5_000_000 + "the end"); sys.stderr.flush()
    print('{"score": 1}', flush=True)
"""
    (grade,) = grades(python(tmp_path, code, protocol=protocol), ["x"])
    assert grade.score == 1.0
    assert grade.output is not None
    if protocol == "once":  # a process that goes on may write its logs after its answer
        assert grade.output.endswith("the end")
    assert len(grade.output) <= 1024 * 1024


def test_an_exit_code_is_a_crash_with_the_end_of_standard_error(tmp_path: Path) -> None:
    kind, message = fault(python(tmp_path, """import sys; print('{"score": 1}'); sys.exit("no rules for this case")"""))
    assert kind == "crashed"
    assert "exit code 1" in message
    assert message.endswith("no rules for this case")
    assert fault(python(tmp_path, "import os; os.kill(os.getpid(), 9)"))[1].endswith("SIGKILL")


@pytest.mark.parametrize("protocol", ["once", "jsonl"])
def test_a_program_that_hangs_is_killed_with_all_its_children(tmp_path: Path, protocol: str) -> None:
    code = """
import os, subprocess, sys, time
subprocess.Popen(["sleep", "1000"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""
    kind, message = fault(python(tmp_path, code, protocol=protocol, timeout=0.7, env=MARK))
    assert (kind, "0.7 s" in message) == ("timeout", True)
    assert left_over() == []


def test_a_program_that_forks_without_end_is_killed(tmp_path: Path) -> None:
    code = """
import os, time
for _ in range(6):  # 63 children, each in a session of its own
    if os.fork() == 0:
        os.setsid()
time.sleep(1000)
"""
    assert fault(python(tmp_path, code, timeout=1.0, env=MARK))[0] == "timeout"
    assert left_over() == []


def test_what_a_program_leaves_running_is_killed(tmp_path: Path) -> None:
    code = """
import subprocess
nothing = subprocess.DEVNULL
subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=nothing, stderr=nothing)
print('{"score": 1}')
"""
    (grade,) = grades(python(tmp_path, code, env=MARK), ["x"])
    assert grade.score == 1.0
    assert left_over() == []


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits of programs need Linux")
@pytest.mark.parametrize("protocol", ["once", "jsonl"])
def test_a_program_above_its_memory_limit_is_a_memory_error(tmp_path: Path, protocol: str) -> None:
    code = "import sys\nfor line in sys.stdin: data = bytearray(900_000_000)"
    kind, message = fault(python(tmp_path, code, memory="128MiB", protocol=protocol))
    assert kind == "memory"
    assert "128 MiB" in message


def test_secrets_of_the_environment_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-graders")
    monkeypatch.setenv("DATABASE_URL", "postgres://me:hidden-password@db/x")
    monkeypatch.setenv("HARMLESS", "yes")
    monkeypatch.setenv("FOR_GRADER", "given-to-the-grader")
    code = ONCE + "import os; print(json.dumps({'score': 1, 'metadata': dict(os.environ)}))"
    (grade,) = grades(python(tmp_path, code, env={"TOKEN": "${FOR_GRADER}"}), ["x"])
    seen = grade.metadata
    assert not {"OPENAI_API_KEY", "DATABASE_URL"} & seen.keys()
    assert (seen["HARMLESS"], "PATH" in seen) == ("yes", True)
    # the program has it, and what it says of it is masked
    assert (seen["TOKEN"], seen["FOR_GRADER"]) == ("***", "***")
    assert "given-to-the-grader" not in str(grade)


def test_processes_that_stay_answer_many_cases(tmp_path: Path) -> None:
    code = (
        LOOP + """    print(json.dumps({"score": len(text) / 100, "metadata": {"pid": os.getpid()}}), flush=True)\n"""
    )
    found = grades(
        python(tmp_path, code, protocol="jsonl", processes=2), ["x" * n for n in range(1, 41)], together=True
    )
    assert [grade.score for grade in found] == [n / 100 for n in range(1, 41)]
    assert 1 <= len({grade.metadata["pid"] for grade in found}) <= 2


def test_a_process_is_replaced_after_each_way_to_fail(tmp_path: Path) -> None:
    code = (
        LOOP
        + """
    if text == "die": os._exit(3)
    if text == "hang": time.sleep(100)
    if text == "noise": print("loading", flush=True)
    extra = '{"score": 1}\\n' if text == "twice" else ""
    os.write(1, (extra + json.dumps({"score": 1, "metadata": {"pid": os.getpid()}}) + "\\n").encode())
"""
    )
    grader = python(tmp_path, code, protocol="jsonl", processes=1, timeout=1.0, env=MARK)
    found = grades(grader, ["a", "b", "die", "c", "hang", "d", "noise", "e", "twice", "late", "f"])
    kinds = ["" if one.error is None else one.error.type for one in found]
    assert kinds == ["", "", "crashed", "", "timeout", "", "bad_reply", "", "", "bad_reply", ""]
    pids = [one.metadata.get("pid") for one in found]
    assert pids[0] == pids[1]
    assert len({pids[0], pids[3], pids[5], pids[7], pids[10]}) == 5
    assert left_over() == []


def test_an_answer_with_the_number_of_another_request_is_an_error(tmp_path: Path) -> None:
    code = """
import json, os, sys, time
for line in sys.stdin:
    case = json.loads(line)
    score = len(case["submission"]) / 10
    number = case["id"] - (case["submission"] == "xxx")
    print(json.dumps({"id": number, "score": score}), flush=True)
"""
    found = grades(python(tmp_path, code, protocol="jsonl", processes=1), ["x", "xx", "xxx", "xxxx"])
    assert [one.score for one in found] == [0.1, 0.2, None, 0.4]
    assert found[2].error is not None
    assert "answered another request than number 3" in found[2].error.message


def test_a_process_that_ends_after_its_answer_costs_no_case(tmp_path: Path) -> None:
    code = """import sys; sys.stdin.readline(); print('{"score": 1}', flush=True)"""
    found = grades(python(tmp_path, code, protocol="jsonl", processes=1), ["a", "b", "c"])
    # it may still look alive when the next case arrives, which is then a crash and never a score
    assert found[0].score == 1.0
    assert {None if one.error is None else one.error.type for one in found} <= {None, "crashed"}


def test_the_loop_ends_its_processes(tmp_path: Path) -> None:
    code = LOOP + """    print('{"score": 1}', flush=True)"""
    grader = python(tmp_path, code, protocol="jsonl", env=MARK)
    assert asyncio.run(run_async_grader(grader, context())).score == 1.0
    assert left_over() == []


def test_it_works_without_a_run(tmp_path: Path) -> None:
    grader = python(tmp_path, """print('{"score": 1}')""")
    assert run_grader(grader, context()).score == 1.0
    assert run_grader(python(tmp_path, "print(1)"), context()).outcome is Outcome.ERROR


def test_an_empty_answer_is_not_sent(tmp_path: Path) -> None:
    (grade,) = grades(python(tmp_path, """print('{"score": 1}')"""), [""])
    assert (grade.outcome, grade.score) == (Outcome.FAIL, 0.0)


def test_a_missing_program_is_found_before_the_run(tmp_path: Path) -> None:
    for command, remedy in (["no-such-program"], "install it"), (["./check"], "install it"):
        with pytest.raises(ConfigError, match="no program") as caught:
            CommandGrader(config={"command": command}).bind(Resources(tmp_path))
        assert caught.value.problems[0].path == "command[0]"
        assert remedy in str(caught.value)
    (tmp_path / "check").write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="make it executable"):
        CommandGrader(config={"command": ["./check"]}).bind(Resources(tmp_path))


def test_all_faults_of_the_options_at_once() -> None:
    config = {
        "command": [""],
        "protocol": "tcp",
        "timeout": 0,
        "memory": "1KB",
        "processes": 0,
        "env": {"A=B": "x", "API_KEY": "sk-12345678"},
        "shell": True,
    }
    with pytest.raises(ConfigError) as caught:
        create("command", config)
    assert {problem.path for problem in caught.value.problems} == {
        "config.command[0]",
        "config.protocol",
        "config.timeout",
        "config.memory",
        "config.processes",
        "config.env",
        "config.env.API_KEY",
        "config.shell",
    }


def test_a_variable_that_is_not_set_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env.TOKEN: the variable NO_SUCH_VARIABLE is not set"):
        python(tmp_path, "", env={"TOKEN": "${NO_SUCH_VARIABLE}"})


def test_a_script_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    grader = create("command", {"command": ["node", "--flag=x.js", "dist/check.mjs", "3.5"]})
    assert isinstance(grader, DeclaredGrader)
    (issue,) = grader.config_issues(tmp_path, None)
    assert (issue.fatal, issue.problem.path) == (False, "command[2]")
    assert "build it" in issue.problem.message


def test_the_fingerprint_covers_scripts_options_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = python(tmp_path, "print(1)").fingerprint
    assert python(tmp_path, "print(1)", timeout=9, processes=3, memory="1GiB").fingerprint == first
    assert python(tmp_path, "print(2)").fingerprint != first
    assert python(tmp_path, "print(1)", parameters={"a": 1}).fingerprint != first
    assert python(tmp_path, "print(1)", protocol="jsonl").fingerprint != first
    monkeypatch.setenv("GRADER_KEY", "one-secret-value")
    with_key = python(tmp_path, "print(1)", env={"KEY": "${GRADER_KEY}"}).fingerprint
    monkeypatch.setenv("GRADER_KEY", "another-secret-value")
    assert python(tmp_path, "print(1)", env={"KEY": "${GRADER_KEY}"}).fingerprint == with_key


def test_files_outside_the_suites_folder_are_not_read(tmp_path: Path) -> None:
    suite = tmp_path / "suite"
    suite.mkdir()
    (tmp_path / "other.py").write_text("1")
    command = [sys.executable, "../other.py"]
    before = CommandGrader(config={"command": command}).bind(Resources(suite)).fingerprint
    (tmp_path / "other.py").write_text("2")
    assert CommandGrader(config={"command": command}).bind(Resources(suite)).fingerprint == before


def test_a_listing_describes_it() -> None:
    listed = CommandGrader.describe()
    assert json.dumps(listed)
    assert listed["config_schema"]["required"] == ["command"]
    assert listed["caveats"]

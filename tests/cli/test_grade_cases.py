"""``gradeline grade GRADER CASES.jsonl``, run as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.model import Record, from_json
from gradeline_command import COMMAND, run_command

GRADERS = """
import os
from gradeline import GradeResult, grader

@grader
def same(sample, submission):
    return GradeResult(score=1.0 if submission == sample.ground_truth else 0.0, rationale="compared")

@grader(name="talks")
async def other(sample, submission):
    print("I saw", submission)
    return GradeResult(score=1.0, metadata=dict(sample.metadata))
"""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


def gradeline(*arguments: str | Path) -> CommandResult:
    done = run_command([COMMAND, *map(str, arguments)], env={**os.environ, "NO_COLOR": "1"})
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "graders.py").write_text(GRADERS)
    write_cases(
        tmp_path,
        {"input": "q", "ground_truth": "Paris", "submission": "Paris", "metadata": {"a": 1}, "extra": 2},
        {"ground_truth": 4, "submission": "4"},
        {"id": "third", "ground_truth": "x", "submission": ""},
    )
    return tmp_path


def write_cases(folder: Path, *rows: Any) -> Path:
    path = folder / "cases.jsonl"
    path.write_text("\n\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


def records(ran: CommandResult) -> list[Record]:
    return [from_json(Record, line) for line in ran.out.splitlines()]


class TestGradingCases:
    def test_every_grader_of_the_file_grades_every_case(self, folder: Path) -> None:
        ran = gradeline("grade", folder / "graders.py", folder / "cases.jsonl", "--json")
        assert ran.code == 1
        assert [
            (record.case, {key: grade.score for key, grade in record.grades.items()}) for record in records(ran)
        ] == [
            ("0", {"same": 1.0, "talks": 1.0}),
            ("1", {"same": 1.0, "talks": 1.0}),
            ("third", {"same": 0.0, "talks": 0.0}),
        ]

    def test_a_record_is_complete(self, folder: Path) -> None:
        first = records(gradeline("grade", folder / "graders.py", folder / "cases.jsonl", "--json"))[0]
        grade = first.grades["talks"]
        assert (grade.kind, grade.outcome, grade.output) == ("tool", "pass", "I saw Paris\n")
        assert grade.metadata == {"a": 1, "extra": 2}
        assert len(grade.fingerprint) == 32
        assert first.submissions == {"same": "Paris", "talks": "Paris"}

    def test_one_function_can_be_chosen(self, folder: Path) -> None:
        ran = gradeline("grade", f"{folder / 'graders.py'}:same", folder / "cases.jsonl")
        assert ran.code == 1
        assert ran.out.splitlines()[1].split() == ["same", "0.667", "3", "of", "3", "2", "1", "0"]
        assert "third" in ran.out
        assert "Empty submission - extractor found no content" in ran.out

    def test_a_built_in_grades_a_file_too(self, folder: Path) -> None:
        cases = write_cases(
            folder, {"ground_truth": "4", "submission": "it is 4"}, {"ground_truth": "5", "submission": "5"}
        )
        assert gradeline("grade", "numeric", cases).code == 0

    def test_a_pattern_that_only_re_supports_is_graded_in_a_worker(self, folder: Path) -> None:
        cases = write_cases(folder, {"ground_truth": "(?=P)Paris", "submission": "in Paris"})
        ran = gradeline("grade", "regex_match", cases, "--json")
        assert records(ran)[0].grades["regex_match"].rationale == "Regex match: True"

    def test_a_grade_without_score_makes_it_undecided(self, folder: Path) -> None:
        (folder / "graders.py").write_text(GRADERS + "\n@grader\ndef ends(sample, submission):\n    os._exit(0)\n")
        cases = write_cases(folder, {"ground_truth": "a", "submission": "a"})
        assert gradeline("grade", f"{folder / 'graders.py'}:ends", cases).code == 4
        ran = gradeline("grade", folder / "graders.py", cases)
        assert ran.code == 3
        assert "crashed: graders.py:ends ended its process: exit code 0" in " ".join(ran.out.split())

    def test_the_deadline_can_be_set(self, folder: Path) -> None:
        (folder / "graders.py").write_text(
            GRADERS + "\n@grader\ndef hangs(sample, submission):\n    while True: pass\n"
        )
        ran = gradeline("grade", f"{folder / 'graders.py'}:hangs", folder / "cases.jsonl", "--timeout", "0.2", "--json")
        assert [record.grades["hangs"].outcome for record in records(ran)] == ["error", "error", "fail"]

    def test_ctrl_c_ends_it_with_130_and_leaves_no_process(self, folder: Path) -> None:
        (folder / "graders.py").write_text(
            GRADERS + "\n@grader\ndef hangs(sample, submission):\n    while True: pass\n"
        )
        mark = f"interrupted-{os.getpid()}"
        running = subprocess.Popen(
            [COMMAND, "grade", f"{folder / 'graders.py'}:hangs", str(folder / "cases.jsonl"), "--timeout", "60"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "GRADELINE_TEST_RUN": mark},
        )
        time.sleep(1.5)
        running.send_signal(signal.SIGINT)
        _, err = running.communicate(timeout=20)
        assert (running.returncode, err.strip()) == (130, b"interrupted")
        assert not [pid for pid in Path("/proc").glob("[0-9]*/environ") if mark.encode() in read(pid)]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


class TestInvalidUsage:
    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ("{", "cases.jsonl:1: not JSON: it ends too early, got '{'"),
            ("[1]", 'cases.jsonl:1: expected {"input": …, "submission": …}, got [1]'),
            ({"input": "q"}, "cases.jsonl:1: submission: must be the text to grade, got None"),
            ({"submission": "a", "metadata": 3}, "cases.jsonl:1: metadata: expected a mapping, got 3"),
            (
                {"submission": "a", "ground_truth": {}},
                "cases.jsonl:1: ground_truth: expected a string or a list of strings",
            ),
            ({"submission": "a", "tags": "x"}, "cases.jsonl:1: tags: expected a list of strings, got 'x'"),
            ({"submission": "a", "id": [1]}, "cases.jsonl:1: id: expected a string or a whole number, got [1]"),
            ("", "cases.jsonl: contains no cases"),
        ],
    )
    def test_a_bad_row_is_named_with_file_and_line(self, folder: Path, row: Any, message: str) -> None:
        ran = gradeline("grade", folder / "graders.py", write_cases(folder, row))
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err

    def test_duplicate_ids_are_refused(self, folder: Path) -> None:
        cases = write_cases(folder, {"id": 1, "submission": "a"}, {"id": "1", "submission": "b"})
        ran = gradeline("grade", folder / "graders.py", cases)
        assert ran.code == 2
        assert "cases.jsonl:3: another case above has the id '1'" in ran.err

    @pytest.mark.parametrize(
        ("source", "function", "message"),
        [
            ("def f(sample, submission): return 1", "f", "add @grader above def f"),
            (
                "from gradeline import grader\n@grader\ndef f(output): return 1",
                "f",
                "it must take (sample, submission), (sample, submission, response) or (ctx); write `def f(ctx)",
            ),
            ("def f(:\n", "f", "graders.py:1: SyntaxError"),
            ("import no_such_package", "f", "no module named 'no_such_package'"),
            ("import sys; sys.exit(3)", "f", "SystemExit: 3; a file must not exit while it loads"),
            (GRADERS, "sam", "did you mean 'same'?"),
            ("x = 1", "*", "no function is marked @grader"),
        ],
    )
    def test_unusable_code_is_refused_with_an_example(
        self, folder: Path, source: str, function: str, message: str
    ) -> None:
        (folder / "graders.py").write_text(source)
        ran = gradeline("grade", f"{folder / 'graders.py'}:{function}", folder / "cases.jsonl")
        assert (ran.code, ran.out) == (2, "")
        assert message.lower() in ran.err.lower()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["graders.py"], "A custom grader needs a file of cases"),
            (["no_such.py", "cases.jsonl"], "no_such.py: no such file"),
            (["graders.py", "no_such.jsonl"], "no_such.jsonl: no such file"),
            (["graders.py", "cases.jsonl", "--config", '{"a": 1}'], "--config: is for built-in graders"),
            (["graders.py", "cases.jsonl", "--timeout", "0"], "--timeout"),
            (["numerik", "cases.jsonl"], "did you mean 'numeric'?"),
        ],
    )
    def test_invalid_usage_has_a_remedy(self, folder: Path, arguments: list[str], message: str) -> None:
        files = (".py", ".jsonl")
        ran = gradeline("grade", *(folder / part if part.endswith(files) else part for part in arguments))
        assert (ran.code, ran.out) == (2, "")
        assert message in ran.err

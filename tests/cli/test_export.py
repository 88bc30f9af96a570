"""``gradeline export`` as a user calls it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gradeline.errors import Outcome
from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    Record,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    from_json,
)
from gradeline.report.table import write_parquet
from gradeline.store import SqliteStorage
from gradeline_command import COMMAND, run_command

BEGINNINGS = {
    "jsonl": '{"schema":1,"run":"',
    "csv": "run,case,repeat,grader,kind,outcome,",
    "junit": '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>',
    "markdown": "### ➖ No gate: <code>capitals</code>",
    "html": "<!doctype html>",
}


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with one stored run, larger than a pipe buffer."""
    (tmp_path / ".gradeline").mkdir()
    with SqliteStorage(tmp_path / ".gradeline" / "store.db") as storage:
        graders = {"exact": RunGrader("string-match", "f1")}
        run = storage.save_run(Run(name="capitals", suite="capitals", status="completed", graders=graders, total=20))
        for case in range(20):
            key = ResponseKey(run, str(case))
            storage.put_response(key, Response(text="é" * 5000), Sample(case, "q"))
            grade = Grade("string-match", "f1", Outcome.PASS, 1.0, True)
            storage.put_grade(GradeKey(*key, "exact"), grade, "é" * 5000)
    return tmp_path


def export(folder: Path, *arguments: str, **environment: str) -> CommandResult:
    variables = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, "export", *arguments], cwd=folder, env={**variables, **environment})
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("format_name", BEGINNINGS)
def test_a_file_has_the_same_bytes_as_standard_output(folder: Path, format_name: str) -> None:
    printed = export(folder, "latest", "--format", format_name, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (printed.code, printed.err) == (0, "")
    assert printed.out.startswith(BEGINNINGS[format_name])
    assert export(folder, "--format", format_name, "--output", "out") == (0, "", "")
    assert (folder / "out").read_bytes().decode() == printed.out
    assert sorted(path.name for path in folder.iterdir()) == [".gradeline", "out"]


def test_records_are_the_default(folder: Path) -> None:
    lines = export(folder).out.splitlines()
    assert [from_json(Record, line).case for line in lines] == [str(case) for case in range(20)]


def test_an_unknown_format_is_refused_with_the_known_ones(folder: Path) -> None:
    ran = export(folder, "--format", "xml")
    assert ran.code == 2
    assert "'xml' is not one of 'jsonl', 'csv', 'parquet', 'junit', 'markdown', 'html', 'inspect'" in ran.err


def test_an_unknown_run_is_refused_and_leaves_no_file(folder: Path) -> None:
    assert export(folder, "nonsense", "--output", "out").code == 2
    assert not (folder / "out").exists()


def test_an_unwritable_path_is_named(folder: Path) -> None:
    missing, taken = export(folder, "--output", "no/such/file"), export(folder, "--output", ".gradeline")
    assert (missing.code, taken.code) == (2, 2)
    assert "no/such/file: cannot write: No such file or directory" in missing.err
    assert ".gradeline: is a folder; name a file" in taken.err


def test_a_device_is_written_to_and_not_replaced(folder: Path) -> None:
    assert export(folder, "--output", os.devnull) == (0, "", "")
    assert not Path(os.devnull).is_file()


def test_json_describes_the_written_file(folder: Path) -> None:
    assert export(folder, "--format", "csv", "--output", "out.csv", "--json").out == '{"written": ["out.csv"]}\n'


@pytest.mark.parametrize("format_name", BEGINNINGS)
def test_a_closed_pipe_is_not_an_error(folder: Path, format_name: str) -> None:
    running = subprocess.Popen(
        [COMMAND, "export", "--format", format_name], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.read(1)
    running.stdout.close()
    with running:
        assert running.stderr.read() == b""
    assert running.returncode == 0


def rows_of_jsonl(lines: str) -> list[dict[str, Any]]:
    """The rows of a Parquet file, computed from the records of another format."""
    found = []
    for record in map(json.loads, lines.splitlines()):
        response, sample = record["response"], record["sample"]
        for grader in ("exact", "late"):
            grade = record["grades"].get(grader, {})
            error = grade.get("error") or response.get("error") or {}
            found.append(
                {
                    "run": record["run"],
                    "case": record["case"],
                    "repeat": record["repeat"],
                    "grader": grader,
                    "kind": "string-match",
                    "outcome": grade.get("outcome") or ("skipped" if response.get("error") else None),
                    "score": grade.get("score"),
                    "passed": grade.get("passed"),
                    "rationale": grade.get("rationale", "") if grade else None,
                    "error_type": error.get("type"),
                    "error_message": error.get("message"),
                    "fault": error.get("fault"),
                    "response_status": response.get("status", "success"),
                    "latency_ms": response.get("latency_ms"),
                    "input": sample["input"] if isinstance(sample["input"], str) else "\n\n".join(sample["input"]),
                    "expected": sample.get("ground_truth"),
                    "submission": record.get("submissions", {}).get(grader),
                    "text": response.get("text"),
                    "tags": sample.get("tags", []),
                    "metadata": grade.get("metadata", {}),
                }
            )
    return found


def test_parquet_has_the_same_records_as_jsonl(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    graders = {"exact": RunGrader("string-match", "f1"), "late": RunGrader("string-match", "f1")}
    with SqliteStorage(tmp_path / "store.db") as storage:
        run = storage.save_run(Run(name="n", suite="s", status="completed", graders=graders))
        for case in range(5000):  # more than a group of rows
            key = ResponseKey(run, f"=case {case} 'é' \U0001f600", case % 2)
            sample = Sample(key.case, ["first\n", "then"] if case % 3 else "q", str(case) if case % 5 else None)
            answer = Response(text=f"{case},\t\"'" * 9, latency_ms=case / 7)
            if case % 50 == 0:
                answer = Response("timeout", error=ErrorInfo("timeout", "no answer", Fault.AGENT))
            put(storage, key, answer, sample, case)
    lines = export(tmp_path, "--store", "store.db").out
    assert export(tmp_path, "--store", "store.db", "--format", "parquet", "--output", "it's.parquet") == (0, "", "")
    found = duckdb.sql(f"SELECT * FROM '{tmp_path}/it''s.parquet'")
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]
    assert [{**row, "metadata": json.loads(row["metadata"])} for row in rows] == rows_of_jsonl(lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it's.parquet", "store.db"]


def test_long_responses_do_not_accumulate_in_memory(tmp_path: Path) -> None:
    """Their total size exceeds the memory limit of the export."""
    duckdb = pytest.importorskip("duckdb")
    texts = {f"c{case:02}": f"{case}" + "0123456789é" * 900_000 for case in range(30)}
    path = tmp_path / "out.parquet"
    records = (Record("r", case, 0, Sample(case, "q"), Response(text=text)) for case, text in texts.items())
    write_parquet(path, records, {"exact": RunGrader("string-match", "f1")})
    assert duckdb.sql(f"SELECT \"case\", text FROM '{path}'").fetchall() == list(texts.items())


def put(storage: SqliteStorage, key: ResponseKey, answer: Response, sample: Sample, case: int) -> None:
    storage.put_response(key, answer, sample, case)
    if answer.error is None:
        grade = Grade("string-match", "f1", Outcome.PASS, 1.0, True, f"as {case}", {"n": [case, None, "é"]})
        if case % 7 == 0:
            grade = Grade("string-match", "f1", Outcome.ERROR, error=ErrorInfo("timeout", "slow", Fault.GRADER))
        storage.put_grade(GradeKey(*key, "exact"), grade, f"submission {case}")


@pytest.mark.parametrize(("format_name", "start"), [("parquet", b"PAR1"), ("inspect", b"PK\x03\x04")])
def test_a_binary_format_to_a_pipe_equals_that_to_a_file(folder: Path, format_name: str, start: bytes) -> None:
    if format_name == "parquet":
        pytest.importorskip("duckdb")
    command = [COMMAND, "export", "--format", format_name]
    piped = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    assert export(folder, "--format", format_name, "--output", "out") == (0, "", "")
    assert piped.stdout == (folder / "out").read_bytes()
    assert piped.stdout[:4] == start


@pytest.mark.parametrize(("format_name", "name"), [("parquet", "Parquet"), ("inspect", "an .eval log")])
def test_a_binary_format_is_not_written_to_a_terminal(folder: Path, format_name: str, name: str) -> None:
    if format_name == "parquet":
        pytest.importorskip("duckdb")
    pty = pytest.importorskip("pty")
    master, terminal = pty.openpty()
    done = subprocess.run(
        [COMMAND, "export", "--format", format_name], cwd=folder, stdout=terminal, stderr=subprocess.PIPE, check=False
    )
    os.close(terminal)
    os.close(master)
    assert done.returncode == 2
    assert f"{name} is a binary format; name a file with --output" in done.stderr.decode()


def test_without_duckdb_the_extra_is_named(folder: Path) -> None:
    (folder / "absent").mkdir()
    (folder / "absent" / "duckdb.py").write_text("raise ImportError")
    ran = export(folder, "--format", "parquet", "--output", "out", PYTHONPATH=str(folder / "absent"))
    assert ran.code == 2
    assert "'parquet' needs DuckDB: pip install 'gradeline[export]', or use another format" in ran.err
    assert not (folder / "out").exists()


def test_parquet_to_an_unwritable_path_is_reported(folder: Path) -> None:
    pytest.importorskip("duckdb")
    ran = export(folder, "--format", "parquet", "--output", "no/such/file")
    assert ran.code == 2
    assert "no/such/file: cannot write: No such file or directory" in ran.err


INTERRUPTED = """
import signal, sys
from gradeline.cli import main
from gradeline.store import SqliteStorage

signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
records = SqliteStorage.records

def stopping(self, run, after=None):
    yield next(records(self, run, after))
    print("begun", flush=True)
    signal.pause()

SqliteStorage.records = stopping
sys.exit(main())
"""


@pytest.mark.parametrize("format_name", ["jsonl", "csv", "parquet"])
def test_an_interrupted_export_leaves_no_file(folder: Path, format_name: str) -> None:
    if format_name == "parquet":
        pytest.importorskip("duckdb")
    (folder / "out").write_text("of an earlier day")
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, "export", "--format", format_name, "--output", "out"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        running.send_signal(signal.SIGINT)
    assert running.returncode not in (0, -signal.SIGINT)
    assert (folder / "out").read_text() == "of an earlier day"
    assert sorted(path.name for path in folder.iterdir()) == [".gradeline", "out"]


def test_reports_say_not_applicable_in_words_and_not_as_a_reason_to_fail(tmp_path: Path) -> None:
    suite = {
        "name": "languages",
        "target": {"kind": "command", "command": ["echo", "no"]},
        "dataset": [{"id": "en", "input": "?", "ground_truth": "yes"}, {"id": "de", "input": "?", "tags": ["de"]}],
        "graders": {
            "right": {"kind": "contains", "when": {"id": "en"}},
            "german": {"kind": "ascii_printable_only", "when": {"tag": "de"}},
        },
    }
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    run_command([COMMAND, "run", "suite.json", "--quiet"], cwd=tmp_path)
    markdown = run_command([COMMAND, "export", "latest", "--format", "markdown"], cwd=tmp_path, text=True).stdout
    assert "| <code>en</code> | <code>right</code> fail 0.000 |" in markdown
    page = run_command([COMMAND, "export", "latest", "--format", "html"], cwd=tmp_path, text=True).stdout
    assert "not applicable" in page
    assert ">not_applicable<" not in page

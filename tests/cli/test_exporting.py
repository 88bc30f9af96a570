"""``gradeline export`` as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from gradeline.errors import Outcome
from gradeline.model import Grade, GradeKey, Record, Response, ResponseKey, Run, RunGrader, Sample, from_json
from gradeline.store import SqliteStorage

COMMAND = str(Path(sys.executable).with_name("gradeline"))
BEGINNINGS = {
    "jsonl": '{"schema":1,"run":"',
    "csv": "run,case,repeat,grader,kind,outcome,",
    "junit": '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>',
    "markdown": "### ➖ No gate: <code>capitals</code>",
    "html": "<!doctype html>",
}


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with one stored run, larger than a pipe holds."""
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


def export(folder: Path, *arguments: str, **environment: str) -> Ran:
    kept = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = subprocess.run(
        [COMMAND, "export", *arguments], cwd=folder, capture_output=True, env={**kept, **environment}, check=False
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("wanted", BEGINNINGS)
def test_a_file_holds_the_bytes_that_standard_output_shows(folder: Path, wanted: str) -> None:
    shown = export(folder, "latest", "--format", wanted, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(BEGINNINGS[wanted])
    assert export(folder, "--format", wanted, "--output", "out") == (0, "", "")
    assert (folder / "out").read_bytes().decode() == shown.out
    assert sorted(path.name for path in folder.iterdir()) == [".gradeline", "out"]


def test_records_are_the_default(folder: Path) -> None:
    lines = export(folder).out.splitlines()
    assert [from_json(Record, line).case for line in lines] == [str(case) for case in range(20)]


def test_an_unknown_format_is_refused_with_those_there_are(folder: Path) -> None:
    ran = export(folder, "--format", "xml")
    assert ran.code == 2
    assert "'xml' is not one of 'jsonl', 'csv', 'junit', 'markdown', 'html'" in ran.err


def test_an_unknown_run_is_refused_and_leaves_no_file(folder: Path) -> None:
    assert export(folder, "nonsense", "--output", "out").code == 2
    assert not (folder / "out").exists()


def test_a_place_where_nothing_can_be_written_is_named(folder: Path) -> None:
    missing, taken = export(folder, "--output", "no/such/file"), export(folder, "--output", ".gradeline")
    assert (missing.code, taken.code) == (2, 2)
    assert "no/such/file: cannot be written: No such file or directory" in missing.err
    assert ".gradeline: is a folder; name a file" in taken.err


def test_a_device_is_written_to_and_not_replaced(folder: Path) -> None:
    assert export(folder, "--output", os.devnull) == (0, "", "")
    assert not Path(os.devnull).is_file()


def test_json_says_what_was_written(folder: Path) -> None:
    assert export(folder, "--format", "csv", "--output", "out.csv", "--json").out == '{"written": ["out.csv"]}\n'


@pytest.mark.parametrize("wanted", BEGINNINGS)
def test_a_reader_that_goes_away_is_no_error(folder: Path, wanted: str) -> None:
    running = subprocess.Popen(
        [COMMAND, "export", "--format", wanted], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.read(1)
    running.stdout.close()
    with running:
        assert running.stderr.read() == b""
    assert running.returncode == 0

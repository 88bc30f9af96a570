"""``gradeline label`` as people use it: keys in a real terminal, files without one."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pytest
from labelled_runs import judged_run

from gradeline.model import GradeKey, Message, Response, ResponseKey, Run, Sample, ToolCall, Trajectory
from gradeline.model.label import HumanVerdict
from gradeline.store import PostgresStorage, SqliteStorage
from gradeline.store.labels import label_history, labels_of_run
from gradeline.trust import draw_sample
from gradeline.trust.labelling import Labelling
from gradeline_command import COMMAND, run_command

DEADLINE_S = 20
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class LabelProcess:
    """``gradeline label`` in a pseudo-terminal."""

    def __init__(self, folder: Path, *arguments: str, rows: int = 24, store: str | None = None) -> None:
        self._master, slave = pty.openpty()
        place = {"GRADELINE_STORE": store or str(folder / "store.db")}
        environment = {**os.environ, **place, "TERM": "xterm", "LINES": str(rows), "COLUMNS": "90"}
        self.process = subprocess.Popen(
            [COMMAND, "label", "latest", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=environment, cwd=folder, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # so that Ctrl-C is a signal to it
        )  # fmt: skip
        os.close(slave)
        self._text = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> str:
        """What the terminal shows until this text, which is then behind."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self._text:
            assert time.monotonic() < deadline, f"no {text!r} in {self._text!r}"
            if select.select([self._master], [], [], 1)[0]:
                try:
                    read = os.read(self._master, 65536)
                except OSError:  # the process is gone
                    read = b""
                if not read:
                    raise AssertionError(f"it ended without {text!r}: {self._text!r}")
                self._text += _CODES.sub("", read.decode(errors="replace"))
        shown, _, self._text = self._text.partition(text)
        return shown + text

    def ends(self) -> int:
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield storage


@pytest.fixture
def run(store: SqliteStorage) -> Run:
    return judged_run(store, cases=12, failing=6)


def label(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GRADELINE_STORE": str(folder / "store.db")}
    return run_command([COMMAND, "label", *arguments], cwd=folder, text=True, env=environment)


def label_json(folder: Path, *arguments: str) -> Any:
    done = label(folder, *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def drawn(store: SqliteStorage, run: Run, size: int = 5) -> Sequence[str]:
    return [one.case for one in draw_sample(store, run, "quality", size, 1).draws]


def test_each_answer_is_stored_before_the_next_result_is_shown(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    cases = drawn(store, run)
    with LabelProcess(tmp_path, "--sample", "5", "--seed", "1", "--rater", "ada") as terminal:
        shown = terminal.wait_for("1 of 5")
        assert f"question {cases[0][1:]}" in shown
        assert f"expected {cases[0][1:]}" in shown
        assert f"answer {cases[0][1:]}.0" in shown
        for number, key in enumerate("pfp", 2):
            terminal.press(key)
            terminal.wait_for(f"{number} of 5")
            assert len(labels_of_run(store.database.read, run.id)) == number - 1
        terminal.process.send_signal(signal.SIGKILL)
        terminal.ends()
    rows = labels_of_run(store.database.read, run.id)
    assert [(row.case, row.verdict, row.rater, row.probability) for row in rows] == [
        (cases[0], "pass", "ada", 5 / 12),
        (cases[1], "fail", "ada", 5 / 12),
        (cases[2], "pass", "ada", 5 / 12),
    ]
    assert {(row.question, row.grade_outcome is not None) for row in rows} == {("quality", True)}
    with LabelProcess(tmp_path, "--rater", "ada") as terminal:
        assert f"answer {cases[3][1:]}.0" in terminal.wait_for("4 of 5")
        terminal.press("pf")
        assert "5 of 5 labelled by ada (2 now)" in terminal.wait_for("Measure the judge")
        assert terminal.ends() == 0
    assert len(labels_of_run(store.database.read, run.id)) == 5


def test_nothing_that_a_grader_decided_is_shown(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    with LabelProcess(tmp_path, "--sample", "12", "--rater", "ada") as terminal:
        shown = ""
        for number in range(1, 13):
            shown += terminal.wait_for(f"{number} of 12")
            terminal.press("s")
        shown += terminal.wait_for("Label the other 12 later")
    assert "answer" in shown
    for secret in ("secret", "1.0", "0.0\n", "model_judge", "outcome", "fail\n"):
        assert secret not in shown.replace(".0\r\n", "\n"), secret


def test_undo_comment_and_skip(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    cases = drawn(store, run)
    with LabelProcess(tmp_path, "--rater", "ada") as terminal:
        terminal.wait_for("1 of 5")
        terminal.press("u")
        terminal.wait_for("this is the first one")
        terminal.press("x")
        terminal.wait_for("no such key: x")
        terminal.press("csa\x7fo ☃\rp")
        terminal.wait_for("2 of 5, 1 labelled")
        terminal.press("u")
        terminal.wait_for("1 of 5, 0 labelled")
        terminal.press("fs")
        terminal.wait_for("3 of 5, 1 labelled")
        terminal.press("q")
        assert "1 of 5 labelled by ada (1 now)" in terminal.wait_for("Label the other 4 later")
        assert terminal.ends() == 0
    history = label_history(store.database.read, run.id, cases[0], 0)
    assert [(one.verdict, one.comment, one.withdrawn) for one in history] == [
        ("pass", "so ☃", False),
        (None, None, True),
        ("fail", "", False),
    ]


def test_ctrl_c_keeps_the_labels(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    drawn(store, run)
    with LabelProcess(tmp_path, "--rater", "ada") as terminal:
        terminal.wait_for("1 of 5")
        terminal.press("p")
        terminal.wait_for("2 of 5")
        terminal.press("\x03")
        assert terminal.ends() == 130
    assert len(labels_of_run(store.database.read, run.id)) == 1


def test_a_scale_gives_scores_and_categories_their_names(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    cases = drawn(store, run)
    with LabelProcess(tmp_path, "--rater", "ada", "--scale", "1-5") as terminal:
        terminal.wait_for("1 (worst) to 5 (best)")
        terminal.press("642q")
        assert terminal.ends() == 0
    rows = labels_of_run(store.database.read, run.id)
    assert [(row.case, row.verdict, row.score) for row in rows] == [(cases[0], None, 0.75), (cases[1], None, 0.25)]
    with LabelProcess(tmp_path, "--rater", "eve", "--categories", "polite,rude") as terminal:
        terminal.wait_for("1 polite, 2 rude")
        terminal.press("2q")
        assert terminal.ends() == 0
    assert [(row.rater, row.category) for row in labels_of_run(store.database.read, run.id)][-1] == ("eve", "rude")


def test_a_conversation_is_shown_in_pages_and_cannot_control_the_terminal(store: SqliteStorage, tmp_path: Path) -> None:
    run = judged_run(store, cases=1, failing=0)
    call = Message("assistant", "", (ToolCall("search", '{"city": "Rome"}', "1"),))
    result = Message("tool", "\x1b]0;owned\x07sunny", tool_call_id="1", name="search")
    turns = ((call, result, Message("assistant", "It is\nsunny." + "\nmore" * 40)), (Message("assistant", "Bye."),))
    sample = Sample("c0", ["How is the weather?", "Thanks"])
    key = ResponseKey(run.id, "c0")
    grade = store.get_record(key)
    assert grade is not None
    store.put_response(key, Response(text="Bye.", trajectory=Trajectory(turns)), sample)
    store.put_grade(GradeKey(*key, "quality"), grade.grades["quality"])
    with LabelProcess(tmp_path, "--rater", "ada") as terminal:
        first = terminal.wait_for("page 1 of 3")
        assert "user: How is the weather?" in first
        assert 'call of search: {"city": "Rome"}' in first
        assert "result of search: <1B>]0;owned<07>sunny" in first
        terminal.press("  ")
        assert "user: Thanks" in terminal.wait_for("page 3 of 3")
        terminal.press("bp")
        assert terminal.ends() == 0


def test_an_adjudicator_decides_what_raters_dispute(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    for rater, verdicts in (("ada", "pp"), ("eve", "pf")):
        labelling = Labelling(store, run, "quality", rater)
        for number, verdict in enumerate(verdicts):
            value = HumanVerdict("pass" if verdict == "p" else "fail", f"because {rater}")
            labelling.put(labelling.record(f"c{number}", 0), value)
    with LabelProcess(tmp_path, "--adjudicate", "--rater", "judy") as terminal:
        shown = terminal.wait_for("1 of 1")
        assert "ada: pass (because ada)" in shown
        assert "eve: fail (because eve)" in shown
        assert "secret" not in shown
        terminal.press("f")
        assert terminal.ends() == 0
    last = labels_of_run(store.database.read, run.id)[-1]
    assert (last.case, last.verdict, last.rater, last.role) == ("c1", "fail", "judy", "adjudicator")
    with LabelProcess(tmp_path, "--adjudicate", "--rater", "judy") as terminal:
        terminal.wait_for("No result of quality has raters who disagree")


def test_two_raters_label_one_sample_at_the_same_time(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    cases = drawn(store, run)
    with LabelProcess(tmp_path, "--rater", "ada") as ada, LabelProcess(tmp_path, "--rater", "eve") as eve:
        ada.wait_for("1 of 5")
        eve.wait_for("1 of 5")
        ada.press("ppppp")
        eve.press("fpfpf")
        assert (ada.ends(), eve.ends()) == (0, 0)
    found = {(row.rater, row.case): row.verdict for row in labels_of_run(store.database.read, run.id)}
    assert found == {
        **{("ada", case): "pass" for case in cases},
        **{("eve", case): "pass" if place % 2 else "fail" for place, case in enumerate(cases)},
    }
    status = label_json(tmp_path, "latest", "--status")["questions"][0]
    assert status["samples"][0]["by_rater"] == {"ada": 5, "eve": 5}
    assert [(pair["results"], pair["same"]) for pair in status["pairs"]] == [(5, 2)]
    text = label(tmp_path, "--status").stdout
    assert "quality: 5 results with labels" in text
    assert "Krippendorff's alpha" in text
    assert "ada: pass, eve: fail" in text
    assert f"3 unresolved: decide with gradeline label {run.id} --grader quality --adjudicate" in text


def test_two_raters_and_postgresql(tmp_path: Path, postgres_url: str) -> None:
    with PostgresStorage(postgres_url) as store:
        run = judged_run(store, cases=6, failing=3)
        cases = [one.case for one in draw_sample(store, run, "quality", 4, 1).draws]
        raters = [LabelProcess(tmp_path, "--rater", name, store=postgres_url) for name in ("ada", "eve")]
        with raters[0] as ada, raters[1] as eve:
            ada.wait_for("1 of 4")
            eve.wait_for("1 of 4")
            ada.press("pp")
            eve.press("ffff")
            assert eve.ends() == 0
            ada.wait_for("3 of 4")
            ada.process.send_signal(signal.SIGKILL)
            ada.ends()
        found = {(row.rater, row.case): row.verdict for row in labels_of_run(store.database.read, run.id)}
    assert found == {**{("ada", case): "pass" for case in cases[:2]}, **{("eve", case): "fail" for case in cases}}


def test_without_a_terminal_files_are_used(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    done = label(tmp_path, "latest")
    assert (done.returncode, "write the sample with --template FILE" in done.stderr) == (2, True)
    assert label_json(tmp_path, "latest", "--template", "to-label.csv", "--sample", "5") == {
        "written": ["to-label.csv"],
        "rows": 5,
    }
    with (tmp_path / "to-label.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "filled.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows([{**row, "verdict": "pass"} for row in rows])
    for stored, unchanged in ((5, 0), (0, 5)):
        assert label_json(tmp_path, "latest", "--from", "filled.csv", "--rater", "ada") == {
            "run": run.id,
            "format": "gradeline",
            "stored": stored,
            "unchanged": unchanged,
            "unlabelled": 0,
            "left_out": {},
        }
    done = label(tmp_path, "--export", "labels.jsonl")
    assert (done.returncode, done.stdout) == (0, "5 labels written to labels.jsonl\n")
    assert {json.loads(line)["rater"] for line in (tmp_path / "labels.jsonl").read_text().splitlines()} == {"ada"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--status", "--export", "x.csv"), "--status and --export exclude each other; use one of them"),
        (("--grader", "quality", "--question", "tone"), "--grader and --question exclude each other"),
        (("--grader", "qualty"), "no grader 'qualty' in run"),
        (("--export", "labels.xlsx"), "unknown kind of file '.xlsx': use .csv or .jsonl"),
        (("--json",), "labelling has no JSON output"),
        (("--import", "nothing.csv"), "'nothing.csv' does not exist"),
    ],
)
def test_wrong_options_are_refused(
    store: SqliteStorage, run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = label(tmp_path, "latest", *arguments)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr


def test_a_wrong_scale_is_refused_before_anything_is_shown(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    with LabelProcess(tmp_path, "--scale", "1-10") as terminal:
        terminal.wait_for("scale: invalid scale '1-10': use two digits such as 1-5 or 0-9")
        assert terminal.ends() == 2


def test_there_are_no_labels_yet(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    assert "No labels yet. Start with: gradeline label" in label(tmp_path, "--status").stdout


def test_the_command_after_labelling_names_the_question(store: SqliteStorage, run: Run, tmp_path: Path) -> None:
    with LabelProcess(tmp_path, "--question", "is it nice?", "--sample", "1", "--rater", "ada") as terminal:
        terminal.wait_for("1 of 1")
        terminal.press("p")
        terminal.wait_for(f"gradeline calibrate {run.id} --question 'is it nice?'")
        assert terminal.ends() == 0
    text = label(tmp_path, "--status").stdout
    assert "is it nice?: 1 result with labels" in text


def test_a_case_key_is_one_line_of_the_status(store: SqliteStorage, tmp_path: Path) -> None:
    run = judged_run(store, 3)
    sample, key = Sample("c9\nada  agrees with all", "?"), "c9\nada  agrees with all"
    store.put_response(ResponseKey(run.id, key), Response(text="yes"), sample)
    for rater, verdict in (("ada", "pass"), ("eve", "fail")):
        labelling = Labelling(store, run, "quality", rater)
        labelling.put(labelling.record(key, 0), HumanVerdict("pass" if verdict == "pass" else "fail"))
    assert "\nada  agrees" not in label(tmp_path, run.id, "--status").stdout

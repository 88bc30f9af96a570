"""Tables in terminals of any width: the names of graders, cases and runs are shown whole."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from gradeline.cli.terminal import TableColumn, print_table
from gradeline_command import COMMAND, run_command

NAMES = ("exact", "the_answer_mentions_the_capital_by_its_local_name", "首都が正しいかどうかを確認する")
SUITE = f"""\
name: capitals of many countries, asked in many ways
dataset: cases.jsonl
target: {{kind: python, function: "agent.py:answer"}}
graders:
  {NAMES[0]}: {{kind: string-match, mode: contains}}
  {NAMES[1]}: {{kind: string-match, mode: exact}}
  {NAMES[2]}: {{kind: string-match, mode: exact}}
"""


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    (folder / "suite.yaml").write_text(SUITE)
    (folder / "agent.py").write_text("def answer(text): return f'{text} it is'\n")
    cases = [{"id": f"{name}-asked-in-the-morning", "input": name, "ground_truth": name} for name in ("Paris", "Oslo")]
    (folder / "cases.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in cases))
    for _ in range(2):
        run_command([COMMAND, "run", "suite.yaml"], cwd=folder).check_returncode()
    return folder


def output_lines(folder: Path, width: int, *arguments: str) -> list[str]:
    """The lines of a command in a terminal of that width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    hidden = ("COLUMNS", "GRADELINE_STORE")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    with subprocess.Popen(
        [COMMAND, *arguments], cwd=folder, stdout=slave, stderr=subprocess.DEVNULL, env={**environment, "TERM": "xterm"}
    ):
        os.close(slave)
        text = b""
        try:
            while piece := os.read(master, 65536):
                text += piece
        except OSError:  # Linux reports the end of a terminal so
            pass
    os.close(master)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode()).replace("\r", "").split("\n")


def letters(lines: list[str]) -> str:
    """The output without line breaks and whitespace: a name that was wrapped is whole again in a block."""
    return "".join("".join(lines).split())


@pytest.mark.parametrize("width", [40, 60])
@pytest.mark.parametrize("arguments", [("run", "suite.yaml"), ("show",), ("compare", "latest~1", "latest")])
def test_a_narrow_terminal_shows_every_grader_by_its_whole_name(
    stored: Path, width: int, arguments: tuple[str, ...]
) -> None:
    lines = output_lines(stored, width, *arguments)
    for name in NAMES:
        assert name in letters(lines)
    assert all(cell_len(line) <= width for line in lines)
    assert not [line for line in lines if "…" in line and "…+" not in line]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_figure_of_a_run_is_shown(stored: Path, width: int) -> None:
    lines = output_lines(stored, width, "show")
    assert all(cell_len(line) <= width for line in lines)
    for figure in ("1.000", "0.342–1.000", "2 of 2"):
        assert any(figure in line for line in lines), figure


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_runs_are_listed_with_their_whole_names(stored: Path, width: int) -> None:
    lines = output_lines(stored, width, "list")
    assert all(cell_len(line) <= width for line in lines)
    assert sum(line.count("completed") for line in lines) >= 2
    if width != 80:  # there the name is folded within its column
        assert "capitalsofmanycountries,askedinmanyways" in letters(lines)


COLUMNS = (
    TableColumn("name", wraps=True, key=True),
    TableColumn("n", right=True),
    TableColumn("state"),
    TableColumn("why", wraps=True),
)


def printed(width: int, *rows: tuple[str, ...]) -> list[str]:
    file = StringIO()
    print_table(Console(file=file, width=width, highlight=False), COLUMNS, rows)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_rows_that_fit_are_a_table() -> None:
    assert printed(40, ("first", "10", "done", "because"), ("second", "9", "failed", "of that")) == [
        "name     n  state   why",
        "first   10  done    because",
        "second   9  failed  of that",
    ]


def test_a_long_name_is_wrapped_in_its_column() -> None:
    assert printed(40, ("a_name_of_many_letters", "10", "done", "because")) == [
        "name                 n  state  why",
        "a_name_of_many_let  10  done   because",
        "ters",
    ]


def test_rows_that_do_not_fit_are_blocks() -> None:
    assert printed(24, ("a_name_of_many_letters_and_more", "10", "done", "because it is so")) == [
        "a_name_of_many_letters_a",
        "nd_more",
        "  n 10, state done",
        "  because it is so",
    ]


def test_wide_characters_count_twice() -> None:
    assert printed(26, ("首都が正しいか", "10", "done", "because")) == [
        "首都が正しいか",
        "  n 10, state done",
        "  because",
    ]

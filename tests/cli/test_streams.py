"""Commands whose standard output or error is closed, full, or cannot show a character."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.executable).with_name("gradeline"))
FULL = Path("/dev/full")
SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer"}
graders: {exact: {kind: string-match, mode: contains}}
gate: {kind: simple, metric_key: exact, aggregation: avg_score, op: gte, value: 0.5}
"""
CASES = [{"input": "France", "ground_truth": "Paris"}, {"input": "Peru", "ground_truth": "Lima"}]

needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _with_suite(tmp_path)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two runs, for commands that leave them as they are."""
    folder = _with_suite(tmp_path_factory.mktemp("stored"))
    for _ in range(2):
        assert command(folder, "run", "suite.yaml").returncode == 0
    return folder


def _with_suite(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "strict.yaml").write_text(SUITE.replace("value: 0.5", "value: 0.9"))
    (tmp_path / "agent.py").write_text("def answer(text): return 'Paris'\n")
    (tmp_path / "cases.jsonl").write_text("".join(f"{json.dumps(case)}\n" for case in CASES))
    return tmp_path


def command(folder: Path, *arguments: str, **streams: int) -> subprocess.CompletedProcess[bytes]:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    chosen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.run(
        [COMMAND, *arguments], cwd=folder, stdin=subprocess.DEVNULL, env=environment, check=False, **chosen
    )  # type: ignore[call-overload,no-any-return]


def closed_pipe() -> int:
    """The writing end of a pipe that has no reader."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def runs(folder: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(command(folder, "list", "--json").stdout)["runs"]
    return found


class TestNoReader:
    @pytest.mark.parametrize(("suite", "code"), [("suite.yaml", 0), ("strict.yaml", 1)])
    @pytest.mark.parametrize("options", [(), ("--json",), ("--quiet",)])
    def test_a_run_is_stored_and_exits_with_its_code(
        self, folder: Path, suite: str, code: int, options: tuple[str, ...]
    ) -> None:
        ran = command(folder, "run", suite, *options, stdout=closed_pipe())
        assert (ran.returncode, ran.stderr) == (code, b"")
        assert [run["status"] for run in runs(folder)] == ["completed"]

    def test_a_run_without_standard_error_is_stored(self, folder: Path) -> None:
        ran = command(folder, "run", "suite.yaml", stdout=closed_pipe(), stderr=closed_pipe())
        assert ran.returncode == 0
        assert [run["status"] for run in runs(folder)] == ["completed"]

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ("--help", 0),
            ("--version", 0),
            ("run --help", 0),
            ("validate suite.yaml", 0),
            ("resume latest", 0),
            ("regrade latest", 0),
            ("list", 0),
            ("list --json", 0),
            ("show", 0),
            ("show --records", 0),
            ("compare latest~1 latest", 3),
            ("export", 0),
            ("export --format csv", 0),
            ("export --format junit", 0),
            ("export --format markdown", 0),
            ("export --format html", 0),
            ("ledger", 0),
            ("ledger --export -", 0),
            ("graders", 0),
            ("graders numeric", 0),
            ("extractors", 0),
            ("schema", 0),
            ("keys list", 0),
            ("init new", 0),
            ("grade exact_match --expected a", 1),
        ],
    )
    def test_every_command_exits_quietly_with_its_code(self, stored: Path, arguments: str, code: int) -> None:
        ran = command(stored, *arguments.split(), stdout=closed_pipe())
        assert (ran.returncode, ran.stderr) == (code, b"")

    @pytest.mark.parametrize("arguments", [["show", "nosuch"], ["nosuch"], ["run", "nosuch.yaml"]], ids=" ".join)
    def test_an_unread_error_keeps_its_exit_code(self, stored: Path, arguments: list[str]) -> None:
        assert command(stored, *arguments, stdout=closed_pipe(), stderr=closed_pipe()).returncode == 2

    def test_an_export_ends_when_its_reader_does(self, stored: Path) -> None:
        """The other formats are written whole; this one could be without end."""
        script = (
            "from gradeline.cli import main\nfrom gradeline.store import SqliteStorage\nrecords = SqliteStorage.records\n"
            "def endless(self, run, after=None):\n    while True: yield from records(self, run, after)\n"
            "SqliteStorage.records = endless\nmain()\n"
        )
        for arguments in (["export"], ["export", "--format", "csv"], ["show", "--records"]):
            with subprocess.Popen(
                [sys.executable, "-c", script, *arguments], cwd=stored, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            ) as running:
                assert running.stdout is not None
                assert running.stdout.readline()
                running.stdout.close()
                assert running.stderr is not None
                assert (running.stderr.read(), running.wait(60)) == (b"", 0)


class TestClosedByTheCaller:
    @pytest.mark.parametrize("closing", [">&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"])
    def test_a_run_is_stored(self, folder: Path, closing: str) -> None:
        ran = subprocess.run(f"{COMMAND} run suite.yaml {closing}", shell=True, cwd=folder, check=False)
        assert ran.returncode == 0
        assert [run["status"] for run in runs(folder)] == ["completed"]


@needs_full
class TestFullDisk:
    @pytest.mark.parametrize("arguments", [["list"], ["export"], ["--help"], ["run", "suite.yaml"]], ids=" ".join)
    def test_lost_output_is_reported_in_one_line(self, stored: Path, arguments: list[str]) -> None:
        with FULL.open("w") as full:
            ran = command(stored, *arguments, stdout=full.fileno())
        assert ran.returncode == 4
        message = "gradeline: standard output: No space left on device; the output is lost, write it elsewhere\n"
        assert ran.stderr.decode() == message

    def test_the_run_is_stored(self, folder: Path) -> None:
        with FULL.open("w") as full:
            assert command(folder, "run", "suite.yaml", stdout=full.fileno(), stderr=full.fileno()).returncode == 4
        assert [run["status"] for run in runs(folder)] == ["completed"]


def test_a_character_that_the_terminal_cannot_show_is_escaped(stored: Path) -> None:
    ran = subprocess.run(
        [COMMAND, "show"],
        cwd=stored,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"avg_score 0.5 \\u2265 0.5 is true" in ran.stdout

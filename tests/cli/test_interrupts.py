"""Ctrl-C in a real terminal, at moments that a FIFO announces: one line, exit code 130, no process left behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

COMMAND = str(Path(sys.executable).with_name("gradeline"))
MARK = "GRADELINE_TEST_MARK"

BLOCK = """
import os, signal, time
def announce():
    with open(os.environ["READY"], "w") as ready:
        ready.write("ready")
def block():
    announce()
    time.sleep(600)
def block_after_one():
    handler, received = signal.getsignal(signal.SIGINT), []
    def note(*given):
        received.append(given)
        handler(*given)
    signal.signal(signal.SIGINT, note)
    announce()
    while not received:
        time.sleep(0.01)
    block()
"""
SUITE = """\
name: capitals
dataset: cases.jsonl
target: {kind: python, function: "agent.py:answer"}
graders: {exact: {kind: string-match, mode: contains}}
"""
AGENT = "def answer(text): return 'Paris'\n"
PATCHED = """
import sys
from block import block
from gradeline.cli import main
from gradeline.PLACE import CLASS
CLASS.METHOD = lambda *_, **__: block()
main()
"""


PATCHED_TRANSPORT = """
import os, signal
from asyncio.base_subprocess import BaseSubprocessTransport
from gradeline.cli import main
begin = BaseSubprocessTransport.__init__
def interrupted(self, *given, **named):
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    begin(self, *given, **named)
BaseSubprocessTransport.__init__ = interrupted
"""


class CommandResult(NamedTuple):
    code: int
    output: str
    left: list[int]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "suite.yaml").write_text(SUITE)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "cases.jsonl").write_text(json.dumps({"input": "France", "ground_truth": "Paris"}) + "\n")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "block.py").write_text(BLOCK)
    os.mkfifo(tmp_path / "ready")
    return tmp_path


def interrupted(folder: Path, *command: str, presses: int = 1) -> CommandResult:
    """Run a command in a terminal and press Ctrl-C when the FIFO signals that the moment is reached."""
    master, slave = pty.openpty()
    _turn_echo_off(slave)
    mark = uuid4().hex

    def own_terminal() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # the caller of the tests may ignore it
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    running = subprocess.Popen(
        command,
        cwd=folder,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=own_terminal,
        env={**environment, "READY": str(folder / "ready"), "PYTHONPATH": str(folder / "modules"), MARK: mark},
    )
    os.close(slave)
    for _ in range(presses):
        _wait_until_ready(folder / "ready", running)
        os.write(master, b"\x03")
    output = _read_to_the_end(master, running)
    code = running.wait(30)
    os.close(master)
    return CommandResult(code, output.decode().replace("\r\n", "\n"), _remaining_processes(mark))


def _turn_echo_off(terminal: int) -> None:
    """Linux signals the program first and echoes ^C then, so the echo may follow the output of the program."""
    modes = termios.tcgetattr(terminal)
    modes[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSANOW, modes)


def _wait_until_ready(fifo: Path, running: subprocess.Popen[bytes]) -> None:
    """Until something is written to the FIFO; a command that ended before its moment does not write."""
    with os.fdopen(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK), "rb") as ready:
        while not select.select([ready], [], [], 0.1)[0] or not ready.read():
            if running.poll() is not None:
                return


def _read_to_the_end(master: int, running: subprocess.Popen[bytes]) -> bytes:
    output, deadline = b"", time.monotonic() + 60.0
    try:
        while select.select([master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not (piece := os.read(master, 65536)):
                return output
            output += piece
    except OSError:  # Linux reports the end of a terminal so
        return output
    running.kill()
    raise AssertionError(f"still running a minute after Ctrl-C: {output[-2000:]!r}")


def _remaining_processes(mark: str) -> list[int]:
    """The processes that a command started and that outlive it; those that are just ending get a moment."""
    for _ in range(100):
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _has(path, mark)]
        if not found:
            return []
        time.sleep(0.05)
    return found


def _has(environ: Path, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in environ.read_bytes()
    except OSError:
        return False


def assert_one_line(ended: CommandResult) -> None:
    assert ended == (130, "\ninterrupted\n", [])


class TestDuringStartUp:
    @pytest.mark.parametrize("module", ["click", "msgspec", "yaml"])
    def test_while_modules_are_imported(self, folder: Path, module: str) -> None:
        (folder / "modules" / f"{module}.py").write_text("import block; block.block()")
        assert_one_line(interrupted(folder, COMMAND, "run", "suite.yaml"))

    def test_while_a_worker_loads_user_code(self, folder: Path) -> None:
        (folder / "agent.py").write_text("import block; block.block()\n" + AGENT)
        assert_one_line(interrupted(folder, COMMAND, "run", "suite.yaml"))

    def test_while_validate_loads_user_code(self, folder: Path) -> None:
        (folder / "agent.py").write_text("import block; block.block()\n" + AGENT)
        assert_one_line(interrupted(folder, COMMAND, "validate", "suite.yaml"))

    def test_while_user_code_loads_in_the_process_itself(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace('answer"}', 'answer", isolation: none}'))
        (folder / "agent.py").write_text("import block; block.block()\n" + AGENT)
        assert_one_line(interrupted(folder, COMMAND, "run", "suite.yaml"))

    def test_while_the_setup_function_runs(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(f"{SUITE}setup_script: setup.py:prepare\n")
        (folder / "setup.py").write_text(
            "from gradeline import suite_setup\nimport block\n@suite_setup\ndef prepare(): block.block()\n"
        )
        assert_one_line(interrupted(folder, COMMAND, "run", "suite.yaml"))

    @pytest.mark.parametrize(
        ("place", "owner", "method", "command"),
        [
            ("suite.dataset", "Dataset", "_read", ("run", "suite.yaml")),
            ("store.sqlite_connections", "SqliteConnectionPool", "_open", ("run", "suite.yaml")),
            ("store.sqlite_connections", "SqliteConnectionPool", "_open_read_only", ("list",)),
            ("store.sqlite_connections", "SqliteConnectionPool", "_open", ("serve", "--port", "0")),
            ("store.sqlite", "SqliteStorage", "find_run", ("show",)),
            ("store.sqlite", "SqliteStorage", "find_run", ("compare", "latest~1", "latest")),
            ("store.sqlite", "SqliteStorage", "find_run", ("export",)),
        ],
    )
    def test_while_the_cases_or_the_store_are_read(
        self, folder: Path, place: str, owner: str, method: str, command: tuple[str, ...]
    ) -> None:
        assert (
            subprocess.run([COMMAND, "run", "suite.yaml"], cwd=folder, capture_output=True, check=False).returncode == 0
        )
        script = PATCHED.replace("PLACE", place).replace("CLASS", owner).replace("METHOD", method)
        assert_one_line(interrupted(folder, sys.executable, "-c", script, *command))


class TestDuringRun:
    def test_the_first_finishes_calls_in_flight_and_the_second_ends_blocking_code(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(SUITE.replace('answer"}', 'answer", isolation: none}'))
        (folder / "agent.py").write_text("import block\nasync def answer(text): block.block_after_one()\n")
        ended = interrupted(folder, COMMAND, "run", "suite.yaml", presses=2)
        assert (ended.code, ended.left) == (130, []), ended.output
        assert "Traceback" not in ended.output
        assert ended.output.count("finishing calls in flight") <= 1
        (run,) = json.loads(subprocess.check_output([COMMAND, "list", "--json"], cwd=folder))["runs"]
        assert run["status"] == "cancelled"
        assert ended.output.endswith(f"interrupted; continue with: gradeline resume {run['id']}\n")

    def test_the_second_is_not_raised_while_asyncio_starts_a_program(self, folder: Path) -> None:
        (folder / "suite.yaml").write_text(
            SUITE.replace('kind: python, function: "agent.py:answer"', "kind: command, command: [cat]")
        )
        script = PATCHED_TRANSPORT + "main()\n"
        command = [sys.executable, "-c", script, "run", "suite.yaml"]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 130, ended.stderr
        assert "Traceback" not in ended.stderr
        assert "interrupted; continue with: gradeline resume" in ended.stderr

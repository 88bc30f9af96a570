"""The questions of ``gradeline init``, in a terminal as a person sees them."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from gradeline.cli.starter.agents import KINDS, AgentChoice
from gradeline.cli.starter.suite import starter_files

COMMAND = str(Path(sys.executable).with_name("gradeline"))
WORKFLOW = ".github/workflows/gradeline.yml"
SUITE_FILES = ["suite.yaml", "cases.jsonl", "graders.py", "suite.schema.json"]


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        self._output = ""
        environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}

        def own_terminal() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # the caller of the tests may ignore it
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        self._process = subprocess.Popen(
            [COMMAND, *arguments],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=own_terminal,
            env={**environment, "NO_COLOR": "1", "TERM": "dumb"},
        )
        os.close(slave)

    def answer(self, question: str, reply: str) -> None:
        """Wait until the terminal shows this question, and type the reply."""
        while question not in self._output or not self._output.endswith(": "):
            assert self._read(), self._output
        self._output = ""
        os.write(self._master, reply.encode())

    def interrupt(self, question: str, key: str) -> None:
        """Press this key at the question, again if the first came just before the process waited for it."""
        self.answer(question, key)
        while "interrupted" not in self._output:
            if not select.select([self._master], [], [], 1)[0]:
                os.write(self._master, key.encode())
            elif not self._read():
                break

    def end(self) -> tuple[int, str]:
        """The exit code, and what was shown since the last reply."""
        while self._read():
            pass
        os.close(self._master)
        return self._process.wait(30), self._output.replace("\r\n", "\n")

    def _read(self) -> bool:
        assert select.select([self._master], [], [], 60)[0], self._output
        try:
            data = os.read(self._master, 4096)
        except OSError:  # the other side is closed
            return False
        self._output += data.decode()
        return bool(data)


def created(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_answers_make_the_suite(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "init", "evals")
    terminal.answer("Agent [python]", "htp\n")
    terminal.answer("'htp' is not one of 'python'", "http\n")
    terminal.answer("URL (empty for the demo agent", "localhost\n")
    terminal.answer("Error: 'localhost' is not a URL", "http://localhost:8000/chat\n")
    terminal.answer("Body of the request", '{"q": "{{input}}"}\n')
    terminal.answer("JMESPath of the text", "\n")
    terminal.answer("[github]", "gitlab\n")
    code, output = terminal.end()
    assert code == 0
    assert "wrote evals/.gitlab/gradeline.yml\n" in output
    choice = AgentChoice("http", url="http://localhost:8000/chat", request={"q": "{{input}}"})
    assert (tmp_path / "evals" / "suite.yaml").read_text() == starter_files(choice)["suite.yaml"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_answer_may_be_empty(tmp_path: Path, kind: str) -> None:
    terminal = Terminal(tmp_path, "init", "--ci", "none")
    terminal.answer("Agent [python]", f"{kind}\n")
    for _ in range({"openai": 2, "replay": 0}.get(kind, 1)):
        terminal.answer("(empty ", "\n")
    code, output = terminal.end()
    assert (code, "Next:" in output) == (0, True)
    expected = {**starter_files(AgentChoice(kind)), "suite.schema.json": "", ".gitignore": ""}
    assert created(tmp_path) == sorted(expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("http://127.0.0.1:1/mcp", {"url": "http://127.0.0.1:1/mcp"}),
        ("npx server", {"command": ("npx", "server"), "folder": ".."}),
    ],
)
def test_an_mcp_server_is_a_url_or_a_command(tmp_path: Path, answer: str, expected: dict[str, Any]) -> None:
    terminal = Terminal(tmp_path, "init", "evals", "--ci", "none")
    terminal.answer("Agent [python]", "mcp\n")
    terminal.answer("URL of the server, or the command", f"{answer}\n")
    terminal.answer("Tool (empty for ask)", "\n")
    terminal.answer("Argument that gets the input", "\n")
    assert terminal.end()[0] == 0
    target = starter_files(AgentChoice("mcp", **expected))["target.py"]
    assert (tmp_path / "evals" / "target.py").read_text() == target


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
@pytest.mark.parametrize("questions", [1, 2, 3])
def test_an_interruption_writes_nothing(tmp_path: Path, questions: int, key: str) -> None:
    terminal = Terminal(tmp_path, "init", "evals")
    asked = ["Agent [python]", "Function, as file.py:name", "[github]"][:questions]
    for question in asked[:-1]:
        terminal.answer(question, "\n")
    terminal.interrupt(asked[-1], key)
    code, output = terminal.end()
    assert (code, output.splitlines()[-1]) == (130, "interrupted")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_refused_before_the_first_question(tmp_path: Path) -> None:
    (tmp_path / "cases.jsonl").write_text("mine")
    code, output = Terminal(tmp_path, "init").end()
    assert code == 2
    assert output.startswith("gradeline: \n  cases.jsonl: already exists\n")
    assert created(tmp_path) == ["cases.jsonl"]


@pytest.mark.parametrize("options", [("--target", "command"), ("--url", "http://a/"), ("--quiet",), ("--json",)])
def test_an_option_that_answers_replaces_the_questions(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, output = Terminal(tmp_path, "init", *options).end()
    assert code == 0
    assert "What is the agent?" not in output


def test_an_existing_pipeline_is_kept_without_a_question(tmp_path: Path) -> None:
    (tmp_path / WORKFLOW).parent.mkdir(parents=True)
    (tmp_path / WORKFLOW).write_text("mine")
    terminal = Terminal(tmp_path, "init")
    terminal.answer("Agent [python]", "replay\n")
    code, output = terminal.end()
    assert code == 0
    assert f"Kept {WORKFLOW}" in output
    assert (tmp_path / WORKFLOW).read_text() == "mine"

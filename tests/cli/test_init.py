"""A new suite, begun from the command line as a user begins it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from gradeline.cli.init import TARGETS, starter_files
from gradeline.suite.document import parse_document
from gradeline.suite.read import read_suite
from gradeline.suite.schema import schema_text, suite_schema
from gradeline_command import COMMAND, run_command

VALIDATOR = jsonschema_rs.validator_for(suite_schema())
OPTION = re.compile(r"^( *)#(?=\S)", re.MULTILINE)
"""A comment that is an option as soon as its ``#`` is deleted."""


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def gradeline(folder: Path, *arguments: str) -> CommandResult:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    done = run_command([COMMAND, *arguments], cwd=folder, env={**environment, "NO_COLOR": "1"})
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir() if path.is_file()}


class TestInit:
    def test_a_python_suite_runs_with_the_printed_commands(self, tmp_path: Path) -> None:
        begun = gradeline(tmp_path, "init", "my evals", "--json")
        names = ["suite.yaml", "cases.jsonl", "graders.py", "agent.py", "suite.schema.json"]
        assert begun.json == {
            "written": [f"my evals/{name}" for name in names],
            "next": ["gradeline validate 'my evals/suite.yaml'", "gradeline run 'my evals/suite.yaml'"],
        }
        assert set(content(tmp_path / "my evals")) == set(names)
        validated, run = (gradeline(tmp_path, *shlex.split(command)[1:]) for command in begun.json["next"])
        assert (validated.code, validated.out, validated.err) == (0, "my evals/suite.yaml: valid\n", "")
        assert (run.code, run.err) == (0, "")
        assert "verdict: pass" in run.out

    def test_the_printed_output(self, tmp_path: Path) -> None:
        assert gradeline(tmp_path, "init") == CommandResult(
            0,
            "wrote suite.yaml\nwrote cases.jsonl\nwrote graders.py\nwrote agent.py\nwrote suite.schema.json\n"
            "\nNext:\n  gradeline validate suite.yaml\n  gradeline run suite.yaml\n",
            "",
        )
        quiet = gradeline(tmp_path, "init", "other", "--target", "command", "--quiet")
        assert quiet.out.splitlines() == [
            "other/suite.yaml",
            "other/cases.jsonl",
            "other/graders.py",
            "other/suite.schema.json",
        ]

    @pytest.mark.parametrize("target", TARGETS)
    def test_the_written_suite_is_valid(self, tmp_path: Path, target: str) -> None:
        assert gradeline(tmp_path, "init", "a/b", "--target", target).code == 0
        assert content(tmp_path / "a" / "b") == {**starter_files(target), "suite.schema.json": schema_text()}
        assert gradeline(tmp_path, "validate", "a/b/suite.yaml", "--json").json == {
            "valid": True,
            "errors": [],
            "warnings": [],
        }

    @pytest.mark.parametrize("target", ["command", "replay"])
    def test_a_suite_without_an_agent_runs_at_once(self, tmp_path: Path, target: str) -> None:
        gradeline(tmp_path, "init", "evals", "--target", target)
        assert gradeline(tmp_path, "run", "evals/suite.yaml", "--json").json["verdict"]["result"] == "pass"

    def test_an_http_suite_calls_the_agent_in_its_instructions(self, tmp_path: Path, agent: int) -> None:
        begun = gradeline(tmp_path, "init", "--target", "http")
        start = "python -m gradeline.demo.agent --port 9000"
        assert f"  {start}   # in another terminal\n  gradeline run suite.yaml\n" in begun.out
        suite = (tmp_path / "suite.yaml").read_text(encoding="utf-8")
        assert start in suite
        (tmp_path / "suite.yaml").write_text(suite.replace("127.0.0.1:9000", f"127.0.0.1:{agent}"), encoding="utf-8")
        run = gradeline(tmp_path, "run", "suite.yaml", "--json")
        assert run.json["summary"]["responses"] == {"success": 4, "error": 0, "timeout": 0}
        assert run.json["summary"]["graders"]["right"]["mean"] == 1.0

    def test_existing_files_are_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "agent.py").write_text("mine")
        (tmp_path / "suite.yaml").symlink_to("nowhere")
        refused = gradeline(tmp_path, "init")
        assert refused == CommandResult(
            2,
            "",
            "gradeline: \n  suite.yaml: already exists\n  agent.py: already exists\n"
            "  overwrite them with --force, or name another folder\n",
        )
        assert content(tmp_path) == {"agent.py": "mine"}

    def test_force_overwrites_existing_files(self, tmp_path: Path) -> None:
        (tmp_path / "agent.py").write_text("mine")
        (tmp_path / "other.py").write_text("mine")
        assert gradeline(tmp_path, "init", ".", "--force").code == 0
        assert content(tmp_path) == {**starter_files("python"), "suite.schema.json": schema_text(), "other.py": "mine"}

    @pytest.mark.parametrize(
        ("folder", "message"),
        [
            ("file", "gradeline: file: is a file; name a folder\n"),
            ("file/below", "gradeline: file/below/suite.yaml: cannot write: Not a directory; choose another"),
            ("/proc/evals", "gradeline: /proc/evals/suite.yaml: cannot write: No such file or directory; choose"),
        ],
    )
    def test_an_unwritable_path_is_reported(self, tmp_path: Path, folder: str, message: str) -> None:
        (tmp_path / "file").write_text("")
        refused = gradeline(tmp_path, "init", folder)
        assert (refused.code, refused.out) == (2, "")
        assert refused.err.startswith(message)

    def test_an_unknown_target_is_refused_with_the_known_ones(self, tmp_path: Path) -> None:
        refused = gradeline(tmp_path, "init", "--target", "ftp")
        assert refused.code == 2
        assert "'ftp' is not one of 'python', 'http', 'command', 'replay'" in refused.err
        assert list(tmp_path.iterdir()) == []


@pytest.fixture
def agent() -> Iterator[int]:
    """The port of an agent that answers as the built-in one does: {"input": …} gets {"response": …}."""
    answers = {"France": "Paris", "Spain": "Madrid", "Peru": "Lima", "Kenya": "Nairobi"}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
            body = json.dumps({"response": next(city for name, city in answers.items() if name in question)}).encode()
            self.send_response(200 if self.path == "/evaluate" else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("target", TARGETS)
class TestStarter:
    @pytest.fixture
    def folder(self, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("AGENT_KEY", "s3cret")
        for name, text in starter_files(target).items():
            (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path

    def check(self, folder: Path, text: str) -> None:
        (folder / "suite.yaml").write_text(text, encoding="utf-8")
        assert read_suite(folder / "suite.yaml").warnings == ()
        assert VALIDATOR.is_valid(parse_document(text.encode(), "suite.yaml").data)

    def test_each_option_works_once_it_is_uncommented(self, folder: Path, target: str) -> None:
        text = starter_files(target)["suite.yaml"]
        options = list(OPTION.finditer(text))
        assert len(options) >= 8
        before = parse_document(text.encode(), "suite.yaml").data
        for option in options:
            changed = text[: option.start()] + option[1] + text[option.end() :]
            assert parse_document(changed.encode(), "suite.yaml").data != before
            self.check(folder, changed)

    def test_all_options_work_together(self, folder: Path, target: str) -> None:
        self.check(folder, OPTION.sub(r"\1", starter_files(target)["suite.yaml"]))

    def test_the_editor_finds_the_schema(self, folder: Path, target: str) -> None:
        first = starter_files(target)["suite.yaml"].splitlines()[0]
        assert first == "# yaml-language-server: $schema=suite.schema.json"

    def test_no_line_is_too_long_to_read(self, folder: Path, target: str) -> None:
        lines = [line for text in starter_files(target).values() for line in text.splitlines()]
        assert max(map(len, lines)) <= 120


class TestSchema:
    def test_it_is_printed_with_and_without_json(self, tmp_path: Path) -> None:
        assert gradeline(tmp_path, "schema") == CommandResult(0, schema_text(), "")
        assert gradeline(tmp_path, "schema", "--json") == CommandResult(0, schema_text(), "")

    def test_it_is_written_to_a_file(self, tmp_path: Path) -> None:
        assert gradeline(tmp_path, "schema", "--output", "new/suite.schema.json") == CommandResult(0, "", "")
        assert content(tmp_path / "new") == {"suite.schema.json": schema_text()}
        again = gradeline(tmp_path, "schema", "--output", "new/suite.schema.json", "--json")
        assert again.json == {"written": ["new/suite.schema.json"], "next": []}

    def test_an_unwritable_path_is_reported(self, tmp_path: Path) -> None:
        refused = gradeline(tmp_path, "schema", "--output", ".")
        assert refused == CommandResult(2, "", "gradeline: .: cannot write: Is a directory; choose another path\n")


@pytest.mark.parametrize("arguments", [["--help"], ["init", "--help"], ["schema", "--help"]])
def test_help_loads_no_grader(arguments: list[str]) -> None:
    script = (
        "import contextlib, io, sys\nfrom gradeline.cli import run_cli\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    assert run_cli({arguments!r}) == 0\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    heavy = ("gradeline.graders", "gradeline.model", "gradeline.targets", "msgspec", "yaml", "rich", "asyncio")
    assert [name for name in done.stdout.split() if name.startswith(heavy)] == []

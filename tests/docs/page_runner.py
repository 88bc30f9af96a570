"""Runs the code blocks of a documentation page in order and checks the output that the page shows.

The header of a block determines how it is used:

========================================  ============================================================================
```python                                 is run; the comment after an expression is its value
```yaml title="suite.yaml"                is that file; without a ``name`` it replaces these keys of the suite there
```yaml                                   is a suite, or keys of one, which are merged into the page's last suite
```sh                                     is run line by line; ``# exits with 1`` sets the expected exit code
```text title="output"                    is what the commands above it print; ``…`` matches anything in a line,
                                          on its own line any number of lines
```yaml title=".github/workflows/…"       is a workflow: its steps are run, except installations; if one fails, its output
                                          must be shown
```yaml title=".gitlab-ci.yml"            is a pipeline: likewise
```sh data-run="no: …"                    is not run, for the given reason; data is parsed anyway
========================================  ============================================================================

The demo agent and commands that end with ``&`` run in the background until the end of the page; the ports 9000 to 9003
are replaced by free ones. A file of the page's example must be shown unchanged; one whose name begins with ``wrong``
is invalid on purpose.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import click
import yaml

from action_runner import ActionRunner
from ci_checkout import TOKEN, gitlab_job, pull_request_job, push_job
from forge_server import ForgeServer
from gradeline.cli.commands import cli
from gradeline.suite.declaration import SuiteFile, keys_of
from gradeline.suite.letta_dialects import IGNORED, aliases_of
from gradeline.suite.read import read_suite
from gradeline_command import command_folder

PORTS = ("9000", "9001", "9002", "9003")
LIMIT_S = 60

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w-]*)(?P<options>[^\n`]*)\n(?P<text>.*?)^(?P=indent)(?P=fence)$",
    re.DOTALL | re.MULTILINE,
)
_OPTION = re.compile(r'([\w-]+)="([^"]*)"')
_EXIT = re.compile(r"#.*\bexits with (\d+)")
_AGENT = "python -m gradeline.demo.agent --port 9000"
_PLAIN = ("", "text", "csv", "markdown", "xml", "txt")
_SUITE_KEYS = {*keys_of(SuiteFile), *(alias.spelling for alias in aliases_of("suite")), *IGNORED}
_BASE = {
    "name": "page",
    "dataset": [{"input": "Who is there?"}],
    "target": {"kind": "python", "function": "agent.py:answer"},
    "graders": {"right": {"kind": "contains"}},
}


class Block(NamedTuple):
    """A code block of a page."""

    place: str
    language: str
    title: str | None
    run: bool
    text: str


def blocks_of(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = list(_FENCE.finditer(text))
    assert 2 * len(blocks) == len(re.findall("^ *```", text, re.MULTILINE)), f"{page.name}: a block without an end"
    for found in blocks:
        options = dict(_OPTION.findall(found["options"]))
        place = f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}"
        run = options.pop("data-run", "yes")
        assert run == "yes" or re.match(r"no: .", run), f'{place}: write data-run="no: why"'
        title = options.pop("title", None)
        assert not options, f"{place}: unknown {options}"
        yield Block(place, found["language"], title, run == "yes", textwrap.dedent(found["text"]))


class PageRunner:
    """Runs one page in its own folder; leaving ``with`` ends the background processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {port: str(_free_port()) for port in PORTS}
        self._example_files: dict[Path, str] = {}
        self._suite: Path | None = None
        self._names: dict[str, Any] = {"__name__": "docs"}
        self._background: list[subprocess.Popen[bytes]] = []
        self._printed = ""
        self._run_commands = True
        self._forges: dict[str, ForgeServer] = {}
        self._failed_job: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for forge in self._forges.values():
            forge.__exit__(None, None, None)
        for process in self._background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()

    def add_example(self, example: Path) -> None:
        """Copy the files of an example into the folder."""
        for file in example.rglob("*"):
            if file.is_file() and not file.name.startswith("."):
                place = self._folder / file.relative_to(example)
                place.parent.mkdir(parents=True, exist_ok=True)
                self._example_files[place] = self._with_free_ports(file.read_text(encoding="utf-8"))
                place.write_text(self._example_files[place], encoding="utf-8")

    def follow(self, page: Path, *, run_commands: bool = True) -> None:
        """Run the page; or only check that its commands and options exist."""
        self._run_commands = run_commands
        for block in blocks_of(page):
            try:
                self._follow(block._replace(text=self._with_free_ports(block.text)))
            except Exception as error:
                error.add_note(f"in the block at {block.place}")
                raise
        for suite in self._suites():
            read_suite(suite)

    def _with_free_ports(self, text: str) -> str:
        """The text with the example ports replaced by free ones."""
        return re.sub(r"\b900[0-3]\b", lambda port: self._ports[port[0]], text)

    def _follow(self, block: Block) -> None:
        if block.language in ("yaml", "json", "jsonl", "toml", "python"):
            _parse(block)
        if not block.run:
            return
        if block.title == "output":
            assert _matches(block.text, self._printed), f"it printed:\n{self._printed}"
            self._failed_job = None
            return
        assert self._failed_job is None, f"{self._failed_job} failed, which the page does not show:\n{self._printed}"
        if block.title is None and block.language == "yaml":
            self._read(yaml.safe_load(block.text))
        elif block.title is not None:
            self._write(block)
        elif block.language == "python":
            with self._here():
                run_python(block.text, self._names)
        elif block.language == "sh":
            self._printed = "".join(self._command(line) for line in _commands(block.text))
        else:
            assert block.language in (*_PLAIN, "json", "jsonl", "toml"), f"unknown language {block.language!r}"

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        """Work in the page's folder, with its modules importable, and unload them afterwards."""
        before = set(sys.modules)
        sys.path.insert(0, str(self._folder))
        try:
            with contextlib.chdir(self._folder):
                yield
        finally:
            sys.path.remove(str(self._folder))
            for name in set(sys.modules) - before:
                if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(self._folder)):
                    del sys.modules[name]

    def _write(self, block: Block) -> None:
        assert block.title is not None
        path = self._folder / block.title
        assert path.resolve().is_relative_to(self._folder.resolve()), f"{block.title} is outside the folder"
        path.parent.mkdir(parents=True, exist_ok=True)
        text = block.text
        if block.language == "yaml":
            data = yaml.safe_load(text)
            if _is_part(data) and path.exists():
                text = json.dumps({**yaml.safe_load(path.read_text(encoding="utf-8")), **data})
            if _is_suite(yaml.safe_load(text)) and not _is_invalid_example(path):
                self._suite = path
        if text == block.text:
            assert self._example_files.get(path, text) == text, f"the example has another {block.title}"
        path.write_text(text, encoding="utf-8")
        if block.title.startswith(".github/workflows/"):
            self._workflow(block.title, yaml.safe_load(text))
        elif block.title == ".gitlab-ci.yml":
            self._pipeline(yaml.safe_load(text))

    def _workflow(self, title: str, data: Any) -> None:
        """Run the steps of a workflow like GitHub's shell."""
        of_pull_request = "pull_request" in data[True]  # the key "on" is true in YAML
        job = (
            pull_request_job(self._folder, "b" * 40, "a" * 40) if of_pull_request else push_job(self._folder, "a" * 40)
        )
        (self._folder / "step-summary.md").unlink(missing_ok=True)
        variables = {**job, "GITHUB_STEP_SUMMARY": "step-summary.md", "GITHUB_API_URL": self._forge("github")}
        self._printed = ""
        for one in data["jobs"].values():
            for step in one["steps"]:
                if "/gradeline@" in step.get("uses", ""):
                    done = ActionRunner(self._folder, variables, TOKEN).run(**step["with"])
                    self._end_step(title, done.printed, failed=done.failed)
                elif "run" in step and not step["run"].startswith("pip install"):
                    token = {"GITHUB_TOKEN": TOKEN} if "env" in step else {}
                    self._end_step(title, *self._attempt(step["run"], **variables, **token))

    def _pipeline(self, data: Any) -> None:
        """Run the script of each job of a pipeline, in a merge request."""
        variables = gitlab_job(self._folder, "b" * 40, "a" * 40)
        variables |= {"CI_API_V4_URL": self._forge("gitlab"), "GITLAB_TOKEN": TOKEN}
        self._printed = ""
        for job in data.values():
            script = "\n".join(line for line in job["script"] if not line.startswith("pip install"))
            self._end_step(".gitlab-ci.yml", *self._attempt(script, **variables))

    def _forge(self, name: str) -> str:
        """The URL of a stand-in for a forge."""
        if name not in self._forges:
            self._forges[name] = ForgeServer(name, TOKEN)
            self._forges[name].__enter__()
        return self._forges[name].url

    def _attempt(self, script: str, **variables: str) -> tuple[str, bool]:
        done = self._start_shell(script, "bash", "-e", "-c", **variables)
        return done.stdout, done.returncode != 0

    def _end_step(self, title: str, printed: str, failed: bool) -> None:
        assert TOKEN not in printed
        self._printed += printed
        if failed:
            self._failed_job = title
            self._printed += "Error: Process completed with exit code 1.\n"

    def _read(self, data: Any) -> None:
        """Check a suite, or part of one merged into the page's last suite."""
        assert _is_part(data) or _is_suite(data), f"not a suite or part of one: {data}"
        base = _BASE if self._suite is None else yaml.safe_load(self._suite.read_text(encoding="utf-8"))
        whole = self._folder / "part-of-a-page.json"
        whole.write_text(json.dumps(data if _is_suite(data) else {**base, **data}), encoding="utf-8")
        read_suite(whole)
        whole.unlink()

    def _suites(self) -> Iterator[Path]:
        for path in sorted(self._folder.rglob("*.yaml")):
            if _is_suite(yaml.safe_load(path.read_text(encoding="utf-8"))) and not _is_invalid_example(path):
                yield path

    def _command(self, line: str) -> str:
        """Run one line and return its output."""
        if line.startswith(("make ", "pip install gradeline")):
            return ""  # continuous integration runs these itself
        line = line.removeprefix("uvx ")
        if not self._run_commands:
            _check_command(line)
            return ""
        if line.startswith(self._with_free_ports(_AGENT)) or line.endswith("&"):
            self._start(line.removesuffix("&"))
            return ""
        expected = _EXIT.search(line)
        return self._shell(line, "bash", "-c", code=int(expected[1]) if expected else 0)

    def _shell(self, script: str, *shell: str, code: int = 0, **variables: str) -> str:
        """The output of a script that must exit with this code."""
        done = self._start_shell(script, *shell, **variables)
        assert done.returncode == code, f"{script}\n{done.stdout}"
        return done.stdout

    def _start_shell(self, script: str, *shell: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*shell, script],
            cwd=self._folder,
            env={**_environment(), **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def _start(self, line: str) -> None:
        """Run a line in the background and wait until its port accepts connections."""
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=self._folder,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._background.append(process)
        port = int(next(port for port in self._ports.values() if port in line))
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.02)  # there is no event to wait for
        raise AssertionError(f"no server listens after: {line}")


def run_python(source: str, names: dict[str, Any]) -> None:
    """Run a block; an expression followed by a comment must have the value in the comment."""
    lines = source.splitlines()
    for statement in ast.parse(source).body:
        assert statement.end_lineno is not None
        comment = lines[statement.end_lineno - 1][statement.end_col_offset :].strip()
        if isinstance(statement, ast.Expr) and comment.startswith("#"):
            value = eval(compile(ast.Expression(statement.value), "<docs>", "eval"), names)
            assert repr(value) == comment.lstrip("# "), ast.unparse(statement)
        else:
            exec(compile(ast.Module([statement], []), "<docs>", "exec"), names)


def _parse(block: Block) -> None:
    match block.language:
        case "yaml":
            yaml.safe_load(block.text)
        case "json":
            json.loads(block.text)
        case "jsonl":
            for line in block.text.splitlines():
                json.loads(line)
        case "toml":
            tomllib.loads(block.text)
        case "python":
            ast.parse(block.text)


def _is_suite(data: Any) -> bool:
    return isinstance(data, dict) and {"name", "dataset", "target", "graders"} <= data.keys()


def _is_invalid_example(path: Path) -> bool:
    """Whether the file shows an error on purpose."""
    return path.name.startswith("wrong")


def _is_part(data: Any) -> bool:
    return isinstance(data, dict) and data.keys() <= _SUITE_KEYS and not _is_suite(data)


def _commands(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def _check_command(line: str) -> None:
    """Check that the command exists and accepts these arguments."""
    called = shlex.split(line.rpartition("| ")[2], comments=True)
    assert called[0] == "gradeline", line
    context = click.Context(cli)
    name, command, arguments = cli.resolve_command(context, called[1:])
    assert command is not None
    command.make_context(name, arguments, parent=context)


def _matches(expected: str, printed: str) -> bool:
    """Whether the output matches, ignoring the width of columns."""
    lines = [" ".join(line.split()) for line in expected.strip().splitlines()]
    pattern = "\n".join(".*" if line == "…" else re.escape(line).replace("…", "[^\n]*") for line in lines)
    output = "\n".join(" ".join(line.split()) for line in printed.strip().splitlines())
    return re.fullmatch(pattern, output, re.DOTALL) is not None


def _environment() -> dict[str, str]:
    environment = {
        key: value
        for key, value in os.environ.items()
        if key != "CI" and not key.startswith(("GITHUB_", "GRADELINE_", "PYTEST_"))
    }
    path = os.pathsep.join([command_folder(), str(Path(sys.executable).parent), environment.get("PATH", "")])
    return {**environment, "PATH": path, "NO_COLOR": "1", "COLUMNS": "100"}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port

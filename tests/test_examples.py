"""The examples work as their READMEs describe."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline_command import COMMAND, run_command

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def agent() -> Iterator[str]:
    """The port of a demo agent started as its README describes."""
    command = [sys.executable, "-m", "gradeline.demo.agent", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert match is not None
        yield match[1]
        process.terminate()


def copied(name: str, folder: Path, port: str) -> Path:
    """An example, with the agent where it really listens."""
    there = Path(shutil.copytree(EXAMPLES / name, folder / name))
    for suite in there.rglob("*.yaml"):
        suite.write_text(suite.read_text().replace("127.0.0.1:9000", f"127.0.0.1:{port}"))
    return there


def commands(readme: Path) -> list[list[str]]:
    """Every gradeline command of a README's blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", readme.read_text(), re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("gradeline ")]


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    return run_command([COMMAND, *arguments], cwd=folder, env=environment, text=True)


@pytest.mark.parametrize("name", ["quickstart", "multi_turn", "python_agent", "rag", "letta"])
def test_every_command_of_the_readme_works_in_its_order(name: str, tmp_path: Path, agent: str) -> None:
    folder = copied(name, tmp_path, agent)
    ordered = commands(folder / "README.md")
    assert ordered
    for command in ordered:
        done = call(folder, *command[1:])
        assert (done.returncode, done.stderr) == (0, ""), (command, done.stdout)


def means(folder: Path, *arguments: str) -> dict[str, Any]:
    done = call(folder, "run", *arguments, "--json", "--store", str(folder / "store.db"))
    summary = json.loads(done.stdout)["summary"]
    return {key: column["mean"] for key, column in summary["graders"].items()}


def test_the_quickstarts_scores(tmp_path: Path, agent: str) -> None:
    folder = copied("quickstart", tmp_path, agent)
    assert means(folder, "suite.yaml") == {"right": 8 / 9, "short": 1.0, "sure": 8 / 9}
    assert means(folder, "suite.yaml", "--model", "small") == {"right": 5 / 9, "short": 1.0, "sure": 7 / 9}


@pytest.mark.parametrize("isolation", ["worker", "none"])
def test_a_conversation_agent_in_python(tmp_path: Path, agent: str, isolation: str) -> None:
    folder = copied("python_agent", tmp_path, agent)
    suite = folder / "suite.yaml"
    suite.write_text(suite.read_text().replace("timeout: 10", f"isolation: {isolation}"))
    done = call(folder, "run", "suite.yaml", "--quiet")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "pass"), done.stderr
    lines = call(folder, "show", "--records").stdout.splitlines()
    records = {record["case"]: record for record in map(json.loads, lines)}
    response = records["two-items"]["response"]
    assert response["output"] == "looking up tea\n" * 2 + "looking up cake\n" * 2
    assert [len(turn) for turn in response["trajectory"]["turns"]] == [3, 3, 1]
    assert {record["grades"]["tools"]["outcome"] for record in records.values()} == {"pass"}


def test_an_agent_with_retrieval(tmp_path: Path, agent: str) -> None:
    folder = copied("rag", tmp_path, agent)
    assert means(folder, "suite.yaml") == {"right": 0.8, "found": 0.8, "ranked": 0.8}
    done = call(folder, "validate", "judged.yaml", "--set", "graders.faithful.api_key_env=HOME")
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == [
        "graders.relevant.api_key_env",
        "graders.recalled.api_key_env",
    ]


TYPESCRIPT = ROOT / "ui" / "node_modules"


@pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed")
@pytest.mark.skipif(not TYPESCRIPT.is_dir(), reason="the packages of the web interface are not installed (make ui)")
@pytest.mark.parametrize("protocol", ["jsonl", "once"])
def test_a_grader_in_typescript(tmp_path: Path, protocol: str) -> None:
    folder = Path(shutil.copytree(EXAMPLES / "typescript_grader", tmp_path / "typescript_grader"))
    compiler = ["node", TYPESCRIPT / "typescript" / "bin" / "tsc", "-p", folder, "--typeRoots", TYPESCRIPT / "@types"]
    compiled = subprocess.run(compiler, capture_output=True, text=True, check=False)
    assert (compiled.returncode, compiled.stdout) == (0, "")
    done = call(folder, "run", "suite.yaml", "--quiet", "--set", f"graders.words.protocol={protocol}")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "pass"), done.stderr
    lines = call(folder, "show", "--records").stdout.splitlines()
    grades = {record["case"]: record["grades"]["words"] for record in map(json.loads, lines)}
    assert {case: (grade["score"], grade["rationale"]) for case, grade in grades.items()} == {
        "capital": (1.0, "1 of 1 expected words"),
        "colours": (0.5, "1 of 2 expected words"),
        "greeting": (0.0, "17 words, maximum 12"),
    }
    assert grades["colours"]["metadata"] == {"missing": ["white"]}


def test_conversations_are_graded_turn_by_turn(tmp_path: Path, agent: str) -> None:
    folder = copied("multi_turn", tmp_path, agent)
    assert means(folder, "suite.yaml") == {"right": 1.0, "helpful": 1.0, "calm": 1.0}

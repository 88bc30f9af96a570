"""What tests on a Ray cluster share."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gradeline_command import COMMAND, AnyCommand, start_command
from ray_cluster import RayCluster

AGENT = """
import asyncio, os

CALLS = os.open({calls!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

async def answer(sample):
    os.write(CALLS, f"{{sample.id}}\\n".encode())
    await asyncio.sleep({seconds})
    return str(sample.input)
"""
SUITE = """
name: on a cluster
dataset: cases.jsonl
target: {{kind: python, function: agent.py:answer, isolation: none}}
graders:
  exact: {{kind: exact_match}}
{more}
concurrency: {concurrency}
"""


class Project:
    """A suite in a folder, run by the command line against a PostgreSQL store."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self._calls = folder.parent / "calls"
        self.environment: Mapping[str, str] = os.environ
        self._begun: list[AnyCommand] = []

    def write(self, cases: int, concurrency: int = 100, more: str = "", seconds: float = 0.05) -> None:
        (self.folder / "agent.py").write_text(AGENT.format(calls=str(self._calls), seconds=seconds))
        rows = ({"id": f"c{n}", "input": f"q{n}", "ground_truth": f"q{n}"} for n in range(cases))
        (self.folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (self.folder / "suite.yaml").write_text(SUITE.format(concurrency=concurrency, more=more))

    def begin(self, *arguments: str, **environment: str) -> AnyCommand:
        """Start a command; it is a process group of its own."""
        command = [COMMAND, *arguments, "--store", self.store]
        process = start_command(command, cwd=self.folder, env={**self.environment, **environment})
        self._begun.append(process)
        return process

    def end(self) -> None:
        """End what was begun."""
        for process in self._begun:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        process = self.begin(*arguments, **environment)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str, **environment: str) -> Any:
        done = self.command(*arguments, "--json", **environment)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    @property
    def calls(self) -> list[str]:
        """The case of every call that the agent got."""
        return self._calls.read_text().split() if self._calls.exists() else []

    @property
    def call_count(self) -> int:
        """Quickly."""
        return self._calls.read_bytes().count(b"\n") if self._calls.exists() else 0


@pytest.fixture(scope="session", autouse=True)
def _requires_ray() -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed (the extra 'ray')")


@pytest.fixture(scope="session")
def cluster() -> Iterator[RayCluster]:
    """Two nodes with one processor each."""
    made = RayCluster()
    made.add_node()
    yield made
    made.stop()


@pytest.fixture
def project(tmp_path: Path, postgres_url: str) -> Iterator[Project]:
    folder = tmp_path / "suite"
    folder.mkdir()
    made = Project(folder, postgres_url)
    yield made
    made.end()

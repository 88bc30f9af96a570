"""The examples do what their READMEs say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
COMMAND = str(Path(sys.executable).with_name("gradeline"))


@pytest.fixture
def quickstart(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "examples" / "quickstart", tmp_path / "quickstart"))


def test_every_command_of_the_quickstart_works_in_its_order(quickstart: Path) -> None:
    block = re.search(r"```sh\n(.*?)```", (quickstart / "README.md").read_text(), re.DOTALL)
    assert block is not None
    commands = [line.split("#")[0].split() for line in block[1].splitlines()]
    assert [command[1] for command in commands] == ["validate", "run", "list", "show", "export", "regrade"]
    environment = {key: value for key, value in os.environ.items() if key != "GRADELINE_STORE"}
    for command in commands:
        done = subprocess.run(
            [COMMAND, *command[1:]], cwd=quickstart, capture_output=True, env=environment, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), command


def test_the_quickstarts_scores(quickstart: Path) -> None:
    store = str(quickstart / "store.db")
    done = subprocess.run(
        [COMMAND, "run", "suite.yaml", "--json", "--store", store], cwd=quickstart, capture_output=True, check=True
    )
    summary = json.loads(done.stdout)["summary"]
    assert {key: column["mean"] for key, column in summary["graders"].items()} == {
        "right": 0.8,
        "short": 1.0,
        "polite": 0.8,
    }

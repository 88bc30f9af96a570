"""Windows is not supported, with a message; features that do not need Unix work there."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The standard library and click detect the platform when they are imported: only later code sees Windows.
AS_ON_WINDOWS = """
import asyncio, click, signal, subprocess, sys

class NoUnix:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pwd", "resource", "termios"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, NoUnix())
sys.platform = "win32"
"""


def on_windows(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", AS_ON_WINDOWS + script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["run", "suite.yaml"], ["serve"]])
def test_the_command_line_prints_a_one_line_remedy(arguments: list[str]) -> None:
    done = on_windows(f"from gradeline.cli import run_cli\nsys.exit(run_cli({arguments!r}))")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "needs Linux or macOS; on Windows, use WSL" in done.stderr


def test_graders_and_suites_of_functions_work_from_python() -> None:
    script = """
import gradeline
for name in gradeline.__all__:
    getattr(gradeline, name)
from gradeline.graders import grade, registry
assert len(registry.list()) > 20
suite = {
    "name": "windows",
    "dataset": [{"input": "a", "ground_truth": "a"}],
    "target": lambda text: text,
    "graders": {"same": {"kind": "exact_match"}},
}
print(grade("numeric", "1,250", "1250").score, gradeline.run_suite(suite, store="memory://").exit_code)
"""
    done = on_windows(script)
    assert (done.stdout, done.stderr) == ("1.0 0\n", "")


def test_code_from_files_is_refused_with_a_remedy() -> None:
    script = """
from pathlib import Path
from tempfile import mkdtemp
import gradeline
from gradeline.errors import ConfigError
folder = Path(mkdtemp())
(folder / "agent.py").write_text("def answer(text): return text")
suite = {"name": "x", "dataset": [{"input": "a"}], "target": {"kind": "python", "function": "agent.py:answer"},
         "graders": {"same": {"kind": "exact_match"}}}
try:
    gradeline.run_suite(suite, store="memory://", folder=folder)
except ConfigError as error:
    print(error)
"""
    done = on_windows(script)
    assert "worker processes, which need Linux or macOS; on Windows run it in WSL" in done.stdout, done.stderr

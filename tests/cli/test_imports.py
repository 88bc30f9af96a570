"""What a run does not need is not loaded: a quarter of a short run's time is imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_a_run_loads_nothing_that_its_suite_does_not_need(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("def answer(text):\n    return text\n")
    (tmp_path / "suite.json").write_text(
        '{"name": "x", "dataset": [{"input": "a", "ground_truth": "a"}], "graders": {"same": {"kind": "exact_match"}},'
        ' "target": {"kind": "python", "function": "agent.py:answer", "isolation": "none"}}'
    )
    script = (
        "import contextlib, io, sys\nfrom gradeline.cli import run_cli\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    assert run_cli(['run', 'suite.json', '--quiet', '--store', 'memory://']) == 0\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=tmp_path)
    heavy = {"aiohttp", "yaml", "rich", "re2", "jsonschema_rs", "statistics", "tempfile", "numpy", "fastapi"}
    assert sorted(heavy.intersection(done.stdout.split())) == []

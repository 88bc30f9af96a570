"""The page in a real browser: nothing is loaded, nothing runs, nothing is reported."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gradeline_command import COMMAND, run_command

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = (
    "</pre></details><script>document.title='owned';fetch('http://127.0.0.1:9/')</script>"
    "<img src=x onerror=\"document.title='owned'\"><a href='javascript:alert(1)'>x</a>\x1b[31m\u202eevil"
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH; install the package chromium")


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    rows = [{"id": f"{n} {HOSTILE}", "input": f"{HOSTILE} {n}", "ground_truth": HOSTILE} for n in range(3)]
    suite = {
        "name": f"hostile {HOSTILE}",
        "dataset": rows,
        "target": {"kind": "command", "command": ["cat"]},
        "graders": {"same": {"kind": "exact_match"}, "near": {"kind": "similarity"}},
        "gate": {"kind": "simple", "metric_key": "same", "aggregation": "avg_score", "op": "gte", "value": 0.5},
    }
    (tmp_path / "suite.json").write_text(json.dumps(suite))
    run_command([COMMAND, "run", "suite.json", "--quiet"], cwd=tmp_path)
    page = tmp_path / "report.html"
    run_command([COMMAND, "export", "--format", "html", "--output", str(page)], cwd=tmp_path).check_returncode()
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert "<title>owned" not in done.stdout
    assert "<script" not in done.stdout
    assert done.stdout.count("&lt;script&gt;document.title='owned'") >= 3

"""A store with one finished run of any size, made by the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

AGENT = "def answer(sample):\n    return sample.input if int(sample.id) % 10 else 'something else'\n"


def stored_run(folder: Path, results: int) -> Path:
    """The run is called ``large``; every tenth answer is wrong, by ``same`` and, less so, by ``near``."""
    rows = ({"id": str(n), "input": f"question {n}", "ground_truth": f"question {n}"} for n in range(results))
    (folder / "cases.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "agent.py").write_text(AGENT)
    suite = {
        "name": "large",
        "dataset": "cases.jsonl",
        "target": {"kind": "python", "function": "agent.py:answer"},
        "graders": {"same": {"kind": "exact_match"}, "near": {"kind": "similarity"}},
    }
    (folder / "suite.json").write_text(json.dumps(suite))
    store = folder / "store.db"
    command = [sys.executable, "-m", "gradeline", "run", "suite.json", "--quiet", "--store", str(store)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert store.exists(), done.stderr
    return store

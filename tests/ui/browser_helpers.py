"""Helpers for tests in a browser: window sizes, the browser's log, accessibility checks, a store with one run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
WIDE = (1440, 900)
NARROW = (390, 844)
AXE = ROOT / "ui" / "node_modules" / "axe-core" / "axe.min.js"
RUN_AXE = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
AGENT = "def answer(sample):\n    return sample.input if int(sample.id) % 10 else 'something else'\n"


class BrowserLog(list[str]):
    """Errors and warnings in the browser's console: script errors, CSP violations, failed requests."""

    def without(self, *patterns: str) -> list[str]:
        return [message for message in self if not any(re.search(pattern, message) for pattern in patterns)]


def page_problems(page: Page, name: str, width: int) -> list[str]:
    """Accessibility violations found by axe, and whether the page is wider than the window."""
    if not AXE.is_file():
        pytest.skip("axe-core is absent; run: npm ci --ignore-scripts in ui/")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    problems = [f"{name}: {_describe(violation)}" for violation in page.evaluate(RUN_AXE)["violations"]]
    if page.evaluate("document.documentElement.scrollWidth") > width:
        problems.append(f"{name}: the page is wider than the window")
    return problems


def _describe(violation: dict[str, Any]) -> str:
    elements = [node["target"][-1] for node in violation["nodes"][:3]]
    return f"{violation['id']}: {violation['help']} at {elements}"


def create_stored_run(folder: Path, results: int) -> Path:
    """A store with one run named ``large``; every tenth response is wrong for ``same`` and, less so, for ``near``."""
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

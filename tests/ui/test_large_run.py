"""10,000 results: few rows are in the page, and how long things take is printed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from live import Server

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from playwright.sync_api import Browser, Page

RESULTS = 10_000
AGENT = "def answer(sample):\n    return sample.input if int(sample.id) % 10 else 'something else'\n"


def test_ten_thousand_results(page: Page, browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = _filled(tmp_path)
    with Server(store) as server:
        (run,) = server.data("GET", "/api/evaluations")["evaluations"]
        page.goto(f"{server.url}/#/runs")
        page.get_by_role("link", name="large").wait_for()
        rows = page.get_by_role("table", name="Results").locator("[data-index]")

        began = time.perf_counter()
        page.get_by_role("link", name="large").click()
        rows.first.wait_for()
        page.keyboard.press("j")
        page.wait_for_function("document.activeElement?.getAttribute('data-index') === '0'")
        interactive = time.perf_counter() - began
        page.get_by_text("of 10,000", exact=False).first.wait_for()
        assert rows.count() < 100

        began = time.perf_counter()
        page.get_by_label("Outcome").select_option("fail")
        rows.get_by_text("something else").first.wait_for()
        page.wait_for_function(
            "[...document.querySelectorAll('[data-index]')].every(r => /something else/.test(r.innerText))"
        )
        filtered = time.perf_counter() - began

        page.goto(f"{server.url}/#/runs/{run['id']}")
        rows.get_by_text("question 1", exact=True).first.wait_for()
        began = time.perf_counter()
        page.get_by_placeholder("Search results").fill("question 4321")
        rows.get_by_text("question 4321").first.wait_for()
        searched = time.perf_counter() - began

        began = time.perf_counter()
        page.goto(f"{server.url}/#/compare?baseline={run['id']}&candidate={run['id']}")
        page.get_by_role("table", name="Cases").locator("[data-index]").first.wait_for()
        compared = time.perf_counter() - began
        assert page.locator("[data-index]").count() < 100
    with capsys.disabled():
        sys.stdout.write(
            f"\n{RESULTS:,} results in the browser: interactive after {interactive * 1000:.0f} ms,"
            f" filtered after {filtered * 1000:.0f} ms, searched after {searched * 1000:.0f} ms, compared after {compared * 1000:.0f} ms\n"
        )


def _filled(folder: Path) -> Path:
    rows = ({"id": str(n), "input": f"question {n}", "ground_truth": f"question {n}"} for n in range(RESULTS))
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

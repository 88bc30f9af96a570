"""A run with 10,000 results: only few rows are in the document; prints timings."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from browser_helpers import create_stored_run
from live import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from playwright.sync_api import Page

RESULTS = 10_000
DISSIMILAR = 990
"""Number of responses whose similarity falls into one column."""


# true if all visible rows match the pattern and the status shows `found` results, or fewer with a + while loading
SHOWN = """([pattern, found]) => {
    const rows = [...document.querySelectorAll('[role=table][aria-label=Results] [data-index]')];
    const status = document.querySelector('[role=status].num')?.textContent ?? '';
    const [, number, more] = status.match(/^([0-9,]+)([+]?) of/) ?? [];
    if (rows.length === 0 || number === undefined) return false;
    const loaded = Number(number.replaceAll(',', ''));
    const counted = more ? loaded < found : loaded === found;
    return counted && rows.every((row) => new RegExp(pattern).test(row.innerText));
}"""


def test_ten_thousand_results(page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = create_stored_run(tmp_path, RESULTS)
    timings: dict[str, float] = {}
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
        timings["interactive"] = time.perf_counter() - began
        page.get_by_text("of 10,000", exact=False).first.wait_for()
        assert rows.count() < 100

        timings |= _filtered(page, server, run["id"])

        began = time.perf_counter()
        page.goto(f"{server.url}/#/compare?baseline={run['id']}&candidate={run['id']}")
        page.get_by_role("table", name="Cases").locator("[data-index]").first.wait_for()
        timings["compared"] = time.perf_counter() - began
        assert page.locator("[data-index]").count() < 100
    with capsys.disabled():
        text = ", ".join(f"{what} after {seconds * 1000:.0f} ms" for what, seconds in timings.items())
        sys.stdout.write(f"\n{RESULTS:,} results in the browser: {text}\n")


def _filtered(page: Page, server: Server, run: str) -> dict[str, float]:
    """Seconds for each kind of filter, from the action until its rows are visible."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout  # optional dependency

    distributions = page.get_by_role("region", name="Distributions")
    near = distributions.get_by_role("group", name="score by near").get_by_role("button")
    latency = distributions.get_by_role("group", name="latency").get_by_role("button")
    bins = server.data("GET", f"/api/evaluations/{run}/histograms")
    middle = next(column for column, one in enumerate(bins["scores"]["near"]) if one["count"] == DISSIMILAR)
    late = max(
        range(10), key=lambda column: bins["latency_ms"][column]["low"] * (bins["latency_ms"][column]["count"] > 0)
    )
    slow = bins["latency_ms"][late]["count"]
    acts: dict[str, tuple[Callable[[], object], str, int]] = {
        "filtered by outcome": (
            lambda: page.get_by_label("Outcome").select_option("fail"),
            "something else",
            RESULTS,
        ),
        "by text": (lambda: page.get_by_placeholder("Search results").fill("question 4321"), "question 4321", 1),
        "by a column of scores": (near.nth(middle).click, "something else", DISSIMILAR),
        "by a column of latencies": (latency.nth(late).click, "question", slow),
    }
    timings = {}
    for what, (act, pattern, found) in acts.items():
        page.goto(
            "about:blank"
        )  # else only the fragment changes, and the visible rows may be those of the previous filter
        page.goto(f"{server.url}/#/runs/{run}")
        page.wait_for_function(SHOWN, arg=["question", RESULTS])
        latency.first.wait_for()
        began = time.perf_counter()
        act()
        try:
            page.wait_for_function(SHOWN, arg=[pattern, found])
        except PlaywrightTimeout:
            statuses = page.locator("[role=status].num").all_inner_texts()
            raise AssertionError(f"{what}: expected {found}, found {statuses} at {page.url}") from None
        timings[what] = time.perf_counter() - began
    return timings

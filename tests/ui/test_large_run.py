"""10,000 results: few rows are in the page, and how long things take is printed."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from live import Server
from stored_run import stored_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from playwright.sync_api import Page

RESULTS = 10_000
DISSIMILAR = 990
"""Answers whose likeness to what was expected falls into one column."""


# what a filter must show: all rows in sight hold a text, and of all that it finds, as many as were loaded so far
SHOWN = """([pattern, found]) => {
    const rows = [...document.querySelectorAll('[role=table][aria-label=Results] [data-index]')];
    const told = document.querySelector('[role=status].num')?.textContent ?? '';
    const [, number, more] = told.match(/^([0-9,]+)([+]?) of/) ?? [];
    if (rows.length === 0 || number === undefined) return false;
    const loaded = Number(number.replaceAll(',', ''));
    const counted = more ? loaded < found : loaded === found;
    return counted && rows.every((row) => new RegExp(pattern).test(row.innerText));
}"""


def test_ten_thousand_results(page: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = stored_run(tmp_path, RESULTS)
    took: dict[str, float] = {}
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
        took["interactive"] = time.perf_counter() - began
        page.get_by_text("of 10,000", exact=False).first.wait_for()
        assert rows.count() < 100

        took |= _filtered(page, server, run["id"])

        began = time.perf_counter()
        page.goto(f"{server.url}/#/compare?baseline={run['id']}&candidate={run['id']}")
        page.get_by_role("table", name="Cases").locator("[data-index]").first.wait_for()
        took["compared"] = time.perf_counter() - began
        assert page.locator("[data-index]").count() < 100
    with capsys.disabled():
        told = ", ".join(f"{what} after {seconds * 1000:.0f} ms" for what, seconds in took.items())
        sys.stdout.write(f"\n{RESULTS:,} results in the browser: {told}\n")


def _filtered(page: Page, server: Server, run: str) -> dict[str, float]:
    """How long each kind of filter takes, from the act to its rows in sight."""
    from playwright.sync_api import TimeoutError as PlaywrightTimeout  # it may be absent

    distributions = page.get_by_role("region", name="Distributions")
    near = distributions.get_by_role("group", name="score of near").get_by_role("button")
    latency = distributions.get_by_role("group", name="latency").get_by_role("button")
    bins = server.data("GET", f"/api/evaluations/{run}/histograms")
    middle = next(place for place, one in enumerate(bins["scores"]["near"]) if one["count"] == DISSIMILAR)
    late = max(range(10), key=lambda place: bins["latency_ms"][place]["low"] * (bins["latency_ms"][place]["count"] > 0))
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
    took = {}
    for what, (act, pattern, found) in acts.items():
        page.goto(
            "about:blank"
        )  # else only the fragment changes, and the rows in sight may be those of the filter before
        page.goto(f"{server.url}/#/runs/{run}")
        page.wait_for_function(SHOWN, arg=["question", RESULTS])
        latency.first.wait_for()
        began = time.perf_counter()
        act()
        try:
            page.wait_for_function(SHOWN, arg=[pattern, found])
        except PlaywrightTimeout:
            told = page.locator("[role=status].num").all_inner_texts()
            raise AssertionError(f"{what}: {found} awaited, {told} told at {page.url}") from None
        took[what] = time.perf_counter() - began
    return took

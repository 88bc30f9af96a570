"""Baselines in the web interface: set, shown with who and when, and cleared after a confirmation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from browser_helpers import NARROW, page_problems
from live import EchoAgent, Server, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from browser_helpers import BrowserLog
    from playwright.sync_api import Page


def completed_run(server: Server) -> str:
    with EchoAgent() as agent:
        run: str = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 2, prefix="capitals")})["id"]
        assert server.until_ended(run)["status"] == "completed"
    return run


def test_a_baseline_is_set_shown_and_cleared(server: Server, page: Page, browser_log: BrowserLog) -> None:
    run = completed_run(server)
    page.goto(f"{server.url}/#/runs/{run}")
    page.get_by_role("button", name="More actions").click()
    page.get_by_role("menuitem", name="Set as baseline…").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Name").input_value() == "main"
    dialog.get_by_label("Name").fill("not a name")
    dialog.get_by_role("button", name="Set baseline").click()
    dialog.get_by_text("invalid baseline name").wait_for()
    dialog.get_by_label("Name").fill("main")
    dialog.get_by_role("button", name="Set baseline").click()
    dialog.wait_for(state="detached")
    shown = page.locator("[data-baselines]")
    shown.get_by_text("set by local").wait_for()
    assert shown.get_by_text("main", exact=True).is_visible()
    (baseline,) = server.data("GET", "/api/baselines")["baselines"]
    assert (baseline["name"], baseline["evaluation_id"]) == ("main", run)

    page.goto(f"{server.url}/#/runs")
    page.get_by_role("row").get_by_text("baseline main").wait_for()
    page.goto(f"{server.url}/#/new")
    option = page.get_by_label("Compare with").locator("option", has_text=", baseline main")
    option.wait_for(state="attached")
    page.goto(f"{server.url}/#/runs/{run}")
    shown.get_by_role("button", name="Clear the baseline main").click()
    dialog.get_by_role("button", name="Cancel").click()
    assert server.data("GET", "/api/baselines")["count"] == 1
    shown.get_by_role("button", name="Clear the baseline main").click()
    dialog.get_by_role("button", name="Clear", exact=True).click()
    shown.wait_for(state="detached")
    assert server.data("GET", "/api/baselines")["count"] == 0
    # the browser logs the 400 itself
    assert browser_log.without("400") == []
    browser_log.clear()


def test_a_baseline_fits_a_narrow_window(
    server: Server, open_page: Callable[..., Page], browser_log: BrowserLog
) -> None:
    run = completed_run(server)
    for name in ("main", "x" * 100):
        server.data("PUT", f"/api/baselines/{name}", {"evaluation_id": run})
    for place in (f"runs/{run}", "runs"):
        page = open_page(NARROW)
        page.goto(f"{server.url}/#/{place}")
        page.get_by_text("xxxx").first.wait_for()
        assert page_problems(page, place, NARROW[0]) == []
    assert browser_log == []

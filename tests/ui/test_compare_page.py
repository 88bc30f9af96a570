"""The comparison page: incomparable runs are refused, and a missing score never counts as zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from live import EchoAgent, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from browser_helpers import BrowserLog
    from live import Server
    from playwright.sync_api import Page

CASES = 12


def test_runs_with_different_graders_are_compared_only_on_request(page: Page, server: Server) -> None:
    with EchoAgent() as agent:
        suite = suite_of(agent, CASES)
        loose = {**suite, "graders": {"exact": {"kind": "similarity"}}}
        baseline, candidate = _run(server, suite), _run(server, loose)
    page.goto(f"{server.url}/#/compare?baseline={baseline}&candidate={candidate}")
    banner = page.get_by_role("region", name="Comparability")
    banner.get_by_text("These runs are not comparable").wait_for()
    banner.get_by_text("exact").first.wait_for()
    assert page.get_by_role("article").count() == 0
    banner.get_by_role("button", name="Compare anyway").click()
    page.get_by_role("article", name="Grader exact").wait_for()
    assert "force=on" in page.url
    page.get_by_role("button", name="Swap baseline and candidate").click()
    banner.get_by_text("These runs are not comparable").wait_for()
    assert page.url.endswith(f"/compare?baseline={candidate}&candidate={baseline}")


def test_changes_of_cases_are_counted_and_filtered(
    open_page: Callable[..., Page], browser_log: BrowserLog, server: Server
) -> None:
    page = open_page()
    with EchoAgent() as agent:
        baseline = _run(server, suite_of(agent, CASES, wrong=3))
        agent.failing = {"q 11"}
        suite = suite_of(agent, CASES, wrong=3)
        suite["dataset"][0]["ground_truth"] = "q 0"
        suite["dataset"].append({"id": "new", "input": "q new", "ground_truth": "q new"})
        candidate = _run(server, suite)
    page.goto(f"{server.url}/#/compare?baseline={baseline}&candidate={candidate}")
    page.get_by_role("button", name="2 missing in total").click()
    rows = page.get_by_role("table", name="Cases").locator("[data-index]")
    page.get_by_text("2 of 13").wait_for()
    assert sorted(row.split("\n")[0] for row in rows.all_inner_texts()) == ["q 11", "q new"]
    page.get_by_role("button", name="1 edited in total").click()
    page.get_by_text("1 of 13").wait_for()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("Both responses are identical").wait_for()
    page.keyboard.press("Escape")
    drawer.wait_for(state="detached")
    page.get_by_role("button", name="10 same in total").click()
    page.get_by_text("10 of 13").wait_for()
    page.goto(f"{server.url}/#/compare?baseline={baseline}&candidate={candidate}&row=new")
    drawer.get_by_text("This case is not in this run").wait_for()
    # the browser logs the 404 itself
    assert browser_log.without("404") == []


def test_another_run_to_compare_with_is_suggested(page: Page, server: Server) -> None:
    page.goto(f"{server.url}/#/compare")
    page.get_by_role("heading", name="A comparison requires two finished runs").wait_for()
    with EchoAgent() as agent:
        first, second = (_run(server, suite_of(agent, 3, prefix=prefix)) for prefix in ("first", "second"))
    page.goto(f"{server.url}/#/runs/{second}")
    page.get_by_role("main").get_by_role("link", name="Compare").click()
    page.get_by_role("button", name="Compare with first").click()
    page.get_by_role("region", name="Comparability").wait_for()
    assert page.url.endswith(f"baseline={first}&candidate={second}")


def _run(server: Server, suite: dict[str, Any]) -> str:
    run: str = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
    server.until_ended(run)
    return run

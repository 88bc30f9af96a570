"""Selecting two runs in the list and comparing them, by mouse, keyboard and link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from browser_helpers import NARROW, WIDE, page_problems
from live import EchoAgent, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from live import Server
    from playwright.sync_api import Page, Request


def _runs(server: Server, *names: str, cases: int = 4) -> dict[str, str]:
    """Runs of one suite, named `names`, with different responses; the second one has a failed call."""
    found: dict[str, str] = {}
    with EchoAgent() as agent:
        for index, name in enumerate(names):
            suite = {**suite_of(agent, cases), "name": name}
            agent.failing = {"q 3"} if index == 1 else set()
            agent.says = "{}" if index % 2 == 0 else "{}!"
            run: str = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
            server.until_ended(run)
            found[name] = run
    return found


def test_two_runs_are_selected_and_the_older_one_is_the_baseline(page: Page, server: Server) -> None:
    runs = _runs(server, "old", "new", "newest")
    page.goto(f"{server.url}/#/runs")
    bar = page.get_by_role("region", name="Selected runs")
    # not `check`: the box is checked only after the URL has changed
    page.get_by_role("checkbox", name="Select new for comparison").click()
    bar.get_by_text("1 of 2 selected: new").wait_for()
    assert bar.get_by_role("button", name="Compare").is_disabled()
    page.get_by_role("checkbox", name="Select old for comparison").click()
    bar.get_by_text("2 of 2 selected: new and old").wait_for()
    assert page.get_by_role("checkbox", name="Select newest for comparison").is_disabled()
    assert f"sel={runs['new']}" in page.url
    # the selection is in the URL
    page.reload()
    bar.get_by_role("link", name="Compare").click()
    page.get_by_role("region", name="Comparability").wait_for()
    assert page.url.endswith(f"/compare?baseline={runs['old']}&candidate={runs['new']}")
    page.get_by_role("button", name="Swap baseline and candidate").click()
    page.wait_for_url(f"**/compare?baseline={runs['new']}&candidate={runs['old']}")
    page.go_back()
    page.go_back()
    bar.get_by_text("2 of 2 selected").wait_for()
    bar.get_by_role("button", name="Clear").click()
    bar.wait_for(state="detached")
    assert page.url.endswith("/#/runs")


def test_two_runs_are_compared_by_keyboard(page: Page, server: Server) -> None:
    runs = _runs(server, "old", "new")
    page.goto(f"{server.url}/#/runs")
    page.get_by_role("checkbox", name="Select old for comparison").focus()
    page.keyboard.press("Space")
    page.get_by_role("link", name="new", exact=True).focus()
    page.keyboard.press("x")
    page.get_by_text("2 of 2 selected: old and new").wait_for()
    page.get_by_role("region", name="Selected runs").get_by_role("link", name="Compare").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/compare?baseline={runs['old']}&candidate={runs['new']}")


def test_pass_rates_in_the_list_exclude_failed_calls(page: Page, server: Server) -> None:
    _runs(server, "old", "new")
    page.goto(f"{server.url}/#/runs")
    page.get_by_role("row", name="old").get_by_role("list", name="Pass rates").wait_for()
    rates = [
        " ".join(page.get_by_role("row", name=name).get_by_role("list", name="Pass rates").inner_text().split())
        for name in ("old", "new")
    ]
    # one call of the second run failed, so it has three scores
    assert rates == ["100 % of 4", "0 % of 3"]


def test_comparison_rows_need_no_separate_requests(page: Page, server: Server) -> None:
    runs = _runs(server, "old", "new", cases=30)
    requests: list[str] = []

    def note(request: Request) -> None:
        if "/api/" in request.url:
            requests.append(request.url.partition("/api/")[2].partition("?")[0])

    page.on("request", note)
    page.goto(f"{server.url}/#/compare?baseline={runs['old']}&candidate={runs['new']}")
    table = page.get_by_role("table", name="Cases")
    table.get_by_text("q 0!", exact=True).wait_for()
    page.wait_for_load_state("networkidle")
    assert [one for one in requests if "/results" in one] == []
    assert requests.count("evaluations/compare") == 1
    # a failed call is not an empty response
    page.get_by_role("button", name="1 missing in total").click()
    row = table.get_by_role("row", name="q 3")
    row.get_by_text("no response").wait_for()


def test_the_list_and_the_comparison_are_accessible_and_fit(
    open_page: Callable[..., Page], browser_log: list[str], server: Server, artefacts: Path
) -> None:
    runs = _runs(server, "old", "a new agent with quite a long name", "newest", cases=12)
    chosen = list(runs.values())[:2]
    problems: list[str] = []
    for size, theme in ((WIDE, "light"), (NARROW, "dark")):
        page = open_page(size, color_scheme=theme)
        pages = {
            "runs-selected": (f"/runs?sel={','.join(chosen)}", "Selected runs"),
            "comparison-texts": (f"/compare?baseline={chosen[0]}&candidate={chosen[1]}", "Comparability"),
        }
        for name, (path, region) in pages.items():
            page.goto("about:blank")
            page.goto(f"{server.url}/#{path}")
            page.get_by_role("region", name=region).wait_for()
            page.wait_for_load_state("networkidle")
            page.screenshot(path=artefacts / f"{name}-{size[0]}-{theme}.png", full_page=True)
            problems += page_problems(page, f"{name}-{size[0]}", size[0])
    assert problems == []
    assert browser_log == []

"""Two runs are chosen in the list and compared: by mouse, by keyboard, by a link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accessibility import faults_of
from browsing import NARROW, WIDE
from live import EchoAgent, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from live import Server
    from playwright.sync_api import Page, Request


def _runs(server: Server, *names: str, cases: int = 4) -> dict[str, str]:
    """Runs of one suite, the first of which fails more cases than the next."""
    found: dict[str, str] = {}
    with EchoAgent() as agent:
        for place, name in enumerate(names):
            suite = {**suite_of(agent, cases), "name": name}
            agent.failing = {"q 3"} if place == 1 else set()
            agent.says = "{}" if place % 2 == 0 else "{}!"
            run: str = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
            server.until_ended(run)
            found[name] = run
    return found


def test_two_are_chosen_and_the_older_is_the_baseline(page: Page, server: Server) -> None:
    runs = _runs(server, "old", "new", "newest")
    page.goto(f"{server.url}/#/runs")
    bar = page.get_by_role("region", name="Chosen runs")
    # not `check`: the address says what is chosen, a moment after the click
    page.get_by_role("checkbox", name="Choose new to compare").click()
    bar.get_by_text("1 of 2 chosen: new").wait_for()
    assert bar.get_by_role("button", name="Compare").is_disabled()
    page.get_by_role("checkbox", name="Choose old to compare").click()
    bar.get_by_text("2 of 2 chosen: new and old").wait_for()
    assert page.get_by_role("checkbox", name="Choose newest to compare").is_disabled()
    assert f"sel={runs['new']}" in page.url
    # the address says it all
    page.reload()
    bar.get_by_role("link", name="Compare").click()
    page.get_by_role("region", name="Comparability").wait_for()
    assert page.url.endswith(f"/compare?baseline={runs['old']}&candidate={runs['new']}")
    page.get_by_role("button", name="Swap baseline and candidate").click()
    page.wait_for_url(f"**/compare?baseline={runs['new']}&candidate={runs['old']}")
    page.go_back()
    page.go_back()
    bar.get_by_text("2 of 2 chosen").wait_for()
    bar.get_by_role("button", name="Clear").click()
    bar.wait_for(state="detached")
    assert page.url.endswith("/#/runs")


def test_the_keyboard_is_enough(page: Page, server: Server) -> None:
    runs = _runs(server, "old", "new")
    page.goto(f"{server.url}/#/runs")
    page.get_by_role("checkbox", name="Choose old to compare").focus()
    page.keyboard.press("Space")
    page.get_by_role("link", name="new", exact=True).focus()
    page.keyboard.press("x")
    page.get_by_text("2 of 2 chosen: old and new").wait_for()
    page.get_by_role("region", name="Chosen runs").get_by_role("link", name="Compare").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/compare?baseline={runs['old']}&candidate={runs['new']}")


def test_the_list_has_pass_rates_and_a_failed_call_is_not_in_them(page: Page, server: Server) -> None:
    _runs(server, "old", "new")
    page.goto(f"{server.url}/#/runs")
    page.get_by_role("row", name="old").get_by_role("list", name="Pass rates").wait_for()
    rates = [
        " ".join(page.get_by_role("row", name=name).get_by_role("list", name="Pass rates").inner_text().split())
        for name in ("old", "new")
    ]
    # of the second run, one call failed: it has three scores
    assert rates == ["100 % of 4", "0 % of 3"]


def test_the_rows_of_a_comparison_need_no_request_of_their_own(page: Page, server: Server) -> None:
    runs = _runs(server, "old", "new", cases=30)
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/api/" in request.url:
            asked.append(request.url.partition("/api/")[2].partition("?")[0])

    page.on("request", note)
    page.goto(f"{server.url}/#/compare?baseline={runs['old']}&candidate={runs['new']}")
    table = page.get_by_role("table", name="Cases")
    table.get_by_text("q 0!", exact=True).wait_for()
    page.wait_for_load_state("networkidle")
    assert [one for one in asked if "/results" in one] == []
    assert asked.count("evaluations/compare") == 1
    # the failed call is no empty answer
    page.get_by_role("button", name="1 missing in all").click()
    row = table.get_by_role("row", name="q 3")
    row.get_by_text("no answer").wait_for()


def test_the_list_and_the_comparison_are_accessible_and_fit(
    open_page: Callable[..., Page], complaints: list[str], server: Server, artefacts: Path
) -> None:
    runs = _runs(server, "old", "a new agent with quite a long name", "newest", cases=12)
    chosen = list(runs.values())[:2]
    faults: list[str] = []
    for size, theme in ((WIDE, "light"), (NARROW, "dark")):
        page = open_page(size, color_scheme=theme)
        places = {
            "runs-chosen": (f"/runs?sel={','.join(chosen)}", "Chosen runs"),
            "comparison-texts": (f"/compare?baseline={chosen[0]}&candidate={chosen[1]}", "Comparability"),
        }
        for name, (place, region) in places.items():
            page.goto("about:blank")
            page.goto(f"{server.url}/#{place}")
            page.get_by_role("region", name=region).wait_for()
            page.wait_for_load_state("networkidle")
            page.screenshot(path=artefacts / f"{name}-{size[0]}-{theme}.png", full_page=True)
            faults += faults_of(page, f"{name}-{size[0]}", size[0])
    assert faults == []
    assert complaints == []

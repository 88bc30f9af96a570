"""The main path of a user: from the first test case to the comparison of two runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from live import Server
    from playwright.sync_api import Page

CAPITALS = {"France": "Paris", "Kenya": "Nairobi", "Australia": "Canberra", "Peru": "Lima"}


def test_cases_are_created_run_filtered_compared_and_exported(
    page: Page, server: Server, agent: str, tmp_path: Path
) -> None:
    page.goto(f"{server.url}/#/runs")
    page.get_by_role("heading", name="No runs yet").wait_for()
    _create_cases(page)
    first = _evaluate(page, agent, "large", body=None)
    _look_at_failures(page)
    second = _evaluate(page, agent, "small", body='{"input": "{{input}}", "model": "small"}')
    page.get_by_role("link", name="Compare", exact=True).last.click()
    page.get_by_label("Baseline", exact=True).select_option(first)
    assert f"baseline={first}" in page.url
    assert f"candidate={second}" in page.url
    _compare(page)
    _export(page, server, second, tmp_path)


def _create_cases(page: Page) -> None:
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Test cases").click()
    for number, (country, city) in enumerate(CAPITALS.items()):
        page.get_by_role("button", name="Create a test case" if number == 0 else "New test case").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Input").fill(f"What is the capital of {country}?")
        dialog.get_by_label("Expected output").fill(f"The capital of {country} is {city}.")
        dialog.get_by_label("Tags").fill("capitals")
        dialog.get_by_role("button", name="Create").click()
        dialog.wait_for(state="detached")
    assert page.locator("table tbody tr").count() == len(CAPITALS)


def _evaluate(page: Page, agent: str, name: str, body: str | None) -> str:
    """Starts a run with the form, waits for its end without a reload, and returns its id."""
    page.get_by_role("navigation", name="Main").get_by_role("link", name="New evaluation").click()
    page.get_by_label("Endpoint").fill(agent)
    if body is not None:
        page.get_by_text("Request and response format").click()
        page.get_by_role("textbox", name="Request body").fill(body)
    page.get_by_label("Add a grader").select_option("string-match")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_role("button", name="Start evaluation").click()
    page.wait_for_url("**/#/runs/**")
    page.get_by_text("completed", exact=True).wait_for()
    page.get_by_text(f"of {len(CAPITALS)}").first.wait_for()
    return page.url.split("/runs/")[1].split("?")[0]


def _look_at_failures(page: Page) -> None:
    page.get_by_label("Outcome").select_option("pass")
    page.get_by_role("row", name="Nairobi").wait_for()
    assert "outcome=pass" in page.url
    page.get_by_role("row", name="Nairobi").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_role("region", name="Expected output").get_by_text("The capital of Kenya is Nairobi.").wait_for()
    drawer.get_by_role("button", name="Add label for String match").click()
    drawer.get_by_label("Pass", exact=True).check()
    drawer.get_by_label("Reason (required)").fill("Nairobi it is.")
    drawer.get_by_role("button", name="Save label").click()
    drawer.get_by_text("agrees with the grader").wait_for()
    page.keyboard.press("Escape")
    drawer.wait_for(state="detached")


def _compare(page: Page) -> None:
    page.get_by_text("These runs are comparable").wait_for()
    card = page.get_by_role("article", name="Grader string-match")
    card.get_by_role("button", name="worse by string-match").click()
    rows = page.get_by_role("table", name="Cases").locator("[data-index]")
    page.get_by_role("row", name="Kenya").wait_for()
    assert "show=worse" in page.url
    changed = rows.count()
    assert 0 < changed < len(CAPITALS)
    page.get_by_role("row", name="Kenya").click()
    drawer = page.get_by_role("dialog")
    drawer.get_by_role("region", name="Changes from baseline to candidate").locator("del").first.wait_for()
    drawer.get_by_role("link", name="Open baseline result").wait_for()
    shared = page.url
    page.goto("about:blank")
    page.goto(shared)
    page.get_by_role("dialog").get_by_text("What is the capital of Kenya?").wait_for()
    page.keyboard.press("Escape")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as Markdown").click()
    page.get_by_text("Copied as Markdown").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("### `small` against `large`\n")
    assert "| `string-match` |" in copied


def _export(page: Page, server: Server, run: str, tmp_path: Path) -> None:
    page.goto(f"{server.url}/#/runs/{run}")
    page.get_by_role("button", name="Export this run").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="JSON Lines").click()
    file = tmp_path / "run.jsonl"
    download.value.save_as(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len([line for line in lines if "Kenya" in json.dumps(line)]) == 1

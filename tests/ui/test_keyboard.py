"""The interface is usable without a mouse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from live import EchoAgent, suite_of

if TYPE_CHECKING:
    from live import Server
    from playwright.sync_api import Page


def test_everything_is_reachable_by_keyboard(page: Page, server: Server) -> None:
    with EchoAgent() as agent:
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 5)})["id"]
        server.until_ended(run)
    page.goto(f"{server.url}/#/runs")
    page.get_by_role("link", name="q", exact=True).wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keyboard shortcuts").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="detached")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/#/runs/{run}")
    rows = page.get_by_role("table", name="Results").locator("[data-index]")
    rows.first.wait_for()
    page.keyboard.press("j")
    page.wait_for_function("document.activeElement?.getAttribute('data-index') === '0'")
    page.keyboard.press("Enter")
    drawer = page.get_by_role("dialog")
    drawer.get_by_text("1 of 5").wait_for()
    page.keyboard.press("j")
    drawer.get_by_text("2 of 5").wait_for()
    page.keyboard.press("k")
    drawer.get_by_text("1 of 5").wait_for()
    page.keyboard.press("Escape")
    drawer.wait_for(state="detached")
    page.keyboard.press("/")
    page.keyboard.type("j k ?")
    assert page.evaluate("document.activeElement.value") == "j k ?"
    page.keyboard.press("Control+k")
    page.get_by_role("combobox", name="Search pages and runs").fill("graders")
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name="Graders").wait_for()

"""The secrets page: secrets are stored, replaced and deleted, and their values never appear on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser_helpers import NARROW, WIDE, page_problems
from live import Server, new_key, with_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from browser_helpers import BrowserLog
    from playwright.sync_api import Browser, Page

VALUE = "Bearer very-hidden-value"


@pytest.fixture
def service(browser: Browser, tmp_path: Path) -> Iterator[Server]:
    """A service that can store secrets."""
    with Server(tmp_path / "store.db", *with_keys(tmp_path)) as server:
        yield server


def fill(page: Page, **fields: str) -> None:
    for label, text in fields.items():
        page.get_by_role("dialog").get_by_label(label).fill(text)


def test_a_secret_is_stored_replaced_and_deleted(service: Server, page: Page, browser_log: BrowserLog) -> None:
    page.goto(service.url)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Secrets").click()
    page.get_by_role("heading", name="No secrets yet").wait_for()
    page.get_by_role("button", name="New secret").click()
    fill(page, Name="AGENT_TOKEN", Value=VALUE, Hosts="https://agent.test")
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Value").get_attribute("type") == "password"
    assert page_problems(page, "form", WIDE[0]) == []
    dialog.get_by_role("button", name="Save").click()
    # the server's message, in the form
    dialog.get_by_role("alert").get_by_text("write host or host:port").wait_for()
    assert VALUE not in page.content()
    fill(page, Hosts="agent.test\nother.test:8443")
    dialog.get_by_label("Allow every API key of scope run").check()
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")
    row = page.get_by_role("row", name="AGENT_TOKEN")
    row.get_by_text("agent.test, other.test:8443").wait_for()
    (stored,) = service.data("GET", "/api/secrets")["secrets"]
    assert (stored["hosts"], stored["scopes"]) == (["agent.test", "other.test:8443"], ["admin", "run"])

    row.get_by_role("button", name="Replace").click()
    assert dialog.get_by_label("Value").input_value() == ""
    assert dialog.get_by_label("Hosts").input_value() == "agent.test\nother.test:8443"
    fill(page, Value=VALUE, Hosts="agent.test")
    dialog.get_by_label("Location").select_option("query")
    dialog.get_by_role("button", name="Replace").click()
    dialog.wait_for(state="detached")
    row.get_by_text("https, query").wait_for()
    assert VALUE not in page.content()
    browser_state = page.evaluate(
        "JSON.stringify([{...localStorage}, {...sessionStorage}, location.href, history.state])"
    )
    assert "hidden" not in browser_state

    row.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    page.get_by_role("heading", name="No secrets yet").wait_for()
    assert service.data("GET", "/api/secrets")["secrets"] == []
    # the browser logs the 400 itself
    assert browser_log.without("400") == []
    browser_log.clear()


def test_the_list_fits_a_narrow_window(
    service: Server, open_page: Callable[..., Page], browser_log: BrowserLog
) -> None:
    hosts = ["a-long-name-of-an-agent.example.com:8443", "another.example.com"]
    service.data("PUT", "/api/secrets/A_RATHER_LONG_NAME_OF_A_SECRET", {"value": VALUE, "hosts": hosts})
    page = open_page(NARROW, color_scheme="dark")
    page.goto(f"{service.url}/#/secrets")
    page.get_by_role("button", name="Delete A_RATHER_LONG").wait_for()
    assert page_problems(page, "secrets", NARROW[0]) == []
    assert browser_log == []


def test_only_an_admin_sees_the_page(
    browser: Browser, open_page: Callable[..., Page], browser_log: BrowserLog, tmp_path: Path
) -> None:
    store = tmp_path / "store.db"
    _, headers = new_key(store, "run")
    with Server(store, *with_keys(tmp_path)) as server:
        page = open_page()
        page.goto(f"{server.url}/#/secrets")
        page.get_by_label("API key").fill(headers["Authorization"].removeprefix("Bearer "))
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").get_by_text("Your API key does not allow this").wait_for()
        assert page.get_by_role("link", name="Secrets").count() == 0
    assert browser_log.without("401", "403") == []

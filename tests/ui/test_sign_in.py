"""Signing in with an API key: the requested page follows, and signing out ends the session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from live import Server

from gradeline_command import COMMAND, run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from browser_helpers import BrowserLog
    from playwright.sync_api import Browser, Page


def test_signing_in_and_out(
    browser: Browser, open_page: Callable[..., Page], browser_log: BrowserLog, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the tests, long enough for anybody")
    store = str(tmp_path / "store.db")
    options = ["--secret-key-file", str(secret)]
    created = run_command([COMMAND, "keys", "create", "--scope", "run", "--store", store, *options], text=True)
    key = next(word for word in created.stdout.split() if word.startswith("gl_"))
    with Server(store, *options) as server:
        page = open_page()
        page.goto(f"{server.url}/#/cases")
        page.get_by_role("heading", name="Sign in to gradeline").wait_for()
        page.get_by_label("API key").fill("gl_000000000000_" + "0" * 64 + "_00000000")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").wait_for()
        page.get_by_label("API key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="No test cases yet").wait_for()
        _create_case(page)
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert key not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        page.reload()
        page.get_by_text("a question for people with a key").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in to gradeline").wait_for()
        page.reload()
        page.get_by_role("heading", name="Sign in to gradeline").wait_for()
    # the browser logs every 401 itself
    assert browser_log.without("401") == []


def _create_case(page: Page) -> None:
    """A write, which requires the CSRF token of the session."""
    page.get_by_role("button", name="Create a test case").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Input").fill("a question for people with a key")
    dialog.get_by_label("Expected output").fill("an answer")
    dialog.get_by_role("button", name="Create").click()
    dialog.wait_for(state="detached")

"""Keys: the page asks for one, keeps where somebody wanted to go, and forgets it on the way out."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from live import Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from browsing import Complaints
    from playwright.sync_api import Browser, Page


def test_signing_in_and_out(
    browser: Browser, open_page: Callable[..., Page], complaints: Complaints, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the tests, long enough for anybody")
    store = str(tmp_path / "store.db")
    options = ["--secret-key-file", str(secret)]
    command = [sys.executable, "-m", "gradeline", "keys", "create", "--scope", "run", "--store", store, *options]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    key = next(word for word in made.stdout.split() if word.startswith("gl_"))
    with Server(store, *options) as server:
        page = open_page()
        page.goto(f"{server.url}/#/cases")
        page.get_by_role("heading", name="Sign in to gradeline").wait_for()
        page.get_by_label("Key").fill("gl_000000000000_" + "0" * 64 + "_00000000")
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("alert").wait_for()
        page.get_by_label("Key").fill(key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("heading", name="No test cases yet").wait_for()
        _write_one(page)
        (cookie,) = page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert key not in page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])")
        page.reload()
        page.get_by_text("a question for people with a key").wait_for()
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in to gradeline").wait_for()
        page.reload()
        page.get_by_role("heading", name="Sign in to gradeline").wait_for()
    # the browser tells of every 401 by itself
    assert complaints.without("401") == []


def _write_one(page: Page) -> None:
    """A write, which needs the token of the session."""
    page.get_by_role("button", name="Write the first one").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Input").fill("a question for people with a key")
    dialog.get_by_label("Expected output").fill("an answer")
    dialog.get_by_role("button", name="Create").click()
    dialog.wait_for(state="detached")

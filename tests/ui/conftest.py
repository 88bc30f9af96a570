"""Fixtures for a real browser with a real service. If something is missing, the skip reason names it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import gradeline

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

sys.path.insert(0, str(Path(__file__).parent.parent / "service"))
sys.path.insert(0, str(Path(__file__).parent))

from browser_helpers import ROOT, WIDE, BrowserLog
from live import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
TIMEOUT_MS = 20_000


def _missing_requirement() -> str | None:
    if CHROMIUM is None:
        return "no Chromium on the PATH; install the package chromium"
    if find_spec("playwright") is None:
        return "no playwright; run: make setup"
    if not (Path(gradeline.__file__).parent / "web" / "index.html").is_file():
        return "the web interface is not built; run: make ui"
    return None


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Module-scoped: while Playwright runs, nothing else in this process can run an event loop."""
    if reason := _missing_requirement():
        pytest.skip(reason)
    # optional dependency
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


OpenPage = Callable[..., "Page"]


@pytest.fixture
def browser_log() -> BrowserLog:
    return BrowserLog()


@pytest.fixture
def open_page(browser: Browser, browser_log: BrowserLog) -> Iterator[OpenPage]:
    """Opens browser windows that report to `browser_log`."""
    contexts = []

    def open_window(size: tuple[int, int] = WIDE, **options: Any) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, locale="en-GB", reduced_motion="reduce", **options
        )
        contexts.append(context)
        context.set_default_timeout(TIMEOUT_MS)
        page = context.new_page()
        page.on(
            "console",
            lambda message: browser_log.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: browser_log.append(str(error)))
        return page

    yield open_window
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: OpenPage, browser_log: BrowserLog) -> Iterator[Page]:
    """A wide window; the browser log must be empty at the end."""
    yield open_page()
    assert browser_log == []


@pytest.fixture
def server(browser: Browser, tmp_path: Path) -> Iterator[Server]:
    """A service with an empty store. Depends on `browser`, so that a skipped test starts no service."""
    with Server(tmp_path / "store.db") as running:
        yield running


@contextmanager
def demo_agent() -> Iterator[str]:
    """Runs the demo agent; yields its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gradeline.demo.agent", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def agent() -> Iterator[str]:
    with demo_agent() as url:
        yield url


@pytest.fixture(scope="session")
def artefacts() -> Path:
    """Folder for screenshots."""
    folder = Path(os.environ.get("GRADELINE_ARTEFACTS") or ROOT / ".artefacts") / "ui"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")
    return folder

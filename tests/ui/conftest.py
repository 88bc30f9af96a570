"""A real browser before a real service. What this machine lacks for that is named in the reason of the skip."""

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

from browsing import ROOT, WIDE, Complaints
from live import Server

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 20_000


def _lacking() -> str | None:
    if CHROMIUM is None:
        return "no Chromium on the PATH; install the package chromium"
    if find_spec("playwright") is None:
        return "no playwright; run: make setup"
    if not (Path(gradeline.__file__).parent / "web" / "index.html").is_file():
        return "the web interface is not built; run: make ui"
    return None


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Ended with its module: while it is there, nothing else in this process can run an event loop."""
    if reason := _lacking():
        pytest.skip(reason)
    # it may be absent
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


OpenPage = Callable[..., "Page"]


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def open_page(browser: Browser, complaints: Complaints) -> Iterator[OpenPage]:
    """Opens a window of a size; afterwards nothing that a test did not expect may have been complained of."""
    contexts = []

    def opened(size: tuple[int, int] = WIDE, **options: Any) -> Page:
        context = browser.new_context(
            viewport={"width": size[0], "height": size[1]}, locale="en-GB", reduced_motion="reduce", **options
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def page(open_page: OpenPage, complaints: Complaints) -> Iterator[Page]:
    """A wide window in which nothing may be complained of."""
    yield open_page()
    assert complaints == []


@pytest.fixture
def server(browser: Browser, tmp_path: Path) -> Iterator[Server]:
    """A service of the test's own, with nothing in it. (After the browser: a skip must not start one.)"""
    with Server(tmp_path / "store.db") as running:
        yield running


@contextmanager
def demo_agent() -> Iterator[str]:
    """The address of the demo agent."""
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
    """Where pictures are kept to be looked at."""
    folder = Path(os.environ.get("GRADELINE_ARTEFACTS") or ROOT / ".artefacts") / "ui"
    folder.mkdir(parents=True, exist_ok=True)
    (folder.parent / ".gitignore").write_text("*\n")
    return folder

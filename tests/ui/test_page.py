"""The built page as served by the service, in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

import gradeline

COMMAND = str(Path(sys.executable).with_name("gradeline"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WEB = Path(gradeline.__file__).parent / "web"
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"> \x1b[31m \u202eevil"

pytestmark = pytest.mark.skipif(
    not (WEB / "index.html").is_file(), reason="the web interface is not built; run: make ui"
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    server = subprocess.Popen(
        [COMMAND, "serve", "--port", "0", "--store", str(folder / "store.db"), "--log-level", "error"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0].rstrip("/")
    finally:
        server.terminate()
        server.communicate(timeout=20)


def test_the_page_has_nothing_inline_and_loads_nothing_from_other_hosts() -> None:
    page = (WEB / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", page) == []
    assert "<style" not in page
    assert [link for link in re.findall(r'(?:src|href)="([^"]+)"', page) if not link.startswith("./assets/")] == []
    styles = "".join(path.read_text() for path in (WEB / "assets").glob("*.css"))
    assert re.findall(r"url\((?!['\"]?\.?/?assets)[^)]*\)|@import", styles) == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH; install the package chromium")
def test_hostile_text_stays_text_under_the_content_security_policy(address: str, tmp_path: Path) -> None:
    body = json.dumps({"input": HOSTILE, "expected_output": HOSTILE, "tags": ["hostile"]}).encode()
    with urlopen(Request(f"{address}/api/test-cases", body, {"Content-Type": "application/json"})) as answer:
        assert answer.status == 201
    dom, log = _shown(f"{address}/#/cases", tmp_path)
    assert "CONSOLE" not in log
    assert "<title>Test cases · gradeline</title>" in dom
    assert "&lt;script&gt;document.title='owned'&lt;/script&gt;" in dom
    assert ">ESC</span>" in dom
    assert ">RLO</span>evil" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH; install the package chromium")
def test_an_empty_list_suggests_the_next_step(address: str, tmp_path: Path) -> None:
    dom, log = _shown(f"{address}/#/runs", tmp_path)
    assert "CONSOLE" not in log
    assert "No runs yet" in dom
    assert "Start an evaluation" in dom


def _shown(url: str, folder: Path) -> tuple[str, str]:
    """The DOM after all requests, and the log of the browser."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--virtual-time-budget=10000",
            f"--user-data-dir={folder / 'profile'}",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout, done.stderr

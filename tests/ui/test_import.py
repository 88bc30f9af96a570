"""Importing test cases: previewed before sending, and refused as a whole if a row is invalid."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from browser_helpers import BrowserLog
    from live import Server
    from playwright.sync_api import Locator, Page

GOOD = [{"input": f"question {n}", "expected_output": f"answer {n}", "tags": ["imported"]} for n in range(3)]
BAD = [*GOOD, {"input": "", "expected_output": "x"}, {"input": "y", "expected_output": "z", "tags": ["no spaces!"]}]


def test_invalid_rows_are_listed_by_line_and_nothing_is_stored(page: Page, server: Server) -> None:
    dialog = _chosen(page, server, "bad.jsonl", "\n".join(map(json.dumps, [*BAD, *GOOD])) + "\nnot json\n")
    dialog.get_by_text("problems in this file").wait_for()
    text = dialog.inner_text()
    for line in (4, 5, 9):
        assert f"{line}" in text
    assert "no spaces!" in text
    assert dialog.get_by_role("button", name="Import").is_disabled()
    assert server.data("GET", "/api/test-cases")["total"] == 0


def test_errors_found_only_by_the_service_are_shown(
    open_page: Callable[..., Page], browser_log: BrowserLog, server: Server
) -> None:
    page = open_page()
    # only the service checks this rule
    rows = [*GOOD, {"input": "half \ud800 a character", "expected_output": "x"}]
    dialog = _chosen(page, server, "late.jsonl", "\n".join(map(json.dumps, rows)))
    dialog.get_by_role("button", name="Import 4 cases").click()
    dialog.get_by_text("nothing was imported").wait_for()
    assert server.data("GET", "/api/test-cases")["total"] == 0
    # the browser logs the 400 itself
    assert browser_log.without("400") == []


def test_a_valid_file_is_imported(page: Page, server: Server) -> None:
    dialog = _chosen(page, server, "good.csv", 'input,expected_output,tags\nq1,a1,x;y\n"q\n2",\'=a2,\n')
    dialog.get_by_role("button", name="Import 2 cases").click()
    dialog.wait_for(state="detached")
    page.get_by_role("row", name="q1").wait_for()
    cases = server.data("GET", "/api/test-cases")["test_cases"]
    assert [(case["input"], case["expected_output"], case["tags"]) for case in cases] == [
        ("q1", "a1", ["x", "y"]),
        ("q\n2", "=a2", []),
    ]


def _chosen(page: Page, server: Server, name: str, text: str) -> Locator:
    page.goto(f"{server.url}/#/cases?open=import")
    dialog = page.get_by_role("dialog")
    mime = "text/csv" if name.endswith("csv") else "application/x-ndjson"
    dialog.get_by_label("File").set_input_files({"name": name, "mimeType": mime, "buffer": text.encode()})
    return dialog

"""The checks of a case in its form: entered, refused with the service's reason, shown again and removed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from browser_helpers import BrowserLog
    from live import Server
    from playwright.sync_api import Locator, Page

CHECKS = [{"condition": "contains", "value": "Paris", "metric": "facts"}]
CASE = {"input": "What is the capital of France?", "expected_output": "Paris", "description": "d", "tags": ["eu"]}


def test_invalid_checks_are_refused_in_the_form_with_the_reason(
    open_page: Callable[..., Page], browser_log: BrowserLog, server: Server
) -> None:
    page = open_page()
    page.goto(f"{server.url}/#/cases?open=new")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Input").fill(CASE["input"])
    dialog.get_by_label("Expected output").fill("Paris")
    checks = dialog.get_by_label("Checks")
    assert checks.get_attribute("placeholder") == '[{"condition": "contains", "value": "Paris"}]'
    checks.fill('[{"condition": "contains"')
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_text("is not valid JSON").wait_for()
    assert browser_log == []
    # only the service knows the conditions
    checks.fill('[{"condition": "contain", "value": "Paris"}]')
    dialog.get_by_role("button", name="Create").click()
    dialog.get_by_text("did you mean 'contains'?").wait_for()
    assert checks.get_attribute("aria-invalid") == "true"
    assert "checks[0].condition" in dialog.inner_text()
    assert server.data("GET", "/api/test-cases")["total"] == 0
    checks.fill(json.dumps(CHECKS))
    dialog.get_by_role("button", name="Create").click()
    dialog.wait_for(state="detached")
    (case,) = server.data("GET", "/api/test-cases")["test_cases"]
    assert case["checks"] == CHECKS
    # the browser logs the 400 itself
    assert browser_log.without("400") == []


def test_stored_checks_are_shown_kept_and_removed(page: Page, server: Server) -> None:
    case = server.data("POST", "/api/test-cases", {**CASE, "checks": CHECKS})["id"]
    dialog = _opened(page, server, case)
    assert json.loads(dialog.get_by_label("Checks").input_value()) == CHECKS
    dialog.get_by_label("Description").fill("another one")
    _save(dialog)
    stored = server.data("GET", f"/api/test-cases/{case}")
    assert (stored["description"], stored["checks"]) == ("another one", CHECKS)
    dialog = _opened(page, server, case)
    dialog.get_by_label("Checks").fill("")
    _save(dialog)
    assert server.data("GET", f"/api/test-cases/{case}")["checks"] is None


def _opened(page: Page, server: Server, case: str) -> Locator:
    page.goto("about:blank")
    page.goto(f"{server.url}/#/cases?open={case}")
    return page.get_by_role("dialog")


def _save(dialog: Locator) -> None:
    dialog.get_by_role("button", name="Save").click()
    dialog.wait_for(state="detached")

"""Early stopping in the web interface, and warnings about near-duplicate cases."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "service"))

from live import EchoAgent

if TYPE_CHECKING:
    from browser_helpers import BrowserLog
    from live import Server
    from playwright.sync_api import Page

CASES = 120
WORDS = "ash birch cedar elm fir hazel larch maple oak pine rowan willow".split()


@pytest.fixture
def echo() -> Iterator[EchoAgent]:
    with EchoAgent() as started:
        yield started


def _cases(server: Server, texts: list[str]) -> list[str]:
    return [
        server.data("POST", "/api/test-cases", {"input": text, "expected_output": text, "tags": ["trees"]})["id"]
        for text in texts
    ]


def _different(count: int) -> list[str]:
    return [f"{WORDS[number % 12]} {number * number} {WORDS[number // 12]}" for number in range(count)]


def _run(server: Server, agent: EchoAgent, ids: list[str], **more: Any) -> str:
    body = {"test_case_ids": ids, "agent_endpoint_url": agent.url, "grader_ids": ["exact_match"], **more}
    run: str = server.data("POST", "/api/evaluations", body)["id"]
    server.until_ended(run)
    return run


def _fill_form(page: Page, server: Server, agent: EchoAgent, baseline: str) -> None:
    page.goto(f"{server.url}/#/new?tag=trees&graders=exact_match")
    page.get_by_label("Endpoint").fill(agent.url)
    box = page.get_by_role("checkbox", name="Stop early")
    assert box.is_disabled()
    page.get_by_text("Choose a run to compare with first").wait_for()
    page.get_by_label("Compare with").select_option(baseline)
    box.check()
    assert "early=on" in page.url


def test_a_run_stops_early_and_is_completed_later(page: Page, server: Server, echo: EchoAgent, artefacts: Path) -> None:
    ids = _cases(server, _different(CASES))
    baseline = _run(server, echo, ids, name="main")
    echo.says = "not {}"
    _fill_form(page, server, echo, baseline)
    page.get_by_text(f"at most {CASES} calls to the agent").wait_for()
    page.screenshot(path=artefacts / "stop-early-form.png", full_page=True)
    page.get_by_role("button", name="Start evaluation").click()
    page.wait_for_url("**/#/runs/**")
    page.get_by_text("completed", exact=True).wait_for()
    run = page.url.split("/runs/")[1].split("?")[0]
    server.until_ended(run)  # calls in flight at the decision count until then
    ended = server.data("GET", f"/api/evaluations/{run}")
    saved = ended["calls_saved"]
    assert (ended["status"], saved > 0) == ("completed", True), ended
    facts = page.get_by_role("definition").filter(
        has_text=re.compile(f"^after 6 of {CASES} cases; {saved} calls saved$")
    )
    facts.wait_for()
    page.get_by_text("Compared with its baseline: worse").wait_for()
    page.screenshot(path=artefacts / "stop-early-run.png", full_page=True)

    button = page.get_by_role("button", name=f"Run the other {saved} cases")
    button.click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("The verdict over all cases then replaces this one").wait_for()
    page.screenshot(path=artefacts / "stop-early-confirm.png")
    dialog.get_by_role("button", name="Cancel").click()
    dialog.wait_for(state="detached")
    assert server.data("GET", f"/api/evaluations/{run}")["stopped"] is not None
    button.click()
    page.get_by_role("dialog").get_by_role("button", name=f"Run {saved} cases").click()
    page.get_by_text(f"all {CASES} cases have run: this verdict replaces the one after 6 of them").wait_for()
    button.wait_for(state="detached")
    facts.wait_for(state="detached")
    assert echo.total == 2 * CASES
    page.screenshot(path=artefacts / "stop-early-finished.png", full_page=True)


def test_a_validation_error_is_shown_at_its_field(
    open_page: Callable[..., Page], browser_log: BrowserLog, server: Server, echo: EchoAgent, artefacts: Path
) -> None:
    page = open_page()
    ids = _cases(server, ["one", "two"])
    other = {"name": "other", "dataset": [{"id": "x", "input": "x", "ground_truth": "x"}]}
    suite = {**other, "target": {"kind": "http", "url": echo.url}, "graders": {"exact_match": {"kind": "exact_match"}}}
    baseline = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
    server.until_ended(baseline)
    assert len(ids) == 2
    _fill_form(page, server, echo, baseline)
    page.get_by_role("button", name="Start evaluation").click()
    box = page.get_by_role("checkbox", name="Stop early")
    page.get_by_role("alert").get_by_text("has no case in common with this run").wait_for()
    note = page.locator(f"[id='{(box.get_attribute('aria-describedby') or '').split()[-1]}']")
    assert "has no case in common with this run" in note.inner_text()
    assert box.get_attribute("aria-invalid") == "true"
    page.screenshot(path=artefacts / "stop-early-refused.png", full_page=True)
    box.uncheck()
    note.wait_for(state="detached")
    assert page.get_by_role("alert").count() == 0
    assert browser_log.without("400") == []


def test_a_run_with_few_cases_warns_that_it_runs_all(page: Page, server: Server, echo: EchoAgent) -> None:
    ids = _cases(server, _different(12))
    baseline = _run(server, echo, ids)
    echo.may_answer.clear()
    _fill_form(page, server, echo, baseline)
    page.get_by_role("button", name="Start evaluation").click()
    page.get_by_role("region", name="Warnings").get_by_text("12 cases in common with the baseline are fewer").wait_for()
    echo.may_answer.set()
    page.get_by_text("all cases were run, without an early stop: 12 cases in common").wait_for()


def test_warnings_about_near_duplicates_are_shown(page: Page, server: Server, echo: EchoAgent, artefacts: Path) -> None:
    sent = [{"input": f"What is the capital of France? ({n})", "expected_output": "Paris"} for n in range(12)]
    ids = [server.data("POST", "/api/test-cases", one)["id"] for one in sent]
    first, second = _run(server, echo, ids), _run(server, echo, ids)
    warning = "12 of 12 cases are nearly the same as another with the same ground truth"
    page.goto(f"{server.url}/#/runs/{first}")
    page.get_by_role("region", name="Warnings").get_by_text(warning).wait_for()
    page.screenshot(path=artefacts / "warnings-run.png", full_page=True)
    page.goto(f"{server.url}/#/compare?baseline={first}&candidate={second}")
    page.get_by_role("region", name="Warnings").get_by_text(f"baseline and candidate: dataset: {warning}").wait_for()
    page.screenshot(path=artefacts / "warnings-compare.png", full_page=True)

"""Test calls to the agent before a run: the request, the response, what was parsed; and the plan of the run."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from browser_helpers import NARROW, WIDE, page_problems
from live import EchoAgent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from live import Server
    from playwright.sync_api import Page


def test_a_test_call_shows_request_and_response_and_starts_no_run(page: Page, server: Server) -> None:
    with EchoAgent() as agent:
        page.goto(f"{server.url}/#/new")
        page.get_by_label("Endpoint").fill(agent.url)
        page.get_by_label("Test input").fill("What is <b>new</b>?")
        page.keyboard.press("Enter")
        read = page.get_by_role("region", name="Parsed response")
        read.get_by_text("What is <b>new</b>?").wait_for()
        sent = page.get_by_role("region", name="Request", exact=True).inner_text()
        assert sent.startswith(f"POST {agent.url}\n")
        assert json.loads(sent.partition("\n\n")[2]) == {"input": "What is <b>new</b>?"}
        raw = page.get_by_role("region", name="Raw response").inner_text()
        assert "Content-Type: application/json" in raw
        assert json.loads(raw.partition("\n\n")[2]) == {"response": "What is <b>new</b>?"}
        assert agent.total == 1
    page.get_by_label("Endpoint").fill(f"{agent.url}/elsewhere")
    page.get_by_text("The form has changed since this call; send it again.").wait_for()
    assert server.data("GET", "/api/evaluations")["total"] == 0
    assert page.url.split("#")[1].startswith("/new")


def test_errors_of_a_test_call_are_shown(
    open_page: Callable[..., Page], browser_log: list[str], server: Server, artefacts: Path
) -> None:
    page = open_page()
    with EchoAgent() as agent:
        agent.failing = {"Hello"}
        page.goto(f"{server.url}/#/new")
        page.get_by_label("Endpoint").fill(agent.url)
        page.get_by_role("button", name="Send test call").click()
        page.get_by_role("alert").get_by_text(f'POST {agent.url}: answered 400: {{"error": "refused"}}').wait_for()
        raw = page.get_by_role("region", name="Raw response").inner_text()
        assert '"error": "refused"' in raw
        page.get_by_role("region", name="Test the agent").screenshot(path=artefacts / "try-refused.png")
        # the response text is under another key than the configured path
        agent.failing = set()
        page.get_by_text("Request and response format").click()
        page.get_by_label("Path of the response text").fill("data.text")
        page.get_by_role("button", name="Send test call").click()
        page.get_by_role("alert").get_by_text("data.text").wait_for()
        page.get_by_role("region", name="Raw response").get_by_text('"response": "Hello"').wait_for()
        page.get_by_label("Endpoint").fill("http://127.0.0.1:9/")
        page.get_by_role("button", name="Send test call").click()
        page.get_by_text("No response.").wait_for()
    assert browser_log == []
    page.get_by_label("Endpoint").fill("http://169.254.169.254/")
    page.get_by_role("button", name="Send test call").click()
    page.get_by_role("alert").get_by_text("cloud metadata address").wait_for()


def test_the_run_plan_counts_calls_and_grades(page: Page, server: Server, agent: str) -> None:
    for number in range(4):
        server.data("POST", "/api/test-cases", {"input": f"q {number}", "expected_output": "a"})
    judge = {"id": "mine", "name": "Mine", "type": "model_judge", "config": {"prompt": "Good?", "model": "m"}}
    server.data("POST", "/api/graders", judge)
    page.goto(f"{server.url}/#/new?url={agent}")
    plan = page.get_by_role("region", name="Run plan")
    plan.get_by_text("4 cases = 4 calls to the agent").wait_for()
    assert "judge models" not in plan.inner_text()
    page.get_by_label("Add a grader").select_option("string-match")
    page.get_by_label("Add a grader").select_option("mine")
    page.get_by_label("Repeats").fill("3")
    plan.get_by_text("4 cases × 3 repeats = 12 calls to the agent").wait_for()
    text = plan.inner_text()
    assert "2 graders = 24 grades" in text
    assert "12 × 1 = 12 calls to judge models" in text
    assert "Agent cost: unknown; judge cost: unknown" in text


def test_the_result_of_a_test_call_is_accessible_and_fits(
    open_page: Callable[..., Page], server: Server, artefacts: Path
) -> None:
    problems: list[str] = []
    with EchoAgent() as agent:
        agent.says = "{0} is a long answer. " * 60
        for size, theme in ((WIDE, "light"), (NARROW, "dark")):
            page = open_page(size, color_scheme=theme)
            page.goto(f"{server.url}/#/new?url={agent.url}")
            page.get_by_role("button", name="Send test call").click()
            page.get_by_role("region", name="Parsed response").wait_for()
            part = page.get_by_role("region", name="Test the agent")
            assert re.search(r"success\s+\d+ ms|success\s+< 1 ms", part.inner_text())
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=artefacts / f"try-{size[0]}-{theme}.png", full_page=True)
            problems += page_problems(page, f"try-{size[0]}", size[0])
    assert problems == []

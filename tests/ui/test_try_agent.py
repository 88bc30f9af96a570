"""The agent is tried before anything is saved: what was sent, what came back, what was read, and what the run will be."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from accessibility import faults_of
from browsing import NARROW, WIDE
from live import EchoAgent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from live import Server
    from playwright.sync_api import Page


def test_a_try_shows_the_wire_and_makes_no_run(page: Page, server: Server) -> None:
    with EchoAgent() as agent:
        page.goto(f"{server.url}/#/new")
        page.get_by_label("Endpoint").fill(agent.url)
        page.get_by_label("Try it with").fill("What is <b>new</b>?")
        page.keyboard.press("Enter")
        read = page.get_by_role("region", name="Read from the answer")
        read.get_by_text("What is <b>new</b>?").wait_for()
        sent = page.get_by_role("region", name="Sent to the agent").inner_text()
        assert sent.startswith(f"POST {agent.url}\n")
        assert json.loads(sent.partition("\n\n")[2]) == {"input": "What is <b>new</b>?"}
        raw = page.get_by_role("region", name="Its raw answer").inner_text()
        assert "Content-Type: application/json" in raw
        assert json.loads(raw.partition("\n\n")[2]) == {"response": "What is <b>new</b>?"}
        assert agent.total == 1
    page.get_by_label("Endpoint").fill(f"{agent.url}/elsewhere")
    page.get_by_text("The form has changed since; try it again.").wait_for()
    assert server.data("GET", "/api/evaluations")["total"] == 0
    assert page.url.split("#")[1].startswith("/new")


def test_what_goes_wrong_is_said_plainly(
    open_page: Callable[..., Page], complaints: list[str], server: Server, artefacts: Path
) -> None:
    page = open_page()
    with EchoAgent() as agent:
        agent.failing = {"Hello"}
        page.goto(f"{server.url}/#/new")
        page.get_by_label("Endpoint").fill(agent.url)
        page.get_by_role("button", name="Try it").click()
        page.get_by_role("alert").get_by_text(f'POST {agent.url}: answered 400: {{"error": "refused"}}').wait_for()
        raw = page.get_by_role("region", name="Its raw answer").inner_text()
        assert '"error": "refused"' in raw
        page.get_by_role("region", name="Try the agent").screenshot(path=artefacts / "try-refused.png")
        # what the agent said is under another key than the mapping names
        agent.failing = set()
        page.get_by_text("Request and answer").click()
        page.get_by_label("Where the text is").fill("data.text")
        page.get_by_role("button", name="Try it").click()
        page.get_by_role("alert").get_by_text("data.text").wait_for()
        page.get_by_role("region", name="Its raw answer").get_by_text('"response": "Hello"').wait_for()
        page.get_by_label("Endpoint").fill("http://127.0.0.1:9/")
        page.get_by_role("button", name="Try it").click()
        page.get_by_text("No answer came.").wait_for()
    assert complaints == []
    page.get_by_label("Endpoint").fill("http://169.254.169.254/")
    page.get_by_role("button", name="Try it").click()
    page.get_by_role("alert").get_by_text("cloud metadata address").wait_for()


def test_what_will_run_is_counted_before_it_does(page: Page, server: Server, agent: str) -> None:
    for number in range(4):
        server.data("POST", "/api/test-cases", {"input": f"q {number}", "expected_output": "a"})
    judge = {"id": "mine", "name": "Mine", "type": "model_judge", "config": {"prompt": "Good?", "model": "m"}}
    server.data("POST", "/api/graders", judge)
    page.goto(f"{server.url}/#/new?url={agent}")
    plan = page.get_by_role("region", name="What will run")
    plan.get_by_text("4 cases = 4 calls to the agent").wait_for()
    assert "judge models" not in plan.inner_text()
    page.get_by_label("Add a grader").select_option("string-match")
    page.get_by_label("Add a grader").select_option("mine")
    page.get_by_label("Repeats").fill("3")
    plan.get_by_text("4 cases × 3 repeats = 12 calls to the agent").wait_for()
    told = plan.inner_text()
    assert "2 graders = 24 grades" in told
    assert "12 × 1 = 12 calls to judge models" in told
    assert "Cost of the agent: not known; of the judges: not known" in told


def test_the_result_of_a_try_is_accessible_and_fits(
    open_page: Callable[..., Page], server: Server, artefacts: Path
) -> None:
    faults: list[str] = []
    with EchoAgent() as agent:
        agent.says = "{0} is a long answer. " * 60
        for size, theme in ((WIDE, "light"), (NARROW, "dark")):
            page = open_page(size, color_scheme=theme)
            page.goto(f"{server.url}/#/new?url={agent.url}")
            page.get_by_role("button", name="Try it").click()
            page.get_by_role("region", name="Read from the answer").wait_for()
            part = page.get_by_role("region", name="Try the agent")
            assert re.search(r"answered\s+\d+ ms|answered\s+< 1 ms", part.inner_text())
            page.evaluate("scrollTo(0, 0)")
            page.screenshot(path=artefacts / f"try-{size[0]}-{theme}.png", full_page=True)
            faults += faults_of(page, f"try-{size[0]}", size[0])
    assert faults == []

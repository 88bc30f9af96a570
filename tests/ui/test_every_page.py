"""Every page, wide in the light and narrow in the dark theme: accessible, no overflow, with a screenshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from browser_helpers import NARROW, WIDE, page_problems
from live import EchoAgent, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

WORDS = ["alpha", "beta", "gamma", "delta"]


@pytest.fixture(scope="module")
def filled(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The URL of a service with content for every page, and the paths of the pages."""
    with Server(tmp_path_factory.mktemp("filled") / "store.db") as server, EchoAgent() as agent:
        cases = [
            server.data(
                "POST",
                "/api/test-cases",
                {"input": f"{word} {n}", "expected_output": f"{word} {n}", "tags": ["words", word]},
            )["id"]
            for word in WORDS
            for n in range(5)
        ]
        rules = {"id": "rules", "name": "Mentions alpha", "type": "custom-rules"}
        config = {"rules": [{"condition": "contains", "value": "alpha"}]}
        server.data("POST", "/api/graders", {**rules, "config": config})
        server.data("PUT", "/api/graders/rules", {"config": {**config, "mode": "any"}})
        agent.failing = {"gamma 3"}
        first = _run(server, agent.url, "old agent")
        agent.failing, agent.says = {"delta 4"}, "{} and more"
        second = _run(server, agent.url, "new agent")
        label = {"verdict": "pass", "reason": "It adds a correct detail."}
        server.data("PUT", f"/api/evaluations/{second}/results/{cases[0]}~0/labels/string-match", label)
        yield server.url, _paths(first, second, cases)


def _run(server: Server, agent: str, name: str) -> str:
    graders = ["string-match", "similarity", "rules"]
    body = {"tag": "words", "agent_endpoint_url": agent, "grader_ids": graders, "name": name}
    run: str = server.data("POST", "/api/evaluations", body)["id"]
    server.until_ended(run)
    return run


def _paths(first: str, second: str, cases: list[str]) -> dict[str, str]:
    both = f"baseline={first}&candidate={second}"
    return {
        "runs": "/runs",
        "cases": "/cases",
        "case": f"/cases?open={cases[0]}",
        "import": "/cases?open=import",
        "evaluate": "/new",
        "run": f"/runs/{second}",
        "result": f"/runs/{second}?row={cases[0]}~0",
        "difference": f"/runs/{second}?row={cases[0]}~0&diff=on",
        "history": f"/runs/{second}?row={cases[0]}~0&tab=history",
        "samples": f"/runs/{second}/label",
        "choose-two": "/compare",
        "comparison": f"/compare?{both}",
        "compared-case": f"/compare?{both}&row={cases[0]}",
        "graders": "/graders",
        "judge": "/graders/model_judge",
        "grader-try": "/graders/rules?tab=try",
        "grader-versions": "/graders/rules?tab=versions",
        "grader-edit": "/graders/rules/edit",
        "grader-new": "/graders/new",
        "secrets": "/secrets",
        "secret-new": "/secrets?new=on",
        "nowhere": "/nowhere",
    }


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_every_page_is_accessible_and_fits(
    filled: tuple[str, dict[str, str]],
    open_page: Callable[..., Page],
    browser_log: list[str],
    artefacts: Path,
    size: tuple[int, int],
    theme: str,
) -> None:
    url, paths = filled
    page = open_page(size, color_scheme=theme)
    problems: list[str] = []
    for name, path in paths.items():
        page.goto("about:blank")
        page.goto(f"{url}/#{path}")
        page.get_by_role("heading").first.wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=artefacts / f"{name}-{size[0]}-{theme}.png")
        problems += page_problems(page, name, size[0])
    assert not problems, "\n".join(problems)
    assert browser_log == []

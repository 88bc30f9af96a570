"""A secret that an agent echoes in its response is on no page, in any encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from echoing_agent import ENCODINGS, VALUE, WAYS, EchoingAgent, echoes_of, forms_of
from live import Server, with_keys

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

SHOWN = echoes_of(*(way for way in WAYS if way != "redirect loop"))
OPENED = [f"answer, {encoding}" for encoding in ENCODINGS]
OPENED += [f"{way}, plain" for way in ("every letter escaped", "error status", "error in the body", "not JSON")]
OPENED += ["trajectory, plain", "trajectory, base64", "trajectory, percent-encoded"]
"""Cases whose results are opened; the table of the run shows all of them."""


def test_pages_of_runs_results_and_comparisons_contain_no_secret(browser: Browser, page: Page, tmp_path: Path) -> None:
    with EchoingAgent().at_work() as agent, Server(tmp_path / "store.db", *with_keys(tmp_path)) as server:
        server.data("PUT", "/api/secrets/KEY", {"value": VALUE, "host": agent.host})
        first, second = (_run(server, agent) for _ in range(2))
        both = f"/compare?baseline={first}&candidate={second}"
        drawers = [f"/runs/{first}?row={quote(f'{echo}~0')}" for echo in OPENED]
        paths = [
            "/runs",
            f"/runs/{first}",
            *drawers,
            f"{drawers[0]}&tab=history",
            both,
            f"{both}&row={quote(OPENED[0])}",
            "/secrets",
        ]
        seen = {path: _content(page, f"{server.url}/#{path}", drawer="row=" in path) for path in paths}
        assert set(agent.seen) == {VALUE}
    assert [path for path in (*drawers, f"{both}&row={quote(OPENED[0])}") if "***" not in seen[path]] == []
    for form in forms_of(VALUE):
        assert [path for path, content in seen.items() if form.decode() in content] == []


def _run(server: Server, agent: EchoingAgent) -> str:
    suite: dict[str, Any] = {
        "name": "echo",
        "target": {
            "kind": "http",
            "url": f"http://{agent.host}/ask",
            "retries": 0,
            "headers": {"X-Key": {"secret": "KEY"}},
            "response": {"tool_calls": "calls", "error": "error"},
        },
        "graders": {"has": {"kind": "contains"}},
        "dataset": [{"id": echo, "input": echo, "ground_truth": "you sent"} for echo in SHOWN],
    }
    run: str = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
    assert server.until_ended(run)["status"] == "completed"
    return run


def _content(page: Page, url: str, *, drawer: bool) -> str:
    """The HTML of the page and its visible text."""
    page.goto("about:blank")
    page.goto(url)
    page.get_by_role("dialog" if drawer else "heading").first.wait_for()
    page.wait_for_load_state("networkidle")
    return f"{page.content()}\n{page.inner_text('body')}"

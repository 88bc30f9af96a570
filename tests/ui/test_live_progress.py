"""A run in progress on its page: live updates, also after a restart of the service."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from live import EchoAgent, Server, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Request, Route

CASES = 30


def test_progress_is_live_and_resumes_after_a_restart(
    browser: Browser, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    requests: list[Request] = []
    with EchoAgent() as agent:
        agent.may_answer.clear()
        with Server(tmp_path / "store.db") as server:
            run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, CASES, concurrency=4)})["id"]
            agent.wait_for(4)
            page = open_page()
            page.on("request", lambda request: requests.append(request) if request.url.endswith("/events") else None)
            page.goto(f"{server.url}/#/runs/{run}")
            page.get_by_text("running", exact=True).wait_for()
            page.get_by_text("live", exact=True).wait_for()
            page.get_by_text(f"0 of {CASES} responses").wait_for()
            _let_some_answer(agent, page)
            cut = len(requests)
            port = str(urlsplit(server.url).port)
            server.signal(signal.SIGTERM)
            server.until_draining()  # else the run could end here
            agent.may_answer.set()
            server.wait()
        page.get_by_text("live", exact=True).wait_for(state="detached")
        with Server(tmp_path / "store.db", "--port", port) as again:
            assert again.url == server.url
            page.get_by_text("completed", exact=True).wait_for(timeout=60_000)
            page.get_by_text(f"of {CASES} scored responses").wait_for()
            summary = again.data("GET", f"/api/evaluations/{run}/results?limit=1")["summary"]
    assert summary["total_results"] == CASES
    resumed = [request.headers.get("last-event-id") for request in requests[cut:]]
    assert resumed
    assert None not in resumed, "the stream started again instead of resuming"


def _let_some_answer(agent: EchoAgent, page: Page) -> None:
    """Wait until the page shows some responses, then hold the others back again."""
    calls = agent.total
    agent.may_answer.set()
    agent.wait_for(calls + 1)
    agent.may_answer.clear()
    page.get_by_text(f"0 of {CASES} responses").wait_for(state="detached")


def test_a_run_that_ends_before_its_stream_opens_shows_how_it_ended(
    open_page: Callable[..., Page], server: Server
) -> None:
    """The stream begins with a snapshot of the ended run, and the connection breaks after it."""
    with EchoAgent() as agent:
        agent.may_answer.clear()
        gate = {"kind": "simple", "metric_key": "exact", "op": "gte", "value": 1}
        run = server.data("POST", "/api/evaluations", {"suite": {**suite_of(agent, CASES), "gate": gate}})["id"]
        page = open_page()

        def end_first(route: Route) -> None:
            agent.may_answer.set()
            server.until_ended(run)
            stream = route.fetch()
            route.fulfill(response=stream, body=stream.text().partition("\n\n")[0] + "\n\n")

        page.route("**/events", end_first)
        page.goto(f"{server.url}/#/runs/{run}")
        page.get_by_text("completed", exact=True).wait_for()
        page.locator("[data-verdict]").filter(has_text="Passed").wait_for()

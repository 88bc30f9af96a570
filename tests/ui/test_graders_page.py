"""Custom graders: previewed on real results while edited, saved, changed, with their versions."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Self

from live import EchoAgent, suite_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from browser_helpers import BrowserLog
    from live import Server
    from playwright.sync_api import Page


def test_a_rules_grader_is_created_previewed_saved_and_changed(page: Page, server: Server) -> None:
    with EchoAgent() as agent:
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 12)})["id"]
        server.until_ended(run)
    page.goto(f"{server.url}/#/graders")
    page.get_by_role("link", name="New rules grader").click()
    page.get_by_label("Name (required)").fill("Mentions three")
    page.get_by_label("Id").fill("three")
    page.get_by_role("button", name="Contains the expected output").click()
    preview = page.get_by_role("region", name="Preview")
    preview.get_by_text("pass 1").wait_for()
    page.get_by_label("Value (required)").fill("q 1")
    preview.get_by_text("fail 0").wait_for()
    preview.get_by_role("button", name="Next result").click()
    preview.get_by_text("pass 1").wait_for()
    preview.get_by_role("button", name="Grade first 10").click()
    # of q 0 to q 9, only q 1 contains it
    preview.get_by_text("1 pass, 9 fail").wait_for()
    page.get_by_role("button", name="Save grader").click()
    page.get_by_role("heading", level=1, name="Mentions three").wait_for()
    assert page.url.endswith("/graders/three")

    page.get_by_role("link", name="Edit").click()
    page.get_by_label("Description").fill("Only words")
    page.get_by_text("Only the name or description changes").wait_for()
    page.get_by_role("button", name="JSON", exact=True).click()
    page.get_by_role("textbox", name="Options as JSON").fill('{"rules": [{"condition": "contains", "value": "q 2"}]}')
    page.get_by_text("This changes what the grader measures").wait_for()
    page.get_by_role("button", name="Save version 2").click()
    page.get_by_role("tab", name="Versions").click()
    page.get_by_text("different fingerprint").wait_for()
    page.locator("del", has_text="1").first.wait_for()
    versions = [server.data("GET", f"/api/graders/three?version={version}")["config"] for version in (1, 2)]
    assert versions == [
        {"rules": [{"condition": "contains", "value": "q 1"}]},
        {"rules": [{"condition": "contains", "value": "q 2"}]},
    ]


def test_a_judge_is_called_only_on_request(page: Page, server: Server) -> None:
    with EchoAgent() as agent, FakeJudge() as judge:
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 2)})["id"]
        server.until_ended(run)
        page.goto(f"{server.url}/#/graders/new?type=model_judge")
        page.get_by_role("button", name="Custom prompt").click()
        page.get_by_role("button", name="JSON", exact=True).click()
        config = {"prompt": "Is it right? {submission}", "provider": "vllm", "model": "j", "base_url": judge.url}
        page.get_by_role("textbox", name="Options as JSON").fill(json.dumps(config))
        preview = page.get_by_role("region", name="Preview")
        preview.get_by_text("may cost money").wait_for()
        page.wait_for_load_state("networkidle")
        assert judge.calls == 0
        preview.get_by_role("button", name="Call the judge").click()
        preview.get_by_text("pass 0.75").wait_for()
        preview.get_by_text("mostly right").wait_for()
    assert judge.calls == 1


class FakeJudge:
    """A model server whose verdict is always 0.75."""

    def __init__(self) -> None:
        self.calls = 0
        judge = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                judge.calls += 1
                self.rfile.read(int(self.headers["Content-Length"]))
                message = {"role": "assistant", "content": json.dumps({"score": 0.75, "rationale": "mostly right"})}
                body = json.dumps({"model": "j", "choices": [{"message": message, "finish_reason": "stop"}]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_concurrently_saved_version_is_not_overwritten(page: Page, server: Server) -> None:
    rules = {"rules": [{"condition": "contains", "value": "x"}]}
    server.data("POST", "/api/graders", {"id": "mine", "name": "Mine", "type": "custom-rules", "config": rules})
    page.goto(f"{server.url}/#/graders/mine/edit")
    page.get_by_label("Description").fill("From here")
    server.data("PUT", "/api/graders/mine", {"description": "From elsewhere"})
    page.get_by_role("button", name="Save version 2").click()
    page.get_by_role("alert").get_by_text("Version 2 was saved by someone else while you were editing").wait_for()
    assert server.data("GET", "/api/graders/mine")["description"] == "From elsewhere"
    page.get_by_role("button", name="Save version").click()
    page.get_by_text("Version 3 saved").wait_for()
    assert server.data("GET", "/api/graders/mine")["description"] == "From here"


def test_a_validation_error_is_shown_at_its_field(
    open_page: Callable[..., Page], browser_log: BrowserLog, server: Server
) -> None:
    page = open_page()
    page.goto(f"{server.url}/#/graders/new?type=custom-rules")
    page.get_by_label("Name (required)").fill("Bad pattern")
    page.get_by_label("Type of item to add to Rules").select_option(label="regex")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_label("Value (required)").fill("(")
    page.get_by_role("button", name="Save grader").click()
    page.get_by_role("alert").first.wait_for()
    assert page.get_by_label("Value (required)").get_attribute("aria-invalid") == "true"
    assert browser_log.without("400") == []

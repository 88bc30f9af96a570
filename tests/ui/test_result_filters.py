"""Filters of a run's results: histogram columns, state in the URL, and aborted searches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser_helpers import NARROW, WIDE, create_stored_run
from live import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

RESULTS = 60


@pytest.fixture(scope="module")
def filled(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(create_stored_run(tmp_path_factory.mktemp("filters"), RESULTS)) as running:
        yield running


@pytest.fixture
def address(filled: Server) -> str:
    (run,) = filled.data("GET", "/api/evaluations")["evaluations"]
    return f"{filled.url}/#/runs/{run['id']}"


def columns(page: Page, name: str) -> Locator:
    found = page.get_by_role("group", name=name, exact=True).get_by_role("button")
    found.first.wait_for()
    return found


def expect_results(page: Page, found: int) -> None:
    """Waits until the status shows this number of results."""
    page.wait_for_function(
        "expected => document.querySelector('[role=status].num')?.textContent === expected", arg=f"{found} of {RESULTS}"
    )


@pytest.mark.parametrize("name", ["score by same", "score by near", "latency"])
def test_a_column_lists_as_many_results_as_it_counts(page: Page, address: str, name: str) -> None:
    page.goto(address)
    total = 0
    for column in columns(page, name).all():
        label = re.search(r"([\d,]+) results?$", column.get_attribute("aria-label") or "")
        assert label is not None
        total += int(label[1])
        if label[1] == "0":
            continue
        column.click()
        expect_results(page, int(label[1]))
        page.reload()
        expect_results(page, int(label[1]))
        assert columns(page, name).and_(page.locator("[aria-pressed=true]")).count() == 1
        columns(page, name).and_(page.locator("[aria-pressed=true]")).click()
        expect_results(page, RESULTS)
    assert total == RESULTS


def test_a_column_replaces_other_filters(page: Page, address: str) -> None:
    page.goto(f"{address}?q=question+7")
    expect_results(page, 1)
    columns(page, "score by same").last.click()
    expect_results(page, RESULTS * 9 // 10)
    assert "q=" not in page.url
    page.go_back()
    expect_results(page, 1)


def test_a_search_is_aborted_when_its_text_changes(page: Page, address: str) -> None:
    page.goto(address)
    expect_results(page, RESULTS)
    # the first search is never answered
    page.route(re.compile(r"/results\?q=question\+1&"), lambda _: None)
    search = page.get_by_placeholder("Search results")
    with page.expect_event("requestfailed", lambda request: "q=question+1&" in request.url):
        with page.expect_request(re.compile(r"q=question\+1&")):
            search.fill("question 1")
        search.fill("question 12")
    expect_results(page, 1)
    page.get_by_role("table", name="Results").get_by_text("question 12").first.wait_for()


def test_quick_typing_sends_one_request(page: Page, address: str) -> None:
    page.goto(address)
    expect_results(page, RESULTS)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url) if "/results?" in request.url else None)
    # all input events in one task of the page
    page.get_by_placeholder("Search results").evaluate(
        """(box) => {
            const put = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
            for (let end = 1; end <= 11; end++) {
                put.call(box, 'question 12'.slice(0, end));
                box.dispatchEvent(new Event('input', { bubbles: true }));
            }
        }"""
    )
    expect_results(page, 1)
    assert [url.partition("?")[2] for url in requests] == ["q=question+12&limit=100"]


def test_slow_typing_loses_no_letters(page: Page, address: str) -> None:
    page.goto(address)
    expect_results(page, RESULTS)
    search = page.get_by_placeholder("Search results")
    # about as long as the debounce, so that typing and responses overlap
    search.press_sequentially("question 12", delay=125)
    expect_results(page, 1)
    assert search.input_value() == "question 12"


def test_a_pending_search_does_not_navigate_back_to_the_page(page: Page, address: str) -> None:
    page.goto(address)
    expect_results(page, RESULTS)
    page.get_by_placeholder("Search results").fill("question 12")
    page.get_by_role("link", name="Graders").click()
    page.get_by_role("heading", level=1, name="Graders").wait_for()
    page.go_back()
    expect_results(page, 1)


@pytest.mark.parametrize(("size", "name"), [(WIDE, "wide"), (NARROW, "narrow")])
def test_screenshot_of_a_selected_column(
    open_page: Callable[..., Page], address: str, size: tuple[int, int], name: str, artefacts: Path
) -> None:
    page = open_page(size)
    page.goto(address)
    columns(page, "latency").first.click()
    page.get_by_role("button", name="latency", exact=False).first.wait_for()
    page.screenshot(path=artefacts / f"result-filters-{name}.png", full_page=True)


def test_results_to_which_a_grader_does_not_apply_are_counted_and_listed(
    server: Server, agent: str, page: Page
) -> None:
    suite = {
        "name": "languages",
        "target": {"kind": "http", "url": agent, "request": {"input": "{{input}}"}, "response": {"output": "response"}},
        "graders": {"german": {"kind": "contains", "when": {"tag": "de"}}, "ascii": {"kind": "ascii_printable_only"}},
        "dataset": [
            {"id": "de", "input": "?", "ground_truth": "Ja", "tags": ["de"]},
            {"id": "en", "input": "?", "ground_truth": "Yes", "tags": ["en"]},
        ],
    }
    run = server.data("POST", "/api/evaluations", {"suite": suite})["id"]
    server.until_ended(run)
    page.goto(f"{server.url}/#/runs/{run}")
    page.get_by_role("columnheader", name="not applicable").wait_for()
    page.get_by_role("button", name="german: the grader does not apply to this case").click()
    page.wait_for_function("() => document.querySelector('[role=status].num')?.textContent === '1 of 2'")
    assert "outcome=not_applicable" in page.url

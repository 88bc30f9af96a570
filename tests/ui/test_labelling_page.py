"""Labelling in the browser: a drawn sample, one key for each answer, blind to the judge; then the corrected rate."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from browser_helpers import NARROW, WIDE, page_problems
from live import Server

from gradeline.engine.definition import now
from gradeline.model import Run
from gradeline.store import open_storage
from gradeline.trust.calibration import calibrate
from gradeline.trust.calibration_data import judge_of, read_labels
from gradeline.trust.calibration_records import store_calibration

sys.path.insert(0, str(Path(__file__).parent.parent))

from judged_run import JudgedCase, store_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

CASES = 120


def judged_run(store: Path, labels: int = 0) -> Run:
    """The judge passes 80 of 120, people 60."""
    cases = [
        JudgedCase(
            {"quality": number < 80},
            number < 60 if number < labels else None,
            text=f"the answer {number}",
            probability=labels / CASES or None,
        )
        for number in range(CASES)
    ]
    with open_storage(str(store)) as storage:
        return store_run(storage, cases)  # type: ignore[arg-type]


def labels_of(server: Server, run: Run) -> list[Any]:
    found: list[Any] = server.data("GET", f"/api/evaluations/{run.id}/labels")["labels"]
    return found


def progress(page: Page) -> str | None:
    return page.get_by_role("progressbar", name="Labelled results").get_attribute("aria-valuetext")


def at(page: Page, place: int) -> None:
    page.locator(f"[data-place='{place}']").wait_for()


@pytest.fixture
def run(server: Server, tmp_path: Path) -> Run:
    return judged_run(tmp_path / "store.db")


def test_a_sample_is_labelled_with_one_key_for_each_answer(server: Server, page: Page, run: Run) -> None:
    page.goto(f"{server.url}/#/runs/{run.id}")
    page.get_by_role("link", name="Label", exact=True).click()
    page.get_by_role("heading", name="Draw a sample").wait_for()
    page.get_by_role("textbox", name="Results").fill("0")
    page.get_by_role("button", name="Draw and label").click()
    assert page.get_by_text("Enter a whole number from 1 to 10,000").is_visible()
    page.get_by_role("textbox", name="Results").fill("3")
    page.get_by_label("Method").select_option("random")
    page.get_by_role("button", name="Draw and label").click()
    at(page, 0)
    assert progress(page) == "0 of 3 labelled"
    assert not re.search("judge (pass|fail)|score", page.locator("main").inner_text(), re.IGNORECASE)
    page.keyboard.press("p")
    at(page, 1)
    page.keyboard.press("s")
    at(page, 2)
    page.get_by_label("Comment").fill("not polite, for p and f are letters here")
    page.get_by_label("Comment").blur()
    page.keyboard.press("f")
    at(page, 1)
    assert progress(page) == "2 of 3 labelled"
    page.keyboard.press("u")
    at(page, 2)
    assert progress(page) == "1 of 3 labelled"
    page.keyboard.press("f")
    at(page, 1)
    page.get_by_role("button", name="Pass").click()
    page.get_by_text("You have labelled every result of this sample.").wait_for()
    assert page.get_by_text(f"gradeline calibrate {run.id}").is_visible()
    labels = labels_of(server, run)
    assert sorted(label["verdict"] for label in labels) == ["fail", "pass", "pass"]
    assert {(label["probability"], label["author"]) for label in labels} == {(3 / CASES, None)}
    page.get_by_role("button", name="See the agreement of raters").click()
    page.get_by_text("random, seed 1: 3 of 3 labelled, 3 by you").wait_for()
    assert page.get_by_text("quality: 3 results with labels").is_visible()
    page.reload()
    page.get_by_role("button", name=re.compile("^Review")).click()
    page.get_by_text("You have labelled every result of this sample.").wait_for()


def test_a_label_that_cannot_be_stored_is_not_lost(
    server: Server, page: Page, run: Run, browser_log: list[str]
) -> None:
    sample = server.data("POST", f"/api/evaluations/{run.id}/label-samples", {"n": 2})["sample"]
    page.goto(f"{server.url}/#/runs/{run.id}/label?sample={sample}")
    at(page, 0)
    page.route("**/items/0", lambda route: route.abort() if route.request.method == "PUT" else route.continue_())
    page.get_by_label("Comment").fill("a comment")
    page.get_by_role("button", name="Fail").click()
    page.get_by_role("alert").wait_for()
    assert page.get_by_label("Comment").input_value() == "a comment"
    page.unroute("**/items/0")
    page.get_by_role("button", name="Fail").click()
    at(page, 1)
    assert [(label["verdict"], label["reason"]) for label in labels_of(server, run)] == [("fail", "a comment")]
    browser_log.clear()  # the request that was aborted


def test_an_unknown_sample_is_an_error_with_a_way_back(
    server: Server, page: Page, run: Run, browser_log: list[str]
) -> None:
    page.goto(f"{server.url}/#/runs/{run.id}/label?sample=nothing")
    assert "No sample of this evaluation" in page.get_by_role("alert").inner_text()
    page.get_by_role("link", name="Back to the run").click()
    page.get_by_role("heading", name="Results").wait_for()
    browser_log.clear()  # the 404


def test_the_run_and_the_comparison_show_corrected_numbers_and_the_state_of_the_judge(
    server: Server, page: Page, tmp_path: Path, artefacts: Path
) -> None:
    store = tmp_path / "store.db"
    baseline, candidate = judged_run(store, CASES), judged_run(store, CASES)
    with open_storage(str(store)) as storage:
        data = read_labels(storage, candidate, "quality", "quality")
        found = calibrate(judge_of(candidate, "quality", "quality"), data.labelled, data.results, now(), data.source)
        store_calibration(storage, found)
    page.goto(f"{server.url}/#/runs/{candidate.id}")
    corrected = page.locator("[data-corrected]").first
    assert re.fullmatch(r"0\.667 judge → 0\.500 \(0\.\d{3}–0\.\d{3}\), 120 labels.*", corrected.inner_text())
    assert page.get_by_text(f"judge {found.state}").is_visible()
    page.screenshot(path=artefacts / "judged-run.png")
    page.goto(f"{server.url}/#/runs/{candidate.id}?row=c0~0")
    page.get_by_text("ada", exact=False).first.wait_for()
    assert page.get_by_role("button", name="Add label for quality").is_visible(), "another's label cannot be edited"
    page.goto(f"{server.url}/#/compare?baseline={baseline.id}&candidate={candidate.id}")
    page.locator("[data-corrected]", has_text="cases labelled in both runs").first.wait_for()


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "light"), (NARROW, "dark")], ids=["wide", "narrow"])
def test_labelling_is_accessible_and_fits(
    server: Server,
    tmp_path: Path,
    open_page: Callable[..., Page],
    artefacts: Path,
    size: tuple[int, int],
    theme: str,
) -> None:
    run = judged_run(tmp_path / "store.db", 40)
    sample = server.data("POST", f"/api/evaluations/{run.id}/label-samples", {"n": 1})["sample"]
    page = open_page(size, color_scheme=theme)
    problems: list[str] = []
    paths = {"run": f"/runs/{run.id}", "samples": f"/runs/{run.id}/label"}
    item = f"/runs/{run.id}/label?sample={sample}"
    for name, path in {**paths, "item": item, "done": item}.items():
        if name == "done":
            server.data("PUT", f"/api/evaluations/{run.id}/label-samples/{sample}/items/0", {"verdict": "pass"})
        page.goto("about:blank")
        page.goto(f"{server.url}/#{path}")
        page.get_by_role("heading").first.wait_for()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=artefacts / f"labelling-{name}-{size[0]}-{theme}.png")
        problems += page_problems(page, name, size[0])
    assert not problems, "\n".join(problems)

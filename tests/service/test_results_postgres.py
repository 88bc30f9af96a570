"""The same results from PostgreSQL: every statement that reads them, once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
)
from gradeline.service import run_cache
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

sys.path.insert(0, str(Path(__file__).parent.parent))

from postgres_server import ENV, Database, Server, why_no_server

GRADERS = {"exact": RunGrader("exact", "f1")}
FAILED = Response("error", error=ErrorInfo("connect", "nobody", Fault.INFRASTRUCTURE))


@pytest.fixture
def settings() -> Iterator[ServeSettings]:
    if url := os.environ.get(ENV):
        database = Database(url)
        yield ServeSettings(store=database.url)
        database.drop()
        return
    if reason := why_no_server():
        pytest.skip(reason)
    server = Server()
    yield ServeSettings(store=server.url)
    server.stop()


def grade(passed: bool) -> Grade:
    return Grade("exact", "f1", Outcome.PASS if passed else Outcome.FAIL, float(passed), passed)


def saved(service: Service, passing: int) -> str:
    run = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=GRADERS, total=8))
    for number in range(8):
        key = ResponseKey(run, f"c{number}/é")
        sample = Sample(key.case, f"question {number}", "a", tags=("even",) if number % 2 == 0 else ("odd",))
        service.storage.put_response(key, FAILED if number == 7 else Response(text="x", latency_ms=1.0), sample)
        if number < 7:
            service.storage.put_grade(GradeKey(*key, "exact"), grade(number < passing))
    return run


def walked(call: Any, run: str, **params: Any) -> list[str]:
    """The cases of all pages."""
    cases: list[str] = []
    while True:
        data = call("GET", f"/api/evaluations/{run}/results", params={"limit": 2, **params}).data
        cases += [result["test_case_id"][:2] for result in data["results"]]
        if data["next_cursor"] is None:
            return cases
        params = {**{name: value for name, value in params.items() if name != "skip"}, "cursor": data["next_cursor"]}


def test_results_summaries_details_comparisons_and_exports(
    call: Any, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "_MIN_RESULTS_TO_STORE", 1)
    first, second = saved(service, 5), saved(service, 4)
    history = call("GET", f"/api/evaluations/{second}/results/c1%2F%C3%A9~0/case-history").data
    assert [one["evaluation_id"] for one in history["runs"]] == [first]
    run, other = saved(service, 3), saved(service, 5)
    assert walked(call, run) == [f"c{number}" for number in range(8)]
    assert walked(call, run, skip=3) == ["c3", "c4", "c5", "c6", "c7"]
    assert walked(call, run, status="error") == ["c7"]
    assert walked(call, run, grader="exact", outcome="pass", tag="even") == ["c0", "c2"]
    assert walked(call, run, q="QUESTION 5") == ["c5"]
    assert walked(call, run, grader="exact", score_min=1, score_max=1) == ["c0", "c1", "c2"]
    assert walked(call, run, latency_min=0.5, latency_max=1, skip=5) == ["c5", "c6"]
    summary = call("GET", f"/api/evaluations/{run}/results").data["summary"]
    assert (summary["total_results"], summary["sentence"]) == (8, "7 responses graded, 0 grader errors")
    assert len(service.database.read("SELECT run FROM run_cache WHERE name = 'statistics'")) == 1
    service.storage.put_response(ResponseKey(run, "c7/é"), Response(text="there"), Sample("c7/é", "question 7", "a"))
    detail = call("GET", f"/api/evaluations/{run}/results/c7%252F%25C3%25A9~0").data
    assert (detail["agent_response"], len(detail["history"])) == ("there", 1)
    compared = call("GET", "/api/evaluations/compare", params={"baseline": run, "candidate": other}).data
    assert (compared["graders"]["exact"]["n"], compared["graders"]["exact"]["improved"]) == (7, 2)
    for wanted in ("json", "jsonl", "csv", "junit", "html"):
        assert call("GET", f"/api/evaluations/{run}/export", params={"format": wanted}).status == 200
    for path in (f"{run}%00/results", f"{run}/results/a%00~0", "a%00b/export"):
        assert call("GET", f"/api/evaluations/{path}").status == 404
    forged = "WzIxNDc0ODM2NDcsImFiIiwwLDBd"
    answer = call("GET", f"/api/evaluations/{run}/results", params={"cursor": forged})
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
    service.storage.delete_run(run)
    assert len(service.database.read("SELECT run FROM run_cache WHERE name = 'statistics'")) == 0

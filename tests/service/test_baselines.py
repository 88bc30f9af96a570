"""Baselines with a name over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

from .conftest import Call


@pytest.fixture
def settings(store: str) -> ServeSettings:
    return ServeSettings(store=store, secret_key=b"a master key of the tests, long enough")


def new_run(service: Service, **fields: Any) -> str:
    """A run of one case that passes."""
    run = Run(**{"name": "n", "suite": "capitals", "status": "completed", **fields})
    id_ = service.storage.save_run(Run(**{**_fields(run), "graders": {"exact": RunGrader("exact", "f1")}}))
    key = ResponseKey(id_, "case")
    service.storage.put_response(key, Response(text="x"), Sample("case", "q"), 0)
    service.storage.put_grade(GradeKey(*key, "exact"), Grade("exact", "f1", Outcome.PASS, 1.0, True))
    return id_


def _fields(run: Run) -> dict[str, Any]:
    return {name: getattr(run, name) for name in ("name", "suite", "status", "parent")}


def test_a_baseline_is_set_listed_shown_with_its_run_and_cleared(call: Call, service: Service) -> None:
    run = new_run(service)
    placed = call("PUT", "/api/baselines/main", json={"evaluation_id": run})
    assert placed.status == 200
    at = placed.data.pop("set_at")
    assert placed.data == {"name": "main", "suite": "capitals", "evaluation_id": run, "set_by": "local"}
    listed = call("GET", "/api/baselines").data
    assert listed == {"baselines": [{**placed.data, "set_at": at}], "count": 1, "next_cursor": None}
    assert call("GET", f"/api/evaluations/{run}").data["baselines"] == ["main"]
    assert [one["baselines"] for one in call("GET", "/api/evaluations").data["evaluations"]] == [["main"]]
    assert call("DELETE", "/api/baselines/main").status == 204
    assert call("GET", "/api/baselines").data["count"] == 0
    assert call("DELETE", "/api/baselines/main").status == 404


def test_setting_and_clearing_are_in_the_audit_log_with_the_run_before(call: Call, service: Service) -> None:
    first, second = new_run(service), new_run(service)
    for run in (first, second, second):
        assert call("PUT", "/api/baselines/main", json={"evaluation_id": run}).status == 200
    call("DELETE", "/api/baselines/main")
    entries = [(one.action, one.subject, one.details) for one in service.audit.entries()]
    assert entries == [
        ("baseline.set", "main", {"suite": "capitals", "run": first, "replaced": None}),
        ("baseline.set", "main", {"suite": "capitals", "run": second, "replaced": first}),
        ("baseline.set", "main", {"suite": "capitals", "run": second, "replaced": second}),
        ("baseline.clear", "main", {"suite": "capitals", "run": second}),
    ]


def test_two_suites_may_have_the_name_and_then_the_suite_is_required(call: Call, service: Service) -> None:
    runs = {suite: new_run(service, suite=suite) for suite in ("capitals", "rivers")}
    for run in runs.values():
        call("PUT", "/api/baselines/main", json={"evaluation_id": run})
    refused = call("DELETE", "/api/baselines/main")
    assert (refused.status, refused.error["code"]) == (409, "CONFLICT")
    assert "'capitals', 'rivers'; name one with the parameter 'suite'" in refused.error["message"]
    assert call("DELETE", "/api/baselines/main", params={"suite": "rivers"}).status == 204
    (left,) = call("GET", "/api/baselines").data["baselines"]
    assert left["suite"] == "capitals"


def test_baselines_are_listed_in_pages_and_by_suite(call: Call, service: Service) -> None:
    for suite in ("b", "a"):
        run = new_run(service, suite=suite)
        for name in ("x", "main"):
            call("PUT", f"/api/baselines/{name}", json={"evaluation_id": run})
    seen, cursor = [], None
    while True:
        page = call("GET", "/api/baselines", params={"limit": 1, **({"cursor": cursor} if cursor else {})}).data
        seen += [(one["suite"], one["name"]) for one in page["baselines"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == [("a", "main"), ("a", "x"), ("b", "main"), ("b", "x")]
    assert call("GET", "/api/baselines", params={"suite": "b"}).data["count"] == 2
    assert call("GET", "/api/baselines", params={"cursor": "x"}).status == 400


def test_a_comparison_and_a_new_evaluation_accept_the_name(call: Call, service: Service) -> None:
    first, second = new_run(service), new_run(service)
    call("PUT", "/api/baselines/main", json={"evaluation_id": first})
    compared = call("GET", "/api/evaluations/compare", params={"baseline": "main", "candidate": second})
    assert (compared.status, compared.data["baseline_id"]) == (200, first)
    suite = {
        "name": "capitals",
        "dataset": [{"id": "case", "input": "q", "ground_truth": "x"}],
        "target": {"kind": "replay", "run": first},
        "graders": {"exact": {"kind": "exact_match"}},
    }
    started = call("POST", "/api/evaluations", json={"suite": suite, "baseline_id": "main"})
    assert (started.status, started.data["baseline_id"]) == (201, first)
    refused = call("POST", "/api/evaluations", json={"suite": suite, "baseline_id": "mian"})
    assert (refused.status, refused.error["code"]) == (400, "INVALID_INPUT")
    assert "no baseline of 'capitals' with this name" in refused.error["message"]


@pytest.mark.parametrize("name", ["a b", "latest", "x" * 101, "%C3%A4"])
def test_an_invalid_name_is_refused(call: Call, service: Service, name: str) -> None:
    answer = call("PUT", f"/api/baselines/{name}", json={"evaluation_id": new_run(service)})
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")


def test_only_a_completed_known_run_is_a_baseline(call: Call, service: Service) -> None:
    running = new_run(service, status="failed")
    refused = call("PUT", "/api/baselines/main", json={"evaluation_id": running})
    assert (refused.status, refused.error["code"]) == (409, "CONFLICT")
    unknown = call("PUT", "/api/baselines/main", json={"evaluation_id": "nope"})
    assert (unknown.status, unknown.error["code"]) == (404, "NOT_FOUND")


def test_the_run_of_a_baseline_is_not_deleted(call: Call, service: Service) -> None:
    run = new_run(service)
    call("PUT", "/api/baselines/main", json={"evaluation_id": run})
    refused = call("DELETE", f"/api/evaluations/{run}")
    assert (refused.status, refused.error["code"]) == (409, "CONFLICT")
    assert "is the baseline 'main' of the suite 'capitals'" in refused.error["message"]
    call("DELETE", "/api/baselines/main")
    assert call("DELETE", f"/api/evaluations/{run}").status == 204


def test_a_key_that_only_reads_lists_but_does_not_set(
    call: Call, call_with: Callable[[str], dict[str, str]], service: Service
) -> None:
    run = new_run(service)
    headers = {scope: call_with(scope) for scope in ("read", "run")}
    body = {"evaluation_id": run}
    assert call("PUT", "/api/baselines/main", json=body, headers=headers["read"]).status == 403
    placed = call("PUT", "/api/baselines/main", json=body, headers=headers["run"])
    assert placed.data["set_by"] == headers["run"]["Authorization"].split("_")[1]
    assert call("GET", "/api/baselines", headers=headers["read"]).data["count"] == 1
    assert call("DELETE", "/api/baselines/main", headers=headers["read"]).status == 403

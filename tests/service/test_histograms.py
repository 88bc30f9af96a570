"""Histograms: the count of a bin equals the results of a filter by its edges."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import inf, nextafter
from typing import Any

import pytest

from gradeline.model import ErrorInfo, Fault, Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.service import run_cache
from gradeline.service import summaries as module
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

GRADERS = {"exact": RunGrader("exact", "f1"), "judge": RunGrader("model_judge", "f2")}
SCORES = [0.0, 0.05, 0.1, nextafter(0.1, 0), 0.3, 0.1 + 0.2, 0.5, nextafter(0.7, 1), 0.7, 0.9, nextafter(0.9, 0), 1.0]
LATE = Response("timeout", error=ErrorInfo("timeout", "no answer", Fault.AGENT), latency_ms=30_000.0)


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Any) -> ServeSettings:
    if request.param == "sqlite":
        return ServeSettings(store=str(tmp_path / "store.db"))
    return ServeSettings(store=request.getfixturevalue("postgres_url"))


def saved(service: Service, responses: Iterable[Response], scores: Iterable[float | None], **fields: Any) -> str:
    """A run with one grade by ``judge`` a result; None: the judge broke."""
    run = service.storage.save_run(
        Run(**{"name": "n", "suite": "s", "status": "completed", "graders": GRADERS, **fields})
    )
    for number, (response, score) in enumerate(zip(responses, scores, strict=True)):
        key = ResponseKey(run, f"c{number}")
        service.storage.put_response(key, response, Sample(key.case, "?"))
        service.storage.put_grade(GradeKey(*key, "judge"), graded(score))
    return run


def graded(score: float | None) -> Grade:
    if score is None:
        return Grade("model_judge", "f2", Outcome.ERROR, error=ErrorInfo("timeout", "too long", Fault.GRADER))
    return Grade("model_judge", "f2", Outcome.PASS if score >= 0.5 else Outcome.FAIL, score, score >= 0.5)


def listed(call: Any, run: str, **params: Any) -> int:
    return len(call("GET", f"/api/evaluations/{run}/results", params={"limit": 1000, **params}).data["results"])


def test_a_score_bin_counts_the_results_within_its_bounds(call: Any, service: Service) -> None:
    scores = [*SCORES, None, None]
    run = saved(service, [Response(text="x") for _ in scores], scores)
    data = call("GET", f"/api/evaluations/{run}/histograms").data
    assert data["evaluation_id"] == run
    bins = data["scores"]["judge"]
    assert [column["low"] for column in bins] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert [column["count"] for column in bins] == [3, 1, 0, 2, 0, 1, 0, 2, 1, 2]
    for column in bins:
        assert listed(call, run, grader="judge", score_min=column["low"], score_max=column["high"]) == column["count"]
    assert [column["count"] for column in data["scores"]["exact"]] == [0] * 10


def test_a_latency_bin_counts_the_results_within_its_bounds(call: Any, service: Service) -> None:
    usual = [Response(text="x", latency_ms=n / 7) for n in range(300)]
    odd = [Response(text="x", latency_ms=12_345.6), Response(text="x"), LATE]
    run = saved(service, [*usual, *odd], [1.0] * 303)
    bins = call("GET", f"/api/evaluations/{run}/histograms").data["latency_ms"]
    # one slow answer does not push all others into one column
    assert [column["low"] for column in bins] == [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0, 45.0]
    assert bins[-1]["high"] == 12_345.6
    assert sum(column["count"] for column in bins) == 301
    for column in bins:
        assert listed(call, run, latency_min=column["low"], latency_max=column["high"]) == column["count"]


def test_no_number_lies_between_two_columns(call: Any, service: Service) -> None:
    run = saved(service, [Response(text="x", latency_ms=0.0123)], [1.0])
    data = call("GET", f"/api/evaluations/{run}/histograms").data
    for bins in (data["scores"]["judge"], data["latency_ms"]):
        assert len(bins) == 10
        assert [nextafter(column["high"], inf) for column in bins[:-1]] == [column["low"] for column in bins[1:]]
        assert all(one["low"] < other["low"] for one, other in pairwise(bins))


@pytest.mark.parametrize("latency", [0.0, -3.5, 1e-7, 7e11])
def test_a_single_latency_of_any_size_is_in_a_column(call: Any, service: Service, latency: float) -> None:
    run = saved(service, [Response(text="x", latency_ms=latency)], [None])
    bins = call("GET", f"/api/evaluations/{run}/histograms").data["latency_ms"]
    [found] = [column for column in bins if column["count"]]
    assert listed(call, run, latency_min=found["low"], latency_max=found["high"]) == found["count"] == 1


def test_a_run_without_answers_has_no_latencies(call: Any, service: Service) -> None:
    run = saved(service, [LATE], [None])
    data = call("GET", f"/api/evaluations/{run}/histograms").data
    assert data["latency_ms"] == []
    assert [column["count"] for column in data["scores"]["judge"]] == [0] * 10


def test_a_regraded_run_has_its_own_scores_and_its_parents_latencies(call: Any, service: Service) -> None:
    parent = saved(service, [Response(text="x", latency_ms=4.0), Response(text="y", latency_ms=4.0)], [0.0, 0.0])
    child = service.storage.save_run(
        Run(name="again", suite="s", status="completed", parent=parent, graders={"judge": GRADERS["judge"]}, total=2)
    )
    service.storage.put_grade(GradeKey(child, "c1", 0, "judge"), graded(1.0))
    data = call("GET", f"/api/evaluations/{child}/histograms").data
    assert [column["count"] for column in data["scores"]["judge"]] == [0] * 9 + [1]
    assert sum(column["count"] for column in data["latency_ms"]) == 2


def test_rows_are_counted_again_only_when_they_changed(
    call: Any, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved(service, [Response(text="x")], [0.0])
    counted: list[str] = []
    count = module.Histograms._scores
    monkeypatch.setattr(module.Histograms, "_scores", lambda self, of: counted.append(of.id) or count(self, of))

    def lowest() -> int:
        return int(call("GET", f"/api/evaluations/{run}/histograms").data["scores"]["judge"][0]["count"])

    assert (lowest(), lowest(), counted) == (1, 1, [run])
    key = ResponseKey(run, "more")
    service.storage.put_response(key, Response(text="x"), Sample("more", "?"))
    service.storage.put_grade(GradeKey(*key, "judge"), graded(0.0))
    assert (lowest(), lowest(), counted) == (2, 2, [run, run])


def test_histograms_of_a_large_run_survive_a_restart(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "_MIN_RESULTS_TO_STORE", 2)
    run = service.results.run(saved(service, [Response(text="x", latency_ms=5.0)] * 2, [0.0, 1.0]))
    first = service.results.histograms.of(run)
    monkeypatch.setattr(module.Histograms, "_compute", lambda *_: pytest.fail("computed again"))
    again = module.Histograms(service.database, service.storage, service.results.summaries)
    assert again.of(run) == first
    service.storage.delete_run(run.id)
    assert service.database.read("SELECT * FROM run_cache") == []


def test_histograms_stored_in_another_shape_are_computed_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "_MIN_RESULTS_TO_STORE", 1)
    run = service.results.run(saved(service, [Response(text="x", latency_ms=5.0)], [0.0]))
    first = service.results.histograms.of(run)
    service.database.transact(lambda work: work.run("UPDATE run_cache SET value = '{}' WHERE name = 'histograms'"))
    again = module.Histograms(service.database, service.storage, service.results.summaries)
    assert again.of(run) == first


def test_a_run_in_progress_may_have_older_histograms(
    call: Any, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "_STALE_FACTOR", 1e9)
    run = saved(service, [Response(text="x")], [0.0], status="running")
    before = call("GET", f"/api/evaluations/{run}/histograms").data
    service.storage.put_response(ResponseKey(run, "more"), Response(text="x", latency_ms=1.0), Sample("more", "?"))
    assert call("GET", f"/api/evaluations/{run}/histograms").data == before


@pytest.mark.parametrize("name", ["nope", "a%00b", "x" * 3000])
def test_an_unknown_run_is_not_found(call: Any, name: str) -> None:
    answer = call("GET", f"/api/evaluations/{name}/histograms")
    assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")

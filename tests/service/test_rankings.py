"""Several evaluations ranked, and those of a suite over time, over REST."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample, Usage
from gradeline.service.service import Service

RANKING = "/api/evaluations/ranking"
TREND = "/api/evaluations/trend"


@pytest.fixture
def save(service: Service) -> Callable[..., str]:
    """Stores a run of ten cases, the first of which pass."""

    def saved(
        passing: int, *, fingerprint: str = "f", suite: str = "s", cost: float | None = 0.5, noise: float = 0.0
    ) -> str:
        graders = {"exact": RunGrader("exact", fingerprint, noise=noise)}
        new = Run(name=f"passes {passing}", suite=suite, status="completed", graders=graders, total=10)
        run = service.storage.save_run(new)
        for place in range(10):
            key = ResponseKey(run, f"c{place}")
            service.storage.put_response(key, Response(text="x", usage=Usage(cost=cost)), Sample(key.case, "?"))
            passed = place < passing
            grade = Grade("exact", "f", Outcome.PASS if passed else Outcome.FAIL, float(passed), passed)
            service.storage.put_grade(GradeKey(*key, "exact"), grade)
        return run

    return saved


def test_several_evaluations_are_ranked(call: Any, save: Callable[..., str]) -> None:
    none, most, every = save(0), save(9), save(10, cost=None)
    data = call("GET", RANKING, params={"ids": f"{none}, {most},{every}"}).data
    assert (data["best"], data["sentence"]) == ([every, most], "tied for the best by exact: 'passes 10', 'passes 9'")
    assert (data["cases"], data["left_out"], data["comparability"]) == (10, 0, {"comparable": True, "reasons": []})
    assert [one["evaluation_id"] for one in data["evaluations"]] == [every, most, none]
    assert [(one["cost_per_case"], one["on_front"]) for one in data["evaluations"]] == [
        (None, None),
        (0.5, True),
        (0.5, False),
    ]
    ranks = [(one["scores"]["exact"]["rank_best"], one["scores"]["exact"]["rank_worst"]) for one in data["evaluations"]]
    assert ranks == [(1, 2), (1, 2), (3, 3)]
    assert [(one["baseline_id"], one["candidate_id"], one["winner_id"]) for one in data["pairs"]["exact"]] == [
        (none, most, most),
        (none, every, every),
        (most, every, None),
    ]


def test_the_noise_of_each_grader_is_that_of_the_last_evaluation(call: Any, save: Callable[..., str]) -> None:
    ids = ",".join((save(1), save(2), save(3, noise=0.01)))
    assert call("GET", RANKING, params={"ids": ids}).data["noise"] == {"exact": 0.01}


def test_evaluations_that_are_not_comparable_have_a_reason(call: Any, save: Callable[..., str]) -> None:
    ids = ",".join((save(1), save(2), save(3, fingerprint="g")))
    data = call("GET", RANKING, params={"ids": ids}).data
    assert (data["comparability"]["comparable"], data["pairs"], data["sentence"]) == (False, {}, None)
    assert data["comparability"]["reasons"][0].startswith("grader 'exact' is not the same in all runs")
    forced = call("GET", RANKING, params={"ids": ids, "force": True}).data
    assert len(forced["pairs"]["exact"]) == 3


def test_wrong_ids_are_named(call: Any, save: Callable[..., str]) -> None:
    first, second = save(1), save(2)
    for ids, status, message in (
        (f"{first},{second}", 400, "ids: expected 3 to 50 evaluations, got 2"),
        (f"{first},{second},{first}", 400, f"ids: {first} is listed twice; list each evaluation once"),
        (f"{first},{second},nowhere", 404, "No evaluation 'nowhere'"),
    ):
        answer = call("GET", RANKING, params={"ids": ids})
        assert (answer.status, answer.body["error"]["message"]) == (status, message)


def test_the_trend_of_a_suite(call: Any, save: Callable[..., str]) -> None:
    first, second = save(5), save(7, fingerprint="g")
    save(1, suite="another")
    data = call("GET", TREND, params={"suite": "s"}).data
    assert (data["suite"], data["grader"], data["runs"]) == ("s", "exact", 2)
    assert [(one["evaluation_id"], one["mean"], one["segment"], one["changes"]) for one in data["points"]] == [
        (first, 0.5, 0, []),
        (second, 0.7, 1, ["grader"]),
    ]
    assert data["points"][0]["cost"] == 5.0


def test_an_unknown_suite_or_grader_is_not_found(call: Any, save: Callable[..., str]) -> None:
    save(5, suite="squares")
    answer = call("GET", TREND, params={"suite": "sqares"})
    assert answer.status == 404
    assert "did you mean 'squares'?" in answer.body["error"]["message"]
    answer = call("GET", TREND, params={"suite": "squares", "grader": "exakt"})
    assert (answer.status, "did you mean 'exact'?" in answer.body["error"]["message"]) == (404, True)

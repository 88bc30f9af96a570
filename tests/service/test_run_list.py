"""The list of runs with counts, by either database."""

from __future__ import annotations

from typing import Any

import pytest

from gradeline.model import ErrorInfo, Fault, Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings
from gradeline.stats import wilson

GRADERS = {"exact": RunGrader("exact", "f1"), "judge": RunGrader("model_judge", "f2")}
BROKEN = Grade("judge", "f2", Outcome.ERROR, error=ErrorInfo("timeout", "late", Fault.GRADER))


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest) -> ServeSettings:
    store = "memory://" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    return ServeSettings(store=store)


def grade(passed: bool) -> Grade:
    return Grade("exact", "f1", Outcome.PASS if passed else Outcome.FAIL, float(passed), passed)


def saved(service: Service, passing: int, cases: int, repeats: int = 1, parent: str | None = None) -> str:
    run = Run(name="n", suite="s", status="completed", graders=GRADERS, repeats=repeats, parent=parent)
    found: str = service.storage.save_run(run)
    for case in range(cases):
        for repeat in range(repeats):
            key = ResponseKey(found, f"c{case}", repeat)
            if parent is None:
                service.storage.put_response(key, Response(text="x"), Sample(key.case, "\n a\tquestion"))
            service.storage.put_grade(GradeKey(*key, "exact"), grade(case < passing))
            service.storage.put_grade(GradeKey(*key, "judge"), BROKEN)
    return found


def listed(call: Any) -> dict[str, Any]:
    return {run["id"]: run["pass_rates"] for run in call("GET", "/api/evaluations").data["evaluations"]}


def test_each_run_has_pass_rates_in_which_errors_are_not_fails(call: Any, service: Service) -> None:
    run, empty = saved(service, 3, 4), saved(service, 0, 0)
    interval = wilson(3, 4)
    nothing = {"value": None, "low": None, "high": None, "scored": 0}
    assert listed(call) == {
        run: {
            "exact": {"value": 0.75, "low": interval.low, "high": interval.high, "scored": 4, "total": 4},
            "judge": {**nothing, "total": 4},
        },
        empty: {"exact": {**nothing, "total": 0}, "judge": {**nothing, "total": 0}},
    }
    assert "pass_rates" not in call("GET", f"/api/evaluations/{run}").data


def test_repeats_have_no_interval_here_and_a_regraded_run_has_its_own_rates(call: Any, service: Service) -> None:
    run = saved(service, 1, 2, repeats=2)
    child = saved(service, 2, 2, repeats=2, parent=run)
    rates = {key: rate["exact"] for key, rate in listed(call).items()}
    assert rates == {
        run: {"value": 0.5, "low": None, "high": None, "scored": 4, "total": 4},
        child: {"value": 1.0, "low": None, "high": None, "scored": 4, "total": 4},
    }


def test_a_list_costs_as_many_statements_for_one_run_as_for_many(
    call: Any, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = service.database
    statements: list[str] = []
    read = database.read

    def counted(statement: str, *values: Any) -> Any:
        statements.append(statement)
        return read(statement, *values)

    def cost() -> int:
        """The least of several times: the service itself looks for work now and then."""
        costs = []
        for _ in range(5):
            statements.clear()
            call("GET", "/api/evaluations")
            costs.append(len([one for one in statements if "api_keys" not in one]))
        return min(costs)

    saved(service, 1, 1)
    monkeypatch.setattr(type(database), "read", lambda _, statement, *values: counted(statement, *values))
    one = cost()
    for _ in range(5):
        saved(service, 1, 1)
    assert cost() == one


def test_a_comparison_has_the_beginnings_of_its_texts(call: Any, service: Service) -> None:
    runs = saved(service, 1, 2), saved(service, 2, 2)
    params = {"baseline": runs[0], "candidate": runs[1]}
    cases = call("GET", "/api/evaluations/compare", params=params).data["cases"]
    texts = [(one["test_case_id"], one["input"], one["baseline_output"], one["candidate_output"]) for one in cases]
    assert texts == [("c0", "a question", "x", "x"), ("c1", "a question", "x", "x")]

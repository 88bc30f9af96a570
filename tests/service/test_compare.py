"""Two evaluations compared over REST."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gradeline.engine.comparison import compare
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
from gradeline.service.service import Service

EXACT = {"exact": RunGrader("exact", "f1")}
PATH = "/api/evaluations/compare"


@pytest.fixture
def save(service: Service) -> Callable[..., str]:
    """Stores a run, given each case's scores by grader; None is a grader that broke."""

    def saved(cases: Mapping[str, Mapping[str, float | None]], graders: Any = EXACT, text: str = "?") -> str:
        run = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=graders, total=len(cases)))
        for case, scores in cases.items():
            key = ResponseKey(run, case)
            service.storage.put_response(key, Response(text="x"), Sample(case, text if case == "edited" else "?"))
            for grader, score in scores.items():
                service.storage.put_grade(GradeKey(*key, grader), grade(score))
        return run

    return saved


def grade(score: float | None) -> Grade:
    if score is None:
        return Grade("exact", "f1", Outcome.ERROR, error=ErrorInfo("timeout", "late", Fault.GRADER))
    passed = score >= 0.5
    return Grade("exact", "f1", Outcome.PASS if passed else Outcome.FAIL, score, passed)


def case(
    key: str,
    change: str,
    before: float | None,
    after: float | None,
    question: str,
    baseline_output: str | None,
    candidate_output: str | None,
) -> dict[str, Any]:
    return {
        "test_case_id": key,
        "change": change,
        "changes": {"exact": change},
        "baseline": {"exact": before},
        "candidate": {"exact": after},
        "input": question,
        "baseline_output": baseline_output,
        "candidate_output": candidate_output,
    }


def asked(call: Any, baseline: str, candidate: str, **params: Any) -> Any:
    return call("GET", PATH, params={"baseline": baseline, "candidate": candidate, **params})


def test_a_failed_call_counts_in_the_list_of_cases_as_in_the_decision(call: Any, service: Service) -> None:
    """With ``agent_errors: fail`` a case without an answer is a lost case, not a missing one."""

    def saved(failing: str | None) -> str:
        rules = '{"rules": {"agent_errors": "fail"}}'
        run = Run(name="n", suite="s", status="completed", graders=EXACT, total=2, definition=rules)
        id_ = service.storage.save_run(run)
        for name in "ab":
            error = ErrorInfo("timeout", "late", Fault.AGENT) if name == failing else None
            response = Response(text="x") if error is None else Response(status="timeout", error=error)
            service.storage.put_response(ResponseKey(id_, name), response, Sample(name, "?"))
            service.storage.put_grade(
                GradeKey(id_, name, 0, "exact"), grade(1.0) if error is None else Grade("exact", "f1", Outcome.SKIPPED)
            )
        return id_

    data = asked(call, saved(None), saved("b")).data
    assert data["graders"]["exact"]["worse"] == 1
    assert {one["test_case_id"]: (one["change"], one["candidate"]["exact"]) for one in data["cases"]} == {
        "a": ("same", 1.0),
        "b": ("worse", 0.0),
    }
    assert data["case_counts"]["worse"] == 1


def test_the_whole_comparison(call: Any, service: Service, save: Callable[..., str]) -> None:
    first = save({"a": {"exact": 0.0}, "b": {"exact": 1.0}, "c": {"exact": 1.0}, "edited": {"exact": 1.0}})
    second = save({"a": {"exact": 1.0}, "b": {"exact": 1.0}, "d": {"exact": 0.0}, "edited": {"exact": 0.0}}, text="!")
    before, after = service.storage.get_run(first), service.storage.get_run(second)
    assert before is not None
    assert after is not None
    truth = compare(service.storage, before, after).graders["exact"]
    assert truth.difference_ci is not None
    answer = asked(call, first, second)
    assert answer.status == 200
    assert answer.data == {
        "baseline_id": first,
        "candidate_id": second,
        "comparability": {
            "comparable": True,
            "reasons": [
                "cases: 1 case in the baseline alone",
                "cases: 1 case in the candidate alone",
                "cases: 1 case edited between the runs, left out",
            ],
        },
        "margin": 0.02,
        "decision": "undecided",
        "sentence": "undecided (exact)",
        "primary": ["exact"],
        "warnings": [],
        "graders": {
            "exact": {
                "difference": 0.5,
                "low": truth.difference_ci[0],
                "high": truth.difference_ci[1],
                "decision": "undecided",
                "n": 2,
                "reasons": list(truth.reasons),
                "cases_to_decide": truth.cases_to_decide,
                "coverage": pytest.approx(2 / 3),
                "bounds_low": 0.0,
                "bounds_high": pytest.approx(1 / 3),
                "baseline": 0.5,
                "candidate": 1.0,
                "p_value": truth.p_value,
                "p_adjusted": truth.p_adjusted,
                "test": "mcnemar_mid_p",
                "noise_threshold": truth.noise_threshold,
                "skewed": False,
                "largest_drops": [],
                "noise": 0.0,
                "within_noise": 0,
                "improved": 1,
                "worse": 0,
                "same": 1,
                "missing": 2,
                "clusters": None,
                "corrected": None,
            }
        },
        "cases": [
            case("a", "improved", 0.0, 1.0, "?", "x", "x"),
            case("b", "same", 1.0, 1.0, "?", "x", "x"),
            case("d", "missing", None, 0.0, "?", None, "x"),
            case("edited", "edited", 1.0, 0.0, "!", "x", "x"),
            case("c", "missing", 1.0, None, "?", "x", None),
        ],
        "case_counts": {
            "improved": 1,
            "worse": 0,
            "mixed": 0,
            "same": 1,
            "missing": 2,
            "not_applicable": 0,
            "edited": 1,
        },
        "cases_omitted": 0,
    }


def test_graders_that_disagree_make_a_case_mixed(call: Any, save: Callable[..., str]) -> None:
    graders = {**EXACT, "judge": RunGrader("model_judge", "f2")}
    first = save({"a": {"exact": 0.0, "judge": 1.0}, "b": {"exact": 1.0, "judge": None}}, graders)
    second = save({"a": {"exact": 1.0, "judge": 0.5}, "b": {"exact": 0.0, "judge": 1.0}}, graders)
    cases = asked(call, first, second).data["cases"]
    assert [case["change"] for case in cases] == ["mixed", "worse"]
    assert [case["changes"] for case in cases] == [
        {"exact": "improved", "judge": "worse"},
        {"exact": "worse", "judge": "missing"},
    ]


def test_changes_that_are_noise_to_a_grader_count_as_same(call: Any, save: Callable[..., str]) -> None:
    graders = {"exact": RunGrader("exact", "f1", noise=0.01), "judge": RunGrader("model_judge", "f2")}
    first = save({case: {"exact": 0.5, "judge": 0.5} for case in "abc"}, graders)
    second = save(
        {
            "a": {"exact": 0.505, "judge": 0.5},
            "b": {"exact": 0.52, "judge": 0.5},
            "c": {"exact": 0.495, "judge": 0.505},
        },
        graders,
    )
    data = asked(call, first, second).data
    exact = data["graders"]["exact"]
    assert (exact["noise"], exact["within_noise"], exact["improved"], exact["same"]) == (0.01, 2, 1, 2)
    assert (data["graders"]["judge"]["noise"], data["graders"]["judge"]["within_noise"]) == (0.0, 0)
    assert [(case["change"], case["changes"]) for case in data["cases"]] == [
        ("same", {"exact": "same", "judge": "same"}),
        ("improved", {"exact": "improved", "judge": "same"}),
        ("improved", {"exact": "same", "judge": "improved"}),
    ]
    assert (data["case_counts"]["same"], data["case_counts"]["improved"]) == (1, 2)


def test_a_clear_loss_is_worse(call: Any, save: Callable[..., str]) -> None:
    first = save({f"c{number}": {"exact": 1.0} for number in range(30)})
    second = save({f"c{number}": {"exact": float(number < 10)} for number in range(30)})
    data = asked(call, first, second).data
    assert (data["decision"], data["graders"]["exact"]["decision"]) == ("worse", "worse")
    assert data["graders"]["exact"]["high"] < 0
    assert data["case_counts"]["worse"] == 20


def test_other_graders_are_not_compared_unless_forced(call: Any, save: Callable[..., str]) -> None:
    first = save({"a": {"exact": 0.0}})
    second = save({"a": {"exact": 1.0}}, {"exact": RunGrader("exact", "another")})
    refused = asked(call, first, second)
    assert (refused.status, refused.data["comparability"]["comparable"]) == (200, False)
    assert "not the same in both runs" in refused.data["comparability"]["reasons"][0]
    assert (refused.data["graders"], refused.data["cases"], refused.data["decision"]) == ({}, [], None)
    forced = asked(call, first, second, force="true").data
    assert forced["comparability"]["comparable"] is False
    assert (forced["graders"]["exact"]["n"], forced["cases"][0]["change"]) == (1, "improved")


def test_runs_without_a_common_case_are_not_compared(call: Any, save: Callable[..., str]) -> None:
    answer = asked(call, save({"a": {"exact": 0.0}}), save({"b": {"exact": 1.0}}))
    assert answer.data["comparability"]["reasons"][0] == "the runs have no case in common"
    assert answer.data["graders"] == {}


def test_a_wider_margin_decides_an_undecided_comparison(call: Any, save: Callable[..., str]) -> None:
    first = save({f"c{number}": {"exact": 1.0} for number in range(40)})
    second = save({f"c{number}": {"exact": float(number > 0)} for number in range(40)})
    assert asked(call, first, second, margin=0).data["decision"] == "undecided"
    assert asked(call, first, second, margin=0.5).data["decision"] == "not_worse"


def test_of_very_many_cases_the_changed_ones_are_listed(
    call: Any, save: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeline.service.comparisons.MOST_CASES", 3)
    first = save({f"c{number}": {"exact": 1.0} for number in range(8)})
    second = save({f"c{number}": {"exact": float(number < 6)} for number in range(8)})
    data = asked(call, first, second).data
    assert [case["test_case_id"] for case in data["cases"]] == ["c6", "c7", "c0"]
    assert (data["cases_omitted"], data["case_counts"]["same"]) == (5, 6)


def test_unknown_runs_are_not_found(call: Any, save: Callable[..., str]) -> None:
    run = save({"a": {"exact": 0.0}})
    for pair in ((run, "nope"), ("nope", run), (run, "a\0b")):
        answer = asked(call, *pair)
        assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("params", "code", "word"),
    [
        ({"baseline": "x"}, "MISSING_FIELD", "candidate"),
        ({"candidate": "x"}, "MISSING_FIELD", "baseline"),
        ({"baseline": "x", "candidate": "y", "margin": 2}, "INVALID_INPUT", "margin"),
        ({"baseline": "x", "candidate": "y", "margin": "nan"}, "INVALID_INPUT", "margin"),
        ({"baseline": "x", "candidate": "y", "force": "perhaps"}, "INVALID_INPUT", "force"),
    ],
)
def test_wrong_parameters_are_named(call: Any, params: dict[str, Any], code: str, word: str) -> None:
    answer = call("GET", PATH, params=params)
    assert (answer.status, answer.error["code"]) == (400, code)
    assert word in answer.error["message"]


def test_the_texts_of_a_case_are_short_and_on_one_line(call: Any, service: Service) -> None:
    responses = [
        Response(text='Paris,\n\n  of "course" 😀'),
        Response(status="error", error=ErrorInfo("status", "answered 500", Fault.AGENT)),
    ]
    samples = [Sample("turns", ["first\nturn", "second"]), Sample("long", "é" * 5000)]
    runs = []
    for response in responses:
        run = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=EXACT, total=2))
        for sample in samples:
            service.storage.put_response(ResponseKey(run, sample.case_key), response, sample)
            service.storage.put_grade(GradeKey(run, sample.case_key, 0, "exact"), grade(1.0))
        runs.append(run)
    texts = [
        (one["input"], one["baseline_output"], one["candidate_output"]) for one in asked(call, *runs).data["cases"]
    ]
    assert texts == [
        ("first turn", 'Paris, of "course" 😀', None),
        ("é" * 199 + "…", 'Paris, of "course" 😀', None),
    ]


def test_a_run_that_regrades_shows_the_answers_of_its_parent(
    call: Any, service: Service, save: Callable[..., str]
) -> None:
    first = save({"a": {"exact": 0.0}})
    child = Run(name="n", suite="s", status="completed", graders=EXACT, total=1, parent=first)
    second = service.storage.save_run(child)
    service.storage.put_grade(GradeKey(second, "a", 0, "exact"), grade(1.0))
    assert asked(call, first, second).data["cases"] == [case("a", "improved", 0.0, 1.0, "?", "x", "x")]

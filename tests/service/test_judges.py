"""What people's labels say of judges, over REST: states, calibrations, corrected rates and differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradeline.engine.aggregate import conclude
from gradeline.engine.definition import now
from gradeline.model import Run, RunGrader
from gradeline.model.label import HumanVerdict
from gradeline.service.service import Service
from gradeline.trust.calibration import calibrate
from gradeline.trust.calibration_data import judge_of, read_labels
from gradeline.trust.calibration_records import store_calibration

from .conftest import Call

sys.path.insert(0, str(Path(__file__).parent.parent))

from judged_run import JUDGE, JudgedCase, put_labels, store_run

CASES = 120


def judged(service: Service, passing: int = 80, right: int = 60, labels: int = 100, **fields: Any) -> Run:
    """A run whose judge passes more than people do; the labels are a random sample."""
    cases = [
        JudgedCase(
            {"quality": number % CASES < passing},
            number < right if number % CASES < labels else None,
            probability=labels / CASES,
        )
        for number in range(CASES)
    ]
    return store_run(service.storage, cases, **fields)


def summary_of(call: Call, run: Run) -> Any:
    return call("GET", f"/api/evaluations/{run.id}/results", params={"limit": 1}).data["summary"]


def calibrated(service: Service, run: Run) -> None:
    data = read_labels(service.storage, run, "quality", "quality")
    found = calibrate(judge_of(run, "quality", "quality"), data.labelled, data.results, now(), data.source)
    store_calibration(service.storage, found)


def test_a_summary_has_the_state_of_the_judge_and_the_corrected_rate(service: Service, call: Call) -> None:
    run = judged(service)
    summary = summary_of(call, run)
    shown = conclude(service.storage, run).summary.graders["quality"]
    assert shown.corrected is not None
    assert shown.calibration is not None
    assert summary["calibration"] == {"quality": {"state": "uncalibrated", "reason": shown.calibration.reason}}
    found = summary["corrected"]["quality"]
    assert found["sentence"] == shown.corrected.sentence
    assert (found["judge"], found["labels"], found["refusal"]) == (pytest.approx(80 / 120), 100, None)
    assert found["low"] < found["estimate"] < found["judge"]
    assert summary["corrected_means"] == {}


def test_labels_and_calibrations_change_the_summary_at_once(service: Service, call: Call) -> None:
    run = judged(service, labels=0)
    assert summary_of(call, run)["corrected"] == {}
    put_labels(service.storage, run, "quality", [("c0", HumanVerdict("fail", score=0.25))])
    one = summary_of(call, run)
    assert (one["corrected"]["quality"]["missing_labels"], one["corrected"]["quality"]["estimate"]) == (30, None)
    assert one["corrected_means"]["quality"]["refusal"] is not None
    more = [(f"c{number}", HumanVerdict("pass" if number < 70 else "fail", probability=1.0)) for number in range(CASES)]
    put_labels(service.storage, run, "quality", more)
    assert summary_of(call, run)["calibration"]["quality"]["state"] == "uncalibrated"
    calibrated(service, run)
    found = summary_of(call, run)
    assert found["calibration"]["quality"]["state"] == "calibrated"
    assert found["corrected"]["quality"]["labels"] == CASES


def test_a_run_without_judges_has_no_state_but_its_labels_count(service: Service, call: Call) -> None:
    rule = RunGrader("exact", "f2")
    run = judged(service, labels=0, graders={"quality": rule})
    assert summary_of(call, run)["corrected"] == {}
    put_labels(service.storage, run, "quality", [("c0", HumanVerdict("fail"))])
    found = summary_of(call, run)
    assert (found["calibration"], list(found["corrected"])) == ({}, ["quality"])
    assert call("GET", f"/api/evaluations/{run.id}/calibration").data == {"evaluation_id": run.id, "graders": {}}


def test_the_calibration_of_a_run_has_its_record(service: Service, call: Call) -> None:
    run = judged(service, passing=62)
    path = f"/api/evaluations/{run.id}/calibration"
    before = call("GET", path).data["graders"]["quality"]
    assert (before["state"], before["calibration"]) == ("uncalibrated", None)
    assert "never compared with labels" in before["reason"]
    calibrated(service, run)
    after = call("GET", path).data["graders"]["quality"]
    assert after["state"] == "calibrated"
    assert (after["calibration"]["labels"], after["calibration"]["table"]["fp"]) == (100, pytest.approx(2.0))
    assert after["reason"].startswith("agreement 0.980, kappa ")


def test_an_expired_and_a_failed_judge_say_why(service: Service, call: Call) -> None:
    calibrated(service, judged(service, passing=62))
    changed = RunGrader("model_judge", "f9", ("openai:other",), prompt_hash="p1")
    later = judged(service, labels=0, graders={"quality": changed})
    found = summary_of(call, later)["calibration"]["quality"]
    assert found["state"] == "expired"
    assert found["reason"].startswith("the model changed from openai:m to openai:other since ")
    bad = judged(service, passing=30, suite="other")
    calibrated(service, bad)
    assert call("GET", f"/api/evaluations/{bad.id}/calibration").data["graders"]["quality"]["state"] == "failed"


def test_judges_are_listed_with_their_latest_calibration(service: Service, call: Call) -> None:
    assert call("GET", "/api/judges").data == {"judges": [], "count": 0, "total": 0, "next_cursor": None}
    first, second = judged(service, passing=62), judged(service, passing=30, suite="other")
    for run in (first, first, second):
        calibrated(service, run)
    page = call("GET", "/api/judges", params={"limit": 1}).data
    rest = call("GET", "/api/judges", params={"cursor": page["next_cursor"]}).data
    listed = [(one["calibration"]["suite"], one["state"]) for one in (*page["judges"], *rest["judges"])]
    assert listed == [("other", "failed"), ("support", "calibrated")]
    assert (page["total"], rest["count"], rest["next_cursor"]) == (2, 1, None)
    of_suite = call("GET", "/api/judges", params={"suite": "other"}).data
    assert [one["calibration"]["suite"] for one in of_suite["judges"]] == ["other"]
    assert call("GET", "/api/judges", params={"suite": "none"}).data["total"] == 0


@pytest.mark.parametrize("params", [{"limit": 0}, {"cursor": "nonsense"}, {"suite": "a\0"}, {"skip": -1}])
def test_an_invalid_list_of_judges_is_refused(call: Call, params: dict[str, Any]) -> None:
    answer = call("GET", "/api/judges", params=params)
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")


def test_an_unknown_run_has_no_calibration(call: Call) -> None:
    assert call("GET", "/api/evaluations/nothing/calibration").status == 404


def test_a_difference_is_corrected_by_labels_of_both_runs(service: Service, call: Call) -> None:
    def run(passing: Sequence[int], right: int) -> Run:
        cases = [JudgedCase({"quality": n in passing}, n < right, probability=0.5) for n in range(CASES)]
        return store_run(service.storage, cases, {"quality": JUDGE})

    baseline, candidate = run(range(60), 60), run(range(20, 120), 40)
    params = {"baseline": baseline.id, "candidate": candidate.id}
    difference = call("GET", "/api/evaluations/compare", params=params).data["graders"]["quality"]
    found = difference["corrected"]
    assert (found["estimate"], found["judge"]) == (pytest.approx(-20 / CASES), pytest.approx(40 / CASES))
    assert found["sentence"] in " ".join([*difference["reasons"], found["sentence"]])
    assert difference["decision"] == "worse"


@pytest.mark.parametrize("scope", ["read", "run", "label"])
def test_every_key_may_read_calibrations(
    service: Service, call: Call, call_with: Callable[[str], dict[str, str]], scope: str
) -> None:
    run = judged(service, labels=0)
    headers = call_with(scope)
    for path in ("/api/judges", f"/api/evaluations/{run.id}/calibration"):
        assert call("GET", path, headers=headers).status == 200
        assert call("GET", path).status == 401

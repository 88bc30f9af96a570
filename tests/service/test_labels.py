"""Labels over REST: stored next to grades, with a history, deleted with their run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from msgspec.structs import asdict

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
    case_digest,
    digest_of,
    to_json,
)
from gradeline.service.labels import with_labels
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

from .conftest import Answer, Call

sys.path.insert(0, str(Path(__file__).parent.parent))

from postgres_server import ENV, Database, Server, why_no_server

GRADERS = {"exact": RunGrader("exact", "f1"), "judge/é": RunGrader("model_judge", "f2")}
CASES = ("a", "b/labels/é~1", "c")
BODY = {"verdict": "pass", "reason": "It is right, in other words."}


@pytest.fixture
def run(service: Service) -> str:
    """Three results, each graded by one grader; the judge failed at the first and has not reached the others."""
    name = service.storage.save_run(Run(name="n", suite="s", status="completed", graders=GRADERS, total=3))
    for case in CASES:
        key = ResponseKey(name, case)
        service.storage.put_response(key, Response(text="x", latency_ms=1.0), Sample(case, f"question {case}", "y"))
        service.storage.put_grade(GradeKey(*key, "exact"), Grade("exact", "f1", Outcome.FAIL, 0.0, False))
    broken = ErrorInfo("timeout", "the judge took too long", Fault.GRADER)
    service.storage.put_grade(
        GradeKey(name, "a", 0, "judge/é"), Grade("model_judge", "f2", Outcome.ERROR, error=broken)
    )
    return name


def path_of(run: str, case: str = "a", grader: str = "exact") -> str:
    result = quote(f"{quote(case, safe='')}~0", safe="~")
    return f"/api/evaluations/{run}/results/{result}/labels/{quote(grader, safe='')}"


def put(call: Call, run: str, case: str = "a", grader: str = "exact", **more: Any) -> Answer:
    headers = more.pop("headers", {})
    return call("PUT", path_of(run, case, grader), json={**BODY, **more}, headers=headers)


def labels_of(call: Call, run: str, case: str = "a") -> Any:
    return call("GET", path_of(run, case).rpartition("/")[0]).data


def test_a_label_identifies_its_grade(service: Service, call: Call, run: str) -> None:
    answer = put(call, run, verdict="pass", score=0.75)
    record = service.storage.get_record(ResponseKey(run, "a"))
    assert record is not None
    expected = {
        "result_id": "a~0",
        "test_case_id": "a",
        "repeat": 0,
        "grader_id": "exact",
        "verdict": "pass",
        "score": 0.75,
        "category": None,
        "reason": "It is right, in other words.",
        "role": "rater",
        "probability": None,
        "sample": None,
        "author": None,
        "labelled_at": answer.data["labelled_at"],
        "grade_outcome": "fail",
        "grade_score": 0.0,
        "grader_fingerprint": "f1",
        "case_digest": case_digest(record.sample),
        "response_digest": digest_of(to_json(record.response)),
    }
    assert (answer.status, answer.data) == (200, expected)
    assert labels_of(call, run) == {
        "labels": [expected],
        "history": [
            {
                "grader_id": "exact",
                "verdict": "pass",
                "score": 0.75,
                "category": None,
                "reason": "It is right, in other words.",
                "role": "rater",
                "withdrawn": False,
                "author": None,
                "at": expected["labelled_at"],
            }
        ],
    }
    page = call("GET", f"/api/evaluations/{run}/labels").data
    assert page == {"labels": [expected], "count": 1, "total": 1, "next_cursor": None}


def test_a_label_changes_only_what_is_corrected_by_labels(service: Service, call: Call, run: str) -> None:
    def seen() -> tuple[Any, Any, Any]:
        results = call("GET", f"/api/evaluations/{run}/results").data
        corrected = results["summary"].pop("corrected")
        return results, service.storage.get_record(ResponseKey(run, "a")), corrected

    *before, without = seen()
    put(call, run)
    *after, corrected = seen()
    assert after == before
    assert (without, list(corrected), corrected["exact"]["missing_labels"]) == ({}, ["exact"], 30)


def test_a_result_can_be_shown_with_its_labels(service: Service, call: Call, run: str) -> None:
    put(call, run)
    put(call, run, "c")
    call("DELETE", path_of(run, "c"))
    labels = service.labels.of_result(run, "a", 0)
    assert [label.grader_id for label in labels] == ["exact"]
    assert service.labels.of_run(run) == {("a", 0): labels}
    plain = service.results.detail(run, "a~0")
    shown = with_labels(plain, labels)
    assert asdict(shown) == {**asdict(plain), "labels": labels}


def test_a_grader_that_failed_can_be_labelled_and_still_has_no_score(call: Call, run: str) -> None:
    label = put(call, run, grader="judge/é", verdict="fail").data
    assert (label["grader_id"], label["grade_outcome"], label["grade_score"]) == ("judge/é", "error", None)


def test_a_label_without_a_score_has_none(call: Call, run: str) -> None:
    assert put(call, run).data["score"] is None
    assert put(call, run, score=None).data["score"] is None


def test_changes_and_deletes_are_added_to_the_history(
    service: Service, call: Call, run: str, call_with: Callable[[str], dict[str, str]]
) -> None:
    one, two = call_with("label"), call_with("label")
    put(call, run, verdict="pass", reason="good", headers=one)
    put(call, run, verdict="fail", reason="on second thought", score=0, headers=two)
    assert call("DELETE", path_of(run), headers=one).status == 204
    data = call("GET", path_of(run).rpartition("/")[0], headers=one).data
    assert [(label["verdict"], label["author"]) for label in data["labels"]] == [
        ("fail", two["Authorization"].split("_")[1])
    ]
    first, second = (headers["Authorization"].split("_")[1] for headers in (one, two))
    assert [(act["verdict"], act["reason"], act["score"], act["author"]) for act in data["history"]] == [
        ("pass", "good", None, first),
        ("fail", "on second thought", 0.0, second),
        (None, None, None, first),
    ]
    assert [(entry.key_id, entry.action, entry.subject, entry.details) for entry in service.audit.entries()] == [
        (first, "label.put", run, {"result_id": "a~0", "grader_id": "exact", "verdict": "pass", "score": None}),
        (second, "label.put", run, {"result_id": "a~0", "grader_id": "exact", "verdict": "fail", "score": 0.0}),
        (first, "label.delete", run, {"result_id": "a~0", "grader_id": "exact"}),
    ]


def test_a_withdrawn_label_can_be_stored_again(call: Call, run: str) -> None:
    put(call, run)
    assert call("DELETE", path_of(run)).status == 204
    again = call("DELETE", path_of(run))
    assert (again.status, again.error["message"]) == (404, "No label of the grader 'exact'")
    put(call, run, verdict="fail")
    data = labels_of(call, run)
    assert [label["verdict"] for label in data["labels"]] == ["fail"]
    assert [act["verdict"] for act in data["history"]] == ["pass", None, "fail"]


def test_a_case_and_a_grader_of_any_name_can_be_labelled(call: Call, run: str) -> None:
    case = CASES[1]
    label = put(call, run, case).data
    assert (label["test_case_id"], label["result_id"]) == (case, f"{quote(case, safe='')}~0")
    assert labels_of(call, run, case)["labels"] == [label]
    assert call("DELETE", path_of(run, case)).status == 204
    assert labels_of(call, run, case)["labels"] == []


def test_labels_come_in_pages_the_latest_change_last(call: Call, run: str) -> None:
    for case in (*CASES, "a"):
        put(call, run, case)
    path = f"/api/evaluations/{run}/labels"
    first = call("GET", path, params={"limit": 2}).data
    rest = call("GET", path, params={"limit": 2, "cursor": first["next_cursor"]}).data
    assert [[label["test_case_id"] for label in page["labels"]] for page in (first, rest)] == [
        [CASES[1], CASES[2]],
        ["a"],
    ]
    assert [(page["count"], page["total"]) for page in (first, rest)] == [(2, 3), (1, 3)]
    assert rest["next_cursor"] is None
    assert [label["test_case_id"] for label in call("GET", path, params={"skip": 2}).data["labels"]] == ["a"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"limit": 0}, "Field 'limit'"),
        ({"limit": 1001}, "Field 'limit'"),
        ({"skip": 10_001}, "Field 'skip'"),
        ({"cursor": "nonsense"}, "Parameter 'cursor' has the invalid value"),
        ({"cursor": "WzFd", "skip": 1}, "exclude each other"),
    ],
)
def test_an_invalid_page_is_refused(call: Call, run: str, params: dict[str, Any], message: str) -> None:
    answer = call("GET", f"/api/evaluations/{run}/labels", params=params)
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
    assert message in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"reason": "r"}, "MISSING_FIELD", "Field 'verdict' is required"),
        ({"verdict": "pass"}, "MISSING_FIELD", "Field 'reason' is required"),
        ({**BODY, "verdict": "skipped"}, "INVALID_INPUT", "Field 'verdict'"),
        ({**BODY, "verdict": True}, "INVALID_INPUT", "Field 'verdict'"),
        ({**BODY, "reason": ""}, "INVALID_LENGTH", "Field 'reason'"),
        ({**BODY, "reason": "é" * 2001}, "INVALID_LENGTH", "Field 'reason'"),
        ({**BODY, "reason": " \n "}, "INVALID_INPUT", "must not be blank"),
        ({**BODY, "reason": "a\0b"}, "INVALID_INPUT", "NUL"),
        ({**BODY, "reason": "a\ud800b"}, "INVALID_INPUT", "reason"),
        ({**BODY, "score": 1.01}, "INVALID_INPUT", "Field 'score'"),
        ({**BODY, "score": -0.01}, "INVALID_INPUT", "Field 'score'"),
        ({**BODY, "score": "1"}, "INVALID_INPUT", "Field 'score'"),
        ({**BODY, "score": True}, "INVALID_INPUT", "Field 'score'"),
        ({**BODY, "more": 1}, "INVALID_INPUT", "Field 'more' is unknown"),
        ([], "INVALID_INPUT", "must be a JSON object"),
    ],
)
def test_an_invalid_label_is_refused(call: Call, run: str, body: Any, code: str, message: str) -> None:
    # half a character can only be sent escaped
    answer = call("PUT", path_of(run), content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert (answer.status, answer.error["code"]) == (400, code)
    assert message in answer.error["message"]
    assert labels_of(call, run) == {"labels": [], "history": []}


def test_scores_that_are_not_numbers_are_refused(call: Call, run: str) -> None:
    for score in ("NaN", "Infinity", "1e400"):
        content = f'{{"verdict": "pass", "reason": "r", "score": {score}}}'
        answer = call("PUT", path_of(run), content=content, headers={"Content-Type": "application/json"})
        assert answer.status == 400, score


def test_a_reason_may_have_two_thousand_characters(call: Call, run: str) -> None:
    assert put(call, run, reason="𝄞" * 2000).data["reason"] == "𝄞" * 2000


def test_an_unknown_result_cannot_be_labelled(call: Call, run: str) -> None:
    unknown = {
        "evaluation": path_of("nothing"),
        "result": path_of(run, "nobody"),
        "grader of this evaluation": path_of(run, grader="nobody"),
    }
    for what, path in unknown.items():
        answer = call("PUT", path, json=BODY)
        assert (answer.status, answer.error["code"]) == (404, "NOT_FOUND"), what
        assert answer.error["message"].startswith(f"No {what} "), answer.error
        assert call("DELETE", path).status == 404
    for path in (
        "/api/evaluations/nothing/labels",
        f"/api/evaluations/{run}/results/nobody~0/labels",
        f"/api/evaluations/{run}/results/a/labels",
    ):
        assert call("GET", path).status == 404
    assert call("DELETE", path_of(run, grader="a%00b")).status == 404


def test_a_grader_that_has_not_graded_yet_cannot_be_labelled(call: Call, run: str) -> None:
    answer = put(call, run, "c", "judge/é")
    assert (answer.status, answer.error["code"]) == (409, "CONFLICT")
    assert "has not graded this result yet" in answer.error["message"]


@pytest.mark.parametrize(("scope", "status"), [("read", 403), ("run", 403), ("label", 200), ("admin", 200)])
def test_labels_need_their_scope(
    call: Call, run: str, call_with: Callable[[str], dict[str, str]], scope: str, status: int
) -> None:
    headers = call_with(scope)
    assert put(call, run, headers=headers).status == status
    assert call("GET", f"/api/evaluations/{run}/labels", headers=headers).status == 200


def test_labels_go_with_their_run(service: Service, call: Call, run: str) -> None:
    put(call, run)
    call("DELETE", path_of(run))
    put(call, run, "c")
    assert call("DELETE", f"/api/evaluations/{run}").status == 204
    assert service.database.read("SELECT * FROM labels") == []
    assert call("GET", f"/api/evaluations/{run}/labels").status == 404


def test_concurrent_labels_are_all_stored(call: Call, run: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as people:
        answers = list(people.map(lambda number: put(call, run, reason=f"r{number}"), range(12)))
    assert {answer.status for answer in answers} == {200}
    data = labels_of(call, run)
    assert {act["reason"] for act in data["history"]} == {f"r{number}" for number in range(12)}
    assert [label["reason"] for label in data["labels"]] == [data["history"][-1]["reason"]]


class TestInPostgres:
    """Every statement, once."""

    @pytest.fixture
    def settings(self) -> Iterator[ServeSettings]:
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

    def test_labels_and_the_audit_log_are_stored_there_too(self, service: Service, call: Call, run: str) -> None:
        for case, verdict in (("a", "pass"), ("c", "fail"), ("a", "fail")):
            assert put(call, run, case, verdict=verdict, score=1).status == 200
        path = f"/api/evaluations/{run}/labels"
        first = call("GET", path, params={"limit": 1}).data
        rest = call("GET", path, params={"cursor": first["next_cursor"]}).data
        listed = [(one["test_case_id"], one["verdict"], one["score"]) for one in (*first["labels"], *rest["labels"])]
        assert (listed, first["total"]) == ([("c", "fail", 1.0), ("a", "fail", 1.0)], 2)
        assert call("DELETE", path_of(run)).status == 204
        assert call("DELETE", path_of(run)).status == 404
        assert [act["verdict"] for act in labels_of(call, run)["history"]] == ["pass", "fail", None]
        newest = call("GET", "/api/audit", params={"limit": 1, "actor": "local"}).data
        older = call("GET", "/api/audit", params={"cursor": newest["next_cursor"], "action": "label.put"}).data
        assert [entry["action"] for entry in newest["entries"]] == ["label.delete"]
        assert [entry["action"] for entry in older["entries"]] == ["label.put"] * 3
        assert call("GET", "/api/audit", params={"actor": "nobody"}).data["entries"] == []
        assert call("DELETE", f"/api/evaluations/{run}").status == 204
        assert service.database.read("SELECT * FROM labels") == []


def test_detail_and_export_carry_labels(call: Call, run: str) -> None:
    label = put(call, run).data
    detail = call("GET", f"/api/evaluations/{run}/results/a~0").data
    assert detail["labels"] == [label]
    exported = call("GET", f"/api/evaluations/{run}/export", params={"format": "json"}).body
    assert [one["labels"] for one in exported["results"]] == [[label], [], []]

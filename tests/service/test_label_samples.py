"""Samples to label over REST: drawn once, blind to grades, one label of each key."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.model import Run, RunGrader, to_json
from gradeline.model.label import HumanVerdict
from gradeline.service.service import Service
from gradeline.store.labels import draws_of_run, labels_of_run

from .conftest import Answer, Call

sys.path.insert(0, str(Path(__file__).parent.parent))

from judged_run import JUDGE, JudgedCase, put_labels, store_run

SECRET = "the answer of the agent"


@pytest.fixture
def run(service: Service) -> Run:
    """20 results, of which the judge fails 2."""
    cases = [JudgedCase({"quality": number >= 2}, text=f"{SECRET} {number}") for number in range(20)]
    return store_run(service.storage, cases, expected="expected")


def draw(call: Call, run: Run, headers: dict[str, str] | None = None, **body: Any) -> Answer:
    return call("POST", f"/api/evaluations/{run.id}/label-samples", json=body, headers=headers or {})


def path_of(run: Run, sample: str, place: int | str = "") -> str:
    tail = "" if place == "" else f"/items/{place}"
    return f"/api/evaluations/{run.id}/label-samples/{sample}{tail}"


def test_a_sample_is_drawn_once_and_extended(service: Service, call: Call, run: Run) -> None:
    small = draw(call, run, n=4, seed=7, method="random").data
    assert (small["question"], small["method"], small["seed"], small["size"]) == ("quality", "random", 7, 4)
    assert (small["labelled"], small["labelled_by_you"]) == (0, 0)
    assert draw(call, run, n=4, seed=7, method="random").data == small
    large = draw(call, run, n=9, seed=7).data
    assert large["results"][:4] == small["results"]
    assert (large["sample"], large["size"], draw(call, run, n=2, seed=7).data["size"]) == (small["sample"], 9, 9)
    assert [one.case for one in draws_of_run(service.database.read, run.id, "quality")] == [
        one["test_case_id"] for one in large["results"]
    ]
    assert {entry.action for entry in service.audit.entries()} == {"label.draw"}


def test_nothing_shows_what_the_judge_decided(call: Call, run: Run) -> None:
    drawn = draw(call, run, n=6)
    assert drawn.data["method"] == "stratified"
    sample = drawn.data["sample"]
    answers = [
        drawn,
        call("GET", path_of(run, sample)),
        call("GET", f"{path_of(run, sample)}/next"),
        call("PUT", path_of(run, sample, 0), json={"verdict": "pass"}),
        call("DELETE", path_of(run, sample, 0)),
        call("GET", f"/api/evaluations/{run.id}/label-samples"),
    ]
    for answer in answers:
        keys = set(_keys(answer.data))
        assert not keys & {"grade_outcome", "grade_score", "probability", "stratum", "scores", "grades"}, keys


def _keys(tree: Any) -> list[str]:
    if isinstance(tree, dict):
        return [*tree, *(key for value in tree.values() for key in _keys(value))]
    return [key for value in tree for key in _keys(value)] if isinstance(tree, list) else []


def test_one_result_after_the_other_is_labelled(service: Service, call: Call, run: Run) -> None:
    sample = draw(call, run, n=3, seed=1, method="random").data
    first = call("GET", f"{path_of(run, sample['sample'])}/next").data
    assert (first["place"], first["size"], first["label"], first["next_place"]) == (0, 3, None, 1)
    assert first["texts"][0]["title"] == "input"
    assert [one["title"] for one in first["texts"]] == ["input", "expected", "answer"]
    assert first["texts"][2]["text"].startswith(SECRET)
    labelled = call("PUT", path_of(run, sample["sample"], 0), json={"verdict": "fail", "comment": "wrong"}).data
    assert (labelled["label"]["verdict"], labelled["label"]["comment"], labelled["labelled_by_you"]) == (
        "fail",
        "wrong",
        1,
    )
    assert call("GET", f"{path_of(run, sample['sample'])}/next").data["place"] == 1
    call("PUT", path_of(run, sample["sample"], 2), json={"score": 0.5})
    assert call("GET", path_of(run, sample["sample"], 2)).data["next_place"] == 1
    done = call("PUT", path_of(run, sample["sample"], 1), json={"category": "vague"}).data
    assert (done["labelled_by_you"], done["next_place"]) == (3, None)
    rows = labels_of_run(service.database.read, run.id)
    assert [(row.verdict, row.score, row.category, row.sample, row.probability) for row in rows] == [
        ("fail", None, None, sample["sample"], 3 / 20),
        (None, 0.5, None, sample["sample"], 3 / 20),
        (None, None, "vague", sample["sample"], 3 / 20),
    ]
    assert {row.grade_outcome for row in rows} <= {"pass", "fail"}


def test_a_label_is_withdrawn(service: Service, call: Call, run: Run) -> None:
    sample = draw(call, run, n=3, seed=1).data["sample"]
    call("PUT", path_of(run, sample, 0), json={"verdict": "fail"})
    for _ in range(2):
        withdrawn = call("DELETE", path_of(run, sample, 0)).data
        assert (withdrawn["label"], withdrawn["labelled_by_you"]) == (None, 0)
    assert [entry.action for entry in service.audit.entries()] == ["label.draw", "label.put", "label.delete"]


def test_each_key_has_its_own_labels_and_their_agreement_is_measured(
    service: Service, call: Call, run: Run, call_with: Callable[[str], dict[str, str]]
) -> None:
    one, two = call_with("label"), call_with("label")
    sample = draw(call, run, one, n=8, seed=1, method="random").data["sample"]
    assert draw(call, run, two, n=8, seed=1, method="random").data["sample"] == sample
    for place in range(8):
        call("PUT", path_of(run, sample, place), json={"verdict": "pass" if place < 4 else "fail"}, headers=one)
    for place in range(6):
        assert call("GET", path_of(run, sample, place), headers=two).data["label"] is None
        call("PUT", path_of(run, sample, place), json={"verdict": "pass" if place < 5 else "fail"}, headers=two)
    (listed,) = call("GET", f"/api/evaluations/{run.id}/label-samples", headers=two).data["samples"]
    assert (listed["labelled"], listed["labelled_by_you"]) == (8, 6)
    (found,) = call("GET", f"/api/evaluations/{run.id}/label-agreement", headers=two).data["questions"]
    names = sorted(headers["Authorization"].split("_")[1] for headers in (one, two))
    assert (found["question"], found["results"], found["unresolved"], found["stale"]) == ("quality", 8, 1, 0)
    assert sorted(rater["author"] for rater in found["raters"]) == names
    (pair,) = found["pairs"]
    assert (pair["authors"], pair["results"], pair["same"]) == (names, 6, 5)
    assert pair["kappa"]["low"] < pair["kappa"]["estimate"] < 1
    assert found["alpha"]["estimate"] < 1
    assert [sorted(row["labels"].values()) for row in found["disagreements"]] == [["fail", "pass"]]
    assert not found["disagreements"][0]["resolved"]
    labels = call("GET", f"/api/evaluations/{run.id}/labels", headers=two).data["labels"]
    assert sorted({label["author"] for label in labels}) == names


def test_a_regraded_run_has_the_sample_and_the_labels_of_its_responses(service: Service, call: Call, run: Run) -> None:
    sample = draw(call, run, n=3, seed=1).data["sample"]
    call("PUT", path_of(run, sample, 0), json={"verdict": "pass"})
    parent = service.storage.get_run(run.id)
    assert parent is not None
    again = Run(name="again", suite=run.suite, status="completed", graders=run.graders, total=20, parent=run.id)
    regraded = service.storage.get_run(service.storage.save_run(again))
    assert regraded is not None
    item = call("GET", path_of(regraded, sample, 0)).data
    assert (item["label"]["verdict"], item["labelled_by_you"]) == ("pass", 1)


def test_the_rubric_is_shown_but_no_file_of_the_server_is_read(service: Service, call: Call, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("a secret of the server")
    (tmp_path / "suite.yaml").write_text("graders: {quality: {kind: model_judge, prompt: from a file}}")

    def shown(**grader: str) -> Any:
        document = {"graders": {"quality": {"kind": "model_judge", **grader}}} if grader else None
        definition = to_json(RunDefinition(str(tmp_path / "suite.yaml"), RunOptions(), document=document))
        run = store_run(service.storage, [JudgedCase({"quality": True})])
        service.storage.update_run(run.id, definition=definition)
        sample = draw(call, run, n=1).data["sample"]
        return call("GET", f"{path_of(run, sample)}/next").data["rubric"]

    assert shown(prompt="Pass what is right.") == "Pass what is right."
    assert shown(prompt_path="secret.txt") is None
    assert shown() is None


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({"n": 0}, "INVALID_INPUT", "Field 'n'"),
        ({"n": 10_001}, "INVALID_INPUT", "Field 'n'"),
        ({"n": "5"}, "INVALID_INPUT", "Field 'n'"),
        ({"seed": -1}, "INVALID_INPUT", "Field 'seed'"),
        ({"seed": 2**60}, "INVALID_INPUT", "Field 'seed'"),
        ({"method": "best"}, "INVALID_INPUT", "Field 'method'"),
        ({"question": " "}, "INVALID_INPUT", "Field 'question'"),
        ({"question": "a\nb"}, "INVALID_INPUT", "Field 'question'"),
        ({"question": ""}, "INVALID_INPUT", "Field 'question'"),
        ({"more": 1}, "INVALID_INPUT", "Field 'more' is unknown"),
    ],
)
def test_an_invalid_sample_is_refused(call: Call, run: Run, body: Any, code: str, message: str) -> None:
    answer = draw(call, run, **body)
    assert (answer.status, answer.error["code"]) == (400, code)
    assert message in answer.error["message"]


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ({}, "MISSING_FIELD", "One of the fields 'verdict', 'score' and 'category'"),
        ({"comment": "only"}, "MISSING_FIELD", "One of the fields"),
        ({"verdict": "skip"}, "INVALID_INPUT", "Field 'verdict'"),
        ({"score": 1.5}, "INVALID_INPUT", "Field 'score'"),
        ({"score": True}, "INVALID_INPUT", "Field 'score'"),
        ({"category": ""}, "INVALID_INPUT", "Field 'category'"),
        ({"category": "a\tb"}, "INVALID_INPUT", "Field 'category'"),
        ({"category": "x" * 201}, "INVALID_LENGTH", "Field 'category'"),
        ({"verdict": "pass", "comment": "x" * 2001}, "INVALID_LENGTH", "Field 'comment'"),
        ({"verdict": "pass", "comment": "a\0b"}, "INVALID_INPUT", "NUL"),
        ({"verdict": "pass", "role": "adjudicator"}, "INVALID_INPUT", "Field 'role' is unknown"),
    ],
)
def test_an_invalid_label_is_refused(
    service: Service, call: Call, run: Run, body: Any, code: str, message: str
) -> None:
    sample = draw(call, run, n=1).data["sample"]
    answer = call("PUT", path_of(run, sample, 0), json=body)
    assert (answer.status, answer.error["code"]) == (400, code)
    assert message in answer.error["message"]
    assert labels_of_run(service.database.read, run.id) == []


def test_a_run_with_several_judges_needs_the_question(service: Service, call: Call) -> None:
    run = store_run(service.storage, [JudgedCase({"a": True, "b": False})], {"a": JUDGE, "b": JUDGE})
    answer = draw(call, run, n=1)
    assert (answer.status, answer.error["code"]) == (400, "MISSING_FIELD")
    assert "one of a, b" in answer.error["message"]
    assert draw(call, run, n=1, question="b").data["question"] == "b"
    assert draw(call, run, n=1, question="polite?").data["question"] == "polite?"


def test_a_run_in_progress_and_one_without_responses_have_no_sample(service: Service, call: Call, run: Run) -> None:
    service.storage.update_run(run.id, status="running")
    answer = draw(call, run, n=1)
    assert (answer.status, answer.error["code"]) == (409, "CONFLICT")
    assert "draw a sample when it has ended" in answer.error["message"]
    empty = store_run(service.storage, [], {"quality": RunGrader("exact", "f")})
    answer = draw(call, empty)
    assert (answer.status, answer.error["code"]) == (409, "CONFLICT")
    assert "no response to label" in answer.error["message"]


def test_what_a_run_does_not_have_is_not_found(call: Call, run: Run) -> None:
    sample = draw(call, run, n=2).data["sample"]
    for path in (path_of(run, "nothing"), path_of(run, sample, 2), path_of(run, sample, -1), path_of(run, sample, "x")):
        assert call("GET", path).status == 404, path
    assert call("PUT", path_of(run, sample, 10**30), json={"verdict": "pass"}).status == 404
    assert call("GET", "/api/evaluations/nothing/label-samples").status == 404
    assert call("GET", f"/api/evaluations/{run.id}/label-agreement").data["questions"] == [
        {
            "question": "quality",
            "results": 0,
            "raters": [],
            "alpha": None,
            "pairs": [],
            "disagreements": [],
            "unresolved": 0,
            "stale": 0,
        }
    ]


@pytest.mark.parametrize(("scope", "status"), [("read", 403), ("run", 403), ("label", 200), ("admin", 200)])
def test_drawing_and_labelling_need_their_scope(
    call: Call, run: Run, call_with: Callable[[str], dict[str, str]], scope: str, status: int
) -> None:
    sample = draw(call, run, n=1).data["sample"]
    headers = call_with(scope)
    assert draw(call, run, headers, n=1).status == status
    assert call("PUT", path_of(run, sample, 0), json={"verdict": "pass"}, headers=headers).status == status
    assert call("DELETE", path_of(run, sample, 0), headers=headers).status == status
    assert call("GET", path_of(run, sample, 0), headers=headers).status == 200


def test_labels_of_others_are_in_the_list_of_a_result(service: Service, call: Call, run: Run) -> None:
    for rater, verdict in (("ada", "pass"), ("eve", "fail")):
        put_labels(service.storage, run, "quality", [("c0", HumanVerdict(verdict))], rater)  # type: ignore[arg-type]
    put_labels(service.storage, run, "quality", [("c0", HumanVerdict("fail"))], "zoe", "adjudicator")
    found = call("GET", f"/api/evaluations/{run.id}/results/c0~0/labels").data["labels"]
    assert [(one["author"], one["verdict"], one["role"]) for one in found] == [
        ("ada", "pass", "rater"),
        ("eve", "fail", "rater"),
        ("zoe", "fail", "adjudicator"),
    ]

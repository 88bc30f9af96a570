"""Uploads over REST: parts in order, the same content, and hostile ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gradeline.engine.definition import RunDefinition, RunOptions
from gradeline.model import Grade, GradeKey, Outcome, Run
from gradeline.model.label import HumanVerdict
from gradeline.service import uploads
from gradeline.service.secrets import Binding
from gradeline.service.service import Service
from gradeline.service.settings import RetentionRules, ServeSettings
from gradeline.service.uploads import Uploads
from gradeline.store import InMemoryStorage

sys.path.insert(0, str(Path(__file__).parent))

from uploaded_runs import GRADERS, Copy, content_in, new_run

from .conftest import Answer, Call

TYPE = {"Content-Type": "application/x-ndjson"}


@pytest.fixture
def settings(store: str) -> ServeSettings:
    return ServeSettings(store=store, secret_key=b"a master key of the tests, long enough", max_upload=100_000)


@pytest.fixture
def local() -> Iterator[InMemoryStorage]:
    with InMemoryStorage() as storage:
        yield storage


@pytest.fixture
def copy(local: InMemoryStorage) -> Copy:
    return Copy(local, new_run(local))


def begin(call: Call, copy: Copy, **fields: Any) -> Answer:
    return call("PUT", f"/api/uploads/{copy.id}", json={**copy.beginning, **fields})


def send(call: Call, copy: Copy, part: bytes, start: int = 0, digest: str | None = None) -> Answer:
    query = f"start={start}&digest={digest or copy.beginning['digest']}"
    return call("PUT", f"/api/uploads/{copy.id}/cases?{query}", content=part, headers=TYPE)


def upload(call: Call, copy: Copy) -> dict[str, Any]:
    """The state at the end, with two cases in each part."""
    state: dict[str, Any] = begin(call, copy).data
    while not state["completed"]:
        start = state["received"]
        state = send(call, copy, copy.part(start, start + 2), start).data
    return state


def nothing_is_left(service: Service, run: str) -> bool:
    read = service.database.read
    tables = ("samples", "responses", "grades", "labels", "uploads")
    return service.storage.get_run(run) is None and not any(
        read(f"SELECT 1 FROM {table} WHERE run = ?", run) for table in tables
    )


def test_an_uploaded_run_is_the_same_as_where_it_comes_from(
    call: Call, service: Service, local: InMemoryStorage, copy: Copy
) -> None:
    assert upload(call, copy) == {
        "run_id": copy.id,
        "digest": copy.beginning["digest"],
        "cases": 6,
        "received": 6,
        "completed": True,
    }
    assert content_in(service.storage, copy.id) == content_in(local, copy.id)
    shown = call("GET", f"/api/evaluations/{copy.id}").data
    assert (shown["status"], shown["result_count"], shown["error_message"]) == ("completed", 10, None)
    assert call("GET", f"/api/evaluations/{copy.id}/results").data["summary"]["grader_pass_counts"] == {
        "exact": 8,
        "judge": 0,
    }
    assert call("PUT", "/api/baselines/main", json={"evaluation_id": copy.id}).status == 200


def test_a_run_that_was_uploaded_is_not_stored_again(call: Call, service: Service, copy: Copy) -> None:
    done = upload(call, copy)
    before = content_in(service.storage, copy.id)
    assert begin(call, copy).data == done
    assert send(call, copy, copy.part(0)).data == done
    assert content_in(service.storage, copy.id) == before
    entries = [(one.action, one.subject, one.details) for one in service.audit.entries()]
    assert entries == [("evaluation.upload", copy.id, {"name": "second", "suite": "capitals", "cases": 6})]


def test_a_run_that_the_service_has_itself_is_recognised(call: Call, service: Service) -> None:
    copy = Copy(service.storage, new_run(service.storage))
    assert begin(call, copy).data["completed"] is True
    copy.edit(0, cluster="another")
    assert begin(call, copy).status == 409


def test_other_content_under_the_same_id_is_refused(call: Call, service: Service, copy: Copy) -> None:
    upload(call, copy)
    before = content_in(service.storage, copy.id)
    copy.edit(2, cluster="another")
    refused = begin(call, copy)
    assert (refused.status, refused.error["code"]) == (409, "CONFLICT")
    assert f"has a run {copy.id} with other content" in refused.error["message"]
    assert send(call, copy, copy.part(0)).status == 409
    assert content_in(service.storage, copy.id) == before


def test_an_incomplete_upload_with_other_content_begins_again(
    call: Call, service: Service, local: InMemoryStorage, copy: Copy
) -> None:
    begin(call, copy)
    assert send(call, copy, copy.part(0, 3)).data["received"] == 3
    local.put_clusters(copy.id, [("case 0 é", "another")])
    run = local.get_run(copy.id)
    assert run is not None
    again = Copy(local, run)
    assert begin(call, again).data["received"] == 0
    assert send(call, copy, copy.part(3), 3).status == 409, "a part of the former content"
    upload(call, again)
    assert content_in(service.storage, copy.id) == content_in(local, copy.id)


def test_until_it_is_complete_a_run_is_shown_as_running_and_nothing_uses_it(
    call: Call, service: Service, copy: Copy
) -> None:
    begin(call, copy)
    send(call, copy, copy.part(0, 3))
    shown = call("GET", f"/api/evaluations/{copy.id}").data
    assert (shown["status"], shown["error_message"]) == (
        "running",
        "the upload of this run is incomplete; push the run again to continue it",
    )
    assert call("PUT", "/api/baselines/main", json={"evaluation_id": copy.id}).status == 409
    assert call("POST", f"/api/evaluations/{copy.id}/resume").status == 409
    assert call("DELETE", f"/api/evaluations/{copy.id}").status == 409
    service.database.transact(
        lambda transaction: transaction.run("UPDATE run_heartbeats SET at = '2020-01-01 00:00:00'")
    )
    assert call("GET", f"/api/evaluations/{copy.id}").data["status"] == "interrupted"
    assert call("POST", f"/api/evaluations/{copy.id}/resume").status == 409
    assert call("DELETE", f"/api/evaluations/{copy.id}").status == 204
    assert nothing_is_left(service, copy.id)


def test_a_run_that_regrades_another_needs_that_one_first(
    call: Call, service: Service, local: InMemoryStorage, copy: Copy
) -> None:
    child = local.save_run(
        Run(name="again", suite="capitals", status="completed", parent=copy.id, graders=GRADERS, repeats=2)
    )
    for repeat in range(2):
        key = GradeKey(child, "case 2 é", repeat, "exact")
        local.put_grade(key, Grade("exact_match", "f9", Outcome.FAIL, 0.0, False))
    local.put_clusters(child, [("case 2 é", "alone")])
    run = local.get_run(child)
    assert run is not None
    regrade = Copy(local, run)
    refused = begin(call, regrade)
    assert (refused.status, "push that run first" in refused.error["message"]) == (400, True)
    begin(call, copy)
    assert begin(call, regrade).status == 400, "the parent is incomplete"
    upload(call, copy)
    upload(call, regrade)
    assert content_in(service.storage, child) == content_in(local, child)


def test_parts_out_of_order_are_refused_and_one_that_was_stored_changes_nothing(call: Call, copy: Copy) -> None:
    begin(call, copy)
    ahead = send(call, copy, copy.part(2, 4), 2)
    assert (ahead.status, ahead.error["details"]) == (400, {"received": 0})
    assert "the next case is number 0" in ahead.error["message"]
    send(call, copy, copy.part(0, 3))
    assert send(call, copy, copy.part(0, 3)).data["received"] == 3
    assert send(call, copy, copy.part(0, 3), 3).status == 400, "cases that are stored already"


def test_content_that_does_not_match_its_digest_is_removed(call: Call, service: Service, copy: Copy) -> None:
    digest = copy.beginning["digest"]
    begin(call, copy)
    copy.edit(5, cluster="another")
    refused = send(call, copy, copy.part(0), 0, digest)
    assert (refused.status, "does not match the digest" in refused.error["message"]) == (400, True)
    assert nothing_is_left(service, copy.id)
    assert upload(call, copy)["completed"] is True


def test_a_changed_run_does_not_match_its_digest(call: Call, service: Service, copy: Copy) -> None:
    begin(call, copy, run={**copy.header, "name": "other"})
    assert send(call, copy, copy.part(0)).status == 400
    assert nothing_is_left(service, copy.id)


def _result(line: bytes, **fields: Any) -> list[dict[str, Any]]:
    first, *others = msgspec.json.decode(line)["results"]
    return [{**first, **fields}, *others]


def _grade(line: bytes, **fields: Any) -> list[dict[str, Any]]:
    (first, *others) = msgspec.json.decode(line)["results"][0]["grades"]
    return _result(line, grades=[{**first, "grade": {**first["grade"], **fields}}, *others])


HOSTILE: dict[str, Callable[[bytes], bytes | dict[str, Any]]] = {
    "no JSON": lambda _: b"nothing",
    "an empty line": lambda _: b"",
    "a list": lambda _: b"[]",
    "too deep": lambda _: b"[" * 20_000,
    "deep metadata": lambda line: {"sample": {"id": "case 0 é", "input": "x", "metadata": _nested(80)}},
    "no id": lambda _: {"case": ""},
    "another id": lambda _: {"case": "case 9"},
    "a long id": lambda _: {"case": "x" * 20_000},
    "NUL": lambda line: {"results": _result(line, response={"text": "a\0b"})},
    "half a surrogate pair": lambda line: line.replace(b"question", b"\\ud800"),
    "a negative position": lambda _: {"position": -1},
    "a huge position": lambda _: {"position": 10**30},
    "a position of text": lambda _: {"position": "1"},
    "a huge repeat": lambda line: {"results": _result(line, repeat=2**63)},
    "a repeat twice": lambda line: {"results": _result(line, repeat=1)},
    "infinite latency": lambda line: line.replace(b'"latency_ms":12.5', b'"latency_ms":1e999'),
    "no sample": lambda _: {"sample": None},
    "no response": lambda line: {"results": [{"repeat": 0, "grades": []}]},
    "an unknown status": lambda line: {"results": _result(line, response={"status": "fine"})},
    "an error without an error": lambda line: {"results": _result(line, response={"status": "error"})},
    "a score above 1": lambda line: {"results": _grade(line, score=7.0)},
    "a pass without a score": lambda line: {"results": _grade(line, score=None)},
    "a grade of text": lambda line: {"results": _result(line, grades=[{"grader": "exact", "grade": "pass"}])},
    "a newer version": lambda line: {"results": _grade(line, schema=99)},
    "two grades": lambda line: {"results": _result(line, grades=2 * _grade(line)[0]["grades"])},
    "a cluster of a number": lambda _: {"cluster": 7},
    "a huge number of tokens": lambda line: {
        "results": _result(line, response={"text": "x", "usage": {"input_tokens": 10**40}})
    },
}


def _nested(depth: int) -> Any:
    return {"a": _nested(depth - 1)} if depth else 1


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_case_is_refused_and_nothing_of_its_part_is_stored(
    call: Call, service: Service, copy: Copy, kind: str
) -> None:
    made = HOSTILE[kind](copy.lines[0])
    if isinstance(made, dict):
        copy.edit(0, **made)
    else:
        copy.lines[0] = made
    assert begin(call, copy).status == 200
    refused = send(call, copy, copy.part(1, 3) + copy.part(0, 1))
    assert (refused.status, refused.error["code"]) == (400, "INVALID_INPUT"), refused.body
    assert len(refused.error["message"]) < 500
    assert service.database.read("SELECT received FROM uploads") == [(0,)]
    assert service.database.read("SELECT count(*) FROM samples") == [(0,)]


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"id": "other0000000"}, "run.id"),
        ({"status": "running"}, "run.status"),
        ({"status": "interrupted"}, "run.status"),
        ({"status": "great"}, "run"),
        ({"schema": 99}, "run"),
        ({"name": ""}, "run.name"),
        ({"suite": "x" * 5000}, "run.suite"),
        ({"repeats": 0}, "run"),
        ({"repeats": 10**12}, "run"),
        ({"total": -5}, "run"),
        ({"seed": 10**30}, "run"),
        ({"started_at": "yesterday"}, "run.started_at"),
        ({"completed_at": "9999-99-99"}, "run.completed_at"),
        ({"parent": "unknown00000"}, "run.parent"),
        ({"definition": "not JSON"}, "run"),
        ({"graders": ["exact"]}, "run"),
        ({"name": "a\0b"}, "run"),
    ],
)
def test_a_hostile_run_is_refused(call: Call, service: Service, copy: Copy, fields: dict[str, Any], where: str) -> None:
    copy.header.update(fields)
    refused = begin(call, copy)
    assert (refused.status, refused.error["code"]) == (400, "INVALID_INPUT")
    assert f"'{where}'" in refused.error["message"]
    assert nothing_is_left(service, copy.id)


def test_a_run_that_would_make_lists_large_is_refused(call: Call, service: Service, copy: Copy) -> None:
    copy.header["target"] = {"kind": "http", "url": "x" * 300_000}
    refused = begin(call, copy)
    assert (refused.status, refused.error["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert nothing_is_left(service, copy.id)


def test_an_upload_that_is_completed_while_another_begins_is_kept(
    call: Call, service: Service, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(call, copy)
    whole = copy.part(0)
    digest = copy.beginning["digest"]
    remove = Uploads._remove

    def complete_first(self: Uploads, run_id: str, state: Any) -> bool:
        assert self.add(run_id, digest, 0, whole).completed
        return remove(self, run_id, state)

    monkeypatch.setattr(Uploads, "_remove", complete_first)
    copy.edit(0, cluster="another")
    assert begin(call, copy).status == 409
    assert call("GET", f"/api/evaluations/{copy.id}").data["status"] == "completed"


@pytest.mark.parametrize(
    "fields", [{"digest": "x"}, {"cases": -1}, {"cases": 10**9}, {"size": -1}, {"run": []}, {"more": 1}, {"cases": 1.5}]
)
def test_a_hostile_beginning_is_refused(call: Call, copy: Copy, fields: dict[str, Any]) -> None:
    assert begin(call, copy, **fields).status == 400


def test_parts_have_cases_of_the_right_type_and_number(call: Call, copy: Copy) -> None:
    assert send(call, copy, copy.part(0)).status == 404, "no upload has begun"
    begin(call, copy)
    digest = copy.beginning["digest"]
    path = f"/api/uploads/{copy.id}/cases?start=0&digest={digest}"
    assert call("PUT", path, content=copy.part(0), headers={"Content-Type": "text/csv"}).status == 415
    packed = {**TYPE, "Content-Encoding": "gzip"}
    assert call("PUT", path, content=copy.part(0), headers=packed).status == 415
    assert send(call, copy, b"").status == 400
    assert send(call, copy, copy.part(0) + copy.part(0)).status == 400
    assert call("PUT", f"/api/uploads/{copy.id}/cases?start=x&digest={digest}", content=b"").status == 400
    assert send(call, copy, copy.part(0), 0, "f" * 64).status == 409


def test_a_run_above_the_limit_is_refused_with_the_remedy(call: Call, service: Service, copy: Copy) -> None:
    refused = begin(call, copy, size=100_001)
    assert (refused.status, refused.error["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert "--max-upload-mb" in refused.error["message"]
    copy.edit(0, sample={"id": "case 0 é", "input": "x" * 100_000})
    begin(call, copy, size=1)
    assert send(call, copy, copy.part(0)).status == 413
    assert service.database.read("SELECT received FROM uploads") == [(0,)]


def test_a_part_above_the_limit_is_refused_with_the_remedy(
    call: Call, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradeline.service.routes.uploads.MAX_PART", 1000)
    begin(call, copy)
    refused = send(call, copy, copy.part(0))
    assert (refused.status, "send fewer cases at once" in refused.error["message"]) == (413, True)


def test_a_part_with_too_many_cases_is_refused(call: Call, copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_PART_CASES", 2)
    begin(call, copy)
    assert send(call, copy, copy.part(0, 3)).status == 400
    assert send(call, copy, copy.part(0, 2)).data["received"] == 2


def test_only_a_key_of_scope_run_or_admin_uploads(
    call: Call, copy: Copy, call_with: Callable[[str], dict[str, str]]
) -> None:
    for scope, status in (("read", 403), ("label", 403), ("run", 200)):
        answer = call("PUT", f"/api/uploads/{copy.id}", json=copy.beginning, headers=call_with(scope))
        assert answer.status == status
    assert begin(call, copy).status == 401


def test_secrets_of_the_service_are_masked(call: Call, service: Service, copy: Copy) -> None:
    secret = 'tok-12345678-"é'
    service.secrets.put("agent", secret, Binding(("agent.example",)))
    copy.header["target"] = {"kind": "http", "url": f"https://agent.example/?key={secret}"}
    copy.edit(0, results=_result(copy.lines[0], response={"text": f"it is {secret}", "output": secret}))
    # the same with every letter escaped
    escaped = "".join(f"\\u{ord(letter):04x}" for letter in secret).encode()
    copy.lines[2] = copy.lines[2].replace(b"question 2", escaped)
    upload(call, copy)
    stored = repr(content_in(service.storage, copy.id))
    assert "tok-1234" not in stored
    assert stored.count("***") >= 4
    assert begin(call, copy).data["completed"] is True, "the digest is that of what was sent"


def test_nothing_of_an_uploaded_run_can_be_executed(call: Call, service: Service, copy: Copy) -> None:
    options = RunOptions(overrides=("target.command=touch /tmp/x",), output="/tmp/x", cached="/tmp/x")
    document = {"name": "capitals", "target": {"kind": "command", "command": ["touch", "/tmp/x"]}, "dataset": []}
    definition = RunDefinition("/etc/suite.yaml", options, document=document)
    copy.header["definition"] = msgspec.json.encode(definition).decode()
    upload(call, copy)
    run = service.storage.get_run(copy.id)
    assert run is not None
    assert run.definition is not None
    assert "/tmp/x" not in run.definition
    assert "/etc/suite.yaml" not in run.definition
    assert call("POST", f"/api/evaluations/{copy.id}/retry-failed").status == 409
    assert call("GET", f"/api/evaluations/{copy.id}/suite").status == 404
    regraded = call("POST", f"/api/evaluations/{copy.id}/regrade", json={"grader_ids": ["contains"]})
    assert regraded.status == 201, "its responses can be graded"


def test_an_upload_in_progress_is_kept_by_retention_and_a_complete_one_is_not(
    call: Call, service: Service, copy: Copy
) -> None:
    from gradeline.service.retention import decide

    begin(call, copy)
    (kept,) = decide(service.database, RetentionRules(keep=0))
    assert (kept.deleted, kept.reason) == (False, "it is running")
    upload(call, copy)
    (kept,) = decide(service.database, RetentionRules(keep=0))
    assert (kept.deleted, kept.reason) == (False, "it has labels")


def test_a_run_without_cases_is_complete_at_once(call: Call, local: InMemoryStorage) -> None:
    run = local.get_run(local.save_run(Run(name="n", suite="s", status="failed", error_message="no agent")))
    assert run is not None
    copy = Copy(local, run)
    assert begin(call, copy).data["completed"] is True
    assert call("GET", f"/api/evaluations/{copy.id}").data["error_message"] == "no agent"


def test_labels_of_an_uploaded_run_are_shown_and_can_be_changed(call: Call, service: Service, copy: Copy) -> None:
    upload(call, copy)
    run = service.storage.get_run(copy.id)
    assert run is not None
    rows = call("GET", f"/api/evaluations/{copy.id}/labels").data["labels"]
    assert [(row["verdict"], row["category"], row["author"], row["role"], row["repeat"]) for row in rows] == [
        ("fail", "wrong city", "me", "rater", 1),
        ("pass", "wrong city", "you", "adjudicator", 1),
        (None, "rude", None, "rater", 1),
    ]
    record = next(one for one in service.storage.records(copy.id) if (one.case, one.repeat) == ("case 0 é", 1))
    service.labels.put(run, record, "exact", HumanVerdict("pass", "it is right"), "me")
    changed = call("GET", f"/api/evaluations/{copy.id}/labels").data["labels"][-1]
    assert (changed["verdict"], changed["author"]) == ("pass", "me")

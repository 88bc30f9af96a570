"""A change and its audit entry are stored together: if the log cannot be written, nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.rest_types import result_id
from gradeline.service.auth import KeyScope
from gradeline.service.service import Service, database_of
from gradeline.service.settings import ServeSettings
from gradeline.service.test_cases import TestCases
from gradeline.store import open_storage

from .conftest import MASTER_KEY, Call

CASE = {"input": "q", "expected_output": "a"}
GRADER = {
    "id": "mine",
    "name": "Mine",
    "type": "custom-rules",
    "config": {"rules": [{"condition": "contains", "value": "x"}]},
}
TABLES = (
    "test_cases",
    "stored_graders",
    "stored_grader_versions",
    "secrets",
    "labels",
    "sessions",
    "api_keys",
    "runs",
    "jobs",
    "audit_log",
)


@pytest.fixture
def settings(store: str) -> ServeSettings:
    return ServeSettings(store=store, secret_key=MASTER_KEY, allow_agent_net=("192.0.2.1",))


@pytest.fixture
def admin(service: Service) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.keys.create(KeyScope.ADMIN)[1]}"}


@pytest.fixture
def run(service: Service) -> str:
    """A run that has ended, with one result."""
    storage = service.storage
    id_ = storage.save_run(
        Run(name="r", suite="s", status="completed", graders={"exact": RunGrader("exact", "f" * 32)})
    )
    storage.put_response(ResponseKey(id_, "c"), Response(text="a"), Sample("c", "q", "a"))
    storage.put_grade(GradeKey(id_, "c", 0, "exact"), Grade("exact", "f" * 32, Outcome.PASS, 1.0, True))
    return id_


def contents(service: Service) -> dict[str, list[str]]:
    touched = {"api_keys": "id, revoked_at"}  # when a key was last used is no act
    return {
        table: sorted(map(str, service.database.read(f"SELECT {touched.get(table, '*')} FROM {table}")))
        for table in TABLES
    }


def lock_log(service: Service) -> None:
    """Make the log refuse entries, as on a full disk or after a crash between two transactions."""

    def work(transaction: Any) -> None:
        if service.database.dialect.name == "sqlite":
            transaction.run(
                "CREATE TRIGGER locked BEFORE INSERT ON audit_log BEGIN SELECT raise(ABORT, 'the log is full'); END"
            )
            return
        transaction.run(
            "CREATE FUNCTION locked() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'the log is full'; END $$"
        )
        transaction.run("CREATE TRIGGER locked BEFORE INSERT ON audit_log FOR EACH ROW EXECUTE FUNCTION locked()")

    service.database.transact(work)


def acts(run: str, case: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    label = f"/api/evaluations/{run}/results/{result_id('c', 0)}/labels/exact"
    lines = b'{"input": "1", "expected_output": "2"}\n'
    yield "POST", "/api/test-cases", {"json": CASE}
    yield "PUT", f"/api/test-cases/{case}", {"json": {"input": "other"}}
    yield "DELETE", f"/api/test-cases/{case}", {}
    yield "POST", "/api/test-cases/import?format=jsonl", {"content": lines}
    yield "POST", "/api/test-cases/import?format=jsonl", {"content": lines * 1200}
    yield "POST", "/api/graders", {"json": {**GRADER, "id": "second"}}
    yield "PUT", "/api/graders/mine", {"json": {"name": "Other"}}
    yield "DELETE", "/api/graders/mine", {}
    yield "PUT", "/api/secrets/NEW", {"json": {"value": "a-secret-value", "host": "agent.test"}}
    yield "DELETE", "/api/secrets/OLD", {}
    yield "PUT", label, {"json": {"verdict": "fail", "reason": "no"}}
    yield "POST", f"/api/evaluations/{run}/regrade", {"json": {"grader_ids": ["contains"]}}
    yield "DELETE", f"/api/evaluations/{run}", {}
    yield (
        "POST",
        "/api/evaluations",
        {"json": {"test_case_ids": [case], "agent_endpoint_url": "http://192.0.2.1/", "grader_ids": ["contains"]}},
    )


def test_changes_that_cannot_be_recorded_are_not_made(
    service: Service, call: Call, admin: dict[str, str], run: str
) -> None:
    service.runner.stop()  # nothing but the requests writes
    case = call("POST", "/api/test-cases", json=CASE, headers=admin).data["id"]
    assert call("POST", "/api/graders", json=GRADER, headers=admin).status == 201
    old = {"value": "a-secret-value", "host": "agent.test"}
    assert call("PUT", "/api/secrets/OLD", json=old, headers=admin).status == 200
    asked = {"test_case_ids": [case], "agent_endpoint_url": "http://192.0.2.1/", "grader_ids": ["contains"]}
    waiting = call("POST", "/api/evaluations", json=asked, headers=admin).data["id"]
    lock_log(service)
    before = contents(service)
    sent = [*acts(run, case), ("POST", f"/api/evaluations/{waiting}/cancel", {})]
    for method, path, body in sent:
        answer = call(method, path, headers=admin, **body)
        assert (method, path, answer.status) == (method, path, 503), answer.body
        assert contents(service) == before, (method, path)
    text = admin["Authorization"].removeprefix("Bearer ")
    assert call("POST", "/api/session", json={"key": text}).status == 503
    assert contents(service) == before


def test_changes_are_recorded_with_actor_and_address(
    service: Service, call: Call, admin: dict[str, str], run: str
) -> None:
    service.runner.stop()
    case = call("POST", "/api/test-cases", json=CASE, headers=admin).data["id"]
    call("POST", "/api/graders", json=GRADER, headers=admin)
    call("PUT", "/api/secrets/OLD", json={"value": "a-secret-value", "host": "agent.test"}, headers=admin)
    started = len(service.audit.entries())
    sent = list(acts(run, case))
    kept = [act for act in sent if not (act[0] == "POST" and act[1].endswith(("/regrade", "/evaluations")))]
    for method, path, body in kept:
        assert call(method, path, headers=admin, **body).status < 300, (method, path)
    entries = service.audit.entries(limit=100)[started:]
    assert [entry.action for entry in entries] == [
        "create",
        "update",
        "delete",
        "import",
        "import",
        "create",
        "update",
        "delete",
        "secret.put",
        "secret.delete",
        "label.put",
        "evaluation.delete",
    ]
    assert {entry.address for entry in entries} == {"127.0.0.1"}
    assert len({entry.key_id for entry in entries}) == 1


class TestDeletingCases:
    def test_a_run_key_deletes_what_it_created_and_an_admin_key_everything(
        self, service: Service, call: Call, call_with: Callable[[str], dict[str, str]]
    ) -> None:
        nobodys = service.cases.create(CASE).id  # as before keys were kept with cases
        mine, other, admin = call_with("run"), call_with("run"), call_with("admin")
        theirs = call("POST", "/api/test-cases", json=CASE, headers=other).data["id"]
        own = call("POST", "/api/test-cases", json=CASE, headers=mine).data["id"]
        lines = b'{"input": "imported", "expected_output": "2"}\n'
        assert call("POST", "/api/test-cases/import?format=jsonl", content=lines, headers=mine).status == 201
        imported = call("GET", "/api/test-cases", params={"q": "imported"}, headers=mine).data["test_cases"][0]["id"]
        for case in (nobodys, theirs):
            answer = call("DELETE", f"/api/test-cases/{case}", headers=mine)
            assert (answer.status, answer.error["code"]) == (403, "FORBIDDEN")
            assert "requires a key of scope 'admin'" in answer.error["message"]
            assert call("GET", f"/api/test-cases/{case}", headers=mine).status == 200
        assert [call("DELETE", f"/api/test-cases/{case}", headers=mine).status for case in (own, imported)] == [
            204,
            204,
        ]
        assert [call("DELETE", f"/api/test-cases/{case}", headers=admin).status for case in (nobodys, theirs)] == [
            204,
            204,
        ]
        assert call("DELETE", f"/api/test-cases/{own}", headers=admin).status == 404
        assert service.cases.total() == 0
        deleted = [entry.subject for entry in service.audit.entries(limit=100) if entry.action == "delete"]
        assert deleted == [f"test_case/{case}" for case in (own, imported, nobodys, theirs)]


def test_cases_saved_without_a_key_belong_to_admins(store: str) -> None:
    with open_storage(store) as storage:
        database = database_of(storage)
        database.transact(
            lambda transaction: transaction.run(
                "INSERT INTO test_cases (id, test_case) VALUES (?, ?)",
                "old",
                '{"schema": 1, "id": "old", "input": "q", "expected_output": "a"}',
            )
        )
        cases = TestCases(database)
        with pytest.raises(Exception, match="was not created with this key"):
            cases.delete("old", "0123456789ab")
        assert cases.total() == 1
        cases.delete("old")
        assert cases.total() == 0

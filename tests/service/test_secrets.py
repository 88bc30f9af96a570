"""Secrets: in, never out, and only to their host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeline.errors import StoreError
from gradeline.service.failures import ApiError
from gradeline.service.secrets import SecretInfo, Secrets, names_in
from gradeline.service.settings import ServeSettings
from gradeline.service.state import Service
from gradeline.store.database import Database
from gradeline.store.sqlite import SqliteStorage

from .conftest import MASTER_KEY, Call

VALUE = "Bearer very-hidden-value"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield storage.database


@pytest.fixture
def secrets(database: Database) -> Secrets:
    return Secrets(database, ServeSettings(secret_key=MASTER_KEY), lambda: 0.0)


def test_a_reference_is_replaced_and_its_value_told_apart(secrets: Secrets) -> None:
    secrets.put("TOKEN", VALUE, "agent.test")
    tree = {
        "url": "http://agent.test/",
        "headers": {"Authorization": {"secret": "TOKEN"}, "X": ["a", {"secret": "TOKEN"}]},
    }
    assert secrets.resolve(tree, "agent.test") == (
        {"url": "http://agent.test/", "headers": {"Authorization": VALUE, "X": ["a", VALUE]}},
        (VALUE,),
    )
    assert tree["headers"]["Authorization"] == {"secret": "TOKEN"}  # type: ignore[index]


def test_a_tree_without_references_stays_as_it_is(secrets: Secrets) -> None:
    tree = {"secret": "x", "more": 1, "deep": {"secret": 7}}
    assert secrets.resolve(tree, "anywhere") == (tree, ())
    assert list(names_in({"a": {"secret": "B"}, "c": [{"secret": "D"}]})) == ["B", "D"]


@pytest.mark.parametrize(
    ("bound", "host", "may"),
    [
        ("agent.test", "agent.test", True),
        ("agent.test", "AGENT.test:8080", True),
        ("agent.test:8080", "agent.test:8080", True),
        ("agent.test:8080", "agent.test", False),
        ("agent.test:8080", "agent.test:80", False),
        ("agent.test", "evil.test", False),
        ("agent.test", "agent.test.evil.test", False),
        ("agent.test", "sub.agent.test", False),
        ("[::1]", "[::1]:80", True),
        ("[::1]", "[::2]:80", False),
    ],
)
def test_a_secret_goes_to_its_host_alone(secrets: Secrets, bound: str, host: str, may: bool) -> None:
    secrets.put("TOKEN", VALUE, bound)
    tree = {"secret": "TOKEN"}
    if may:
        secrets.check(tree, host)
        assert secrets.resolve(tree, host) == (VALUE, (VALUE,))
        return
    for act in (secrets.check, secrets.resolve):
        with pytest.raises(ApiError, match=f"may be sent to {bound.replace('[', '.').replace(']', '.')} alone"):
            act(tree, host)


def test_an_unknown_secret_is_told(secrets: Secrets) -> None:
    with pytest.raises(ApiError, match="No secret 'NONE'"):
        secrets.resolve({"secret": "NONE"}, "agent.test")


def test_the_store_holds_no_value_and_no_two_are_sealed_alike(
    secrets: Secrets, database: Database, tmp_path: Path
) -> None:
    secrets.put("A", VALUE, "agent.test")
    secrets.put("B", VALUE, "agent.test")
    for path in tmp_path.iterdir():
        assert b"very-hidden-value" not in path.read_bytes()
    sealed = [row[0] for row in database.read("SELECT sealed FROM secrets")]
    assert len(set(sealed)) == 2


def test_a_sealed_value_cannot_be_moved_to_another_host(secrets: Secrets, database: Database) -> None:
    secrets.put("A", VALUE, "agent.test")
    database.transact(lambda transaction: transaction.run("UPDATE secrets SET host = 'evil.test'"))
    with pytest.raises(StoreError, match="'A' is damaged; store it again"):
        secrets.resolve({"secret": "A"}, "evil.test")


def test_another_secret_key_is_told(secrets: Secrets, database: Database) -> None:
    secrets.put("A", VALUE, "agent.test")
    other = Secrets(database, ServeSettings(secret_key=b"another master key, long enough"))
    with pytest.raises(StoreError, match="'A' was stored with another secret key; start the service with that one"):
        other.resolve({"secret": "A"}, "agent.test")


def test_replacing_keeps_the_first_time(secrets: Secrets) -> None:
    secrets.put("A", "one", "agent.test")
    secrets._clock = lambda: 1.0
    assert secrets.put("A", "two", "other.test") == SecretInfo(
        "A", "other.test", "1970-01-01T00:00:00.000Z", "1970-01-01T00:00:01.000Z"
    )
    assert secrets.resolve({"secret": "A"}, "other.test") == ("two", ("two",))


def test_secrets_over_rest(service: Service, call: Call) -> None:
    stored = call("PUT", "/api/secrets/AGENT_TOKEN", json={"value": VALUE, "host": "Agent.test:8080"})
    assert stored.status == 200
    info = {"name": "AGENT_TOKEN", "host": "agent.test:8080", "created_at": stored.data["created_at"]}
    assert stored.data == {**info, "modified_at": info["created_at"]}
    listed = call("GET", "/api/secrets")
    assert listed.data == {"secrets": [stored.data], "count": 1, "total": 1}
    assert VALUE not in str(listed) + str(stored) + str(service.audit.entries())
    assert call("DELETE", "/api/secrets/AGENT_TOKEN").status == 204
    gone = call("DELETE", "/api/secrets/AGENT_TOKEN")
    assert (gone.status, gone.error) == (404, {"code": "NOT_FOUND", "message": "No secret 'AGENT_TOKEN'"})


@pytest.mark.parametrize(
    ("name", "body", "code"),
    [
        ("A", {"host": "agent.test"}, "MISSING_FIELD"),
        ("A", {"value": "v"}, "MISSING_FIELD"),
        ("A", {"value": "", "host": "agent.test"}, "INVALID_LENGTH"),
        ("A", {"value": "x" * 10_001, "host": "agent.test"}, "INVALID_LENGTH"),
        ("A", {"value": "a\r\nX-Injected: 1", "host": "agent.test"}, "INVALID_INPUT"),
        ("A", {"value": " ", "host": "agent.test"}, "INVALID_INPUT"),
        ("A", {"value": "v", "host": "http://agent.test"}, "INVALID_INPUT"),
        ("A", {"value": "v", "host": "agent.test/path"}, "INVALID_INPUT"),
        ("A", {"value": "v", "host": "user@agent.test"}, "INVALID_INPUT"),
        ("A", {"value": "v", "host": "agent.test", "scope": 1}, "INVALID_INPUT"),
        ("a b", {"value": "v", "host": "agent.test"}, "INVALID_INPUT"),
        ("ä", {"value": "v", "host": "agent.test"}, "INVALID_INPUT"),
        ("x" * 101, {"value": "v", "host": "agent.test"}, "INVALID_INPUT"),
    ],
)
def test_a_wrong_secret_is_refused_and_its_value_never_shown(
    call: Call, name: str, body: dict[str, str], code: str
) -> None:
    answer = call("PUT", f"/api/secrets/{name}", json=body)
    assert (answer.status, answer.error["code"]) == (400, code)
    assert "Injected" not in str(answer.body)
    assert call("GET", "/api/secrets").data["total"] == 0


def test_the_longest_value_and_name_are_taken(call: Call) -> None:
    body = {"value": "x" * 10_000, "host": "agent.test"}
    assert call("PUT", f"/api/secrets/{'x' * 100}", json=body).status == 200


class TestWithoutASecretKey:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ServeSettings:
        return ServeSettings(store=str(tmp_path / "store.db"))

    def test_none_is_stored_and_the_remedy_is_said(self, call: Call) -> None:
        answer = call("PUT", "/api/secrets/A", json={"value": "v", "host": "agent.test"})
        assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
        assert "GRADELINE_SECRET_KEY" in answer.error["message"]
        assert "--secret-key-file" in answer.error["message"]

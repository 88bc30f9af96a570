"""Secrets: never returned, and only sent to their host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeline.errors import StoreError
from gradeline.model.secrets import SecretLocation, SecretSet
from gradeline.service.auth import LOCAL_CALLER, Caller, KeyScope
from gradeline.service.errors import Code, ServiceError
from gradeline.service.secrets import Binding, SecretInfo, Secrets, SecretUse
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings
from gradeline.store.database import Database
from gradeline.store.sqlite import SqliteStorage

from .conftest import MASTER_KEY, Call

VALUE = "Bearer very-hidden-value"
BINDING = Binding(("agent.test",))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield storage.database


@pytest.fixture
def secrets(database: Database) -> Secrets:
    return Secrets(database, ServeSettings(secret_key=MASTER_KEY), lambda: 0.0)


def use(url: str, place: SecretLocation | None = "header") -> SecretUse:
    return SecretUse("TOKEN", url, place, "target.headers.Authorization")


def caller(scope: KeyScope, key: str = "aaaaaaaaaaaa") -> Caller:
    return Caller(key, scope, "")


@pytest.mark.parametrize(
    ("binding", "url", "may"),
    [
        (Binding(("agent.test",)), "https://agent.test/", True),
        (Binding(("agent.test",)), "https://AGENT.test:443/x?y", True),
        (Binding(("agent.test:8443",)), "https://agent.test:8443", True),
        (Binding(("a.test", "agent.test")), "https://agent.test/", True),
        (Binding(("agent.test",), scheme="http"), "http://agent.test/", True),
        (Binding(("127.0.0.1:8000",)), "http://127.0.0.1:8000/", True),
        (Binding(("localhost:8000",)), "http://localhost:8000/", True),
        (Binding(("[::1]:80",)), "http://[::1]/", True),
        (Binding(("agent.test",)), "http://agent.test/", False),
        (Binding(("agent.test",), scheme="http"), "https://agent.test/", False),
        (Binding(("agent.test",)), "https://agent.test:8443/", False),
        (Binding(("agent.test:8443",)), "https://agent.test/", False),
        (Binding(("agent.test:443",)), "http://agent.test:443/", False),
        (Binding(("agent.test",)), "https://agent.test.evil.test/", False),
        (Binding(("agent.test",)), "https://sub.agent.test/", False),
        (Binding(("agent.test",)), "https://agent.test@evil.test/", False),
        (Binding(("[::1]:80",)), "http://[::2]/", False),
        (Binding(("agent.test",)), "", False),
        (Binding(("agent.test",)), "https://[broken", False),
    ],
)
def test_a_secret_goes_to_its_scheme_host_and_port_only(
    secrets: Secrets, binding: Binding, url: str, may: bool
) -> None:
    secrets.put("TOKEN", VALUE, binding)
    if may:
        secrets.check([use(url)], LOCAL_CALLER)
        return
    with pytest.raises(ServiceError, match=r"the secret 'TOKEN' may be sent to https?://.* only, not to") as refused:
        secrets.check([use(url)], LOCAL_CALLER)
    assert refused.value.message.startswith("Field 'target.headers.Authorization': ")


@pytest.mark.parametrize(("own", "place", "may"), [("header", "header", True), ("query", "header", False)])
def test_a_secret_is_sent_in_its_place_only(
    secrets: Secrets, own: SecretLocation, place: SecretLocation, may: bool
) -> None:
    secrets.put("TOKEN", VALUE, Binding(("agent.test",), place=own))
    if may:
        secrets.check([use("https://agent.test/", place)], LOCAL_CALLER)
        return
    with pytest.raises(ServiceError, match="may be sent in the query only, not in the header; an admin can store it"):
        secrets.check([use("https://agent.test/", place)], LOCAL_CALLER)


@pytest.mark.parametrize(
    ("binding", "who", "may"),
    [
        (Binding(("agent.test",)), caller(KeyScope.ADMIN), True),
        (Binding(("agent.test",)), LOCAL_CALLER, True),
        (Binding(("agent.test",)), caller(KeyScope.RUN), False),
        (Binding(("agent.test",), scopes=("run",)), caller(KeyScope.RUN), True),
        (Binding(("agent.test",), keys=("aaaaaaaaaaaa",)), caller(KeyScope.RUN), True),
        (Binding(("agent.test",), keys=("bbbbbbbbbbbb",)), caller(KeyScope.RUN), False),
    ],
)
def test_a_secret_is_used_by_keys_that_may_only(secrets: Secrets, binding: Binding, who: Caller, may: bool) -> None:
    secrets.put("TOKEN", VALUE, binding)
    if may:
        secrets.check([use("https://agent.test/")], who)
        return
    with pytest.raises(ServiceError, match=r"your key may not use the secret 'TOKEN'; ask an admin") as refused:
        secrets.check([use("https://agent.test/")], who)
    assert refused.value.code is Code.FORBIDDEN


def test_an_unknown_secret_is_refused(secrets: Secrets) -> None:
    with pytest.raises(ServiceError, match="No secret 'NONE'"):
        secrets.open(["NONE"])


def test_an_opened_secret_shows_its_value_to_the_transport_only(secrets: Secrets) -> None:
    secrets.put("TOKEN", VALUE, Binding(("agent.test",)))
    secrets.put("OTHER", "another-value", Binding(("other.test",)))
    opened = secrets.open(["TOKEN", "TOKEN"])["TOKEN"]
    assert (opened.value, opened.hosts, opened.scheme, opened.place) == (VALUE, ("agent.test",), "https", "header")
    assert "very-hidden" not in repr(opened) + repr(SecretSet([opened]))
    assert set(secrets.values()) == {VALUE, "another-value"}


def test_a_value_that_is_too_short_to_mask_is_not_sent(secrets: Secrets) -> None:
    secrets.put("SHORT", "1234", BINDING)
    with pytest.raises(ServiceError, match=r"'SHORT' has fewer than 8 characters .* store a longer one"):
        secrets.open(["SHORT"])


def test_the_store_holds_no_value_and_no_two_are_sealed_alike(
    secrets: Secrets, database: Database, tmp_path: Path
) -> None:
    secrets.put("A", VALUE, BINDING)
    secrets.put("B", VALUE, BINDING)
    for path in tmp_path.iterdir():
        assert b"very-hidden-value" not in path.read_bytes()
    sealed = [row[0] for row in database.read("SELECT sealed FROM secrets")]
    assert len(set(sealed)) == 2


@pytest.mark.parametrize(
    "change",
    [
        "binding = replace(binding, 'agent.test', 'evil.test')",
        "binding = replace(binding, '\"https\"', '\"http\"')",
        "binding = replace(binding, '\"header\"', '\"body\"')",
    ],
)
def test_a_sealed_value_cannot_be_bound_otherwise_in_the_store(
    secrets: Secrets, database: Database, change: str
) -> None:
    secrets.put("A", VALUE, BINDING)
    database.transact(lambda transaction: transaction.run(f"UPDATE secrets SET {change}"))
    with pytest.raises(StoreError, match="'A' is damaged; store it again"):
        secrets.open(["A"])


def test_another_secret_key_is_reported(secrets: Secrets, database: Database) -> None:
    secrets.put("A", VALUE, BINDING)
    other = Secrets(database, ServeSettings(secret_key=b"another master key, long enough"))
    with pytest.raises(StoreError, match="'A' was stored with another secret key; start the service with that one"):
        other.open(["A"])
    assert list(other.values()) == []


def test_replacing_keeps_the_first_time(secrets: Secrets) -> None:
    secrets.put("A", "the first one", BINDING)
    secrets._clock = lambda: 1.0
    assert secrets.put("A", "the second one", Binding(("other.test",), "http", "body", ("admin", "run"))) == SecretInfo(
        "A",
        "other.test",
        ("other.test",),
        "http",
        "body",
        ("admin", "run"),
        (),
        "1970-01-01T00:00:00.000Z",
        "1970-01-01T00:00:01.000Z",
    )
    assert secrets.open(["A"])["A"].value == "the second one"


def test_secrets_over_rest(service: Service, call: Call) -> None:
    stored = call("PUT", "/api/secrets/AGENT_TOKEN", json={"value": VALUE, "host": "Agent.test:8080"})
    assert stored.status == 200
    info = {
        "name": "AGENT_TOKEN",
        "host": "agent.test:8080",
        "hosts": ["agent.test:8080"],
        "scheme": "https",
        "place": "header",
        "scopes": ["admin"],
        "keys": [],
        "created_at": stored.data["created_at"],
    }
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
        ("A", {"value": "value-of-it"}, "MISSING_FIELD"),
        ("A", {"value": "", "host": "agent.test"}, "INVALID_LENGTH"),
        ("A", {"value": "1234567", "host": "agent.test"}, "INVALID_LENGTH"),
        ("A", {"value": "Bearer 1234567", "host": "agent.test"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "a.test", "hosts": ["b.test"]}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "hosts": []}, "INVALID_LENGTH"),
        ("A", {"value": "value-of-it", "hosts": ["https://a.test"]}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "a.test:70000"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "a.test", "scheme": "ftp"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "a.test", "place": "path"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "a.test", "scopes": ["read"]}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "a.test", "keys": ["aaaaaaaaaaaa"]}, "INVALID_INPUT"),
        ("A", {"value": "x" * 10_001, "host": "agent.test"}, "INVALID_LENGTH"),
        ("A", {"value": "a\r\nX-Injected: 1", "host": "agent.test"}, "INVALID_INPUT"),
        ("A", {"value": " " * 8, "host": "agent.test"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "http://agent.test"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "agent.test/path"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "user@agent.test"}, "INVALID_INPUT"),
        ("A", {"value": "value-of-it", "host": "agent.test", "scope": 1}, "INVALID_INPUT"),
        ("a b", {"value": "value-of-it", "host": "agent.test"}, "INVALID_INPUT"),
        ("ä", {"value": "value-of-it", "host": "agent.test"}, "INVALID_INPUT"),
        ("x" * 101, {"value": "value-of-it", "host": "agent.test"}, "INVALID_INPUT"),
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

    def test_no_secret_is_stored_and_the_remedy_is_reported(self, call: Call) -> None:
        answer = call("PUT", "/api/secrets/A", json={"value": "value-of-it", "host": "agent.test"})
        assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
        assert "GRADELINE_SECRET_KEY" in answer.error["message"]
        assert "--secret-key-file" in answer.error["message"]

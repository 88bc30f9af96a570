"""Keys, sessions, secrets and the audit log in PostgreSQL: each of their statements, once."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradeline.service.auth import Caller, KeyScope
from gradeline.service.service import Service
from gradeline.service.settings import ServeSettings

from .conftest import MASTER_KEY, Call

sys.path.insert(0, str(Path(__file__).parent.parent))

from postgres_server import ENV, Database, Server, why_no_server


@pytest.fixture
def settings() -> Iterator[ServeSettings]:
    if url := os.environ.get(ENV):
        database = Database(url)
        yield ServeSettings(store=database.url, secret_key=MASTER_KEY)
        database.drop()
        return
    if reason := why_no_server():
        pytest.skip(reason)
    server = Server()
    yield ServeSettings(store=server.url, secret_key=MASTER_KEY)
    server.stop()


def test_keys_and_sessions_are_stored_there_too(service: Service, call: Call) -> None:
    assert call("GET", "/api/ready").status == 200
    key, text = service.keys.create(KeyScope.ADMIN, "me", lifetime_s=3600)
    headers = {"Authorization": f"Bearer {text}"}
    body = {"value": "Bearer hidden-value", "host": "agent.test", "scopes": ["run"]}
    assert call("PUT", "/api/secrets/A", json=body, headers=headers).status == 200
    assert call("PUT", "/api/secrets/A", json=body, headers=headers).status == 200
    opened = service.secrets.open(["A"])["A"]
    assert (opened.value, opened.hosts, opened.scheme) == ("Bearer hidden-value", ("agent.test",), "https")
    assert call("GET", "/api/secrets", headers=headers).data["total"] == 1
    assert call("DELETE", "/api/secrets/A", headers=headers).status == 204
    token = call("POST", "/api/session", json={"key": text}).data["csrf_token"]
    assert call("GET", "/api/session").data["csrf_token"] == token
    assert "gradeline_queue_length 0" in call("GET", "/api/metrics").body
    assert call("DELETE", "/api/session", headers={"X-CSRF-Token": token}).status == 204
    assert [entry.action for entry in service.audit.entries()] == [
        "secret.put",
        "secret.put",
        "secret.delete",
        "session.open",
        "session.close",
    ]
    assert service.keys.problem() is None
    assert [found.last_used_at is not None for found in service.keys.all()] == [True]
    assert service.keys.revoke(key.id) is True
    assert call("GET", "/api/secrets", headers=headers).status == 401


def test_the_audit_log_is_only_added_to(service: Service) -> None:
    service.audit.note(Caller(None, KeyScope.ADMIN, "r"), "act", "ünï", {"a": 1})
    for statement in ("UPDATE audit_log SET action = 'x'", "DELETE FROM audit_log"):
        service.database.transact(lambda transaction, said=statement: transaction.run(said))
    (entry,) = service.audit.entries()
    assert (entry.action, entry.subject, entry.details) == ("act", "ünï", {"a": 1})

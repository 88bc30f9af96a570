"""Access control: every route requires a key with its scope."""

from __future__ import annotations

import re

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from gradeline.service.app import create_app
from gradeline.service.auth import Caller, KeyScope, requires, scope_of
from gradeline.service.openapi import operations_of
from gradeline.service.service import Service, build_service
from gradeline.service.settings import ServeSettings

from .conftest import BASE_URL, MASTER_KEY, Call

PUBLIC = {
    ("GET", "/"),
    ("GET", "/assets/{name}"),
    ("GET", "/api/health"),
    ("GET", "/api/ready"),
    ("POST", "/api/session"),
}


def routes_of(service: Service) -> list[tuple[str, str, KeyScope | None]]:
    found = operations_of(create_app(service))
    return [(method, re.sub(r":path}", "}", route.path), scope_of(route.endpoint)) for route, method in found]


def a_path(pattern: str) -> str:
    return re.sub(r"{\w+}", "x", pattern)


def test_only_the_routes_of_the_contract_are_public(service: Service) -> None:
    assert {(method, path) for method, path, scope in routes_of(service) if scope is KeyScope.PUBLIC} == PUBLIC


def test_every_route_has_a_mark(service: Service) -> None:
    assert [(method, path) for method, path, scope in routes_of(service) if scope is None] == []


def test_every_route_requires_a_key(service: Service, call: Call) -> None:
    service.keys.create(KeyScope.ADMIN)
    for method, path, _ in routes_of(service):
        if (method, path) in PUBLIC:
            continue
        answer = call(method, a_path(path))
        assert (answer.status, answer.error["code"]) == (401, "UNAUTHORIZED"), (method, path)
        assert answer.headers["www-authenticate"] == "Bearer"


def test_unknown_paths_require_a_key_too(service: Service, call: Call) -> None:
    service.keys.create(KeyScope.ADMIN)
    assert call("GET", "/api/nothing").status == 401
    assert call("PATCH", "/api/health").status == 401
    assert call("GET", "/elsewhere").status == 401


@pytest.mark.parametrize("scope", ["read", "run", "label", "admin"])
def test_a_key_may_only_call_the_routes_of_its_scope(service: Service, call: Call, scope: str) -> None:
    _, text = service.keys.create(KeyScope(scope))
    headers = {"Authorization": f"Bearer {text}"}
    for method, path, wanted in routes_of(service):
        if wanted in (None, KeyScope.PUBLIC) or path.endswith("/events"):
            continue
        assert wanted is not None
        answer = call(method, a_path(path), headers=headers)
        if KeyScope(scope).includes(wanted):
            assert answer.status not in (401, 403), (method, path)
        else:
            assert (answer.status, answer.error["code"]) == (403, "FORBIDDEN"), (method, path)


def test_a_route_without_a_scope_cannot_be_called(service: Service) -> None:
    app = FastAPI()

    @app.get("/api/forgotten")
    def forgotten() -> str:
        return "secret"

    from gradeline.service.limits import RequestLimits
    from gradeline.service.middleware import AuthMiddleware, SecurityHeadersMiddleware

    client = TestClient(
        SecurityHeadersMiddleware(AuthMiddleware(app, app.router.routes, service, RequestLimits())), base_url=BASE_URL
    )
    assert client.get("/api/forgotten").status_code == 403
    _, text = service.keys.create(KeyScope.ADMIN)
    assert client.get("/api/forgotten", headers={"Authorization": f"Bearer {text}"}).status_code == 403


def test_run_and_label_include_read_and_admin_includes_all() -> None:
    scopes = [KeyScope.READ, KeyScope.RUN, KeyScope.LABEL, KeyScope.ADMIN]
    assert [[have.includes(want) for want in scopes] for have in scopes] == [
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, False],
        [True, True, True, True],
    ]
    assert all(have.includes(KeyScope.PUBLIC) for have in scopes)


def test_a_mark_is_read_back() -> None:
    @requires(KeyScope.RUN)
    def endpoint() -> None: ...

    assert (scope_of(endpoint), scope_of(print)) == (KeyScope.RUN, None)


def test_writes_are_in_the_append_only_audit_log(service: Service, call: Call) -> None:
    _, text = service.keys.create(KeyScope.ADMIN)
    headers = {"Authorization": f"Bearer {text}"}
    call("PUT", "/api/secrets/TOKEN", json={"value": "hidden-value", "host": "agent.test"}, headers=headers)
    call("DELETE", "/api/secrets/TOKEN", headers=headers)
    entries = service.audit.entries()
    key_id = text.split("_")[1]
    assert [(entry.key_id, entry.action, entry.subject, entry.details) for entry in entries] == [
        (
            key_id,
            "secret.put",
            "TOKEN",
            {"hosts": ["agent.test"], "scheme": "https", "place": "header", "scopes": ["admin"], "keys": []},
        ),
        (key_id, "secret.delete", "TOKEN", {}),
    ]
    from gradeline.errors import StoreError

    for statement in ("UPDATE audit_log SET action = 'x'", "DELETE FROM audit_log"):
        with pytest.raises(StoreError, match="append-only"):
            service.database.transact(lambda transaction, said=statement: transaction.run(said))
    assert service.audit.entries() == entries


def test_in_local_mode_the_caller_may_do_everything_and_has_no_key(service: Service, call: Call) -> None:
    answer = call("GET", "/api/session")
    assert answer.data == {"local": True, "scope": "admin", "key_id": None, "csrf_token": None, "expires_at": None}


def test_a_key_created_by_another_process_ends_local_mode(
    settings: ServeSettings, service: Service, call: Call
) -> None:
    assert call("GET", "/api/secrets").status == 200
    other = build_service(settings)
    other.keys.create(KeyScope.READ)
    other.stop()
    service.keys._looked = float("-inf")  # half a second later
    assert call("GET", "/api/secrets").status == 401
    assert service.local is False


def test_a_revoked_key_does_not_bring_local_mode_back(service: Service, call: Call) -> None:
    key, _ = service.keys.create(KeyScope.ADMIN)
    service.keys.revoke(key.id)
    assert call("GET", "/api/secrets").status == 401


def test_a_caller_is_identified_by_the_key(service: Service) -> None:
    caller = Caller("k", KeyScope.RUN, "r", "192.0.2.7", "s")
    assert caller._asdict() == {
        "key_id": "k",
        "scope": KeyScope.RUN,
        "request_id": "r",
        "address": "192.0.2.7",
        "session": "s",
    }
    assert MASTER_KEY not in repr(service).encode()

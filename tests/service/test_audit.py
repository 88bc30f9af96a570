"""The audit log over REST, and HEAD requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradeline.service.auth import Caller, KeyScope
from gradeline.service.service import Service

from .conftest import Call


@pytest.fixture
def noted(service: Service) -> None:
    for number in range(5):
        caller = Caller(("one", "two", None)[number % 3], KeyScope.ADMIN, f"r{number}")
        service.audit.note(caller, ("put", "delete")[number % 2], f"s{number}", {"n": number})


def subjects(data: Any) -> list[str]:
    return [entry["subject"] for entry in data["entries"]]


@pytest.mark.usefixtures("noted")
def test_an_entry_has_actor_action_and_time(call: Call) -> None:
    data = call("GET", "/api/audit", params={"limit": 1}).data
    (entry,) = data["entries"]
    assert entry == {
        "n": 5,
        "at": entry["at"],
        "key_id": "two",
        "request_id": "r4",
        "action": "put",
        "subject": "s4",
        "details": {"n": 4},
        "address": None,
    }
    assert entry["at"].endswith("Z")
    assert (set(data), data["count"]) == ({"entries", "count", "next_cursor"}, 1)


@pytest.mark.usefixtures("noted")
def test_pages_go_from_the_newest_to_the_oldest(service: Service, call: Call) -> None:
    first = call("GET", "/api/audit", params={"limit": 2}).data
    service.audit.note(Caller(None, KeyScope.ADMIN, "later"), "put", "later")
    second = call("GET", "/api/audit", params={"limit": 2, "cursor": first["next_cursor"]}).data
    third = call("GET", "/api/audit", params={"limit": 2, "cursor": second["next_cursor"]}).data
    assert [subjects(page) for page in (first, second, third)] == [["s4", "s3"], ["s2", "s1"], ["s0"]]
    assert third["next_cursor"] is None
    assert subjects(call("GET", "/api/audit", params={"skip": 4}).data) == ["s1", "s0"]


@pytest.mark.usefixtures("noted")
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"actor": "one"}, ["s3", "s0"]),
        ({"actor": "local"}, ["s2"]),
        ({"action": "delete"}, ["s3", "s1"]),
        ({"actor": "one", "action": "delete"}, ["s3"]),
        ({"actor": "nobody"}, []),
        ({"actor": "", "action": ""}, ["s4", "s3", "s2", "s1", "s0"]),
        ({"action": "put' OR 1=1 --"}, []),
    ],
)
def test_entries_are_found_by_who_and_what(call: Call, params: dict[str, str], expected: list[str]) -> None:
    assert subjects(call("GET", "/api/audit", params=params).data) == expected


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0},
        {"limit": 1001},
        {"skip": -1},
        {"skip": 10_001},
        {"cursor": "?"},
        {"cursor": "WzFd", "skip": 0},
        {"actor": "a\0"},
    ],
)
def test_an_invalid_page_is_refused(call: Call, params: dict[str, Any]) -> None:
    answer = call("GET", "/api/audit", params=params)
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")


@pytest.mark.parametrize(("scope", "status"), [("read", 403), ("run", 403), ("label", 403), ("admin", 200)])
def test_the_log_is_for_admins(call: Call, call_with: Callable[[str], dict[str, str]], scope: str, status: int) -> None:
    assert call("GET", "/api/audit", headers=call_with(scope)).status == status


def test_changes_over_rest_are_recorded_and_the_log_cannot_be_written(service: Service, call: Call) -> None:
    call("PUT", "/api/secrets/TOKEN", json={"value": "hidden-value", "host": "agent.test"})
    answer = call("GET", "/api/audit")
    assert [(entry["key_id"], entry["action"]) for entry in answer.data["entries"]] == [(None, "secret.put")]
    assert "hidden-value" not in str(answer.body)
    for method in ("POST", "PUT", "DELETE"):
        assert call(method, "/api/audit").status == 405
    assert len(service.audit.entries()) == 1


@pytest.mark.parametrize("path", ["/api/health", "/api/audit", "/", "/api/openapi.json", "/api/evaluations/nothing"])
def test_head_answers_as_get_without_the_body(call: Call, path: str) -> None:
    got, head = call.client.get(path), call.client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    for name in ("content-type", "content-length", "content-security-policy", "cache-control"):
        assert head.headers.get(name) == got.headers.get(name), name


def test_head_needs_the_key_that_get_needs(call: Call, call_with: Callable[[str], dict[str, str]]) -> None:
    headers = call_with("read")
    assert call.client.head("/api/audit").status_code == 401
    assert call.client.head("/api/audit", headers=headers).status_code == 403
    assert call.client.head("/api/test-cases", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "path", ["/api/evaluations/x/events", "/api/evaluations/x/export", "/api/evaluations/x/cancel"]
)
def test_what_streams_or_has_no_get_has_no_head(call: Call, path: str) -> None:
    assert call.client.head(path).status_code == 405

"""The door: hosts, origins, keys in the wrong place, content types and rates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from gradeline.service.app import application
from gradeline.service.auth import KeyScope
from gradeline.service.limits import (
    BodyLimitMiddleware,
    ConcurrencyLimitMiddleware,
    RequestLimits,
    TokenBuckets,
    address_group,
)
from gradeline.service.responses import BodyError
from gradeline.service.service import Service

from .conftest import BASE_URL, Call

SECRET = {"value": "a-secret-value", "host": "agent.test"}


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "LOCALHOST:8000", "[::1]:8000"])
def test_local_mode_answers_to_its_own_names(call: Call, host: str) -> None:
    assert call("GET", "/api/secrets", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.test",
        "evil.test:8000",
        "127.0.0.1",
        "127.0.0.1:8001",
        "localhost.evil.test:8000",
        "127.0.0.1:8000.evil.test",
        "",
    ],
)
def test_local_mode_refuses_every_other_host(call: Call, host: str) -> None:
    for path in ("/", "/api/health", "/api/secrets", "/api/nothing"):
        answer = call("GET", path, headers={"Host": host})
        assert (answer.status, answer.error["code"]) == (421, "FORBIDDEN")


def test_with_keys_the_host_may_be_any(service: Service, call: Call) -> None:
    _, text = service.keys.create(KeyScope.ADMIN)
    headers = {"Host": "evals.example.com", "Authorization": f"Bearer {text}"}
    assert call("GET", "/api/secrets", headers=headers).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8001"},
        {"Origin": "https://127.0.0.1:8000"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_foreign_page_cannot_write_in_local_mode(call: Call, headers: dict[str, str]) -> None:
    for method, path in (("PUT", "/api/secrets/A"), ("DELETE", "/api/secrets/A"), ("POST", "/api/session")):
        answer = call(method, path, headers=headers)
        assert (answer.status, answer.error["code"]) == (403, "FORBIDDEN")
    assert call("GET", "/api/secrets", headers=headers).data["secrets"] == []


@pytest.mark.parametrize("headers", [{}, {"Origin": BASE_URL}, {"Sec-Fetch-Site": "same-origin"}])
def test_its_own_page_and_programs_write(call: Call, headers: dict[str, str]) -> None:
    assert call("PUT", "/api/secrets/A", json=SECRET, headers=headers).status == 200


def test_with_keys_a_write_from_another_origin_is_refused(service: Service, call: Call) -> None:
    _, text = service.keys.create(KeyScope.ADMIN)
    headers = {"Host": "evals.example.com", "Authorization": f"Bearer {text}"}
    for origin, status in (("https://evals.example.com", 200), ("https://evil.test", 403), ("null", 403)):
        assert call("PUT", "/api/secrets/A", json=SECRET, headers={**headers, "Origin": origin}).status == status


def test_no_answer_lets_another_origin_read(call: Call) -> None:
    answer = call("OPTIONS", "/api/secrets", headers={"Origin": "http://evil.test"})
    assert answer.status == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("query", ["key=abc", "api_key=", "Access_Token=x", "q=KEY", "q=x%5FKEY"])
def test_a_key_in_the_url_is_refused(service: Service, call: Call, query: str) -> None:
    _, text = service.keys.create(KeyScope.ADMIN)
    answer = call("GET", f"/api/secrets?{query.replace('KEY', text)}", headers={"Authorization": f"Bearer {text}"})
    assert (answer.status, answer.error["code"]) == (400, "INVALID_INPUT")
    assert text not in str(answer)


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Basic YTpi", "gl_x", "Bearer gl_x gl_y", "Bearer \xe9"])
def test_credentials_that_are_not_a_bearer_key_are_refused(service: Service, call: Call, given: str) -> None:
    service.keys.create(KeyScope.ADMIN)
    answer = call("GET", "/api/secrets", headers=[("Authorization", given.encode("latin-1"))])
    assert (answer.status, answer.error["code"]) == (401, "UNAUTHORIZED")


def test_two_keys_are_refused(service: Service, call: Call) -> None:
    _, text = service.keys.create(KeyScope.ADMIN)
    twice = [("Authorization", f"Bearer {text}")] * 2
    assert call("GET", "/api/secrets", headers=twice).status == 401


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None]
)
def test_a_json_route_accepts_only_json(call: Call, kind: str | None) -> None:
    headers = {"Content-Type": kind} if kind else {}
    answer = call("PUT", "/api/secrets/A", content=b'{"value": "a-secret-value", "host": "a"}', headers=headers)
    assert (answer.status, answer.error["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"]
)
def test_every_spelling_of_json_is_taken(call: Call, kind: str) -> None:
    answer = call(
        "PUT", "/api/secrets/A", content=b'{"value": "a-secret-value", "host": "a"}', headers={"Content-Type": kind}
    )
    assert answer.status == 200


def test_a_compressed_body_is_refused(call: Call) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert call("PUT", "/api/secrets/A", content=b"\x1f\x8b", headers=headers).status == 415


@pytest.fixture
def strict(service: Service) -> Iterator[Call]:
    """A service that a few requests bring to its limits."""
    limits = RequestLimits(rate=0.01, burst=5, wrong_rate=0.01, wrong_burst=3)
    with TestClient(application(service, limits), base_url=BASE_URL, raise_server_exceptions=False) as client:
        yield Call(client)


def test_wrong_keys_are_slowed_down_and_a_good_one_is_not(service: Service, strict: Call) -> None:
    _, text = service.keys.create(KeyScope.ADMIN)
    wrong = {"Authorization": "Bearer gl_wrong"}
    assert [strict("GET", "/api/secrets", headers=wrong).status for _ in range(5)] == [401, 401, 401, 429, 429]
    refused = strict("POST", "/api/session", json={"key": "gl_wrong"})
    assert (refused.status, refused.error["code"]) == (429, "RATE_LIMITED")
    assert int(refused.headers["retry-after"]) >= 1
    assert strict("GET", "/api/secrets", headers={"Authorization": f"Bearer {text}"}).status == 200


def test_each_key_has_its_own_rate(service: Service, strict: Call) -> None:
    texts = [service.keys.create(KeyScope.ADMIN)[1] for _ in range(2)]
    for text in texts:
        headers = {"Authorization": f"Bearer {text}"}
        answers = [strict("GET", "/api/secrets", headers=headers) for _ in range(6)]
        assert [answer.status for answer in answers] == [200] * 5 + [429]
        assert int(answers[-1].headers["retry-after"]) >= 1


def test_without_a_key_the_rate_is_of_the_address(strict: Call) -> None:
    assert [strict("GET", "/api/health").status for _ in range(6)] == [200] * 5 + [429]


def test_a_bucket_fills_again() -> None:
    now = [0.0]
    buckets = TokenBuckets(rate=2, burst=2, clock=lambda: now[0])
    assert [buckets.take("a") for _ in range(3)] == [None, None, 1]
    assert buckets.take("b") is None
    now[0] = 0.5
    assert [buckets.take("a") for _ in range(2)] == [None, 1]
    now[0] = -100  # a clock that jumps back takes nothing away
    assert buckets.take("a") == 1


def test_buckets_do_not_grow_without_end() -> None:
    buckets = TokenBuckets(rate=1, burst=1)
    for number in range(10_050):
        buckets.take(str(number))
    assert len(buckets._buckets) == 10_000


def test_addresses_of_one_network_are_one_caller() -> None:
    assert address_group("2001:db8::1") == address_group("2001:db8::ffff")
    assert address_group("2001:db8:1::1") != address_group("2001:db8:2::1")
    assert (address_group("10.0.0.1"), address_group("testclient")) == ("10.0.0.1", "testclient")


def test_a_body_with_a_too_large_content_length_is_refused_unread(call: Call) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": "1000000000"}
    answer = call("PUT", "/api/secrets/A", content=b"{}", headers=headers)
    assert (answer.status, answer.error["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_a_body_without_a_length_is_measured_while_it_arrives(call: Call) -> None:
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 1
            yield b" " * 1_000_000

    answer = call("PUT", "/api/secrets/A", content=chunks(), headers={"Content-Type": "application/json"})
    assert (answer.status, answer.error["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_a_body_of_just_the_size_is_read(call: Call) -> None:
    body = b'{"value": "a-secret-value", "host": "a"}'
    headers = {"Content-Type": "application/json"}
    assert call("PUT", "/api/secrets/A", content=body.ljust(10_000_000), headers=headers).status == 200
    assert call("PUT", "/api/secrets/A", content=body.ljust(10_000_001), headers=headers).status == 413


def _scope() -> dict[str, Any]:
    return {"type": "http", "method": "POST", "path": "/", "headers": [], "state": {}}


async def body_in_time(receive: Any, limits: RequestLimits) -> str:
    seen = ""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal seen
        try:
            while (await receive())["more_body"]:
                pass
            seen = "whole"
        except BodyError as error:
            seen = f"{error.error.status}"

    async def send(message: Any) -> None: ...

    await BodyLimitMiddleware(app, limits, 1000, {})(_scope(), receive, send)
    return seen


def test_a_body_that_never_arrives_times_out() -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    assert asyncio.run(body_in_time(never, RequestLimits(body_s=0.01))) == "408"


def test_a_slow_body_times_out() -> None:
    async def drip() -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(0)
            yield {"type": "http.request", "body": b"", "more_body": True}

    dripping = drip()
    assert asyncio.run(body_in_time(dripping.__anext__, RequestLimits(body_s=0.05))) == "408"


def test_while_too_many_are_being_worked_on_others_are_sent_away() -> None:
    async def scenario() -> list[int]:
        go = asyncio.Event()
        statuses: list[int] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await asyncio.sleep(0)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        crowd = ConcurrencyLimitMiddleware(app, RequestLimits(at_once=4, reserved=1))

        def sent(address: str, path: str = "/") -> Any:
            return crowd({**_scope(), "client": (address, 1), "path": path}, None, send)  # type: ignore[arg-type]

        async with asyncio.TaskGroup() as group:
            for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
                group.create_task(sent(address))
            await asyncio.sleep(0)
            await sent("10.0.0.1")  # its address has half of the room
            group.create_task(sent("10.0.0.2"))
            await asyncio.sleep(0)
            await sent("10.0.0.3")  # there is no room left
            group.create_task(sent("10.0.0.1", "/api/ready"))
            await asyncio.sleep(0)
            await sent("10.0.0.3", "/api/health")
            go.set()
        await sent("10.0.0.1")
        return statuses

    assert asyncio.run(scenario()) == [429, 429, 429, 200, 200, 200, 200, 200, 200]

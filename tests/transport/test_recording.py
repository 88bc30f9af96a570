"""Exchanges are recorded as sent and received, up to a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from gradeline.testing.fault_server import FaultServer
from gradeline.transport import CallError, HttpRequest
from gradeline.transport.client import RecordingTransport

T = TypeVar("T")


def with_server(test: Callable[[FaultServer, RecordingTransport], Awaitable[T]], keep: int = 1000) -> T:
    async def run() -> T:
        async with FaultServer() as server, RecordingTransport(keep=keep) as transport:
            return await test(server, transport)

    return asyncio.run(run())


def test_a_call_is_recorded_completely() -> None:
    async def call(server: FaultServer, transport: RecordingTransport) -> None:
        headers = {"Authorization": "Bearer hidden", "user-agent": "mine"}
        answer = await transport.request(HttpRequest("POST", f"{server.url}/ok", headers, b'{"input": "x"}'))
        (exchange,) = transport.exchanges
        assert (exchange.method, exchange.url, exchange.body) == ("POST", f"{server.url}/ok", b'{"input": "x"}')
        assert dict(exchange.headers) == {"Accept-Encoding": "gzip, deflate", **headers}
        assert (exchange.status, exchange.answer, exchange.cut) == (200, answer.body, False)
        assert "hidden" not in repr(exchange)

    with_server(call)


def test_a_long_body_is_truncated_also_for_errors() -> None:
    async def call(server: FaultServer, transport: RecordingTransport) -> list[tuple[int | None, int, bool]]:
        await transport.request(HttpRequest("POST", f"{server.url}/ok", body=b'{"input": "x"}'))
        with pytest.raises(CallError, match="answered 400"):
            await transport.request(HttpRequest("GET", f"{server.url}/status/400", retries=0))
        return [(one.status, len(one.answer or b""), one.cut) for one in transport.exchanges]

    assert with_server(call, keep=3) == [(200, 3, True), (400, 3, True)]


def test_a_missing_or_truncated_response_has_no_body() -> None:
    async def call(server: FaultServer, transport: RecordingTransport) -> list[tuple[int | None, bytes | None]]:
        for path in ("/reset", "/truncated"):
            with pytest.raises(CallError):
                await transport.request(HttpRequest("GET", server.url + path, retries=0))
        return [(one.status, one.answer) for one in transport.exchanges]

    assert with_server(call) == [(None, None), (200, None)]


def test_only_the_first_and_last_calls_are_kept() -> None:
    async def call(server: FaultServer, transport: RecordingTransport) -> None:
        for number in range(15):
            await transport.request(HttpRequest("POST", f"{server.url}/ok?n={number}", body=b"{}"))
        assert [one.url.rpartition("=")[2] for one in transport.exchanges] == ["0", *map(str, range(6, 15))]
        assert transport.omitted == 5

    with_server(call)

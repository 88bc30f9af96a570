"""A scripted provider server that records its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from threading import Thread
from typing import Any, NamedTuple, Self

import pytest
from aiohttp import web

from gradeline.adapters import AdapterSettings, ChatAdapter, create
from gradeline.transport import Backoff

KEY = "sk-test-0123456789abcdef"
QUICK = Backoff(base_s=0.001, cap_s=0.002, random=Random(7))


class ReceivedRequest(NamedTuple):
    """A request as it came; header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: Any


class Reply(NamedTuple):
    """What the server answers: JSON, or the events of a stream, or plain bytes."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = {}
    events: list[Any] | None = None
    cut: bool = False
    """Close the connection within the body."""

    @property
    def data(self) -> bytes:
        if self.events is not None:
            return b"".join(map(_event, self.events))
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()

    @property
    def content_type(self) -> str:
        return "text/event-stream" if self.events is not None else "application/json"


def _event(event: Any) -> bytes:
    """A text is the data as it is; a mapping with a type is a named event, as Anthropic and Responses send them."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


class Provider:
    """Serves in a thread of its own, so that blocking callers can be tested too. The last reply is repeated."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.seen: list[ReceivedRequest] = []
        self.connections: set[Any] = set()
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.connections.add(request.transport)
        self.seen.append(ReceivedRequest(request.path_qs, headers, await request.json()))
        reply = self.replies[min(len(self.seen), len(self.replies)) - 1]
        if not reply.cut:
            return web.Response(
                body=reply.data, status=reply.status, headers={"Content-Type": reply.content_type, **reply.headers}
            )
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.content_type})
        response.content_length = len(reply.data) + 1
        await response.prepare(request)
        await response.write(reply.data)
        assert request.transport is not None
        request.transport.close()
        return response

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.seen]


@pytest.fixture
def serve() -> Iterator[Callable[..., Provider]]:
    """Starts a provider that returns these replies."""
    with ExitStack() as stack:
        yield lambda *replies: stack.enter_context(Provider(*replies))


def adapter_for(server: Provider, provider: str, model: str | None = "m", **settings: Any) -> ChatAdapter:
    base = "/v1" if provider.startswith("openai") else ""
    return create(
        provider, model, base_url=server.url + base, api_key=KEY, settings=AdapterSettings(backoff=QUICK, **settings)
    )


@pytest.fixture
def adapter() -> Callable[..., ChatAdapter]:
    """Makes the adapter that speaks with a server."""
    return adapter_for


@pytest.fixture
def reply() -> type[Reply]:
    return Reply

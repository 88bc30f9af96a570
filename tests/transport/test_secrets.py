"""Secrets are filled in at every hop, for the address and the place they are bound to, and never elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TypeVar

import pytest
from aiohttp import web
from yarl import URL

from gradeline.errors import ConfigError
from gradeline.model.secrets import BoundSecret, SecretLocation, SecretSet
from gradeline.transport import CallError, HttpRequest, HttpResponse, Transport
from gradeline.transport.client import Backoff
from gradeline.transport.secrets import SecretRefusedError, authorize

T = TypeVar("T")
VALUE = 'pl/ant+ed "value" 1'


class Server:
    """Records requests, and redirects or echoes according to the path."""

    def __init__(self) -> None:
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.url = ""
        self.other = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.received.append((str(request.rel_url), dict(request.headers), body))
        if request.path.startswith("/redirect/"):
            status = int(request.path.rpartition("/")[2])
            location = request.query.get("to", f"{self.other}/echo").replace("SAME", self.url)
            if "reflect" in request.query:
                location = f"{self.other}/echo?{request.query_string}"
            return web.Response(status=status, headers={"Location": location})
        if request.path == "/split":
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            data = f"data: {request.headers.get('X-Key', '')}\n\n".encode()
            for start in range(0, len(data), 3):
                await response.write(data[start : start + 3])
                await asyncio.sleep(0)
            return response
        return web.json_response(
            {"url": str(request.rel_url), "headers": dict(request.headers), "body": body.decode()},
            status=400 if request.path == "/refused" else 200,
            headers={"X-Echo": request.headers.get("X-Key", "")},
        )


@asynccontextmanager
async def servers() -> AsyncIterator[tuple[Server, Server]]:
    both_servers = (Server(), Server())
    runners = []
    for server in both_servers:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", server.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        runners.append(runner)
    both_servers[0].other, both_servers[1].other = both_servers[1].url, both_servers[0].url
    try:
        yield both_servers
    finally:
        for runner in runners:
            await runner.cleanup()


def with_servers(
    test: Callable[[Server, Server, Transport, BoundSecret], Awaitable[T]], place: SecretLocation = "header"
) -> T:
    async def run() -> T:
        async with servers() as (own, other):
            secret = BoundSecret("KEY", VALUE, (own.url.removeprefix("http://"),), place=place)
            async with Transport(backoff=Backoff(0.001), secrets=SecretSet([secret])) as transport:
                return await test(own, other, transport, secret)

    return asyncio.run(run())


def request_with(secret: BoundSecret, url: str) -> HttpRequest:
    """A request with the secret in its own place."""
    if secret.place == "query":
        url += f"{'&' if '?' in url else '?'}key={secret.marker}"
    headers = {"X-Key": secret.marker} if secret.place == "header" else {"Content-Type": "application/json"}
    body = json.dumps({"key": secret.marker}).encode() if secret.place == "body" else b"{}"
    return HttpRequest("POST", url, headers, body, retries=0)


@pytest.mark.parametrize("place", ["header", "query", "body"])
@pytest.mark.parametrize("path", ["/echo", "/redirect/307?to=SAME/echo"])
def test_the_value_is_sent_and_masked_in_the_response(place: SecretLocation, path: str) -> None:
    async def call(own: Server, _: Server, transport: Transport, secret: BoundSecret) -> tuple[HttpResponse, Server]:
        return await transport.request(request_with(secret, own.url + path)), own

    answer, own = with_servers(call, place)
    url, headers, body = own.received[-1]
    sent = {
        "header": lambda: headers["X-Key"],
        "query": lambda: URL(own.received[0][0]).query["key"],
        "body": lambda: json.loads(body)["key"],
    }[place]()
    assert sent == VALUE
    for form in (VALUE, json.dumps(VALUE)[1:-1], "planted", "pl%2Fant", "pl/ant"):
        assert form.encode() not in answer.body
        assert form not in str(dict(answer.headers))
    assert b"***" in answer.body or url == "/echo"


@pytest.mark.parametrize("place", ["header", "query", "body"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_secret_follows_a_redirect_to_another_origin(place: SecretLocation, status: int) -> None:
    carried = place == "body" and status in (307, 308)

    async def call(own: Server, other: Server, transport: Transport, secret: BoundSecret) -> list[object]:
        expected = pytest.raises(CallError, match="with a secret in the body, which is not sent to another origin")
        with expected if carried else nullcontext():
            await transport.request(request_with(secret, f"{own.url}/redirect/{status}"))
        return [*other.received]

        return [*other.received]

    received = with_servers(call, place)
    assert "ant" not in str(received)
    assert "gradeline-secret" not in str(received)
    assert bool(received) is not carried


def test_a_redirect_with_a_secret_in_its_query_is_not_followed() -> None:
    async def call(own: Server, other: Server, transport: Transport, secret: BoundSecret) -> tuple[str, list[object]]:
        with pytest.raises(CallError) as caught:
            await transport.request(request_with(secret, f"{own.url}/redirect/302?reflect=1"))
        return str(caught.value), [*other.received]

    message, received = with_servers(call, "query")
    assert "with a secret in the URL" in message
    assert "ant" not in message
    assert received == []


def test_a_secret_in_the_body_does_not_follow_a_redirect() -> None:
    async def call(own: Server, other: Server, transport: Transport, _: BoundSecret) -> list[object]:
        body = b'{"token": "from-the-environment"}'
        request = HttpRequest("POST", f"{own.url}/redirect/307", {}, body, retries=0, secrets=["from-the-environment"])
        with pytest.raises(CallError, match="with a secret in the body"):
            await transport.request(request)
        return [*other.received]

    assert with_servers(call) == []


@pytest.mark.parametrize(("place", "used"), [("header", "body"), ("header", "query"), ("body", "header")])
def test_a_secret_in_another_place_is_refused_before_anything_is_sent(
    place: SecretLocation, used: SecretLocation
) -> None:
    async def call(own: Server, _: Server, transport: Transport, secret: BoundSecret) -> list[object]:
        elsewhere = BoundSecret(secret.name, "", (), place=used, marker=secret.marker)
        with pytest.raises(SecretRefusedError, match=f"may be sent in the {place} only, not in the {used}"):
            await transport.request(request_with(elsewhere, f"{own.url}/echo"))
        return [*own.received]

    assert with_servers(call, place) == []


def test_a_secret_is_not_sent_to_another_address() -> None:
    async def call(_: Server, other: Server, transport: Transport, secret: BoundSecret) -> list[object]:
        with pytest.raises(SecretRefusedError, match=r"'KEY' may be sent to https://127\.0\.0\.1:\d+ only, not to"):
            await transport.request(request_with(secret, f"{other.url}/echo"))
        return [*other.received]

    assert with_servers(call) == []


def test_a_marker_in_the_path_is_refused() -> None:
    async def call(own: Server, _: Server, transport: Transport, secret: BoundSecret) -> list[object]:
        with pytest.raises(SecretRefusedError, match="cannot be in the path"):
            await transport.request(HttpRequest("GET", f"{own.url}/{secret.marker}"))
        return [*own.received]

    assert with_servers(call) == []


def test_an_error_status_shows_no_value() -> None:
    async def call(own: Server, _: Server, transport: Transport, secret: BoundSecret) -> str:
        with pytest.raises(CallError) as caught:
            await transport.request(request_with(secret, f"{own.url}/refused"))
        return str(caught.value)

    message = with_servers(call)
    assert "ant+ed" not in message
    assert "***" in message


def test_a_value_split_over_chunks_is_masked_in_events() -> None:
    async def call(own: Server, _: Server, transport: Transport, secret: BoundSecret) -> HttpResponse:
        return await transport.request(
            HttpRequest("POST", f"{own.url}/split", {"X-Key": secret.marker}, b"", stream="sse")
        )

    answer = with_servers(call)
    assert [event.data for event in answer.events] == ["***"]
    assert answer.body == b"data: ***\n\n"


@pytest.mark.parametrize("name", ["Host", "host", "Content-Length", "Transfer-Encoding", "Connection"])
def test_headers_that_the_transport_sets_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is set by the transport; leave it out"):
        HttpRequest("POST", "http://agent.test/", {name: "evil.test"}).checked_url()


def test_a_name_that_only_looks_like_loopback_needs_https() -> None:
    secret = BoundSecret("KEY", VALUE, ("localhost.evil.test",))
    with pytest.raises(SecretRefusedError, match="store it again with scheme http to send it unencrypted"):
        authorize(secret, URL("http://localhost.evil.test:80/").with_port(80))

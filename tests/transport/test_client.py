from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from gradeline.errors import RESPONSE_POLICY, AgentError, ConfigError
from gradeline.testing.fault_server import FaultServer
from gradeline.transport import (
    Backoff,
    CallError,
    EgressPolicy,
    Event,
    HttpRequest,
    HttpResponse,
    PublicOnly,
    Transport,
)

T = TypeVar("T")
QUICK = Backoff(base_s=0.001, cap_s=0.002, random=Random(7))


def with_server(test: Callable[[FaultServer, Transport], Awaitable[T]], **options: Any) -> T:
    """Runs a test against a fault server; pauses are short."""

    async def run() -> T:
        async with FaultServer() as server, Transport(**{"backoff": QUICK, **options}) as transport:
            return await test(server, transport)

    return asyncio.run(run())


def get(path: str, **options: Any) -> tuple[HttpResponse, FaultServer]:
    async def call(server: FaultServer, transport: Transport) -> tuple[HttpResponse, FaultServer]:
        return await transport.request(HttpRequest("GET", server.url + path, **options)), server

    return with_server(call)


def failure(path: str, **options: Any) -> tuple[CallError, FaultServer]:
    transport_options = {name: options.pop(name) for name in ("max_body", "policy", "backoff") if name in options}

    async def call(server: FaultServer, transport: Transport) -> tuple[CallError, FaultServer]:
        with pytest.raises(CallError) as caught:
            await transport.request(HttpRequest("POST", server.url + path, body=b"{}", **options))
        return caught.value, server

    return with_server(call, **transport_options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class FixedResolver(AbstractResolver):
    def __init__(self, names: dict[str, list[str]]) -> None:
        self.names = names

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0)
            for address in self.names[host]
        ]

    async def close(self) -> None:
        pass


def test_a_successful_call() -> None:
    async def call(server: FaultServer, transport: Transport) -> tuple[HttpResponse, FaultServer]:
        headers = {"Content-Type": "application/json", "X-Trace": "7"}
        body = json.dumps({"input": "Paris?"}).encode()
        return await transport.request(HttpRequest("post", server.url + "/ok?x=1", headers, body)), server

    answer, server = with_server(call)
    assert (answer.status, answer.body, answer.attempts, answer.complete) == (200, b'{"response": "Paris?"}', 1, True)
    assert answer.headers["content-type"] == "application/json"
    assert answer.latency_ms > 0
    (received,) = server.received
    assert (received.method, received.path, received.query) == ("POST", "/ok", {"x": "1"})
    assert received.headers["x-trace"] == "7"
    assert received.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("path", "type_", "message"),
    [
        ("/hang", "timeout", "within 0.4 s"),
        ("/drip", "timeout", "within 0.4 s"),
        ("/half-open", "timeout", "within 0.4 s"),
        ("/slow?ms=60000", "timeout", "within 0.4 s"),
    ],
)
def test_the_total_deadline_ends_a_hanging_call(path: str, type_: str, message: str) -> None:
    error, server = failure(path, deadline_s=0.4)
    assert (error.type, error.attempts, server.hits.total()) == (type_, 1, 1)
    assert message in str(error)


@pytest.mark.parametrize(
    ("path", "type_", "hits"),
    [
        ("/reset", "reset", 3),
        ("/truncated", "truncated", 3),
        ("/truncated?how=chunked", "truncated", 3),
        ("/truncated?how=gzip", "truncated", 3),
        ("/truncated?how=reset", "reset", 3),
        ("/status/500", "status", 3),
        ("/status/503", "status", 3),
        ("/status/429", "rate_limited", 3),
        ("/status/404", "status", 1),
        ("/status/304", "status", 1),
        ("/garbage", "bad_response", 1),
        ("/encoded/br", "bad_response", 1),
        ("/encoded/lie", "bad_response", 1),
        ("/redirect", "redirect", 1),
    ],
)
def test_each_fault_has_its_type_and_only_some_are_retried(path: str, type_: str, hits: int) -> None:
    error, server = failure(path)
    assert isinstance(error, AgentError)
    assert error.type in RESPONSE_POLICY
    assert (error.type, error.attempts, server.hits.total()) == (type_, hits, hits)
    assert server.url + path.partition("?")[0] in str(error)


def test_no_retries_means_one_attempt() -> None:
    error, server = failure("/status/503", retries=0)
    assert (error.http_status, error.attempts, server.hits["/status/503"]) == (503, 1, 1)


@pytest.mark.parametrize("path", ["/huge", "/gzip-bomb", "/endless"])
def test_a_body_above_the_limit_is_cut_off_in_bounded_memory(path: str) -> None:
    tracemalloc.start()
    try:
        error, server = failure(path, max_body=1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (error.type, server.hits[path]) == ("too_large", 1)
    assert "1,000,000 bytes" in str(error)
    assert peak < 20_000_000


def test_a_body_as_large_as_the_limit_is_accepted() -> None:
    async def call(server: FaultServer, transport: Transport) -> HttpResponse:
        return await transport.request(HttpRequest("POST", server.url + "/ok", body=b"x" * 84))

    assert len(with_server(call, max_body=100).body) == 100
    with pytest.raises(CallError, match="larger than 99 bytes"):
        with_server(call, max_body=99)


def test_a_large_body_is_sent_whole_on_every_attempt() -> None:
    async def call(server: FaultServer, transport: Transport) -> tuple[HttpResponse, FaultServer]:
        request = HttpRequest(
            "POST", server.url + "/retry-after/absent", {"Content-Type": "text/plain"}, b"x" * 3_000_000
        )
        return await transport.request(request), server

    answer, server = with_server(call)
    assert answer.attempts == 2
    assert [len(request.body) for request in server.received] == [3_000_000, 3_000_000]
    assert [request.headers["content-type"] for request in server.received] == ["text/plain"] * 2


@pytest.mark.parametrize("coding", ["gzip", "members", "deflate", "raw", "identity"])
def test_compressed_bodies_are_decompressed(coding: str) -> None:
    answer, _ = get(f"/encoded/{coding}")
    assert json.loads(answer.body) == {"response": "packed " * 20_000}


@pytest.mark.parametrize("path", ["/bad-json", "/invalid-utf8", "/deep-json"])
def test_a_body_is_returned_unchanged(path: str) -> None:
    answer, _ = get(path)
    assert answer.complete
    assert answer.body


@pytest.mark.parametrize("path", ["/hang", "/huge", "/gzip-bomb", "/endless", "/reset", "/drip"])
def test_other_calls_are_not_affected_by_a_failing_one(path: str) -> None:
    async def call(server: FaultServer, transport: Transport) -> list[HttpResponse | BaseException]:
        bad = transport.request(HttpRequest("POST", server.url + path, deadline_s=0.5, retries=0))
        good = [transport.request(HttpRequest("POST", server.url + "/ok", body=b"%d" % i)) for i in range(20)]
        return await asyncio.gather(bad, *good, return_exceptions=True)

    bad, *good = with_server(call, max_body=100_000)
    assert isinstance(bad, CallError)
    assert [json.loads(answer.body)["response"] for answer in good if isinstance(answer, HttpResponse)] == [
        str(i) for i in range(20)
    ]


def test_connections_are_reused() -> None:
    async def call(server: FaultServer, transport: Transport) -> int:
        for path in ("/ok", "/encoded/gzip", "/sse", "/ok"):
            await transport.request(HttpRequest("POST", server.url + path))
        with pytest.raises(CallError):
            await transport.request(HttpRequest("POST", server.url + "/status/404"))
        await transport.request(HttpRequest("POST", server.url + "/ok"))
        return server.connections

    assert with_server(call) == 1


def test_no_server_on_the_port() -> None:
    async def call(_: FaultServer, transport: Transport) -> CallError:
        with pytest.raises(CallError) as caught:
            await transport.request(HttpRequest("POST", f"http://127.0.0.1:{free_port()}/"))
        return caught.value

    error = with_server(call)
    assert (error.type, error.attempts) == ("connect", 3)


def test_an_unknown_name() -> None:
    async def call(_: FaultServer, transport: Transport) -> CallError:
        with pytest.raises(CallError) as caught:
            await transport.request(HttpRequest("POST", "http://no-such-agent.test/"))
        return caught.value

    error = with_server(call, resolver=FixedResolver({}))
    assert (error.type, error.attempts) == ("dns", 3)
    assert "Name or service not known" in str(error)


def test_a_server_without_tls() -> None:
    async def call(server: FaultServer, transport: Transport) -> CallError:
        with pytest.raises(CallError) as caught:
            await transport.request(HttpRequest("POST", server.url.replace("http:", "https:") + "/ok"))
        return caught.value

    error = with_server(call)
    assert (error.type, error.attempts) == ("tls", 1)


def test_retry_after_is_respected() -> None:
    answer, server = get("/retry-after/seconds?s=0&after=3")
    assert (answer.attempts, server.hits["/retry-after/seconds"]) == (3, 3)


@pytest.mark.parametrize("form", ["negative", "huge", "garbage", "absent"])
@pytest.mark.parametrize("status", [429, 503])
def test_an_invalid_retry_after_is_replaced_by_backoff(form: str, status: int) -> None:
    answer, server = get(f"/retry-after/{form}?after=3&status={status}")
    assert (answer.attempts, server.hits[f"/retry-after/{form}"]) == (3, 3)


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_retry_after_beyond_the_deadline_is_not_waited_for(form: str) -> None:
    error, server = failure(f"/retry-after/{form}?s=600&after=9", deadline_s=5)
    assert (error.type, error.attempts, server.hits.total()) == ("rate_limited", 1, 1)
    assert "would exceed the deadline of 5 s" in str(error)


def test_the_deadline_covers_all_attempts() -> None:
    class AlwaysLong(Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    error, server = failure(
        "/status/503", deadline_s=0.4, retries=100, backoff=Backoff(base_s=0.15, cap_s=0.15, random=AlwaysLong())
    )
    assert error.type == "status"
    assert 1 <= server.hits.total() <= 3
    assert "not retried" in str(error)


def test_a_timeout_names_the_preceding_failure() -> None:
    error, server = failure("/hang?after=2", deadline_s=0.4)
    assert (error.type, error.attempts, server.hits["/hang"]) == ("timeout", 2, 2)
    assert "the previous attempt failed: answered 503" in str(error)


def test_an_error_shows_a_short_clean_excerpt() -> None:
    error, _ = failure("/status/500?echo=1", headers={"X-Long": "é" * 3000}, retries=0)
    text = str(error)
    assert "answered 500" in text
    assert len(text.partition("answered 500: ")[2].encode()) <= 2048
    assert text.endswith("…")


def test_an_echoed_secret_is_not_shown() -> None:
    async def call(server: FaultServer, transport: Transport) -> CallError:
        headers = {
            "Authorization": "Bearer sk-live-1234",
            "Cookie": "session=cookie-5678; theme=dark",
            "X-Agent": "marked-9012",
            "X-Note": "told-3456",
        }
        request = HttpRequest(
            "POST",
            f"{server.url}/status/400?echo=1&api_key=query-7890&q=harmless",
            headers,
            secret_headers=["x-agent"],
            secrets=["told-3456"],
        )
        for secret in ("sk-live-1234", "cookie-5678", "marked-9012", "told-3456", "query-7890"):
            assert secret not in repr(request)
        with pytest.raises(CallError) as caught:
            await transport.request(request)
        return caught.value

    error = with_server(call)
    assert str(error).count("***") >= 4
    for secret in ("sk-live-1234", "cookie-5678", "marked-9012", "told-3456", "query-7890", "harmless"):
        assert secret not in str(error)
    assert error.__suppress_context__ or error.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@127.0.0.1/",
        "http://hunter2@127.0.0.1/",
        "ftp://127.0.0.1/?token=hunter2",
        "file:///etc/passwd",
        "http:///path",
        "nothing",
        "http://[bad/?key=hunter2",
    ],
)
def test_an_invalid_url_is_refused_before_sending(url: str) -> None:
    async def call(server: FaultServer, transport: Transport) -> str:
        with pytest.raises(ConfigError, match="url") as caught:
            await transport.request(HttpRequest("GET", url))
        assert not server.hits
        return str(caught.value)

    assert "hunter2" not in with_server(call)


@pytest.mark.parametrize(
    "wrong",
    [
        {"method": "GET /x"},
        {"deadline_s": 0},
        {"deadline_s": float("nan")},
        {"retries": -1},
        {"headers": {"X": "a\r\nHost: b"}},
        {"headers": {"X Y": "a"}},
        {"headers": {"Content-Length": "3"}},
        {"traceparent": "00-ab-cd-01\r\nHost: b"},
        {"traceparent": ""},
    ],
)
def test_an_invalid_request_is_refused_before_sending(wrong: dict[str, Any]) -> None:
    async def call(server: FaultServer, transport: Transport) -> None:
        with pytest.raises(ConfigError):
            await transport.request(HttpRequest(**{"method": "GET", "url": server.url + "/ok", **wrong}))
        assert not server.hits

    with_server(call)


def test_a_traceparent_is_sent_and_an_invalid_one_is_refused() -> None:
    async def call(server: FaultServer, transport: Transport) -> list[str | None]:
        await transport.request(HttpRequest("GET", server.url + "/ok", traceparent="00-a1-b2-01"))
        with pytest.raises(ConfigError, match="invalid traceparent 'x\\\\ny'"):
            await transport.request(HttpRequest("GET", server.url + "/ok", traceparent="x\ny"))
        return [received.headers.get("traceparent") for received in server.received]

    assert with_server(call) == ["00-a1-b2-01"]


def test_a_trace_goes_with_every_hop_unless_the_headers_have_one() -> None:
    async def call(server: FaultServer, transport: Transport) -> list[str | None]:
        url = f"{server.url}/redirect?to=/ok"
        await transport.request(HttpRequest("GET", url, {"X": "1"}, traceparent="00-a1-b2-01"))
        await transport.request(HttpRequest("GET", url, {"TraceParent": "mine"}, traceparent="00-a1-b2-01"))
        return [received.headers.get("traceparent") for received in server.received]

    assert with_server(call) == ["00-a1-b2-01", "00-a1-b2-01", "mine", "mine"]


@pytest.mark.parametrize(
    ("headers", "sent"), [({}, None), ({"content-type": "text/x"}, "text/x"), ({"Content-Type": "text/y"}, "text/y")]
)
def test_no_content_type_is_invented(headers: dict[str, str], sent: str | None) -> None:
    async def call(server: FaultServer, transport: Transport) -> str | None:
        await transport.request(HttpRequest("POST", server.url + "/ok", headers, b"{}"))
        (received,) = server.received
        return received.headers.get("content-type")

    assert with_server(call) == sent


def test_a_transport_needs_its_context_manager() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(Transport().request(HttpRequest("GET", "http://127.0.0.1/")))


def test_a_cancelled_call_stays_cancelled() -> None:
    async def call(server: FaultServer, transport: Transport) -> None:
        task = asyncio.create_task(transport.request(HttpRequest("GET", server.url + "/hang")))
        while not server.hits:
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with_server(call)


def test_a_server_that_does_not_read_does_not_keep_a_connection_open() -> None:
    async def run() -> None:
        ended = asyncio.Event()

        async def deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await ended.wait()
            writer.transport.abort()

        server = await asyncio.start_server(deaf, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Transport() as transport:
            request = HttpRequest("POST", f"http://127.0.0.1:{port}/", body=bytes(30_000_000), deadline_s=0.3)
            with pytest.raises(CallError) as caught:
                await transport.request(request)
            guard = transport._guard
        assert caught.value.type == "timeout"
        await asyncio.sleep(0.01)
        assert [opened for opened in guard.sockets if opened.fileno() != -1] == []
        ended.set()
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_redirects_are_followed_within_a_limit() -> None:
    answer, server = get("/redirect-chain/5")
    assert (answer.body, server.hits.total(), answer.attempts) == (b'{"response": "arrived"}', 6, 1)
    error, server = failure("/redirect-chain/6")
    assert (error.type, server.hits.total()) == ("redirect", 6)
    assert "more than 5 times" in str(error)


def test_a_redirect_loop_is_detected() -> None:
    error, server = failure("/redirect-loop")
    assert (error.type, server.hits.total()) == ("redirect", 3)
    assert "loop" in str(error)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_post_becomes_a_get_for_these_statuses(status: int) -> None:
    async def call(server: FaultServer, transport: Transport) -> FaultServer:
        url = f"{server.url}/redirect?status={status}&to=/ok"
        await transport.request(HttpRequest("POST", url, {"Content-Type": "text/plain"}, b"hello"))
        return server

    last = with_server(call).received[-1]
    if status in (307, 308):
        assert (last.method, last.body, last.headers["content-type"]) == ("POST", b"hello", "text/plain")
    else:
        assert (last.method, last.body, "content-type" in last.headers) == ("GET", b"", False)


def test_secrets_do_not_cross_origins() -> None:
    async def call(server: FaultServer, transport: Transport) -> tuple[FaultServer, FaultServer]:
        headers = {
            "Authorization": "Bearer sk-live-1234",
            "Proxy-Authorization": "Basic abcd",
            "Cookie": "a=b",
            "X-Api-Key": "key",
            "X-Agent": "marked",
            "X-Plain": "stays",
        }
        async with FaultServer() as other:
            near = HttpRequest("GET", f"{server.url}/redirect?to=/ok", headers, secret_headers=["X-Agent"])
            await transport.request(near)
            far = HttpRequest("GET", f"{server.url}/redirect?to={other.url}/ok", headers, secret_headers=["X-Agent"])
            await transport.request(far)
            return server, other

    server, other = with_server(call)
    names = {"authorization", "proxy-authorization", "cookie", "x-api-key", "x-agent", "x-plain"}
    assert all(names <= set(request.headers) for request in server.received)
    assert names & set(other.received[0].headers) == {"x-plain"}


@pytest.mark.parametrize(
    "place",
    ["ftp://127.0.0.1/x", "file:///etc/passwd", "javascript:alert(1)", "http://user:pw@127.0.0.1/", "http://[bad"],
)
def test_a_redirect_to_an_invalid_url(place: str) -> None:
    error, server = failure(f"/redirect?to={place}")
    assert (error.type, server.hits.total()) == ("redirect", 1)
    assert "pw@" not in str(error)


def refused(policy: EgressPolicy, url: str, resolver: AbstractResolver | None = None) -> tuple[CallError, FaultServer]:
    async def call(server: FaultServer, transport: Transport) -> tuple[CallError, FaultServer]:
        port = server.url.rpartition(":")[2]
        with pytest.raises(CallError) as caught:
            await transport.request(HttpRequest("POST", url.replace("PORT", port)))
        return caught.value, server

    return with_server(call, policy=policy, resolver=resolver)


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f000001", "127.1", "[::1]", "[::ffff:127.0.0.1]"])
def test_addresses_are_checked_in_every_spelling(host: str) -> None:
    error, server = refused(PublicOnly(), f"http://{host}:PORT/ok")
    assert (error.type, error.attempts, server.connections) == ("connect", 1, 0)
    assert "refused by the egress policy" in str(error) or "not a valid name or address" in str(error)


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["127.0.0.1", "93.184.216.34"]])
def test_a_name_with_one_forbidden_address_is_refused(addresses: list[str]) -> None:
    error, server = refused(PublicOnly(), "http://rebound.test:PORT/ok", FixedResolver({"rebound.test": addresses}))
    assert (error.type, error.attempts, server.connections) == ("connect", 1, 0)
    assert "rebound.test is 127.0.0.1, which is a loopback address" in str(error)


def test_every_hop_is_checked() -> None:
    async def call(server: FaultServer, _: Transport) -> tuple[CallError, int]:
        port = server.url.rpartition(":")[2]
        policy = PublicOnly(allow=[f"agent.test:{port}"])
        async with Transport(policy, resolver=FixedResolver({"agent.test": ["127.0.0.1"]})) as transport:
            assert (await transport.request(HttpRequest("GET", f"http://agent.test:{port}/ok"))).status == 200
            with pytest.raises(CallError) as caught:
                await transport.request(HttpRequest("GET", f"http://agent.test:{port}/redirect?to={server.url}/ok"))
        return caught.value, server.hits["/ok"]

    error, hits = with_server(call)
    assert (error.type, hits) == ("connect", 1)
    assert "127.0.0.1 is a loopback address" in str(error)


def test_the_environment_sets_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    assert get("/ok")[0].status == 200


def test_server_sent_events() -> None:
    answer, _ = get("/sse", stream="sse")
    assert answer.events == (
        Event('{"text": "Paris"}', "delta", "1"),
        Event("two\nlines", id="1"),
        Event("[DONE]", id="1"),
    )
    assert answer.complete


def test_newline_delimited_json() -> None:
    answer, _ = get("/ndjson", stream="ndjson")
    assert [event.data for event in answer.events] == ['{"delta": "Par"}', '{"delta": "is"}', '{"done": true}']


def test_a_truncated_stream_is_an_error() -> None:
    error, server = failure("/sse-cut", stream="sse")
    assert (error.type, server.hits["/sse-cut"]) == ("truncated", 3)


def test_a_stream_ended_only_by_close_is_incomplete() -> None:
    answer, _ = get("/sse-cut?framing=close", stream="sse")
    assert ([event.data for event in answer.events], answer.complete) == (['{"text": "Paris"}', "two\nlines"], False)

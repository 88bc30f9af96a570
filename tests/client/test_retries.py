"""Retries, broken connections and responses of other servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from gradeline.client import (
    ApiError,
    AsyncClient,
    Client,
    Evaluation,
    EvaluationEvent,
    ServiceUnreachableError,
    protocol,
)
from gradeline.client.protocol import EventStreamReader

EVALUATION = Evaluation(
    id="1",
    name="run",
    status="completed",
    agent_endpoint_url=None,
    target={},
    test_case_ids=None,
    tag=None,
    grader_ids=[],
    repeats=1,
    concurrency=None,
    timeout_s=None,
    baseline_id=None,
    started_at=None,
    completed_at=None,
    result_count=0,
    error_message=None,
    group=None,
    parent=None,
)
OK = msgspec.json.encode({"success": True, "data": {**msgspec.to_builtins(EVALUATION), "new": 1}, "error": None})
BUSY = b'{"success": false, "data": null, "error": {"code": "RATE_LIMITED", "message": "too much"}}'


class Reply(NamedTuple):
    status: int
    body: bytes = b""
    headers: dict[str, str] = {}
    cut: bool = False
    """Sends less than its Content-Length."""


class Scripted(ThreadingHTTPServer):
    """Returns its replies in order and records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        server: Any = self.server
        length = int(self.headers.get("Content-Length", 0))
        self.rfile.read(length)
        server.seen.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
        reply = server.replies.pop(0)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body) + (10 if reply.cut else 0)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.body)
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - names of the standard library

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_FIRST_WAIT_S", 0.001)


def _async(url: str, act: Callable[[AsyncClient], Any]) -> Any:
    async def run() -> Any:
        async with AsyncClient(url) as client:
            return await act(client)

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
@pytest.mark.parametrize("status", [429, 503])
def test_reads_are_retried_on_429_and_503(server: Scripted, kind: str, status: int) -> None:
    server.replies = [Reply(status, BUSY, {"Retry-After": "0"}), Reply(status, BUSY), Reply(200, OK)]
    if kind == "blocking":
        found = Client(server.url).get_evaluation("1")
    else:
        found = _async(server.url, lambda client: client.get_evaluation("1"))
    assert (found.id, found.status, len(server.seen)) == ("1", "completed", 3)


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_a_start_is_retried_with_the_same_idempotency_key(server: Scripted, kind: str) -> None:
    server.replies = [Reply(503, BUSY), Reply(200, OK[:20], cut=True), Reply(201, OK)]
    if kind == "blocking":
        Client(server.url).start_evaluation(tag="t")
    else:
        _async(server.url, lambda client: client.start_evaluation(tag="t"))
    keys = {headers["idempotency-key"] for _, _, headers in server.seen}
    assert (len(server.seen), len(keys)) == (3, 1)


def test_other_writes_are_retried_only_if_they_were_refused(server: Scripted) -> None:
    client = Client(server.url)
    server.replies = [Reply(503, BUSY)]
    with pytest.raises(ApiError) as failed:
        client.cancel("1")
    assert (failed.value.status, len(server.seen)) == (503, 1)
    server.replies = [Reply(429, BUSY), Reply(202, OK)]
    assert client.cancel("1").id == "1"
    server.replies = [Reply(202, OK[:20], cut=True)]
    with pytest.raises(ServiceUnreachableError, match="broke off"):
        client.cancel("1")


def test_retries_end(server: Scripted) -> None:
    server.replies = [Reply(429, BUSY)] * (protocol.MAX_RETRIES + 1)
    with pytest.raises(ApiError, match="429 RATE_LIMITED: too much"):
        Client(server.url).get_evaluation("1")
    assert server.replies == []


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("3", 3, 3),
        ("0", 0, 0),
        ("999999999999", 60, 60),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("soon", 0, 1),
        ("-1", 0, 1),
    ],
)
def test_retry_after_is_respected_up_to_a_maximum(header: str, least: float, most: float) -> None:
    request = protocol.ApiRequest("GET", "/", repeatable=True)
    wait = protocol.retry_delay(request, protocol.ApiResponse(429, {"retry-after": header}, b""), 0)
    assert wait is not None
    assert least <= wait <= most


@pytest.mark.parametrize(
    "reply",
    [Reply(502, b"<html>bad gateway"), Reply(200, b"<html>"), Reply(200, b'{"success": true, "data": 7}'), Reply(302)],
)
def test_a_response_of_another_server_is_reported(server: Scripted, reply: Reply) -> None:
    server.replies = [reply]
    with pytest.raises(ApiError) as failed:
        Client(server.url, "gl_secret").get_evaluation("1")
    assert (failed.value.code, failed.value.status) == ("UNEXPECTED_ANSWER", reply.status)
    assert "gl_secret" not in str(failed.value)


def test_the_key_and_the_parts_of_a_path_are_sent_as_they_should(server: Scripted) -> None:
    server.replies = [Reply(200, OK)]
    Client(f"{server.url}/behind/a/proxy/", "gl_key").get_evaluation("a/b?c#d é")
    [(method, path, headers)] = server.seen
    assert (method, path) == ("GET", "/behind/a/proxy/api/evaluations/a%2Fb%3Fc%23d%20%C3%A9")
    assert headers["authorization"] == "Bearer gl_key"


def test_the_asynchronous_client_sends_the_same_path(server: Scripted) -> None:
    server.replies = [Reply(200, OK)]
    _async(f"{server.url}/behind", lambda client: client.get_evaluation("a/b%2Fc"))
    assert server.seen[0][1] == "/behind/api/evaluations/a%2Fb%252Fc"


@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_events_continue_after_the_last_one_when_the_connection_broke(server: Scripted, kind: str) -> None:
    first = b'retry: 5\n\nid: 1\nevent: snapshot\ndata: {"a": 1}\n\n:\n\nid: 2\nevent: progress\ndata: {"b":\ndata: 2}\n\nid: 9\nevent: lost\n'
    second = b"id: 3\nevent: done\ndata: {}\n\n"
    server.replies = [Reply(200, first, cut=True), Reply(200, second)]

    async def gathered(client: AsyncClient) -> list[EvaluationEvent]:
        return [event async for event in client.events("1")]

    events = list(Client(server.url).events("1")) if kind == "blocking" else _async(server.url, gathered)
    assert events == [
        EvaluationEvent(id="1", type="snapshot", data={"a": 1}),
        EvaluationEvent(id="2", type="progress", data={"b": 2}),
        EvaluationEvent(id="3", type="done", data={}),
    ]
    assert [headers.get("last-event-id") for _, _, headers in server.seen] == [None, "2"]


def test_a_stream_of_an_unknown_run_is_an_error(server: Scripted) -> None:
    server.replies = [Reply(404, b'{"success": false, "data": null, "error": {"code": "NOT_FOUND", "message": "no"}}')]
    with pytest.raises(ApiError, match="404 NOT_FOUND: no"):
        list(Client(server.url).events("1"))


def test_an_incomplete_file_is_removed(server: Scripted, tmp_path: Path) -> None:
    place = tmp_path / "run.json"
    server.replies = [Reply(200, b"half a file", cut=True)] * 2
    with pytest.raises(ServiceUnreachableError):
        Client(server.url).download("1", place)
    with pytest.raises(ServiceUnreachableError):
        _async(server.url, lambda client: client.download("1", place))
    assert list(tmp_path.iterdir()) == []


def test_carriage_returns_and_data_that_is_not_json() -> None:
    reader = EventStreamReader()
    lines = [b"data: plain\r\n", b"\r\n"]
    assert [reader.feed(line) for line in lines] == [None, EvaluationEvent(id=None, type="message", data="plain")]

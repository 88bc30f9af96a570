"""Connections of a real server: how many one address gets, what is reserved, and which requests are refused."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from gradeline.errors import ConfigError
from gradeline.service.server import is_proxy, read_proxies

from .live import Server, new_key, with_keys

FEW_DESCRIPTORS = 256
"""A quarter of them are connections: 64, of which one address gets 16, and 32 more are reserved."""


class Answer(NamedTuple):
    status: int
    error: Any
    retry_after: str | None


def ask(server: Server, path: str, source: str = "127.0.0.1", method: str = "GET", **sent: Any) -> Answer:
    """A response over a separate connection from this address."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=30, source_address=(source, 0))
    with closing(connection):
        connection.request(method, path, sent.get("body"), sent.get("headers", {}))
        response = connection.getresponse()
        body = json.loads(response.read())
        return Answer(response.status, body["error"], response.getheader("Retry-After"))


def idle(server: Server, stack: ExitStack, number: int, source: str) -> None:
    """Connections that send nothing; those that the server closes stay in this list."""
    host = urlsplit(server.url)
    for _ in range(number):
        opened = socket.create_connection((host.hostname or "", host.port or 0), 30, source_address=(source, 0))
        stack.enter_context(opened)


def raw(server: Server, sent: bytes) -> bytes:
    """The response until the server closes the connection."""
    host = urlsplit(server.url)
    with socket.create_connection((host.hostname or "", host.port or 0), timeout=30) as connection:
        connection.sendall(sent)
        received = b""
        with suppress(ConnectionResetError):
            while more := connection.recv(65536):
                received += more
        return received


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "store.db") as opened:
        yield opened


def test_500_idle_connections_of_one_client_do_not_block_others(tmp_path: Path) -> None:
    with Server(tmp_path / "store.db", descriptors=FEW_DESCRIPTORS) as server, ExitStack() as stack:
        idle(server, stack, 500, "127.0.0.2")
        assert [ask(server, "/api/test-cases").status for _ in range(20)] == [200] * 20
        assert ask(server, "/api/ready").status == 200


def test_beyond_its_share_an_address_gets_health_readiness_and_sign_in_only(tmp_path: Path) -> None:
    with Server(tmp_path / "store.db", descriptors=FEW_DESCRIPTORS) as server, ExitStack() as stack:
        idle(server, stack, 16, "127.0.0.2")
        refused = ask(server, "/api/test-cases", "127.0.0.2")
        assert refused.status == 429
        assert refused.error["code"] == "RATE_LIMITED"
        assert "from your address" in refused.error["message"]
        assert refused.retry_after == "5"
        assert [ask(server, path, "127.0.0.2").status for path in ("/api/health", "/api/ready", "/api/session")] == [
            200,
            200,
            200,
        ]


def test_when_all_room_is_used_up_health_readiness_and_sign_in_are_still_answered(tmp_path: Path) -> None:
    _, headers = new_key(tmp_path / "store.db", "run")
    key = headers["Authorization"].removeprefix("Bearer ")
    options = with_keys(tmp_path)
    with Server(tmp_path / "store.db", *options, descriptors=FEW_DESCRIPTORS) as server, ExitStack() as stack:
        for number in range(2, 6):
            idle(server, stack, 16, f"127.0.0.{number}")
        refused = ask(server, "/api/test-cases", headers=headers)
        assert (refused.status, refused.error["code"], refused.retry_after) == (503, "RATE_LIMITED", "5")
        assert (ask(server, "/api/health").status, ask(server, "/api/ready").status) == (200, 200)
        body = json.dumps({"key": key})
        signed_in = ask(server, "/api/session", method="POST", body=body, headers={"Content-Type": "application/json"})
        assert signed_in.status == 200


@pytest.mark.parametrize(
    "lengths",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 7\r\n",
        b"Content-Length: 2\r\nContent-Length: 2\r\nTransfer-Encoding: Chunked\r\n",
    ],
)
def test_a_request_with_two_lengths_is_refused_and_its_connection_closed(server: Server, lengths: bytes) -> None:
    host = urlsplit(server.url).netloc.encode()
    head = b"POST /api/test-cases HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s\r\n" % (host, lengths)
    # what one party takes for the rest of the body, and another for a second request
    smuggled = b"0\r\n\r\nGET /api/health HTTP/1.1\r\nHost: %s\r\n\r\n" % host
    answer = raw(server, head + smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1
    assert b"both Content-Length and Transfer-Encoding" in answer
    assert b"Connection: close" in answer


def test_two_lengths_behind_a_good_request_are_refused_too(server: Server) -> None:
    host = urlsplit(server.url).netloc.encode()
    good = b"GET /api/health HTTP/1.1\r\nHost: %s\r\n\r\n" % host
    lengths = b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"
    bad = b"POST /api/session HTTP/1.1\r\nHost: %s\r\n%s\r\n0\r\n\r\n" % (host, lengths)
    answer = raw(server, good + bad + good)
    assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"400"]


def wrong_keys(server: Server, number: int) -> list[int]:
    """The responses to wrong keys, each from another forwarded address."""
    headers = {"Content-Type": "application/json"}
    return [
        ask(
            server,
            "/api/session",
            method="POST",
            body=json.dumps({"key": "wrong"}),
            headers={**headers, "X-Forwarded-For": f"198.51.100.{n}"},
        ).status
        for n in range(number)
    ]


def test_an_address_that_a_client_claims_is_not_believed(tmp_path: Path) -> None:
    new_key(tmp_path / "store.db", "run")
    with Server(tmp_path / "store.db", *with_keys(tmp_path)) as server:
        assert wrong_keys(server, 25) == [401] * 20 + [429] * 5


def test_an_address_that_a_trusted_proxy_reports_is(tmp_path: Path) -> None:
    _, headers = new_key(tmp_path / "store.db", "admin")
    options = ("--trusted-proxy", "127.0.0.1", "--trusted-proxy", "10.0.0.0/24")
    with Server(tmp_path / "store.db", *with_keys(tmp_path), *options) as server:
        assert wrong_keys(server, 25) == [401] * 25
        # a chain of proxies: the last address that no trusted one wrote
        forwarded = {"X-Forwarded-For": "1.1.1.1, 203.0.113.9, 10.0.0.7", "Content-Type": "application/json", **headers}
        body = json.dumps({"value": "some-secret-value", "host": "agent.test"})
        assert ask(server, "/api/secrets/A", method="PUT", body=body, headers=forwarded).status == 200
        (entry, *_) = server.data("GET", "/api/audit", **headers)["entries"]
        assert (entry["action"], entry["address"]) == ("secret.put", "203.0.113.9")
        assert ask(server, "/api/secrets/A", "127.0.0.3", "PUT", body=body, headers=forwarded).status == 200
        (entry, *_) = server.data("GET", "/api/audit", **headers)["entries"]
        assert entry["address"] == "127.0.0.3"


def test_connections_of_a_proxy_are_not_counted_together(tmp_path: Path) -> None:
    with (
        Server(tmp_path / "store.db", "--trusted-proxy", "127.0.0.2", descriptors=FEW_DESCRIPTORS) as server,
        ExitStack() as stack,
    ):
        idle(server, stack, 20, "127.0.0.2")
        assert ask(server, "/api/test-cases", "127.0.0.2").status == 200


def test_an_invalid_proxy_address_is_refused() -> None:
    for wrong in ("proxy.example", "10.0.0.1/8", "", "*"):
        with pytest.raises(ConfigError, match="is not an address or a network"):
            read_proxies((wrong,))
    assert read_proxies(("10.0.0.7", "2001:db8::/32")) == ["10.0.0.7", "2001:db8::/32"]
    assert is_proxy("2001:db8::1", ("10.0.0.7", "2001:db8::/32"))
    assert not is_proxy("10.0.0.8", ("10.0.0.7", "2001:db8::/32"))
    assert not is_proxy("", ("10.0.0.7",))

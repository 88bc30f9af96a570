"""Event streams of a real server: how many a caller may open, and their end with the key."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gradeline.service.limits import RequestLimits

from .live import PATIENCE_S, EchoAgent, Server, new_key, revoke_key, suite_of, with_keys

LIMITS = RequestLimits()


@pytest.fixture
def agent() -> Iterator[EchoAgent]:
    with EchoAgent() as opened:
        opened.may_answer.clear()
        yield opened


def opened_stream(
    server: Server, stack: ExitStack, run: str, source: str = "127.0.0.1", **headers: str
) -> HTTPResponse:
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=30, source_address=(source, 0))
    stack.callback(connection.close)
    connection.request("GET", f"/api/evaluations/{run}/events", headers=headers)
    return connection.getresponse()


def streams_until_refused(
    server: Server, stack: ExitStack, run: str, most: int, source: str, headers: dict[str, str]
) -> tuple[int, Any]:
    """The number of streams that could be opened, and the error of the next one."""
    for number in range(most + 1):
        response = opened_stream(server, stack, run, source, **headers)
        if response.status != 200:
            error = json.loads(response.read())["error"]
            return number, (response.status, error["code"], error["message"], response.getheader("Retry-After"))
        assert response.readline() == b"retry: 2000\n"
    return most + 1, None


def test_streams_of_one_key_and_of_one_address_are_capped_and_others_have_room(
    tmp_path: Path, agent: EchoAgent
) -> None:
    store = tmp_path / "store.db"
    keys = [new_key(store, "run")[1] for _ in range(3)]
    options = (*with_keys(tmp_path), "--allow-agent-net", "127.0.0.1")
    with Server(store, *options) as server, ExitStack() as stack:
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 1)}, **keys[0])["id"]
        first = streams_until_refused(server, stack, run, LIMITS.streams_per_key, "127.0.0.2", keys[0])
        assert first == (
            100,
            (
                429,
                "RATE_LIMITED",
                "100 event streams of this key are open, which is the maximum; retry in 5 s",
                "5",
            ),
        )
        second = streams_until_refused(server, stack, run, LIMITS.streams_per_key, "127.0.0.2", keys[1])
        assert (second[0], second[1][0]) == (100, 429)
        third = streams_until_refused(server, stack, run, 1, "127.0.0.2", keys[2])
        assert third[0] == 0
        assert "200 event streams from your address" in third[1][2]
        # the same key from elsewhere, and everything else, goes on
        assert opened_stream(server, stack, run, "127.0.0.3", **keys[2]).status == 200
        assert server.call("GET", "/api/test-cases", **keys[0])[0] == 200
        agent.may_answer.set()


def test_a_stream_that_ends_makes_room_for_another(tmp_path: Path, agent: EchoAgent) -> None:
    with Server(tmp_path / "store.db") as server, ExitStack() as stack:
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 1)})["id"]
        with ExitStack() as first:
            streams_until_refused(server, first, run, LIMITS.streams_per_address, "127.0.0.1", {})
        deadline = time.monotonic() + PATIENCE_S
        while opened_stream(server, stack, run).status != 200:  # the server hears of the closed ones in its own time
            assert time.monotonic() < deadline
            time.sleep(0.05)
        agent.may_answer.set()
        assert server.until_ended(run)["status"] == "completed"


def test_signing_out_ends_the_streams_of_that_session_and_no_others(
    tmp_path: Path, store: str, agent: EchoAgent
) -> None:
    _, headers = new_key(store, "run")
    options = (*with_keys(tmp_path), "--allow-agent-net", "127.0.0.1")
    with Server(store, *options) as server, ExitStack() as stack:
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 1)}, **headers)["id"]
        mine, theirs = (signed_in(server, headers) for _ in range(2))
        streams = [opened_stream(server, stack, run, **one) for one in (mine, theirs, headers)]
        for stream in streams:
            assert stream.readline() == b"retry: 2000\n"
        assert server.call("DELETE", "/api/session", **mine)[0] == 204
        seen = streams[0].read()  # until the server ends it; the run goes on
        assert b"event: done" not in seen
        assert agent.total == 1
        agent.may_answer.set()
        assert b"event: done" in streams[1].read()
        assert b"event: done" in streams[2].read()


def signed_in(server: Server, headers: dict[str, str]) -> dict[str, str]:
    """The headers of a browser that signed in with a key."""
    connection = HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    body = json.dumps({"key": headers["Authorization"].removeprefix("Bearer ")})
    connection.request("POST", "/api/session", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
    token = json.loads(answer.read())["data"]["csrf_token"]
    connection.close()
    return {"Cookie": cookie, "X-CSRF-Token": token}


def test_a_revoked_key_ends_its_open_streams_and_no_others(tmp_path: Path, store: str, agent: EchoAgent) -> None:
    id_, headers = new_key(store, "run")
    _, others = new_key(store, "read")
    options = (*with_keys(tmp_path), "--allow-agent-net", "127.0.0.1")
    with Server(store, *options) as server, ExitStack() as stack:
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 1)}, **headers)["id"]
        mine, theirs = (opened_stream(server, stack, run, **one) for one in (headers, others))
        for stream in (mine, theirs):
            assert stream.readline() == b"retry: 2000\n"
        revoke_key(store, id_)
        seen = mine.read()  # until the server ends it; the run goes on
        assert b"event: done" not in seen
        assert agent.total == 1
        agent.may_answer.set()
        assert b"event: done" in theirs.read()

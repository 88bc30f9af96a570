"""The proxy routes, streams, falls back to the baseline, logs every call, and keeps secrets to itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from upstream import Upstream, serving

from gradeline.errors import ConfigError, StoreError
from gradeline.model.route import LoggedRequest, RouteCall, RouteCell, RouteTable
from gradeline.store import SqliteStorage
from gradeline.store.route_log import requests_of
from gradeline.store.trust_records import TrustRecord, put_record
from gradeline.suite.declaration import PriceSpec
from gradeline.trust.proxy import HEADER, ProxySettings, RouteProxy, client_token
from gradeline.trust.request_log import usage_of, usage_part
from gradeline.trust.route_file import ArmEntry, FamilyRule, RouteFile

KEYS = {"STRONG_KEY": "sk-strong-0123456789", "CHEAP_KEY": "sk-cheap-0123456789"}
ASK = {"model": "anything", "messages": [{"role": "user", "content": "hello"}]}
PRICE = PriceSpec(input=1.0, output=2.0)
Act = Callable[[aiohttp.ClientSession, Upstream, Upstream], Any]


class Played(msgspec.Struct):
    """What a test saw."""

    result: Any
    strong: Upstream
    cheap: Upstream
    logged: list[LoggedRequest]
    reports: list[str]

    def calls(self, row: int = 0) -> list[RouteCall]:
        return msgspec.json.decode(self.logged[row].calls, type=list[RouteCall])


def route_of(strong: Upstream, cheap: Upstream, **changes: Any) -> RouteFile:
    options: dict[str, Any] = {
        "route": "support",
        "suite": "s",
        "grader": "quality",
        "baseline": ArmEntry(name="strong", model="big", base_url=strong.url, api_key_env="STRONG_KEY", price=PRICE),
        "candidates": (
            ArmEntry(name="cheap", model="small", base_url=cheap.url, api_key_env="CHEAP_KEY", price=PRICE),
        ),
        "family": FamilyRule(header="x-family"),
        "first_byte_timeout": 0.5,
        "answer_timeout": 0.5,
    }
    return RouteFile(**{**options, **changes})


def store_table(storage: SqliteStorage, route: RouteFile, share: float = 1.0) -> None:
    cells = {
        "strong": RouteCell(share=1.0 - share, state="baseline"),
        "cheap": RouteCell(share=share, state="proven"),
    }
    table = RouteTable(
        route=route.route,
        at="2999-01-01T00:00:00.000000Z",
        baseline="strong",
        families={"easy": cells},
        rules=route.digest,
    )
    put_record(
        storage,
        TrustRecord("route_table", route.route, route.grader, "", table.at, msgspec.json.encode(table).decode()),
    )


@asynccontextmanager
async def running(proxy: RouteProxy) -> AsyncIterator[str]:
    runner = web.AppRunner(proxy.application(), handler_cancellation=True, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def play(
    tmp_path: Path,
    act: Act,
    *,
    cheap: str = "ok",
    strong: str = "ok",
    share: float | None = 1.0,
    settings: ProxySettings | None = None,
    **changes: Any,
) -> Played:
    """Do something with a proxy in front of two models; returns the log too."""

    async def played() -> Played:
        one, two = Upstream("strong", strong), Upstream("cheap", cheap)
        reports: list[str] = []
        async with serving(one, two):
            route = route_of(one, two, **changes)
            with SqliteStorage(tmp_path / "store.db") as storage:
                if share is not None:
                    store_table(storage, route, share)
                proxy = RouteProxy(storage, route, settings or ProxySettings(), KEYS, reports.append)
                async with running(proxy) as url, aiohttp.ClientSession(url) as session:
                    result = await act(session, one, two)
                return Played(result, one, two, requests_of(storage, "support"), reports)

    return asyncio.run(played())


async def ask(session: aiohttp.ClientSession, family: str = "easy", **body: Any) -> tuple[int, str, str]:
    async with session.post("/v1/chat/completions", json=ASK | body, headers={"x-family": family}) as response:
        return response.status, await response.text(), response.headers.get(HEADER, "")


async def ask_once(session: aiohttp.ClientSession, *_: Upstream) -> tuple[int, str, str]:
    return await ask(session)


async def stream_once(session: aiohttp.ClientSession, *_: Upstream) -> tuple[int, str, str]:
    return await ask(session, stream=True)


def test_a_routed_request_is_answered_by_the_arm_and_logged(tmp_path: Path) -> None:
    played = play(tmp_path, ask_once)
    status, text, header = played.result
    assert (status, json.loads(text)["choices"][0]["message"]["content"]) == (200, "from cheap")
    assert played.cheap.requests == [ASK | {"model": "small"}]
    assert played.cheap.headers[0]["Authorization"] == "Bearer sk-cheap-0123456789"
    (row,) = played.logged
    assert header == f"arm=cheap; propensity=1; id={row.id}"
    assert (row.family, row.arm, row.served_by, row.reason) == ("easy", "cheap", "cheap", "")
    assert json.loads(row.propensities) == {"strong": 0.0, "cheap": 1.0}
    assert played.calls() == [
        RouteCall(arm="cheap", status=200, input_tokens=100, output_tokens=10, cost=pytest.approx(120e-6))
    ]
    assert row.cost == pytest.approx(120e-6)
    assert played.strong.requests == []


def test_streams_are_passed_on_with_their_usage(tmp_path: Path) -> None:
    played = play(tmp_path, stream_once)
    status, text, header = played.result
    assert status == 200
    assert [line for line in text.splitlines() if line][-1] == "data: [DONE]"
    assert '"content": "cheap"' in text
    assert "arm=cheap" in header
    assert played.calls()[0].cost == pytest.approx(120e-6)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("behaviour", "call"),
    [
        ("500", RouteCall(arm="cheap", status=500, error="status")),
        ("429", RouteCall(arm="cheap", status=429, error="status")),
        ("redirect", RouteCall(arm="cheap", status=302, error="status")),
        ("hang-up", RouteCall(arm="cheap", error="reset")),
        ("silent", RouteCall(arm="cheap", error="timeout")),
    ],
)
def test_a_candidate_that_fails_falls_back_and_both_calls_are_logged(
    tmp_path: Path, behaviour: str, call: RouteCall, stream: bool
) -> None:
    played = play(tmp_path, stream_once if stream else ask_once, cheap=behaviour)
    status, text, header = played.result
    assert status == 200
    assert "strong" in text
    assert "served-by=strong" in header
    (row,) = played.logged
    assert (row.arm, row.served_by) == ("cheap", "strong")
    assert played.calls() == [
        call,
        RouteCall(arm="strong", status=200, input_tokens=100, output_tokens=10, cost=pytest.approx(120e-6)),
    ]
    assert row.cost is None  # what the failed call cost is unknown


async def read_stream(session: aiohttp.ClientSession, *_: Upstream) -> tuple[str, str]:
    text = ""
    async with session.post("/v1/chat/completions", json=ASK | {"stream": True}, headers={"x-family": "easy"}) as got:
        try:
            async for piece in got.content.iter_any():
                text += piece.decode()
        except aiohttp.ClientError as error:
            return text, type(error).__name__
    return text, ""


def test_a_stream_that_stalls_is_ended_as_incomplete(tmp_path: Path) -> None:
    played = play(tmp_path, read_stream, cheap="stall", timeout=0.6)
    text, error = played.result
    assert "from" in text
    assert error
    assert played.strong.requests == []  # the answer had begun
    assert [call.error for call in played.calls()] == ["timeout"]


def test_a_client_that_leaves_ends_the_call(tmp_path: Path) -> None:
    async def leave(session: aiohttp.ClientSession, *_: Upstream) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await ask(session)
        await asyncio.sleep(0.1)

    played = play(tmp_path, leave, cheap="silent")
    assert [(row.arm, row.served_by) for row in played.logged] == [("cheap", None)]
    assert [call.error for call in played.calls()] == ["client_gone"]
    assert played.strong.requests == []


def test_an_answer_that_breaks_off_falls_back_unless_it_is_a_stream(tmp_path: Path) -> None:
    whole = play(tmp_path, ask_once, cheap="cut")
    assert "from strong" in whole.result[1]
    assert [call.error for call in whole.calls()] == ["truncated", None]

    (tmp_path / "other").mkdir()
    streamed = play(tmp_path / "other", read_stream, cheap="cut")
    text, error = streamed.result
    assert "from" in text
    assert error  # the client sees that the stream is not complete
    assert streamed.strong.requests == []
    assert [call.error for call in streamed.calls()] == ["truncated"]


def test_an_empty_stream_falls_back(tmp_path: Path) -> None:
    played = play(tmp_path, stream_once, cheap="empty")
    assert '"content": "strong"' in played.result[1]


def test_a_failing_baseline_is_passed_on_without_its_key(tmp_path: Path) -> None:
    played = play(tmp_path, ask_once, strong="echo-key", share=0.0)
    status, text, _ = played.result
    assert status == 401
    assert "sk-strong" not in text
    assert "Bearer ***" in text
    assert played.logged[0].served_by is None
    assert "sk-" not in played.logged[0].calls


@pytest.mark.parametrize("share", [None, 1.0])
def test_without_a_table_or_a_known_family_the_baseline_answers(tmp_path: Path, share: float | None) -> None:
    async def unknown_family(session: aiohttp.ClientSession, *_: Upstream) -> tuple[int, str, str]:
        return await ask(session, family="unheard of")

    played = play(tmp_path, unknown_family, share=share)
    assert "from strong" in played.result[1]
    assert ("no table" in played.logged[0].reason) is (share is None)


def test_shares_are_kept_and_propensities_add_up(tmp_path: Path) -> None:
    async def many(session: aiohttp.ClientSession, *_: Upstream) -> list[tuple[int, str, str]]:
        return [await ask(session) for _ in range(60)]

    played = play(tmp_path, many, share=0.5)
    arms = [row.arm for row in played.logged]
    assert len(arms) == 60
    assert 10 < arms.count("cheap") < 50  # p < 1e-6 by chance
    assert {row.propensities for row in played.logged} == {'{"strong":0.5,"cheap":0.5}'}


def test_a_candidate_that_fails_again_and_again_is_left_out_for_a_while(tmp_path: Path) -> None:
    async def many(session: aiohttp.ClientSession, *_: Upstream) -> list[tuple[int, str, str]]:
        return [await ask(session) for _ in range(8)]

    played = play(tmp_path, many, cheap="500")
    assert {status for status, _, _ in played.result} == {200}
    assert len(played.cheap.requests) == 5
    assert [row.arm for row in played.logged] == ["cheap"] * 5 + ["strong"] * 3
    assert played.logged[-1].reason == "left out after failures: cheap"
    assert json.loads(played.logged[-1].propensities) == {"strong": 1.0, "cheap": 0.0}


def test_a_store_that_fails_delays_the_log_and_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradeline.trust import request_log

    put = request_log.put_requests
    failures = iter([True, True])

    def sometimes(database: Any, rows: Any) -> None:
        if next(failures, False):
            raise StoreError("the store is locked")
        put(database, rows)

    monkeypatch.setattr(request_log, "put_requests", sometimes)
    monkeypatch.setattr(request_log, "_RETRY_S", 0.01)
    played = play(tmp_path, ask_once)
    assert played.result[0] == 200
    assert len(played.logged) == 1
    assert played.reports == [
        "routed requests cannot be logged, trying again: the store is locked",
        "routed requests are logged again",
    ]


def test_a_routing_error_is_answered_by_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradeline.trust import proxy

    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr(proxy, "shares_of", broken)
    played = play(tmp_path, ask_once)
    assert "from strong" in played.result[1]
    assert played.logged[0].reason == "routing failed: RuntimeError"


@pytest.mark.parametrize("readable", [0, 1])
def test_a_store_that_cannot_be_read_keeps_the_table_or_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, readable: int
) -> None:
    from gradeline.trust import proxy

    read = proxy.current_table
    reads: list[int] = []

    def sometimes(*arguments: Any) -> Any:
        reads.append(1)
        if len(reads) > readable:
            raise StoreError("the store is locked")
        return read(*arguments)

    async def after_some_reads(session: aiohttp.ClientSession, *_: Upstream) -> tuple[int, str, str]:
        while len(reads) < 4:
            await asyncio.sleep(0.01)
        return await ask(session)

    monkeypatch.setattr(proxy, "current_table", sometimes)
    played = play(tmp_path, after_some_reads, settings=ProxySettings(refresh_s=0.01))
    assert ("from cheap" if readable else "from strong") in played.result[1]
    assert played.logged[0].reason == ("" if readable else "the store cannot be read")


@pytest.mark.parametrize(
    ("headers", "body", "status", "message"),
    [
        ({"Content-Type": "text/plain"}, b"{}", 415, "application/json"),
        ({"Content-Type": "application/json"}, b"{", 400, "not JSON"),
        ({"Content-Type": "application/json"}, b"[]", 400, "JSON object"),
        ({"Content-Type": "application/json"}, b" " * 2_000, 413, "larger than"),
        ({"Content-Type": "application/json", "Host": "evil.example"}, b"{}", 403, "not this machine"),
    ],
)
def test_invalid_requests_are_refused_before_any_call(
    tmp_path: Path, headers: dict[str, str], body: bytes, status: int, message: str
) -> None:
    async def send(session: aiohttp.ClientSession, *_: Upstream) -> tuple[int, str]:
        async with session.post("/v1/chat/completions", data=body, headers=headers) as response:
            return response.status, (await response.json())["error"]["message"]

    played = play(tmp_path, send, settings=ProxySettings(max_body=1_000))
    assert played.result[0] == status
    assert message in played.result[1]
    assert played.strong.requests == played.cheap.requests == played.logged == []


def test_a_token_is_required_where_one_is_set(tmp_path: Path) -> None:
    async def both(session: aiohttp.ClientSession, *_: Upstream) -> list[int]:
        found = []
        for token in ("wrong", "0123456789abcdef"):
            headers = {"Authorization": f"Bearer {token}", "x-family": "easy"}
            async with session.post("/v1/chat/completions", json=ASK, headers=headers) as response:
                found.append(response.status)
        return found

    played = play(tmp_path, both, settings=ProxySettings(token="0123456789abcdef"))
    assert played.result == [401, 200]
    assert "0123456789abcdef" not in str(played.cheap.headers)  # the client's token is not passed on
    with pytest.raises(ConfigError, match="--token-env"):
        client_token("0.0.0.0", None)
    with pytest.raises(ConfigError, match="is not set"):
        client_token("0.0.0.0", "TOKEN", {})
    assert client_token("127.0.0.1", None) is None


def test_egress_beyond_public_addresses_is_refused(tmp_path: Path) -> None:
    played = play(tmp_path, ask_once, settings=ProxySettings(public_only=True))
    assert played.result[0] == 502
    assert [call.error for call in played.calls()] == ["connect", "connect"]
    assert played.logged[0].cost == 0.0  # nothing was sent
    assert played.strong.requests == []


def test_models_health_and_the_responses_api(tmp_path: Path) -> None:
    async def look(session: aiohttp.ClientSession, *_: Upstream) -> tuple[Any, Any, int]:
        async with session.get("/v1/models") as models, session.get("/health") as health:
            found = (await models.json(), await health.json())
        async with session.post("/v1/responses", json={"model": "x", "input": "hi"}) as response:
            return *found, response.status

    models, health, status = play(tmp_path, look).result
    assert [one["id"] for one in models["data"]] == ["support"]
    assert (health["route"], health["reason"]) == ("support", "")
    assert status == 200


def test_all_missing_keys_are_named(tmp_path: Path) -> None:
    route = route_of(Upstream("a", url="http://a"), Upstream("b", url="http://b"))
    with SqliteStorage(tmp_path / "s.db") as storage, pytest.raises(ConfigError) as caught:
        RouteProxy(storage, route, ProxySettings(), {})
    assert [problem.path for problem in caught.value.problems] == ["strong.api_key_env", "cheap.api_key_env"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"[]",
        b'{"usage": 3}',
        b'{"usage": null}',
        b'{"usage": {"prompt_tokens": true, "completion_tokens": -1}}',
        b'{"usage": ' + b"[" * 99_999,
        b'{"usage": {"prompt_tokens": 1',
    ],
)
def test_strange_usage_is_unknown(body: bytes) -> None:
    assert usage_of(usage_part(body))[:2] == (None, None)


def test_usage_is_found_in_every_format_and_not_in_the_text_of_an_answer() -> None:
    text = json.dumps('"usage": {"prompt_tokens": 9, "completion_tokens": 9}')
    chat = f'{{"usage": {{"prompt_tokens": 5, "completion_tokens": 6}}, "choices": [{{"content": {text}}}]}}'
    assert usage_of(usage_part(chat.encode()))[:2] == (5, 6)
    usage = '{"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": 8}'
    events = f'data: {{"usage": null}}\n\ndata: {{"response": {{"usage": {usage}}}}}\n\ndata: [DONE]\n\n'
    assert usage_of(usage_part(events.encode()))[:3] == (7, 8, 3)
    assert len(usage_part(b'{"usage":' + b" " * 1_000_000)) <= 4096

"""Writes routed requests to the store in the background, so that no request waits for it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from yarl import URL

from gradeline.adapters.costs import Price, Prices, Tokens, flat_price
from gradeline.errors import StoreError
from gradeline.model import Storage
from gradeline.model.route import LoggedRequest, RouteCall, RouteChoice
from gradeline.store.database import Database
from gradeline.store.route_log import create_route_tables, put_requests
from gradeline.trust.route_file import ArmEntry, RouteFile
from gradeline.trust.route_log_rows import logged_request

_BATCH = 200
_USAGE = b'"usage"'
_MAX_USAGE = 4096
_DECODER = json.JSONDecoder()
_MAX_WAITING = 20_000
"""Requests that wait to be written; beyond that the oldest are dropped, and counted."""
_PAUSE_S = 0.2
_RETRY_S = 1.0
_CLOSE_S = 10.0


class AnsweredCall(NamedTuple):
    """One call to an arm, with what is needed to find its usage."""

    arm: str
    status: int | None = None
    error: str | None = None
    usage: bytes = b""
    """The part of the answer with its usage (`usage_part`)."""


class AnsweredRequest(NamedTuple):
    """A request as it leaves the proxy."""

    choice: RouteChoice
    served_by: str | None
    calls: tuple[AnsweredCall, ...]
    latency_ms: float


class RequestLog:
    """A bounded queue of requests and the task that writes them. A store that fails is tried again."""

    def __init__(self, storage: Storage, route: RouteFile, report: Callable[[str], None] | None = None) -> None:
        self._storage = storage
        self._route = route
        self._report = report or (lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201 - a server's log
        self._prices = _prices(route)
        self._waiting: deque[AnsweredRequest] = deque()
        self._database: Database | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._closing = asyncio.Event()
        self.dropped = 0
        self.written = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gradeline-request-log")

    def add(self, request: AnsweredRequest) -> None:
        """Queue a request; returns at once."""
        if len(self._waiting) >= _MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(request)

    async def close(self) -> None:
        """Write what is waiting, within some seconds."""
        self._closing.set()
        if self._task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._task, _CLOSE_S)
        lost = self.dropped + len(self._waiting)
        if lost:
            self._report(f"{lost:,} routed requests are not in the log: the store could not be written")

    async def _run(self) -> None:
        while True:
            pause = _RETRY_S if self._failing else _PAUSE_S
            if not self._waiting or self._failing:
                if self._closing.is_set() and not self._waiting:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), pause)
                if self._closing.is_set() and self._failing:
                    await asyncio.sleep(_PAUSE_S)
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            if batch:
                await self._write(batch)

    async def _write(self, batch: list[AnsweredRequest]) -> None:
        try:
            await asyncio.to_thread(self._put, batch)
        except StoreError as error:
            self._waiting.extendleft(reversed(batch))
            if not self._failing:
                self._report(f"routed requests cannot be logged, trying again: {error}")
            self._failing = True
        else:
            self.written += len(batch)
            if self._failing:
                self._report("routed requests are logged again")
            self._failing = False

    def _put(self, batch: list[AnsweredRequest]) -> None:
        if self._database is None:
            self._database = create_route_tables(self._storage)
        put_requests(self._database, [self._row(request) for request in batch])

    def _row(self, request: AnsweredRequest) -> LoggedRequest:
        calls = [self._call(call) for call in request.calls]
        return logged_request(
            self._route, request.choice, served_by=request.served_by, calls=calls, latency_ms=request.latency_ms
        )

    def _call(self, call: AnsweredCall) -> RouteCall:
        tokens = usage_of(call.usage)
        price = self._prices.get(call.arm)
        # a call that no server answered cost nothing that is known; it is not 0 either, unless it was never sent
        cost = 0.0 if call.error in ("connect", "dns", "tls") else None
        if price is not None and call.status == 200:
            cost = price.cost(tokens)
        return RouteCall(
            arm=call.arm,
            status=call.status,
            error=call.error,
            input_tokens=tokens.input,
            output_tokens=tokens.output,
            cost=cost,
        )


def usage_part(body: bytes | bytearray) -> bytes:
    """The part of an answer with its usage: a request that waits to be logged must not hold its whole answer.

    Inside a string of JSON the quotes would be escaped, so the last one that is not is a key.
    """
    start = body.rfind(_USAGE)
    return b"" if start < 0 else bytes(body[start + len(_USAGE) : start + len(_USAGE) + _MAX_USAGE])


def usage_of(part: bytes) -> Tokens:
    """The tokens in a usage of chat completions or of the Responses API; None where it has none."""
    text = part.decode(errors="replace").lstrip(" \t\r\n:")
    try:
        usage, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return Tokens()
    if not isinstance(usage, Mapping):
        return Tokens()
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return Tokens(
        _count(usage.get("prompt_tokens", usage.get("input_tokens"))),
        _count(usage.get("completion_tokens", usage.get("output_tokens"))),
        _count(cached),
    )


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _prices(route: RouteFile) -> dict[str, Price | None]:
    known = Prices.load()
    return {arm.name: _price(arm, known) for arm in route.arms}


def _price(arm: ArmEntry, known: Prices) -> Price | None:
    if arm.price is not None:
        return flat_price(arm.price.input, arm.price.output, arm.price.cached_input, arm.price.cache_write)
    return known.price("openai", arm.model, URL(arm.base_url).host)

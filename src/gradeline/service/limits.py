"""Limits on what one caller may use: requests, bytes, time, and open event streams."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradeline.errors import StoreError
from gradeline.service.auth import ApiKeys, Caller, Sessions
from gradeline.service.errors import Code, ServiceError
from gradeline.service.responses import BodyError, failure

RESERVED_PATHS = frozenset({"/api/health", "/api/ready", "/api/session"})
"""Paths with reserved connections, requests and threads, so that no caller can use up all of them."""
_MAX_BUCKETS = 10_000
_RETRY_S = 5

T = TypeVar("T")


class RequestLimits(Struct, frozen=True, kw_only=True):
    """The limits; the defaults are far above the usage of a person or of `gradeline.client`."""

    rate: float = 1000.0
    """Requests per second of one key, or of one address without a key."""
    burst: int = 5000
    wrong_rate: float = 0.2
    """Invalid keys per second from one address."""
    wrong_burst: int = 20
    at_once: int = 256
    """Concurrent requests; one address has at most half of them."""
    reserved: int = 32
    """Additional concurrent requests for `RESERVED_PATHS`."""
    reserved_threads: int = 8
    """Threads for keys, sessions and readiness only."""
    streams: int = 1000
    """Open event streams."""
    streams_per_key: int = 100
    streams_per_address: int = 200
    trials: int = 16
    """Concurrent previews and trials; each occupies a thread for as long as an agent or a judge takes."""
    trials_per_caller: int = 4
    imports: int = 4
    """Concurrent imports of test cases; others wait."""
    body_s: float = 30.0
    """Seconds for a body to arrive; a larger one must arrive at ``body_rate``."""
    body_rate: float = 50_000.0
    """Bytes per second."""


class TokenBuckets:
    """A token bucket for each caller; the least recent callers are dropped. For one event loop."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> int | None:
        """Take a token; returns None, or the seconds to wait if there is none."""
        now = self._clock()
        tokens, filled = self._buckets.pop(caller, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - filled) * self._rate)
        wait = None if tokens >= 1 else max(1, math.ceil((1 - tokens) / self._rate))
        self._buckets[caller] = (tokens if wait else tokens - 1, now)
        while len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return wait


def too_many(message: str, wait: int) -> ServiceError:
    """The error 429 with the time to wait."""
    return ServiceError(Code.RATE_LIMITED, f"{message}; retry in {wait} s", headers={"Retry-After": str(wait)})


def address_group(address: str) -> str:
    """The address; for IPv6 its /64 network, whose addresses usually belong to one customer."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.packed[:8].hex()) if isinstance(parsed, IPv6Address) else str(parsed)


def address_of(scope: Scope) -> str:
    """The address by which requests without a key are counted: that of the client, also behind a trusted proxy."""
    client = scope.get("client")
    return address_group(client[0]) if client else ""


class ConcurrencyLimitMiddleware:
    """Refuses requests while there are too many concurrent ones, of all callers or of one address.

    A request counts until its response starts.
    """

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app = app
        self._limits = limits
        self._active: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = address_of(scope)
        if not self._has_room(address, scope["path"] in RESERVED_PATHS):
            await failure(too_many("The service is overloaded", 1))(scope, receive, send)
            return
        self._active[address] += 1
        counted = True

        def leave() -> None:
            nonlocal counted
            self._active[address] -= counted
            if not self._active[address]:
                del self._active[address]
            counted = False

        async def leave_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                leave()
            await send(message)

        try:
            await self._app(scope, receive, leave_and_send)
        finally:
            leave()

    def _has_room(self, address: str, reserved: bool) -> bool:
        most = self._limits.at_once
        if reserved:
            return self._active.total() < most + self._limits.reserved
        return self._active.total() < most and self._active[address] < max(1, most // 2)


class TrialPool:
    """Threads for previews and trials, separate from those of the API, since they wait for agents and judges.

    For one event loop.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._threads = CapacityLimiter(limits.trials)
        self._busy: Counter[str] = Counter()

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """Run the work in a thread; `ServiceError` 429 if the caller, or all callers, have too many in progress."""
        if self._busy[caller] >= self._limits.trials_per_caller:
            most = self._limits.trials_per_caller
            raise too_many(f"{most} previews and trials of this caller are in progress, which is the maximum", _RETRY_S)
        if self._busy.total() >= self._limits.trials:
            raise too_many(f"{self._limits.trials} previews and trials are in progress, which is the maximum", _RETRY_S)
        self._busy[caller] += 1
        try:
            return await to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._busy[caller] -= 1
            if not self._busy[caller]:
                del self._busy[caller]


class BodyLimitMiddleware:
    """Limits the size of a body while it arrives, and its duration. ``special`` has other sizes by route."""

    def __init__(self, app: ASGIApp, limits: RequestLimits, most: int, special: Mapping[str, int]) -> None:
        self._app = app
        self._limits = limits
        self._most = most
        self._special = special

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._special.get(scope["state"].get("route", ""), self._most)
        if _announced(scope) > most:
            await failure(_too_large(most))(scope, receive, send)
            return
        await self._app(scope, self._bounded(receive, most), send)

    def _bounded(self, receive: Receive, most: int) -> Receive:
        started = asyncio.get_running_loop().time()
        size = 0
        ended = False

        async def receive_within() -> Message:
            nonlocal size, ended
            if ended:
                # this only waits for the caller to disconnect, which may take as long as the response
                return await receive()
            deadline = started + self._limits.body_s + size / self._limits.body_rate
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                text = f"The body did not arrive within {self._limits.body_s:g} s"
                raise BodyError(
                    ServiceError(Code.INVALID_INPUT, text, status=408, headers={"Connection": "close"})
                ) from None
            size += len(message.get("body", b""))
            ended = not message.get("more_body", False)
            if size > most:
                raise BodyError(_too_large(most))
            return message

        return receive_within


def _announced(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


def _too_large(most: int) -> ServiceError:
    return ServiceError(Code.PAYLOAD_TOO_LARGE, f"The body is larger than {most:,} bytes")


CHECK_S = 1.0
"""Interval for checking the keys and sessions of all open streams, with one query each."""
_LAST_CHUNK_S = 1.0
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStreams:
    """The open event streams of one event loop. A stream counts for its key and for its address."""

    def __init__(self, keys: ApiKeys, sessions: Sessions, limits: RequestLimits) -> None:
        self._keys = keys
        self._sessions = sessions
        self._limits = limits
        self._by_key: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._open: set[EventStream] = set()
        self._checking: asyncio.Task[None] | None = None

    def open(self, content: AsyncIterator[bytes], caller: Caller, address: str) -> EventStream:
        """A response that streams the content; `ServiceError` 429 if the caller has too many streams."""
        key_id = caller.key_id
        for count, most, whose in (
            (self._by_key[key_id or ""], self._limits.streams_per_key, "of this key"),
            (self._by_address[address], self._limits.streams_per_address, "from your address"),
            (len(self._open), self._limits.streams, "of all callers"),
        ):
            if count >= most and (key_id is not None or whose != "of this key"):
                raise too_many(f"{most} event streams {whose} are open, which is the maximum", _RETRY_S)
        stream = EventStream(content, key_id, caller.session, address, self)
        self._open.add(stream)
        self._by_key[key_id or ""] += 1
        self._by_address[address] += 1
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._check())
        return stream

    def remove(self, stream: EventStream) -> None:
        """Remove a stream that has ended. May be called twice."""
        if stream not in self._open:
            return
        self._open.discard(stream)
        for counter, name in ((self._by_key, stream.key_id or ""), (self._by_address, stream.address)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]

    async def _check(self) -> None:
        """End the streams of invalid keys and sessions, as long as there are streams."""
        while self._open:
            await asyncio.sleep(CHECK_S)
            with suppress(StoreError):  # a store that cannot be read gives no events either
                keys = await self._ended({stream.key_id for stream in self._open}, self._keys.valid_ids)
                sessions = await self._ended({stream.session for stream in self._open}, self._sessions.valid_ids)
                for stream in list(self._open):
                    if stream.key_id in keys or stream.session in sessions:
                        stream.end()

    async def _ended(
        self, ids: set[str | None], valid_ids: Callable[[Collection[str]], set[str]]
    ) -> Collection[str | None]:
        """Those of the ids that are not valid."""
        known = {id_ for id_ in ids if id_ is not None}
        return known - await run_in_threadpool(valid_ids, known) if known else ()


class EventStream(StreamingResponse):
    """A streaming response that can be ended before its content."""

    def __init__(
        self,
        content: AsyncIterator[bytes],
        key_id: str | None,
        session: str | None,
        address: str,
        streams: EventStreams,
    ) -> None:
        super().__init__(content, headers=_HEADERS, media_type="text/event-stream")
        self.key_id = key_id
        self.session = session
        self.address = address
        self._streams = streams
        self._deadline = asyncio.timeout(None)
        self._ended = False

    def end(self) -> None:
        """Send nothing more, and close the stream."""
        self._ended = True
        with suppress(RuntimeError):  # it has not started, or has ended
            self._deadline.reschedule(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.remove(self)

    async def stream_response(self, send: Send) -> None:
        try:
            async with self._deadline:
                if self._ended:
                    self.end()
                await super().stream_response(send)
        except TimeoutError:
            if not self._deadline.expired():
                raise
            # a reader that reads nothing must not keep the stream open
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CHUNK_S):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

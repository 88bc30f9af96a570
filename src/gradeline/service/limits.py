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
"""Paths that have connections, requests and threads of their own, so that one caller cannot use up all there are."""
_MOST_BUCKETS = 10_000
_RETRY_S = 5

T = TypeVar("T")


class RequestLimits(Struct, frozen=True, kw_only=True):
    """The numbers; the defaults are far above what a person or a client of ours does."""

    rate: float = 1000.0
    """Requests a second of one key, or of one address without a key."""
    burst: int = 5000
    wrong_rate: float = 0.2
    """Wrong keys a second from one address."""
    wrong_burst: int = 20
    at_once: int = 256
    """Requests that are being worked on; one address has at most half of them."""
    reserved: int = 32
    """Requests for `RESERVED_PATHS` paths that are worked on beyond those."""
    reserved_threads: int = 8
    """Threads for keys, sessions and readiness only."""
    streams: int = 1000
    """Event streams that are open."""
    streams_per_key: int = 100
    streams_per_address: int = 200
    trials: int = 16
    """Previews and tries that are under way; each holds a thread for as long as an agent or a judge takes."""
    trials_per_caller: int = 4
    imports: int = 4
    """Files of test cases that are read and stored; others wait."""
    body_s: float = 30.0
    """How long a body may take, and the rate at which a longer one must come."""
    body_rate: float = 50_000.0


class TokenBuckets:
    """A bucket for each caller; those who have not come for long are forgotten. For one event loop."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> int | None:
        """None: go on; else the seconds after which to come again."""
        now = self._clock()
        tokens, filled = self._buckets.pop(caller, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - filled) * self._rate)
        wait = None if tokens >= 1 else max(1, math.ceil((1 - tokens) / self._rate))
        self._buckets[caller] = (tokens if wait else tokens - 1, now)
        while len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return wait


def too_many(message: str, wait: int) -> ServiceError:
    """429, and when to come again."""
    return ServiceError(Code.RATE_LIMITED, f"{message}; come again in {wait} s", headers={"Retry-After": str(wait)})


def address_group(address: str) -> str:
    """An address, or for IPv6 its network, of which one customer has all addresses."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(parsed.packed[:8].hex()) if isinstance(parsed, IPv6Address) else str(parsed)


def address_of(scope: Scope) -> str:
    """Whose requests are counted together where there is no key: the client's address, behind a trusted proxy too."""
    client = scope.get("client")
    return address_group(client[0]) if client else ""


class ConcurrencyLimitMiddleware:
    """Refuses requests while too many are being worked on, of all callers or of one address.

    A request whose answer has begun no longer counts.
    """

    def __init__(self, app: ASGIApp, limits: RequestLimits) -> None:
        self._app = app
        self._limits = limits
        self._here: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = address_of(scope)
        if not self._has_room(address, scope["path"] in RESERVED_PATHS):
            await failure(too_many("The service is overloaded", 1))(scope, receive, send)
            return
        self._here[address] += 1
        counted = True

        def leave() -> None:
            nonlocal counted
            self._here[address] -= counted
            if not self._here[address]:
                del self._here[address]
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
            return self._here.total() < most + self._limits.reserved
        return self._here.total() < most and self._here[address] < max(1, most // 2)


class TrialPool:
    """Threads for previews and tries, apart from those of the API: what waits on others holds up nothing else.

    For one event loop.
    """

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._threads = CapacityLimiter(limits.trials)
        self._busy: Counter[str] = Counter()

    async def run(self, caller: str, work: Callable[[], T]) -> T:
        """What the work returns; `ServiceError` 429 while the caller, or all together, have too much under way."""
        if self._busy[caller] >= self._limits.trials_per_caller:
            most = self._limits.trials_per_caller
            raise too_many(f"{most} previews and tries of this caller are under way, which is the maximum", _RETRY_S)
        if self._busy.total() >= self._limits.trials:
            raise too_many(f"{self._limits.trials} previews and tries are under way, which is the maximum", _RETRY_S)
        self._busy[caller] += 1
        try:
            return await to_thread.run_sync(work, limiter=self._threads)
        finally:
            self._busy[caller] -= 1
            if not self._busy[caller]:
                del self._busy[caller]


class BodyLimitMiddleware:
    """Bounds a body's bytes, as they come, and its time. ``special`` has other bounds by route."""

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
                # now only waits for the caller to leave, which may take as long as the answer does
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
"""How often the keys and sessions of open streams are looked up, all of them in one query each."""
_LAST_CHUNK_S = 1.0
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class EventStreams:
    """The open streams of one event loop. A stream counts for its key and for its address."""

    def __init__(self, keys: ApiKeys, sessions: Sessions, limits: RequestLimits) -> None:
        self._keys = keys
        self._sessions = sessions
        self._limits = limits
        self._by_key: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._open: set[EventStream] = set()
        self._checking: asyncio.Task[None] | None = None

    def open(self, content: AsyncIterator[bytes], caller: Caller, address: str) -> EventStream:
        """The answer that streams the content; `ServiceError` 429 where the caller has too many streams already."""
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

    def left(self, stream: EventStream) -> None:
        """The stream has ended; a second call changes nothing."""
        if stream not in self._open:
            return
        self._open.discard(stream)
        for counter, name in ((self._by_key, stream.key_id or ""), (self._by_address, stream.address)):
            counter[name] -= 1
            if not counter[name]:
                del counter[name]

    async def _check(self) -> None:
        """End the streams of keys and sessions that are over, as long as there are streams."""
        while self._open:
            await asyncio.sleep(CHECK_S)
            with suppress(StoreError):  # a store that cannot be read gives no events either
                keys = await self._ended({stream.key_id for stream in self._open}, self._keys.good_ids)
                sessions = await self._ended({stream.session for stream in self._open}, self._sessions.good_ids)
                for stream in list(self._open):
                    if stream.key_id in keys or stream.session in sessions:
                        stream.end()

    async def _ended(
        self, ids: set[str | None], good_ids: Callable[[Collection[str]], set[str]]
    ) -> Collection[str | None]:
        """Those that are not good; None is not one of them."""
        known = {id_ for id_ in ids if id_ is not None}
        return known - await run_in_threadpool(good_ids, known) if known else ()


class EventStream(StreamingResponse):
    """An answer that ends when its content does, or when it is closed."""

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
        with suppress(RuntimeError):  # it has not begun, or is over
            self._deadline.reschedule(0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.left(self)

    async def stream_response(self, send: Send) -> None:
        try:
            async with self._deadline:
                if self._ended:
                    self.end()
                await super().stream_response(send)
        except TimeoutError:
            if not self._deadline.expired():
                raise
            # a reader that takes nothing more must not keep the stream open
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_CHUNK_S):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

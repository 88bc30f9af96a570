"""How much one caller may ask for: requests, bytes and time."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from ipaddress import IPv6Address, ip_address
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

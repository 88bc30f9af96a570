"""The HTTP client: total deadlines, retries with backoff, redirects, body limits, egress policy and secrets."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from io import BytesIO
from random import Random
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDict
from yarl import URL

from gradeline.model.secrets import Mask, SecretSet
from gradeline.transport.body import ACCEPT_ENCODING, EventReader, NdjsonReader, SseReader, read_body, read_start
from gradeline.transport.connection_pool import Checkout, Connector, current_checkout
from gradeline.transport.egress import EgressPolicy, GuardedResolver, SocketGuard, allow_all
from gradeline.transport.errors import WIRE_ERRORS, AttemptError, raise_attempt_error
from gradeline.transport.redaction import EXCERPT_BYTES, excerpt, redact, safe_url
from gradeline.transport.request import (
    MAX_REDIRECTS,
    REDIRECTS,
    CallError,
    Hop,
    HttpRequest,
    HttpResponse,
    Redirect,
    Stream,
    next_hop,
)
from gradeline.transport.secrets import check_redirect, insert_secrets

_SECONDS = re.compile(r"[0-9]{1,9}")
_LONGEST = 3600.0
"""A longer Retry-After, in seconds, is ignored."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter, unless the server sent a usable Retry-After."""

    base_s: float = 0.5
    cap_s: float = 8.0
    random: Random = field(default_factory=Random, repr=False)

    def pause(self, attempt: int, retry_after: str | None = None) -> float:
        """Seconds to wait after failed attempt number ``attempt``, from 1."""
        requested = parse_retry_after(retry_after, datetime.now(UTC)) if retry_after is not None else None
        if requested is not None:
            return requested
        return self.random.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 30)))


def parse_retry_after(value: str, now: datetime) -> float | None:
    """The pause of a ``Retry-After``, in seconds or as a date; None if it is past, too long or invalid."""
    value = value.strip()
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    else:
        try:
            moment = parsedate_to_datetime(value)
            seconds = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()
        except (ValueError, OverflowError):
            return None
    return seconds if 0 <= seconds <= _LONGEST else None


_LARGE_BODY = 500_000


@dataclass(slots=True)
class _CallState:
    """The attempts of a call so far, for the message if its deadline passes."""

    attempts: int = 0
    last: AttemptError | None = None


class Transport:
    """Sends requests, each under one total deadline; every failure is a `CallError` of a known type.

    An async context manager that pools its connections. ``connections`` is their maximum (0: no limit); a call that
    waits for a connection spends its own deadline.
    """

    def __init__(
        self,
        policy: EgressPolicy = allow_all,
        *,
        max_body: int = 10_000_000,
        connections: int = 0,
        backoff: Backoff | None = None,
        ssl_context: ssl.SSLContext | None = None,
        resolver: AbstractResolver | None = None,
        secrets: SecretSet | None = None,
    ) -> None:
        """``secrets`` replace their markers when a request is sent, and are masked in responses."""
        self._secrets = secrets
        self._guard = SocketGuard(policy)
        self._max_body = max_body
        self._connections = connections
        self._backoff = backoff or Backoff()
        self._ssl_context = ssl_context
        self._resolver = resolver
        self._open_session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = Connector(
            self._guard.sockets,
            limit=self._connections,
            ssl_context=self._ssl_context,
            resolver=GuardedResolver(self._resolver or aiohttp.ThreadedResolver(), self._guard),
            socket_factory=self._guard.open_socket,
        )
        self._open_session = aiohttp.ClientSession(
            connector=connector,
            trust_env=False,
            auto_decompress=False,
            # calls must not influence each other
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": ACCEPT_ENCODING, "User-Agent": "gradeline"},
            # `request` has the deadline: one scope around attempts, redirects and pauses
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )
        # aiohttp would send a GET twice if a reused connection was closed, and count it once
        self._open_session._retry_connection = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._open_session = self._open_session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # let connections close by themselves first
            self._guard.hang_up()
            await asyncio.sleep(0)

    async def request(self, request: HttpRequest) -> HttpResponse:
        """The response if its status is 2xx, else `CallError`; `ConfigError` for an invalid request."""
        first = Hop(request.method.upper(), request.checked()[0], request.sent_headers(), request.body)
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        state = _CallState()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._with_retries(request, first, deadline, state)
        except AttemptError as caught:
            failure = caught.without_frames()
        except TimeoutError:
            failure = AttemptError("timeout", f"no complete response within {request.deadline_s:g} s")
            if state.last is not None:
                failure.message += f"; the previous attempt failed: {state.last.message}"
        tried = f" (tried {state.attempts} times)" if state.attempts > 1 else ""
        message = f"{first.method} {safe_url(first.url)}{tried}: {failure.message}"
        mask = self._mask(request)
        message = redact(message if mask is None else mask.text(message), request.known_secrets())
        raise CallError(failure.type, message, http_status=failure.status, attempts=state.attempts)

    async def _with_retries(self, request: HttpRequest, first: Hop, deadline: float, state: _CallState) -> HttpResponse:
        clock = asyncio.get_running_loop().time
        while True:
            state.attempts += 1
            started = clock()
            try:
                answer = await self._follow(request, first, fresh=state.attempts > 1)
            except AttemptError as failure:
                if not failure.retry or state.attempts > request.retries:
                    raise
                # a server that closes idle connections is not overloaded, so retry at once on a new connection
                pause = 0.0 if failure.stale else self._backoff.pause(state.attempts, failure.retry_after)
                if clock() + pause >= deadline:
                    failure.message += (
                        f"; not retried, because a pause of {pause:.3g} s would exceed"
                        f" the deadline of {request.deadline_s:g} s"
                    )
                    raise
                state.last = failure.without_frames()
                await asyncio.sleep(pause)
            else:
                return answer._replace(attempts=state.attempts, latency_ms=(clock() - started) * 1000)

    async def _follow(self, request: HttpRequest, hop: Hop, *, fresh: bool) -> HttpResponse:
        """The response after all redirects. ``fresh``: do not reuse a connection."""
        seen = set[tuple[str, URL]]()
        while True:
            reply = await self._exchange(hop, request, fresh=fresh)
            if isinstance(reply, HttpResponse):
                return reply
            seen.add((hop.method, hop.url))
            before, hop = hop, next_hop(hop, reply, request.secret_headers)
            check_redirect(before, hop, request.known_secrets(), self._secrets)
            if (hop.method, hop.url) in seen:
                raise AttemptError("redirect", f"redirected in a loop, back to {safe_url(hop.url)}")
            if len(seen) > MAX_REDIRECTS:
                raise AttemptError(
                    "redirect", f"redirected more than {MAX_REDIRECTS} times, last to {safe_url(hop.url)}"
                )

    async def _exchange(self, hop: Hop, request: HttpRequest, *, fresh: bool) -> HttpResponse | Redirect:
        """One request and its response, which may be a redirect."""
        while True:
            checkout = Checkout(hop.url.raw_host or "", fresh=fresh)
            try:
                response = await self._send(hop, checkout)
            except WIRE_ERRORS as error:
                if not checkout.nothing_sent:
                    raise_attempt_error(error, stale=checkout.reused)
                error.__traceback__ = None
                fresh = True
            else:
                break
        try:
            return await self._read(response, request)
        except WIRE_ERRORS as error:
            raise_attempt_error(error)
        finally:
            # a body read to its end has already returned its connection to the pool; any other is closed
            response.close()

    async def _send(self, hop: Hop, checkout: Checkout) -> aiohttp.ClientResponse:
        """The head of the response; its body is not read yet."""
        if self._secrets is not None:
            hop = insert_secrets(hop, self._secrets)
        current_checkout.set(checkout)
        return await self._session.request(
            hop.method,
            hop.url,
            headers=hop.headers,
            data=_payload(hop.body),
            allow_redirects=False,
            # aiohttp would add a content type of its own
            skip_auto_headers=None if "Content-Type" in hop.headers else ("Content-Type",),
        )

    async def _read(self, response: aiohttp.ClientResponse, request: HttpRequest) -> HttpResponse | Redirect:
        status = response.status
        if status in REDIRECTS:
            return Redirect(status, response.headers.get("Location"))
        if not 200 <= status < 300:
            start = excerpt(await self._error_start(response, request), request.known_secrets())
            raise AttemptError(
                "rate_limited" if status == 429 else "status",
                f"answered {status}: {start}" if start else f"answered {status}",
                status=status,
                retry_after=response.headers.get("Retry-After"),
            )
        ending = _BodyEnd(response)
        reader = _event_reader(request.stream)
        body, masked = await read_body(response, self._max_body, reader, self._mask(request))
        ending.check()
        events = tuple(reader.events) if reader is not None else ()
        headers = self._headers(response, request)
        return HttpResponse(status, headers, body, 0.0, events=events, complete=ending.proven, masked=masked)

    async def _error_start(self, response: aiohttp.ClientResponse, request: HttpRequest) -> bytes:
        """The start of an error response's body, as much as a message needs."""
        return await self._start(response, request, 4 * EXCERPT_BYTES)

    async def _start(self, response: aiohttp.ClientResponse, request: HttpRequest, limit: int) -> bytes:
        mask = self._mask(request)
        # only the beginning of a secret value may have been read, so the end of the data is masked too
        start = await read_start(response, limit)
        return start if mask is None else mask.body(start, cut=len(start) == limit)

    def _headers(self, response: aiohttp.ClientResponse, request: HttpRequest) -> Mapping[str, str]:
        mask = self._mask(request)
        if mask is None:
            return response.headers
        return CIMultiDict((mask.text(name), mask.text(value)) for name, value in response.headers.items())

    def _mask(self, request: HttpRequest) -> Mask | None:
        """The mask for the request's credentials and this transport's secrets; None if there are none."""
        _, own = request.checked()
        if self._secrets is None or not self._secrets.mask:
            return own
        return self._secrets.mask if own is None else _joined(own.values, self._secrets.mask.values)

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._open_session is None:
            raise RuntimeError("use a Transport inside `async with`")
        return self._open_session


@lru_cache(maxsize=64)
def _joined(one: frozenset[str], other: frozenset[str]) -> Mask:
    return Mask(one | other)


class _BodyEnd:
    """How a body ended. Created before the body is read, while the response still holds its connection."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        headers = response.headers
        self.proven = (
            "Content-Length" in headers
            or "chunked" in headers.get("Transfer-Encoding", "").lower()
            or response.method == "HEAD"
            or response.status == 204
        )
        protocol = response.connection.protocol if response.connection is not None else None
        self._closed = protocol.closed if protocol is not None and not self.proven else None

    def check(self) -> None:
        """Raise for a connection reset, which aiohttp takes for the end of a body without a length."""
        if self._closed is not None and self._closed.done() and self._closed.exception() is not None:
            raise AttemptError("reset", "the connection was lost during the response")


def _payload(body: bytes | None) -> bytes | BytesIO | None:
    """A large body as a stream: aiohttp writes bytes in one go, which would block the event loop."""
    return BytesIO(body) if body is not None and len(body) > _LARGE_BODY else body


def _event_reader(stream: Stream) -> EventReader | None:
    match stream:
        case "sse":
            return SseReader()
        case "ndjson":
            return NdjsonReader()
        case "none":
            return None


_MAX_LATEST = 9


@dataclass(slots=True)
class RecordedExchange:
    """One request and its response. Bound secrets appear as markers, other credentials as they were sent.

    ``status`` is None without a response; ``answer``, its body, is None if it could not be read to the end. ``cut``:
    ``answer`` is only the start of a long body.
    """

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    body: bytes | None = field(repr=False)
    status: int | None = None
    answer_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    answer: bytes | None = field(default=None, repr=False)
    cut: bool = False


class RecordingTransport(Transport):
    """Records one call at a time. With redirects and polling, the first and the latest exchanges are kept."""

    def __init__(self, policy: EgressPolicy = allow_all, *, keep: int, secrets: SecretSet | None = None) -> None:
        """``keep`` is the number of bytes kept of a body."""
        super().__init__(policy, secrets=secrets)
        self._keep = keep
        self._first: RecordedExchange | None = None
        self._latest: deque[RecordedExchange] = deque(maxlen=_MAX_LATEST)
        self._seen = 0

    @property
    def exchanges(self) -> list[RecordedExchange]:
        """The recorded exchanges, in order."""
        return [*([] if self._first is None else [self._first]), *self._latest]

    @property
    def omitted(self) -> int:
        """The number of exchanges dropped between the first and the latest."""
        return self._seen - len(self.exchanges)

    async def _exchange(self, hop: Hop, request: HttpRequest, *, fresh: bool) -> HttpResponse | Redirect:
        defaults = {name: value for name, value in self._session.headers.items() if name not in hop.headers}
        # a redirect may have put a secret of the request into the URL
        url = str(hop.url) if self._secrets is None else self._secrets.mask.text(str(hop.url))
        self._record(RecordedExchange(hop.method, url, {**defaults, **hop.headers}, hop.body))
        return await super()._exchange(hop, request, fresh=fresh)

    async def _read(self, response: aiohttp.ClientResponse, request: HttpRequest) -> HttpResponse | Redirect:
        exchange = self.exchanges[-1]
        exchange.status, exchange.answer_headers = response.status, dict(self._headers(response, request))
        reply = await super()._read(response, request)
        if isinstance(reply, HttpResponse):
            self._record_body(reply.body)
        return reply

    async def _error_start(self, response: aiohttp.ClientResponse, request: HttpRequest) -> bytes:
        start = await self._start(response, request, self._keep + 1)
        self._record_body(start)
        return start

    def _record(self, exchange: RecordedExchange) -> None:
        self._seen += 1
        if self._first is None:
            self._first = exchange
        else:
            self._latest.append(exchange)

    def _record_body(self, body: bytes) -> None:
        exchange = self.exchanges[-1]
        exchange.answer, exchange.cut = body[: self._keep], len(body) > self._keep

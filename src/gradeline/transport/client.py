"""The guarded HTTP client."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp.abc import AbstractResolver
from multidict import CIMultiDict
from yarl import URL

from gradeline.model.bound_secret import SecretSet
from gradeline.model.masking import Mask
from gradeline.transport.authorize import check_redirect, with_secrets
from gradeline.transport.body import ACCEPT_ENCODING, read_body, read_start
from gradeline.transport.call import Answer, CallError, Request, Stream
from gradeline.transport.egress import EgressPolicy, allow_all
from gradeline.transport.events import EventReader, NdjsonReader, SseReader
from gradeline.transport.faults import WIRE_ERRORS, AttemptError, raise_failure
from gradeline.transport.guard import Guard, GuardedResolver
from gradeline.transport.pool import Checkout, Connector, current_checkout
from gradeline.transport.redact import EXCERPT_BYTES, excerpt, redact, safe_url
from gradeline.transport.redirects import MAX_REDIRECTS, REDIRECTS, Hop, Redirect, next_hop
from gradeline.transport.retry import Backoff

_LARGE = 500_000


@dataclass(slots=True)
class _Progress:
    """How far a call has come when its deadline strikes."""

    attempts: int = 0
    last: AttemptError | None = None


class Transport:
    """Sends requests under one total deadline each; every failure is a `CallError` of a known type.

    An asynchronous context manager: its connections are pooled until it is left. ``connections`` bounds
    them (0: as many as there are calls); a call that waits for one spends its own deadline.
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
        """``secrets`` are filled in for their markers when a request is sent, and masked in what comes back."""
        self._secrets = secrets
        self._guard = Guard(policy)
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
            # Calls must not influence each other.
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept-Encoding": ACCEPT_ENCODING, "User-Agent": "gradeline"},
            # The deadline is ours: one scope around attempts, redirects and pauses.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )
        # aiohttp would send a GET twice where a kept connection was closed, and count it once
        self._open_session._retry_connection = False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._open_session = self._open_session, None
        if session is not None:
            await session.close()
            await asyncio.sleep(0)  # connections that can close by themselves do so now
            self._guard.hang_up()
            await asyncio.sleep(0)

    async def request(self, request: Request) -> Answer:
        """The answer, if its status is 2xx; a `CallError` otherwise; `ConfigError` for an impossible request."""
        first = Hop(request.method.upper(), request.checked()[0], request.sent_headers(), request.body)
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        progress = _Progress()
        try:
            async with asyncio.timeout_at(deadline):
                return await self._with_retries(request, first, deadline, progress)
        except AttemptError as caught:
            failure = caught.without_frames()
        except TimeoutError:
            failure = AttemptError("timeout", f"no complete answer within {request.deadline_s:g} s")
            if progress.last is not None:
                failure.message += f"; the attempt before failed: {progress.last.message}"
        tried = f" (tried {progress.attempts} times)" if progress.attempts > 1 else ""
        message = f"{first.method} {safe_url(first.url)}{tried}: {failure.message}"
        mask = self._mask(request)
        message = redact(message if mask is None else mask.text(message), request.known_secrets())
        raise CallError(failure.type, message, http_status=failure.status, attempts=progress.attempts)

    async def _with_retries(self, request: Request, first: Hop, deadline: float, progress: _Progress) -> Answer:
        clock = asyncio.get_running_loop().time
        while True:
            progress.attempts += 1
            started = clock()
            try:
                answer = await self._follow(request, first, fresh=progress.attempts > 1)
            except AttemptError as failure:
                if not failure.retry or progress.attempts > request.retries:
                    raise
                # a server that closes idle connections is not overloaded: a new connection is tried at once
                pause = 0.0 if failure.stale else self._backoff.pause(progress.attempts, failure.retry_after)
                if clock() + pause >= deadline:
                    failure.message += (
                        f"; not tried again, because a pause of {pause:.3g} s would pass"
                        f" the deadline of {request.deadline_s:g} s"
                    )
                    raise
                progress.last = failure.without_frames()
                await asyncio.sleep(pause)
            else:
                return answer._replace(attempts=progress.attempts, latency_ms=(clock() - started) * 1000)

    async def _follow(self, request: Request, hop: Hop, *, fresh: bool) -> Answer:
        """The answer at the end of all redirects. ``fresh``: no kept connection is used."""
        seen = set[tuple[str, URL]]()
        while True:
            reply = await self._exchange(hop, request, fresh=fresh)
            if isinstance(reply, Answer):
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

    async def _exchange(self, hop: Hop, request: Request, *, fresh: bool) -> Answer | Redirect:
        """One request and its answer, which may be a redirect."""
        while True:
            checkout = Checkout(hop.url.raw_host or "", fresh=fresh)
            try:
                response = await self._send(hop, checkout)
            except WIRE_ERRORS as error:
                if not checkout.nothing_sent:
                    raise_failure(error, stale=checkout.reused)
                error.__traceback__ = None
                fresh = True
            else:
                break
        try:
            return await self._read(response, request)
        except WIRE_ERRORS as error:
            raise_failure(error)
        finally:
            # A body read to its end has given its connection back already; any other is not worth keeping.
            response.close()

    async def _send(self, hop: Hop, checkout: Checkout) -> aiohttp.ClientResponse:
        """The head of the answer; its body is still to be read."""
        if self._secrets is not None:
            hop = with_secrets(hop, self._secrets)
        current_checkout.set(checkout)
        return await self._session.request(
            hop.method,
            hop.url,
            headers=hop.headers,
            data=_payload(hop.body),
            allow_redirects=False,
            # aiohttp would name a content type of its own
            skip_auto_headers=None if "Content-Type" in hop.headers else ("Content-Type",),
        )

    async def _read(self, response: aiohttp.ClientResponse, request: Request) -> Answer | Redirect:
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
        ending = _Ending(response)
        reader = _event_reader(request.stream)
        body, masked = await read_body(response, self._max_body, reader, self._mask(request))
        ending.check()
        events = tuple(reader.events) if reader is not None else ()
        headers = self._headers(response, request)
        return Answer(status, headers, body, 0.0, events=events, complete=ending.proven, masked=masked)

    async def _error_start(self, response: aiohttp.ClientResponse, request: Request) -> bytes:
        """As much of an error's body as a message can need."""
        return await self._start(response, request, 4 * EXCERPT_BYTES)

    async def _start(self, response: aiohttp.ClientResponse, request: Request, limit: int) -> bytes:
        mask = self._mask(request)
        # the beginning of a value may be all that is read of it
        start = await read_start(response, limit)
        return start if mask is None else mask.body(start, cut=len(start) == limit)

    def _headers(self, response: aiohttp.ClientResponse, request: Request) -> Mapping[str, str]:
        mask = self._mask(request)
        if mask is None:
            return response.headers
        return CIMultiDict((mask.text(name), mask.text(value)) for name, value in response.headers.items())

    def _mask(self, request: Request) -> Mask | None:
        """What hides the credentials of the request and the secrets of this transport; None: there are none."""
        _, own = request.checked()
        if self._secrets is None or not self._secrets.mask:
            return own
        return self._secrets.mask if own is None else _joined(own.values, self._secrets.mask.values)

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._open_session is None:
            raise RuntimeError("a Transport is used inside `async with`")
        return self._open_session


@lru_cache(maxsize=64)
def _joined(one: frozenset[str], other: frozenset[str]) -> Mask:
    return Mask(one | other)


class _Ending:
    """How a body ended. Made before the body is read, while the response still holds its connection."""

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
        """aiohttp takes a reset for the end of a body that has no length; it is none."""
        if self._closed is not None and self._closed.done() and self._closed.exception() is not None:
            raise AttemptError("reset", "the connection broke within the answer")


def _payload(body: bytes | None) -> bytes | BytesIO | None:
    """aiohttp writes bytes in one go, which it warns would block the loop for large ones."""
    return BytesIO(body) if body is not None and len(body) > _LARGE else body


def _event_reader(stream: Stream) -> EventReader | None:
    match stream:
        case "sse":
            return SseReader()
        case "ndjson":
            return NdjsonReader()
        case "none":
            return None

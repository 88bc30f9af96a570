"""An OpenAI-compatible proxy that routes each request, and falls back to the baseline.

A candidate's failure counts as such until its first byte is passed on: a refused or lost connection, any status that is
not 2xx, no first byte in time, or, without streaming, a body that breaks off. Then the baseline is called, and both
calls are logged. A candidate that fails several times in a row is left out for a while.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from random import SystemRandom
from time import monotonic
from typing import Any, NamedTuple

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from gradeline.errors import ConfigError, GradelineError, Problem
from gradeline.model import Storage
from gradeline.model.route import RouteChoice
from gradeline.model.text import quote
from gradeline.transport.egress import EgressPolicy, PublicOnly, allow_all
from gradeline.transport.errors import WIRE_ERRORS, AttemptError, raise_attempt_error
from gradeline.transport.forwarding import ForwardingTransport
from gradeline.transport.secrets import is_loopback
from gradeline.trust.request_log import AnsweredCall, AnsweredRequest, RequestLog, usage_part
from gradeline.trust.route_file import ArmEntry, FamilyFinder, RouteFile, arm_keys
from gradeline.trust.route_tables import RouteStatus, current_table, shares_of
from gradeline.trust.router import draw_choice

HEADER = "x-gradeline-route"
_FORWARDED = ("accept", "idempotency-key", "traceparent", "tracestate", "x-request-id")
"""Headers of a client that are passed on; its Authorization never is."""
_RETURNED = ("content-type", "content-encoding", "retry-after", "x-request-id")
_TAIL = 65_536
"""Bytes kept of the end of a stream, which has its usage."""
_MAX_FAULT = 2_000_000
"""Maximum size of an error's body, in bytes."""
_MAX_ANSWER = 100_000_000
_BODY_S = 60.0
_FAILURES = 5
_LEFT_OUT_S = 30.0
_SHUTDOWN_S = 8.0
_MIN_TOKEN = 16


class ProxySettings(NamedTuple):
    """How a proxy is reached, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    """What clients must send as ``Authorization: Bearer``; None: anyone who reaches the port may use it."""
    public_only: bool = False
    allow: tuple[str, ...] = ()
    max_body: int = 20_000_000
    refresh_s: float = 5.0


class _FailedCall(NamedTuple):
    """A call to an arm that gave no answer to pass on."""

    call: AnsweredCall
    answer: web.Response | None = None
    """What the arm answered, if it did."""


class _Arm(NamedTuple):
    entry: ArmEntry
    key: str | None


class RouteProxy:
    """The request handlers of a proxy, and the tasks next to them."""

    def __init__(
        self,
        storage: Storage,
        route: RouteFile,
        settings: ProxySettings,
        environment: Mapping[str, str] | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        keys = arm_keys(route, environment)
        policy: EgressPolicy = PublicOnly(settings.allow) if settings.public_only else allow_all
        self._storage = storage
        self._route = route
        self._settings = settings
        self._arms = {arm.name: _Arm(arm, keys[arm.name]) for arm in route.arms}
        self._finder = FamilyFinder(route.family)
        self._transport = ForwardingTransport(policy)
        self._log = RequestLog(storage, route, report)
        self._status = RouteStatus(None, "the table was not read yet")
        self._random = SystemRandom()
        self._failures: dict[str, int] = {}
        self._left_out: dict[str, float] = {}

    def application(self) -> web.Application:
        """The application, which opens and closes everything itself."""
        app = web.Application(client_max_size=self._settings.max_body)
        app.router.add_post("/v1/chat/completions", self._answer)
        app.router.add_post("/v1/responses", self._answer)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.cleanup_ctx.append(self._lifetime)
        return app

    async def _lifetime(self, _: web.Application) -> AsyncIterator[None]:
        async with self._transport:
            await self._read_table()
            self._log.start()
            refreshing = asyncio.create_task(self._refresh(), name="gradeline-route-table")
            yield
            refreshing.cancel()
            with suppress(asyncio.CancelledError):
                await refreshing
            await self._log.close()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(self._settings.refresh_s)
            await self._read_table()

    async def _read_table(self) -> None:
        try:
            self._status = await asyncio.to_thread(current_table, self._storage, self._route)
        except GradelineError:
            # the table in use stays in use; without one, the baseline gets everything
            if self._status.table is None:
                self._status = RouteStatus(None, "the store cannot be read")

    async def _health(self, _: web.Request) -> web.Response:
        table = self._status.table
        return web.json_response(
            {
                "route": self._route.route,
                "table": None if table is None else table.number,
                "reason": self._status.reason,
                "logged": self._log.written,
                "dropped": self._log.dropped,
            }
        )

    async def _models(self, request: web.Request) -> web.Response:
        refused = self._refusal(request)
        if refused is not None:
            return refused
        models = [{"id": self._route.route, "object": "model", "created": 0, "owned_by": "gradeline"}]
        return web.json_response({"object": "list", "data": models})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        started = monotonic()
        refused = self._refusal(request)
        if refused is not None:
            return refused
        try:
            body = await self._body(request)
        except _BadRequestError as error:
            return _fault(error.status, str(error), "invalid_request_error")
        choice = self._choose(request, body)
        calls: list[AnsweredCall] = []
        served: str | None = None
        name = choice.arm
        try:
            for name in dict.fromkeys((choice.arm, self._route.baseline.name)):
                last = name == self._route.baseline.name
                found = await self._call(request, self._arms[name], body, choice, calls, last=last)
                if isinstance(found, web.StreamResponse):
                    served = name
                    return found
                if last:
                    return found.answer or _fault(502, "the model could not be reached", "upstream_error")
            raise AssertionError("the baseline is always the last")
        except asyncio.CancelledError:
            calls.append(AnsweredCall(name, error="client_gone"))
            raise
        finally:
            self._log.add(AnsweredRequest(choice, served, tuple(calls), (monotonic() - started) * 1000))

    def _refusal(self, request: web.Request) -> web.Response | None:
        token = self._settings.token
        if token is None:
            # a page that a browser on this machine shows must not reach the proxy under another name
            if not _names_this_machine(request.host):
                return _fault(403, f"the host {quote(request.host, 80)} is not this machine", "invalid_request_error")
            return None
        sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if hmac.compare_digest(sent.encode(), token.encode()):
            return None
        return _fault(401, "send the proxy's token as Authorization: Bearer", "authentication_error")

    async def _body(self, request: web.Request) -> dict[str, Any]:
        if request.content_type != "application/json":
            # a browser sends other types to any address without asking first
            raise _BadRequestError(415, "Content-Type must be application/json")
        try:
            async with asyncio.timeout(_BODY_S):
                raw = await request.read()
            found = msgspec.json.decode(raw)
        except web.HTTPRequestEntityTooLarge:
            limit = self._settings.max_body // 1_000_000
            raise _BadRequestError(413, f"the body is larger than {limit} MB") from None
        except TimeoutError:
            raise _BadRequestError(408, f"the body did not arrive within {_BODY_S:g} s") from None
        except (ValueError, RecursionError) as error:
            raise _BadRequestError(400, f"the body is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise _BadRequestError(400, "the body must be a JSON object")
        return found

    def _choose(self, request: web.Request, body: Mapping[str, Any]) -> RouteChoice:
        """The decision; any failure is a decision for the baseline."""
        baseline = self._route.baseline.name
        family, reason = "", self._status.why_baseline
        try:
            family = self._finder.find(request.headers, body)
            table = self._status.table
            shares = shares_of(self._route, table, family)
            failing = [name for name, until in self._left_out.items() if shares.get(name) and until > monotonic()]
            if failing:
                # what they would get goes to the baseline, and the propensities say so
                shares[baseline] += sum(shares.pop(name) for name in failing)
                shares |= dict.fromkeys(failing, 0.0)
                reason = f"left out after failures: {', '.join(failing)}"
            number = 0 if table is None else table.number
            return draw_choice(shares, baseline, family, self._random, number, reason)
        except Exception as error:  # the request must be answered whatever is wrong with routing
            shares = dict.fromkeys(self._arms, 0.0) | {baseline: 1.0}
            return draw_choice(shares, baseline, family, self._random, 0, f"routing failed: {type(error).__name__}")

    async def _call(
        self,
        request: web.Request,
        arm: _Arm,
        body: dict[str, Any],
        choice: RouteChoice,
        calls: list[AnsweredCall],
        *,
        last: bool,
    ) -> web.StreamResponse | _FailedCall:
        """Call one arm; the answer that the client got, or what failed."""
        stream = body.get("stream") is True
        try:
            if stream:
                return await self._streamed(request, arm, body, choice, calls, last=last)
            async with asyncio.timeout(self._route.timeout):
                return await self._whole(request, arm, body, choice, calls, last=last)
        except AttemptError as error:
            failed = _FailedCall(AnsweredCall(arm.entry.name, error.status, error.type))
        except TimeoutError:
            failed = _FailedCall(AnsweredCall(arm.entry.name, error="timeout"))
        except _UpstreamError as error:
            failed = _FailedCall(error.call, error.answer)
        calls.append(failed.call)
        self._count_failure(arm.entry.name)
        return failed

    async def _open(self, request: web.Request, arm: _Arm, body: dict[str, Any]) -> aiohttp.ClientResponse:
        headers = {name: request.headers[name] for name in _FORWARDED if name in request.headers}
        headers["Content-Type"] = "application/json"
        if arm.key is not None:
            headers["Authorization"] = f"Bearer {arm.key}"
        url = arm.entry.base_url.rstrip("/") + request.path.removeprefix("/v1")
        sent = msgspec.json.encode({**body, "model": arm.entry.model})
        response = await self._transport.open_response(url, headers, sent)
        if 200 <= response.status < 300:
            return response
        try:
            raw = await _read(response, _MAX_FAULT)
        finally:
            response.close()
        answer = web.Response(status=_status(response), headers=_returned(response), body=_hidden(raw, arm.key))
        raise _UpstreamError(AnsweredCall(arm.entry.name, response.status, "status"), answer)

    async def _whole(
        self,
        request: web.Request,
        arm: _Arm,
        body: dict[str, Any],
        choice: RouteChoice,
        calls: list[AnsweredCall],
        *,
        last: bool,
    ) -> web.StreamResponse:
        async with asyncio.timeout(None if last else self._route.answer_timeout):
            response = await self._open(request, arm, body)
            try:
                raw = await _read(response, _MAX_ANSWER)
            finally:
                response.close()
        self._failures.pop(arm.entry.name, None)
        calls.append(AnsweredCall(arm.entry.name, response.status, usage=usage_part(raw)))
        headers = _returned(response) | _route_header(choice, arm)
        return web.Response(status=response.status, headers=headers, body=_hidden(raw, arm.key))

    async def _streamed(
        self,
        request: web.Request,
        arm: _Arm,
        body: dict[str, Any],
        choice: RouteChoice,
        calls: list[AnsweredCall],
        *,
        last: bool,
    ) -> web.StreamResponse:
        limit = self._route.timeout if last else min(self._route.timeout, self._route.first_byte_timeout)
        response, piece = await self._first_piece(request, arm, body, limit)
        try:
            if not piece:
                raise AttemptError("bad_response", "the stream is empty")
            self._failures.pop(arm.entry.name, None)
            headers = _returned(response) | _route_header(choice, arm)
            answer = web.StreamResponse(status=response.status, headers=headers)
            calls.append(await self._pass_on(request, arm, response, answer, piece))
            return answer
        finally:
            response.close()

    async def _first_piece(
        self, request: web.Request, arm: _Arm, body: dict[str, Any], limit: float
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        async with asyncio.timeout(limit):
            response = await self._open(request, arm, body)
            try:
                return response, await _next_piece(response)
            except BaseException:
                response.close()
                raise

    async def _pass_on(
        self,
        request: web.Request,
        arm: _Arm,
        response: aiohttp.ClientResponse,
        answer: web.StreamResponse,
        piece: bytes,
    ) -> AnsweredCall:
        """Pass the rest of a stream on; after its first byte there is no way back to the baseline."""
        tail, error = bytearray(), None
        try:
            async with asyncio.timeout(self._route.timeout):
                await answer.prepare(request)
                while piece:
                    await answer.write(_hidden(piece, arm.key))
                    tail += piece
                    if len(tail) > 2 * _TAIL:
                        del tail[:-_TAIL]
                    piece = await _next_piece(response)
                await answer.write_eof()
        except ConnectionError:
            error = "client_gone"
        except (AttemptError, TimeoutError) as failure:
            error = failure.type if isinstance(failure, AttemptError) else "timeout"
            self._count_failure(arm.entry.name)
            if request.transport is not None:
                request.transport.close()  # the client must not take the end for a complete answer
        return AnsweredCall(arm.entry.name, response.status, error, usage_part(tail))

    def _count_failure(self, arm: str) -> None:
        self._failures[arm] = self._failures.get(arm, 0) + 1
        if arm != self._route.baseline.name and self._failures[arm] >= _FAILURES:
            self._left_out[arm] = monotonic() + _LEFT_OUT_S
            self._failures[arm] = 0


class _BadRequestError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _UpstreamError(Exception):
    """An arm answered with another status than 2xx."""

    def __init__(self, call: AnsweredCall, answer: web.Response) -> None:
        super().__init__()
        self.call = call
        self.answer = answer


def client_token(host: str, variable: str | None, environment: Mapping[str, str] | None = None) -> str | None:
    """The token that clients must send; `ConfigError` where one is needed and missing, or too short."""
    if variable is None:
        if is_loopback(host):
            return None
        reason = f"{host!r} is reached from other machines: name a variable with a token with --token-env"
        raise ConfigError(Problem("--host", reason))
    token = (os.environ if environment is None else environment).get(variable, "")
    if len(token) < _MIN_TOKEN:
        found = "is not set" if not token else f"has {len(token)} characters"
        raise ConfigError(
            Problem("--token-env", f"the variable {variable} {found}; use at least {_MIN_TOKEN} characters")
        )
    return token


def run_proxy(storage: Storage, route: RouteFile, settings: ProxySettings, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in flight get some seconds to finish, and the log is written."""
    asyncio.run(serve_proxy(RouteProxy(storage, route, settings), settings, announce))


async def serve_proxy(proxy: RouteProxy, settings: ProxySettings, announce: Callable[[str], None]) -> None:
    """`run_proxy` in a running event loop."""
    runner = web.AppRunner(
        proxy.application(), access_log=None, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError, RuntimeError):  # Windows, or not in the main thread
            loop.add_signal_handler(number, stop.set)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            reason = f"cannot serve on {settings.host} port {settings.port}: {error.strerror}; use another port, or 0"
            raise ConfigError(Problem("--port", reason)) from None
        port = runner.addresses[0][1]
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        announce(f"http://{shown}:{port}")
        await stop.wait()
    finally:
        await runner.cleanup()


def _names_this_machine(host: str) -> bool:
    try:
        return is_loopback(URL(f"http://{host}").raw_host or "")
    except ValueError:
        return False


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    parts, size = [], 0
    while piece := await _next_piece(response):
        size += len(piece)
        if size > limit:
            raise AttemptError("too_large", f"the response is larger than {limit:,} bytes")
        parts.append(piece)
    return b"".join(parts)


async def _next_piece(response: aiohttp.ClientResponse) -> bytes:
    try:
        return await response.content.readany()
    except WIRE_ERRORS as error:
        raise_attempt_error(error)


def _status(response: aiohttp.ClientResponse) -> int:
    """A redirect is not passed on: it would send the client past the proxy."""
    return 502 if 300 <= response.status < 400 else response.status


def _returned(response: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: response.headers[name] for name in _RETURNED if name in response.headers}


def _route_header(choice: RouteChoice, arm: _Arm) -> dict[str, str]:
    served = "" if arm.entry.name == choice.arm else f"; served-by={arm.entry.name}"
    return {HEADER: f"arm={choice.arm}; propensity={choice.propensity:.6g}; id={choice.id}{served}"}


def _hidden(body: bytes, key: str | None) -> bytes:
    """The body without the arm's key, which a server may repeat."""
    return body if not key else body.replace(key.encode(), b"***")


def _fault(status: int, message: str, kind: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": kind, "code": None}}, status=status)

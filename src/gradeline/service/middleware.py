"""The middleware: security headers, HEAD requests, draining, and authentication."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit
from uuid import uuid4

from anyio import CapacityLimiter, to_thread
from fastapi import params
from fastapi.routing import APIRoute
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradeline.errors import StoreError
from gradeline.model import quote
from gradeline.service import auth
from gradeline.service.auth import Caller, constant_time_equal, looks_like_key
from gradeline.service.errors import Code, ServiceError
from gradeline.service.limits import RequestLimits, TokenBuckets, address_of, too_many
from gradeline.service.responses import error_of, failure
from gradeline.service.service import Service, is_loopback

_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_DATA_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
# Inline styles are allowed because editors and menus set the sizes that they measure.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def security_headers(request_id: str) -> dict[str, str]:
    """The headers of a response with data."""
    return {
        **_ALWAYS,
        "Content-Security-Policy": _DATA_POLICY,
        "Cache-Control": "no-store",
        "X-Request-Id": request_id,
    }


class SecurityHeadersMiddleware:
    """Adds security headers and a request id to every response; a page or a file keeps its own policy and caching."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in security_headers(request_id).items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


_STREAMING = ("/events", "/export")
"""Paths whose responses are created while they are sent, which would be expensive or endless for HEAD."""


class HeadMiddleware:
    """Handles HEAD as GET without the body, except for streaming responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(_STREAMING):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


if TYPE_CHECKING:
    from gradeline.service.service import Service

OPEN_PATHS = frozenset({"/api/health", "/api/metrics"})
"""Paths that are served while draining; `/api/ready` reports that the service is draining."""
RETRY_S = 5


def draining() -> ServiceError:
    """The error for all other paths."""
    message = f"The service is draining and about to stop; retry in {RETRY_S} s"
    return ServiceError(
        Code.RATE_LIMITED, message, status=503, headers={"Retry-After": str(RETRY_S), "Connection": "close"}
    )


class DrainMiddleware:
    """Answers new requests with 503 once a stop has begun; requests in progress are not affected."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._service.draining and scope["path"] not in OPEN_PATHS:
            await failure(draining())(scope, receive, send)
            return
        await self._app(scope, receive, send)


_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_KEY_PARAMETERS = frozenset({"key", "api_key", "apikey", "access_token", "token", "authorization"})
_CHALLENGE = {"WWW-Authenticate": "Bearer"}
HEALTH = "/api/health"
_NO_KEY = (
    "An API key is required: Authorization: Bearer gl_…; the operator creates one with:"
    " gradeline keys create --scope run"
)


T = TypeVar("T")


class MatchedRoute(NamedTuple):
    """The route of a request."""

    path: str
    scope: auth.KeyScope | None
    """None: the endpoint is not marked."""
    takes_json: bool


class AuthMiddleware:
    """Checks host, key, scope, origin and content type of every request before its body is read."""

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], service: Service, limits: RequestLimits) -> None:
        self._app = app
        self._routes = routes
        self._service = service
        self._requests = TokenBuckets(limits.rate, limits.burst)
        self._wrong_keys = TokenBuckets(limits.wrong_rate, limits.wrong_burst)
        self._threads = CapacityLimiter(limits.reserved_threads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        try:
            scope["state"]["caller"] = await self._authenticate(scope, Headers(scope=scope))
        except (ServiceError, StoreError) as error:
            await failure(error_of(error, scope["method"], scope["path"]))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope, headers: Headers) -> Caller:
        found = self._route(scope)
        scope["state"]["route"] = found.path if found is not None else "unknown"
        local = await self._local(look=found is None or found.path != HEALTH)
        if local:
            _check_host(scope, headers, self._service.settings.host)
        _check_query(scope)
        if scope["method"] in _WRITES:
            _check_origin(scope, headers, local)
        caller = await self._caller(scope, headers, local, found)
        wait = self._requests.take(caller.key_id or address_of(scope))
        if wait is not None:
            raise too_many("Too many requests", wait)
        if found is not None:
            _check_scope(found, caller)
            if found.takes_json:
                _check_content_type(headers)
        if "\0" in scope["path"]:
            # no id contains it, and not every database accepts it in a query
            raise ServiceError(Code.NOT_FOUND, f"Nothing found at {quote(scope['path'], 120)}")
        return caller

    def _route(self, scope: Scope) -> MatchedRoute | None:
        """The same search as the router's; None for a path that has only other methods."""
        for route in self._routes:
            match, inner = route.matches(scope)
            if match is Match.FULL:
                path = getattr(route, "path", "unknown")
                return MatchedRoute(path, auth.scope_of(inner.get("endpoint")), _takes_json(route))
        return None

    async def _local(self, *, look: bool) -> bool:
        """Whether this is local mode; without ``look`` the store is not read."""
        keys = self._service.keys
        if not is_loopback(self._service.settings.host):
            return False
        if keys.looked_lately or not look:
            return not keys.exist(look=False)
        # not in the event loop, since the store may be slow
        return not await self.in_reserved_thread(keys.exist)

    async def _caller(self, scope: Scope, headers: Headers, local: bool, found: MatchedRoute | None) -> Caller:
        client = scope.get("client")
        unknown = Caller(None, auth.KeyScope.PUBLIC, scope["state"]["request_id"], client[0] if client else None)
        if local:
            return unknown._replace(scope=auth.KeyScope.ADMIN)
        if found is not None and found.scope is auth.KeyScope.PUBLIC:
            return unknown
        credentials = headers.getlist("authorization")
        if credentials:
            kind, _, text = credentials[0].strip().partition(" ")
            key = None
            if len(credentials) == 1 and kind.lower() == "bearer":
                key = await self.in_reserved_thread(partial(self._service.keys.authenticate, text.strip()))
            if key is None:
                raise self.wrong_key(address_of(scope))
            return unknown._replace(key_id=key.id, scope=key.scope)
        return await self._of_session(scope, headers, unknown)

    async def _of_session(self, scope: Scope, headers: Headers, unknown: Caller) -> Caller:
        token = session_token(scope, headers)
        if token is None:
            raise ServiceError(Code.UNAUTHORIZED, _NO_KEY, headers=_CHALLENGE)
        opened = await self.in_reserved_thread(partial(self._service.sessions.find, token))
        if opened is None:
            raise ServiceError(Code.UNAUTHORIZED, "The session has ended; sign in again", headers=_CHALLENGE)
        session, key = opened
        if scope["method"] in _WRITES and not constant_time_equal(headers.get("x-csrf-token", ""), session.csrf):
            raise ServiceError(
                Code.FORBIDDEN, "Header X-CSRF-Token is required: the token returned by POST /api/session"
            )
        return unknown._replace(key_id=key.id, scope=key.scope, session=session.id)

    async def in_reserved_thread(self, work: Callable[[], T]) -> T:
        """Run work for signing in and readiness in reserved threads, which other routes cannot keep busy."""
        return await to_thread.run_sync(work, limiter=self._threads)

    def wrong_key(self, address: str) -> ServiceError:
        """The error for an invalid key; 429 for an address that sent many."""
        wait = self._wrong_keys.take(address)
        if wait is not None:
            return too_many("Too many invalid keys", wait)
        return ServiceError(Code.UNAUTHORIZED, "This key is unknown, expired or revoked", headers=_CHALLENGE)


def session_token(scope: Scope, headers: Headers) -> str | None:
    """The value of the session cookie."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(is_plain_loopback(scope, headers)))


def cookie_name(plain: bool) -> str:
    """The name of the session cookie; with the prefix, browsers accept it only from this host and over TLS."""
    return "gradeline_session" if plain else "__Host-gradeline_session"


def is_plain_loopback(scope: Scope, headers: Headers) -> bool:
    """Whether a browser calls its own machine without TLS, the one case in which the cookie cannot be secure."""
    host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    return scope["scheme"] == "http" and is_loopback(host)


def _hosts(scope: Scope, bound: str) -> set[str]:
    """The spellings of this server's own address."""
    port = (scope.get("server") or ("", 0))[1]
    names = {"127.0.0.1", "localhost", "[::1]", f"[{bound}]" if ":" in bound else bound}
    return {f"{name}:{port}" for name in names} | (names if port == 80 else set())


def _check_host(scope: Scope, headers: Headers, bound: str) -> None:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or hosts[0].lower() not in _hosts(scope, bound):
        text = f"The Host {quote(', '.join(hosts), 100)} is not this service"
        raise ServiceError(Code.FORBIDDEN, text, status=421)


def _check_query(scope: Scope) -> None:
    """Refuse keys in URLs, which end up in logs and histories."""
    query = scope["query_string"].decode("latin-1")
    names = {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)} if query else set()
    if names & _KEY_PARAMETERS or looks_like_key(query):
        raise ServiceError(
            Code.INVALID_INPUT, "A key must not be in the URL: send it as Authorization: Bearer, and revoke this one"
        )


def _check_origin(scope: Scope, headers: Headers, local: bool) -> None:
    """Refuse writes from pages of other sites."""
    origins = headers.getlist("origin")
    if not origins:
        refused = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    elif local:
        refused = origins[0].lower() not in {f"{scope['scheme']}://{host}" for host in headers.getlist("host")}
    else:
        refused = urlsplit(origins[0].lower()).netloc != headers.get("host", "").lower()
    if refused or len(origins) > 1:
        shown = quote(", ".join(origins) or headers.get("sec-fetch-site"), 100)
        raise ServiceError(Code.FORBIDDEN, f"The Origin {shown} may not write here")


def _check_scope(found: MatchedRoute, caller: Caller) -> None:
    if found.scope is None:
        raise ServiceError(Code.FORBIDDEN, "This path may not be called")
    if not caller.scope.includes(found.scope):
        raise ServiceError(
            Code.FORBIDDEN, f"This requires a key of scope {found.scope.value!r}, not {caller.scope.value!r}"
        )


def _takes_json(route: BaseRoute) -> bool:
    body = route.body_field if isinstance(route, APIRoute) else None
    return body is not None and not isinstance(body.field_info, params.Form)


def _check_content_type(headers: Headers) -> None:
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        shown = quote(kind, 80) if kind else "nothing"
        raise ServiceError(
            Code.UNSUPPORTED_MEDIA_TYPE, f"Content-Type: send the body as application/json, not as {shown}"
        )
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise ServiceError(Code.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding: send the body uncompressed")

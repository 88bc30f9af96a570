"""What every answer carries, whoever made it: a request id, and headers that make browsers careful."""

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
# Styles may be inline: what editors and menus measure is written into the page.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def security_headers(request_id: str) -> dict[str, str]:
    """Of an answer that is data."""
    return {
        **_ALWAYS,
        "Content-Security-Policy": _DATA_POLICY,
        "Cache-Control": "no-store",
        "X-Request-Id": request_id,
    }


class SecurityHeadersMiddleware:
    """Adds the headers to every answer; one that names its own policy or caching (a page, a file) keeps it."""

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


_WITHOUT_END = ("/events", "/export")
"""Answers that are made while they are sent: to make one for nobody is dear, or takes for ever."""


class HeadMiddleware:
    """Hands a HEAD request on as GET and keeps the body back. What streams has no HEAD."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD" or scope["path"].endswith(_WITHOUT_END):
            await self._app(scope, receive, send)
            return

        async def send_without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        await self._app({**scope, "method": "GET"}, receive, send_without_body)


if TYPE_CHECKING:
    from gradeline.service.service import Service

OPEN_PATHS = frozenset({"/api/health", "/api/metrics"})
"""What is answered as ever; `/api/ready` reports that the service is draining."""
RETRY_S = 5


def draining() -> ServiceError:
    """The answer to every other request."""
    message = f"The service is draining: it is about to stop; retry in {RETRY_S} s"
    return ServiceError(
        Code.RATE_LIMITED, message, status=503, headers={"Retry-After": str(RETRY_S), "Connection": "close"}
    )


class DrainMiddleware:
    """Answers new requests with 503 once a stop has begun; those that had begun before are not touched."""

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
_NO_KEY = "A key is needed: Authorization: Bearer gl_…; the operator makes one with: gradeline keys create --scope run"


T = TypeVar("T")


class MatchedRoute(NamedTuple):
    """The route that a request is for."""

    path: str
    scope: auth.KeyScope | None
    """None: it has no mark."""
    takes_json: bool


class AuthMiddleware:
    """Checks host, key, scope, origin and content type of every request, before anything of its body is read."""

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
            scope["state"]["caller"] = await self._admitted(scope, Headers(scope=scope))
        except (ServiceError, StoreError) as error:
            await failure(error_of(error, scope["method"], scope["path"]))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admitted(self, scope: Scope, headers: Headers) -> Caller:
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
            # no id has it, and not every database can even be asked for it
            raise ServiceError(Code.NOT_FOUND, f"There is nothing at {quote(scope['path'], 120)}")
        return caller

    def _route(self, scope: Scope) -> MatchedRoute | None:
        """The same search as the router's own; a path that only has other methods is nobody's."""
        for route in self._routes:
            match, inner = route.matches(scope)
            if match is Match.FULL:
                path = getattr(route, "path", "unknown")
                return MatchedRoute(path, auth.scope_of(inner.get("endpoint")), _takes_json(route))
        return None

    async def _local(self, *, look: bool) -> bool:
        """Whether this is local mode; without ``look`` the store is not asked, and so not waited for."""
        keys = self._service.keys
        if not is_loopback(self._service.settings.host):
            return False
        if keys.looked_lately or not look:
            return not keys.exist(look=False)
        # the store may be slow to answer: not in the event loop
        return not await self.in_reserved_thread(keys.exist)

    async def _caller(self, scope: Scope, headers: Headers, local: bool, found: MatchedRoute | None) -> Caller:
        client = scope.get("client")
        unknown = Caller(None, auth.KeyScope.PUBLIC, scope["state"]["request_id"], client[0] if client else None)
        if local:
            return unknown._replace(scope=auth.KeyScope.ADMIN)
        if found is not None and found.scope is auth.KeyScope.PUBLIC:
            return unknown
        given = headers.getlist("authorization")
        if given:
            kind, _, text = given[0].strip().partition(" ")
            key = None
            if len(given) == 1 and kind.lower() == "bearer":
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
            raise ServiceError(Code.FORBIDDEN, "Header X-CSRF-Token: the token that POST /api/session gave is needed")
        return unknown._replace(key_id=key.id, scope=key.scope, session=session.id)

    async def in_reserved_thread(self, work: Callable[[], T]) -> T:
        """Do what signing in and readiness need: routes that keep all threads of the API busy do not hold it up."""
        return await to_thread.run_sync(work, limiter=self._threads)

    def wrong_key(self, address: str) -> ServiceError:
        """What to answer to a wrong key; from an address that sent many, that it should stop."""
        wait = self._wrong_keys.take(address)
        if wait is not None:
            return too_many("Too many wrong keys", wait)
        return ServiceError(Code.UNAUTHORIZED, "This key is unknown, expired or revoked", headers=_CHALLENGE)


def session_token(scope: Scope, headers: Headers) -> str | None:
    """What the session's cookie holds."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(is_plain_loopback(scope, headers)))


def cookie_name(plain: bool) -> str:
    """With its prefix a browser takes the cookie from this host alone, and over TLS."""
    return "gradeline_session" if plain else "__Host-gradeline_session"


def is_plain_loopback(scope: Scope, headers: Headers) -> bool:
    """Whether a browser talks to this machine itself, without TLS: the one case where a cookie cannot be secure."""
    host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    return scope["scheme"] == "http" and is_loopback(host)


def _hosts(scope: Scope, bound: str) -> set[str]:
    """The spellings of this server's own address."""
    port = (scope.get("server") or ("", 0))[1]
    names = {"127.0.0.1", "localhost", "[::1]", f"[{bound}]" if ":" in bound else bound}
    return {f"{name}:{port}" for name in names} | (names if port == 80 else set())


def _check_host(scope: Scope, headers: Headers, bound: str) -> None:
    given = headers.getlist("host")
    if len(given) != 1 or given[0].lower() not in _hosts(scope, bound):
        text = f"The Host {quote(', '.join(given), 100)} is not this service"
        raise ServiceError(Code.FORBIDDEN, text, status=421)


def _check_query(scope: Scope) -> None:
    """A key in a URL ends up in logs and histories, so it must be taken for lost."""
    query = scope["query_string"].decode("latin-1")
    names = {name.lower() for name, _ in parse_qsl(query, keep_blank_values=True)} if query else set()
    if names & _KEY_PARAMETERS or looks_like_key(query):
        raise ServiceError(
            Code.INVALID_INPUT, "A key must not be in the URL: send it as Authorization: Bearer, and revoke this one"
        )


def _check_origin(scope: Scope, headers: Headers, local: bool) -> None:
    """A page of another site must not write in the name of whoever looks at it."""
    given = headers.getlist("origin")
    if not given:
        refused = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    elif local:
        refused = given[0].lower() not in {f"{scope['scheme']}://{host}" for host in headers.getlist("host")}
    else:
        refused = urlsplit(given[0].lower()).netloc != headers.get("host", "").lower()
    if refused or len(given) > 1:
        shown = quote(", ".join(given) or headers.get("sec-fetch-site"), 100)
        raise ServiceError(Code.FORBIDDEN, f"The Origin {shown} may not write here")


def _check_scope(found: MatchedRoute, caller: Caller) -> None:
    if found.scope is None:
        raise ServiceError(Code.FORBIDDEN, "This is open to nobody")
    if not caller.scope.includes(found.scope):
        raise ServiceError(
            Code.FORBIDDEN, f"This needs a key of scope {found.scope.value!r}, not {caller.scope.value!r}"
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
        raise ServiceError(Code.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding: send the body as it is, not compressed")

"""The audit log, secrets and sessions over REST."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from gradeline.model import clean_text
from gradeline.service.audit import LOCAL_ACTOR, AuditEntry, AuditFilter, AuditPage
from gradeline.service.auth import SESSION_S, ApiKey, KeyScope, Session, requires
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.limits import address_of
from gradeline.service.middleware import AuthMiddleware, cookie_name, is_plain_loopback, session_token
from gradeline.service.openapi import document_responses
from gradeline.service.requests import PageRequest
from gradeline.service.responses import nothing, success
from gradeline.service.secrets import SecretBody, SecretInfo, SecretList, store_secret
from gradeline.service.service import caller_of, recorder_of, service_of

audit_router = APIRouter(prefix="/api/audit", tags=["audit"])

MAX_LIMIT = 1000
MAX_SKIP = 10_000

_ENTRY = AuditEntry(
    n=17,
    at="2026-01-15T10:00:00.000Z",
    key_id="0123456789ab",
    request_id="6f1c8c0b7d4e4b0f9a3e0a6f0c8b6f11",
    action="secret.put",
    subject="AGENT_TOKEN",
    details={"host": "agent.example.com"},
    address="192.0.2.7",
)


@audit_router.get(
    "",
    responses=document_responses(
        AuditPage, errors=(400,), example=AuditPage(entries=[_ENTRY], count=1, next_cursor=None)
    ),
)
@requires(KeyScope.ADMIN)
def list_audit_entries(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    skip: Annotated[int | None, Query(ge=0, le=MAX_SKIP, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the previous page.")] = None,
    actor: Annotated[
        str | None, Query(max_length=100, description=f"The id of a key; `{LOCAL_ACTOR}`: changes without a key.")
    ] = None,
    action: Annotated[str | None, Query(max_length=100, description="An action such as `secret.put`.")] = None,
) -> Response:
    """List the audit log, newest first. Entries are never changed or deleted."""
    where = AuditFilter(_filter_value("actor", actor), _filter_value("action", action))
    page = PageRequest.of(limit, skip, cursor, max_skip=MAX_SKIP)
    return success(service_of(request).audit_list.page(where, page))


def _filter_value(name: str, value: str | None) -> str | None:
    """The value of a filter; an empty one is no filter."""
    if value is not None and clean_text(value).changed:
        raise ServiceError(Code.INVALID_INPUT, f"Parameter '{name}' contains NUL or half a surrogate pair; remove it")
    return value or None


secrets_router = APIRouter(prefix="/api/secrets", tags=["secrets"])

Name = Annotated[str, Path(description="Letters, digits, `_`, `-` and `.`, at most 100.", examples=["AGENT_TOKEN"])]

_SECRET = SecretInfo(
    "AGENT_TOKEN",
    "agent.example.com",
    ("agent.example.com",),
    "https",
    "header",
    ("admin", "run"),
    (),
    "2026-01-15T10:00:00.000Z",
    "2026-01-15T10:00:00.000Z",
)


@secrets_router.get("", responses=document_responses(SecretList, errors=(), example=SecretList([_SECRET], 1, 1)))
@requires(KeyScope.ADMIN)
def list_secrets(request: Request) -> Response:
    """List all secrets without their values: names, addresses, locations, and who may use them."""
    found = service_of(request).secrets.all()
    return success(SecretList(found, len(found), len(found)))


@secrets_router.put("/{name}", responses=document_responses(SecretInfo, errors=(400,), example=_SECRET))
@requires(KeyScope.ADMIN)
def put_secret(name: Name, body: SecretBody, request: Request) -> Response:
    """Store a secret, or replace it. A target uses it as `headers: {Authorization: {secret: NAME}}`.

    It is sent only to its hosts, by its scheme and in its location (`query: {key: {secret: NAME}}`, or in `request` for
    the body), and only for keys that may use it. Its value is masked in all responses.
    """
    service = service_of(request)
    record = recorder_of(request, "secret.put")
    return success(store_secret(service.secrets, service.keys, name, body, record))


@secrets_router.delete("/{name}", status_code=204, responses=document_responses(status=204, errors=(404,)))
@requires(KeyScope.ADMIN)
def delete_secret(name: Name, request: Request) -> Response:
    """Delete a secret. Runs that use it fail from then on."""
    if not service_of(request).secrets.delete(name, recorder_of(request, "secret.delete")):
        raise not_found("secret", name[:120])
    return nothing()


session_router = APIRouter(prefix="/api/session", tags=["session"])


class SignIn(BaseModel):
    """An API key, as shown by `gradeline keys create`."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"key": "gl_0123456789ab_<64 hexadecimal digits>_01234567"}]},
    )

    key: Annotated[str, Field(min_length=1, max_length=200)]


class SessionState(Struct, frozen=True):
    """The session of the caller."""

    local: bool
    """No key is required: the service is bound to loopback, and no key was ever created."""
    scope: KeyScope
    key_id: str | None
    csrf_token: str | None
    """For the header `X-CSRF-Token` of every write; null if no cookie is used."""
    expires_at: str | None


_SESSION = SessionState(False, KeyScope.RUN, "0123456789ab", "5f0c", "2026-01-15T22:00:00.000Z")


@session_router.post("", responses=document_responses(SessionState, errors=(400, 401), example=_SESSION))
@requires(KeyScope.PUBLIC)
async def sign_in(body: SignIn, request: Request) -> Response:
    """Sign in with a key. The session is a cookie that scripts cannot read, and ends with the key."""
    guard: AuthMiddleware = request.app.state.guard
    opened = await guard.in_reserved_thread(lambda: _open_session(request, body.key))
    if opened is None:
        raise guard.wrong_key(address_of(request.scope))
    session, key = opened
    response = success(SessionState(False, key.scope, key.id, session.csrf, session.expires_at))
    plain = is_plain_loopback(request.scope, request.headers)
    response.set_cookie(
        cookie_name(plain),
        session.token,
        max_age=SESSION_S,
        path="/",
        secure=not plain,
        httponly=True,
        samesite="strict",
    )
    return response


def _open_session(request: Request, text: str) -> tuple[Session, ApiKey] | None:
    service = service_of(request)
    key = service.keys.authenticate(text)
    if key is None:
        return None
    caller = caller_of(request)._replace(key_id=key.id, scope=key.scope)
    return service.sessions.open(key, service.audit.recorder(caller, "session.open")), key


@session_router.get("", responses=document_responses(SessionState, errors=(), example=_SESSION))
@requires(KeyScope.READ)
def get_session(request: Request) -> Response:
    """Get the session of the caller, with the token for writes."""
    service = service_of(request)
    caller = caller_of(request)
    token = session_token(request.scope, request.headers)
    opened = service.sessions.find(token) if token is not None and "authorization" not in request.headers else None
    session = opened[0] if opened is not None else None
    return success(
        SessionState(
            service.local,
            caller.scope,
            caller.key_id,
            session.csrf if session is not None else None,
            session.expires_at if session is not None else None,
        )
    )


@session_router.delete("", status_code=204, responses=document_responses(status=204, errors=()))
@requires(KeyScope.READ)
def sign_out(request: Request) -> Response:
    """End the session."""
    service = service_of(request)
    token = session_token(request.scope, request.headers)
    if token is not None:
        service.sessions.close(token, recorder_of(request, "session.close"))
    response = nothing()
    plain = is_plain_loopback(request.scope, request.headers)
    response.delete_cookie(cookie_name(plain), path="/", secure=not plain, httponly=True, samesite="strict")
    return response

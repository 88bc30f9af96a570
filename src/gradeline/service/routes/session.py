"""Signing in to the web interface."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from gradeline.service.access import Scope, requires
from gradeline.service.documented import documented
from gradeline.service.envelope import nothing, success
from gradeline.service.guard import Guard, cookie_name, is_plain_loopback, session_token
from gradeline.service.keys import ApiKey
from gradeline.service.limits import address_of
from gradeline.service.sessions import LASTS_S, Session
from gradeline.service.state import caller_of, recorder_of, service_of

router = APIRouter(prefix="/api/session", tags=["session"])


class SignIn(BaseModel):
    """A key, as `gradeline keys create` showed it."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"key": "gl_0123456789ab_<64 hexadecimal digits>_01234567"}]},
    )

    key: Annotated[str, Field(min_length=1, max_length=200)]


class SessionState(Struct, frozen=True):
    """Who is signed in."""

    local: bool
    """No key is needed: the service is bound to this machine alone, and no key was ever made."""
    scope: Scope
    key_id: str | None
    csrf_token: str | None
    """For the header `X-CSRF-Token` of every write; None where no cookie is used."""
    expires_at: str | None


_EXAMPLE = SessionState(False, Scope.RUN, "0123456789ab", "5f0c", "2026-01-15T22:00:00.000Z")


@router.post("", responses=documented(SessionState, errors=(400, 401), example=_EXAMPLE))
@requires(Scope.PUBLIC)
async def sign_in(body: SignIn, request: Request) -> Response:
    """Sign in with a key. The session is a cookie that scripts cannot read; it ends with the key."""
    guard: Guard = request.app.state.guard
    opened = await guard.in_reserved_thread(lambda: _opened(request, body.key))
    if opened is None:
        raise guard.wrong_key(address_of(request.scope))
    session, key = opened
    answer = success(SessionState(False, key.scope, key.id, session.csrf, session.expires_at))
    plain = is_plain_loopback(request.scope, request.headers)
    answer.set_cookie(
        cookie_name(plain), session.token, max_age=LASTS_S, path="/", secure=not plain, httponly=True, samesite="strict"
    )
    return answer


def _opened(request: Request, text: str) -> tuple[Session, ApiKey] | None:
    service = service_of(request)
    key = service.keys.authenticate(text)
    if key is None:
        return None
    caller = caller_of(request)._replace(key_id=key.id, scope=key.scope)
    return service.sessions.open(key, service.audit.recorder(caller, "session.open")), key


@router.get("", responses=documented(SessionState, errors=(), example=_EXAMPLE))
@requires(Scope.READ)
def get_session(request: Request) -> Response:
    """Who is signed in, and the token for writing."""
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


@router.delete("", status_code=204, responses=documented(status=204, errors=()))
@requires(Scope.READ)
def sign_out(request: Request) -> Response:
    """End the session."""
    service = service_of(request)
    token = session_token(request.scope, request.headers)
    if token is not None:
        service.sessions.close(token, recorder_of(request, "session.close"))
    answer = nothing()
    plain = is_plain_loopback(request.scope, request.headers)
    answer.delete_cookie(cookie_name(plain), path="/", secure=not plain, httponly=True, samesite="strict")
    return answer

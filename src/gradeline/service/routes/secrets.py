"""Secrets for agents and judges. Their values go in and never come out."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Path
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import Request
from starlette.responses import Response

from gradeline.model import quote
from gradeline.service.access import Scope, requires
from gradeline.service.documented import documented
from gradeline.service.envelope import nothing, success
from gradeline.service.failures import ApiError, Code, not_found
from gradeline.service.secrets import SecretInfo
from gradeline.service.state import caller_of, service_of

router = APIRouter(prefix="/api/secrets", tags=["secrets"])

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}", re.ASCII)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-f:.]+\])(?::[0-9]{{1,5}})?", re.ASCII | re.IGNORECASE)

Name = Annotated[str, Path(description="Letters, digits, `_`, `-` and `.`, at most 100.", examples=["AGENT_TOKEN"])]


class SecretBody(BaseModel):
    """A secret, and where it may be sent."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"value": "Bearer s3cr3t", "host": "agent.example.com"}]},
    )

    value: Annotated[str, Field(min_length=1, max_length=10_000, description="The whole value of the header.")]
    host: Annotated[str, Field(min_length=1, max_length=255, description="`host`, or `host:port`; no scheme.")]

    @field_validator("value")
    @classmethod
    def _fits_a_header(cls, value: str) -> str:
        if not value.strip() or any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in value):
            raise ValueError("a secret is the value of a header: no line breaks or control characters, not blank")
        return value

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, host: str) -> str:
        if _HOST.fullmatch(host) is None:
            raise ValueError("say host or host:port, such as agent.example.com")
        return host


class SecretList(Struct, frozen=True):
    """All secrets, without their values."""

    secrets: list[SecretInfo]
    count: int
    total: int


_EXAMPLE = SecretInfo("AGENT_TOKEN", "agent.example.com", "2026-01-15T10:00:00.000Z", "2026-01-15T10:00:00.000Z")


@router.get("", responses=documented(SecretList, errors=(), example=SecretList([_EXAMPLE], 1, 1)))
@requires(Scope.ADMIN)
def list_secrets(request: Request) -> Response:
    """Names and hosts of all secrets."""
    found = service_of(request).secrets.all()
    return success(SecretList(found, len(found), len(found)))


@router.put("/{name}", responses=documented(SecretInfo, errors=(400,), example=_EXAMPLE))
@requires(Scope.ADMIN)
def put_secret(name: Name, body: SecretBody, request: Request) -> Response:
    """Store a secret, or replace it. A target uses it as `headers: {Authorization: {secret: NAME}}`."""
    if _NAME.fullmatch(name) is None:
        raise ApiError(Code.INVALID_INPUT, f"{quote(name, 120)} is no name: letters, digits, _, - and ., at most 100")
    service = service_of(request)
    stored = service.secrets.put(name, body.value, body.host)
    service.audit.note(caller_of(request), "secret.put", name, {"host": stored.host})
    return success(stored)


@router.delete("/{name}", status_code=204, responses=documented(status=204, errors=(404,)))
@requires(Scope.ADMIN)
def delete_secret(name: Name, request: Request) -> Response:
    """Delete a secret. Runs that need it fail from then on."""
    service = service_of(request)
    if not service.secrets.delete(name):
        raise not_found("secret", name[:120])
    service.audit.note(caller_of(request), "secret.delete", name)
    return nothing()

"""Secrets for agents and judges. Their values go in and never come out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import Response

from gradeline.service.access import Scope, requires
from gradeline.service.documented import documented
from gradeline.service.envelope import nothing, success
from gradeline.service.failures import not_found
from gradeline.service.secret_shapes import SecretBody, SecretList, store_secret
from gradeline.service.secrets import SecretInfo
from gradeline.service.state import recorder_of, service_of

router = APIRouter(prefix="/api/secrets", tags=["secrets"])

Name = Annotated[str, Path(description="Letters, digits, `_`, `-` and `.`, at most 100.", examples=["AGENT_TOKEN"])]

_EXAMPLE = SecretInfo(
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


@router.get("", responses=documented(SecretList, errors=(), example=SecretList([_EXAMPLE], 1, 1)))
@requires(Scope.ADMIN)
def list_secrets(request: Request) -> Response:
    """All secrets without their values: names, addresses, places, and who may use them."""
    found = service_of(request).secrets.all()
    return success(SecretList(found, len(found), len(found)))


@router.put("/{name}", responses=documented(SecretInfo, errors=(400,), example=_EXAMPLE))
@requires(Scope.ADMIN)
def put_secret(name: Name, body: SecretBody, request: Request) -> Response:
    """Store a secret, or replace it whole. A target uses it as `headers: {Authorization: {secret: NAME}}`.

    It is sent only to its hosts, by its scheme and in its place (`query: {key: {secret: NAME}}`, or in `request` for
    the body), and only for keys that may use it. Its value is masked wherever it comes back.
    """
    service = service_of(request)
    record = recorder_of(request, "secret.put")
    return success(store_secret(service.secrets, service.keys, name, body, record))


@router.delete("/{name}", status_code=204, responses=documented(status=204, errors=(404,)))
@requires(Scope.ADMIN)
def delete_secret(name: Name, request: Request) -> Response:
    """Delete a secret. Runs that need it fail from then on."""
    if not service_of(request).secrets.delete(name, recorder_of(request, "secret.delete")):
        raise not_found("secret", name[:120])
    return nothing()

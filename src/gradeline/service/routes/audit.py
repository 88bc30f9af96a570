"""The audit log over REST. It is read here and written by what is done."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gradeline.model import clean_text
from gradeline.service.access import Scope, requires
from gradeline.service.audit import AuditEntry
from gradeline.service.audit_list import LOCAL, AuditFilter, AuditPage
from gradeline.service.documented import documented
from gradeline.service.envelope import success
from gradeline.service.failures import ApiError, Code
from gradeline.service.paging import Page
from gradeline.service.state import service_of

router = APIRouter(prefix="/api/audit", tags=["audit"])

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


@router.get(
    "",
    responses=documented(AuditPage, errors=(400,), example=AuditPage(entries=[_ENTRY], count=1, next_cursor=None)),
)
@requires(Scope.ADMIN)
def list_audit_entries(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_LIMIT)] = 100,
    skip: Annotated[int | None, Query(ge=0, le=MAX_SKIP, description="Not together with cursor.")] = None,
    cursor: Annotated[str | None, Query(description="The next_cursor of the page before.")] = None,
    actor: Annotated[
        str | None, Query(max_length=100, description=f"The id of a key; `{LOCAL}`: what was done without one.")
    ] = None,
    action: Annotated[str | None, Query(max_length=100, description="Such as `secret.put`.")] = None,
) -> Response:
    """Who changed what, the newest first. Entries are never changed or deleted."""
    where = AuditFilter(_named("actor", actor), _named("action", action))
    page = Page.of(limit, skip, cursor, max_skip=MAX_SKIP)
    return success(service_of(request).audit_list.page(where, page))


def _named(name: str, value: str | None) -> str | None:
    """A text to look for; an empty one looks for nothing."""
    if value is not None and clean_text(value).changed:
        raise ApiError(Code.INVALID_INPUT, f"Parameter '{name}' has a character that no text here has (NUL)")
    return value or None

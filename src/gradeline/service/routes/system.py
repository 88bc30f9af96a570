"""Whether it works, what it can do, and the pages for a browser."""

from __future__ import annotations

from fastapi import APIRouter
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gradeline import __version__
from gradeline.errors import StoreError
from gradeline.service.access import Scope, requires
from gradeline.service.documented import documented
from gradeline.service.envelope import success
from gradeline.service.errors_http import error_of
from gradeline.service.failures import ApiError
from gradeline.service.guard import Guard
from gradeline.service.metrics import CONTENT_TYPE
from gradeline.service.openapi import openapi_of
from gradeline.service.pages import Pages
from gradeline.service.state import service_of

router = APIRouter(tags=["system"])
_pages = Pages()


class Health(Struct, frozen=True):
    """That the service is there."""

    status: str
    version: str


_HEALTHY = Health("ok", __version__)
_READY = Health("ready", __version__)


@router.get("/api/health", responses=documented(Health, errors=(), example=_HEALTHY))
@requires(Scope.PUBLIC)
async def get_health() -> Response:
    """Whether the service is alive. It says nothing about its store; `/api/ready` does."""
    return success(_HEALTHY)


@router.get("/api/ready", responses=documented(Health, errors=(503,), example=_READY))
@requires(Scope.PUBLIC)
async def get_ready(request: Request) -> Response:
    """Whether the service can work: its store was written to within the last second."""
    try:
        guard: Guard = request.app.state.guard
        await guard.in_reserved_thread(service_of(request).readiness.check)
    except StoreError as error:
        told = error_of(error, request.method, request.url.path)
        # one status for whoever only asks whether it is ready, a full disk included
        raise ApiError(told.code, told.message, status=503, headers=told.headers) from None
    return success(_READY)


@router.get(
    "/api/metrics",
    responses=documented(
        {"type": "string"}, errors=(), content_type="text/plain", description="Prometheus's text format."
    ),
)
@requires(Scope.READ)
def get_metrics(request: Request) -> Response:
    """Requests, latencies, runs and queues, for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE)


@router.get(
    "/api/openapi.json",
    responses=documented({"type": "object"}, errors=(), envelope=False, description="OpenAPI 3.1."),
)
@requires(Scope.READ)
def get_openapi_document(request: Request) -> Response:
    """This description."""
    return JSONResponse(openapi_of(request.app))


@router.get("/api/docs", include_in_schema=False)
@requires(Scope.READ)
def get_docs() -> Response:
    """A page that shows the description."""
    return _pages.docs()


@router.get("/api/docs/{name}", include_in_schema=False)
@requires(Scope.READ)
def get_docs_file(name: str) -> Response:
    """A file of that page."""
    return _pages.docs(name)


@router.get("/", include_in_schema=False)
@requires(Scope.PUBLIC)
def get_index() -> Response:
    """The web interface."""
    return _pages.index()


@router.get("/assets/{name:path}", include_in_schema=False)
@requires(Scope.PUBLIC)
def get_asset(name: str) -> Response:
    """A file of the web interface."""
    return _pages.asset(name)

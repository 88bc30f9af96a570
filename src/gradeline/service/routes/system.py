"""Health, readiness, metrics, the OpenAPI document, and the web interface."""

from __future__ import annotations

from collections.abc import Mapping
from mimetypes import guess_type
from pathlib import Path

from fastapi import APIRouter
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from gradeline import __version__
from gradeline.errors import StoreError
from gradeline.service.auth import KeyScope, requires
from gradeline.service.errors import Code, ServiceError
from gradeline.service.middleware import PAGE_POLICY, AuthMiddleware
from gradeline.service.openapi import document_responses, openapi_of
from gradeline.service.responses import error_of, success
from gradeline.service.service import service_of
from gradeline.service.telemetry import CONTENT_TYPE

_PACKAGE = Path(__file__).resolve().parents[1]
_STATIC = _PACKAGE / "static"
_WEB = _PACKAGE.parent / "web"
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}
_IMMUTABLE = "public, max-age=31536000, immutable"


class Pages:
    """Static files by name. Only files that existed at the start are served, so no path leads outside."""

    def __init__(self, web: Path = _WEB, static: Path = _STATIC) -> None:
        self.has_web = (web / "index.html").is_file()
        self._index = web / "index.html" if self.has_web else static / "start.html"
        self._assets = _files(web / "assets" if self.has_web else static / "assets")
        self._static = _files(static)

    def index(self) -> Response:
        """The web interface, or instructions to build it."""
        return _page(self._index, "no-cache")

    def asset(self, name: str) -> Response:
        """A file of the web interface; its name contains a digest, so it never changes."""
        return _page(_known(self._assets, name), _IMMUTABLE if self.has_web else "no-cache")

    def docs(self, name: str = "docs.html") -> Response:
        """The page that shows the OpenAPI document."""
        return _page(_known(self._static, name), "no-cache")


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def _known(files: Mapping[str, Path], name: str) -> Path:
    if name not in files:
        raise ServiceError(Code.NOT_FOUND, "No such file")
    return files[name]


def _page(path: Path, caching: str) -> Response:
    kind = _TYPES.get(path.suffix) or guess_type(path.name)[0] or "application/octet-stream"
    headers = {"Content-Security-Policy": PAGE_POLICY, "Cache-Control": caching}
    return FileResponse(path, headers=headers, media_type=kind)


router = APIRouter(tags=["system"])
_pages = Pages()


class Health(Struct, frozen=True):
    """The state and the version of the service."""

    status: str
    version: str


_HEALTHY = Health("ok", __version__)
_READY = Health("ready", __version__)


@router.get("/api/health", responses=document_responses(Health, errors=(), example=_HEALTHY))
@requires(KeyScope.PUBLIC)
async def get_health() -> Response:
    """Check that the service is alive; `/api/ready` also checks its store."""
    return success(_HEALTHY)


@router.get("/api/ready", responses=document_responses(Health, errors=(503,), example=_READY))
@requires(KeyScope.PUBLIC)
async def get_ready(request: Request) -> Response:
    """Check that the service is ready: its store was written within the last second."""
    try:
        guard: AuthMiddleware = request.app.state.guard
        await guard.in_reserved_thread(service_of(request).readiness.check)
    except StoreError as error:
        failed = error_of(error, request.method, request.url.path)
        # one status for all reasons, also for a full disk
        raise ServiceError(failed.code, failed.message, status=503, headers=failed.headers) from None
    return success(_READY)


@router.get(
    "/api/metrics",
    responses=document_responses(
        {"type": "string"}, errors=(), content_type="text/plain", description="Prometheus's text format."
    ),
)
@requires(KeyScope.READ)
def get_metrics(request: Request) -> Response:
    """Get metrics of requests, latencies, runs and the queue for Prometheus."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE)


@router.get(
    "/api/openapi.json",
    responses=document_responses({"type": "object"}, errors=(), envelope=False, description="OpenAPI 3.1."),
)
@requires(KeyScope.READ)
def get_openapi_document(request: Request) -> Response:
    """Get this document."""
    return JSONResponse(openapi_of(request.app))


@router.get("/api/docs", include_in_schema=False)
@requires(KeyScope.READ)
def get_docs() -> Response:
    """The page that shows the OpenAPI document."""
    return _pages.docs()


@router.get("/api/docs/{name}", include_in_schema=False)
@requires(KeyScope.READ)
def get_docs_file(name: str) -> Response:
    """A file of that page."""
    return _pages.docs(name)


@router.get("/", include_in_schema=False)
@requires(KeyScope.PUBLIC)
def get_index() -> Response:
    """The web interface."""
    return _pages.index()


@router.get("/assets/{name:path}", include_in_schema=False)
@requires(KeyScope.PUBLIC)
def get_asset(name: str) -> Response:
    """A file of the web interface."""
    return _pages.asset(name)

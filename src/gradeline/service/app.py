"""The service as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from gradeline import __version__
from gradeline.service.limits import (
    BodyLimitMiddleware,
    ConcurrencyLimitMiddleware,
    EventStreams,
    RequestLimits,
    TrialPool,
)
from gradeline.service.middleware import AuthMiddleware, DrainMiddleware, HeadMiddleware, SecurityHeadersMiddleware
from gradeline.service.openapi import operations_of
from gradeline.service.responses import add_error_handlers
from gradeline.service.routes import (
    admin,
    baselines,
    compare,
    evaluations,
    graders,
    judges,
    label_samples,
    results,
    system,
    test_cases,
    uploads,
)
from gradeline.service.service import Service
from gradeline.service.telemetry import AccessLogMiddleware
from gradeline.service.uploads import MAX_PART

# routes with fixed paths come before those with an id
ROUTERS: tuple[APIRouter, ...] = (
    system.router,
    admin.session_router,
    admin.secrets_router,
    admin.audit_router,
    test_cases.router,
    graders.router,
    baselines.router,
    uploads.router,
    compare.router,
    judges.router,
    evaluations.events_router,
    label_samples.router,
    results.labels_router,
    results.router,
    evaluations.trials_router,
    evaluations.router,
)
_IMPORT = "/api/test-cases/import"
_UPLOAD = "/api/uploads/{run_id}/cases"


def create_app(service: Service) -> FastAPI:
    """The routes without middleware; `application` adds it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(service.start)
        try:
            yield
        finally:
            await run_in_threadpool(service.stop)

    app = FastAPI(
        title="gradeline",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    add_error_handlers(app)
    for router in ROUTERS:
        # one flat list, which `AuthMiddleware` searches as the router does
        app.router.routes.extend(router.routes)
    for route, _ in operations_of(app):
        route.operation_id = route.name
    return app


def application(service: Service, limits: RequestLimits | None = None) -> ASGIApp:
    """The routes with all middleware; the outermost one here sees a request first."""
    limits = limits or RequestLimits()
    settings = service.settings
    routes = create_app(service)
    routes.state.streams = EventStreams(service.keys, service.sessions, limits)
    routes.state.trials = TrialPool(limits)
    # an import of a large file takes minutes, so it has its own threads
    routes.state.import_threads = CapacityLimiter(limits.imports)
    # their own limits, with a remedy in the error
    special = {_IMPORT: settings.max_import, _UPLOAD: 2 * MAX_PART}
    app: ASGIApp = BodyLimitMiddleware(routes, limits, settings.max_body, special)
    app = AuthMiddleware(app, routes.router.routes, service, limits)
    routes.state.guard = app
    app = DrainMiddleware(ConcurrencyLimitMiddleware(HeadMiddleware(app), limits), service)
    return SecurityHeadersMiddleware(AccessLogMiddleware(app, service.metrics))

"""The service as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import CapacityLimiter
from fastapi import APIRouter, FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from gradeline import __version__
from gradeline.service.drain import RefuseWhileDraining
from gradeline.service.errors_http import answer_errors
from gradeline.service.event_streams import EventStreams
from gradeline.service.guard import Guard
from gradeline.service.head import HeadAsGet
from gradeline.service.headers import SecurityHeaders
from gradeline.service.limits import BodyLimits, Crowd, Limits, TrialPool
from gradeline.service.logs import Observed
from gradeline.service.openapi import operations_of
from gradeline.service.routes import (
    audit,
    compare,
    evaluations,
    events,
    graders,
    labels,
    results,
    secrets,
    session,
    system,
    test_cases,
    trials,
)
from gradeline.service.state import Service

# Routes of fixed paths come before those with an id in their place.
ROUTERS: tuple[APIRouter, ...] = (
    system.router,
    session.router,
    secrets.router,
    audit.router,
    test_cases.router,
    graders.router,
    compare.router,
    events.router,
    labels.router,
    results.router,
    trials.router,
    evaluations.router,
)
_IMPORT = "/api/test-cases/import"


def create_app(service: Service) -> FastAPI:
    """The routes alone; `application` puts the guard before them."""

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
    answer_errors(app)
    for router in ROUTERS:
        # one flat list: the guard searches it as the router does
        app.router.routes.extend(router.routes)
    for route, _ in operations_of(app):
        route.operation_id = route.name
    return app


def application(service: Service, limits: Limits | None = None) -> ASGIApp:
    """All of it, as a server runs it: what is outermost here sees a request first."""
    limits = limits or Limits()
    settings = service.settings
    routes = create_app(service)
    routes.state.streams = EventStreams(service.keys, service.sessions, limits)
    routes.state.trials = TrialPool(limits)
    # a large file is read and stored for minutes: not in the threads that others wait for
    routes.state.import_threads = CapacityLimiter(limits.imports)
    app: ASGIApp = BodyLimits(routes, limits, settings.max_body, {_IMPORT: settings.max_import})
    app = Guard(app, routes.router.routes, service, limits)
    routes.state.guard = app
    app = RefuseWhileDraining(Crowd(HeadAsGet(app), limits), service)
    return SecurityHeaders(Observed(app, service.metrics))

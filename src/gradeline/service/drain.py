"""What the service answers while it stops: that another server, or this one in a moment, should be asked."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gradeline.service.envelope import failure
from gradeline.service.failures import ApiError, Code
from gradeline.service.state import Service

OPEN_PATHS = frozenset({"/api/health", "/api/metrics"})
"""What is answered as ever; `/api/ready` reports that the service is draining."""
RETRY_S = 5


def draining() -> ApiError:
    """The answer to every other request."""
    message = f"The service is draining: it is about to stop; retry in {RETRY_S} s"
    return ApiError(
        Code.RATE_LIMITED, message, status=503, headers={"Retry-After": str(RETRY_S), "Connection": "close"}
    )


class RefuseWhileDraining:
    """Answers new requests with 503 once a stop has begun; those that had begun before are not touched."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._service.draining and scope["path"] not in OPEN_PATHS:
            await failure(draining())(scope, receive, send)
            return
        await self._app(scope, receive, send)

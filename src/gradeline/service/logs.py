"""Structured logs: one JSON object a line, with the request's id and without any secret."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradeline.service.envelope import failure
from gradeline.service.errors_http import error_of
from gradeline.service.keys import without_keys
from gradeline.service.metrics import Metrics
from gradeline.service.moments import moment

log = logging.getLogger("gradeline.service")
_REQUEST = "gradeline_request"
_PHASE = "gradeline_phase"
"""See `gradeline.engine.phases`."""
_LONGEST = 20_000


class JsonLines(logging.Formatter):
    """A record as one line; keys in it are made unreadable."""

    def __init__(self) -> None:
        super().__init__()
        self.masked: Callable[[str], str] = str
        """Masks secret values in a string, once a service with secrets is there. It must not write to the log."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "at": moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.masked(record.getMessage())[:_LONGEST],
            **self._fields(getattr(record, _REQUEST, {})),
            **self._fields(getattr(record, _PHASE, {})),
        }
        if record.exc_info:
            told["trace"] = self.masked(self.formatException(record.exc_info))[-_LONGEST:]
        # ASCII: what a caller wrote can neither break the line nor steer a terminal
        return without_keys(json.dumps(told, ensure_ascii=True))

    def _fields(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Numbers as they are, and what is not a number as a masked string."""
        return {
            name: value if isinstance(value, int | float | None) else self.masked(str(value))
            for name, value in fields.items()
        }


def log_to(stream: TextIO | None = None, level: int = logging.INFO) -> JsonLines:
    """Send the service's and the server's logs to a stream, standard error where none is named."""
    handler = logging.StreamHandler(stream or sys.stderr)
    lines = JsonLines()
    handler.setFormatter(lines)
    for name in ("gradeline", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
    # the server's start and stop are told by the command itself
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return lines


class Observed:
    """Counts and logs every request, and answers where an exception was handled by nobody."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def send_and_see(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._seen(scope, status, time.perf_counter() - started)
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        except ClientDisconnect:
            log.info("the caller left", extra={_REQUEST: _told(scope)})
        except Exception as error:
            log.error("unhandled", exc_info=error, extra={_REQUEST: _told(scope)})
            if status:
                return  # the server sees an answer without an end, and breaks the connection
            answer = failure(error_of(error, scope["method"], scope["path"]))
            await answer(scope, receive, send_and_see)

    def _seen(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope["state"].get("route", "unknown")
        self._metrics.count(_method(scope), route, status, seconds)
        log.info("request", extra={_REQUEST: {**_told(scope), "status": status, "ms": round(seconds * 1000, 2)}})


def _told(scope: Scope) -> dict[str, object]:
    """Of a request, what may be told: never its query, its headers or its body."""
    caller = scope["state"].get("caller")
    return {
        "request_id": scope["state"].get("request_id"),
        "method": _method(scope),
        "path": scope["path"][:500],
        "key_id": caller.key_id if caller is not None else None,
        "client": scope["client"][0] if scope.get("client") else None,
    }


def _method(scope: Scope) -> str:
    """Methods that nobody knows would be labels without end."""
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"

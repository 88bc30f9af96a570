"""Metrics for Prometheus, and structured logs: one JSON object per line, with the request id and without secrets."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Literal, NamedTuple, TextIO

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gradeline.errors import StoreError
from gradeline.rest_types import utc_timestamp
from gradeline.service.auth import without_keys
from gradeline.service.responses import error_of, failure

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The bounds of the latency histogram, in seconds."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Gauge(NamedTuple):
    """A metric that is read on demand; a mapping becomes a line for each value of the label."""

    name: str
    help: str
    read: Callable[[], float | Mapping[str, float]]
    label: str = ""
    kind: Literal["gauge", "counter"] = "gauge"


class LabelledCounter:
    """Counts events by one label, for a `Gauge` of the kind ``counter``. Thread-safe; the labels must be few."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, float] = {}

    def add(self, label: str) -> None:
        """Count one event."""
        with self._lock:
            self._counts[label] = self._counts.get(label, 0.0) + 1

    def counts(self) -> dict[str, float]:
        """The events so far, by label."""
        with self._lock:
            return dict(self._counts)


class _Latency:
    """A histogram of one route."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[next((place for place, bound in enumerate(BOUNDS) if seconds <= bound), len(BOUNDS))] += 1
        self.total += seconds


class ServiceMetrics:
    """The metrics of the service. Thread-safe; the size is bounded by the number of routes and statuses."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._latencies: dict[str, _Latency] = defaultdict(_Latency)
        self._gauges: list[Gauge] = []

    def gauge(self, gauge: Gauge) -> None:
        """Add a metric."""
        self._gauges.append(gauge)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. The route is its pattern, never the path that the caller sent."""
        with self._lock:
            self._requests[method, route, status] += 1
            self._latencies[route].add(seconds)

    def text(self) -> str:
        """All metrics in Prometheus's text format."""
        return "\n".join([*self._request_lines(), *self._latency_lines(), *self._gauge_lines(), ""])

    def _request_lines(self) -> Iterator[str]:
        name = "gradeline_http_requests_total"
        yield from _head(name, "counter", "Requests by route and status.")
        with self._lock:
            counts = sorted(self._requests.items())
        for (method, route, status), count in counts:
            yield f"{name}{_labels(method=method, route=route, status=str(status))} {count}"

    def _latency_lines(self) -> Iterator[str]:
        name = "gradeline_http_request_duration_seconds"
        yield from _head(name, "histogram", "Time until the response started.")
        with self._lock:
            found = [(route, list(seen.buckets), seen.total) for route, seen in sorted(self._latencies.items())]
        for route, buckets, total in found:
            reached = 0
            for bound, count in zip((*map(str, BOUNDS), "+Inf"), buckets, strict=True):
                reached += count
                yield f"{name}_bucket{_labels(route=route, le=bound)} {reached}"
            yield f"{name}_sum{_labels(route=route)} {total:.6f}"
            yield f"{name}_count{_labels(route=route)} {reached}"

    def _gauge_lines(self) -> Iterator[str]:
        for name, help_, read, label, kind in self._gauges:
            try:
                value = read()
            except StoreError:
                continue  # unknown values are omitted
            yield from _head(name, kind, help_)
            if isinstance(value, Mapping):
                yield from (f"{name}{_labels(**{label: key})} {number:g}" for key, number in sorted(value.items()))
            else:
                yield f"{name} {value:g}"


def _head(name: str, kind: str, help_: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"


def _labels(**labels: str) -> str:
    fields = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{fields}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


log = logging.getLogger("gradeline.service")
_REQUEST = "gradeline_request"
_PHASE = "gradeline_phase"
"""See `gradeline.engine.lifecycle`."""
_LONGEST = 20_000


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON, with API keys redacted."""

    def __init__(self) -> None:
        super().__init__()
        self.mask: Callable[[str], str] = str
        """Masks secret values in a string, once a service with secrets exists. It must not log anything."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "at": utc_timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.mask(record.getMessage())[:_LONGEST],
            **self._fields(getattr(record, _REQUEST, {})),
            **self._fields(getattr(record, _PHASE, {})),
        }
        if record.exc_info:
            fields["trace"] = self.mask(self.formatException(record.exc_info))[-_LONGEST:]
        # ASCII, so that input of a caller can neither break the line nor control a terminal
        return without_keys(json.dumps(fields, ensure_ascii=True))

    def _fields(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Numbers unchanged, all other values as masked strings."""
        return {
            name: value if isinstance(value, int | float | None) else self.mask(str(value))
            for name, value in fields.items()
        }


def log_to(stream: TextIO | None = None, level: int = logging.INFO) -> JsonFormatter:
    """Send the logs of the service and of uvicorn to a stream, by default standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    lines = JsonFormatter()
    handler.setFormatter(lines)
    for name in ("gradeline", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
    # the command itself reports start and stop
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    return lines


class AccessLogMiddleware:
    """Counts and logs every request, and handles exceptions that nothing else has handled."""

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics) -> None:
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
                self._record(scope, status, time.perf_counter() - started)
            await send(message)

        try:
            await self._app(scope, receive, send_and_see)
        except ClientDisconnect:
            log.info("the caller disconnected", extra={_REQUEST: _request_fields(scope)})
        except Exception as error:
            log.error("unhandled exception", exc_info=error, extra={_REQUEST: _request_fields(scope)})
            if status:
                return  # the server sees an incomplete response and closes the connection
            answer = failure(error_of(error, scope["method"], scope["path"]))
            await answer(scope, receive, send_and_see)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope["state"].get("route", "unknown")
        self._metrics.count(_method(scope), route, status, seconds)
        log.info(
            "request", extra={_REQUEST: {**_request_fields(scope), "status": status, "ms": round(seconds * 1000, 2)}}
        )


def _request_fields(scope: Scope) -> dict[str, object]:
    """The fields of a request that may be logged: never its query, headers or body."""
    caller = scope["state"].get("caller")
    return {
        "request_id": scope["state"].get("request_id"),
        "method": _method(scope),
        "path": scope["path"][:500],
        "key_id": caller.key_id if caller is not None else None,
        "client": scope["client"][0] if scope.get("client") else None,
    }


def _method(scope: Scope) -> str:
    """The method; unknown ones are one label, so that the number of labels is bounded."""
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"

"""Numbers for Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Literal, NamedTuple

from gradeline.errors import StoreError

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Of the latency histogram, in seconds."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Gauge(NamedTuple):
    """A number that is read when it is asked for; several with one label become one line each."""

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


class Metrics:
    """What the service counts. Thread-safe; its size is bounded by the number of routes and statuses."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._requests: dict[tuple[str, str, int], int] = defaultdict(int)
        self._latencies: dict[str, _Latency] = defaultdict(_Latency)
        self._gauges: list[Gauge] = []

    def gauge(self, gauge: Gauge) -> None:
        """Tell a number from now on."""
        self._gauges.append(gauge)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """One answered request. The route is its pattern, never the path that a caller wrote."""
        with self._lock:
            self._requests[method, route, status] += 1
            self._latencies[route].add(seconds)

    def text(self) -> str:
        """All of it, in Prometheus's text format."""
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
        yield from _head(name, "histogram", "Time until an answer was sent.")
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
                continue  # what cannot be known now is left out
            yield from _head(name, kind, help_)
            if isinstance(value, Mapping):
                yield from (f"{name}{_labels(**{label: key})} {number:g}" for key, number in sorted(value.items()))
            else:
                yield f"{name} {value:g}"


def _head(name: str, kind: str, help_: str) -> Iterator[str]:
    yield f"# HELP {name} {help_}"
    yield f"# TYPE {name} {kind}"


def _labels(**labels: str) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{told}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

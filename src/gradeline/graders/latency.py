"""Did the agent answer in time?"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Annotated

from gradeline.errors import MissingDataError, Problem, UngradableError
from gradeline.graders.base import DeclaredGrader, verdict
from gradeline.model import Config, GradeContext, GradeResult, described

_UNKNOWN_LATENCY = (
    "the response has no latency_ms; a target that calls the agent measures it; in a replay file, give the response a "
    "latency_ms"
)


class LatencyConfig(Config, frozen=True):
    """Options of `LatencyGrader`."""

    max_ms: Annotated[float, described("The longest time an answer may take, in milliseconds.", gt=0)] = 10_000.0

    def faults(self) -> Iterator[Problem]:
        if not isfinite(self.max_ms):
            yield Problem("max_ms", f"must be a finite number of milliseconds, got {self.max_ms!r}")


class LatencyGrader(DeclaredGrader[LatencyConfig]):
    """Checks that the agent's call took no longer than a given time.

    A call whose time is unknown is an error, never a fast one.
    """

    kind = "latency"
    name = "Latency"
    scoring_guide = "1.0 when the call took at most `max_ms`, else 0.0; an unknown time is an error."
    needs = frozenset({"response"})
    reads_submission = False

    def result(self, ctx: GradeContext) -> GradeResult:
        latency = None if ctx.response is None else ctx.response.latency_ms
        if latency is None:
            raise MissingDataError("the context has no response" if ctx.response is None else _UNKNOWN_LATENCY)
        if not isfinite(latency) or latency < 0:
            raise UngradableError(f"response.latency_ms must be a number of milliseconds, got {latency!r}")
        limit = self.options.max_ms
        return verdict(latency <= limit, f"{_ms(latency)}, at most {_ms(limit)}", {"latency_ms": latency})


def _ms(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".") + " ms"

"""Graders of resource limits: latency and cost."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Annotated

from gradeline.errors import MissingDataError, Problem, UngradableError
from gradeline.graders.base import DeclaredGrader, binary_result
from gradeline.model import Config, GradeContext, GradeResult, described

_UNKNOWN_LATENCY = (
    "the response has no latency_ms; targets that call an agent measure it; in a replay file, add latency_ms to the "
    "response"
)


class LatencyConfig(Config, frozen=True):
    """Options of `LatencyGrader`."""

    max_ms: Annotated[float, described("Maximum latency in milliseconds (default 10,000).", gt=0)] = 10_000.0

    def faults(self) -> Iterator[Problem]:
        if not isfinite(self.max_ms):
            yield Problem("max_ms", f"must be a finite number of milliseconds, got {self.max_ms!r}")


class LatencyGrader(DeclaredGrader[LatencyConfig]):
    """Checks the latency of the agent's call. An unknown latency is an error, not a pass."""

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
        return binary_result(latency <= limit, f"{_ms(latency)}, at most {_ms(limit)}", {"latency_ms": latency})


def _ms(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".") + " ms"


_UNKNOWN_COST = (
    "the response reports no cost; http, command: map usage with a cost under the target's response:; python: return "
    "usage with a cost; a model without a known price: set it with prices: in the suite or --assume-price"
)


class CostConfig(Config, frozen=True, kw_only=True):
    """Options of `CostGrader`."""

    max_cost: Annotated[float, described("Maximum cost of a response, as reported or computed from prices.", ge=0)]

    def faults(self) -> Iterator[Problem]:
        if not isfinite(self.max_cost):
            yield Problem("max_cost", f"must be a finite number, got {self.max_cost!r}")


class CostGrader(DeclaredGrader[CostConfig]):
    """Checks the cost of the agent's answer. An unknown cost is an error, not a pass."""

    kind = "cost"
    name = "Cost"
    scoring_guide = "1.0 when the response cost at most `max_cost`, else 0.0; an unknown cost is an error."
    needs = frozenset({"response"})
    reads_submission = False

    def result(self, ctx: GradeContext) -> GradeResult:
        usage = None if ctx.response is None else ctx.response.usage
        cost = None if usage is None else usage.cost
        if cost is None:
            raise MissingDataError("the context has no response" if ctx.response is None else _UNKNOWN_COST)
        if not isfinite(cost) or cost < 0:
            raise UngradableError(f"response.usage.cost must be an amount of money, got {cost!r}")
        limit = self.options.max_cost
        return binary_result(cost <= limit, f"{cost:.6g}, at most {limit:.6g}", {"cost": cost})

"""Did the agent's answer cost no more than it may?"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Annotated

from gradeline.errors import MissingDataError, Problem, UngradableError
from gradeline.graders.base import DeclaredGrader, verdict
from gradeline.model import Config, GradeContext, GradeResult, described

_UNKNOWN_COST = (
    "the response reports no cost; http, command: map usage with a cost under the target's response:; python: return "
    "usage with a cost; a model without a known price: give it with prices: in the suite or --assume-price"
)


class CostConfig(Config, frozen=True, kw_only=True):
    """Options of `CostGrader`."""

    max_cost: Annotated[
        float, described("The most that one answer may cost, as the agent or its price list tells.", ge=0)
    ]

    def faults(self) -> Iterator[Problem]:
        if not isfinite(self.max_cost):
            yield Problem("max_cost", f"must be a finite number, got {self.max_cost!r}")


class CostGrader(DeclaredGrader[CostConfig]):
    """Checks that the agent's answer cost no more than a given sum.

    An answer whose cost is unknown is an error, never a cheap one.
    """

    kind = "cost"
    name = "Cost"
    scoring_guide = "1.0 when the answer cost at most `max_cost`, else 0.0; an unknown cost is an error."
    needs = frozenset({"response"})
    reads_submission = False

    def result(self, ctx: GradeContext) -> GradeResult:
        usage = None if ctx.response is None else ctx.response.usage
        cost = None if usage is None else usage.cost
        if cost is None:
            raise MissingDataError("the context has no response" if ctx.response is None else _UNKNOWN_COST)
        if not isfinite(cost) or cost < 0:
            raise UngradableError(f"response.usage.cost must be a sum of money, got {cost!r}")
        limit = self.options.max_cost
        return verdict(cost <= limit, f"{cost:.6g}, at most {limit:.6g}", {"cost": cost})

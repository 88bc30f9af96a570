"""What is done of a run: case by case, or in numbers that can be added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from gradeline.engine.grade import Graded
from gradeline.engine.plan import Planned
from gradeline.errors import Outcome
from gradeline.model import Response


class CaseDone(Struct, frozen=True):
    """A (case, repeat) that is done with."""

    planned: Planned
    response: Response | None
    """None where all was there already."""
    graded: Mapping[str, Graded]


class Tally(NamedTuple):
    """What came of some cases."""

    done: int = 0
    reused: int = 0
    """Of those, the ones that were there already."""
    failed: int = 0
    errors: int = 0
    cost: float | None = None
    """None: nobody said what anything cost."""

    @classmethod
    def of(cls, case: CaseDone) -> Tally:
        if case.response is None:
            return cls(done=1, reused=1)
        costs = [
            usage.cost
            for usage in (case.response.usage, *(one.grade.usage for one in case.graded.values()))
            if usage is not None and usage.cost is not None
        ]
        outcomes = {one.grade.outcome for one in case.graded.values()}
        error = case.response.error is not None or Outcome.ERROR in outcomes
        failed = not error and Outcome.FAIL in outcomes
        return cls(1, 0, int(failed), int(error), sum(costs) if costs else None)

    def plus(self, other: Tally) -> Tally:
        """Of both."""
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Tally(
            self.done + other.done,
            self.reused + other.reused,
            self.failed + other.failed,
            self.errors + other.errors,
            sum(costs) if costs else None,
        )


class LookTaken(NamedTuple):
    """A look at a run that may end early, in words."""

    text: str


Advance: TypeAlias = "Callable[[CaseDone | Tally | LookTaken], None]"
"""Who is told how far a run is: of each case here, of several at once where they are done elsewhere."""

"""How long the agent took, over any number of calls in a bounded space."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from math import ceil, log

from gradeline.stats import percentile

EXACT = 50_000
_STEP = log(1.005)
"""Beyond `EXACT` calls a percentile is right to half a per cent."""


class Latencies:
    """Mean and percentiles of milliseconds: exact for some calls, to half a per cent for any number."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._values = array("d")
        self._steps: Counter[int] = Counter()

    def extend(self, times: Sequence[float]) -> None:
        """Add so many milliseconds."""
        self._count += len(times)
        self._sum = sum(times, self._sum)
        if self._steps:
            self._steps.update(map(_step, times))
            return
        self._values.extend(times)
        if len(self._values) > EXACT:
            self._steps.update(map(_step, self._values))
            self._values = array("d")

    def summary(self) -> dict[str, float] | None:
        """None where there was no call."""
        if not self._count:
            return None
        ordered = sorted(self._values)
        shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
        return {"mean": self._sum / self._count, **{name: self._at(ordered, at) for name, at in shares.items()}}

    def _at(self, ordered: list[float], share: float) -> float:
        if ordered:
            return percentile(ordered, share)
        wanted, seen = ceil(share * (self._count - 1)) + 1, 0
        for step in sorted(self._steps):
            seen += self._steps[step]
            if seen >= wanted:
                break
        return float(1.005**step) if step > _LEAST else 0.0


_LEAST = -10_000


def _step(ms: float) -> int:
    """The power of 1.005 that is nearest; what took no time has one of its own."""
    return round(log(ms) / _STEP) if ms > 1e-9 else _LEAST

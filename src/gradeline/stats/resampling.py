"""The bootstrap, for statistics that have no formula."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from gradeline.stats.intervals import Interval, checked


def bootstrap(
    values: Iterable[float],
    statistic: Callable[[Sequence[float]], float],
    seed: int = 0,
    samples: int = 2_000,
    confidence: float = 0.95,
) -> Interval:
    """The percentile interval of a statistic, the same for the same seed. Use it from some 50 values on."""
    data = checked(values)
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence!r}")
    random = Random(seed)
    drawn = sorted(float(statistic(random.choices(data, k=len(data)))) for _ in range(samples))
    tail = (1.0 - confidence) / 2.0
    return Interval(
        percentile(drawn, tail), percentile(drawn, 1.0 - tail), estimate=float(statistic(data)), n=len(data)
    )


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that so large a share of the ordered values lies below, linear between two of them."""
    position = share * (len(ordered) - 1)
    index = int(position)
    following = min(index + 1, len(ordered) - 1)
    return ordered[index] + (position - index) * (ordered[following] - ordered[index])

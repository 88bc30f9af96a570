from __future__ import annotations

import random

import pytest

from gradeline.engine.aggregate import EXACT, Latencies
from gradeline.stats import percentile


def latency_of(values: list[float]) -> dict[str, float] | None:
    latencies = Latencies()
    for value in values:
        latencies.extend([value])
    return latencies.summary()


def test_no_calls_have_no_latency() -> None:
    assert latency_of([]) is None


def test_percentiles_of_few_calls_are_exact() -> None:
    values = [random.Random(1).uniform(1, 1000) for _ in range(999)]
    ordered = sorted(values)
    assert latency_of(values) == {
        "mean": pytest.approx(sum(values) / 999),
        **{name: percentile(ordered, at) for name, at in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))},
    }


def test_percentiles_of_many_calls_are_within_half_a_per_cent() -> None:
    draw = random.Random(2)
    values = [draw.lognormvariate(4, 1) for _ in range(3 * EXACT)]
    found = latency_of(values)
    assert found is not None
    ordered = sorted(values)
    assert found["mean"] == pytest.approx(sum(values) / len(values))
    for name, at in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        assert found[name] == pytest.approx(percentile(ordered, at), rel=0.005)


def test_calls_of_zero_duration_are_counted() -> None:
    found = latency_of([0.0] * (EXACT + 10))
    assert found == {"mean": 0.0, "p50": 0.0, "p95": 0.0, "p99": 0.0}

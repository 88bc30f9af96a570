from __future__ import annotations

import asyncio

import pytest

from gradeline.adapters import RateLimiter
from gradeline.errors import ConfigError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_starts_at_once_and_the_next_call_after_the_period() -> None:
    clock = Clock()
    limit = RateLimiter(2, 10.0, clock)
    assert [limit.reserve() for _ in range(5)] == [0.0, 0.0, 10.0, 10.0, 20.0]
    clock.now += 15
    assert limit.reserve() == 5.0, "the second of the two that start ten seconds after the first two"
    clock.now += 100
    assert limit.reserve() == 0.0


def test_a_wait_of_zero_does_not_sleep() -> None:
    asyncio.run(asyncio.wait_for(RateLimiter(1, 3600).wait(), 5))


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rate limit: \n  calls: 0 would allow no call.*\n  per_s: nan must"):
        RateLimiter(0, float("nan"))

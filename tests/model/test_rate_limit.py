from __future__ import annotations

import asyncio

import pytest

from gradeline.adapters import RateLimiter
from gradeline.errors import ConfigError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_calls_start_at_once_and_the_next_when_the_time_is_over() -> None:
    clock = Clock()
    limit = RateLimiter(2, 10.0, clock)
    assert [limit.reserve() for _ in range(5)] == [0.0, 0.0, 10.0, 10.0, 20.0]
    clock.now += 15
    assert limit.reserve() == 5.0, "the second of the two that start ten seconds after the first two"
    clock.now += 100
    assert limit.reserve() == 0.0


def test_waiting_for_no_time_is_not_waiting() -> None:
    asyncio.run(asyncio.wait_for(RateLimiter(1, 3600).wait(), 5))


def test_a_limit_must_let_something_through() -> None:
    with pytest.raises(ConfigError, match=r"rate limit: \n  calls: 0 would allow no call.*\n  per_s: nan must"):
        RateLimiter(0, float("nan"))

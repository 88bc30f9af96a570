from __future__ import annotations

import asyncio

import pytest

from gradeline.adapters import RateLimit
from gradeline.errors import ConfigError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_calls_start_at_once_and_the_next_when_the_time_is_over() -> None:
    clock = Clock()
    limit = RateLimit(2, 10.0, clock)
    assert [limit.reserve() for _ in range(5)] == [0.0, 0.0, 10.0, 10.0, 20.0]
    clock.now += 15
    assert limit.reserve() == 5.0, "the second of the two that start ten seconds after the first two"
    clock.now += 100
    assert limit.reserve() == 0.0


def test_waiting_for_no_time_is_not_waiting() -> None:
    asyncio.run(asyncio.wait_for(RateLimit(1, 3600).wait(), 5))


def test_a_limit_must_let_something_through() -> None:
    with pytest.raises(
        ConfigError, match=r"rate limit: \n  calls: 0 calls would never let one start.*\n  per_s: nan is"
    ):
        RateLimit(0, float("nan"))

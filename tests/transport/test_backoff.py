from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random

import pytest

from gradeline.transport import Backoff
from gradeline.transport.client import parse_retry_after

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        (" 120 ", 120),
        ("3600", 3600),
        ("Sun, 01 Mar 2026 12:00:30 GMT", 30),
        ("Sun, 01 Mar 2026 12:00:30 -0000", 30),
        ("Sun, 01 Mar 2026 11:59:00 GMT", None),
        ("Sun, 01 Mar 2099 11:59:00 GMT", None),
        ("3601", None),
        ("1000000000", None),
        ("9" * 5000, None),
        ("-5", None),
        ("1.5", None),
        ("nan", None),
        ("٣", None),
        ("soon", None),
        ("", None),
    ],
)
def test_only_a_valid_retry_after_is_used(value: str, seconds: float | None) -> None:
    assert parse_retry_after(value, NOW) == seconds


def test_the_delay_grows_to_its_cap_with_full_jitter() -> None:
    backoff = Backoff(base_s=1, cap_s=5, random=Random(1))
    for attempt, most in ((1, 1), (2, 2), (3, 4), (4, 5), (5000, 5)):
        pauses = [backoff.pause(attempt) for _ in range(300)]
        assert 0 <= min(pauses) < most * 0.1
        assert most * 0.9 < max(pauses) <= most


def test_the_same_seed_gives_the_same_delays() -> None:
    first, second = (Backoff(random=Random(3)) for _ in range(2))
    assert [first.pause(n) for n in range(1, 6)] == [second.pause(n) for n in range(1, 6)]


def test_a_date_is_relative_to_the_clock() -> None:
    http_date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert 90 < Backoff().pause(1, http_date) <= 100

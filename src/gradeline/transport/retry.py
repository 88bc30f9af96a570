"""How long to wait before an attempt is repeated."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random

_SECONDS = re.compile(r"[0-9]{1,9}")
_LONGEST = 3600.0
"""A server that asks for more than an hour is taken to have said nothing."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with full jitter, unless the server named a sensible pause itself."""

    base_s: float = 0.5
    cap_s: float = 8.0
    random: Random = field(default_factory=Random, repr=False)

    def pause(self, attempt: int, retry_after: str | None = None) -> float:
        """Seconds to wait after the ``attempt``-th failure (the first is 1)."""
        asked = parse_retry_after(retry_after, datetime.now(UTC)) if retry_after is not None else None
        if asked is not None:
            return asked
        return self.random.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** min(attempt - 1, 30)))


def parse_retry_after(value: str, now: datetime) -> float | None:
    """The pause of a ``Retry-After``, in seconds or as a date; None where it is past, absurd or garbage."""
    value = value.strip()
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    else:
        try:
            moment = parsedate_to_datetime(value)
            seconds = ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now).total_seconds()
        except (ValueError, OverflowError):
            return None
    return seconds if 0 <= seconds <= _LONGEST else None

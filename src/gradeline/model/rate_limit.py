"""The rate limiter of model calls and agent calls."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Lock
from time import monotonic

from gradeline.errors import ConfigError, Problem


class RateLimiter:
    """Starts at most ``calls`` calls in any ``per_s`` seconds, over all threads and event loops that share it."""

    def __init__(self, calls: int, per_s: float = 1.0, clock: Callable[[], float] = monotonic) -> None:
        problems = []
        if calls < 1:
            problems.append(Problem("calls", f"{calls!r} would allow no call; use at least 1"))
        if not 0 < per_s < float("inf"):
            problems.append(Problem("per_s", f"{per_s!r} must be a positive number of seconds"))
        if problems:
            raise ConfigError(problems, "rate limit")
        self._per_s = per_s
        self._clock = clock
        self._starts: deque[float] = deque(maxlen=calls)
        self._lock = Lock()

    def reserve(self) -> float:
        """Reserve the start of the next call; returns the seconds until then."""
        with self._lock:
            now = self._clock()
            full = len(self._starts) == self._starts.maxlen
            start = max(now, self._starts[0] + self._per_s) if full else now
            self._starts.append(start)
            return start - now

    async def wait(self) -> None:
        """Wait until a call may start."""
        pause = self.reserve()
        if pause > 0:
            await asyncio.sleep(pause)

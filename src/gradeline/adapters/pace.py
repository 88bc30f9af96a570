"""Rate limits: so many calls in so much time, over all threads and event loops."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from threading import Lock
from time import monotonic

from gradeline.errors import ConfigError, Problem


class RateLimit:
    """At most ``calls`` are started in any ``per_s`` seconds; give several adapters the same one to share it."""

    def __init__(self, calls: int, per_s: float = 1.0, clock: Callable[[], float] = monotonic) -> None:
        problems = []
        if calls < 1:
            problems.append(Problem("calls", f"{calls!r} calls would never let one start; give at least 1"))
        if not 0 < per_s < float("inf"):
            problems.append(Problem("per_s", f"{per_s!r} is no positive number of seconds"))
        if problems:
            raise ConfigError(problems, "rate limit")
        self._per_s = per_s
        self._clock = clock
        self._starts: deque[float] = deque(maxlen=calls)
        self._lock = Lock()

    def reserve(self) -> float:
        """Takes the next free moment to start a call; the seconds until then."""
        with self._lock:
            now = self._clock()
            full = len(self._starts) == self._starts.maxlen
            start = max(now, self._starts[0] + self._per_s) if full else now
            self._starts.append(start)
            return start - now

    async def wait(self) -> None:
        """Returns when a call may start."""
        pause = self.reserve()
        if pause > 0:
            await asyncio.sleep(pause)

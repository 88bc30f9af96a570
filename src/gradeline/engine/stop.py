"""Ending a run early: what is in flight is finished and stored, nothing new is begun."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Stop:
    """Whether a run is to end, and why. The first reason is the one that counts."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._event = asyncio.Event()

    def set(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        self._event.set()

    async def sleep(self, seconds: float) -> None:
        """Wait so long, or until the run is to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

"""Ending a run early: what is in flight is finished and stored, nothing new is begun."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Stop:
    """Whether a run is to end, and why. The first reason is the one that counts."""

    def __init__(self, outer: Stop | None = None) -> None:
        """``outer`` ends this run and others; what ends this run ends those too, except where it is decided."""
        self.reason: str | None = None
        self.failed = False
        """The reason is a fault that a person must fix, so that the run has failed."""
        self.decided = False
        """The reason is that the run has its answer, so that it is complete."""
        self._event = asyncio.Event()
        self._outer = outer
        self._inner: list[Stop] = []
        if outer is not None:
            outer._inner.append(self)
            if outer.reason is not None:
                self._receive(outer.reason, failed=outer.failed)

    def set(self, reason: str, *, failed: bool = False) -> None:
        if self.reason is not None:
            return
        if self._outer is not None:
            self._outer.set(reason, failed=failed)
        self._receive(reason, failed=failed)

    def decide(self, reason: str) -> None:
        """End this run only: its answer is known."""
        self.decided = self.reason is None
        self._receive(reason, failed=False)

    def _receive(self, reason: str, *, failed: bool) -> None:
        if self.reason is None:
            self.reason = reason
            self.failed = failed
        self._event.set()
        for one in self._inner:
            one._receive(reason, failed=failed)

    async def sleep(self, seconds: float) -> None:
        """Wait so long, or until the run is to end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()

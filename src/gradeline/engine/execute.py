"""Asking the agent: so many calls at once, so many in a time, and each answer stored before anything else."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from gradeline.engine.plan import Planned
from gradeline.model import Response, Target
from gradeline.model.protocols import StoreWriter


class Rate(NamedTuple):
    """At most so many calls in so many seconds."""

    calls: int
    per: float


class Executor:
    """Calls a target. A slot is held until the answer is committed, so no more is in flight than ``concurrency``."""

    def __init__(
        self, target: Target, writer: StoreWriter, concurrency: int, rate: Rate | None, stopped: asyncio.Event
    ) -> None:
        self._stopped = stopped
        self._target = target
        self._writer = writer
        self._slots = asyncio.Semaphore(concurrency)
        self._rate = rate
        self._starts: deque[float] = deque(maxlen=rate.calls if rate else 1)
        self._turn = asyncio.Lock()

    async def execute(self, planned: Planned) -> Response | None:
        """The agent's response, stored; None where the run was stopped before it was asked."""
        async with self._slots:
            if self._rate is not None:
                await self._wait_for_turn(self._rate)
            if self._stopped.is_set():
                return None
            response = await self._target.respond(planned.sample)
            await self._writer.put_response(planned.key, response, planned.sample, planned.position)
        return response

    async def _wait_for_turn(self, rate: Rate) -> None:
        clock = asyncio.get_running_loop().time
        async with self._turn:
            if len(self._starts) == rate.calls:
                pause = self._starts[0] + rate.per - clock()
                if pause > 0:
                    await asyncio.sleep(pause)
            self._starts.append(clock())

"""A rate that the workers of a cluster keep together."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Any, Protocol

from gradeline.engine.execute import Rate, Stop

_AT_ONCE = 1000


class RateLimitActor:
    """Gives leave to call an endpoint, at most so often in a time; one for all workers that call it."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._starts: deque[float] = deque(maxlen=rate.calls)

    def lease(self, wanted: int) -> list[float]:
        """In how many seconds each of the next calls may begin."""
        now = monotonic()
        delays = []
        for _ in range(min(wanted, _AT_ONCE)):
            start = now
            if len(self._starts) == self._rate.calls:
                start = max(now, self._starts[0] + self._rate.per)
            self._starts.append(start)
            delays.append(start - now)
        return delays


class CallLeases(Protocol):
    """Who is asked for leave."""

    async def lease(self, wanted: int) -> list[float]: ...


class ActorCallLeases:
    """Asks the `RateLimitActor` of this name, which is somewhere in the cluster; where there is none, it is made.

    A keeper lives as long as whoever made it, who may end before the others that ask it.
    """

    def __init__(self, name: str, rate: Rate) -> None:
        self._name = name
        self._rate = rate
        self._keeper: Any = None

    def __reduce__(self) -> tuple[type[ActorCallLeases], tuple[str, Rate]]:
        return ActorCallLeases, (self._name, self._rate)

    def find(self) -> Any:
        """The keeper; it lives at least as long as this, where it was made here."""
        import ray  # joined by now

        if self._keeper is None:
            keeper = ray.remote(RateLimitActor).options(name=self._name, get_if_exists=True, num_cpus=0)
            self._keeper = keeper.remote(self._rate)
        return self._keeper

    async def lease(self, wanted: int) -> list[float]:
        from ray.exceptions import RayActorError  # as above

        try:
            delays: list[float] = await self.find().lease.remote(wanted)
        except RayActorError:
            self._keeper = None
            delays = await self.find().lease.remote(wanted)
        return delays


class LeasedRateLimiter:
    """The turns of one worker. It asks for as many as wait, so that nothing it holds grows old."""

    def __init__(self, lessor: CallLeases) -> None:
        self._lessor = lessor
        self._waiting: deque[asyncio.Future[float]] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def wait(self, stop: Stop) -> None:
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())
        delay = await turn
        if delay > 0:
            await stop.sleep(delay)

    async def _ask(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, deque()
            try:
                delays = await self._lessor.lease(len(waiting))
            except Exception as error:
                for turn in waiting:
                    if not turn.done():
                        turn.set_exception(error)
                continue
            for turn in list(waiting)[len(delays) :]:
                self._waiting.append(turn)
            for turn, delay in zip(waiting, delays, strict=False):
                if not turn.done():
                    turn.set_result(delay)

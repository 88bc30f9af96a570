"""Chunks of cases for workers, and the queue that hands them out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import ceil
from typing import NamedTuple

from gradeline.engine.pipeline import RunTask
from gradeline.engine.plan import Planned, Work, planned_for
from gradeline.errors import Problem
from gradeline.model import Storage
from gradeline.stats.sequential import LOOKS

FEWEST, MOST = 100, 500
"""Cases in a chunk: enough that sending it costs nothing, few enough that repeating it costs little."""
WANTED_SECONDS = 10.0
"""The intended duration of a chunk; 5 to 30 seconds are as good."""
LANES = 2
"""Chunks that a worker has at the same time: the calls of the next begin while the last of one end."""


class Chunk(NamedTuple):
    """Cases of a run, in the order of its dataset."""

    number: int
    planned: tuple[Planned, ...]
    tries: int = 0
    """Earlier attempts that did not return."""

    @property
    def cases(self) -> tuple[str, str]:
        """The first and the last case."""
        return self.planned[0].key.case, self.planned[-1].key.case


class ChunkResult(NamedTuple):
    """The result of a chunk."""

    work: dict[Work, int]
    seconds: float
    stopped: str | None = None
    """Why it ended early."""
    refused: str | None = None
    """Why a provider refused every call of this worker so far."""
    faults: tuple[Problem, ...] = ()
    """Problems that a person must fix before any case can be called or graded."""
    lost_store: str | None = None
    """Why not all of it could be stored; the rest must be repeated."""
    deaths: tuple[str, ...] = ()
    """Reasons why processes of user code died in the worker since its last chunk, one for each."""
    refusals: int = 0
    """Number of addresses that the egress policy refused there since then."""


def replanned(chunk: Chunk, task: RunTask, storage: Storage) -> Iterator[Planned]:
    """What is missing of a chunk that may have been started before."""
    cases = list(dict.fromkeys(one.key.case for one in chunk.planned))
    stored = {found.key[1:]: found for found in storage.keys_of(task.run.id, cases)}
    for one in chunk.planned:
        yield planned_for(
            one.key,
            one.sample,
            one.position,
            task.fingerprints,
            stored.get(one.key[1:]),
            retry_failed=task.retry_failed,
            model_graders=task.model_graders,
            turn_graders=task.turn_fingerprints,
        )


class ChunkQueue:
    """Hands out the chunks of a plan, returned ones first, until each is done.

    Near the end of the plan chunks become smaller, so that all workers end at the same time, but not so small that
    fewer calls are in flight than the concurrency allows.
    """

    def __init__(
        self,
        planned: Iterator[Planned],
        take_note: Callable[[Planned], str | None],
        workers: int,
        concurrency: int,
        most: int = MOST,
    ) -> None:
        """``take_note`` is called with every planned case; a reason that it returns ends the plan.

        ``concurrency`` is that of all workers together; a chunk has at most ``most`` cases.
        """
        self._planned = planned
        self._take_note = take_note
        self._workers = workers
        self._concurrency = concurrency
        self._ahead: deque[Planned] = deque()
        self._returned: deque[Chunk] = deque()
        self._out: set[int] = set()
        self._numbers = count()
        self._changed = asyncio.Condition()
        self._exhausted = False
        self._in_sight = 0
        """Number of cases that were left when the plan was read to its end."""
        self._ended = False
        self._most = most
        self._size = min(FEWEST, most)
        self.over = asyncio.Event()
        """Set when nothing is left to do."""

    @property
    def most_tried(self) -> Chunk | None:
        """The waiting chunk with the most attempts."""
        return max(self._returned, key=lambda chunk: chunk.tries, default=None)

    async def take(self) -> Chunk | None:
        """The next chunk, after a wait if one may still be returned; None when all is done."""
        async with self._changed:
            while True:
                chunk = self._returned.popleft() if self._returned else await self._next()
                if chunk is not None:
                    self._out.add(chunk.number)
                    return chunk
                self._settle()
                if self.over.is_set():
                    return None
                await self._changed.wait()

    async def done(self, chunk: Chunk, seconds: float) -> None:
        """The chunk is done; its duration decides the size of the next ones."""
        async with self._changed:
            self._out.discard(chunk.number)
            fitting = len(chunk.planned) * WANTED_SECONDS / max(seconds, 0.001)
            self._size = int(min(self._most, max(FEWEST, fitting)))
            self._settle()

    async def give_back(self, chunk: Chunk) -> None:
        """Return a chunk for another worker."""
        async with self._changed:
            self._out.discard(chunk.number)
            if not self._ended:
                self._returned.append(chunk._replace(tries=chunk.tries + 1))
            self._settle()

    async def end(self) -> None:
        """Hand out nothing more."""
        async with self._changed:
            self._ended = self._exhausted = True
            self._returned.clear()
            self._settle()

    def _settle(self) -> None:
        waiting = self._returned or (self._ahead and not self._ended)
        if self._exhausted and not self._out and not waiting:
            self.over.set()
        self._changed.notify_all()

    async def _next(self) -> Chunk | None:
        await self._read_ahead(self._workers * self._size)
        if not self._ahead or self._ended:
            return None
        size = min(self._size, len(self._ahead))
        if self._exhausted:
            left = max(len(self._ahead), min(self._in_sight, self._concurrency))
            size = min(size, ceil(left / (self._workers * LANES)))
        return Chunk(next(self._numbers), tuple(self._ahead.popleft() for _ in range(size)))

    async def _read_ahead(self, cases: int) -> None:
        """Read the plan until this number of cases needs work, or to its end."""
        while len(self._ahead) < cases and not self._exhausted:
            one = next(self._planned, None)
            if one is None or self._take_note(one) is not None:
                self._exhausted = True
                self._in_sight = len(self._ahead)
                return
            if one.work is not Work.REUSE:
                self._ahead.append(one)
            if one.position % MOST == 0:
                await asyncio.sleep(0)  # many of them in a row must not block other tasks


def chunk_limit(task: RunTask, workers: int) -> int:
    """Maximum cases of a chunk: if a run may stop early, all workers together have no more than one look needs."""
    if task.looks is None or task.run.early is None:
        return MOST
    look = task.run.early.of * task.run.repeats / LOOKS
    return ceil(max(look, task.limits.concurrency) / (workers * LANES))


def shares(concurrency: int, workers: int) -> Sequence[int]:
    """Maximum calls in flight of each worker; the sum is that of the run."""
    workers = max(1, min(workers, concurrency))
    each, more = divmod(concurrency, workers)
    return [each + (number < more) for number in range(workers)]

"""Cases that one worker does at a time."""

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
"""Cases in a chunk: enough that handing it out costs nothing, few enough that doing it again costs little."""
WANTED_SECONDS = 10.0
"""What a chunk is to take; 5 to 30 seconds are as good."""
LANES = 2
"""Chunks that a worker has in hand: while the last calls of one end, those of the next begin."""


class Chunk(NamedTuple):
    """Some cases of a run, in the order of its dataset."""

    number: int
    planned: tuple[Planned, ...]
    tries: int = 0
    """How often it was begun before and not heard of again."""

    @property
    def cases(self) -> tuple[str, str]:
        """The first and the last."""
        return self.planned[0].key.case, self.planned[-1].key.case


class ChunkResult(NamedTuple):
    """What came of a chunk."""

    work: dict[Work, int]
    seconds: float
    stopped: str | None = None
    """Why it ended early."""
    refused: str | None = None
    """Why a provider refused every call of this worker so far."""
    faults: tuple[Problem, ...] = ()
    """What keeps every case from being asked or graded until a person has fixed it."""
    lost_store: str | None = None
    """Why not all of it could be stored; the rest is to be done again."""
    deaths: tuple[str, ...] = ()
    """Why processes of user code died in the worker since its last chunk was done, one for each."""
    refusals: int = 0
    """Addresses that the egress policy refused there since then."""


def replanned(chunk: Chunk, task: RunTask, storage: Storage) -> Iterator[Planned]:
    """What is left of a chunk that may have been begun before."""
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
        )


class ChunkQueue:
    """Hands out the chunks of a plan, first those that were given back; each until it is done.

    Where the end of the plan is in sight, chunks become smaller and smaller, so that all workers end together; but not
    so small that the calls in flight would be fewer than they may be.
    """

    def __init__(
        self,
        planned: Iterator[Planned],
        take_note: Callable[[Planned], str | None],
        workers: int,
        concurrency: int,
        most: int = MOST,
    ) -> None:
        """``take_note`` is told of every case as it is planned; a reason that it gives is why there are no more.

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
        """Cases that were left when the end of the plan was seen."""
        self._ended = False
        self._most = most
        self._size = min(FEWEST, most)
        self.over = asyncio.Event()
        """Nothing is left to be done."""

    @property
    def most_tried(self) -> Chunk | None:
        """Of those that wait, the one that was begun most often."""
        return max(self._returned, key=lambda chunk: chunk.tries, default=None)

    async def take(self) -> Chunk | None:
        """The next chunk, waited for where another may still come back; None when all is done."""
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
        """The chunk is done; the time it took decides how large the next ones are."""
        async with self._changed:
            self._out.discard(chunk.number)
            fitting = len(chunk.planned) * WANTED_SECONDS / max(seconds, 0.001)
            self._size = int(min(self._most, max(FEWEST, fitting)))
            self._settle()

    async def give_back(self, chunk: Chunk) -> None:
        """The chunk is to be done by somebody else."""
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
        """Have so many cases ready that need work, where there are so many."""
        while len(self._ahead) < cases and not self._exhausted:
            one = next(self._planned, None)
            if one is None or self._take_note(one) is not None:
                self._exhausted = True
                self._in_sight = len(self._ahead)
                return
            if one.work is not Work.REUSE:
                self._ahead.append(one)
            if one.position % MOST == 0:
                await asyncio.sleep(0)  # a long row of them must not keep everybody else waiting


def chunk_limit(task: RunTask, workers: int) -> int:
    """The most cases of a chunk: where a run may end early, all workers together have no more than one look needs."""
    if task.looks is None or task.run.early is None:
        return MOST
    look = task.run.early.of * task.run.repeats / LOOKS
    return ceil(max(look, task.limits.concurrency) / (workers * LANES))


def shares(concurrency: int, workers: int) -> Sequence[int]:
    """The calls in flight that each worker may have: together as many as the run may have."""
    workers = max(1, min(workers, concurrency))
    each, more = divmod(concurrency, workers)
    return [each + (number < more) for number in range(workers)]

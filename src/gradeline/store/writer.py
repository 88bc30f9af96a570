"""Group commit: many waiters, one thread, one transaction for all that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from threading import Condition, Thread
from typing import NamedTuple, Self

from gradeline.errors import StoreError
from gradeline.model.grade import Grade
from gradeline.model.record import GradeKey, ResponseKey
from gradeline.model.response import Response
from gradeline.model.sample import Sample
from gradeline.store.rows import Row, grade_row, response_row

Commit = Callable[[Sequence[Row]], Sequence[StoreError | None]]
"""Stores rows in one transaction. Gives for each row None or why it alone was refused; raises
`StoreError` when the transaction failed as a whole."""

BATCH_ROWS = 500
QUEUE_ROWS = 1000
POSTED_ROWS = 250
"""Rows nobody waits for that may be put off while others are waited for."""
GATHER_TURNS = 1
"""Turns of the event loop that may each add to what is handed over together."""
POSTED_SECONDS = 0.02
"""Rows nobody waits for may wait so long for others to go along with."""


class _Waiting(NamedTuple):
    rows: tuple[Row, ...]
    """None of them marks a flush."""
    done: asyncio.Future[None] | None
    """None where nobody waits for just these rows."""


class Writer:
    """Takes responses and grades from the tasks of one event loop; a put returns once it is committed.

    A thread takes all that is queued, up to 500 rows, into one transaction: while one batch is synced
    to disk the next one gathers. What is put in a few turns of the loop, one right after the other, is
    handed over at once, since waking a thread is dear and a commit dearer; a lone caller waits for nobody.
    What is posted is put off while others wait for their commit, which it would only make longer, until there is
    much of it; else it goes alone after a moment.
    A full queue makes callers wait. After a failed commit nothing more is taken: whether the disk
    holds that batch is unknown then, and to sync again would not tell.
    """

    def __init__(self, commit: Commit, *, queue_rows: int = QUEUE_ROWS, batch_rows: int = BATCH_ROWS) -> None:
        self._commit = commit
        self._batch_rows = batch_rows
        self._room = queue_rows
        self._at_the_door: deque[asyncio.Future[None]] = deque()
        self._posted_failure: StoreError | None = None
        self._gathered: list[_Waiting] = []
        """What somebody waits for, until it is handed to the thread."""
        self._gathered_posts: list[_Waiting] = []
        self._wake = Condition()
        self._queue: deque[_Waiting] = deque()
        """What somebody waits for."""
        self._posted: deque[_Waiting] = deque()
        self._posted_rows = 0
        self._refusal: str | None = None
        self._stopped: StoreError | None = None
        self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def put_response(
        self,
        key: ResponseKey,
        response: Response,
        sample: Sample,
        position: int | None = None,
        cache_key: str | None = None,
    ) -> None:
        """As `Storage.put_response`; cancelled while it waits for its commit, the response is stored all the same."""
        await self._put((response_row(key, response, sample, position, cache_key),))

    async def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> None:
        """As `Storage.put_grade`."""
        await self._put((grade_row(key, grade, submission),))

    async def post_grades(self, key: ResponseKey, grades: Mapping[str, tuple[str | None, Grade]]) -> None:
        """Queue the grades of one response with the texts that were graded; `flush` tells whether all are stored."""
        rows = tuple([grade_row(GradeKey(*key, grader), grade, text) for grader, (text, grade) in grades.items()])
        if self._room <= 0:
            await self._place()
        self._room -= 1
        try:
            self._gather(asyncio.get_running_loop(), self._gathered_posts, _Waiting(rows, None))
        except BaseException:
            self._leave(1)
            raise

    async def flush(self) -> None:
        """Return once all that was queued before is committed; `StoreError` where something posted was not."""
        await self._queued(())
        if self._posted_failure is not None:
            raise self._posted_failure

    async def close(self) -> None:
        """Commit what is queued and end the thread. What failed was told to its waiters, not again here."""
        try:
            with suppress(StoreError):
                await self._queued((), closing=True)
        finally:
            with self._wake:
                self._closing = True
                self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    async def _put(self, rows: tuple[Row, ...]) -> None:
        if self._room <= 0:
            await self._place()
        self._room -= 1
        try:
            done = self._queued(rows)
        except BaseException:
            self._leave(1)
            raise
        await done

    async def _place(self) -> None:
        """Return when there is a place in the queue; whoever takes it does so at once."""
        while self._room <= 0:
            turn = asyncio.get_running_loop().create_future()
            self._at_the_door.append(turn)
            await turn

    def _leave(self, places: int) -> None:
        self._room += places
        while places and self._at_the_door:
            turn = self._at_the_door.popleft()
            if not turn.done():
                turn.set_result(None)
                places -= 1

    def _queued(self, rows: tuple[Row, ...], *, closing: bool = False) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._gather(loop, self._gathered, _Waiting(rows, done))
        if closing:
            self._refusal = "the writer is closed"
        return done

    def _gather(self, loop: asyncio.AbstractEventLoop, others: list[_Waiting], waiting: _Waiting) -> None:
        if self._loop is not loop:
            self._serve(loop)
        if self._refusal is not None:
            raise StoreError(self._refusal)
        if self._posted_failure is not None and waiting.rows:
            raise self._posted_failure
        if not self._gathered and not self._gathered_posts:
            loop.call_soon(self._hand_over, loop)
        others.append(waiting)

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is not None:
            raise RuntimeError("a store's writer serves the event loop of its first call; make another for this one")
        self._loop = loop

    def _hand_over(self, loop: asyncio.AbstractEventLoop, before: int = 0, turns: int = 0) -> None:
        """Hand to the thread what was gathered, once a turn of the loop has added nothing or there is enough."""
        number = len(self._gathered) + len(self._gathered_posts)
        if before < number < self._batch_rows and turns < GATHER_TURNS:
            loop.call_soon(self._hand_over, loop, number, turns + 1)
            return
        gathered, self._gathered = self._gathered, []
        posts, self._gathered_posts = self._gathered_posts, []
        with self._wake:
            self._queue += gathered
            self._posted += posts
            self._posted_rows += sum([len(post.rows) for post in posts])
            self._wake.notify()
        if self._thread is None:
            self._thread = Thread(target=self._work, name="gradeline-writer", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while batch := self._taken():
            rows = [row for waiting in batch for row in waiting.rows]
            try:
                if self._stopped is not None:
                    raise self._stopped
                refusals = self._commit(rows) if rows else ()
            except Exception as error:  # whatever it is, no waiter may wait for ever
                failure = error if isinstance(error, StoreError) else StoreError(f"{type(error).__name__}: {error}")
                if not failure.retryable:
                    self._stop(failure)
                self._tell(batch, [failure] * len(batch))
            else:
                self._tell(batch, _failures(batch, refusals))

    def _taken(self) -> list[_Waiting]:
        """The next batch; empty at the end."""
        batch: list[_Waiting] = []
        with self._wake:
            while not self._queue and not self._posted and not self._closing:
                self._wake.wait()
            if not self._queue and self._posted_rows < self._batch_rows and not self._closing:
                self._wake.wait(POSTED_SECONDS)
            flushing = any(not waiting.rows for waiting in self._queue)
            put_off = self._queue and self._posted_rows <= POSTED_ROWS and not flushing
            rows = 0
            while self._posted and rows < self._batch_rows and not put_off:
                batch.append(self._posted.popleft())
                rows += len(batch[-1].rows)
            self._posted_rows -= rows
            # a flush tells that all before it is stored, so it waits for what is posted
            while self._queue and rows < self._batch_rows and (self._queue[0].rows or not self._posted):
                batch.append(self._queue.popleft())
                rows += len(batch[-1].rows)
        return batch

    def _stop(self, failure: StoreError) -> None:
        """Take nothing more: those who still wait are told the same, one batch after the other."""
        if self._stopped is None:
            self._refusal = f"the writer stopped after a failed commit: {failure}"
            self._stopped = failure

    def _tell(self, batch: list[_Waiting], failures: Sequence[StoreError | None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its waiters with it
                self._loop.call_soon_threadsafe(self._resolve, batch, failures)

    def _resolve(self, batch: list[_Waiting], failures: Sequence[StoreError | None]) -> None:
        self._leave(sum([1 for waiting in batch if waiting.rows]))
        for (_, done), failure in zip(batch, failures, strict=True):
            if done is None:
                self._posted_failure = self._posted_failure or failure
            elif done.done():
                continue
            elif failure is None:
                done.set_result(None)
            else:
                done.set_exception(StoreError(str(failure), retryable=failure.retryable))


def _failures(batch: Sequence[_Waiting], refusals: Sequence[StoreError | None]) -> Sequence[StoreError | None]:
    """For each that waits the first refusal of its rows."""
    if not any(refusals):
        return [None] * len(batch)
    of_rows = iter(refusals)
    return [_first([next(of_rows) for _ in waiting.rows]) for waiting in batch]


def _first(failures: Sequence[StoreError | None]) -> StoreError | None:
    return next((failure for failure in failures if failure is not None), None)

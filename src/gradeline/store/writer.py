"""Group commit: many waiters, one transaction for all that wait."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from typing import NamedTuple, Self, TypeAlias, TypeVar

from gradeline.errors import StoreError
from gradeline.model.grade import Grade
from gradeline.model.record import GradeKey, ResponseKey
from gradeline.model.response import Response
from gradeline.model.sample import Sample
from gradeline.store.rows import RecordRow, grade_row, response_row

T = TypeVar("T")
Refusals: TypeAlias = "Sequence[StoreError | None]"
"""For each row None or why it alone was refused."""
Commit: TypeAlias = "Callable[[Sequence[RecordRow]], Refusals]"
"""Stores rows in one transaction; raises `StoreError` when the transaction failed as a whole."""
CommitNow: TypeAlias = "Callable[[Sequence[RecordRow]], Refusals | None]"
"""The same, unless it would have to wait for somebody else who writes: then it does nothing, and gives None."""

BATCH_ROWS = 500
QUEUE_ROWS = 1000
POSTED_ROWS = 250
"""Rows nobody waits for that may be put off while others are waited for."""
POSTED_SECONDS = 0.05
"""Rows nobody waits for may wait so long for others to go along with, and as long again for a quiet moment."""
QUIET_SECONDS = 0.002
"""It is quiet when nothing was put for so long."""
QUICK_SECONDS = 0.005
"""A commit that takes less need not be a thread's: to wake that and to be woken by it takes as long."""


class _Done:
    """Nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


class _Batch(NamedTuple):
    rows: list[RecordRow]
    """Those that somebody waits for, then those that were posted."""
    waiters: list[asyncio.Future[None]]
    """One for each of the first rows."""
    flushes: list[asyncio.Future[None]]
    """Who waits for all that came before them, of which this is the last."""


class _Flush(NamedTuple):
    waited: int
    posted: int
    done: asyncio.Future[None]


class _Queue:
    """What is to be committed: rows that are waited for, rows that were posted, and who waits for all of them."""

    def __init__(self) -> None:
        self.rows: list[RecordRow] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.posts: list[RecordRow] = []
        self.flushes: deque[_Flush] = deque()
        self._waited = 0
        """Rows that have been taken, as of those that were posted."""
        self._posted = 0

    @property
    def pressing(self) -> bool:
        """Whether somebody waits, or too much was put off."""
        return bool(self.rows or self.flushes) or len(self.posts) > POSTED_ROWS

    @property
    def number(self) -> int:
        """Of all rows that were ever waited for."""
        return self._waited + len(self.rows)

    def flush(self, done: asyncio.Future[None]) -> None:
        self.flushes.append(_Flush(self.number, self._posted + len(self.posts), done))

    def take(self, most: int, *, posts: bool) -> _Batch:
        """The next rows; those that were posted only if they are due, many, or flushed."""
        rows, self.rows = self.rows[:most], self.rows[most:]
        waiters, self.waiters = self.waiters[:most], self.waiters[most:]
        self._waited += len(rows)
        if posts or self.flushes or len(self.posts) > POSTED_ROWS:
            # what was posted came before whoever waits for all, and must not wait for ever behind the others
            taken = self.posts[: max(most - len(rows), 1)]
            self.posts = self.posts[len(taken) :]
            self._posted += len(taken)
            rows += taken
        flushes = []
        while self.flushes and self.flushes[0].waited <= self._waited and self.flushes[0].posted <= self._posted:
            flushes.append(self.flushes.popleft().done)
        return _Batch(rows, waiters, flushes)


class Writer:
    """Takes responses and grades from the tasks of one event loop; a put returns once it is committed.

    What is put in one turn of the loop goes into one transaction, up to 500 rows; a lone caller waits for nobody.
    A thread commits: a disk may take its time, and the next batch gathers meanwhile. But while commits are quick, and
    ``commit_now`` is given, they are done in the loop itself.
    What is posted is put off while others wait for their commit, which it would only make longer, until there is
    much of it; else it goes alone in a quiet moment, in which ``tidy`` is called as well.
    A full queue makes callers wait. After a failed commit nothing more is taken: whether the disk
    holds that batch is unknown then, and to sync again would not tell.
    """

    def __init__(
        self,
        commit: Commit,
        commit_now: CommitNow | None = None,
        tidy: Callable[[], None] | None = None,
        *,
        queue_rows: int = QUEUE_ROWS,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self._commit = commit
        self._commit_now = commit_now
        self._tidy = tidy
        self._quick = True
        """Whether the disk was, the last time."""
        self._batch_rows = batch_rows
        self._room = queue_rows
        self._at_the_door: deque[asyncio.Future[None]] = deque()
        self._queue = _Queue()
        self._gathering: asyncio.AbstractEventLoop | None = None
        """The loop, while what is queued is committed soon."""
        self._posts_due: asyncio.TimerHandle | None = None
        self._refusal: str | None = None
        self._stopped: StoreError | None = None
        self._posted_failure: StoreError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._busy = False
        """Whether the thread has a batch."""
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def put_response(
        self,
        key: ResponseKey,
        response: Response,
        sample: Sample,
        position: int | None = None,
        cache_key: str | None = None,
    ) -> Awaitable[None]:
        """As `Storage.put_response`; cancelled while it waits for its commit, the response is stored all the same."""
        row = response_row(key, response, sample, position, cache_key)
        return self._put(row) if self._room > 0 else self._put_later(row)

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> Awaitable[None]:
        """As `Storage.put_grade`."""
        row = grade_row(key, grade, submission)
        return self._put(row) if self._room > 0 else self._put_later(row)

    def put_grades(self, key: ResponseKey, grades: Mapping[str, tuple[str | None, Grade]]) -> Awaitable[None]:
        """The grades of one response with the texts that were graded; returns once all are committed."""
        rows = [grade_row((*key, grader), grade, text) for grader, (text, grade) in grades.items()]
        return self._put_all(rows)

    def post_grades(self, key: ResponseKey, grades: Mapping[str, tuple[str | None, Grade]]) -> Awaitable[None]:
        """Queue the grades of one response with the texts that were graded; `flush` tells whether all are stored."""
        rows = [grade_row((*key, grader), grade, text) for grader, (text, grade) in grades.items()]
        if self._room <= 0:
            return self._post_later(rows)
        self._post(rows)
        return _DONE

    async def flush(self) -> None:
        """Return once all that was queued before is committed; `StoreError` where something posted was not."""
        if self._refusal is not None:
            raise StoreError(self._refusal)
        await self._flushed()
        if self._posted_failure is not None:
            raise self._posted_failure

    async def close(self) -> None:
        """Commit what is queued and end the thread. What failed was told to its waiters, not again here."""
        self._refuse("the writer is closed")
        try:
            await self._flushed()
        finally:
            if self._posts_due is not None:
                self._posts_due.cancel()
            if self._thread is not None:
                self._batches.put(None)
                self._thread.join()

    async def _put_later(self, row: RecordRow) -> None:
        await self._place()
        await self._put(row)

    async def _put_all(self, rows: Sequence[RecordRow]) -> None:
        if self._room <= 0:
            await self._place()
        for done in [self._put(row) for row in rows]:
            await done

    async def _post_later(self, rows: Sequence[RecordRow]) -> None:
        await self._place()
        self._post(rows)

    def _post(self, rows: Sequence[RecordRow]) -> None:
        if self._gathering is None:
            self._gather()
        self._room -= len(rows)
        self._queue.posts += rows

    def _put(self, row: RecordRow) -> asyncio.Future[None]:
        loop = self._gathering or self._gather()
        self._room -= 1
        self._queue.rows.append(row)
        done = loop.create_future()
        self._queue.waiters.append(done)
        return done

    def _flushed(self) -> asyncio.Future[None]:
        loop = self._serving()
        done = loop.create_future()
        self._queue.flush(done)
        self._go_on(loop)
        return done

    async def _place(self) -> None:
        """Return when there is a place in the queue, or there will be none; whoever takes it does so at once."""
        while self._room <= 0 and self._refusal is None and self._posted_failure is None:
            turn = asyncio.get_running_loop().create_future()
            self._at_the_door.append(turn)
            await turn

    def _gather(self) -> asyncio.AbstractEventLoop:
        """See to it that what is queued now is committed soon; raises where it would not be."""
        if self._refusal is not None:
            raise StoreError(self._refusal)
        if self._posted_failure is not None:
            raise self._posted_failure
        loop = self._gathering = self._serving()
        loop.call_soon(self._gathered, loop)
        return loop

    def _serving(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError(
                    "a store's writer serves the event loop of its first call; make another for this one"
                )
            self._loop = loop
        return loop

    def _gathered(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit what this turn of the loop and the one before have brought."""
        self._gathering = None
        self._go_on(loop)

    def _go_on(self, loop: asyncio.AbstractEventLoop, *, due: bool = False) -> None:
        """Commit the next batch, unless one is being committed; what was posted alone waits until it is due."""
        if self._busy:
            return
        if not due and not self._queue.pressing:
            self._put_off(loop)
            return
        batch = self._queue.take(self._batch_rows, posts=due)
        told: Refusals | StoreError | None = self._stopped or ()
        if batch.rows and self._stopped is None:
            told = None if self._commit_now is None or not self._quick else self._tried(self._commit_now, batch)
        if told is None:
            self._hand_over(loop, batch)
        else:
            self._settle(loop, batch, told)

    def _put_off(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._queue.posts and self._posts_due is None:
            latest = loop.time() + 2 * POSTED_SECONDS
            self._posts_due = loop.call_later(POSTED_SECONDS, self._go_on_with_posts, loop, latest)

    def _go_on_with_posts(self, loop: asyncio.AbstractEventLoop, latest: float, before: int | None = None) -> None:
        """Commit what was posted, once nothing has been put since it was ``before``, or the time has come."""
        number = self._queue.number
        if number != before and loop.time() < latest:
            self._posts_due = loop.call_later(QUIET_SECONDS, self._go_on_with_posts, loop, latest, number)
            return
        self._posts_due = None
        self._go_on(loop, due=True)
        if number == before and self._quick and not self._busy and self._tidy is not None:
            self._timed(self._tidy)

    def _hand_over(self, loop: asyncio.AbstractEventLoop, batch: _Batch) -> None:
        self._busy = True
        self._batches.put(batch)
        if self._thread is None:
            self._thread = Thread(target=self._work, args=(loop,), name="gradeline-writer", daemon=True)
            self._thread.start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """What the thread does."""
        while (batch := self._batches.get()) is not None:
            told = self._tried(self._commit, batch)
            with suppress(RuntimeError):  # the loop has ended, and its waiters with it
                loop.call_soon_threadsafe(self._handed_back, loop, batch, told)

    def _handed_back(self, loop: asyncio.AbstractEventLoop, batch: _Batch, told: Refusals | StoreError) -> None:
        self._busy = False
        self._settle(loop, batch, told)

    def _tried(self, commit: Callable[[Sequence[RecordRow]], T], batch: _Batch) -> T | StoreError:
        """Commit a batch; whatever goes wrong is given back, since no waiter may wait for ever."""
        try:
            return self._timed(partial(commit, batch.rows))
        except StoreError as error:
            return error
        except Exception as error:
            return StoreError(f"{type(error).__name__}: {error}")

    def _timed(self, act: Callable[[], T]) -> T:
        """Do it, and note how quick the disk is."""
        began = perf_counter()
        try:
            return act()
        finally:
            self._quick = perf_counter() - began < QUICK_SECONDS

    def _settle(self, loop: asyncio.AbstractEventLoop, batch: _Batch, told: Refusals | StoreError) -> None:
        """Tell who waits for a batch what became of it, and go on with the next."""
        self._leave(len(batch.rows))
        if isinstance(told, StoreError):
            if not told.retryable and self._stopped is None:
                self._stopped = told
                self._refuse(f"the writer stopped after a failed commit: {told}")
            told = [told] * len(batch.rows)
        if any(told):
            self._tell(batch, told)
        for done in (*batch.waiters, *batch.flushes):
            if not done.done():
                done.set_result(None)
        if self._queue.pressing:
            loop.call_soon(self._go_on, loop)
        else:
            self._put_off(loop)

    def _leave(self, places: int) -> None:
        """Let in as many as there are places; all of them where nothing is taken any more, to be told so."""
        self._room += places
        if self._refusal is not None or self._posted_failure is not None:
            places = len(self._at_the_door)
        while places and self._at_the_door:
            turn = self._at_the_door.popleft()
            if not turn.done():
                turn.set_result(None)
                places -= 1

    def _tell(self, batch: _Batch, refusals: Refusals) -> None:
        for done, failure in zip(batch.waiters, refusals, strict=False):
            if failure is not None and not done.done():
                done.set_exception(StoreError(str(failure), retryable=failure.retryable))
        posted = refusals[len(batch.waiters) :]
        self._posted_failure = self._posted_failure or next(filter(None, posted), None)
        if self._posted_failure is not None:
            self._gathering = None
            self._leave(0)

    def _refuse(self, reason: str) -> None:
        """Take nothing more; whoever waits for a place is told so."""
        self._refusal = self._refusal or reason
        self._gathering = None  # the next to come must be told
        self._leave(0)

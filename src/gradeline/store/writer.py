"""Group commit: batches the rows of concurrent tasks into one transaction."""

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
RowErrors: TypeAlias = "Sequence[StoreError | None]"
"""For each row None, or its error."""
Commit: TypeAlias = "Callable[[Sequence[RecordRow]], RowErrors]"
"""Stores rows in one transaction; raises `StoreError` if the transaction failed as a whole."""
TryCommit: TypeAlias = "Callable[[Sequence[RecordRow]], RowErrors | None]"
"""The same without waiting: returns None, having done nothing, if another thread or process is writing."""

BATCH_ROWS = 500
QUEUE_ROWS = 1000
POSTED_ROWS = 250
"""Maximum number of posted rows (without waiters) that are postponed in favour of rows with waiters."""
POSTED_SECONDS = 0.05
"""Posted rows wait up to this time for a batch to join, and up to the same time again for an idle moment."""
IDLE_SECONDS = 0.002
"""The writer is idle if nothing was put for this time."""
QUICK_SECONDS = 0.005
"""Faster commits run in the event loop: switching to a thread and back takes as long."""


class _Done:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


class _Batch(NamedTuple):
    rows: list[RecordRow]
    """Rows with waiters, then posted rows."""
    waiters: list[asyncio.Future[None]]
    """One for each of the first rows."""
    flushes: list[asyncio.Future[None]]
    """Flushes that are complete with this batch."""


class _Flush(NamedTuple):
    waited: int
    posted: int
    done: asyncio.Future[None]


class _Queue:
    """Rows to commit: rows with waiters, posted rows, and flushes that wait for both."""

    def __init__(self) -> None:
        self.rows: list[RecordRow] = []
        self.waiters: list[asyncio.Future[None]] = []
        self.posts: list[RecordRow] = []
        self.flushes: deque[_Flush] = deque()
        self._waited = 0
        """Number of rows with waiters taken so far."""
        self._posted = 0
        """Number of posted rows taken so far."""

    @property
    def urgent(self) -> bool:
        """Whether there are waiters, or too many postponed rows."""
        return bool(self.rows or self.flushes) or len(self.posts) > POSTED_ROWS

    @property
    def number(self) -> int:
        """Number of rows with waiters put so far."""
        return self._waited + len(self.rows)

    def flush(self, done: asyncio.Future[None]) -> None:
        self.flushes.append(_Flush(self.number, self._posted + len(self.posts), done))

    def take(self, most: int, *, posts: bool) -> _Batch:
        """The next rows; posted rows only if they are due, too many, or flushed."""
        rows, self.rows = self.rows[:most], self.rows[most:]
        waiters, self.waiters = self.waiters[:most], self.waiters[most:]
        self._waited += len(rows)
        if posts or self.flushes or len(self.posts) > POSTED_ROWS:
            # at least one posted row per batch, or a flush could wait for ever behind rows with waiters
            taken = self.posts[: max(most - len(rows), 1)]
            self.posts = self.posts[len(taken) :]
            self._posted += len(taken)
            rows += taken
        flushes = []
        while self.flushes and self.flushes[0].waited <= self._waited and self.flushes[0].posted <= self._posted:
            flushes.append(self.flushes.popleft().done)
        return _Batch(rows, waiters, flushes)


class Writer:
    """Stores responses and grades for the tasks of one event loop; a put returns once it is committed.

    Rows put in the same turn of the loop share one transaction, up to 500 rows; a single row is committed at once.
    Commits run in a thread while the next batch accumulates; while commits are quick and ``try_commit`` is available,
    they run in the loop itself. Posted rows are postponed while others wait for their commit, up to a limit, or
    committed by themselves in an idle moment, when ``on_idle`` is called too. A full queue makes callers wait. After
    a failed commit the writer stops, because it is unknown whether that batch is on disk.
    """

    def __init__(
        self,
        commit: Commit,
        try_commit: TryCommit | None = None,
        on_idle: Callable[[], None] | None = None,
        *,
        queue_rows: int = QUEUE_ROWS,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        self._commit = commit
        self._try_commit = try_commit
        self._on_idle = on_idle
        self._quick = True
        """Whether the last commit was quick."""
        self._batch_rows = batch_rows
        self._free_rows = queue_rows
        self._waiting_puts: deque[asyncio.Future[None]] = deque()
        self._queue = _Queue()
        self._scheduled: asyncio.AbstractEventLoop | None = None
        """The loop, while a commit of the queue is scheduled."""
        self._posts_due: asyncio.TimerHandle | None = None
        self._closed_reason: str | None = None
        self._stopped: StoreError | None = None
        self._posted_failure: StoreError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._busy = False
        """Whether the thread is committing a batch."""
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
        """As `Storage.put_response`; the response is stored even if the caller is cancelled while it waits."""
        row = response_row(key, response, sample, position, cache_key)
        return self._put(row) if self._free_rows > 0 else self._put_later(row)

    def put_grade(self, key: GradeKey, grade: Grade, submission: str | None = None) -> Awaitable[None]:
        """As `Storage.put_grade`."""
        row = grade_row(key, grade, submission)
        return self._put(row) if self._free_rows > 0 else self._put_later(row)

    def put_grades(self, key: ResponseKey, grades: Mapping[str, tuple[str | None, Grade]]) -> Awaitable[None]:
        """Store the grades of one response with their submissions; returns once all are committed."""
        rows = [grade_row((*key, grader), grade, text) for grader, (text, grade) in grades.items()]
        return self._put_all(rows)

    def post_grades(self, key: ResponseKey, grades: Mapping[str, tuple[str | None, Grade]]) -> Awaitable[None]:
        """Queue the grades of one response with their submissions; `flush` raises if one could not be stored."""
        rows = [grade_row((*key, grader), grade, text) for grader, (text, grade) in grades.items()]
        if self._free_rows <= 0:
            return self._post_later(rows)
        self._post(rows)
        return _DONE

    async def flush(self) -> None:
        """Return once everything queued so far is committed; `StoreError` if a posted row could not be stored."""
        if self._closed_reason is not None:
            raise StoreError(self._closed_reason)
        await self._flushed()
        if self._posted_failure is not None:
            raise self._posted_failure

    async def close(self) -> None:
        """Commit the queue and end the thread. Raises no errors; the waiters received them."""
        self._stop_accepting("the writer is closed")
        try:
            await self._flushed()
        finally:
            if self._posts_due is not None:
                self._posts_due.cancel()
            if self._thread is not None:
                self._batches.put(None)
                self._thread.join()

    async def _put_later(self, row: RecordRow) -> None:
        await self._wait_for_space()
        await self._put(row)

    async def _put_all(self, rows: Sequence[RecordRow]) -> None:
        if self._free_rows <= 0:
            await self._wait_for_space()
        for done in [self._put(row) for row in rows]:
            await done

    async def _post_later(self, rows: Sequence[RecordRow]) -> None:
        await self._wait_for_space()
        self._post(rows)

    def _post(self, rows: Sequence[RecordRow]) -> None:
        if self._scheduled is None:
            self._schedule()
        self._free_rows -= len(rows)
        self._queue.posts += rows

    def _put(self, row: RecordRow) -> asyncio.Future[None]:
        loop = self._scheduled or self._schedule()
        self._free_rows -= 1
        self._queue.rows.append(row)
        done = loop.create_future()
        self._queue.waiters.append(done)
        return done

    def _flushed(self) -> asyncio.Future[None]:
        loop = self._serving()
        done = loop.create_future()
        self._queue.flush(done)
        self._commit_next(loop)
        return done

    async def _wait_for_space(self) -> None:
        """Return when the queue has space, or will never have any; the caller must use it without awaiting."""
        while self._free_rows <= 0 and self._closed_reason is None and self._posted_failure is None:
            ready = asyncio.get_running_loop().create_future()
            self._waiting_puts.append(ready)
            await ready

    def _schedule(self) -> asyncio.AbstractEventLoop:
        """Schedule a commit of the queue; raises if the writer has stopped."""
        if self._closed_reason is not None:
            raise StoreError(self._closed_reason)
        if self._posted_failure is not None:
            raise self._posted_failure
        loop = self._scheduled = self._serving()
        loop.call_soon(self._run_scheduled, loop)
        return loop

    def _serving(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                raise RuntimeError(
                    "a store's writer belongs to the event loop of its first call; create another one for this loop"
                )
            self._loop = loop
        return loop

    def _run_scheduled(self, loop: asyncio.AbstractEventLoop) -> None:
        """Commit the rows of this turn of the loop and the one before."""
        self._scheduled = None
        self._commit_next(loop)

    def _commit_next(self, loop: asyncio.AbstractEventLoop, *, due: bool = False) -> None:
        """Commit the next batch, unless one is being committed; posted rows alone wait until they are due."""
        if self._busy:
            return
        if not due and not self._queue.urgent:
            self._postpone(loop)
            return
        batch = self._queue.take(self._batch_rows, posts=due)
        errors: RowErrors | StoreError | None = self._stopped or ()
        if batch.rows and self._stopped is None:
            errors = None if self._try_commit is None or not self._quick else self._attempt(self._try_commit, batch)
        if errors is None:
            self._commit_in_thread(loop, batch)
        else:
            self._finish(loop, batch, errors)

    def _postpone(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._queue.posts and self._posts_due is None:
            latest = loop.time() + 2 * POSTED_SECONDS
            self._posts_due = loop.call_later(POSTED_SECONDS, self._commit_posts, loop, latest)

    def _commit_posts(self, loop: asyncio.AbstractEventLoop, latest: float, before: int | None = None) -> None:
        """Commit the posted rows once nothing was put since the number was ``before``, or when time is up."""
        number = self._queue.number
        if number != before and loop.time() < latest:
            self._posts_due = loop.call_later(IDLE_SECONDS, self._commit_posts, loop, latest, number)
            return
        self._posts_due = None
        self._commit_next(loop, due=True)
        if number == before and self._quick and not self._busy and self._on_idle is not None:
            self._timed(self._on_idle)

    def _commit_in_thread(self, loop: asyncio.AbstractEventLoop, batch: _Batch) -> None:
        self._busy = True
        self._batches.put(batch)
        if self._thread is None:
            self._thread = Thread(target=self._work, args=(loop,), name="gradeline-writer", daemon=True)
            self._thread.start()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        """The thread's main loop."""
        while (batch := self._batches.get()) is not None:
            errors = self._attempt(self._commit, batch)
            with suppress(RuntimeError):  # the event loop has ended, and its waiters with it
                loop.call_soon_threadsafe(self._thread_finished, loop, batch, errors)

    def _thread_finished(self, loop: asyncio.AbstractEventLoop, batch: _Batch, errors: RowErrors | StoreError) -> None:
        self._busy = False
        self._finish(loop, batch, errors)

    def _attempt(self, commit: Callable[[Sequence[RecordRow]], T], batch: _Batch) -> T | StoreError:
        """Commit a batch; returns any error, so that no waiter waits for ever."""
        try:
            return self._timed(partial(commit, batch.rows))
        except StoreError as error:
            return error
        except Exception as error:
            return StoreError(f"{type(error).__name__}: {error}")

    def _timed(self, act: Callable[[], T]) -> T:
        """Run it, and record whether it was quick."""
        started = perf_counter()
        try:
            return act()
        finally:
            self._quick = perf_counter() - started < QUICK_SECONDS

    def _finish(self, loop: asyncio.AbstractEventLoop, batch: _Batch, errors: RowErrors | StoreError) -> None:
        """Resolve the waiters of a batch and continue with the next one."""
        self._release(len(batch.rows))
        if isinstance(errors, StoreError):
            if not errors.retryable and self._stopped is None:
                self._stopped = errors
                self._stop_accepting(f"the writer stopped after a failed commit: {errors}")
            errors = [errors] * len(batch.rows)
        if any(errors):
            self._report(batch, errors)
        for done in (*batch.waiters, *batch.flushes):
            if not done.done():
                done.set_result(None)
        if self._queue.urgent:
            loop.call_soon(self._commit_next, loop)
        else:
            self._postpone(loop)

    def _release(self, rows: int) -> None:
        """Free space in the queue and wake callers that wait for it; all of them if the writer has stopped."""
        self._free_rows += rows
        if self._closed_reason is not None or self._posted_failure is not None:
            rows = len(self._waiting_puts)
        while rows and self._waiting_puts:
            ready = self._waiting_puts.popleft()
            if not ready.done():
                ready.set_result(None)
                rows -= 1

    def _report(self, batch: _Batch, errors: RowErrors) -> None:
        for done, failure in zip(batch.waiters, errors, strict=False):
            if failure is not None and not done.done():
                done.set_exception(StoreError(str(failure), retryable=failure.retryable))
        posted = errors[len(batch.waiters) :]
        self._posted_failure = self._posted_failure or next(filter(None, posted), None)
        if self._posted_failure is not None:
            self._scheduled = None
            self._release(0)

    def _stop_accepting(self, reason: str) -> None:
        """Accept no more rows; callers that wait for space get the reason."""
        self._closed_reason = self._closed_reason or reason
        self._scheduled = None  # so that the next put raises
        self._release(0)

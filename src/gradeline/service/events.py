"""Events of runs: a durable log for each run, and a broker that lets any number of readers follow it.

One task polls the logs for all readers, and readers of the same run share what it finds. A slower reader reads from the
log itself, and one that is far behind gets a snapshot, so that no queue of events can grow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Literal, NamedTuple

import msgspec
from starlette.concurrency import run_in_threadpool

from gradeline.errors import StoreError
from gradeline.model import Run
from gradeline.rest_types import EvaluationProgress
from gradeline.service.errors import not_found
from gradeline.store.database import Database, Dialect, Transaction, Value, migrate
from gradeline.store.leases import Query, observed_run
from gradeline.store.queries import (
    PROGRESS_COLUMNS,
    insert_rows,
)
from gradeline.store.sql_storage import response_source

Kind = Literal["snapshot", "progress", "result", "status", "done"]

_PER_QUERY = 100

ENDED = frozenset({"completed", "failed", "cancelled"})


class RunState(NamedTuple):
    """A run and its progress, at one moment."""

    run: Run
    progress: EvaluationProgress
    last_event: int | None
    """None: the run has no log."""
    in_queue: bool
    """The service executes the run, or takes it up again itself."""

    @property
    def is_final(self) -> bool:
        """Whether the state does not change until someone continues the run."""
        return self.run.status in ENDED or (self.run.status == "interrupted" and not self.in_queue)


def run_state(read: Query, run: str) -> RunState | None:
    """The state of a run, read in one statement, so that all of it is of the same moment."""
    source = response_source(read, run)
    in_queue = "EXISTS (SELECT 1 FROM jobs WHERE run = ? AND state <> 'done')"
    statement = f"SELECT (SELECT last_event FROM jobs WHERE run = ?), {in_queue}, {PROGRESS_COLUMNS}"  # noqa: S608 - constants
    (row,) = read(statement, run, run, run, source, source, run)
    last_event, waits, stored, answered, errors, graded = row
    if stored is None:
        return None
    found = observed_run(stored, read)
    return RunState(found, EvaluationProgress(found.total, answered, graded, errors), last_event, bool(waits))


class RunEvent(NamedTuple):
    """One event of a run."""

    n: int
    kind: str
    data: str
    """JSON."""


class NewEvent(NamedTuple):
    """An event to append to a log, unless the log has one with the same ``once``."""

    kind: Kind
    data: Any
    once: str | None = None


def _events(transaction: Transaction, _: Dialect) -> None:
    transaction.run(
        "CREATE TABLE run_events (run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE, n BIGINT NOT NULL,"
        " kind TEXT NOT NULL, once TEXT, data TEXT NOT NULL, PRIMARY KEY (run, n), UNIQUE (run, once))"
    )


EVENT_STEPS = (_events,)


class EventLog:
    """The logs of all runs of the service. A run's row in ``jobs`` counts its events.

    A writer locks that row until its transaction ends, so that events become visible in their order.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        migrate(database, "events", EVENT_STEPS)

    def append(self, transaction: Transaction, run: str, events: Sequence[NewEvent]) -> None:
        """Append to the log of a run; a run of the command line has none."""
        rows = transaction.run("UPDATE jobs SET last_event = last_event WHERE run = ? RETURNING last_event", run)
        if not rows:
            return
        known = _known(transaction, run, [one.once for one in events if one.once is not None])
        new = [one for one in events if one.once is None or one.once not in known]
        last: int = rows[0][0]
        values: list[tuple[Value, ...]] = [
            (run, n, one.kind, one.once, msgspec.json.encode(one.data).decode()) for n, one in enumerate(new, last + 1)
        ]
        insert_rows(transaction, "run_events", "run, n, kind, once, data", values)
        transaction.run("UPDATE jobs SET last_event = ? WHERE run = ?", last + len(new), run)

    def after(self, run: str, n: int, limit: int) -> list[RunEvent]:
        """The next events after a position."""
        rows = self._database.read(
            "SELECT n, kind, data FROM run_events WHERE run = ? AND n > ? ORDER BY n LIMIT ?", run, n, limit
        )
        return [RunEvent(*row) for row in rows]

    def last(self, runs: Iterable[str]) -> dict[str, int]:
        """The position of the last event of each run that has a log."""
        wanted = list(runs)
        found: dict[str, int] = {}
        for chunk in _chunks(wanted):
            places = ", ".join("?" * len(chunk))
            rows = self._database.read(
                f"SELECT run, last_event FROM jobs WHERE run IN ({places})",  # noqa: S608 - constants
                *chunk,
            )
            found.update(dict(rows))
        return found


def _known(transaction: Transaction, run: str, onces: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for chunk in _chunks(onces):
        places = ", ".join("?" * len(chunk))
        rows = transaction.run(
            f"SELECT once FROM run_events WHERE run = ? AND once IN ({places})",  # noqa: S608 - constants
            run,
            *chunk,
        )
        found.update(once for (once,) in rows)
    return found


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + _PER_QUERY] for start in range(0, len(items), _PER_QUERY))


STOPPED = ENDED | {"interrupted"}
"""No process executes the run. An interrupted run in the queue is taken up again by the service."""
HEARTBEAT_S = 15.0

_POLL_S = 0.5
_GATHER_S = 0.05
"""Delay after a notification: the events are committed by then, and more may have arrived."""
_SHARED = 500
_PAGE = 500
_FAR_BEHIND = 5_000


class KeepAlive(NamedTuple):
    """Sent when there was no event for a while."""


class EventBroker:
    """The logs of runs and their readers. Created in any thread; read in one event loop."""

    def __init__(self, database: Database) -> None:
        self.log = EventLog(database)
        self.readers = 0
        self._database = database
        self._feeds: dict[str, _Feed] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._notified = asyncio.Event()

    def changed(self, run: str) -> None:
        """Notify the readers that a run's log may have new events. Thread-safe."""
        if run in self._feeds:
            self._notify()

    def close(self) -> None:
        """End all streams. Thread-safe."""
        self._closed = True
        self._notify()

    def _notify(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its readers with it
                loop.call_soon_threadsafe(self._notified.set)

    def run_state(self, run: str) -> RunState:
        """The state of a run; `ServiceError` NOT_FOUND if it does not exist."""
        found = run_state(self._database.read, run)
        if found is None:
            raise not_found("evaluation", run)
        return found

    async def follow(
        self, run: str, last_id: str | None = None, *, heartbeat_s: float = HEARTBEAT_S
    ) -> AsyncIterator[RunEvent | KeepAlive]:
        """The events after ``last_id`` as they occur, until the run is done; an unknown id starts with a snapshot."""
        batches = self.batches(run, last_id, heartbeat_s=heartbeat_s)
        async with aclosing(batches):
            async for batch in batches:
                for event in batch:
                    yield event
                if not batch:
                    yield KeepAlive()

    async def batches(
        self, run: str, last_id: str | None = None, *, heartbeat_s: float = HEARTBEAT_S
    ) -> AsyncGenerator[list[RunEvent]]:
        """As `follow`, with events that are available together in one list; an empty list is a `KeepAlive`."""
        self.readers += 1
        feed = self._join(run)
        try:
            now = await run_in_threadpool(self.run_state, run)
            followed = (
                self._without_log(now) if now.last_event is None else self._logged(run, feed, last_id, heartbeat_s)
            )
            async for batch in followed:
                yield batch
        finally:
            self.readers -= 1
            self._leave(run, feed)

    async def _logged(
        self, run: str, feed: _Feed, last_id: str | None, heartbeat_s: float
    ) -> AsyncIterator[list[RunEvent]]:
        at = await run_in_threadpool(self._position, run, last_id)
        while not self._closed:
            if at is None or feed.is_far_ahead_of(at):
                snapshot = await run_in_threadpool(self._snapshot, run)
                yield [snapshot]
                at = snapshot.n
            version = feed.version
            events = feed.after(at) or await run_in_threadpool(self.log.after, run, at, _PAGE)
            if events:
                yield events
                at = events[-1].n
                if events[-1].kind == "done" and await run_in_threadpool(self._is_last, run, at):
                    return
                continue
            if await feed.wait(version, heartbeat_s):
                continue
            now = await run_in_threadpool(run_state, self._database.read, run)
            if now is None:
                return  # it was deleted
            if now.is_final and at == now.last_event:
                yield [RunEvent(at, "done", _state_json(now))]  # the command line executed it, which writes no log
                return
            yield []

    async def _without_log(self, now: RunState) -> AsyncIterator[list[RunEvent]]:
        """The events of a run that the command line executes, from its state."""
        yield [RunEvent(0, "snapshot", _state_json(now))]
        while not self._closed:
            if now.is_final:
                yield [RunEvent(0, "done", _state_json(now))]
                return
            await asyncio.sleep(_POLL_S)
            before, found = now, await run_in_threadpool(run_state, self._database.read, now.run.id)
            if found is None:
                return
            now = found
            if now.progress != before.progress:
                yield [RunEvent(0, "progress", msgspec.json.encode(now.progress).decode())]

    def is_over(self, run: str, last_id: str | None) -> bool:
        """Whether a reader has received all events of a run that is over."""
        now = self.run_state(run)
        return now.is_final and last_id is not None and last_id == str(now.last_event)

    def _position(self, run: str, last_id: str | None) -> int | None:
        """The position of a reader in the log; None if the id is unknown."""
        if last_id is None or not (last_id.isascii() and last_id.isdecimal()) or len(last_id) > 18:
            return None
        last = self.log.last([run]).get(run)
        return int(last_id) if last is not None and 0 <= int(last_id) <= last else None

    def _snapshot(self, run: str) -> RunEvent:
        """The state of the run, with the position of the last event that it includes.

        For a run that is done that is the event before the last, so that a reader still receives the last one.
        """
        now = self.run_state(run)
        last = now.last_event or 0
        return RunEvent(max(last - 1, 0) if now.run.status in ENDED else last, "snapshot", _state_json(now))

    def _is_last(self, run: str, n: int) -> bool:
        """Whether this is the last event: the log of a resumed run continues after its first end."""
        return self.log.last([run]).get(run, n) <= n

    def _join(self, run: str) -> _Feed:
        feed = self._feeds.setdefault(run, _Feed())
        feed.readers += 1
        if self._watching is None or self._watching.done():
            self._loop = asyncio.get_running_loop()
            self._notified = asyncio.Event()
            self._watching = self._loop.create_task(self._watch())
        return feed

    def _leave(self, run: str, feed: _Feed) -> None:
        feed.readers -= 1
        if not feed.readers:
            del self._feeds[run]
        if not self._feeds and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        """Poll the logs as long as there are readers."""
        while True:
            for feed in self._feeds.values() if self._closed else ():
                feed.publish([])
            with suppress(StoreError):
                await self._poll()
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._notified.wait()
            except TimeoutError:
                continue
            if not self._closed:
                await asyncio.sleep(_GATHER_S)
            self._notified.clear()

    async def _poll(self) -> None:
        last = await run_in_threadpool(self.log.last, list(self._feeds))
        for run, feed in list(self._feeds.items()):
            if feed.last is None:
                feed.last = last.get(run, 0)
            while feed.last < last.get(run, 0):
                found = await run_in_threadpool(self.log.after, run, feed.last, _PAGE)
                feed.publish(found)
                if not found:
                    break  # the run was deleted at this moment


def _state_json(now: RunState) -> str:
    data = {"evaluation_id": now.run.id, "status": now.run.status, "error_message": now.run.error_message}
    return msgspec.json.encode({**data, "progress": now.progress}).decode()


class _Feed:
    """The newest events of one run, for all its readers."""

    def __init__(self) -> None:
        self.readers = 0
        self.version = 0
        self.last: int | None = None
        """The last position that was read; None before the first poll."""
        self._recent: deque[RunEvent] = deque(maxlen=_SHARED)
        self._changed = asyncio.Event()

    def is_far_ahead_of(self, n: int) -> bool:
        return self.last is not None and self.last - n > _FAR_BEHIND

    def publish(self, events: list[RunEvent]) -> None:
        """Add events and wake the readers; without events, only wake them."""
        self._recent.extend(events)
        if events:
            self.last = events[-1].n
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def after(self, n: int) -> list[RunEvent]:
        """The events after a position; empty if the next one is no longer in memory."""
        if not self._recent or self._recent[0].n > n + 1:
            return []
        return [event for event in self._recent if event.n > n]

    async def wait(self, version: int, seconds: float) -> bool:
        """Wait for new events; False if there were none in time."""
        if self.version != version:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

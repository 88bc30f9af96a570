"""Live events: readers follow the durable log of a run, each at its own pace.

However many read, one task looks into the logs, and readers of a run share what it finds. A reader that is slower
than that reads from the log itself, and one that is far behind is given a snapshot: nobody's events pile up.
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
from gradeline.service.errors import not_found
from gradeline.service.run_rows import ENDED, Standing, standing
from gradeline.store.database import Database, Dialect, Transaction, Value, migrate

Kind = Literal["snapshot", "progress", "result", "status", "done"]

_AT_ONCE = 100


class RunEvent(NamedTuple):
    """One event of a run."""

    n: int
    kind: str
    data: str
    """JSON."""


class Happened(NamedTuple):
    """What is to be written into the log; what has the same ``once`` is there already."""

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
    """The logs of all runs that the service has worked on. A run's row in ``jobs`` counts its events.

    Whoever writes holds that row until the transaction ends, so that events become visible in their order.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        migrate(database, "events", EVENT_STEPS)

    def append(self, transaction: Transaction, run: str, happened: Sequence[Happened]) -> None:
        """Add to a run's log, where it has one."""
        rows = transaction.run("UPDATE jobs SET last_event = last_event WHERE run = ? RETURNING last_event", run)
        if not rows:
            return
        known = _known(transaction, run, [one.once for one in happened if one.once is not None])
        new = [one for one in happened if one.once is None or one.once not in known]
        last: int = rows[0][0]
        values: list[tuple[Value, ...]] = [
            (run, n, one.kind, one.once, msgspec.json.encode(one.data).decode()) for n, one in enumerate(new, last + 1)
        ]
        for chunk in _chunks(values):
            places = ", ".join(["(?, ?, ?, ?, ?)"] * len(chunk))
            transaction.run(
                f"INSERT INTO run_events (run, n, kind, once, data) VALUES {places}",  # noqa: S608 - made of constants
                *(value for row in chunk for value in row),
            )
        transaction.run("UPDATE jobs SET last_event = ? WHERE run = ?", last + len(new), run)

    def after(self, run: str, n: int, limit: int) -> list[RunEvent]:
        """The next events behind a position."""
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
                f"SELECT run, last_event FROM jobs WHERE run IN ({places})",  # noqa: S608 - made of constants
                *chunk,
            )
            found.update(dict(rows))
        return found


def _known(transaction: Transaction, run: str, onces: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for chunk in _chunks(onces):
        places = ", ".join("?" * len(chunk))
        rows = transaction.run(
            f"SELECT once FROM run_events WHERE run = ? AND once IN ({places})",  # noqa: S608 - made of constants
            run,
            *chunk,
        )
        found.update(once for (once,) in rows)
    return found


def _chunks(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


STOPPED = ENDED | {"interrupted"}
"""No process works on the run. One that the service holds is taken up again by itself when it is interrupted."""
HEARTBEAT_S = 15.0

_POLL_S = 0.5
_GATHER_S = 0.05
"""After a hint that there is something new: it is committed by then, and more may have come."""
_SHARED = 500
_PAGE = 500
_FAR_BEHIND = 5_000


class Beat(NamedTuple):
    """Nothing happened for a while."""


class Events:
    """The logs of runs, and whoever follows them. Made in any thread; read in one event loop."""

    def __init__(self, database: Database) -> None:
        self.log = EventLog(database)
        self.readers = 0
        self._database = database
        self._feeds: dict[str, _Feed] = {}
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.Task[None] | None = None
        self._hinted = asyncio.Event()

    def changed(self, run: str) -> None:
        """There may be something new in a run's log. Any thread may say so."""
        if run in self._feeds:
            self._hint()

    def close(self) -> None:
        """End all streams; any thread may ask for it."""
        self._closed = True
        self._hint()

    def _hint(self) -> None:
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its readers with it
                loop.call_soon_threadsafe(self._hinted.set)

    def standing(self, run: str) -> Standing:
        """How a run stands; `ApiError` where there is none."""
        found = standing(self._database.read, run)
        if found is None:
            raise not_found("evaluation", run)
        return found

    async def follow(
        self, run: str, last_id: str | None = None, *, heartbeat_s: float = HEARTBEAT_S
    ) -> AsyncIterator[RunEvent | Beat]:
        """The events behind ``last_id``, as they come, until the run is done; an unknown one starts with a snapshot."""
        batches = self.batches(run, last_id, heartbeat_s=heartbeat_s)
        async with aclosing(batches):
            async for batch in batches:
                for event in batch:
                    yield event
                if not batch:
                    yield Beat()

    async def batches(
        self, run: str, last_id: str | None = None, *, heartbeat_s: float = HEARTBEAT_S
    ) -> AsyncGenerator[list[RunEvent]]:
        """The same, with what is there at the same time in one list; an empty one is a `Beat`."""
        self.readers += 1
        feed = self._joined(run)
        try:
            now = await run_in_threadpool(self.standing, run)
            followed = (
                self._without_log(now) if now.last_event is None else self._logged(run, feed, last_id, heartbeat_s)
            )
            async for batch in followed:
                yield batch
        finally:
            self.readers -= 1
            self._left(run, feed)

    async def _logged(
        self, run: str, feed: _Feed, last_id: str | None, heartbeat_s: float
    ) -> AsyncIterator[list[RunEvent]]:
        at = await run_in_threadpool(self._place, run, last_id)
        while not self._closed:
            if at is None or feed.is_far_ahead_of(at):
                snapshot = await run_in_threadpool(self._snapshot, run)
                yield [snapshot]
                at = snapshot.n
            version = feed.version
            events = feed.behind(at) or await run_in_threadpool(self.log.after, run, at, _PAGE)
            if events:
                yield events
                at = events[-1].n
                if events[-1].kind == "done" and await run_in_threadpool(self._is_last, run, at):
                    return
                continue
            if await feed.wait(version, heartbeat_s):
                continue
            now = await run_in_threadpool(standing, self._database.read, run)
            if now is None:
                return  # it was deleted
            if now.is_over and at == now.last_event:
                yield [RunEvent(at, "done", _told(now))]  # the command line worked on it, which writes no log
                return
            yield []

    async def _without_log(self, now: Standing) -> AsyncIterator[list[RunEvent]]:
        """What can be told of a run that the command line works on."""
        yield [RunEvent(0, "snapshot", _told(now))]
        while not self._closed:
            if now.is_over:
                yield [RunEvent(0, "done", _told(now))]
                return
            await asyncio.sleep(_POLL_S)
            before, found = now, await run_in_threadpool(standing, self._database.read, now.run.id)
            if found is None:
                return
            now = found
            if now.progress != before.progress:
                yield [RunEvent(0, "progress", msgspec.json.encode(now.progress).decode())]

    def is_over(self, run: str, last_id: str | None) -> bool:
        """Whether a reader has seen all that will ever be there."""
        now = self.standing(run)
        return now.is_over and last_id is not None and last_id == str(now.last_event)

    def _place(self, run: str, last_id: str | None) -> int | None:
        """The position that a reader has come to; None where it is not known."""
        if last_id is None or not (last_id.isascii() and last_id.isdecimal()) or len(last_id) > 18:
            return None
        last = self.log.last([run]).get(run)
        return int(last_id) if last is not None and 0 <= int(last_id) <= last else None

    def _snapshot(self, run: str) -> RunEvent:
        """How the run stands, with the position of the last event that is in it.

        Of a run that is done the last event is left out, so that a reader is told of it too.
        """
        now = self.standing(run)
        last = now.last_event or 0
        return RunEvent(max(last - 1, 0) if now.run.status in ENDED else last, "snapshot", _told(now))

    def _is_last(self, run: str, n: int) -> bool:
        """Whether nothing stands behind this event: a run that was resumed goes on after its first end."""
        return self.log.last([run]).get(run, n) <= n

    def _joined(self, run: str) -> _Feed:
        feed = self._feeds.setdefault(run, _Feed())
        feed.readers += 1
        if self._watching is None or self._watching.done():
            self._loop = asyncio.get_running_loop()
            self._hinted = asyncio.Event()
            self._watching = self._loop.create_task(self._watch())
        return feed

    def _left(self, run: str, feed: _Feed) -> None:
        feed.readers -= 1
        if not feed.readers:
            del self._feeds[run]
        if not self._feeds and self._watching is not None:
            self._watching.cancel()
            self._watching = None

    async def _watch(self) -> None:
        """Look for what is new as long as anybody reads."""
        while True:
            for feed in self._feeds.values() if self._closed else ():
                feed.tell([])
            with suppress(StoreError):
                await self._look()
            try:
                async with asyncio.timeout(_POLL_S):
                    await self._hinted.wait()
            except TimeoutError:
                continue
            if not self._closed:
                await asyncio.sleep(_GATHER_S)
            self._hinted.clear()

    async def _look(self) -> None:
        last = await run_in_threadpool(self.log.last, list(self._feeds))
        for run, feed in list(self._feeds.items()):
            if feed.last is None:
                feed.last = last.get(run, 0)
            while feed.last < last.get(run, 0):
                found = await run_in_threadpool(self.log.after, run, feed.last, _PAGE)
                feed.tell(found)
                if not found:
                    break  # the run was deleted at this moment


def _told(now: Standing) -> str:
    data = {"evaluation_id": now.run.id, "status": now.run.status, "error_message": now.run.error_message}
    return msgspec.json.encode({**data, "progress": now.progress}).decode()


class _Feed:
    """What is new in one run's log, for all its readers."""

    def __init__(self) -> None:
        self.readers = 0
        self.version = 0
        self.last: int | None = None
        """The position that was looked at; None before the first look."""
        self._recent: deque[RunEvent] = deque(maxlen=_SHARED)
        self._changed = asyncio.Event()

    def is_far_ahead_of(self, n: int) -> bool:
        return self.last is not None and self.last - n > _FAR_BEHIND

    def tell(self, events: list[RunEvent]) -> None:
        """Hand on what was found; nothing wakes the readers alone."""
        self._recent.extend(events)
        if events:
            self.last = events[-1].n
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    def behind(self, n: int) -> list[RunEvent]:
        """The events after a position, where the next one is at hand."""
        if not self._recent or self._recent[0].n > n + 1:
            return []
        return [event for event in self._recent if event.n > n]

    async def wait(self, version: int, seconds: float) -> bool:
        """Wait for something new; False where nothing came."""
        if self.version != version:
            return True
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

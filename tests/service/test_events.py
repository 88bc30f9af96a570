"""Live events: no gaps and no repeats after any failure; a slow reader does not affect others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from gradeline.model import Run
from gradeline.service import events as module
from gradeline.service.events import EventBroker, KeepAlive, NewEvent, RunEvent
from gradeline.service.queue import Queue
from gradeline.store import SqliteStorage
from gradeline.store.database import Transaction
from gradeline.store.queries import insert_run

sys.path.insert(0, str(Path(__file__).parent))

from live import EchoAgent, Server, suite_of


class Log:
    """A run with a log, and its readers."""

    def __init__(self, storage: SqliteStorage) -> None:
        self.events = EventBroker(storage.database)
        self.queue = Queue(storage.database, self.events.log, 15.0)
        self._database = storage.database

        def work(transaction: Transaction) -> None:
            run = Run(id="r", name="r", suite="s", total=3)
            insert_run(transaction, run)
            self.queue.add(transaction, run, "{}")

        self._database.transact(work)

    def add(self, count: int) -> None:
        happened = [NewEvent("result", {"n": n}) for n in range(count)]
        self._database.transact(lambda transaction: self.events.log.append(transaction, "r", happened))
        self.events.changed("r")

    def finish(self) -> None:
        claim = self.queue.claim()
        assert claim is not None
        self.queue.finish(claim, {"status": "completed"})
        self.events.changed("r")

    async def read(
        self, last_id: str | None = None, *, after: Callable[[int], None] = lambda _: None
    ) -> list[RunEvent]:
        """All events of a reader; ``after`` gets their number."""
        found: list[RunEvent] = []
        async for event in self.events.follow("r", last_id):
            if isinstance(event, RunEvent):
                found.append(event)
                after(len(found))
        return found


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with SqliteStorage(tmp_path / "store.db") as storage:
        yield Log(storage)


def numbers(found: list[RunEvent]) -> list[tuple[int, str]]:
    return [(event.n, event.kind) for event in found]


def test_a_reader_starts_with_a_snapshot_and_receives_the_end(log: Log) -> None:
    log.add(2)

    def later(count: int) -> None:
        if count == 1:
            log.add(1)
            log.finish()

    found = asyncio.run(log.read(after=later))
    assert numbers(found) == [
        (3, "snapshot"),
        (4, "result"),
        (5, "status"),
        (6, "progress"),
        (7, "status"),
        (8, "done"),
    ]
    assert found[0].data == (
        '{"evaluation_id":"r","status":"pending","error_message":null,'
        '"progress":{"total":3,"answered":0,"graded":0,"errors":0}}'
    )


def test_a_reader_continues_after_the_last_event_it_read(log: Log) -> None:
    log.add(2)
    log.finish()
    assert numbers(asyncio.run(log.read("2"))) == [
        (3, "result"),
        (4, "status"),
        (5, "progress"),
        (6, "status"),
        (7, "done"),
    ]


@pytest.mark.parametrize("unknown", ["", "x", "99", "-1", "1.0", "٣", "9" * 40])
def test_an_unknown_position_starts_with_a_snapshot(log: Log, unknown: str) -> None:
    log.add(2)
    log.finish()
    assert numbers(asyncio.run(log.read(unknown))) == [(6, "snapshot"), (7, "done")]


def test_the_log_of_a_resumed_run_continues_after_its_first_end(log: Log, tmp_path: Path) -> None:
    log.finish()
    with SqliteStorage(tmp_path / "store.db") as storage:
        run = storage.get_run("r")
        assert run is not None
        storage.database.transact(lambda one: log.queue.add_again(one, run, retry_failed=False))
    log.finish()
    kinds = [kind for _, kind in numbers(asyncio.run(log.read("0")))]
    assert kinds == ["status", "status", "progress", "status", "done"] * 2


def test_a_reader_that_is_far_behind_gets_a_snapshot(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FAR_BEHIND", 100)

    async def read() -> list[RunEvent]:
        stream = log.events.follow("r", "1")
        log.add(50)
        found = [await anext(stream)]
        log.add(600)
        await asyncio.sleep(0)
        while (log.events._feeds["r"].last or 0) < 600:
            await asyncio.sleep(0.01)
        log.finish()
        found += [event async for event in stream if isinstance(event, RunEvent)]
        return found

    found = numbers(asyncio.run(read()))
    place = next(index for index, (_, kind) in enumerate(found) if kind == "snapshot")
    assert found[place][0] > 600
    assert found[-1][1] == "done"
    behind = [n for n, _ in found[place + 1 :]]
    assert behind == list(range(found[place][0] + 1, found[place][0] + 1 + len(behind)))


def test_nothing_that_happens_is_a_heartbeat(log: Log) -> None:
    async def read() -> list[RunEvent | KeepAlive]:
        stream = log.events.follow("r", "1", heartbeat_s=0.01)
        found = [await anext(stream), await anext(stream)]
        log.events.close()
        return found + [event async for event in stream]

    assert set(asyncio.run(read())) == {KeepAlive()}


def test_the_stream_of_a_deleted_run_ends(log: Log, tmp_path: Path) -> None:
    async def read() -> list[RunEvent | KeepAlive]:
        stream = log.events.follow("r", "1", heartbeat_s=0.01)
        found = [await anext(stream)]
        with SqliteStorage(tmp_path / "store.db") as storage:
            storage.delete_run("r")
        return found + [event async for event in stream]

    assert set(asyncio.run(read())) == {KeepAlive()}


def test_many_readers_share_one_query_of_the_log(log: Log) -> None:
    async def read() -> tuple[int, list[list[tuple[int, str]]]]:
        tasks = [asyncio.create_task(log.read("1")) for _ in range(100)]
        while log.events.readers < 100:
            await asyncio.sleep(0)
        feeds = len(log.events._feeds)
        log.add(3)
        log.finish()
        return feeds, [numbers(found) for found in await asyncio.gather(*tasks)]

    feeds, found = asyncio.run(read())
    assert feeds == 1
    assert all(one == found[0] and len(one) == 7 for one in found)
    assert (log.events.readers, log.events._feeds) == (0, {})


def test_a_run_of_the_command_line_has_events_without_a_log(tmp_path: Path) -> None:
    with SqliteStorage(tmp_path / "store.db") as storage:
        log = Log(storage)
        storage.save_run(Run(id="theirs", name="theirs", suite="s", status="running"))

        async def read() -> list[RunEvent | KeepAlive]:
            stream = log.events.follow("theirs")
            found = [await anext(stream)]
            storage.update_run("theirs", status="completed")
            return found + [event async for event in stream]

        found = asyncio.run(read())
    assert [(event.n, event.kind) for event in found if isinstance(event, RunEvent)] == [(0, "snapshot"), (0, "done")]


def test_a_stream_that_is_cut_again_and_again_has_no_gap_and_no_repeat(tmp_path: Path) -> None:
    with EchoAgent(0.003) as agent:
        with Server(tmp_path / "store.db") as server:
            run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 100, concurrency=4)})["id"]
            seen: list[Any] = []
            last = 0
            while len(seen) < 40:
                stream = server.events(run, last)
                seen += islice(stream, 7)
                stream.close()  # type: ignore[attr-defined]
                last = seen[-1].id
            server.kill()
        with Server(tmp_path / "store.db") as server:
            seen += server.events(run, last)
            status, nothing = server.call(
                "GET", f"/api/evaluations/{run}/events", **{"Last-Event-ID": str(seen[-1].id)}
            )
            assert (status, nothing) == (204, None)
    assert [event.id for event in seen] == list(range(1, len(seen) + 1))
    results = [event.data["test_case_id"] for event in seen if event.kind == "result"]
    assert sorted(results) == sorted(f"q{n}" for n in range(100))
    assert seen[-1].kind == "done"


def test_streams_end_with_their_server(tmp_path: Path) -> None:
    with EchoAgent() as agent, Server(tmp_path / "store.db") as server:
        agent.may_answer.clear()
        run = server.data("POST", "/api/evaluations", {"suite": suite_of(agent, 1)})["id"]
        stream = server.events(run)
        first = next(stream)
        agent.wait_for(1)
        agent.may_answer.set()
        assert server.terminate() == 0
        rest = list(stream)
    ids = [first.id, *(event.id for event in rest)]
    assert ids == list(range(first.id, first.id + len(ids)))

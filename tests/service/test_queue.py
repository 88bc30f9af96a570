"""The database as the queue: claims, leases and takeovers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradeline.model import Response, ResponseKey, Run, Sample
from gradeline.service.claimed_run import ClaimedRun
from gradeline.service.events import EventLog, NewEvent
from gradeline.service.queue import QUARANTINED, Claim, LostClaimError, Queue
from gradeline.store import SqliteStorage
from gradeline.store.queries import insert_run

LEASE_S = 15.0


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SqliteStorage]:
    with SqliteStorage(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def clock() -> Clock:
    return Clock()


def queue_on(storage: SqliteStorage, clock: Clock, owner: str | None = None) -> Queue:
    queue = Queue(storage.database, EventLog(storage.database), LEASE_S, clock)
    if owner is not None:
        queue.owner = owner
    return queue


def add(storage: SqliteStorage, queue: Queue, *ids: str) -> None:
    for name in ids:
        run = Run(id=name, name=name, suite="s")

        def work(transaction: object, run: Run = run) -> None:
            insert_run(transaction, run)  # type: ignore[arg-type]
            queue.add(transaction, run, "{}")  # type: ignore[arg-type]

        storage.database.transact(work)


def status(storage: SqliteStorage, run: str) -> str:
    found = storage.get_run(run)
    assert found is not None
    return found.status


def test_runs_are_claimed_in_the_order_in_which_they_came(storage: SqliteStorage, clock: Clock) -> None:
    queue = queue_on(storage, clock)
    add(storage, queue, "b", "a", "c")
    assert [queue.claim(), queue.claim("b"), queue.claim("ab"), queue.claim("abc")] == [
        Claim("b", 1, 1, False, 1),
        Claim("a", 1, 1, False, 1),
        Claim("c", 1, 1, False, 1),
        None,
    ]
    assert [status(storage, run) for run in "abc"] == ["running"] * 3


def test_no_run_is_claimed_twice_however_many_claim_at_once(storage: SqliteStorage, clock: Clock) -> None:
    queues = [queue_on(storage, clock, f"elsewhere|{n}:1:1|{n}") for n in range(4)]
    names = [f"run {n:02}" for n in range(20)]
    add(storage, queues[0], *names)

    def all_of(queue: Queue) -> list[str]:
        found: list[str] = []
        while (claim := queue.claim(found)) is not None:
            found.append(claim.run)
        return found

    with ThreadPoolExecutor(4) as pool:
        claimed = [run for runs in pool.map(all_of, queues) for run in runs]
    assert sorted(claimed) == names


def test_a_run_without_a_heartbeat_for_a_lease_is_taken_over(storage: SqliteStorage, clock: Clock) -> None:
    first, second = queue_on(storage, clock, "far|host:1:1|a"), queue_on(storage, clock, "near|host:2:1|b")
    add(storage, first, "r")
    claim = first.claim()
    assert claim is not None
    assert second.claim() is None
    clock.now += LEASE_S - 0.1
    assert second.claim() is None
    assert first.heartbeat([claim]) == {"r": None}
    clock.now += LEASE_S - 0.1
    assert second.claim() is None, "it was heard of since"
    clock.now += LEASE_S
    assert second.claim() == Claim("r", 2, 1, False, 2, crashes=1)
    assert first.heartbeat([claim]) == {}, "the one before is told so"


def test_a_run_of_a_dead_process_of_this_machine_is_taken_over_at_once(storage: SqliteStorage, clock: Clock) -> None:
    mine = queue_on(storage, clock)
    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "from gradeline.store.leases import this_process; print(this_process(), end='')",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = queue_on(storage, clock, f"{ended.stdout}|x")
    add(storage, theirs, "r")
    assert theirs.claim() is not None
    assert mine.claim() == Claim("r", 2, 1, False, 2, crashes=1)


def test_a_run_that_its_owner_no_longer_holds_is_claimed_again(storage: SqliteStorage, clock: Clock) -> None:
    queue = queue_on(storage, clock)
    add(storage, queue, "r")
    assert queue.claim() == Claim("r", 1, 1, False, 1)
    assert queue.claim(held=["r"]) is None
    assert queue.claim(held=[]) == Claim("r", 2, 1, False, 2)


async def _put(held: ClaimedRun) -> None:
    async with held.writer() as writer:
        await writer.put_response(ResponseKey("r", "one"), Response(text="late"), Sample("one", "?"))


def test_the_previous_owner_can_store_nothing_more(storage: SqliteStorage, clock: Clock) -> None:
    import asyncio

    first, second = queue_on(storage, clock, "far|host:1:1|a"), queue_on(storage, clock, "near|host:2:1|b")
    log = EventLog(storage.database)
    add(storage, first, "r")
    stale = first.claim()
    assert stale is not None
    second.claim()
    clock.now += LEASE_S
    fresh = second.claim()
    assert fresh is not None
    zombie = ClaimedRun(storage, first, log, stale)
    with pytest.raises(Exception, match="taken over by another process"):
        asyncio.run(_put(zombie))
    assert zombie.lost
    with pytest.raises(LostClaimError):
        zombie.end(status="completed")
    assert (storage.get_response(ResponseKey("r", "one")), status(storage, "r")) == (None, "running")
    asyncio.run(_put(ClaimedRun(storage, second, log, fresh)))
    assert storage.get_response(ResponseKey("r", "one")) == Response(text="late")


def test_a_released_run_is_claimed_by_any_process(storage: SqliteStorage, clock: Clock) -> None:
    queue, other = queue_on(storage, clock, "far|host:1:1|a"), queue_on(storage, clock, "near|host:2:1|b")
    add(storage, queue, "r")
    claim = queue.claim()
    assert claim is not None
    assert queue.release(claim).status == "pending"
    taken = other.claim()
    assert taken is not None
    assert (taken.run, taken.generation) == ("r", 1)
    with pytest.raises(LostClaimError):
        queue.release(claim)


def test_a_queued_run_is_cancelled_at_once_and_a_running_one_by_its_owner(storage: SqliteStorage, clock: Clock) -> None:
    queue = queue_on(storage, clock)
    add(storage, queue, "running", "waiting")
    claim = queue.claim()
    assert claim is not None
    ended = queue.cancel("waiting", "because")
    assert ended is not None
    assert (ended.status, ended.error_message) == ("cancelled", "because")
    asked = queue.cancel("running", "because")
    assert asked is not None
    assert asked.status == "running"
    assert queue.heartbeat([claim]) == {"running": "cancel"}
    assert queue.cancel("waiting", "again") is None


def test_a_run_that_ended_can_wait_again_as_another_attempt(storage: SqliteStorage, clock: Clock) -> None:
    queue = queue_on(storage, clock)
    add(storage, queue, "r")
    claim = queue.claim()
    assert claim is not None
    ended = queue.finish(claim, {"status": "failed", "error_message": "no"})
    again = storage.database.transact(lambda one: queue.add_again(one, ended, retry_failed=True))
    assert again is not None
    assert (again.status, again.error_message) == ("pending", None)
    assert storage.database.transact(lambda one: queue.add_again(one, again, retry_failed=True)) is None
    claimed = queue.claim()
    assert claimed is not None
    assert (claimed.generation, claimed.retry_failed, claimed.attempts) == (2, True, 1)


def test_the_log_numbers_events_without_gaps_or_duplicates(storage: SqliteStorage, clock: Clock) -> None:
    queue, log = queue_on(storage, clock), EventLog(storage.database)
    add(storage, queue, "r")
    one, two = NewEvent("result", {"a": 1}, "a"), NewEvent("result", {"b": 1}, "b")
    for happened in ([one], [one, two], [two]):
        storage.database.transact(lambda transaction, all_=happened: log.append(transaction, "r", all_))
    assert [tuple(event) for event in log.after("r", 0, 100)] == [
        (1, "status", '{"status":"pending"}'),
        (2, "result", '{"a":1}'),
        (3, "result", '{"b":1}'),
    ]
    assert log.last(["r", "unknown"]) == {"r": 3}


def test_the_log_goes_with_its_run(storage: SqliteStorage, clock: Clock) -> None:
    queue, log = queue_on(storage, clock), EventLog(storage.database)
    add(storage, queue, "r")
    assert storage.delete_run("r")
    assert (log.after("r", 0, 10), log.last(["r"]), queue.waiting()) == ([], {}, 0)


def test_a_run_that_two_processes_died_with_is_quarantined_until_a_person_resumes_it(
    storage: SqliteStorage, clock: Clock
) -> None:
    dead = [f"{_dead_process()}|{name}" for name in "ab"]
    queue = queue_on(storage, clock)
    add(storage, queue, "bomb", "other")
    for crashes, owner in enumerate(dead):
        taken = queue_on(storage, clock, owner).claim("other" if crashes else ())
        assert taken is not None
        assert (taken.run, taken.crashes) == ("bomb", crashes)
    # no process takes it up again, and the others are not held up
    claim = queue.claim()
    assert claim is not None
    assert (claim.run, queue.claim(["other"])) == ("other", None)
    ended = storage.get_run("bomb")
    assert ended is not None
    assert (ended.status, ended.error_message) == ("failed", QUARANTINED)
    again = storage.database.transact(lambda one: queue.add_again(one, ended, retry_failed=False))
    assert again is not None
    resumed = queue.claim(["other"])
    assert resumed is not None
    assert (resumed.run, resumed.crashes) == ("bomb", 0)


def test_a_stopped_process_is_not_a_crash(storage: SqliteStorage, clock: Clock) -> None:
    mine = queue_on(storage, clock)
    add(storage, mine, "r")
    for tries in (1, 2, 3):
        stopped = queue_on(storage, clock, f"{_dead_process()}|{tries}")
        claim = stopped.claim()
        assert claim is not None
        assert (claim.attempts, claim.crashes) == (tries, 0)
        stopped.announce_stop()
        assert stopped.heartbeat([claim]) == {"r": "stop"}
    given_back = mine.claim()
    assert given_back is not None
    mine.announce_stop()
    mine.release(given_back)
    again = mine.claim()
    assert again is not None
    assert mine.heartbeat([again]) == {"r": None}, "the next one is not stopping"


def test_a_stop_does_not_hide_a_cancellation(storage: SqliteStorage, clock: Clock) -> None:
    queue = queue_on(storage, clock)
    add(storage, queue, "r")
    claim = queue.claim()
    assert claim is not None
    queue.cancel("r", "enough")
    queue.announce_stop()
    assert queue.heartbeat([claim]) == {"r": "cancel"}


def test_a_run_that_could_not_be_released_has_no_crash(storage: SqliteStorage, clock: Clock) -> None:
    queue = queue_on(storage, clock)
    add(storage, queue, "r")
    queue.claim()
    taken = [queue.claim() for _ in range(3)]
    assert [one and (one.run, one.crashes) for one in taken] == [("r", 0)] * 3


def _dead_process() -> str:
    code = "from gradeline.store.leases import this_process; print(this_process())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

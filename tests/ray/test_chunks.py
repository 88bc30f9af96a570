"""How a run is split into chunks, and how a returned chunk is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from math import ceil

import pytest

from gradeline.engine.execute import Rate, Stop
from gradeline.engine.plan import Planned, ProgressCount, Work
from gradeline.engine.ray.chunks import FEWEST, LANES, MOST, WANTED_SECONDS, Chunk, ChunkQueue, shares
from gradeline.engine.ray.worker import LeasedRateLimiter, RateLimitActor
from gradeline.model import ResponseKey, Sample


def planned(count: int, work: Work = Work.RERUN) -> Iterator[Planned]:
    for n in range(count):
        yield Planned(ResponseKey("r", str(n)), Sample(n, f"q{n}"), n, work, "", ("exact",))


def sizes(chunks: Iterable[Chunk | None]) -> list[int]:
    return [len(chunk.planned) for chunk in chunks if chunk is not None]


async def cut_to_the_end(cases: int, workers: int, concurrency: int) -> list[int]:
    chunks = ChunkQueue(planned(cases), lambda _: None, workers, concurrency)
    found = []
    while (chunk := await chunks.take()) is not None:
        found.append(len(chunk.planned))
        await chunks.done(chunk, 0.01)
    return found


@pytest.mark.parametrize("concurrency", [1, 7, 60, 300])
@pytest.mark.parametrize("cases", [1, 2, 3, 10, 60, 399, 1_000, 1_001, 2_345])
def test_near_the_end_the_remaining_cases_are_split_evenly(cases: int, concurrency: int) -> None:
    """So that no worker is busy much longer than the others, and each uses its full concurrency."""
    workers = 3
    first, *others = asyncio.run(cut_to_the_end(cases, workers, concurrency))
    assert first <= FEWEST
    left = cases - first
    seen = cases if cases < workers * FEWEST else min(left, workers * MOST)
    for size in others:
        part = ceil(max(left, min(concurrency, seen)) / (workers * LANES))
        assert size == min(left, part if left < workers * MOST else MOST)
        left -= size
    assert left == 0


@pytest.mark.parametrize(
    ("concurrency", "expected"),
    [(1, [7, 6, 5, 4, 4, 3, 3, 3]), (40, [7, 6, 5, 5, 5, 5, 5, 5]), (1_000, [7, 7, 7, 7, 7, 7, 7, 1])],
)
def test_a_small_run_is_shared_out_among_the_lanes_of_all_workers(concurrency: int, expected: list[int]) -> None:
    async def cut() -> list[int]:
        chunks = ChunkQueue(planned(50), lambda _: None, 4, concurrency)
        return sizes([await chunks.take() for _ in expected])

    assert asyncio.run(cut()) == expected


def test_read_ahead_is_bounded() -> None:
    """A driver's memory does not grow with the dataset."""
    read = 0

    def note(_: Planned) -> None:
        nonlocal read
        read += 1

    async def cut() -> None:
        chunks = ChunkQueue(planned(100_000), note, workers=2, concurrency=2)
        handed_out = 0
        for _ in range(20):
            chunk = await chunks.take()
            assert chunk is not None
            handed_out += len(chunk.planned)
            assert read - handed_out <= 2 * MOST
            await chunks.done(chunk, 0.01)

    asyncio.run(cut())


def test_chunks_grow_to_ten_seconds_of_work() -> None:
    async def cut() -> list[int]:
        chunks = ChunkQueue(planned(5_000), lambda _: None, workers=2, concurrency=2)
        found = []
        for seconds in (WANTED_SECONDS / 2, 0.01, 60.0, WANTED_SECONDS):
            chunk = await chunks.take()
            assert chunk is not None
            found.append(len(chunk.planned))
            await chunks.done(chunk, seconds)
        return found

    assert asyncio.run(cut()) == [FEWEST, 2 * FEWEST, MOST, FEWEST]


def test_returned_chunks_are_handed_out_first_and_counted() -> None:
    async def cut() -> tuple[Chunk | None, Chunk | None, bool, Chunk | None, bool]:
        chunks = ChunkQueue(planned(2 * FEWEST), lambda _: None, workers=1, concurrency=1)
        first, second = await chunks.take(), await chunks.take()
        assert first is not None
        assert second is not None
        waiting = asyncio.create_task(chunks.take())
        await asyncio.sleep(0)
        idle = waiting.done()
        await chunks.give_back(first)
        again = await waiting
        assert again is not None
        await chunks.done(again, 1.0)
        await chunks.done(second, 1.0)
        return first, again, idle, await chunks.take(), chunks.over.is_set()

    first, again, idle, end, over = asyncio.run(cut())
    assert first is not None
    assert again == first._replace(tries=1)
    assert (idle, end, over) == (False, None, True)


def test_stored_results_are_not_work() -> None:
    noted: list[Planned] = []

    async def cut() -> Chunk | None:
        chunks = ChunkQueue(planned(3, Work.REUSE), lambda one: noted.append(one), workers=1, concurrency=1)  # type: ignore[func-returns-value]
        return await chunks.take()

    assert asyncio.run(cut()) is None
    assert len(noted) == 3


def test_an_ended_run_assigns_no_chunks_and_finishes_with_the_last_one() -> None:
    async def cut() -> tuple[Chunk | None, bool, bool]:
        chunks = ChunkQueue(planned(10 * MOST), lambda _: None, workers=1, concurrency=1)
        one = await chunks.take()
        assert one is not None
        await chunks.end()
        before = chunks.over.is_set()
        await chunks.give_back(one)
        return await chunks.take(), before, chunks.over.is_set()

    assert asyncio.run(cut()) == (None, False, True)


@pytest.mark.parametrize(
    ("concurrency", "workers", "expected"), [(100, 2, [50, 50]), (10, 4, [3, 3, 2, 2]), (2, 8, [1, 1]), (1, 1, [1])]
)
def test_calls_in_flight_are_limited_over_the_whole_run(concurrency: int, workers: int, expected: list[int]) -> None:
    assert list(shares(concurrency, workers)) == expected


class LocalLessor:
    """A lessor of rate limits in this process."""

    def __init__(self, rate: Rate) -> None:
        self._keeper = RateLimitActor(rate)
        self.leases: list[int] = []

    async def lease(self, number: int) -> list[float]:
        self.leases.append(number)
        await asyncio.sleep(0)
        return self._keeper.lease(number)


def test_leases_do_not_exceed_the_rate() -> None:
    delays = RateLimitActor(Rate(3, 10.0)).lease(7)
    assert [round(delay) for delay in delays] == [0, 0, 0, 10, 10, 10, 20]


def test_waiting_calls_request_leases_together() -> None:
    async def wait() -> list[int]:
        lessor = LocalLessor(Rate(1_000, 1.0))
        turns = LeasedRateLimiter(lessor)
        await asyncio.gather(*(turns.wait(Stop()) for _ in range(20)))
        return lessor.leases

    assert asyncio.run(wait()) == [20]


def test_a_stopped_run_does_not_wait_for_a_lease() -> None:
    async def wait() -> None:
        turns, stop = LeasedRateLimiter(LocalLessor(Rate(1, 3_600.0))), Stop()
        await turns.wait(stop)
        waiting = asyncio.create_task(turns.wait(stop))
        await asyncio.sleep(0.01)
        stop.set("enough")
        await waiting

    asyncio.run(wait())


def test_tallies_add_up_and_an_unknown_cost_stays_unknown() -> None:
    assert ProgressCount(1, 0, 1, 0).plus(ProgressCount(2, 1, 0, 1)) == ProgressCount(3, 1, 1, 1, None)
    assert ProgressCount(1, cost=0.5).plus(ProgressCount(1)) == ProgressCount(2, cost=0.5)

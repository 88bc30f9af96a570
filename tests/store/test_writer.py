"""Group commit: what goes into one transaction, and that no caller waits forever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from itertools import count
from threading import current_thread, main_thread
from time import sleep
from typing import Any
from unittest.mock import patch

import pytest

from gradeline.errors import Outcome, StoreError
from gradeline.model import Grade, Response, ResponseKey, Sample
from gradeline.store.rows import RecordRow, ResponseRow
from gradeline.store.writer import IDLE_SECONDS, POSTED_ROWS, POSTED_SECONDS, QUICK_SECONDS, Writer

GRADED = {"exact": ("yes", Grade("exact_match", "f", Outcome.PASS, 1.0, True))}


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


def count_time_by_turns() -> AbstractContextManager[object]:
    """The loop's clock moves on whenever it is read: a machine that is busy makes no quiet moment."""
    ticks = count()
    return patch.object(asyncio.get_running_loop(), "time", lambda: next(ticks) * IDLE_SECONDS / 100)


class Commits:
    """Notes what is committed together, as ``r`` and ``g`` with the case's name."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, rows: Sequence[RecordRow]) -> list[StoreError | None]:
        self.batches.append([f"{'r' if isinstance(row, ResponseRow) else 'g'}{row.case}" for row in rows])
        return [None] * len(rows)


async def put(writer: Writer, case: str) -> None:
    await writer.put_response(ResponseKey("run", case), Response(text="yes"), Sample(case, "?"), 0)


@in_loop
async def test_rows_put_in_one_loop_turn_are_committed_together() -> None:
    commits = Commits()
    async with Writer(commits) as writer:
        await asyncio.gather(put(writer, "1"), put(writer, "2"))
    assert commits.batches == [["r1", "r2"]]


@in_loop
async def test_a_batch_that_is_full_does_not_wait_for_more() -> None:
    commits = Commits()
    async with Writer(commits, batch_rows=2) as writer:
        await asyncio.gather(*(put(writer, str(number)) for number in range(5)))
    assert commits.batches == [["r0", "r1"], ["r2", "r3"], ["r4"]]


@in_loop
async def test_grades_are_deferred_while_responses_are_awaited() -> None:
    commits = Commits()
    async with Writer(commits) as writer:
        await put(writer, "1")
        await writer.post_grades(ResponseKey("run", "1"), GRADED)
        await put(writer, "2")
    assert commits.batches == [["r1"], ["r2"], ["g1"]]


@in_loop
async def test_grades_that_are_put_are_committed_when_it_returns() -> None:
    commits = Commits()
    async with Writer(commits) as writer:
        await put(writer, "1")
        await writer.put_grades(ResponseKey("run", "1"), {**GRADED, "judge": GRADED["exact"]})
        assert commits.batches == [["r1"], ["g1", "g1"]]


@in_loop
async def test_a_refused_grade_is_reported_to_its_caller() -> None:
    def commit(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        return [StoreError("full")] * len(rows)

    async with Writer(commit) as writer:
        with pytest.raises(StoreError, match="full"):
            await writer.put_grades(ResponseKey("run", "1"), GRADED)


@in_loop
async def test_deferred_grades_are_committed_with_the_next_response() -> None:
    commits = Commits()
    async with Writer(commits) as writer:
        for number in range(POSTED_ROWS + 1):
            await writer.post_grades(ResponseKey("run", str(number)), GRADED)
        await put(writer, "last")
    assert [len(batch) for batch in commits.batches] == [POSTED_ROWS + 2]


@in_loop
async def test_grades_are_committed_though_no_response_follows() -> None:
    stored = asyncio.Event()
    loop = asyncio.get_running_loop()

    def commit(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        loop.call_soon_threadsafe(stored.set)
        return [None] * len(rows)

    async with Writer(commit) as writer:
        await writer.post_grades(ResponseKey("run", "1"), GRADED)
        await stored.wait()


@in_loop
async def test_grades_and_checkpoints_wait_for_an_idle_moment() -> None:
    commits = Commits()
    tidied: list[int] = []
    with count_time_by_turns():
        async with Writer(commits, commits, lambda: tidied.append(len(commits.batches))) as writer:
            await writer.post_grades(ResponseKey("run", "1"), GRADED)
            until = asyncio.get_running_loop().time() + 1.5 * POSTED_SECONDS
            number = 0
            while asyncio.get_running_loop().time() < until:
                await put(writer, str(number := number + 1))
                await asyncio.sleep(0)
            assert tidied == []
            assert not any("g1" in batch for batch in commits.batches)
            while not tidied:
                await asyncio.sleep(0.001)
            assert commits.batches[-1] == ["g1"]
            assert tidied == [len(commits.batches)]


@in_loop
async def test_grades_do_not_wait_forever_for_an_idle_moment() -> None:
    commits = Commits()
    tidied: list[int] = []
    with count_time_by_turns():
        async with Writer(commits, commits, lambda: tidied.append(1)) as writer:
            await writer.post_grades(ResponseKey("run", "1"), GRADED)
            number = 0
            while not any("g1" in batch for batch in commits.batches[-2:]):
                await put(writer, str(number := number + 1))
                await asyncio.sleep(0)
            assert tidied == []


@in_loop
async def test_a_slow_disk_is_not_checkpointed_in_the_loop() -> None:
    threads: list[str] = []
    tidied: list[int] = []

    def commit(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        threads.append(current_thread().name)
        sleep(2 * QUICK_SECONDS)
        return [None] * len(rows)

    async with Writer(commit, commit, lambda: tidied.append(1)) as writer:
        await put(writer, "1")
        await writer.post_grades(ResponseKey("run", "1"), GRADED)
        while len(threads) < 2:
            await asyncio.sleep(0.001)
    assert threads == [main_thread().name, "gradeline-writer"]
    assert tidied == []


@in_loop
async def test_a_full_queue_accepts_every_caller_eventually() -> None:
    commits = Commits()
    async with Writer(commits, queue_rows=1, batch_rows=1) as writer:
        await asyncio.gather(*(put(writer, str(number)) for number in range(20)))
    assert [row for batch in commits.batches for row in batch] == [f"r{number}" for number in range(20)]


@in_loop
async def test_callers_waiting_for_a_full_queue_get_a_failed_commit() -> None:
    def commit(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        raise StoreError("the disk is full")

    async with Writer(commit, queue_rows=1) as writer:
        message = await asyncio.gather(*(put(writer, str(number)) for number in range(20)), return_exceptions=True)
    assert [type(one) for one in message] == [StoreError] * 20


@in_loop
async def test_only_the_caller_of_a_refused_row_gets_the_error() -> None:
    def commit(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        return [StoreError("bad row") if row.case == "1" else None for row in rows]

    async with Writer(commit) as writer:
        message = await asyncio.gather(*(put(writer, case) for case in "012"), return_exceptions=True)
    assert [str(one) for one in message] == ["None", "bad row", "None"]


@in_loop
async def test_a_flush_reports_a_refused_grade() -> None:
    async with Writer(lambda rows: [StoreError("bad grade") for _ in rows]) as writer:
        await writer.post_grades(ResponseKey("run", "1"), GRADED)
        with pytest.raises(StoreError, match="bad grade"):
            await writer.flush()


class InLoopDisk:
    """A commit that notes in which thread it was done, and may find somebody else writing. It brings a clock."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.now = 0.0
        self.seconds = 0.0
        """What a commit takes."""
        self.others_write = False

    def clock(self) -> float:
        return self.now

    def commit(self, rows: Sequence[RecordRow]) -> list[StoreError | None]:
        self.done.append("here" if current_thread() is main_thread() else "in a thread")
        self.now += self.seconds
        return [None] * len(rows)

    def try_commit(self, rows: Sequence[RecordRow]) -> list[StoreError | None] | None:
        return None if self.others_write else self.commit(rows)


@in_loop
async def test_quick_commits_run_in_the_event_loop() -> None:
    here = InLoopDisk()
    with patch("gradeline.store.writer.perf_counter", here.clock):
        async with Writer(here.commit, here.try_commit) as writer:
            for number in range(3):
                await put(writer, str(number))
            await writer.post_grades(ResponseKey("run", "1"), GRADED)
            await writer.flush()
    assert here.done == ["here"] * 4


@in_loop
async def test_a_slow_disk_uses_a_thread_until_it_is_fast_again() -> None:
    here = InLoopDisk()
    with patch("gradeline.store.writer.perf_counter", here.clock):
        async with Writer(here.commit, here.try_commit) as writer:
            here.seconds = 2 * QUICK_SECONDS
            await put(writer, "slow")
            here.seconds = 0.0
            await put(writer, "quick")
            await put(writer, "quick too")
    assert here.done == ["here", "in a thread", "here"]


@in_loop
async def test_the_loop_is_not_blocked_while_another_process_writes() -> None:
    here = InLoopDisk()
    here.others_write = True
    async with Writer(here.commit, here.try_commit) as writer:
        await put(writer, "1")
    assert here.done == ["in a thread"]


@in_loop
async def test_a_failed_commit_ends_the_writer_in_any_thread() -> None:
    def commit(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        raise StoreError("the disk is full")

    async with Writer(commit, commit) as writer:
        with pytest.raises(StoreError, match="the disk is full"):
            await put(writer, "1")
        with pytest.raises(StoreError, match="stopped after a failed commit"):
            await put(writer, "2")


@in_loop
async def test_a_flush_does_not_wait_for_later_rows() -> None:
    """While a thread commits one row at a time, others are put again and again."""
    stored: list[str] = []

    def commit(rows: Sequence[RecordRow]) -> list[StoreError | None]:
        sleep(0.001)
        stored.extend(row.case for row in rows)
        return [None] * len(rows)

    async with Writer(commit, batch_rows=1) as writer:
        before = asyncio.ensure_future(put(writer, "before"))
        await asyncio.sleep(0)
        flushed = asyncio.ensure_future(writer.flush())
        others = [asyncio.ensure_future(put(writer, str(number))) for number in range(20)]
        await flushed
        assert before.done()
        assert len(stored) < 20
        await asyncio.gather(*others)

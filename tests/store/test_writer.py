"""Group commit: what goes into one transaction, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any

import pytest

from gradeline.errors import Outcome, StoreError
from gradeline.model import Grade, Response, ResponseKey, Sample
from gradeline.store.rows import ResponseRow, Row
from gradeline.store.writer import POSTED_ROWS, Writer

GRADED = {"exact": ("yes", Grade("exact_match", "f", Outcome.PASS, 1.0, True))}


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Commits:
    """Notes what is committed together, as ``r`` and ``g`` with the case's name."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []

    def __call__(self, rows: Sequence[Row]) -> list[StoreError | None]:
        self.batches.append([f"{'r' if isinstance(row, ResponseRow) else 'g'}{row.case}" for row in rows])
        return [None] * len(rows)


async def put(writer: Writer, case: str) -> None:
    await writer.put_response(ResponseKey("run", case), Response(text="yes"), Sample(case, "?"), 0)


@in_loop
async def test_what_follows_turn_by_turn_is_committed_together() -> None:
    commits = Commits()

    async def later(writer: Writer) -> None:
        await asyncio.sleep(0)
        await put(writer, "2")

    async with Writer(commits) as writer:
        await asyncio.gather(put(writer, "1"), later(writer))
    assert commits.batches == [["r1", "r2"]]


@in_loop
async def test_a_batch_that_is_full_does_not_wait_for_more() -> None:
    commits = Commits()
    async with Writer(commits, batch_rows=2) as writer:
        await asyncio.gather(*(put(writer, str(number)) for number in range(5)))
    assert commits.batches == [["r0", "r1"], ["r2", "r3"], ["r4"]]


@in_loop
async def test_grades_are_put_off_while_responses_are_waited_for() -> None:
    commits = Commits()
    async with Writer(commits) as writer:
        await put(writer, "1")
        await writer.post_grades(ResponseKey("run", "1"), GRADED)
        await put(writer, "2")
    assert commits.batches == [["r1"], ["r2"], ["g1"]]


@in_loop
async def test_many_grades_go_along_with_the_next_response() -> None:
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

    def commit(rows: Sequence[Row]) -> list[StoreError | None]:
        loop.call_soon_threadsafe(stored.set)
        return [None] * len(rows)

    async with Writer(commit) as writer:
        await writer.post_grades(ResponseKey("run", "1"), GRADED)
        await stored.wait()


@in_loop
async def test_a_full_queue_lets_everybody_in_at_last() -> None:
    commits = Commits()
    async with Writer(commits, queue_rows=1, batch_rows=1) as writer:
        await asyncio.gather(*(put(writer, str(number)) for number in range(20)))
    assert [row for batch in commits.batches for row in batch] == [f"r{number}" for number in range(20)]


@in_loop
async def test_those_who_wait_for_a_place_are_told_of_a_failed_commit() -> None:
    def commit(rows: Sequence[Row]) -> list[StoreError | None]:
        raise StoreError("the disk is full")

    async with Writer(commit, queue_rows=1) as writer:
        told = await asyncio.gather(*(put(writer, str(number)) for number in range(20)), return_exceptions=True)
    assert [type(one) for one in told] == [StoreError] * 20


@in_loop
async def test_only_the_owner_of_a_refused_row_is_told() -> None:
    def commit(rows: Sequence[Row]) -> list[StoreError | None]:
        return [StoreError("bad row") if row.case == "1" else None for row in rows]

    async with Writer(commit) as writer:
        told = await asyncio.gather(*(put(writer, case) for case in "012"), return_exceptions=True)
    assert [str(one) for one in told] == ["None", "bad row", "None"]


@in_loop
async def test_a_flush_tells_of_a_grade_that_was_refused() -> None:
    async with Writer(lambda rows: [StoreError("bad grade") for _ in rows]) as writer:
        await writer.post_grades(ResponseKey("run", "1"), GRADED)
        with pytest.raises(StoreError, match="bad grade"):
            await writer.flush()

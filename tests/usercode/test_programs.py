"""A program can be cancelled at any moment without blocking its caller."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import suppress

import pytest

from gradeline.engine import lifecycle
from gradeline.usercode.programs import Program, run_program

TURNS = 40
GUARD = 20


async def _given_up_after(turns: int) -> bool:
    """Whether the call ends if everything is cancelled after this number of turns of the event loop."""
    program = Program("cat", ("cat",), dict(os.environ), None, 60.0)
    running = asyncio.create_task(run_program(program, b"text", lambda _: None))
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as an event loop does that is interrupted
        task.cancel()
    done, _ = await asyncio.wait((running,), timeout=GUARD)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return bool(done)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pipes that asyncio has not come to
def test_a_program_can_be_cancelled_while_it_starts() -> None:
    async def main() -> list[int]:
        return [turns for turns in range(TURNS) if not await _given_up_after(turns)]

    assert lifecycle.run_event_loop(main()) == []


def test_a_program_can_exit_without_reading_its_input(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        for arguments in (("true",), ("sh", "-c", "exec 0<&-; sleep 0.05")):
            ended = await run_program(
                Program("it", arguments, dict(os.environ), None, 60.0), b"x" * 1_000_000, lambda _: None
            )
            assert ended.code == 0

    lifecycle.run_event_loop(main())
    gc.collect()
    assert caplog.messages == []

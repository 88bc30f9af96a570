"""Running a program: what it is given, what it says, and its end with all it started."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import NamedTuple

from gradeline.errors import AgentError
from gradeline.targets.base import EXCERPT
from gradeline.usercode.processes import TOKEN, end_marked, end_tree

_PIECE = 65_536
_PATIENCE = 5.0
_AGAIN = 0.2

Sink = Callable[[bytes], None]
"""Takes a piece of standard output; what it raises ends the program."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program as it is to be run, without a shell. ``name`` is what messages call it."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None
    seconds: float


class Ended(NamedTuple):
    """How a program ended by itself: its exit code, and the end of its standard error."""

    code: int
    errors: bytes


async def run(program: Program, text: str, sink: Sink) -> Ended:
    """Run it with the text as its input.

    `AgentError` where it cannot be started, or does not end in time; then, and whenever this call does not come
    to its end, the program is killed with all it started.
    """
    token = token_hex(16)
    try:
        process = await _started(program, token)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise AgentError("connect", f"{program.name} could not be started: {reason}") from None
    whole = False
    reading = asyncio.create_task(_read(process.stdout, sink))
    listening = asyncio.create_task(_read_end(process.stderr))
    feeding = asyncio.create_task(_feed(process.stdin, text))
    try:
        async with asyncio.timeout(program.seconds):
            _, errors, _ = await asyncio.gather(reading, listening, feeding)
            code = await process.wait()
        whole = True
    except TimeoutError:
        message = f"{program.name} did not end within {program.seconds:g} s and was killed"
        raise AgentError("timeout", message) from None
    finally:
        if not whole:
            for task in (reading, listening, feeding):
                task.cancel()
            await asyncio.wait((reading, listening, feeding))
            await _end(process, token)
    return Ended(code, errors)


async def _started(program: Program, token: str) -> asyncio.subprocess.Process:
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *program.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=program.folder,
            env={**program.environment, TOKEN: token},
            start_new_session=True,
        )
    )
    starting.add_done_callback(_expect_a_broken_pipe)
    try:
        await asyncio.wait((starting,))
    except asyncio.CancelledError:
        # cancelled before it has a program's pipes, asyncio waits for ever for their end, unless it is cancelled again
        while not starting.done():
            starting.cancel()
            await asyncio.wait((starting,), timeout=_AGAIN)
        if not starting.cancelled() and starting.exception() is None:
            await _end(starting.result(), token)
        else:
            end_marked(token)
        raise
    return starting.result()


def _expect_a_broken_pipe(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    """A program may end without having read its input. asyncio (of Python 3.11.2) says so on standard error, unless
    somebody asks how the pipe was closed; and whoever waits for that must not be cancelled."""
    if starting.cancelled() or starting.exception() is not None or (stream := starting.result().stdin) is None:
        return
    asking = stream.wait_closed()
    with suppress(StopIteration, OSError):
        closed: asyncio.Future[None] = asking.send(None)
        closed.add_done_callback(lambda told: told.cancelled() or told.exception())
    asking.close()


async def _read(stream: asyncio.StreamReader | None, sink: Sink) -> None:
    while stream is not None and (piece := await stream.read(_PIECE)):
        sink(piece)


async def _read_end(stream: asyncio.StreamReader | None) -> bytes:
    """Reads all, keeps the end."""
    kept = b""
    while stream is not None and (piece := await stream.read(_PIECE)):
        kept = (kept + piece)[-2 * EXCERPT :]
    return kept


async def _feed(stream: asyncio.StreamWriter | None, text: str) -> None:
    if stream is None:
        return
    # a program may end, or close its input, without having read it
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text.encode(errors="replace"))
        await stream.drain()
    # its end is not waited for: cancelled meanwhile, asyncio would find that it ends something that has ended
    stream.close()


async def _end(process: asyncio.subprocess.Process, token: str) -> None:
    """Kills the process with all it started, and takes leave of its pipes."""

    def kill() -> None:
        end_tree(process.pid)
        # unlike a worker it adopts no orphans, so some may have left its subtree
        end_marked(token)

    if process.returncode is None:
        await asyncio.to_thread(kill)
    else:
        await asyncio.to_thread(end_marked, token)
    if process.stdin is not None:
        process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            # a pipe that is not read to its end is never closed
            await asyncio.gather(_read_end(process.stdout), _read_end(process.stderr), process.wait())

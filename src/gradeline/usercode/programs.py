"""Run programs in any language without a shell: once with an input, or as a process that answers line by line.

A program has a session of its own. When a call fails or is cancelled it is killed with every process that it started,
found as its descendants or by a token in their environment.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import NamedTuple

from gradeline.errors import AgentError
from gradeline.usercode.process_control import NO_LIMIT, TOKEN_VARIABLE, exit_description, kill_by_token, kill_tree

EXCERPT = 2048
"""Maximum bytes of a program's output in a message."""
_PIECE = 65_536
_PATIENCE = 5.0
_AGAIN = 0.2
_END_S = 1.0
"""Seconds in which a program that closed its output must end."""

Sink = Callable[[bytes], None]
"""Receives a chunk of standard output; an exception ends the program."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run without a shell. ``name`` appears in messages; ``seconds`` is the deadline of one call."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None
    seconds: float
    memory: int = NO_LIMIT
    """Maximum data of each of its processes in bytes; enforced on Linux."""
    kept_errors: int = 2 * EXCERPT
    """Bytes that are kept of the end of its standard error."""
    sweep: bool = False
    """Kill what it leaves running even when it ends by itself."""


class ProgramExit(NamedTuple):
    """The exit code of a program, and the end of its standard error."""

    code: int
    errors: bytes


class ProgramError(AgentError):
    """A program that could not be started, or was killed; ``errors`` is the end of its standard error.

    ``returncode`` is set if it ended by itself.
    """

    def __init__(self, error_type: str, message: str, errors: bytes = b"", returncode: int | None = None) -> None:
        super().__init__(error_type, message)
        self.errors = errors
        self.returncode = returncode


async def run_program(program: Program, text: bytes, sink: Sink) -> ProgramExit:
    """Run the program with these bytes as its standard input.

    `ProgramError` if it cannot be started or does not end in time. If this call fails or is cancelled, the program is
    killed with all its child processes.
    """
    token = token_hex(16)
    process = await _started(program, token)
    ending = _Ending(program.kept_errors)
    whole = False
    tasks = (
        asyncio.create_task(_read(process.stdout, sink)),
        asyncio.create_task(_read(process.stderr, ending.add)),
        asyncio.create_task(_feed(process.stdin, text)),
    )
    try:
        async with asyncio.timeout(program.seconds):
            await asyncio.gather(*tasks)
            code = await process.wait()
        whole = True
        if program.sweep:
            await asyncio.to_thread(kill_by_token, token)
    except TimeoutError:
        raise _late(program, ending) from None
    finally:
        if not whole:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await _end(process, token)
    return ProgramExit(code, ending.data())


class LineProgram:
    """A running program that answers each line on standard input with one line on standard output.

    After any failure it is of no further use: `close` it.
    """

    def __init__(self, program: Program, process: asyncio.subprocess.Process, token: str, max_line: int) -> None:
        self._program = program
        self._process = process
        self._token = token
        self._max_line = max_line
        self._lines = bytearray()
        self._complete = 0
        """Bytes of the first line with its end; 0: it has not arrived."""
        self._arrived = asyncio.Event()
        self._ended = False
        self._errors = _Ending(program.kept_errors)
        self._readers = (
            asyncio.create_task(self._read_lines()),
            asyncio.create_task(_read(process.stderr, self._errors.add)),
        )

    @classmethod
    async def start(cls, program: Program, max_line: int) -> LineProgram:
        """Start it; a line of its answers has at most ``max_line`` bytes. `ProgramError` if it cannot be started."""
        token = token_hex(16)
        return cls(program, await _started(program, token), token, max_line)

    @property
    def alive(self) -> bool:
        """Whether it may still answer."""
        return not self._ended and self._process.returncode is None

    def errors(self) -> bytes:
        """The end of what it wrote to standard error since the last call of `errors`."""
        return self._errors.take()

    async def ask(self, line: bytes) -> bytes:
        """The line that answers this one.

        `ProgramError` of type ``timeout``, ``crashed``, ``too_large`` or ``bad_reply``.
        """
        if self._lines:
            raise self._error(
                "bad_reply",
                "wrote more than one line for a request: write one, and logs to standard error",
                self._lines,
            )
        if self._process.stdin is None:
            raise TypeError("a program that is asked has a pipe as its input")
        self._process.stdin.write(line + b"\n")
        try:
            async with asyncio.timeout(self._program.seconds):
                while not self._complete and not self._ended and len(self._lines) <= self._max_line:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise _late(self._program, self._errors) from None
        if self._complete > self._max_line or (not self._complete and len(self._lines) > self._max_line):
            raise self._error("too_large", f"wrote a line of more than {self._max_line:,} bytes")
        if not self._complete:
            raise await self._crashed()
        answer = bytes(self._lines[: self._complete])
        del self._lines[: self._complete]
        self._complete = 0
        return answer

    async def close(self) -> None:
        """Kill it with all its child processes."""
        for task in self._readers:
            task.cancel()
        await asyncio.wait(self._readers)
        await _end(self._process, self._token)

    async def _read_lines(self) -> None:
        stream = self._process.stdout
        try:
            while stream is not None and (piece := await stream.read(_PIECE)):
                if not self._complete and (found := piece.find(b"\n")) >= 0:
                    self._complete = len(self._lines) + found + 1
                self._lines += piece
                self._arrived.set()
                if len(self._lines) > 2 * self._max_line:
                    return  # the next request finds more than a line, and the program waits at a full pipe
        finally:
            self._ended = True
            self._arrived.set()

    async def _crashed(self) -> ProgramError:
        """Why it did not answer: it closed its output, which usually means that it ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await asyncio.wait(self._readers)
                await self._process.wait()
        code = self._process.returncode
        how = "closed its standard output" if code is None else f"ended with {exit_description(code)}"
        return self._error("crashed", f"{how} without an answer", self._lines, code)

    def _error(
        self, error_type: str, reason: str, output: bytes | bytearray = b"", returncode: int | None = None
    ) -> ProgramError:
        shown = f"; its output: {excerpt(bytes(output[:EXCERPT]))}" if output else ""
        return ProgramError(error_type, f"{self._program.name} {reason}{shown}", self._errors.data(), returncode)


def excerpt(output: bytes) -> str:
    """The start of an output for a message, as text."""
    return output[:EXCERPT].decode(errors="replace").strip()


class _Ending:
    """The end of a stream."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._data = bytearray()

    def add(self, piece: bytes) -> None:
        self._data += piece
        if len(self._data) > 2 * self._most:
            del self._data[: -self._most]

    def data(self) -> bytes:
        return bytes(self._data[-self._most :])

    def take(self) -> bytes:
        data = self.data()
        self._data.clear()
        return data


def _late(program: Program, errors: _Ending) -> ProgramError:
    message = f"{program.name} did not end within {program.seconds:g} s and was killed"
    return ProgramError("timeout", message, errors.data())


async def _started(program: Program, token: str) -> asyncio.subprocess.Process:
    try:
        process = await _start(program, token)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ProgramError("connect", f"{program.name} could not be started: {reason}") from None
    if program.memory and sys.platform == "linux":
        import resource

        # not RLIMIT_AS: Node, Go and Java reserve many times the memory that they use
        with suppress(OSError, ValueError):  # it may have ended already
            resource.prlimit(process.pid, resource.RLIMIT_DATA, (program.memory, program.memory))
    return process


async def _start(program: Program, token: str) -> asyncio.subprocess.Process:
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *program.arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=program.folder,
            env={**program.environment, TOKEN_VARIABLE: token},
            start_new_session=True,
        )
    )
    starting.add_done_callback(_expect_a_broken_pipe)
    try:
        await asyncio.wait((starting,))
    except asyncio.CancelledError:
        # cancelled before the pipes exist, asyncio waits for their end for ever, unless it is cancelled again
        while not starting.done():
            starting.cancel()
            await asyncio.wait((starting,), timeout=_AGAIN)
        if not starting.cancelled() and starting.exception() is None:
            await _end(starting.result(), token)
        else:
            kill_by_token(token)
        raise
    return starting.result()


def _expect_a_broken_pipe(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    """Suppress asyncio's report (in Python 3.11.2) about a program that ended without reading its input.

    It is only suppressed if something waits for the pipe's end, and that wait must not be cancelled.
    """
    if starting.cancelled() or starting.exception() is not None or (stream := starting.result().stdin) is None:
        return
    asking = stream.wait_closed()
    with suppress(StopIteration, OSError):
        closed: asyncio.Future[None] = asking.send(None)
        closed.add_done_callback(lambda end: end.cancelled() or end.exception())
    asking.close()


async def _read(stream: asyncio.StreamReader | None, sink: Sink) -> None:
    while stream is not None and (piece := await stream.read(_PIECE)):
        sink(piece)


async def _feed(stream: asyncio.StreamWriter | None, text: bytes) -> None:
    if stream is None:
        return
    # a program may end, or close its input, without having read it
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.write(text)
        await stream.drain()
    # not awaited: if that were cancelled, asyncio would close the transport twice
    stream.close()


async def _end(process: asyncio.subprocess.Process, token: str) -> None:
    """Kill the process with all its children, and close its pipes."""

    def kill() -> None:
        kill_tree(process.pid)
        # unlike a worker it is not a subreaper, so orphans may have left its subtree
        kill_by_token(token)

    if process.returncode is None:
        await asyncio.to_thread(kill)
    else:
        await asyncio.to_thread(kill_by_token, token)
    if process.stdin is not None:
        process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            # a pipe is only closed once it is read to its end
            await asyncio.gather(_read(process.stdout, _ignore), _read(process.stderr, _ignore), process.wait())


def _ignore(_: bytes) -> None:
    """A sink for output that is not needed."""

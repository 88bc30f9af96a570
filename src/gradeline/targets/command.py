"""An agent that is a program: one process per sample."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Literal, NamedTuple

import msgspec

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model import Response, Sample, clean_text, described
from gradeline.model.text import quote
from gradeline.targets.answer import AnswerReader, ParsedAnswer, ResponseMap, decode, parse, response_of
from gradeline.targets.answer_values import with_workers
from gradeline.targets.base import EXCERPT, DeclaredTarget, TargetConfig, hide, spellings, tail
from gradeline.targets.template import Scope, fill_text, placeholder_faults, placeholders
from gradeline.usercode.process_control import TOKEN_VARIABLE, exit_description, kill_by_token, kill_tree

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


class ProgramExit(NamedTuple):
    """How a program ended by itself: its exit code, and the end of its standard error."""

    code: int
    errors: bytes


async def run_program(program: Program, text: str, sink: Sink) -> ProgramExit:
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
    return ProgramExit(code, errors)


async def _started(program: Program, token: str) -> asyncio.subprocess.Process:
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
        # cancelled before it has a program's pipes, asyncio waits for ever for their end, unless it is cancelled again
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
        kill_tree(process.pid)
        # unlike a worker it adopts no orphans, so some may have left its subtree
        kill_by_token(token)

    if process.returncode is None:
        await asyncio.to_thread(kill)
    else:
        await asyncio.to_thread(kill_by_token, token)
    if process.stdin is not None:
        process.stdin.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            # a pipe that is not read to its end is never closed
            await asyncio.gather(_read_end(process.stdout), _read_end(process.stderr), process.wait())


_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH")


class CommandConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of `CommandTarget`."""

    command: Annotated[
        list[str],
        described(
            "The program and its arguments; {{input}}, {{id}}, {{model}} and {{metadata.x}} are filled in.",
            expected="a list such as [prog, arg], because no shell takes a text apart",
            min_length=1,
        ),
    ]
    input: Annotated[
        Literal["stdin", "argument"],
        described("How the program gets the input; as an argument it stands at {{input}}, else last."),
    ] = "stdin"
    output: Annotated[
        Literal["text", "json"], described("Whether standard output is the text, or JSON that is read by response.")
    ] = "text"
    response: Annotated[ResponseMap, described("Where in the JSON things are, as JMESPaths.")] = msgspec.field(
        default_factory=ResponseMap
    )
    env: Annotated[dict[str, str], described("Environment variables, beside those inherited.")] = msgspec.field(
        default_factory=dict
    )
    cwd: Annotated[str | None, described("The folder it runs in, seen from the suite's; by default that one.")] = None
    timeout: Annotated[float, described("Seconds until it is killed with all it started.", gt=0, le=86_400)] = 30.0
    max_output: Annotated[int, described("Bytes of standard output.", ge=1)] = 10_000_000

    def faults(self) -> Iterator[Problem]:
        yield from placeholder_faults(self.command, "command", ("input", "id", "model", "metadata."))
        names = {name for _, name in placeholders(self.command)}
        if self.input == "stdin" and "input" in names:
            yield Problem("command", "holds {{input}}, but the input goes to stdin; write input: argument")
        if any(True for _ in placeholders(self.command[0])):
            yield Problem("command[0]", "the program itself must not depend on the sample")
        yield from (fault.within("response") for fault in self.response.faults())
        if self.output == "text" and self.response != ResponseMap():
            yield Problem("response", "is only read with output: json")
        for name in self.env:
            if not name or "=" in name:
                yield Problem("env", f"{quote(name)} is no name of a variable")


class CommandTarget(DeclaredTarget[CommandConfig]):
    """Runs a program for each sample, without a shell; its standard output is the answer.

    The turns of a list input are joined by line ends and go to one process. Line ends at the end of a text output
    are dropped, as a shell does. An exit code other than 0 is an error of the agent.
    """

    kind = "command"
    name = "Command"

    @property
    def _folder(self) -> str | None:
        folder, cwd = self.resources.folder, self.options.cwd
        return str(Path(folder or ".", cwd or ".")) if folder or cwd else None

    @property
    def hidden(self) -> frozenset[str]:
        return spellings([*self.secrets, *(value for value in self.credentials if len(value) > 3)])

    @property
    def credentials(self) -> list[str]:
        named = self.options.env.items()
        return [value for name, value in named if any(word in name.upper() for word in _SECRET_WORDS)]

    async def open(self) -> None:
        folder = self._folder
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError(Problem("cwd", f"{self._show(folder)} is no folder"), self.kind)
        program = self.options.command[0]
        # a program with a slash in it is looked for from the folder it will run in
        place = str(Path(folder, program)) if folder is not None and "/" in program else program
        if shutil.which(place, path=self._environment.get("PATH")) is None:
            raise ConfigError(
                Problem("command[0]", f"no program {self._show(program)}; install it, or write its whole path"),
                self.kind,
            )

    def problems_with(self, sample: Sample) -> list[Problem]:
        try:
            self._arguments(sample)
        except ConfigError as error:
            return list(error.problems)
        return []

    async def call(self, sample: Sample) -> Response:
        text = _joined(sample)
        output = await self._run(self._arguments(sample), text if self.options.input == "stdin" else "")
        decoded = decode(output)
        if self.options.output == "text":
            cleaned = clean_text(output.rstrip(b"\r\n"))
            return Response(text=cleaned.text, cleaned=cleaned.changed)
        try:
            reader = AnswerReader(self.options.response)
            found = await with_workers(lambda: reader.read(parse(decoded.text)))
        except AgentError as error:
            start = hide(clean_text(output[:EXCERPT]).text, self.hidden)
            raise AgentError(error.type, f"{self._program}: {error}; its output: {start}") from None
        return response_of([ParsedAnswer(found.text, found.calls, found.usage, found.messages, None, decoded.cleaned)])

    @property
    def _program(self) -> str:
        return self._show(self.options.command[0])

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self.options.env}

    def _show(self, text: str) -> str:
        return quote(hide(text, self.hidden))

    def _arguments(self, sample: Sample) -> list[str]:
        text = _joined(sample)
        command = self.options.command
        arguments = [
            clean_text(fill_text(argument, Scope(sample, text, model=self.model))).text for argument in command
        ]
        if self.options.input == "argument" and "input" not in {name for _, name in placeholders(command)}:
            arguments.append(clean_text(text).text)
        return arguments

    async def _run(self, arguments: list[str], text: str) -> bytes:
        output = bytearray()

        def keep(piece: bytes) -> None:
            output.extend(piece)
            if len(output) > self.options.max_output:
                raise AgentError("too_large", f"{self._program} wrote more than {self.options.max_output:,} bytes")

        program = Program(self._program, arguments, self._environment, self._folder, self.options.timeout)
        ended = await run_program(program, text, keep)
        if ended.code != 0:
            said = tail(ended.errors, self.hidden)
            raise AgentError(
                "status", f"{self._program} ended with {exit_description(ended.code)}" + (f": {said}" if said else "")
            )
        return bytes(output)


def _joined(sample: Sample) -> str:
    return sample.input if isinstance(sample.input, str) else "\n".join(sample.input)

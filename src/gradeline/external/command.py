"""The grader that is a program: one process per call, or processes that answer one line per case."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import cached_property
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from gradeline.errors import BadReplyError, ConfigError, GraderError, Problem
from gradeline.external.base import MAX_REPLY, ExternalError, ExternalGrader, variable_faults
from gradeline.graders.base import ConfigIssue
from gradeline.model import Config, GradeResult, MeteredResult, Sample, described, fingerprint, quote
from gradeline.model.config import canonical_options
from gradeline.model.secrets import is_secret_name, secrets_in_url
from gradeline.usercode.process_control import (
    GRADER_MEMORY,
    SIZE_SCHEMA,
    allocation_failure,
    exit_description,
    format_size,
    parse_size,
)
from gradeline.usercode.programs import EXCERPT, LineProgram, Program, ProgramError, run_program

_SCRIPTS = frozenset((".cjs", ".js", ".jar", ".lua", ".mjs", ".mts", ".php", ".pl", ".py", ".r", ".rb", ".sh", ".ts"))
"""Suffixes of arguments that name a script."""
_MAX_PROCESSES = 64
_NOT_IN_FINGERPRINT = ("timeout", "memory", "processes")
_ERROR_TYPES = {"connect": "crashed"}
"""The error types of programs that grades do not have."""


class CommandGraderConfig(Config, frozen=True, kw_only=True):
    """Options of `CommandGrader`."""

    command: Annotated[
        list[str],
        described(
            "Program and arguments, run without a shell in the suite's folder.",
            expected="a list such as [node, check.mjs], because there is no shell to split a string",
            min_length=1,
        ),
    ]
    protocol: Annotated[
        Literal["once", "jsonl"],
        described(
            "once (default): one process per call. jsonl: processes that stay and answer each line of standard input"
            " with one line."
        ),
    ] = "once"
    parameters: Annotated[dict[str, Any], described("Data for the program, passed on as `config`.")] = msgspec.field(
        default_factory=dict
    )
    env: Annotated[
        dict[str, str],
        described(
            "Additional environment variables, with ${NAME} for secrets: variables that are secret by their name are"
            " not passed on otherwise."
        ),
    ] = msgspec.field(default_factory=dict)
    timeout: Annotated[
        float,
        described(
            "Seconds per call, the start of the process included; then it is killed (default 5).", gt=0, le=86_400
        ),
    ] = 5.0
    memory: Annotated[
        int | str | None, described("Memory limit of each process, such as 512MB, 4GiB or none (default 2GiB).")
    ] = None
    processes: Annotated[
        Annotated[int, msgspec.Meta(ge=1, le=_MAX_PROCESSES)] | None,
        described("Maximum processes at the same time (default: the number of processors)."),
    ] = None

    @property
    def max_memory(self) -> int:
        return GRADER_MEMORY if self.memory is None else parse_size(self.memory)

    @classmethod
    def amend_schema(cls, schema: dict[str, Any]) -> dict[str, Any]:
        schema["properties"]["memory"] |= {**SIZE_SCHEMA, "default": "2GiB"}
        return schema

    def faults(self) -> Iterator[Problem]:
        if not self.command[0].strip():
            yield Problem("command[0]", "is empty; name a program")
        for name in self.env:
            if not name or "=" in name:
                yield Problem("env", f"{quote(name)} is not a valid variable")
        yield from variable_faults(self, "env")
        try:
            _ = self.max_memory
        except ValueError as error:
            yield Problem("memory", str(error))


class CommandGrader(ExternalGrader[CommandGraderConfig]):
    """Runs a program for each case: JSON on standard input, JSON on standard output.

    It gets ``{sample, submission, response, config}`` and writes ``{score | passed, rationale?, metadata?}``; its
    standard error is stored with the grade.
    """

    kind = "command"
    name = "Program"
    scoring_guide = "The `score` that the program writes, from 0.0 to 1.0; `passed` scores 1.0 or 0.0."
    caveats: ClassVar[tuple[str, ...]] = (
        "The fingerprint covers the files of the suite's folder that the command names, not those that they import.",
    )
    variables = "env"
    runs_programs = True

    @property
    def parameters(self) -> Mapping[str, Any]:
        return self.options.parameters

    @cached_property
    def fingerprint(self) -> str:
        """Covers the options that decide the score, and the bytes of the files that the command names."""
        options = canonical_options(self.options)
        decided = {name: value for name, value in options.items() if name not in _NOT_IN_FINGERPRINT}
        digests = {name: sha256(file.read_bytes()).hexdigest() for name, file in self._files(self._folder)}
        return fingerprint(self.noun, self.kind, self.version, decided, digests)

    def config_issues(self, folder: Path, case: Sample | None) -> Iterator[ConfigIssue]:  # noqa: ARG002 - as declared
        for index, argument in enumerate(self.options.command[1:], 1):
            script = Path(argument).suffix.lower() in _SCRIPTS and not argument.startswith("-")
            if script and not Path(folder, argument).is_file():
                message = f"no file {quote(argument)} in the suite's folder; write it, or build it before the run"
                yield ConfigIssue(Problem(f"command[{index}]", message))

    def prepare(self) -> None:
        problems: list[Problem] = []
        try:
            _ = self.values
        except ConfigError as error:
            problems += error.problems
        program = self.options.command[0]
        # a path with a slash is relative to the suite's folder
        path = str(Path(self._folder, program)) if "/" in program else program
        if shutil.which(path, path=os.environ.get("PATH")) is None:
            remedy = "make it executable" if Path(path).is_file() else "install it, or write its full path"
            problems.append(Problem("command[0]", f"no program {quote(program)}; {remedy}"))
        if problems:
            raise ConfigError(problems, self.kind)

    async def grade_case(self, request: bytes) -> MeteredResult:
        programs = await self._running()
        async with programs.slots:
            if self.options.protocol == "jsonl":
                return await self._ask(programs, request)
            return await self._run_once(request)

    async def aclose(self) -> None:
        """End the processes of this event loop; the grader may be used again."""
        programs = self._by_loop.pop(asyncio.get_running_loop(), None)
        if programs is not None:
            await programs.holder.aclose()

    async def _run_once(self, request: bytes) -> MeteredResult:
        body = bytearray()

        def keep(piece: bytes) -> None:
            body.extend(piece)
            if len(body) > MAX_REPLY:
                raise ProgramError("too_large", f"{self._shown_name} wrote more than {MAX_REPLY:,} bytes")

        try:
            ended = await run_program(self._program, request, keep)
        except ProgramError as error:
            return self._failed(error)
        if ended.code != 0:
            message = f"{self._shown_name} ended with {exit_description(ended.code)}"
            return self._failed(ProgramError("crashed", message, ended.errors, ended.code))
        return self._read(bytes(body), ended.errors)

    async def _ask(self, programs: _Programs, request: bytes) -> MeteredResult:
        program: LineProgram | None = None
        usable = False
        try:
            program = await programs.take(self._program)
            number = next(programs.numbers)
            # the case is a JSON object, which begins with a brace
            body = await program.ask(b'{"id":%d,' % number + request[1:])
            metered = self._read(body, program.errors(), number)
            usable = isinstance(metered.result, GradeResult)
            return metered
        except ProgramError as error:
            return self._failed(error)
        finally:
            # after an invalid answer it is unknown which line belongs to which case
            if program is not None:
                await programs.put_back(program, usable=usable)

    def _read(self, body: bytes, errors: bytes, number: int | None = None) -> MeteredResult:
        output = self.shown(errors) or None
        try:
            return MeteredResult(self.read_verdict(body, self._shown_name, number), output=output)
        except BadReplyError as error:
            hint = "; logs go to standard error" if body.strip() else " to standard output"
            return MeteredResult(BadReplyError(f"{error}{hint}"), output=output)

    def _failed(self, error: ProgramError) -> MeteredResult:
        output = self.shown(error.errors)
        found = allocation_failure(output) if error.returncode else None
        limit = self.options.max_memory
        result: GraderError
        if found is not None and limit:
            reason = f"ran out of memory: {found!r} with a limit of {format_size(limit)}; raise it with memory:"
            result = ExternalError("memory", f"{self._shown_name} {reason}")
        else:
            end = output[-EXCERPT:]
            message = self.shown(str(error)) + (f"; the end of its standard error: {end}" if end else "")
            result = ExternalError(_ERROR_TYPES.get(error.type, error.type), message)
        return MeteredResult(result, output=output or None)

    @property
    def _shown_name(self) -> str:
        return quote(" ".join(self.options.command), 80)

    @property
    def _folder(self) -> Path:
        return self.resources.folder or Path()

    def _files(self, folder: Path) -> Iterator[tuple[str, Path]]:
        """The arguments that are files of the folder."""
        whole = folder.resolve()
        for argument in self.options.command:
            file = Path(whole, argument)
            if file.is_file() and file.resolve().is_relative_to(whole):
                yield argument, file

    @cached_property
    def _program(self) -> Program:
        return Program(
            self._shown_name,
            self.options.command,
            {**_without_secrets(os.environ), **self.values},
            str(self._folder),
            self.options.timeout,
            self.options.max_memory,
            kept_errors=MAX_REPLY,
            sweep=True,
        )

    @cached_property
    def _by_loop(self) -> WeakKeyDictionary[asyncio.AbstractEventLoop, _Programs]:
        return WeakKeyDictionary()

    async def _running(self) -> _Programs:
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            found = self._by_loop[loop] = _Programs(self.options.processes or min(os.cpu_count() or 1, _MAX_PROCESSES))
            await anext(found.holder)
        return found


class _Programs:
    """The processes of one event loop.

    An async generator holds them, because an event loop closes its async generators when it ends.
    """

    def __init__(self, most: int) -> None:
        self.slots = asyncio.Semaphore(most)
        self.numbers = count(1)
        """Numbers of requests to processes that stay, which may be part of their answers."""
        self._idle: list[LineProgram] = []
        self.holder = self._hold()

    async def take(self, program: Program) -> LineProgram:
        """An idle process, or a new one."""
        while self._idle:
            found = self._idle.pop()
            if found.alive:
                return found
            await found.close()
        return await LineProgram.start(program, MAX_REPLY)

    async def put_back(self, program: LineProgram, *, usable: bool) -> None:
        if usable:
            self._idle.append(program)
        else:
            await program.close()

    async def _hold(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            while self._idle:
                await self._idle.pop().close()


def _without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are not secrets, by their name and the URL in them."""
    return {
        name: value
        for name, value in environment.items()
        if not is_secret_name(name) and not secrets_in_url(value) and not _has_password(value)
    }


def _has_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False

"""An agent that is a program, with one process per sample."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.model import Response, Sample, clean_text, described
from gradeline.model.text import quote
from gradeline.targets.answer import AnswerReader, ResponseMap, decode, parse, response_of
from gradeline.targets.answer_values import with_workers
from gradeline.targets.base import EXCERPT, DeclaredTarget, TargetConfig, hide, json_spellings, tail
from gradeline.targets.template import PlaceholderValues, fill_text, placeholder_faults, placeholders
from gradeline.usercode.process_control import exit_description
from gradeline.usercode.programs import Program, run_program

_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH")


class CommandConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of `CommandTarget`."""

    command: Annotated[
        list[str],
        described(
            "Program and arguments, with {{input}}, {{id}}, {{model}} and {{metadata.x}}.",
            expected="a list such as [prog, arg], because there is no shell to split a string",
            min_length=1,
        ),
    ]
    input: Annotated[
        Literal["stdin", "argument"],
        described("Pass the input on stdin (default), or as an argument: at {{input}}, or else last."),
    ] = "stdin"
    output: Annotated[
        Literal["text", "json"],
        described("Format of standard output: text (default), or JSON that is read by response."),
    ] = "text"
    response: Annotated[ResponseMap, described("JMESPaths of the parts of the JSON.")] = msgspec.field(
        default_factory=ResponseMap
    )
    env: Annotated[dict[str, str], described("Additional environment variables.")] = msgspec.field(default_factory=dict)
    cwd: Annotated[str | None, described("Working folder, relative to the suite (default the suite's folder).")] = None
    timeout: Annotated[
        float, described("Timeout in seconds, after which it is killed (default 30).", gt=0, le=86_400)
    ] = 30.0
    max_output: Annotated[int, described("Maximum bytes of standard output.", ge=1)] = 10_000_000

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        yield from placeholder_faults(self.command, "command", ("input", "id", "model", "metadata."))
        names = {name for _, name in placeholders(self.command)}
        if self.input == "stdin" and "input" in names:
            yield Problem("command", "contains {{input}}, but the input goes to stdin; write input: argument")
        if any(True for _ in placeholders(self.command[0])):
            yield Problem("command[0]", "the program itself must not depend on the sample")
        yield from (fault.within("response") for fault in self.response.faults())
        if self.output == "text" and self.response != ResponseMap():
            yield Problem("response", "is only read with output: json")
        for name in self.env:
            if not name or "=" in name:
                yield Problem("env", f"{quote(name)} is not a valid name of a variable")


class CommandTarget(DeclaredTarget[CommandConfig]):
    """Runs a program for each sample, without a shell; its standard output is the answer.

    The turns of a list input are joined by line breaks and go to one process. Line breaks at the end of a text output
    are removed, as in a shell. An exit code other than 0 is an error of the agent.
    """

    kind = "command"
    name = "Command"

    @property
    def _folder(self) -> str | None:
        folder, cwd = self.resources.folder, self.options.cwd
        return str(Path(folder or ".", cwd or ".")) if folder or cwd else None

    @property
    def hidden(self) -> frozenset[str]:
        return json_spellings([*self.secrets, *(value for value in self.credentials if len(value) > 3)])

    @property
    def credentials(self) -> list[str]:
        variables = self.options.env.items()
        return [value for name, value in variables if any(word in name.upper() for word in _SECRET_WORDS)]

    async def open(self) -> None:
        folder = self._folder
        if folder is not None and not Path(folder).is_dir():
            raise ConfigError(Problem("cwd", f"{self._show(folder)} is not a folder"), self.kind)
        program = self.options.command[0]
        # a path with a slash is relative to the working folder
        path = str(Path(folder, program)) if folder is not None and "/" in program else program
        if shutil.which(path, path=self._environment.get("PATH")) is None:
            raise ConfigError(
                Problem("command[0]", f"no program {self._show(program)}; install it, or write its full path"),
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
        return response_of([found._replace(data=None, cleaned=decoded.cleaned)])

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
            clean_text(fill_text(argument, PlaceholderValues(sample, text, model=self.model))).text
            for argument in command
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
        ended = await run_program(program, text.encode(errors="replace"), keep)
        if ended.code != 0:
            stderr = tail(ended.errors, self.hidden)
            raise AgentError(
                "status",
                f"{self._program} ended with {exit_description(ended.code)}" + (f": {stderr}" if stderr else ""),
            )
        return bytes(output)


def _joined(sample: Sample) -> str:
    return sample.input if isinstance(sample.input, str) else "\n".join(sample.input)

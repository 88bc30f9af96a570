"""The letta targets: Letta Code (the program ``letta``, one process per sample) and agents on a letta server."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.letta.base import AgentAttempt, LettaConfig, LettaTarget
from gradeline.letta.server import ENDING, AgentFile, Deadline
from gradeline.model import Message, Sample, Trajectory, clean_text, described, quote
from gradeline.targets.answer import parse
from gradeline.targets.answer_values import bad_response
from gradeline.targets.base import tail
from gradeline.targets.template import input_turns
from gradeline.usercode.process_control import exit_description
from gradeline.usercode.programs import Program, run_program

_MAX_LINE = 16_000_000
_MAX_OUTPUT = 256_000_000


class LettaStream:
    """Parses the program's output as it arrives, for two events only: the answer itself is on the server."""

    def __init__(self) -> None:
        self.agent: str | None = None
        """Set by the first event that names it, so that it is known even if the agent fails later."""
        self._last = b""
        self._result: Mapping[str, Any] | None = None
        self._rest = bytearray()
        self._size = 0

    def feed(self, piece: bytes) -> None:
        self._size += len(piece)
        self._rest += piece
        if self._size > _MAX_OUTPUT:
            raise AgentError("too_large", f"letta printed more than {_MAX_OUTPUT:,} bytes")
        if b"\n" in piece:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            for line in lines:
                self._line(line)
        if len(self._rest) > _MAX_LINE:
            raise AgentError("too_large", f"letta printed a line of more than {_MAX_LINE:,} bytes")

    def close(self) -> None:
        """End of the output; the last line may lack a line break."""
        self._line(bytes(self._rest))
        self._rest.clear()

    @property
    def usage(self) -> Mapping[str, Any]:
        """The agent's token usage; empty if unknown."""
        usage = self._result.get("usage") if self._result is not None else None
        return usage if isinstance(usage, Mapping) else {}

    def last_line(self, secrets: Collection[str]) -> str:
        """The last line, for an error message."""
        from gradeline.transport import excerpt  # loads aiohttp

        return excerpt(self._last, secrets)

    def check(self, secrets: Collection[str]) -> None:
        """Raise `AgentError` if the events name no agent, or report an error."""
        if self.agent is None:
            raise bad_response(f"letta named no agent; its last line: {self.last_line(secrets) or 'nothing'}")
        result = self._result or {}
        if result.get("is_error") is True or result.get("subtype", "success") != "success":
            raise bad_response(f"letta reported an error: {self.last_line(secrets)}")

    def _line(self, line: bytes) -> None:
        line = line.strip()
        if not line:
            return
        self._last = line
        # most lines are long pieces of the answer
        if b'"result"' in line or (self.agent is None and b'"init"' in line):
            event = _event(line)
            if event.get("type") == "result":
                self._result = event
            elif event.get("type") == "system" and event.get("subtype") == "init" and self.agent is None:
                agent = event.get("agent_id")
                self.agent = clean_text(agent).text if isinstance(agent, str) and agent.strip() else None


def _event(line: bytes) -> Mapping[str, Any]:
    try:
        event = parse(line.decode(errors="replace"))
    except AgentError:
        return {}
    return event if isinstance(event, Mapping) else {}


_AGENT_OPTIONS = ("agent_id", "agent_file")
_AGENT_ONLY = described("Option of kind letta_agent, without effect here.")
_WITH_PATH = frozenset({"--skills", "--import"})
"""Flags whose value is a path relative to the suite."""
_MEMORY = ("MEMORY_DIR", "LETTA_MEMORY_DIR")
_READ_TIMEOUT_S = 60.0
"""Timeout for reading the agent's messages after the program has ended."""


class LettaCodeConfig(LettaConfig, frozen=True, kw_only=True):
    """Options of `LettaCodeTarget`."""

    flags: Annotated[str | None, described("Further arguments of the program, in shell syntax.")] = None
    permission_mode: Annotated[
        str | None, described("Permission mode: unrestricted, standard or acceptEdits (default everything).")
    ] = None
    memory_workspace: Annotated[bool | None, described("Run in the agent's memory folder, passed as MEMORY_DIR.")] = (
        None
    )
    memory_dir: Annotated[
        str | None, described("Memory folder, relative to the suite (default that of the factory's agent).")
    ] = None
    working_dir: Annotated[
        str | None, described("Working folder, relative to the suite (default the suite's folder).")
    ] = None
    sandbox: Annotated[bool | None, described("Run in a subfolder per model of the working folder.")] = None
    skills_dir: Annotated[str | None, described("Folder of skills, relative to the suite.")] = None
    allowed_tools: Annotated[list[str] | None, described("Tools that the agent may use without asking.")] = None
    disallowed_tools: Annotated[list[str] | None, described("Tools that the agent may not use.")] = None
    agent_id: Annotated[Any, _AGENT_ONLY] = None
    agent_file: Annotated[Any, _AGENT_ONLY] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        if self.permission_mode == "memory":
            yield Problem(
                "permission_mode",
                "'memory' was removed from Letta Code; write memory_workspace: true and a mode such as unrestricted",
            )
        try:
            shlex.split(self.flags or "")
        except ValueError as error:
            yield Problem("flags", f"{quote(self.flags)} is not valid shell syntax: {error}")


class LettaCodeTarget(LettaTarget[LettaCodeConfig]):
    """Runs the program letta for each sample, with the prompt on stdin, and reads the agent's messages from the server.

    A list input becomes the lines of one prompt, in which ``{pwd}`` is the working folder. All messages are one turn.
    ``extra_vars.env`` of a sample is added to the environment.
    """

    kind = "letta_code"
    name = "Letta Code"
    pacing = LettaTarget.pacing | {"model_configs", *_AGENT_OPTIONS}
    without_effect: ClassVar[Mapping[str, str]] = {
        **LettaTarget.without_effect,
        **dict.fromkeys(_AGENT_OPTIONS, "has no effect here: it is an option of kind: letta_agent"),
    }

    def startup_problems(self) -> Iterator[Problem]:
        if shutil.which("letta", path=self.environment.get("PATH")) is None:
            yield Problem(
                "kind",
                "letta_code runs the program letta, which is not on the PATH; npm install -g @letta-ai/letta-code,"
                " or grade stored responses without it: gradeline run SUITE --cached DIR",
            )
        if not self.folder.is_dir():
            yield Problem("working_dir", f"{self.folder} is not a folder")
        if self.options.skills_dir is not None and not (self.folder / self.options.skills_dir).is_dir():
            yield Problem("skills_dir", f"{self.folder / self.options.skills_dir} is not a folder")

    def problems_with(self, sample: Sample) -> list[Problem]:
        try:
            input_turns(sample)
            _environment(sample)
        except ConfigError as error:
            return list(error.problems)
        except AgentError as error:
            return [Problem("extra_vars.env", f"case {sample.case_key!r}: {error}")]
        return []

    async def ask(self, sample: Sample, attempt: AgentAttempt) -> None:
        if self.options.agent_script is not None:
            sample = await self.make(sample, attempt)
        stream = LettaStream()
        started = asyncio.get_running_loop().time()
        try:
            program = self._program(sample, attempt)
            ended = await run_program(program, self._prompt(sample).encode(errors="replace"), stream.feed)
            stream.close()
        finally:
            if attempt.agent is None and stream.agent is not None:
                attempt.agent, attempt.created = stream.agent, True
        attempt.latency_ms = (asyncio.get_running_loop().time() - started) * 1000
        if ended.code != 0:
            output = [stream.last_line(self.hidden), tail(ended.errors, self.hidden)]
            reasons = [f"letta ended with {exit_description(ended.code)}", *(text for text in output if text)]
            raise AgentError("status", "; ".join(reasons))
        stream.check(self.hidden)
        history = await self.server.history(attempt.agent or "", Deadline(_READ_TIMEOUT_S))
        attempt.turns.append(history.turn)
        attempt.cleaned = history.cleaned
        attempt.usage.append(stream.usage)

    async def done(self, attempt: AgentAttempt) -> Trajectory | None:
        if attempt.agent is None or attempt.turns:
            return await super().done(attempt)
        return await self.history(attempt.agent)

    def _program(self, sample: Sample, attempt: AgentAttempt) -> Program:
        memory = self._memory_folder(sample, attempt.agent)
        folder = memory or self._working_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AgentError("connect", f"the folder {folder} could not be created: {error.strerror}") from None
        environment = {**self.environment, "LETTA_BASE_URL": self.connection.base_url}
        if self.connection.api_key is not None:
            environment["LETTA_API_KEY"] = self.key_for_program
        if memory is not None:
            environment |= dict.fromkeys(_MEMORY, str(memory))
        environment |= _environment(sample)
        return Program("letta", self._arguments(attempt.agent), environment, str(folder), attempt.deadline.left())

    def _arguments(self, agent: str | None) -> list[str]:
        options = self.options
        arguments = ["letta", "--output-format", "stream-json"]
        if self.model is not None:
            arguments += ["--model", self.model]
        if options.permission_mode is None:
            # it would override any permission mode
            arguments.append("--yolo")
        arguments += ["--new-agent"] if agent is None else ["--agent", agent]
        if options.skills_dir is not None:
            arguments += ["--skills", str(self.folder / options.skills_dir)]
        for flag, tools in (("--allowedTools", options.allowed_tools), ("--disallowedTools", options.disallowed_tools)):
            if tools:
                arguments += [flag, ",".join(tools)]
        arguments += self._flags()
        if options.permission_mode is not None:
            arguments += ["--permission-mode", options.permission_mode]
        return [*arguments, "-p"]

    def _flags(self) -> list[str]:
        words = shlex.split(self.options.flags or "")
        return [
            # @author/name is in letta's registry, not on this disk
            str(self.folder / word) if before in _WITH_PATH and not word.startswith("@") else word
            for before, word in zip(["", *words], words, strict=False)
        ]

    def _prompt(self, sample: Sample) -> str:
        return "\n".join(input_turns(sample)).replace("{pwd}", self._working_folder().as_posix())

    def _working_folder(self) -> Path:
        folder = self.folder / (self.options.working_dir or "")
        if self.options.sandbox and self.model is not None:
            folder /= self.model.rpartition("/")[2] or "model"
        return folder.resolve()

    def _memory_folder(self, sample: Sample, agent: str | None) -> Path | None:
        """The agent's memory folder, if it is to run there."""
        if not self.options.memory_workspace:
            return None
        variables = _environment(sample)
        configured = [*(variables.get(name) for name in _MEMORY), sample.extra_vars.get("memory_dir")]
        own = next((str(path) for path in configured if path), self.options.memory_dir)
        if own is not None:
            return self.folder / Path(own).expanduser()
        if agent is None:
            return None
        if Path(agent).name != agent:
            raise bad_response(f"{quote(agent)} is not a valid agent ID")
        return Path.home() / ".letta" / "agents" / agent / "memory"


def _environment(sample: Sample) -> dict[str, str]:
    """The environment variables of a sample."""
    variables: object = sample.extra_vars.get("env")
    if variables is None:
        return {}
    if not isinstance(variables, Mapping):
        raise bad_response(f"extra_vars.env must be a mapping of variables, got {quote(variables)}")
    for name in variables:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise bad_response(f"extra_vars.env: {quote(name)} is not a valid name of a variable")
    return {name: "" if value is None else str(value) for name, value in variables.items()}


_SOURCES = ("agent_id", "agent_file", "agent_script")
_CODE_OPTIONS = (
    "flags",
    "permission_mode",
    "memory_workspace",
    "memory_dir",
    "working_dir",
    "sandbox",
    "skills_dir",
    "allowed_tools",
    "disallowed_tools",
)
_CODE_ONLY = described("Option of kind letta_code, without effect here.")


class LettaAgentConfig(LettaConfig, frozen=True, kw_only=True):
    """Options of `LettaAgentTarget`."""

    agent_id: Annotated[str | None, described("ID of an existing agent; all samples use it, one after the other.")] = (
        None
    )
    agent_file: Annotated[
        str | None, described("Agent file (.af), relative to the suite; each sample gets a new agent.")
    ] = None
    flags: Annotated[Any, _CODE_ONLY] = None
    permission_mode: Annotated[Any, _CODE_ONLY] = None
    memory_workspace: Annotated[Any, _CODE_ONLY] = None
    memory_dir: Annotated[Any, _CODE_ONLY] = None
    working_dir: Annotated[Any, _CODE_ONLY] = None
    sandbox: Annotated[Any, _CODE_ONLY] = None
    skills_dir: Annotated[Any, _CODE_ONLY] = None
    allowed_tools: Annotated[Any, _CODE_ONLY] = None
    disallowed_tools: Annotated[Any, _CODE_ONLY] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        present = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(present) != 1:
            found = f"found {' and '.join(present)}" if present else "found none of them"
            where = present[-1] if present else "agent_id"
            yield Problem(where, f"an agent comes from exactly one of {', '.join(_SOURCES)}; {found}")
        if self.agent_file is not None and not self.agent_file.endswith(ENDING):
            yield Problem("agent_file", f"{quote(self.agent_file)} is not an agent file; its name must end in .af")
        if self.agent_id is not None and not self.agent_id.strip():
            yield Problem("agent_id", "is empty")


class LettaAgentTarget(LettaTarget[LettaAgentConfig]):
    """Sends samples to an agent on a letta server; each string of a list input is a message, and a turn.

    With ``agent_file`` or ``agent_script`` every sample gets a new agent; with ``agent_id`` all samples share one,
    which remembers them. The model, if any, is set on the agent first.
    """

    kind = "letta_agent"
    name = "Letta agent"
    pacing = LettaTarget.pacing | {"model_configs", *_CODE_OPTIONS}
    without_effect: ClassVar[Mapping[str, str]] = {
        **LettaTarget.without_effect,
        **dict.fromkeys(_CODE_OPTIONS, "has no effect here: it is an option of kind: letta_code"),
    }

    def __init__(self, config: Mapping[str, Any] | None = None, secrets: Collection[str] = ()) -> None:
        super().__init__(config, secrets)
        self._lock = asyncio.Lock()

    @property
    def only_one(self) -> asyncio.Lock | nullcontext[None]:
        return nullcontext() if self.options.agent_id is None else self._lock

    @cached_property
    def _file(self) -> AgentFile | None:
        return None if self.options.agent_file is None else AgentFile(self.folder / self.options.agent_file)

    @property
    def content(self) -> str:
        return "" if self._file is None else self._file.digest

    def startup_problems(self) -> Iterator[Problem]:
        if self._file is not None:
            yield from self._file.problems()

    def problems_with(self, sample: Sample) -> list[Problem]:
        try:
            input_turns(sample)
        except ConfigError as error:
            return list(error.problems)
        return []

    async def ask(self, sample: Sample, attempt: AgentAttempt) -> None:
        sample = await self._enter(sample, attempt)
        agent = attempt.agent or ""
        if self.model is not None:
            await self.server.set_model(agent, self.model, attempt.deadline)
        for question in input_turns(sample):
            reply = await self.server.send(agent, question, attempt.deadline)
            turn = reply.turn
            if not turn or turn[0].role != "user":
                # the server's reply lacks the user message, with which its history begins
                turn = (Message("user", clean_text(question).text), *turn)
            attempt.turns.append(turn)
            attempt.latency_ms += reply.latency_ms
            attempt.cleaned |= reply.cleaned
            attempt.usage.append(reply.usage or {})
            attempt.stop_reason = reply.stop_reason
            reply.check()

    async def _enter(self, sample: Sample, attempt: AgentAttempt) -> Sample:
        """Find or create the agent; returns the sample to send."""
        if self.options.agent_script is not None:
            return await self.make(sample, attempt)
        if self._file is None:
            attempt.agent = self.options.agent_id
        else:
            attempt.agent = await self.server.import_agent(self._file.content, attempt.deadline)
            attempt.created = True
        return sample

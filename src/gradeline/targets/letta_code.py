"""Letta Code: the program ``letta``, one process a sample, and the server that keeps what its agent did."""

from __future__ import annotations

import asyncio
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from gradeline.errors import AgentError, Problem
from gradeline.model import Sample, Trajectory, described, quote
from gradeline.targets.base import tail
from gradeline.targets.letta_server import Deadline
from gradeline.targets.letta_stream import LettaStream
from gradeline.targets.letta_target import LettaConfig, LettaTarget, Visit, questions
from gradeline.targets.messages import bad_response
from gradeline.targets.program import Program, run
from gradeline.usercode.processes import signal_name

_OF_AGENTS = ("agent_id", "agent_file")
_ELSEWHERE = described("Of kind letta_agent, without effect here.")
_WITH_PATH = frozenset({"--skills", "--import"})
"""Flags whose value is a path beside the suite."""
_MEMORY = ("MEMORY_DIR", "LETTA_MEMORY_DIR")
_READING = 60.0
"""Seconds for reading what the agent did, once the program has ended."""


class LettaCodeConfig(LettaConfig, frozen=True, kw_only=True):
    """Options of `LettaCodeTarget`."""

    flags: Annotated[
        str | None, described("Further arguments of the program, in one text as a shell takes them apart.")
    ] = None
    permission_mode: Annotated[
        str | None, described("What the agent may do: unrestricted, standard, acceptEdits; by default everything.")
    ] = None
    memory_workspace: Annotated[
        bool | None, described("Run in the folder of the agent's memory, and tell it as MEMORY_DIR.")
    ] = None
    memory_dir: Annotated[
        str | None, described("That folder, seen from the suite's; by default the one of the factory's agent.")
    ] = None
    working_dir: Annotated[
        str | None, described("The folder it runs in, seen from the suite's; by default that one.")
    ] = None
    sandbox: Annotated[bool | None, described("Run in a folder of the model's own within the working folder.")] = None
    skills_dir: Annotated[str | None, described("A folder of skills, seen from the suite's.")] = None
    allowed_tools: Annotated[list[str] | None, described("Tools that it may use without asking.")] = None
    disallowed_tools: Annotated[list[str] | None, described("Tools that it may not use.")] = None
    agent_id: Annotated[Any, _ELSEWHERE] = None
    agent_file: Annotated[Any, _ELSEWHERE] = None

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
            yield Problem("flags", f"{quote(self.flags)} cannot be taken apart as a shell does: {error}")


class LettaCodeTarget(LettaTarget[LettaCodeConfig]):
    """Runs the program letta for each sample, with the prompt as its input, and reads from the server what it did.

    The texts of a list input are lines of one prompt, in which ``{pwd}`` stands for the folder. All messages make
    one turn. ``extra_vars.env`` of a sample is added to the environment.
    """

    kind = "letta_code"
    name = "Letta Code"
    pacing = LettaTarget.pacing | {"model_configs", *_OF_AGENTS}
    without_effect: ClassVar[Mapping[str, str]] = {
        **LettaTarget.without_effect,
        **dict.fromkeys(_OF_AGENTS, "has no effect here: it belongs to kind: letta_agent"),
    }

    def unready(self) -> Iterator[Problem]:
        if shutil.which("letta", path=self.environment.get("PATH")) is None:
            yield Problem(
                "kind",
                "letta_code runs the program letta, which is not on the PATH; npm install -g @letta-ai/letta-code,"
                " or grade stored answers without it: gradeline run SUITE --cached DIR",
            )
        if not self.folder.is_dir():
            yield Problem("working_dir", f"{self.folder} is no folder")
        if self.options.skills_dir is not None and not (self.folder / self.options.skills_dir).is_dir():
            yield Problem("skills_dir", f"{self.folder / self.options.skills_dir} is no folder")

    def problems_with(self, sample: Sample) -> list[Problem]:
        if sample.input == []:
            return [Problem("input", f"case {sample.case_key!r} has an empty list; write at least one turn")]
        try:
            _variables(sample)
        except AgentError as error:
            return [Problem("extra_vars.env", f"case {sample.case_key!r}: {error}")]
        return []

    async def ask(self, sample: Sample, visit: Visit) -> None:
        if self.options.agent_script is not None:
            sample = await self.make(sample, visit)
        stream = LettaStream()
        started = asyncio.get_running_loop().time()
        try:
            program = self._program(sample, visit)
            ended = await run(program, self._prompt(sample), stream.feed)
            stream.close()
        finally:
            if visit.agent is None and stream.agent is not None:
                visit.agent, visit.created = stream.agent, True
        visit.latency_ms = (asyncio.get_running_loop().time() - started) * 1000
        if ended.code != 0:
            said = [stream.last_words(self.hidden), tail(ended.errors, self.hidden)]
            reasons = [f"letta ended with {signal_name(ended.code)}", *(text for text in said if text)]
            raise AgentError("status", "; ".join(reasons))
        stream.check(self.hidden)
        history = await self.server.history(visit.agent or "", Deadline(_READING))
        visit.turns.append(history.turn)
        visit.cleaned = history.cleaned
        visit.usage.append(stream.usage)

    async def done(self, visit: Visit) -> Trajectory | None:
        if visit.agent is None or visit.turns:
            return await super().done(visit)
        return await self.history(visit.agent)

    def _program(self, sample: Sample, visit: Visit) -> Program:
        memory = self._memory_folder(sample, visit.agent)
        folder = memory or self._working_folder()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AgentError("connect", f"the folder {folder} could not be made: {error.strerror}") from None
        environment = {**self.environment, "LETTA_BASE_URL": self.connection.base_url}
        if self.connection.api_key is not None:
            environment["LETTA_API_KEY"] = self.key_for_program
        if memory is not None:
            environment |= dict.fromkeys(_MEMORY, str(memory))
        environment |= _variables(sample)
        return Program("letta", self._arguments(visit.agent), environment, str(folder), visit.deadline.left())

    def _arguments(self, agent: str | None) -> list[str]:
        options = self.options
        arguments = ["letta", "--output-format", "stream-json"]
        if self.model is not None:
            arguments += ["--model", self.model]
        if options.permission_mode is None:
            # it would go before any permission mode
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
        return "\n".join(questions(sample)).replace("{pwd}", self._working_folder().as_posix())

    def _working_folder(self) -> Path:
        folder = self.folder / (self.options.working_dir or "")
        if self.options.sandbox and self.model is not None:
            folder /= self.model.rpartition("/")[2] or "model"
        return folder.resolve()

    def _memory_folder(self, sample: Sample, agent: str | None) -> Path | None:
        """Where the agent's memory is, if it is to work there."""
        if not self.options.memory_workspace:
            return None
        variables = _variables(sample)
        told = [*(variables.get(name) for name in _MEMORY), sample.extra_vars.get("memory_dir")]
        own = next((str(place) for place in told if place), self.options.memory_dir)
        if own is not None:
            return self.folder / Path(own).expanduser()
        if agent is None:
            return None
        if Path(agent).name != agent:
            raise bad_response(f"{quote(agent)} is no id of an agent")
        return Path.home() / ".letta" / "agents" / agent / "memory"


def _variables(sample: Sample) -> dict[str, str]:
    """The environment variables that a sample brings along."""
    given: object = sample.extra_vars.get("env")
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise bad_response(f"extra_vars.env must be a mapping of variables, got {quote(given)}")
    for name in given:
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise bad_response(f"extra_vars.env: {quote(name)} is no name of a variable")
    return {name: "" if value is None else str(value) for name, value in given.items()}

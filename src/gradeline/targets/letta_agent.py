"""An agent on a letta server: imported from a file, made by the suite's own code, or there already."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Annotated, Any, ClassVar

from gradeline.errors import Problem
from gradeline.model import Message, Sample, clean_text, described, quote
from gradeline.targets.letta_file import ENDING, AgentFile
from gradeline.targets.letta_target import LettaConfig, LettaTarget, Visit, questions

_SOURCES = ("agent_id", "agent_file", "agent_script")
_OF_CODE = (
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
_ELSEWHERE = described("Of kind letta_code, without effect here.")


class LettaAgentConfig(LettaConfig, frozen=True, kw_only=True):
    """Options of `LettaAgentTarget`."""

    agent_id: Annotated[
        str | None, described("An agent that is there already; all samples ask it, one after the other.")
    ] = None
    agent_file: Annotated[
        str | None, described("An agent file (.af) beside the suite; each sample gets an agent of its own.")
    ] = None
    flags: Annotated[Any, _ELSEWHERE] = None
    permission_mode: Annotated[Any, _ELSEWHERE] = None
    memory_workspace: Annotated[Any, _ELSEWHERE] = None
    memory_dir: Annotated[Any, _ELSEWHERE] = None
    working_dir: Annotated[Any, _ELSEWHERE] = None
    sandbox: Annotated[Any, _ELSEWHERE] = None
    skills_dir: Annotated[Any, _ELSEWHERE] = None
    allowed_tools: Annotated[Any, _ELSEWHERE] = None
    disallowed_tools: Annotated[Any, _ELSEWHERE] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        given = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"found {' and '.join(given)}" if given else "found none of them"
            where = given[-1] if given else "agent_id"
            yield Problem(where, f"an agent comes from exactly one of {', '.join(_SOURCES)}; {found}")
        if self.agent_file is not None and not self.agent_file.endswith(ENDING):
            yield Problem("agent_file", f"{quote(self.agent_file)} is no agent file; its name ends in .af")
        if self.agent_id is not None and not self.agent_id.strip():
            yield Problem("agent_id", "is empty")


class LettaAgentTarget(LettaTarget[LettaAgentConfig]):
    """Asks an agent on a letta server; each text of a list input is a message of its own, and a turn.

    With ``agent_file`` or ``agent_script`` every sample gets a new agent; with ``agent_id`` all samples ask the
    same one, which remembers them. A model is set on the agent before it is asked.
    """

    kind = "letta_agent"
    name = "Letta agent"
    pacing = LettaTarget.pacing | {"model_configs", *_OF_CODE}
    without_effect: ClassVar[Mapping[str, str]] = {
        **LettaTarget.without_effect,
        **dict.fromkeys(_OF_CODE, "has no effect here: it belongs to kind: letta_code"),
    }

    def __init__(self, config: Mapping[str, Any] | None = None, secrets: Collection[str] = (), **given: Any) -> None:
        super().__init__(config, secrets, **given)
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

    def unready(self) -> Iterator[Problem]:
        if self._file is not None:
            yield from self._file.problems()

    def problems_with(self, sample: Sample) -> list[Problem]:
        if sample.input == []:
            return [Problem("input", f"case {sample.case_key!r} has an empty list; write at least one turn")]
        return []

    async def ask(self, sample: Sample, visit: Visit) -> None:
        sample = await self._enter(sample, visit)
        agent = visit.agent or ""
        if self.model is not None:
            await self.server.set_model(agent, self.model, visit.deadline)
        for question in questions(sample):
            reply = await self.server.send(agent, question, visit.deadline)
            turn = reply.turn
            if not turn or turn[0].role != "user":
                # the server tells what the agent did, its own history begins with what it was asked
                turn = (Message("user", clean_text(question).text), *turn)
            visit.turns.append(turn)
            visit.latency_ms += reply.latency_ms
            visit.cleaned |= reply.cleaned
            visit.usage.append(reply.usage or {})
            reply.check()

    async def _enter(self, sample: Sample, visit: Visit) -> Sample:
        """Get to the agent; gives the sample as it is to be asked."""
        if self.options.agent_script is not None:
            return await self.make(sample, visit)
        if self._file is None:
            visit.agent = self.options.agent_id
        else:
            visit.agent = await self.server.import_agent(self._file.content, visit.deadline)
            visit.created = True
        return sample

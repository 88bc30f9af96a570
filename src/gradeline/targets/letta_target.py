"""What the targets of letta have in common: a server, agents made for one sample, and second attempts."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.extractors.base import assistant_texts
from gradeline.model import Response, Sample, Trajectory, Turn, described, to_json
from gradeline.model.config import Reader
from gradeline.model.fingerprint import fingerprint
from gradeline.targets.base import HIDDEN, DeclaredTarget, TargetConfig, hide, spellings
from gradeline.targets.letta_server import Connection, Deadline, LettaServer
from gradeline.targets.letta_usage import Rates, usage_of
from gradeline.targets.messages import bad_response
from gradeline.usercode.agent_factories import INSTALL, INSTALL_OLD, PACKAGE, ROLE, Made, client_installed
from gradeline.usercode.messages import Job, Task

if TYPE_CHECKING:
    from gradeline.transport import Transport
    from gradeline.usercode.pools import CodeRunner

_log = logging.getLogger("gradeline")

AFTERWARDS = 10.0
"""Seconds for what is not the answer itself: the memory, what a failed agent did, taking an agent away."""
SHORTEST_SECRET = 4
_FINAL = frozenset({"tls", "redirect", "too_large"})
"""Faults that another attempt does not mend."""


class LettaConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of all targets of letta."""

    base_url: Annotated[
        str | None,
        described(
            "The letta server; else LETTA_BASE_URL, else letta's cloud where there is a key, else"
            " http://localhost:8283."
        ),
    ] = None
    api_key: Annotated[str | None, described("What lets one in; else LETTA_API_KEY. Write ${NAME}, not the key.")] = (
        None
    )
    project_id: Annotated[str | None, described("The project on the server; else LETTA_PROJECT_ID.")] = None
    timeout: Annotated[float, described("Seconds for one attempt at a sample.", gt=0, le=86_400)] = 300.0
    max_retries: Annotated[
        int, described("How often a failed sample is tried again, with a new agent.", ge=0, le=100)
    ] = 0
    agent_script: Annotated[
        str | None, described("file.py:name of a function marked @agent_factory that makes the agent of a sample.")
    ] = None
    pricing: Annotated[
        dict[str, str | Rates] | None,
        described("What a model costs, by its handle: {input_per_mtok, output_per_mtok, …}; a name is not looked up."),
    ] = None
    model_configs: Annotated[
        Any, described("Of letta 0.2 to 0.19, without effect here: write model_handles instead.")
    ] = None

    def faults(self) -> Iterator[Problem]:
        yield from connection_faults(Connection.of(self.base_url, self.api_key, self.project_id, {}))


def connection_faults(connection: Connection) -> Iterator[Problem]:
    """What is wrong with where a server is, by the options that say so."""
    from gradeline.transport import Request  # loads aiohttp

    places = {"url": "base_url", "headers.Authorization": "api_key", "headers.X-Project-Id": "project_id"}
    try:
        Request("GET", connection.base_url, connection.headers).checked_url()
    except ConfigError as error:
        yield from (Problem(places.get(problem.path, problem.path), problem.message) for problem in error.problems)


def _read_key(value: object, path: str, problems: list[Problem]) -> object:
    """By hand, because what is told of a faulty option quotes it."""
    if value is not None and not isinstance(value, str):
        problems.append(Problem(path, "must be a text; write ${NAME} and export the key under that name"))
    return value


C = TypeVar("C", bound=LettaConfig)


@dataclass(slots=True)
class Visit:
    """One attempt at a sample: how long it may take, whom it asks, and what was answered so far."""

    deadline: Deadline
    agent: str | None = None
    created: bool = False
    """The agent was made for this attempt, and nobody else asks it."""
    turns: list[Turn] = field(default_factory=list)
    usage: list[Mapping[str, Any]] = field(default_factory=list)
    latency_ms: float = 0.0
    cleaned: bool = False


class LettaTarget(DeclaredTarget[C]):
    """A target with a letta server; implement `ask`."""

    readers: ClassVar[Mapping[str, Reader]] = {"api_key": _read_key}
    pacing = DeclaredTarget.pacing | {"api_key", "pricing"}
    without_effect: ClassVar[Mapping[str, str]] = {
        "model_configs": "has no effect here: letta's own settings of models are not part of it; write model_handles",
    }
    """Options that letta knows and that change nothing here, with what is to be said of them."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        secrets: Collection[str] = (),
        *,
        folder: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        pool: CodeRunner | None = None,
        code: str = "",
        cleanup: bool = False,
        pause_s: float = 1.0,
    ) -> None:
        """``folder`` is the suite's, ``environment`` what it sees (else this process's own).

        ``transport`` is the caller's: already open, and never closed here. ``pool`` has loaded ``agent_script``,
        and ``code`` is the fingerprint of that code. With ``cleanup`` an agent that was made for a sample is
        deleted after it. ``pause_s`` is the pause before a second attempt; it doubles each time.
        """
        super().__init__(config, secrets)
        self.folder = Path(folder or ".").absolute()
        self.environment: Mapping[str, str] = os.environ if environment is None else environment
        options = self.options
        self.connection = Connection.of(options.base_url, options.api_key, options.project_id, self.environment)
        self._given = transport
        self._own: Transport | None = None
        self._pool = pool
        self._code = code
        self._cleanup = cleanup
        self._pause = pause_s

    @property
    def client_options(self) -> dict[str, Any]:
        """What the suite's own code is given a client with."""
        return {**self.connection._asdict(), "api_key": self.key_for_program or None, "timeout": self.options.timeout}

    @property
    def key_for_program(self) -> str:
        """The key itself, for code that calls the server without this process."""
        key = self.connection.api_key or ""
        if self.resources.secrets is None:
            return key
        from gradeline.transport.authorize import opened  # loads aiohttp

        return opened(key, self.connection.base_url, self.resources.secrets)

    @cached_property
    def hidden(self) -> frozenset[str]:
        return spellings([*self.secrets, *(key for key in self.credentials if len(key) >= SHORTEST_SECRET)])

    @property
    def credentials(self) -> set[str]:
        return {key for key in (self.options.api_key, self.connection.api_key) if key}

    @property
    def shown(self) -> dict[str, Any]:
        shown = super().shown
        return {**shown, "api_key": HIDDEN} if "api_key" in shown else shown

    @cached_property
    def fingerprint(self) -> str:
        own, content = super().fingerprint, self.content
        return fingerprint(own, self._code, content) if self._code or content else own

    @property
    def content(self) -> str:
        """A digest of the files that decide the answers, beside the options and the code."""
        return ""

    def cache_key(self, sample: Sample, repeat: int) -> str:
        own = super().cache_key(sample, repeat)
        # a factory gets the whole sample, and may put what is expected into the agent
        return own if self.options.agent_script is None else fingerprint(own, to_json(sample))

    async def open(self) -> None:
        # the environment has a say too
        problems = [*connection_faults(self.connection), *self._unready_factory(), *self.unready()]
        if problems:
            raise ConfigError(problems, self.kind)
        if self._given is None and self._own is None:
            self._own = await self.resources.transport().__aenter__()

    async def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            await own.__aexit__(None, None, None)

    def unready(self) -> Iterator[Problem]:
        """What a person must fix before a sample can be asked; found without the network."""
        yield from ()

    def _unready_factory(self) -> Iterator[Problem]:
        script = self.options.agent_script
        if script is None:
            return
        if self._pool is None:
            yield Problem("agent_script", f"{script} was not loaded")
        if not client_installed():
            reason = f"{script} needs the package {PACKAGE}; run: {INSTALL} (code from before its release 1.0"
            yield Problem("agent_script", f"{reason}, which imports CreateBlock or MessageCreate: {INSTALL_OLD})")

    @property
    def server(self) -> LettaServer:
        transport = self._given or self._own
        if transport is None:
            raise RuntimeError("a target is asked inside `async with`")
        return LettaServer(self.connection, transport, self.hidden)

    @property
    def only_one(self) -> asyncio.Lock | nullcontext[None]:
        """Held while a sample is asked; a lock where all samples ask the same agent."""
        return nullcontext()

    @abstractmethod
    async def ask(self, sample: Sample, visit: Visit) -> None:
        """Get an agent and its answer, and note both in the visit as they come; or `AgentError`."""
        raise NotImplementedError(f"{type(self).__name__} must override ask()")

    async def call(self, sample: Sample) -> Response:
        async with self.only_one:
            attempt = 0
            while True:
                response, again = await self._attempt(sample, last=attempt >= self.options.max_retries)
                if not again:
                    return response
                await asyncio.sleep(self._pause * 2.0 ** min(attempt, 10))
                attempt += 1

    async def _attempt(self, sample: Sample, *, last: bool) -> tuple[Response, bool]:
        """A response, and whether it should be tried to get a better one."""
        visit = Visit(Deadline(self.options.timeout))
        again = False
        try:
            await self.ask(sample, visit)
            return self._answer(visit, await self._memory(visit)), False
        except AgentError as error:
            again = not last and worth_repeating(error)
            failure = self._failure(error)
            return (failure if again else msgspec.structs.replace(failure, trajectory=await self.done(visit))), again
        finally:
            if visit.agent is not None and visit.created and (self._cleanup or again):
                await self._delete(visit.agent)

    def _answer(self, visit: Visit, memory: dict[str, str] | None) -> Response:
        trajectory = Trajectory(tuple(visit.turns), memory)
        said = assistant_texts(trajectory.messages())
        rates = (self.options.pricing or {}).get(self.model or "")
        return Response(
            text=said[-1] if said else "",
            trajectory=trajectory,
            usage=usage_of(visit.usage, rates if isinstance(rates, Rates) else None),
            latency_ms=visit.latency_ms,
            cleaned=visit.cleaned,
        )

    async def done(self, visit: Visit) -> Trajectory | None:
        """What an agent did before it failed, as far as that can be told."""
        return Trajectory(tuple(visit.turns)) if visit.turns else None

    async def _memory(self, visit: Visit) -> dict[str, str] | None:
        """An answer is not lost for want of the agent's memory; who grades that is told that it is missing."""
        try:
            return await self.server.memory(visit.agent or "", Deadline(AFTERWARDS))
        except AgentError as error:
            self._warn(f"the memory of agent {visit.agent} could not be read: {error}")
            return None

    async def _delete(self, agent: str) -> None:
        try:
            await self.server.delete(agent, Deadline(AFTERWARDS))
        except AgentError as error:
            self._warn(f"agent {agent} could not be deleted: {error}")

    async def history(self, agent: str) -> Trajectory | None:
        """All that an agent did, for a record of its failure; None where that cannot be had quickly."""
        try:
            return Trajectory(((await self.server.history(agent, Deadline(AFTERWARDS))).turn,))
        except AgentError:
            return None

    def _warn(self, message: str) -> None:
        _log.warning("%s: %s", self.kind, hide(message, self.hidden))

    async def make(self, sample: Sample, visit: Visit) -> Sample:
        """Have the suite's factory make an agent; gives the sample as the factory left it."""
        script = self.options.agent_script or ""
        task = Task(ROLE, script, config=self.client_options, timeout=visit.deadline.left())
        assert self._pool is not None  # noqa: S101 - `open` saw to it
        (result,) = await self._pool.run(Job(sample, (task,)))
        if result.error is not None or result.text is None:
            error = result.error
            told = "nothing was made" if error is None else f"{error.type}: {error.message}"
            raise AgentError(_kind_of_fault("" if error is None else error.type), f"{script}: {told}")
        made = msgspec.json.decode(result.text, type=Made)
        visit.agent, visit.created = made.agent_id, True
        return msgspec.structs.replace(sample, input=made.input, extra_vars=made.extra_vars)


def questions(sample: Sample) -> Sequence[str]:
    """The messages of a sample, in order; `AgentError` where there are none."""
    turns = [sample.input] if isinstance(sample.input, str) else list(sample.input)
    if not turns:
        raise bad_response("the sample has no message to send")
    return turns


def worth_repeating(error: AgentError) -> bool:
    """Whether another attempt may fare better."""
    status = getattr(error, "http_status", None)
    if error.type == "status" and status is not None:
        return bool(status >= 500)
    return error.type not in _FINAL


def _kind_of_fault(exception: str) -> str:
    """The type of response error for what a factory raised, which is most often a client's complaint."""
    names = {"timeout": "timeout", "Timeout": "timeout", "Connect": "connect", "RateLimit": "rate_limited"}
    return next((kind for name, kind in names.items() if name in exception), "bad_response")

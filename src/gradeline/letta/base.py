"""What the targets of letta have in common: a server, agents made for one sample, and second attempts."""

from __future__ import annotations

import asyncio
import logging
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import msgspec

from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.extractors.base import assistant_texts
from gradeline.letta.server import Connection, Deadline, LettaServer
from gradeline.model import Config, Response, Sample, Trajectory, Turn, described, to_json
from gradeline.model.config import Reader
from gradeline.model.fingerprint import fingerprint
from gradeline.model.response import Usage
from gradeline.targets.answer_values import bad_response
from gradeline.targets.base import HIDDEN, NetworkTarget, TargetConfig, hide, spellings
from gradeline.usercode.agent_factories import INSTALL, INSTALL_OLD, PACKAGE, ROLE, Made, is_client_installed
from gradeline.usercode.protocol import Job, Task

_CACHE_READ = ("cached_tokens", "cache_read_tokens", "cache_read_input_tokens", "cached_input_tokens")
_CACHE_WRITTEN = ("cache_creation_tokens", "cache_creation_input_tokens")
"""Where providers tell them, within ``prompt_tokens_details``."""
_MILLION = 1_000_000
_LARGEST = 2**53

_Price = Annotated[float, msgspec.Meta(ge=0)]


class Rates(Config, frozen=True, kw_only=True):
    """What a million tokens of a model cost. Without a rate of its own the cache costs what input does."""

    input_per_mtok: Annotated[_Price, described("A million input tokens.")]
    output_per_mtok: Annotated[_Price, described("A million output tokens.")]
    cache_read_per_mtok: Annotated[_Price | None, described("A million input tokens read from the cache.")] = None
    cache_write_per_mtok: Annotated[_Price | None, described("A million input tokens written to the cache.")] = None


def usage_of(records: Sequence[Mapping[str, Any]], rates: Rates | None) -> Usage | None:
    """The sum of letta's usage records, one a call. What one of them does not tell is unknown of all."""
    if not records:
        return None
    prompts = [_count(record, "prompt_tokens") for record in records]
    completions = [_count(record, "completion_tokens") for record in records]
    cached = [_count(record, "cached_input_tokens", _CACHE_READ) for record in records]
    written = [_count(record, "cache_write_tokens", _CACHE_WRITTEN) for record in records]
    usage = Usage(_total(prompts), _total(completions), _total(cached))
    if rates is not None and usage.input_tokens is not None and usage.output_tokens is not None:
        read, wrote = sum(count or 0 for count in cached), sum(count or 0 for count in written)
        cost = _cost(rates, usage.input_tokens, usage.output_tokens, read, wrote)
        usage = msgspec.structs.replace(usage, cost=cost)
    return None if usage == Usage() else usage


def _cost(rates: Rates, prompt: int, completion: int, read: int, written: int) -> float:
    """Letta counts what was read from the cache and what was written to it as part of the prompt."""
    plain = max(prompt - read - written, 0)
    read_rate = rates.input_per_mtok if rates.cache_read_per_mtok is None else rates.cache_read_per_mtok
    write_rate = rates.input_per_mtok if rates.cache_write_per_mtok is None else rates.cache_write_per_mtok
    total = plain * rates.input_per_mtok + read * read_rate + written * write_rate + completion * rates.output_per_mtok
    return total / _MILLION


def _count(record: Mapping[str, Any], name: str, nested: Sequence[str] = ()) -> int | None:
    details = record.get("prompt_tokens_details")
    told = [record.get(name), *(details.get(key) for key in nested if isinstance(details, Mapping))]
    counts = [count for count in told if isinstance(count, int) and not isinstance(count, bool)]
    # a 0 at the top may stand beside the true number in the details
    return next((count for count in counts if 0 < count < _LARGEST), 0 if 0 in counts else None)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


if TYPE_CHECKING:
    pass

_log = logging.getLogger("gradeline")

CLEANUP_S = 10.0
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
    from gradeline.transport import HttpRequest  # loads aiohttp

    places = {"url": "base_url", "headers.Authorization": "api_key", "headers.X-Project-Id": "project_id"}
    try:
        HttpRequest("GET", connection.base_url, connection.headers).checked_url()
    except ConfigError as error:
        yield from (Problem(places.get(problem.path, problem.path), problem.message) for problem in error.problems)


def _read_key(value: object, path: str, problems: list[Problem]) -> object:
    """By hand, because what is told of a faulty option quotes it."""
    if value is not None and not isinstance(value, str):
        problems.append(Problem(path, "must be a text; write ${NAME} and export the key under that name"))
    return value


C = TypeVar("C", bound=LettaConfig)


@dataclass(slots=True)
class Attempt:
    """One attempt at a sample: how long it may take, whom it asks, and what was answered so far."""

    deadline: Deadline
    agent: str | None = None
    created: bool = False
    """The agent was made for this attempt, and nobody else asks it."""
    turns: list[Turn] = field(default_factory=list)
    usage: list[Mapping[str, Any]] = field(default_factory=list)
    latency_ms: float = 0.0
    cleaned: bool = False


class LettaTarget(NetworkTarget[C]):
    """A target with a letta server; implement `ask`."""

    readers: ClassVar[Mapping[str, Reader]] = {"api_key": _read_key}
    pacing = NetworkTarget.pacing | {"api_key", "pricing"}
    without_effect: ClassVar[Mapping[str, str]] = {
        "model_configs": "has no effect here: letta's own settings of models are not part of it; write model_handles",
    }
    """Options that letta knows and that change nothing here, with what is to be said of them."""

    pause_s: ClassVar[float] = 1.0
    """The pause before a second attempt; it doubles each time."""

    @cached_property
    def folder(self) -> Path:
        return Path(self.resources.folder or ".").absolute()

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ if self.resources.environment is None else self.resources.environment

    @cached_property
    def connection(self) -> Connection:
        options = self.options
        return Connection.of(options.base_url, options.api_key, options.project_id, self.environment)

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
        from gradeline.transport.secrets import fill_secrets  # loads aiohttp

        return fill_secrets(key, self.connection.base_url, self.resources.secrets)

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
        own, code, content = super().fingerprint, self.context.code, self.content
        return fingerprint(own, code, content) if code or content else own

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
        await super().open()

    def unready(self) -> Iterator[Problem]:
        """What a person must fix before a sample can be asked; found without the network."""
        yield from ()

    def _unready_factory(self) -> Iterator[Problem]:
        script = self.options.agent_script
        if script is None:
            return
        if self.context.pool is None:
            yield Problem("agent_script", f"{script} was not loaded")
        if not is_client_installed():
            reason = f"{script} needs the package {PACKAGE}; run: {INSTALL} (code from before its release 1.0"
            yield Problem("agent_script", f"{reason}, which imports CreateBlock or MessageCreate: {INSTALL_OLD})")

    @property
    def server(self) -> LettaServer:
        return LettaServer(self.connection, self.transport, self.hidden)

    @property
    def only_one(self) -> asyncio.Lock | nullcontext[None]:
        """Held while a sample is asked; a lock where all samples ask the same agent."""
        return nullcontext()

    @abstractmethod
    async def ask(self, sample: Sample, visit: Attempt) -> None:
        """Get an agent and its answer, and note both in the visit as they come; or `AgentError`."""
        raise NotImplementedError(f"{type(self).__name__} must override ask()")

    async def call(self, sample: Sample) -> Response:
        async with self.only_one:
            attempt = 0
            while True:
                response, again = await self._attempt(sample, last=attempt >= self.options.max_retries)
                if not again:
                    return response
                await asyncio.sleep(self.pause_s * 2.0 ** min(attempt, 10))
                attempt += 1

    async def _attempt(self, sample: Sample, *, last: bool) -> tuple[Response, bool]:
        """A response, and whether it should be tried to get a better one."""
        visit = Attempt(Deadline(self.options.timeout))
        again = False
        try:
            await self.ask(sample, visit)
            return self._answer(visit, await self._memory(visit)), False
        except AgentError as error:
            again = not last and worth_repeating(error)
            failure = self._failure(error)
            return (failure if again else msgspec.structs.replace(failure, trajectory=await self.done(visit))), again
        finally:
            if visit.agent is not None and visit.created and (self.context.cleanup or again):
                await self._delete(visit.agent)

    def _answer(self, visit: Attempt, memory: dict[str, str] | None) -> Response:
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

    async def done(self, visit: Attempt) -> Trajectory | None:
        """What an agent did before it failed, as far as that can be told."""
        return Trajectory(tuple(visit.turns)) if visit.turns else None

    async def _memory(self, visit: Attempt) -> dict[str, str] | None:
        """An answer is not lost for want of the agent's memory; who grades that is told that it is missing."""
        try:
            return await self.server.memory(visit.agent or "", Deadline(CLEANUP_S))
        except AgentError as error:
            self._warn(f"the memory of agent {visit.agent} could not be read: {error}")
            return None

    async def _delete(self, agent: str) -> None:
        try:
            await self.server.delete(agent, Deadline(CLEANUP_S))
        except AgentError as error:
            self._warn(f"agent {agent} could not be deleted: {error}")

    async def history(self, agent: str) -> Trajectory | None:
        """All that an agent did, for a record of its failure; None where that cannot be had quickly."""
        try:
            return Trajectory(((await self.server.history(agent, Deadline(CLEANUP_S))).turn,))
        except AgentError:
            return None

    def _warn(self, message: str) -> None:
        _log.warning("%s: %s", self.kind, hide(message, self.hidden))

    async def make(self, sample: Sample, visit: Attempt) -> Sample:
        """Have the suite's factory make an agent; gives the sample as the factory left it."""
        script = self.options.agent_script or ""
        task = Task(ROLE, script, config=self.client_options, timeout=visit.deadline.left())
        assert self.context.pool is not None  # noqa: S101 - `open` saw to it
        (result,) = await self.context.pool.run(Job(sample, (task,)))
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

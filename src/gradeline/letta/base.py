"""Base of the letta targets: the server, agents created per sample, retries, and token usage."""

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
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from gradeline.adapters.costs import Price, Tokens
from gradeline.errors import AgentError, ConfigError, Problem
from gradeline.extractors.base import assistant_texts
from gradeline.letta.server import Deadline, LettaConnection, LettaServer
from gradeline.model import Config, Response, Sample, Trajectory, Turn, described, to_json
from gradeline.model.config import Reader
from gradeline.model.fingerprint import fingerprint
from gradeline.model.response import Usage
from gradeline.targets.base import HIDDEN, CodeOption, NetworkTarget, TargetConfig, hide, json_spellings
from gradeline.usercode.agent_factories import (
    AGENT_FACTORY,
    CLIENT_PACKAGE,
    INSTALL_COMMAND,
    INSTALL_OLD_COMMAND,
    CreatedAgent,
    is_client_installed,
)
from gradeline.usercode.protocol import Job, Task

_CACHE_READ = ("cached_tokens", "cache_read_tokens", "cache_read_input_tokens", "cached_input_tokens")
_CACHE_WRITTEN = ("cache_creation_tokens", "cache_creation_input_tokens")
"""Names of the counts in ``prompt_tokens_details``, which differ by provider."""
_LARGEST = 2**53

_Price = Annotated[float, msgspec.Meta(ge=0)]


class TokenPrices(Config, frozen=True, kw_only=True):
    """Prices per million tokens of a model. The cache costs the same as input, unless it has prices of its own."""

    input_per_mtok: Annotated[_Price, described("Price per million input tokens.")]
    output_per_mtok: Annotated[_Price, described("Price per million output tokens.")]
    cache_read_per_mtok: Annotated[_Price | None, described("Price per million tokens read from the cache.")] = None
    cache_write_per_mtok: Annotated[_Price | None, described("Price per million tokens written to the cache.")] = None

    @property
    def price(self) -> Price:
        read, written = self.cache_read_per_mtok, self.cache_write_per_mtok
        return Price(
            input=self.input_per_mtok,
            output=self.output_per_mtok,
            cached=self.input_per_mtok if read is None else read,
            cache_write=self.input_per_mtok if written is None else written,
        )


def usage_of(records: Sequence[Mapping[str, Any]], prices: TokenPrices | None) -> Usage | None:
    """The sum of letta's usage records, one per call. A count that one of them lacks is unknown in the sum."""
    if not records:
        return None
    prompts = [_count(record, "prompt_tokens") for record in records]
    completions = [_count(record, "completion_tokens") for record in records]
    cached = [_count(record, "cached_input_tokens", _CACHE_READ) for record in records]
    written = [_count(record, "cache_write_tokens", _CACHE_WRITTEN) for record in records]
    usage = Usage(_total(prompts), _total(completions), _total(cached))
    if prices is not None and usage.input_tokens is not None and usage.output_tokens is not None:
        read, wrote = sum(count or 0 for count in cached), sum(count or 0 for count in written)
        # letta counts cache reads and cache writes as part of the prompt
        tokens = Tokens(usage.input_tokens, usage.output_tokens, read, wrote)
        usage = msgspec.structs.replace(usage, cost=prices.price.cost(tokens))
    return None if usage == Usage() else usage


def _count(record: Mapping[str, Any], name: str, nested: Sequence[str] = ()) -> int | None:
    details = record.get("prompt_tokens_details")
    values = [record.get(name), *(details.get(key) for key in nested if isinstance(details, Mapping))]
    counts = [count for count in values if isinstance(count, int) and not isinstance(count, bool)]
    # a record may have 0 at the top level and the true count in the details
    return next((count for count in counts if 0 < count < _LARGEST), 0 if 0 in counts else None)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


_log = logging.getLogger("gradeline")

CLEANUP_TIMEOUT_S = 10.0
"""Timeout of calls besides the answer: reading memory or history, deleting an agent."""
SHORTEST_SECRET = 4
_FINAL = frozenset({"tls", "redirect", "too_large"})
"""Error types that a retry does not fix."""


class LettaConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of all letta targets."""

    base_url: Annotated[
        str | None,
        described(
            "URL of the letta server (default LETTA_BASE_URL, or letta's cloud if there is a key, or"
            " http://localhost:8283)."
        ),
    ] = None
    api_key: Annotated[str | None, described("API key as ${NAME} (default LETTA_API_KEY).")] = None
    project_id: Annotated[str | None, described("Project on the server (default LETTA_PROJECT_ID).")] = None
    timeout: Annotated[float, described("Timeout of one attempt in seconds.", gt=0, le=86_400)] = 300.0
    max_retries: Annotated[
        int, described("Retries of a failed sample, each with a new agent (default 0).", ge=0, le=100)
    ] = 0
    agent_script: Annotated[
        str | None, described("Agent factory, file.py:name of a function marked @agent_factory.")
    ] = None
    pricing: Annotated[
        dict[str, str | TokenPrices] | None,
        described("Prices by model handle: {input_per_mtok, output_per_mtok, …}; a name has no effect."),
    ] = None
    model_configs: Annotated[Any, described("Option of letta 0.2 to 0.19 without effect; use model_handles.")] = None

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        yield from connection_faults(LettaConnection.of(self.base_url, self.api_key, self.project_id, {}))


def connection_faults(connection: LettaConnection) -> Iterator[Problem]:
    """Problems of the server's URL and headers, with the options that define them."""
    from gradeline.transport import HttpRequest  # loads aiohttp

    places = {"url": "base_url", "headers.Authorization": "api_key", "headers.X-Project-Id": "project_id"}
    try:
        HttpRequest("GET", connection.base_url, connection.headers).checked_url()
    except ConfigError as error:
        yield from (Problem(places.get(problem.path, problem.path), problem.message) for problem in error.problems)


def _read_key(value: object, path: str, problems: list[Problem]) -> object:
    """Checked here because the usual message would quote the key."""
    if value is not None and not isinstance(value, str):
        problems.append(Problem(path, "must be a string; write ${NAME} and export the key under that name"))
    return value


C = TypeVar("C", bound=LettaConfig)


@dataclass(slots=True)
class AgentAttempt:
    """One attempt at a sample: its deadline, its agent, and the results so far."""

    deadline: Deadline
    agent: str | None = None
    created: bool = False
    """The agent was created for this attempt and serves no other."""
    turns: list[Turn] = field(default_factory=list)
    usage: list[Mapping[str, Any]] = field(default_factory=list)
    latency_ms: float = 0.0
    cleaned: bool = False
    stop_reason: str | None = None


class LettaTarget(NetworkTarget[C]):
    """A target on a letta server; implement `ask`."""

    readers: ClassVar[Mapping[str, Reader]] = {"api_key": _read_key}
    pacing = NetworkTarget.pacing | {"api_key", "pricing"}
    user_code = CodeOption("agent_script", AGENT_FACTORY)
    without_effect: ClassVar[Mapping[str, str]] = {
        "model_configs": "has no effect here: letta's model settings are not supported; use model_handles",
    }
    """Options of letta without effect here, each with the reason."""

    pause_s: ClassVar[float] = 1.0
    """Pause before the first retry in seconds; it doubles each time."""

    @cached_property
    def folder(self) -> Path:
        return Path(self.resources.folder or ".").absolute()

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ if self.resources.environment is None else self.resources.environment

    @cached_property
    def connection(self) -> LettaConnection:
        options = self.options
        return LettaConnection.of(options.base_url, options.api_key, options.project_id, self.environment)

    @property
    def client_options(self) -> dict[str, Any]:
        """Options of the client that the suite's agent factory receives."""
        return {**self.connection._asdict(), "api_key": self.key_for_program or None, "timeout": self.options.timeout}

    @property
    def key_for_program(self) -> str:
        """The real key, for programs that call the server themselves."""
        key = self.connection.api_key or ""
        if self.resources.secrets is None:
            return key
        from gradeline.transport.secrets import fill_secrets  # loads aiohttp

        return fill_secrets(key, self.connection.base_url, self.resources.secrets)

    @cached_property
    def hidden(self) -> frozenset[str]:
        return json_spellings([*self.secrets, *(key for key in self.credentials if len(key) >= SHORTEST_SECRET)])

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
        """A digest of further files that affect the answers."""
        return ""

    def cache_key(self, sample: Sample, repeat: int) -> str:
        own = super().cache_key(sample, repeat)
        # a factory receives the whole sample and may pass the expectation to the agent
        return own if self.options.agent_script is None else fingerprint(own, to_json(sample))

    async def open(self) -> None:
        # the connection also depends on the environment
        problems = [*connection_faults(self.connection), *self._factory_problems(), *self.startup_problems()]
        if problems:
            raise ConfigError(problems, self.kind)
        await super().open()

    def startup_problems(self) -> Iterator[Problem]:
        """Problems to fix before the run, found without network access."""
        yield from ()

    def _factory_problems(self) -> Iterator[Problem]:
        script = self.options.agent_script
        if script is None:
            return
        if self.context.pool is None:
            yield Problem("agent_script", f"{script} was not loaded")
        if not is_client_installed():
            reason = f"{script} needs the package {CLIENT_PACKAGE}; run: {INSTALL_COMMAND}"
            older = f"code from before its release 1.0 (CreateBlock or MessageCreate): {INSTALL_OLD_COMMAND}"
            yield Problem("agent_script", f"{reason}; {older}")

    @property
    def server(self) -> LettaServer:
        return LettaServer(self.connection, self.transport, self.hidden)

    @property
    def only_one(self) -> asyncio.Lock | nullcontext[None]:
        """Held during a call; a lock if all samples share one agent."""
        return nullcontext()

    @abstractmethod
    async def ask(self, sample: Sample, attempt: AgentAttempt) -> None:
        """Get an agent and its answer, recording both in the attempt as they arrive; or `AgentError`."""
        raise NotImplementedError(f"{type(self).__name__} must override ask()")

    async def call(self, sample: Sample) -> Response:
        async with self.only_one:
            retries = 0
            while True:
                response, again = await self._attempt(sample, last=retries >= self.options.max_retries)
                if not again:
                    return response
                await asyncio.sleep(self.pause_s * 2.0 ** min(retries, 10))
                retries += 1

    async def _attempt(self, sample: Sample, *, last: bool) -> tuple[Response, bool]:
        """A response, and whether to retry."""
        attempt = AgentAttempt(Deadline(self.options.timeout))
        again = False
        try:
            await self.ask(sample, attempt)
            return self._answer(attempt, await self._memory(attempt)), False
        except AgentError as error:
            again = not last and worth_repeating(error)
            failure = self._failure(error)
            return (failure if again else msgspec.structs.replace(failure, trajectory=await self.done(attempt))), again
        finally:
            if attempt.agent is not None and attempt.created and (self.context.cleanup or again):
                await self._delete(attempt.agent)

    def _answer(self, attempt: AgentAttempt, memory: dict[str, str] | None) -> Response:
        trajectory = Trajectory(tuple(attempt.turns), memory)
        texts = assistant_texts(trajectory.messages())
        prices = (self.options.pricing or {}).get(self.model or "")
        return Response(
            text=texts[-1] if texts else "",
            trajectory=trajectory,
            usage=usage_of(attempt.usage, prices if isinstance(prices, TokenPrices) else None),
            latency_ms=attempt.latency_ms,
            cleaned=attempt.cleaned,
            stop_reason=attempt.stop_reason,
        )

    async def done(self, attempt: AgentAttempt) -> Trajectory | None:
        """What an agent did before it failed, as far as known."""
        return Trajectory(tuple(attempt.turns)) if attempt.turns else None

    async def _memory(self, attempt: AgentAttempt) -> dict[str, str] | None:
        """The agent's memory; None if it cannot be read. Graders report the gap, and the answer is not lost."""
        try:
            return await self.server.memory(attempt.agent or "", Deadline(CLEANUP_TIMEOUT_S))
        except AgentError as error:
            self._warn(f"the memory of agent {attempt.agent} could not be read: {error}")
            return None

    async def _delete(self, agent: str) -> None:
        try:
            await self.server.delete(agent, Deadline(CLEANUP_TIMEOUT_S))
        except AgentError as error:
            self._warn(f"agent {agent} could not be deleted: {error}")

    async def history(self, agent: str) -> Trajectory | None:
        """The agent's messages, for the record of a failure; None if they cannot be read in time."""
        try:
            return Trajectory(((await self.server.history(agent, Deadline(CLEANUP_TIMEOUT_S))).turn,))
        except AgentError:
            return None

    def _warn(self, message: str) -> None:
        _log.warning("%s: %s", self.kind, hide(message, self.hidden))

    async def make(self, sample: Sample, attempt: AgentAttempt) -> Sample:
        """Create an agent with the suite's factory; returns the sample as the factory left it."""
        script = self.options.agent_script or ""
        task = Task(AGENT_FACTORY, script, config=self.client_options, timeout=attempt.deadline.left())
        assert self.context.pool is not None  # noqa: S101 - checked by `open`
        (result,) = await self.context.pool.run(Job(sample, (task,)))
        if result.error is not None or result.text is None:
            error = result.error
            reason = "it returned no agent" if error is None else f"{error.type}: {error.message}"
            raise AgentError(_error_type("" if error is None else error.type), f"{script}: {reason}")
        made = msgspec.json.decode(result.text, type=CreatedAgent)
        attempt.agent, attempt.created = made.agent_id, True
        return msgspec.structs.replace(sample, input=made.input, extra_vars=made.extra_vars)


def worth_repeating(error: AgentError) -> bool:
    """Whether a retry may succeed."""
    status = getattr(error, "http_status", None)
    if error.type == "status" and status is not None:
        return bool(status >= 500)
    return error.type not in _FINAL


def _error_type(exception: str) -> str:
    """The type of response error for a factory's exception, usually one of the letta client."""
    names = {"timeout": "timeout", "Timeout": "timeout", "Connect": "connect", "RateLimit": "rate_limited"}
    return next((kind for name, kind in names.items() if name in exception), "bad_response")

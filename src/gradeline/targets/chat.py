"""Chat models as targets, called in their providers' own formats."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import msgspec

from gradeline.adapters.chat import ChatRequest, ChatResponse
from gradeline.adapters.errors import CallerRefused, ModelError, ProviderAccess
from gradeline.adapters.registry import PROVIDERS, create
from gradeline.errors import AgentError, ConfigError, Problem, ProviderRefusedError
from gradeline.model import Message, Response, Sample, Trajectory, Usage, clean_text, described, quote
from gradeline.model.llm import RunConfig, common_stop_reason
from gradeline.model.response import usage_of_calls
from gradeline.model.trajectory import Turn
from gradeline.targets.base import HIDDEN, DeclaredTarget, Pricing, TargetConfig, hide, json_spellings
from gradeline.targets.chat_prompt import (
    ChatMessage,
    ChatPrompt,
    prompt_faults,
    read_tools,
    results_of,
    tool_faults,
)
from gradeline.targets.template import PlaceholderValues, input_turns, placeholders

if TYPE_CHECKING:
    from gradeline.adapters.chat import ChatAdapter

FINISH = "finish_reason"
"""Name of the trajectory event for an answer that did not end normally."""

_log = logging.getLogger("gradeline")
_NORMAL_ENDS = frozenset({None, "stop", "tool_calls"})
_OWN_OPTIONS = ("model", "messages", "system", "temperature", "max_tokens", "seed", "stream")
"""Options that must not be repeated in params."""
_SHORTEST_KEY = 8
"""Shorter keys are placeholders such as ``EMPTY`` or ``test``, which may occur in answers."""
_MAX_QUOTED = 500


class ChatConfig(TargetConfig, frozen=True, kw_only=True):
    """Options of `ChatTarget`."""

    prompt: Annotated[
        str | None,
        described("Template of the question with {{input}}, {{id}}, {{model}}, {{metadata.x}} (default {{input}})."),
    ] = None
    system: Annotated[str | None, described("System prompt, with placeholders as in prompt.")] = None
    messages: Annotated[
        tuple[ChatMessage, ...],
        described(
            "Messages {role, content} before the question; a user message with {{input}} is the question itself."
        ),
    ] = ()
    base_url: Annotated[
        str | None, described("Base URL of the model (default its provider's); only api_key is sent to it.")
    ] = None
    api_key: Annotated[str | None, described("API key as ${NAME} (default the provider's usual variable).")] = None
    headers: Annotated[dict[str, str], described("Further HTTP headers.")] = msgspec.field(default_factory=dict)
    temperature: Annotated[float | None, described("Sampling temperature (default the model's own).")] = None
    max_tokens: Annotated[Annotated[int, msgspec.Meta(ge=1)] | None, described("Maximum tokens of a response.")] = None
    seed: Annotated[int | None, described("Seed, for models that support it.")] = None
    params: Annotated[dict[str, Any], described("Further request parameters, by the provider's names.")] = (
        msgspec.field(default_factory=dict)
    )
    tools: Annotated[
        tuple[dict[str, Any], ...],
        described("Tools that the model may call: {name, description, parameters}. They are never run."),
    ] = ()
    response_schema: Annotated[dict[str, Any] | None, described("JSON Schema of the response.")] = None
    stream: Annotated[bool, described("Stream the response (default false).")] = False
    timeout: Annotated[
        float, described("Timeout of one turn in seconds, including retries and pauses.", gt=0, le=86_400)
    ] = 120.0
    retries: Annotated[int, described("Retries after 429, 5xx and connection errors.", ge=0, le=100)] = 2

    def faults(self) -> Iterator[Problem]:
        yield from super().faults()
        yield from prompt_faults(self.prompt, self.system, self.messages)
        for name in ("headers", "params"):
            for path, placeholder in placeholders(getattr(self, name), name):
                yield Problem(path, f"{{{{{placeholder}}}}} is not filled in here, only in prompt, system and messages")
        for name in _OWN_OPTIONS:
            if name in self.params:
                yield Problem(f"params.{name}", f"{name} is an option of the target itself; write it there")
        yield from tool_faults(self.tools)
        yield from self._call_faults()

    def _call_faults(self) -> Iterator[Problem]:
        if self.base_url is None and not self.headers:
            return
        from gradeline.transport import HttpRequest  # loads aiohttp

        try:
            HttpRequest(
                "POST", "https://localhost" if self.base_url is None else self.base_url, self.headers
            ).checked_url()
        except ConfigError as error:
            yield from (
                problem._replace(path="base_url") if problem.path == "url" else problem for problem in error.problems
            )


C = TypeVar("C", bound=ChatConfig)


class ChatTurn(NamedTuple):
    """A question and its answer; ``results`` replace the tools' results in the history of later turns."""

    question: Message
    answer: ChatResponse
    results: tuple[Message, ...] = ()

    @property
    def reply(self) -> Message:
        return Message("assistant", self.answer.content, self.answer.tool_calls)

    @property
    def history(self) -> Turn:
        """The answer in the history of later turns; empty messages are left out, because providers reject them."""
        has_content = self.answer.content or self.answer.tool_calls
        return (self.reply, *self.results) if has_content else ()

    @property
    def remark(self) -> str | None:
        """Why the answer ended, unless it ended normally: our finish reason, and the provider's if it differs."""
        finish = self.answer.finish_reason
        if finish in _NORMAL_ENDS:
            return None
        original = str((self.answer.raw or {}).get("finish_reason") or finish)
        return f"{finish}" if original == finish else f"{finish} ({clean_text(original).text})"

    @property
    def stop_reason(self) -> str | None:
        """The provider's word for why the answer ended, or ours where that says more, as for a refusal."""
        finish = self.answer.finish_reason
        word = (self.answer.raw or {}).get("finish_reason")
        if not isinstance(word, str) or common_stop_reason(word) != finish:
            return finish
        return clean_text(word).text

    @property
    def turn(self) -> Turn:
        remark = self.remark
        event = () if remark is None else (Message("event", remark, name=FINISH),)
        # events, because no tool returned them: graders must not read them as results
        sent = (msgspec.structs.replace(one, role="event") for one in self.results)
        ran = self.answer.server_calls
        run_by_provider = (Message("assistant", tool_calls=ran),) if ran else ()
        return (self.question, *run_by_provider, self.reply, *event, *sent)


class ChatTarget(DeclaredTarget[C], Generic[C]):
    """A model behind a provider's API; each kind is a provider.

    A list input is a conversation: one call per turn, each with the whole history. Tool calls are recorded in the
    trajectory and never run. An answer that was cut off, filtered or refused is still the answer; the trajectory then
    has an event named ``finish_reason``. Errors that would fail every case (wrong key, unknown model, exhausted
    account) raise `ProviderRefusedError`.
    """

    provider: ClassVar[str]
    pacing = DeclaredTarget.pacing | {"api_key"}

    def __init__(self, config: Mapping[str, Any] | None = None, secrets: Collection[str] = ()) -> None:
        super().__init__(config, secrets)
        options = self.options
        self._adapter: ChatAdapter | None = None
        self._prompt = ChatPrompt(options.prompt, options.system, options.messages)
        self._tools = tuple(read_tools(options.tools))
        self._warned: set[str] = set()
        self._access = ProviderAccess()

    def resume_access(self, *, succeeded: bool, failed: int | None = None) -> None:
        """See `ProviderAccess.resume`."""
        self._access.resume(succeeded=succeeded, failed=failed)

    @property
    def pricing(self) -> Pricing:
        return "priced" if self._adapter is not None and self._adapter.priced else "unpriced"

    @property
    def service(self) -> str:
        """The name of the provider's adapter."""
        return self.provider

    async def open(self) -> None:
        problems = []
        if not self.model:
            problems.append(Problem("model", "is required: name the model, or several in models"))
        try:
            adapter = self._new_adapter()
            if self.model:
                self._try_encoding(adapter)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems, self.kind)
        self._adapter = adapter

    async def close(self) -> None:
        adapter, self._adapter = self._adapter, None
        if adapter is not None:
            await adapter.aclose()

    def _new_adapter(self) -> ChatAdapter:
        from gradeline.adapters.wire import AdapterSettings, model_transport

        options = self.options
        resources = self.resources
        settings = replace(
            self.context.settings
            or AdapterSettings(prices=resources.prices, transport_factory=model_transport(resources)),
            headers=options.headers,
            timeout_s=options.timeout,
            retries=options.retries,
        )
        return create(
            self.service,
            self.model,
            base_url=options.base_url,
            api_key=options.api_key,
            settings=settings,
            environment=resources.environment,
        )

    def _try_encoding(self, adapter: ChatAdapter) -> None:
        """Find params that conflict with an option, before anything is sent."""
        from gradeline.adapters.chat import ChatCall

        try:
            adapter.encode(ChatCall(self.model or "", self._request([Message("user", "?")]), self._run_config(None)))
        except ConfigError as error:
            problems = [
                problem._replace(path=problem.path.replace("model_params.", "params.")) for problem in error.problems
            ]
            raise ConfigError(problems) from None

    @cached_property
    def hidden(self) -> frozenset[str]:
        from gradeline.transport.redaction import known_secrets  # loads aiohttp

        options = self.options
        known = known_secrets(options.base_url or "", options.headers, (), self.secrets)
        return json_spellings([*known, *(key for key in self._keys() if len(key) >= _SHORTEST_KEY)])

    def _keys(self) -> Iterator[str]:
        environment = os.environ if self.resources.environment is None else self.resources.environment
        names = PROVIDERS[self.service].key_names
        yield from (key for key in (self.options.api_key, *map(environment.get, names)) if key)

    @property
    def shown(self) -> dict[str, Any]:
        shown = super().shown
        return {**shown, "api_key": HIDDEN} if "api_key" in shown else shown

    def problems_with(self, sample: Sample) -> list[Problem]:
        if self._prompt.takes_any_sample and isinstance(sample.input, str):
            return []
        try:
            for turn in input_turns(sample):
                lookup = PlaceholderValues(sample, turn, model=self.model)
                self._prompt.system(lookup)
                self._prompt.first(lookup)
        except ConfigError as error:
            return list(error.problems)
        return []

    async def call(self, sample: Sample) -> Response:
        if self._adapter is None:
            raise RuntimeError("call a target inside `async with`")
        messages: list[Message] = []
        done: list[ChatTurn] = []
        turns = input_turns(sample)
        config = self._run_config(self._prompt.system(PlaceholderValues(sample, turns[0], model=self.model)))
        for turn in turns:
            lookup = PlaceholderValues(sample, turn, model=self.model)
            if done:
                done[-1] = done[-1]._replace(results=results_of(done[-1].answer.tool_calls))
                messages += (*done[-1].history, self._prompt.next(lookup))
            else:
                messages += self._prompt.first(lookup)
            send = partial(self._adapter.acomplete, self._request(messages), config)
            try:
                answer = await self._access.call(send)
            except CallerRefused as refused:
                raise self._refused(refused.error, self._adapter) from None
            except ModelError as error:
                if not done:
                    raise
                return self._interrupted(error, done)
            done.append(ChatTurn(_question(messages), answer))
            self._warn_about(done[-1], sample)
        return self._response(done)

    def _request(self, messages: Sequence[Message]) -> ChatRequest:
        options = self.options
        return ChatRequest(tuple(messages), self._tools, response_schema=options.response_schema, stream=options.stream)

    def _run_config(self, system: str | None) -> RunConfig:
        options = self.options
        params = options.params if options.seed is None else {**options.params, "seed": options.seed}
        return RunConfig(
            self.model or "", options.temperature, options.max_tokens, system, options.timeout, model_params=params
        )

    def _response(self, done: Sequence[ChatTurn]) -> Response:
        latencies = [one.answer.latency_ms for one in done if one.answer.latency_ms is not None]
        return Response(
            text=done[-1].answer.content,
            trajectory=_trajectory(done),
            usage=_usage(done),
            latency_ms=sum(latencies) if len(latencies) == len(done) else None,
            cleaned=any(note.what == "text" for one in done for note in one.answer.notes),
            stop_reason=done[-1].stop_reason,
        )

    def _interrupted(self, error: ModelError, done: Sequence[ChatTurn]) -> Response:
        """The response for a conversation whose last call failed, with the turns before it."""
        failed = self._failure(error)
        return msgspec.structs.replace(
            failed, trajectory=_trajectory(done), usage=usage_of_calls(one.answer.usage for one in done)
        )

    def _refused(self, error: AgentError, adapter: ChatAdapter) -> ProviderRefusedError:
        from gradeline.transport import safe_url  # loads aiohttp

        if not isinstance(error, ModelError):
            return ProviderRefusedError(Problem("", hide(str(error), self.hidden)), self.kind)

        status = "" if error.http_status is None else f" (HTTP {error.http_status})"
        message = f"{hide(quote(error.provider_message or str(error), _MAX_QUOTED), self.hidden)}{status}"
        url = safe_url(adapter.base_url)
        match error.obstacle:
            case "quota":
                problem = Problem("", f"the account is used up; {url} answered {message}; top it up, or wait")
            case "model":
                problem = Problem("model", f"{url} refused {quote(self.model)}: {message}; check model and base_url")
            case _:
                problem = Problem("api_key", f"{url} refused it: {message}; {self._key_remedy()}")
        return ProviderRefusedError(problem, self.kind)

    def _key_remedy(self) -> str:
        names = " or ".join(PROVIDERS[self.service].key_names) or "its variable"
        if self.options.api_key:
            return "check the key and its permissions"
        if self.options.base_url:
            return "no key was sent: with a base_url only the target's own key is; write api_key: ${NAME}"
        return f"check {names} and the permissions of that key"

    @cached_property
    def credentials(self) -> frozenset[str]:
        from gradeline.transport.redaction import known_secrets  # loads aiohttp

        return frozenset((*known_secrets(self.options.base_url or "", self.options.headers, (), ()), *self._keys()))

    def _warn_about(self, exchange: ChatTurn, sample: Sample) -> None:
        """Warn once per unsupported feature, and once per finish reason that is not normal."""
        for note in exchange.answer.notes:
            if note.what != "text":
                self._warn(note.what, f"{note.what} had no effect: {note.why}")
        finish, remark = exchange.answer.finish_reason, exchange.remark
        if finish is not None and remark is not None:
            case = quote(sample.case_key)
            self._warn(finish, f"the response to case {case} ended with {remark}; it is graded anyway")

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("target %s, model %s: %s", self.kind, quote(self.model), hide(message, self.hidden))


def _question(messages: Sequence[Message]) -> Message:
    """The last user message, cleaned for storage."""
    question = next(message for message in reversed(messages) if message.role == "user")
    return Message("user", clean_text(question.content).text)


def _trajectory(done: Sequence[ChatTurn]) -> Trajectory:
    return Trajectory(tuple(one.turn for one in done))


def _usage(done: Sequence[ChatTurn]) -> Usage | None:
    return usage_of_calls(one.answer.usage for one in done)


class OpenAIConfig(ChatConfig, frozen=True, kw_only=True):
    """Options of `OpenAITarget`."""

    api: Annotated[Literal["chat", "responses"], described("OpenAI API to use (default chat).")] = "chat"


class OpenAITarget(ChatTarget[OpenAIConfig]):
    """Calls a model of OpenAI, or of a compatible server by base_url, with chat completions or Responses."""

    kind = "openai"
    name = "OpenAI model"
    provider = "openai"

    @property
    def service(self) -> str:
        return "openai_responses" if self.options.api == "responses" else "openai"


class AnthropicTarget(ChatTarget[ChatConfig]):
    """Calls a model of Anthropic, or of a compatible server by base_url, with the Messages API."""

    kind = "anthropic"
    name = "Anthropic model"
    provider = "anthropic"


class GeminiTarget(ChatTarget[ChatConfig]):
    """Calls a model of Google with the Gemini API."""

    kind = "gemini"
    name = "Gemini model"
    provider = "gemini"


class OllamaTarget(ChatTarget[ChatConfig]):
    """Calls a model that Ollama serves, by default on this machine."""

    kind = "ollama"
    name = "Ollama model"
    provider = "ollama"


class VllmTarget(ChatTarget[ChatConfig]):
    """Calls a model that vLLM serves, by default on this machine."""

    kind = "vllm"
    name = "vLLM model"
    provider = "vllm"

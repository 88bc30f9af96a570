"""Chat requests and responses, and `ChatAdapter`, the base of the provider adapters."""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from gradeline.adapters import sync
from gradeline.adapters.costs import Price, Prices, Tokens
from gradeline.adapters.errors import ModelError, find_error
from gradeline.adapters.wire import AdapterSettings, Endpoint, joined, to_body
from gradeline.errors import BudgetExceeded, ConfigError, Problem
from gradeline.model.llm import Budget, LLMResponse, RunConfig
from gradeline.model.response import Usage
from gradeline.model.text import clean_text, quote
from gradeline.model.trajectory import Message, ToolCall

if TYPE_CHECKING:
    from gradeline.transport import Event, HttpResponse

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_BYTES_PER_TOKEN = 4
_BAD_REQUEST = frozenset({400, 422})
"""Statuses by which a server refuses a parameter."""
_NO_USAGE = Usage(0, 0, 0, 0.0)
_MAX_QUOTED = 300
_MIN_TIMEOUT_S = 0.001


@dataclass(frozen=True)
class Tool:
    """A function that the model may call; ``parameters`` is a JSON Schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)


@dataclass(frozen=True)
class ChatRequest:
    """One request to a model. A plain prompt is a request with one user message.

    ``response_schema`` requests JSON of that schema; ``logprobs`` requests token probabilities, with this number of
    alternatives per token (0: none); ``stream`` requests a streamed response, which the adapter assembles.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    response_schema: Mapping[str, Any] | None = None
    schema_name: str = "answer"
    logprobs: int | None = None
    stream: bool = False

    @classmethod
    def of(cls, prompt: str | ChatRequest) -> ChatRequest:
        """The request for a prompt; a request is returned unchanged."""
        return cls((Message("user", prompt),)) if isinstance(prompt, str) else prompt


class Note(NamedTuple):
    """A request that was not fulfilled, and ``why``: ``what`` is a capability (``seed``, ``temperature``,
    ``response_schema``, ``logprobs``, ``stream``, ``usage``, ``max_tokens``) or ``text``."""

    what: str
    why: str


class TokenLogprob(NamedTuple):
    """A token of the response, and its most likely alternatives."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ChatResponse(LLMResponse):
    """A model's response.

    ``finish_reason`` is ``stop``, ``length``, ``tool_calls``, ``content_filter``, ``refusal`` or ``other``, and None if
    the server reported none. ``raw`` has the provider's own finish reason under ``finish_reason`` and the whole
    response under ``body`` (of a stream: as assembled). The content of a refusal is the model's text. In ``usage``,
    ``input_tokens`` counts the whole prompt, ``cached_tokens`` the part of it that was read from a cache.
    """

    notes: tuple[Note, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    server_calls: tuple[ToolCall, ...] = ()
    """Calls of tools that the provider ran itself, such as a web search; the caller does not answer them."""


def prompt_tokens(request: ChatRequest, system: str | None = None) -> int:
    """Estimate a prompt's tokens: one per four bytes of its texts and schemas."""
    texts = [system or ""]
    for message in request.messages:
        texts += [message.content, *(call.name + call.arguments for call in message.tool_calls)]
    schemas = [tool.parameters for tool in request.tools] + [request.response_schema or {}]
    texts += [tool.name + tool.description for tool in request.tools]
    texts += [json.dumps(schema, default=str) for schema in schemas if schema]
    size = sum(len(text.encode(errors="replace")) for text in texts)
    return max(1, -(-size // _BYTES_PER_TOKEN))


class ChatCall(NamedTuple):
    """A request with everything that decides how it is encoded. ``notes`` name the capabilities that are left out."""

    model: str
    request: ChatRequest
    config: RunConfig
    notes: tuple[Note, ...] = ()

    @property
    def temperature(self) -> float | None:
        return None if self.omits("temperature") else self.config.temperature

    @property
    def response_schema(self) -> Mapping[str, Any] | None:
        return None if self.omits("response_schema") else self.request.response_schema

    @property
    def logprobs(self) -> int | None:
        return None if self.omits("logprobs") else self.request.logprobs

    def omits(self, what: str) -> bool:
        return any(note.what == what for note in self.notes)

    def with_note(self, what: str, why: str) -> ChatCall:
        return self._replace(notes=(*self.notes, Note(what, why)))


@dataclass(frozen=True)
class DecodedReply:
    """A decoded response. ``finish`` is a value of `ChatResponse.finish_reason`, ``raw_finish`` the provider's own."""

    text: str
    finish: str | None
    raw_finish: str | None
    tokens: Tokens
    calls: tuple[ToolCall, ...] = ()
    model: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    server_calls: tuple[ToolCall, ...] = ()
    """Calls of tools that the provider ran itself, such as a web search."""


class ChatAdapter(ABC):
    """Calls the models of one provider by `complete` and `acomplete`; subclasses implement the abstract methods.

    A prompt is a string or a `ChatRequest`. ``model`` is used if the `RunConfig` has none (an empty string). If the
    server refuses a capability, the call is repeated without it, and the response has a note. Raises `ModelError`,
    `gradeline.errors.BudgetExceeded`, or `ConfigError` for a problem that the user must fix.
    """

    provider: ClassVar[str]
    capabilities: ClassVar[Mapping[str, Sequence[str]]]
    """Optional capabilities, and the names by which a server refuses them."""
    headers: ClassVar[Mapping[str, str]] = {}
    """Headers that the API requires in every request."""

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str,
        api_key: str | None = None,
        adapter_id: str | None = None,
        settings: AdapterSettings | None = None,
    ) -> None:
        self.model = model
        self.adapter_id = adapter_id or (f"{self.provider}:{model}" if model else self.provider)
        self.settings = settings or AdapterSettings()
        credentials = {**self.headers, **(self.credentials(api_key) if api_key else {})}
        self._endpoint = Endpoint(base_url, credentials, api_key, self.settings)
        self._prices = self.settings.prices or Prices.load()
        self._refused: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.adapter_id!r})"

    def complete(self, prompt: str | ChatRequest, run_config: RunConfig) -> ChatResponse:
        """Call the model; works inside a running event loop too, which it blocks."""
        return sync.run(self.acomplete(prompt, run_config))

    async def acomplete(self, prompt: str | ChatRequest, run_config: RunConfig) -> ChatResponse:
        """Call the model."""
        call = self._call(ChatRequest.of(prompt), run_config)
        body = self._body(call)
        with self._charging(call, run_config.budget) as bill:
            if self.settings.rate is not None:
                await self.settings.rate.wait()
            response = await self._send(call, body)
            bill.append(response.usage or Usage())
        return response

    async def aclose(self) -> None:
        """Close the connections of this event loop; they also close when it ends."""
        await self._endpoint.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @abstractmethod
    def path(self, call: ChatCall) -> str:
        """The path of the call below the base URL."""

    @abstractmethod
    def encode(self, call: ChatCall) -> dict[str, Any]:
        """The body of the request."""

    @abstractmethod
    def assemble(self, events: Sequence[Event]) -> dict[str, Any]:
        """The response body assembled from the events of a stream; `ModelError` if its end is missing."""

    @abstractmethod
    def decode(self, body: Mapping[str, Any]) -> DecodedReply:
        """Decode a response body, or raise `ModelError`."""

    @abstractmethod
    def credentials(self, api_key: str) -> dict[str, str]:
        """The headers that authenticate the caller."""

    def unsupported(self, call: ChatCall) -> Iterator[Note]:  # noqa: ARG002 - most providers support everything
        """Capabilities that this model is known not to support."""
        return iter(())

    def output_limit(self, call: ChatCall) -> int | None:
        """The maximum number of tokens in the response, if the call has one."""
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
        limits = [call.config.max_tokens, *(call.config.model_params.get(name) for name in names)]
        return next((limit for limit in limits if isinstance(limit, int)), None)

    def used_capabilities(self, call: ChatCall) -> set[str]:
        """The capabilities that the call uses."""
        used = {
            what for what, names in self.capabilities.items() if not set(names).isdisjoint(call.config.model_params)
        }
        if call.config.temperature is not None:
            used.add("temperature")
        if call.request.response_schema is not None:
            used.add("response_schema")
        if call.request.logprobs is not None:
            used.add("logprobs")
        return {what for what in used & set(self.capabilities) if not call.omits(what)}

    def params(self, call: ChatCall) -> dict[str, Any]:
        """The model_params of a call, without those of omitted capabilities."""
        omitted = {name for note in call.notes for name in self.capabilities.get(note.what, ())}
        return {name: value for name, value in call.config.model_params.items() if name not in omitted}

    @property
    def base_url(self) -> str:
        return self._endpoint.base_url

    @property
    def host(self) -> str | None:
        """The host of the base URL."""
        return self._endpoint.host

    def _call(self, request: ChatRequest, config: RunConfig) -> ChatCall:
        model = config.model or self.model
        if not model:
            raise ConfigError(Problem("model", f"{self.adapter_id} has no default model; name one"))
        if not request.messages:
            raise ConfigError(Problem("messages", "must not be empty; add at least one"))
        call = ChatCall(model, request, config)
        for note in self.unsupported(call):
            call = call._replace(notes=(*call.notes, note))
        for what in sorted(self.used_capabilities(call)):
            why = self._refused.get((model, what))
            if why is not None:
                call = call.with_note(what, why)
        return call

    def _body(self, call: ChatCall) -> bytes:
        return to_body(self.encode(call), self.adapter_id)

    @contextmanager
    def _charging(self, call: ChatCall, budget: Budget | None) -> Iterator[list[Usage]]:
        """Charge the call's estimate to the budget, and its actual usage once that is known."""
        bill: list[Usage] = []
        if budget is None:
            yield bill
            return
        tokens = prompt_tokens(call.request, call.config.system)
        limit = self.output_limit(call) or 0
        price = self._price(call.model)
        try:
            budget.admit(tokens=tokens + limit, cost=price.cost(Tokens(tokens, limit)) if price else None)
        except BudgetExceeded as error:
            raise BudgetExceeded(f"{self.adapter_id}, model {quote(call.model)}: {error}") from None
        try:
            yield bill
        except (ModelError, ConfigError) as error:
            if not isinstance(error, ModelError) or error.unbilled:
                bill.append(_NO_USAGE)
            raise
        finally:
            budget.settle(bill[0] if bill else Usage())

    async def _send(self, call: ChatCall, body: bytes) -> ChatResponse:
        """Send a call, with retries and without the capabilities that the server refuses."""
        clock = asyncio.get_running_loop().time
        timeout_s = call.config.timeout_s or self.settings.timeout_s
        deadline = clock() + timeout_s
        left_s = timeout_s
        retries, tried = self.settings.retries, 0
        refusals: list[str] = []
        while True:
            try:
                response = await self._attempt(call, body, left_s, retries)
            except ModelError as error:
                tried += error.attempts
                what = self._refusal(call, error)
                if what is not None:
                    refusals.append(what)
                    call = call.with_note(what, f"the server refused it: {quote(error.provider_message, _MAX_QUOTED)}")
                    body = self._body(call)
                else:
                    # the transport has already retried network errors
                    retries -= error.attempts
                    pause = self._endpoint.backoff.pause(error.attempts)
                    if not (error.in_response and error.retryable) or retries < 0 or clock() + pause >= deadline:
                        error.attempts = tried
                        raise
                    await asyncio.sleep(pause)
                left_s = max(deadline - clock(), _MIN_TIMEOUT_S)
            else:
                # stored only after success: a refusal may have named the wrong parameter
                self._refused.update(
                    {(call.model, note.what): note.why for note in call.notes if note.what in refusals}
                )
                return response

    def _refusal(self, call: ChatCall, error: ModelError) -> str | None:
        """The capability that a server refused, if it named one that the call uses."""
        if error.http_status not in _BAD_REQUEST or error.provider_message is None:
            return None
        for what in sorted(self.used_capabilities(call)):
            names = self.capabilities[what]
            if error.param is not None:
                if re.split(r"[.\[]", error.param)[0] in names or error.param in names:
                    return what
            elif any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.provider_message) for name in names):
                return what
        return None

    async def _attempt(self, call: ChatCall, body: bytes, left_s: float, retries: int) -> ChatResponse:
        path = self.path(call)
        stream = call.request.stream
        answer = await self._endpoint.post(path, body, deadline_s=left_s, retries=retries, stream=stream)
        try:
            return self._response(call, answer)
        except ModelError as error:
            raise self._endpoint.with_context(error, path, answer) from None

    def _response(self, call: ChatCall, answer: HttpResponse) -> ChatResponse:
        streamed = call.request.stream and not _is_json(answer)
        notes = list(call.notes)
        if call.request.stream and not streamed:
            notes.append(Note("stream", "the server did not stream the response"))
        if streamed and not answer.events and answer.body.strip():
            raise ModelError("bad_response", "not an event stream")
        body = self.assemble(answer.events) if streamed else self._endpoint.parse_body(answer)
        report = find_error(body)
        if report is not None:
            raise report.to_error("its body")
        reply = self.decode(body)
        text, changed = clean_text(joined([reply.text]))
        if changed:
            notes.append(Note("text", "characters that cannot be stored were replaced"))
        if answer.masked:
            notes.append(Note("text", "a credential in it was masked"))
        if call.logprobs is not None and not reply.logprobs:
            notes.append(Note("logprobs", "the server returned none"))
        return ChatResponse(
            content=text,
            model=reply.model or call.model,
            finish_reason=reply.finish,
            usage=self._usage(call, reply),
            latency_ms=answer.latency_ms,
            raw={"finish_reason": reply.raw_finish, "body": body},
            tool_calls=reply.calls,
            server_calls=reply.server_calls,
            notes=tuple(notes),
            logprobs=reply.logprobs,
        )

    def _usage(self, call: ChatCall, reply: DecodedReply) -> Usage | None:
        # no prompt has 0 tokens, so the server does not count them
        tokens = reply.tokens if reply.tokens.input else reply.tokens._replace(input=None)
        if tokens.input is None and not tokens.output and tokens.cost is None:
            return None
        price = self._price(call.model) or (self._price(reply.model) if reply.model else None)
        cost = tokens.cost if tokens.cost is not None else price.cost(tokens) if price else None
        return Usage(tokens.input, tokens.output, tokens.cached, cost)

    @property
    def priced(self) -> bool:
        """Whether the price of the adapter's model is known."""
        return self.model is not None and self._price(self.model) is not None

    def _price(self, model: str) -> Price | None:
        return self._prices.price(self.provider, model, self.host)


def with_params(body: dict[str, Any], params: Mapping[str, Any], place: str = "model_params") -> dict[str, Any]:
    """The body with more parameters; `ConfigError` for one that it already has."""
    repeated = sorted(set(body) & set(params))
    if repeated:
        raise ConfigError(
            [Problem(f"{place}.{name}", f"{name} is already set by another option; remove one") for name in repeated]
        )
    return {**body, **params}


def _is_json(answer: HttpResponse) -> bool:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"

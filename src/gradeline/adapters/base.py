"""What all chat adapters share: the way from a prompt to a response, whatever is said on the wire."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from gradeline.adapters import blocking
from gradeline.adapters.budget import prompt_tokens
from gradeline.adapters.chat import ChatRequest, ChatResponse, Note, TokenLogprob
from gradeline.adapters.endpoint import Endpoint, Settings, to_body
from gradeline.adapters.failures import ModelError, told_in
from gradeline.adapters.prices import Price, Prices
from gradeline.adapters.wire import Tokens, joined
from gradeline.errors import BudgetExceeded, ConfigError, Problem
from gradeline.model.llm import Budget, RunConfig
from gradeline.model.response import Usage
from gradeline.model.text import clean_text, quote
from gradeline.model.trajectory import ToolCall

if TYPE_CHECKING:
    from gradeline.transport import Answer, Event

_REFUSALS = frozenset({400, 422})
"""The statuses of a server that does not like a parameter."""
_NOTHING = Usage(0, 0, 0, 0.0)
_MAX_SAID = 300
_INSTANT_S = 0.001


class Call(NamedTuple):
    """A request with all that decides how it is put on the wire. ``notes`` say what of it is left out."""

    model: str
    request: ChatRequest
    config: RunConfig
    notes: tuple[Note, ...] = ()

    @property
    def temperature(self) -> float | None:
        return None if self.lacks("temperature") else self.config.temperature

    @property
    def response_schema(self) -> Mapping[str, Any] | None:
        return None if self.lacks("response_schema") else self.request.response_schema

    @property
    def logprobs(self) -> int | None:
        return None if self.lacks("logprobs") else self.request.logprobs

    def lacks(self, what: str) -> bool:
        return any(note.what == what for note in self.notes)

    def noting(self, what: str, why: str) -> Call:
        return self._replace(notes=(*self.notes, Note(what, why)))


@dataclass(frozen=True)
class Reading:
    """What an adapter found in an answer. ``finish`` is one of ours, ``finish_told`` the provider's word."""

    text: str
    finish: str | None
    finish_told: str | None
    tokens: Tokens
    calls: tuple[ToolCall, ...] = ()
    model: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    server_calls: tuple[ToolCall, ...] = ()
    """Calls of tools that the provider ran itself, such as a web search."""


class ChatAdapter(ABC):
    """Speaks with the models of one provider, by `complete` and `acomplete`; implement what is abstract.

    A prompt is a text or a `ChatRequest`. ``model`` is the adapter's own, used where the `RunConfig` names none (an
    empty text). A capability that the server refuses is left out, tried again without, and noted in the response.
    Fails with `ModelError`, `gradeline.errors.BudgetExceeded`, or `ConfigError` for what a person must fix.
    """

    provider: ClassVar[str]
    capabilities: ClassVar[Mapping[str, Sequence[str]]]
    """What can be done without, and the names that a server's refusal gives it."""
    headers: ClassVar[Mapping[str, str]] = {}
    """What the format wants in every request."""

    def __init__(
        self,
        model: str | None = None,
        *,
        base_url: str,
        api_key: str | None = None,
        adapter_id: str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.model = model
        self.adapter_id = adapter_id or (f"{self.provider}:{model}" if model else self.provider)
        self.settings = settings or Settings()
        credentials = {**self.headers, **(self.credentials(api_key) if api_key else {})}
        self._endpoint = Endpoint(base_url, credentials, api_key, self.settings)
        self._prices = self.settings.prices or Prices.load()
        self._refused: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.adapter_id!r})"

    def complete(self, prompt: str | ChatRequest, run_config: RunConfig) -> ChatResponse:
        """The model's answer; works inside a running event loop too, which it blocks."""
        return blocking.run(self.acomplete(prompt, run_config))

    async def acomplete(self, prompt: str | ChatRequest, run_config: RunConfig) -> ChatResponse:
        """The model's answer."""
        call = self._call(ChatRequest.of(prompt), run_config)
        body = self._body(call)
        with self._paying(call, run_config.budget) as bill:
            if self.settings.rate is not None:
                await self.settings.rate.wait()
            response = await self._answered(call, body)
            bill.append(response.usage or Usage())
        return response

    async def aclose(self) -> None:
        """Closes the connections of this event loop; they close by themselves when it ends."""
        await self._endpoint.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @abstractmethod
    def path(self, call: Call) -> str:
        """Where below the base URL the call goes."""

    @abstractmethod
    def encode(self, call: Call) -> dict[str, Any]:
        """The body of the request."""

    @abstractmethod
    def assemble(self, events: Sequence[Event]) -> dict[str, Any]:
        """The answer that the events of a stream add up to, or `ModelError` where its end is missing."""

    @abstractmethod
    def decode(self, body: Mapping[str, Any]) -> Reading:
        """What an answer says, or `ModelError`."""

    @abstractmethod
    def credentials(self, api_key: str) -> dict[str, str]:
        """The headers that let the caller in."""

    def forgone(self, call: Call) -> Iterator[Note]:  # noqa: ARG002 - most know of nothing beforehand
        """What this model is known not to do."""
        return iter(())

    def output_limit(self, call: Call) -> int | None:
        """How many tokens the answer may have, where anything says so."""
        names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
        given = [call.config.max_tokens, *(call.config.model_params.get(name) for name in names)]
        return next((limit for limit in given if isinstance(limit, int)), None)

    def wanted(self, call: Call) -> set[str]:
        """The capabilities that the call makes use of."""
        wanted = {
            what for what, names in self.capabilities.items() if not set(names).isdisjoint(call.config.model_params)
        }
        if call.config.temperature is not None:
            wanted.add("temperature")
        if call.request.response_schema is not None:
            wanted.add("response_schema")
        if call.request.logprobs is not None:
            wanted.add("logprobs")
        return {what for what in wanted & set(self.capabilities) if not call.lacks(what)}

    def params(self, call: Call) -> dict[str, Any]:
        """The further parameters of a call, without those that are left out."""
        left_out = {name for note in call.notes for name in self.capabilities.get(note.what, ())}
        return {name: value for name, value in call.config.model_params.items() if name not in left_out}

    @property
    def base_url(self) -> str:
        return self._endpoint.base_url

    @property
    def host(self) -> str | None:
        """The host that is called."""
        return self._endpoint.host

    def _call(self, request: ChatRequest, config: RunConfig) -> Call:
        model = config.model or self.model
        if not model:
            raise ConfigError(Problem("model", f"{self.adapter_id} has no model of its own; name one"))
        if not request.messages:
            raise ConfigError(Problem("messages", "there is none; give at least one"))
        call = Call(model, request, config)
        for note in self.forgone(call):
            call = call._replace(notes=(*call.notes, note))
        for what in sorted(self.wanted(call)):
            why = self._refused.get((model, what))
            if why is not None:
                call = call.noting(what, why)
        return call

    def _body(self, call: Call) -> bytes:
        return to_body(self.encode(call), self.adapter_id)

    @contextmanager
    def _paying(self, call: Call, budget: Budget | None) -> Iterator[list[Usage]]:
        """Takes the call's estimate off the budget, and what it used in its place once that is known."""
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
            if not isinstance(error, ModelError) or error.unpaid:
                bill.append(_NOTHING)
            raise
        finally:
            budget.settle(bill[0] if bill else Usage())

    async def _answered(self, call: Call, body: bytes) -> ChatResponse:
        """The answer to a call, however many attempts and concessions it takes."""
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
                    call = call.noting(what, f"the server refused it: {quote(error.said, _MAX_SAID)}")
                    body = self._body(call)
                else:
                    # what failed on the way the transport has tried again itself
                    retries -= error.attempts
                    pause = self._endpoint.backoff.pause(error.attempts)
                    if not (error.answered and error.retryable) or retries < 0 or clock() + pause >= deadline:
                        error.attempts = tried
                        raise
                    await asyncio.sleep(pause)
                left_s = max(deadline - clock(), _INSTANT_S)
            else:
                # remembered only now: a refusal that named the wrong culprit must not stick
                self._refused.update(
                    {(call.model, note.what): note.why for note in call.notes if note.what in refusals}
                )
                return response

    def _refusal(self, call: Call, error: ModelError) -> str | None:
        """The capability that a server refused, where it named one that the call makes use of."""
        if error.http_status not in _REFUSALS or error.said is None:
            return None
        for what in sorted(self.wanted(call)):
            names = self.capabilities[what]
            if error.param is not None:
                if re.split(r"[.\[]", error.param)[0] in names or error.param in names:
                    return what
            elif any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.said) for name in names):
                return what
        return None

    async def _attempt(self, call: Call, body: bytes, left_s: float, retries: int) -> ChatResponse:
        path = self.path(call)
        stream = call.request.stream
        answer = await self._endpoint.post(path, body, deadline_s=left_s, retries=retries, stream=stream)
        try:
            return self._response(call, answer)
        except ModelError as error:
            raise self._endpoint.placed(error, path, answer) from None

    def _response(self, call: Call, answer: Answer) -> ChatResponse:
        streamed = call.request.stream and not _says_json(answer)
        notes = list(call.notes)
        if call.request.stream and not streamed:
            notes.append(Note("stream", "the server answered in one piece"))
        if streamed and not answer.events and answer.body.strip():
            raise ModelError("bad_response", "no stream of events")
        body = self.assemble(answer.events) if streamed else self._endpoint.parsed(answer)
        told = told_in(body)
        if told is not None:
            raise told.error("its body")
        reading = self.decode(body)
        text, changed = clean_text(joined([reading.text]))
        if changed:
            notes.append(Note("text", "it held what is no text, which was replaced"))
        if answer.masked:
            notes.append(Note("text", "it held a credential, which was masked"))
        if call.logprobs is not None and not reading.logprobs:
            notes.append(Note("logprobs", "the server gave none"))
        return ChatResponse(
            content=text,
            model=reading.model or call.model,
            finish_reason=reading.finish,
            usage=self._usage(call, reading),
            latency_ms=answer.latency_ms,
            raw={"finish_reason": reading.finish_told, "body": body},
            tool_calls=reading.calls,
            server_calls=reading.server_calls,
            notes=tuple(notes),
            logprobs=reading.logprobs,
        )

    def _usage(self, call: Call, reading: Reading) -> Usage | None:
        # no prompt has 0 tokens: the server does not count
        tokens = reading.tokens if reading.tokens.input else reading.tokens._replace(input=None)
        if tokens.input is None and not tokens.output and tokens.cost is None:
            return None
        price = self._price(call.model) or (self._price(reading.model) if reading.model else None)
        cost = tokens.cost if tokens.cost is not None else price.cost(tokens) if price else None
        return Usage(tokens.input, tokens.output, tokens.cached, cost)

    @property
    def priced(self) -> bool:
        """Whether the price of its model is known."""
        return self.model is not None and self._price(self.model) is not None

    def _price(self, model: str) -> Price | None:
        return self._prices.price(self.provider, model, self.host)


def with_params(body: dict[str, Any], params: Mapping[str, Any], place: str = "model_params") -> dict[str, Any]:
    """The body with more parameters; `ConfigError` for one that it has already."""
    twice = sorted(set(body) & set(params))
    if twice:
        raise ConfigError(
            [Problem(f"{place}.{name}", f"{name} is set elsewhere already; leave one out") for name in twice]
        )
    return {**body, **params}


def _says_json(answer: Answer) -> bool:
    return answer.headers.get("Content-Type", "").partition(";")[0].strip().lower() == "application/json"

"""Asking a judge: one call, and one more with a larger limit where the reply was cut off."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

from gradeline.adapters import blocking
from gradeline.adapters.chat import ChatRequest, ChatResponse, Note
from gradeline.judges.replies import ReplyError, TruncatedReply
from gradeline.model.llm import LLMAdapter, LLMResponse, RunConfig
from gradeline.model.response import Usage, total_usage

T = TypeVar("T")

_LEAST_LIMIT = 1024
"""What a limit that nobody set is taken to have been, at least, before it is made larger."""


class Answered(NamedTuple, Generic[T]):
    """What was read in a reply. ``usage`` is the sum over all calls, unknown where that of any is; ``notes`` say what
    the adapter could not do, ``model`` which model answered."""

    value: T
    usage: Usage | None
    model: str | None
    notes: tuple[Note, ...]
    calls: int
    latency_ms: float
    response: LLMResponse


async def ask(
    adapter: LLMAdapter,
    prompt: str | ChatRequest,
    config: RunConfig,
    read: Callable[[LLMResponse], T],
    *,
    larger: int = 4,
) -> Answered[T]:
    """What ``read`` finds in the adapter's reply.

    A `TruncatedReply` is asked for once more with ``larger`` times the limit of tokens; any other `ReplyError` is
    raised at once, with ``usage`` and ``calls`` set. The adapter's own errors pass through. An adapter that takes
    texts alone gets a text; one without ``acomplete`` is called in a thread.
    """
    inquiry = _Inquiry(adapter, prompt, config, read, larger)
    while True:
        started = perf_counter()
        response = await complete(adapter, inquiry.prompt, inquiry.config)
        answered = inquiry.take(response, (perf_counter() - started) * 1000)
        if answered is not None:
            return answered


def ask_sync(
    adapter: LLMAdapter,
    prompt: str | ChatRequest,
    config: RunConfig,
    read: Callable[[LLMResponse], T],
    *,
    larger: int = 4,
) -> Answered[T]:
    """`ask` by the adapter's ``complete``; works inside a running event loop too, which it blocks."""
    inquiry = _Inquiry(adapter, prompt, config, read, larger)
    while True:
        started = perf_counter()
        response = complete_sync(adapter, inquiry.prompt, inquiry.config)
        answered = inquiry.take(response, (perf_counter() - started) * 1000)
        if answered is not None:
            return answered


async def complete(adapter: LLMAdapter, prompt: str | ChatRequest, config: RunConfig) -> LLMResponse:
    """The adapter's response; one that only has ``complete`` works in a thread."""
    send = getattr(adapter, "acomplete", None)
    response: LLMResponse = await (send(prompt, config) if send else asyncio.to_thread(_sync(adapter), prompt, config))
    return response


def complete_sync(adapter: LLMAdapter, prompt: str | ChatRequest, config: RunConfig) -> LLMResponse:
    """The adapter's response; one that only has ``acomplete`` is waited for."""
    if getattr(adapter, "complete", None):
        return _sync(adapter)(prompt, config)
    return blocking.run(complete(adapter, prompt, config))


def takes_requests(adapter: LLMAdapter) -> bool:
    """Whether the adapter says, by the type of its prompt, that it takes a `ChatRequest` beside a text."""
    method = getattr(adapter, "acomplete", None) or getattr(adapter, "complete", None)
    try:
        parameters = list(inspect.signature(method).parameters.values()) if method else []
    except (TypeError, ValueError):
        return False
    return bool(parameters) and ChatRequest.__name__ in str(parameters[0].annotation)


class _Inquiry(Generic[T]):
    """What is to be sent next, and what came of that so far; how it is sent is another's business."""

    def __init__(
        self,
        adapter: LLMAdapter,
        prompt: str | ChatRequest,
        config: RunConfig,
        read: Callable[[LLMResponse], T],
        larger: int,
    ) -> None:
        whole = isinstance(prompt, str) or takes_requests(adapter)
        self.prompt = prompt if whole else _as_text(ChatRequest.of(prompt))
        self.config = config
        self._notes = () if whole else tuple(_left_out(ChatRequest.of(prompt)))
        self._read = read
        self._larger = larger
        self._used: list[Usage | None] = []
        self._latency_ms = 0.0

    def take(self, response: LLMResponse, took_ms: float) -> Answered[T] | None:
        """What the response says; None where it was cut off and is to be asked for again."""
        self._used.append(response.usage)
        self._latency_ms += took_ms if response.latency_ms is None else response.latency_ms
        usage, calls = told_usage(self._used), len(self._used)
        try:
            value = self._read(response)
        except ReplyError as error:
            if isinstance(error, TruncatedReply) and calls == 1 and self._larger > 1:
                self.config = self.config.replace(max_tokens=self._limit(response) * self._larger)
                return None
            error.usage, error.calls = usage, calls
            raise
        told = response.notes if isinstance(response, ChatResponse) else ()
        return Answered(value, usage, response.model, (*self._notes, *told), calls, self._latency_ms, response)

    def _limit(self, response: LLMResponse) -> int:
        """The limit that the response met."""
        if self.config.max_tokens is not None:
            return self.config.max_tokens
        said = response.usage.output_tokens if response.usage else None
        return max(said or 0, _LEAST_LIMIT)


def told_usage(used: Sequence[Usage | None]) -> Usage | None:
    """The sum of what calls used, of which one that told nothing makes all unknown; None where nothing is known."""
    total = total_usage(one or Usage() for one in used)
    return None if total == Usage() else total


def _sync(adapter: LLMAdapter) -> Callable[[str | ChatRequest, RunConfig], LLMResponse]:
    # A request only goes to those that take one (see `takes_requests`), whatever the protocol's own type says.
    method: Callable[[str | ChatRequest, RunConfig], LLMResponse] = adapter.complete  # type: ignore[assignment]
    return method


def _as_text(request: ChatRequest) -> str:
    return "\n\n".join(message.content for message in request.messages if message.content)


def _left_out(request: ChatRequest) -> list[Note]:
    asked = {"response_schema": request.response_schema, "logprobs": request.logprobs}
    return [Note(what, "the adapter takes texts alone") for what, value in asked.items() if value is not None]

"""Calls of a judge: one call, and a second one with a larger token limit if the reply was cut off."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from numbers import Real
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

from gradeline.adapters import sync
from gradeline.adapters.chat import ChatRequest, ChatResponse, Note
from gradeline.judges.reply_parsing import InvalidReply, ReplyError, TruncatedReply
from gradeline.model.llm import LLMAdapter, LLMResponse, RunConfig
from gradeline.model.response import Usage, usage_of_calls
from gradeline.model.text import quote
from gradeline.model.trajectory import ToolCall

T = TypeVar("T")

_MIN_ASSUMED_LIMIT = 1024
"""Minimum token limit to assume for a reply that was cut off without a configured limit."""


class JudgeAnswer(NamedTuple, Generic[T]):
    """The parsed reply of a judge.

    ``usage`` is the sum over all calls, unknown if that of any is; ``notes`` list requested features that the adapter
    does not support; ``model`` is the model that answered.
    """

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
) -> JudgeAnswer[T]:
    """Call the adapter and parse its reply with ``read``.

    A `TruncatedReply` is requested once more with ``larger`` times the token limit; any other `ReplyError` is raised
    at once, with ``usage`` and ``calls`` set. The adapter's own errors pass through. An adapter that only takes
    strings gets a string; one without ``acomplete`` is called in a thread.
    """
    conversation = _Conversation(adapter, prompt, config, read, larger)
    while True:
        started = perf_counter()
        response = await complete(adapter, conversation.prompt, conversation.config)
        answered = conversation.take(response, (perf_counter() - started) * 1000)
        if answered is not None:
            return answered


def ask_sync(
    adapter: LLMAdapter,
    prompt: str | ChatRequest,
    config: RunConfig,
    read: Callable[[LLMResponse], T],
    *,
    larger: int = 4,
) -> JudgeAnswer[T]:
    """`ask` with the adapter's ``complete``; also works inside a running event loop, which it blocks."""
    conversation = _Conversation(adapter, prompt, config, read, larger)
    while True:
        started = perf_counter()
        response = complete_sync(adapter, conversation.prompt, conversation.config)
        answered = conversation.take(response, (perf_counter() - started) * 1000)
        if answered is not None:
            return answered


async def complete(adapter: LLMAdapter, prompt: str | ChatRequest, config: RunConfig) -> LLMResponse:
    """The adapter's response; an adapter with only ``complete`` runs in a thread."""
    send = getattr(adapter, "acomplete", None)
    with _no_exit(adapter):
        response = await (send(prompt, config) if send else asyncio.to_thread(_sync(adapter), prompt, config))
    return checked(adapter, response)


def complete_sync(adapter: LLMAdapter, prompt: str | ChatRequest, config: RunConfig) -> LLMResponse:
    """The adapter's response; an adapter with only ``acomplete`` runs in an event loop."""
    if not getattr(adapter, "complete", None):
        return sync.run(complete(adapter, prompt, config))
    with _no_exit(adapter):
        response = _sync(adapter)(prompt, config)
    return checked(adapter, response)


def checked(adapter: LLMAdapter, response: object) -> LLMResponse:
    """An adapter's response with the declared types; `InvalidReply` if it is not an `LLMResponse`.

    Adapters are user code too. Content None becomes empty; any other field of a wrong type becomes unknown.
    """
    if not isinstance(response, LLMResponse):
        message = f"{_name(adapter)} returned {_shown(response)}; complete and acomplete must return an LLMResponse"
        raise InvalidReply(message, response if type(response) is str else "")
    content = response.content
    if content is not None and not isinstance(content, str):
        raise InvalidReply(f"{_name(adapter)} returned an LLMResponse whose content is {_shown(content)}, not str", "")
    return replace(
        response,
        content="" if content is None else str.__str__(content),
        model=_plain(response.model),
        finish_reason=_plain(response.finish_reason),
        usage=_usage(response.usage),
        latency_ms=_number(response.latency_ms),
        tool_calls=tuple(call for call in response.tool_calls or () if isinstance(call, ToolCall)),
    )


def takes_requests(adapter: LLMAdapter) -> bool:
    """Whether the annotation of the adapter's prompt allows a `ChatRequest`."""
    method = getattr(adapter, "acomplete", None) or getattr(adapter, "complete", None)
    try:
        parameters = list(inspect.signature(method).parameters.values()) if method else []
    except (TypeError, ValueError):
        return False
    return bool(parameters) and ChatRequest.__name__ in str(parameters[0].annotation)


class _Conversation(Generic[T]):
    """The next prompt to send and the totals so far; `ask` and `ask_sync` do the sending."""

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

    def take(self, response: LLMResponse, took_ms: float) -> JudgeAnswer[T] | None:
        """The parsed response; None if it was cut off and must be requested again."""
        self._used.append(response.usage)
        self._latency_ms += took_ms if response.latency_ms is None else response.latency_ms
        usage, calls = usage_of_calls(self._used), len(self._used)
        try:
            value = self._read(response)
        except ReplyError as error:
            if isinstance(error, TruncatedReply) and calls == 1 and self._larger > 1:
                self.config = self.config.replace(max_tokens=self._limit(response) * self._larger)
                return None
            error.usage, error.calls = usage, calls
            raise
        notes = (*self._notes, *(response.notes if isinstance(response, ChatResponse) else ()))
        return JudgeAnswer(value, usage, response.model, notes, calls, self._latency_ms, response)

    def _limit(self, response: LLMResponse) -> int:
        """The token limit that cut the response off."""
        if self.config.max_tokens is not None:
            return self.config.max_tokens
        used = response.usage.output_tokens if response.usage else None
        return max(used or 0, _MIN_ASSUMED_LIMIT)


@contextmanager
def _no_exit(adapter: LLMAdapter) -> Iterator[None]:
    """Turn an adapter's ``sys.exit`` into an error, so that it does not end the process."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"{_name(adapter)} raised SystemExit({error.code!r})") from error


def _name(adapter: LLMAdapter) -> str:
    return f"the adapter {quote(getattr(adapter, 'adapter_id', type(adapter).__name__), 80)}"


def _shown(value: object) -> str:
    return "None" if value is None else f"{quote(value, 80)} ({type(value).__name__})"


def _plain(text: object) -> str | None:
    return str.__str__(text) if isinstance(text, str) else None


def _number(value: object) -> float | None:
    """A finite number of at least 0; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return number if isfinite(number) and number >= 0 else None


def _usage(usage: object) -> Usage | None:
    if not isinstance(usage, Usage):
        return None
    return Usage(
        _count(usage.input_tokens), _count(usage.output_tokens), _count(usage.cached_tokens), _number(usage.cost)
    )


def _count(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _sync(adapter: LLMAdapter) -> Callable[[str | ChatRequest, RunConfig], LLMResponse]:
    # A ChatRequest only goes to adapters that take one (see `takes_requests`), whatever the protocol's type says.
    method: Callable[[str | ChatRequest, RunConfig], LLMResponse] = adapter.complete  # type: ignore[assignment]
    return method


def _as_text(request: ChatRequest) -> str:
    return "\n\n".join(message.content for message in request.messages if message.content)


def _left_out(request: ChatRequest) -> list[Note]:
    features = {"response_schema": request.response_schema, "logprobs": request.logprobs}
    return [Note(what, "the adapter only takes strings") for what, value in features.items() if value is not None]


def require_name(grader_id: object) -> str:
    """The ID; `ValueError` if it is empty, raised before a judge is paid."""
    if not isinstance(grader_id, str) or not grader_id.strip():
        raise ValueError(f"grader_id must name the judge, got {grader_id!r}")
    return grader_id

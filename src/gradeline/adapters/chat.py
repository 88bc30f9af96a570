"""What is asked of a model and what came back, whoever the provider is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gradeline.model.llm import LLMResponse
from gradeline.model.trajectory import Message, ToolCall

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


@dataclass(frozen=True)
class Tool:
    """A function that the model may ask to be called; ``parameters`` is a JSON Schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)


@dataclass(frozen=True)
class ChatRequest:
    """One question to a model. A plain prompt is a request of one message of the user.

    ``response_schema`` asks for JSON of that schema; ``logprobs`` for the probabilities of the answer's tokens,
    with so many alternatives to each (0: none); ``stream`` for the answer in pieces, which are put together here.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    response_schema: Mapping[str, Any] | None = None
    schema_name: str = "answer"
    logprobs: int | None = None
    stream: bool = False

    @classmethod
    def of(cls, prompt: str | ChatRequest) -> ChatRequest:
        """A prompt as a request; a request as it is."""
        return cls((Message("user", prompt),)) if isinstance(prompt, str) else prompt


class Note(NamedTuple):
    """Something that was asked for and not done, and why: ``what`` is a capability (``seed``, ``temperature``,
    ``response_schema``, ``logprobs``, ``stream``, ``usage``, ``max_tokens``) or ``text``."""

    what: str
    why: str


class TokenLogprob(NamedTuple):
    """A token of the answer, and what else could have stood there."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ChatResponse(LLMResponse):
    """What a model answered.

    ``finish_reason`` is ``stop``, ``length``, ``tool_calls``, ``content_filter``, ``refusal`` or ``other``, and None
    where the server told none. ``raw`` holds the provider's own word under ``finish_reason`` and its whole answer
    under ``body`` (of a stream: put together to the answer it would have been). The content of a refusal is what the
    model said to refuse. Of ``usage``, ``input_tokens`` counts the whole prompt, ``cached_tokens`` the part of it that
    was read from a cache.
    """

    notes: tuple[Note, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    server_calls: tuple[ToolCall, ...] = ()
    """Calls of tools that the provider ran itself, such as a web search; the caller does not answer them."""

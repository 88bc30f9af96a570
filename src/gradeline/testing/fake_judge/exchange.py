"""A question and its answer, whatever the wire format that carries them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

Finish = Literal["stop", "length", "filter", "refusal"]

CREATED = 1_767_225_600
"""When every reply claims to be made: the same request gets the same bytes."""


class Tool(NamedTuple):
    name: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a request asks for."""

    model: str
    text: str
    """All its messages."""
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    choices: int = 1
    top_logprobs: int | None = None
    """How many alternatives to show for each token; None: no log-probabilities."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema that the reply must fit."""
    tools: tuple[Tool, ...] = ()
    forced_tool: Tool | None = None
    """The tool that must be called."""
    stream: bool = False
    stream_usage: bool = True
    used: Mapping[str, str] = field(default_factory=dict)
    """The parameters used that not every model supports: the common name, and the one in this format."""


class Token(NamedTuple):
    """A piece of a reply."""

    text: str
    logprob: float = 0.0
    alternatives: tuple[tuple[str, float], ...] = ()
    """What might have stood here, the likeliest first, each with its log-probability."""

    def top(self, count: int) -> tuple[tuple[str, float], ...]:
        return (self.alternatives or ((self.text, self.logprob),))[:count]


class Call(NamedTuple):
    """A tool call; ``arguments`` is JSON text, or was meant to be."""

    name: str
    arguments: str

    def object(self) -> dict[str, Any]:
        """The arguments for formats that send them as an object: whole, or not at all."""
        try:
            told = json.loads(self.arguments)
        except ValueError:
            return {}
        return told if isinstance(told, dict) else {}


class Reply(NamedTuple):
    """One choice of an answer."""

    text: str | None
    finish: Finish = "stop"
    refusal: str | None = None
    call: Call | None = None
    tokens: tuple[Token, ...] = ()
    """Of the text, or of the call's arguments."""


class Usage(NamedTuple):
    prompt: int
    cached: int
    completion: int


class Answer(NamedTuple):
    """A whole answer."""

    id: str
    model: str
    fingerprint: str
    replies: tuple[Reply, ...]
    usage: Usage | None


class Failure(NamedTuple):
    """An answer that is an error."""

    name: str
    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = {}


class RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def bad_request(message: str, param: str | None = None) -> RefusedError:
    return RefusedError(Failure("400", 400, message, param, None))


class Received(NamedTuple):
    """A request as it came; header names are in lower case."""

    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Events(NamedTuple):
    """A streamed answer: its events, and those that say that it is whole."""

    events: tuple[bytes, ...]
    end: tuple[bytes, ...]


class Wire(Protocol):
    """A provider's format."""

    def key(self, received: Received) -> str | None:
        """The API key that a request shows."""

    def read(self, received: Received) -> Asked:
        """What a request asks for; `RefusedError` where the provider would refuse it."""

    def whole(self, asked: Asked, answer: Answer) -> bytes:
        """The body of an answer."""

    def stream(self, asked: Asked, answer: Answer) -> Events:
        """The answer, event by event."""

    def failure(self, failure: Failure) -> bytes:
        """The body of an error."""

    def stream_failure(self) -> bytes:
        """The event that tells of an error amid a stream."""


def pieces(tokens: tuple[Token, ...], most: int = 40) -> list[tuple[Token, ...]]:
    """The tokens in portions, as a stream delivers them: one by one unless there are too many."""
    size = max(1, -(-len(tokens) // most))
    return [tokens[at : at + size] for at in range(0, len(tokens), size)]


def joined(portion: tuple[Token, ...]) -> str:
    return "".join(token.text for token in portion)

"""The response of an agent: an answer or a typed error, and its usage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from gradeline.errors import Fault, MissingDataError
from gradeline.model.trajectory import Trajectory

_Number = TypeVar("_Number", int, float)

ResponseStatus = Literal["success", "error", "timeout"]


class Usage(msgspec.Struct, frozen=True):
    """Tokens and cost as reported. Unknown is None, never 0."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None


def total_usage(parts: Iterable[Usage | None]) -> Usage | None:
    """Total usage of several calls; None if all parts are None, as for a call that was not made.

    A sum with an unknown part is unknown. For calls that were all made use `usage_of_calls`.
    """
    used = [part for part in parts if part is not None]
    if not used:
        return None
    return Usage(
        _total([part.input_tokens for part in used]),
        _total([part.output_tokens for part in used]),
        _total([part.cached_tokens for part in used]),
        _total([part.cost for part in used]),
    )


def usage_of_calls(parts: Iterable[Usage | None]) -> Usage | None:
    """Total usage of calls that were all made; one of unknown usage (None) makes the sums unknown."""
    total = total_usage(part or Usage() for part in parts)
    return None if total == Usage() else total


def known_cost(costs: Iterable[float | None]) -> float | None:
    """The sum of the known costs; None if no cost is known. A run reports this sum and the number of unknown costs."""
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def _total(parts: Sequence[_Number | None]) -> _Number | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


UNKNOWN_TOOL_USE = (
    "tool calls are unknown. python: return a Response with a trajectory, or the messages; "
    "http: map tool_calls under response:, as tool_calls || `[]` where the agent leaves it out when it calls none; "
    "command: output: json with the same mapping; replay file: give the response a trajectory. "
    "An empty list means that no tool was called"
)

UNKNOWN_TOOL_RESULTS = (
    "the response reports tool calls without their results, so it is unknown what they returned and whether they "
    "failed; report the results too (http and command: map trajectory under the target's response:; python: messages "
    "of role tool in the trajectory), or use checks that need no results, such as forbidden_tools"
)


UNKNOWN_DOCUMENTS = (
    "the documents of the response are unknown. http, command: map documents (or context) under the target's response:,"
    " as docs || `[]` where the agent leaves it out when it finds nothing; python: return documents; an agent that"
    " reports tool calls with results: write documents: {tool: NAME} into the target"
)


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as stored in a record."""

    type: str
    message: str
    fault: Fault
    traceback: str | None = None


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that the agent retrieved for its answer; ``score`` is its rank score, as the agent reported it."""

    text: str = ""
    id: str | None = None
    score: float | None = None


class Response(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """The result of one agent call.

    A success has a text, which may be empty; anything else has an ``error``. ``cleaned``: the text had characters that
    cannot be stored and were replaced. ``output``: what a Python agent printed. ``stop_reason``: why the model ended
    its answer, in the provider's word. ``documents``: what the agent retrieved, in its order; None if that is unknown,
    empty if it retrieved nothing.
    """

    status: ResponseStatus = "success"
    text: str | None = None
    trajectory: Trajectory | None = None
    usage: Usage | None = None
    latency_ms: float | None = None
    error: ErrorInfo | None = None
    cleaned: bool = False
    output: str | None = None
    stop_reason: str | None = None
    documents: tuple[Document, ...] | None = None

    def __post_init__(self) -> None:
        if (self.status == "success") is not (self.error is None):
            raise ValueError(f"a response of status {self.status!r} {'has' if self.error else 'lacks'} an error")

    @property
    def steps(self) -> Trajectory:
        """The trajectory, ending with the text. For tool calls use `tool_use`."""
        if self.trajectory is not None:
            return self.trajectory.answered(self.text or "")
        return Trajectory.of_turn_texts((self.text,)) if self.text else Trajectory(tools_known=False)

    def tool_use(self) -> Trajectory:
        """The steps with all tool calls; `MissingDataError` with the remedy if they are unknown."""
        if self.trajectory is None or not self.trajectory.tools_known:
            raise MissingDataError(UNKNOWN_TOOL_USE)
        return self.steps

"""What the agent gave back: an answer, or a typed error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from gradeline.errors import Fault
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
    """What several calls used; a sum with an unknown part is unknown. None where none of them used anything."""
    used = [part for part in parts if part is not None]
    if not used:
        return None
    return Usage(
        _total([part.input_tokens for part in used]),
        _total([part.output_tokens for part in used]),
        _total([part.cached_tokens for part in used]),
        _total([part.cost for part in used]),
    )


def _total(parts: Sequence[_Number | None]) -> _Number | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


class ErrorInfo(msgspec.Struct, frozen=True):
    """An error as a record keeps it."""

    type: str
    message: str
    fault: Fault
    traceback: str | None = None


class Response(msgspec.Struct, frozen=True, tag_field="schema", tag=1):
    """One agent call, committed on arrival.

    A success has a text (an empty one is still an answer); anything else has an ``error``.
    ``cleaned`` says that the text at the rim held what no store can keep.
    """

    status: ResponseStatus = "success"
    text: str | None = None
    trajectory: Trajectory | None = None
    usage: Usage | None = None
    latency_ms: float | None = None
    error: ErrorInfo | None = None
    cleaned: bool = False

    def __post_init__(self) -> None:
        if (self.status == "success") is not (self.error is None):
            raise ValueError(f"a response of status {self.status!r} {'has' if self.error else 'lacks'} an error")

    @property
    def steps(self) -> Trajectory:
        """The trajectory; an agent that told none is taken to have said its text in one turn."""
        if self.trajectory is not None:
            return self.trajectory
        return Trajectory.of_text(self.text) if self.text else Trajectory()

"""The parts of Inspect's log format that an import reads, as types. Everything else of a log is skipped unread."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from gradeline.errors import DataError
from gradeline.model import quote

T = TypeVar("T")

MAX_EPOCHS = 10_000
Epoch = Annotated[int, Meta(ge=1, le=MAX_EPOCHS)]
"""The suite of an import repeats each case as often."""

_NOT_JSON = re.compile(
    rb'(?:[^"NI-]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"|-(?!Infinity)|N(?!aN)|I(?!nfinity))*+(?P<word>NaN|-?Infinity)',
    re.DOTALL,
)
_REPLACED = {b"NaN": b"null", b"Infinity": b'"Infinity"', b"-Infinity": b'"-Infinity"'}
"""Inspect writes numbers that JSON does not have: NaN means that there is no score."""


class LoggedError(Struct, frozen=True):
    message: str
    traceback: str | None = None


class LoggedToolCall(Struct, frozen=True):
    function: str
    arguments: Any = None
    id: str | None = None
    parse_error: str | None = None


class LoggedMessage(Struct, frozen=True):
    """A message; each part of a content list has a ``type``."""

    role: str
    content: str | list[dict[str, Any]] = ""
    tool_calls: list[LoggedToolCall] | None = None
    tool_call_id: str | None = None
    function: str | None = None
    error: Any = None


class LoggedChoice(Struct, frozen=True):
    message: LoggedMessage
    stop_reason: str | None = None


class LoggedOutput(Struct, frozen=True):
    completion: str | None = None
    choices: list[LoggedChoice] = []


class LoggedUsage(Struct, frozen=True):
    """``input_tokens`` are without those read from a cache or written to one."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_cache_read: int | None = None
    input_tokens_cache_write: int | None = None
    total_cost: float | None = None


class LoggedScore(Struct, frozen=True):
    value: Any = None
    answer: str | None = None
    explanation: str | None = None
    reason: str | None = None
    metadata: dict[str, Any] | None = None
    history: list[Any] = []


class LoggedLimit(Struct, frozen=True):
    type: str
    limit: float | None = None
    reason: str | None = None


class LoggedSample(Struct, frozen=True):
    """A sample, without events and store.

    ``message_refs`` are ranges of the messages of a chunked sample: its sequence has other messages too.
    """

    id: int | str
    epoch: Epoch
    input: str | list[LoggedMessage] = ""
    target: str | list[str] = ""
    choices: list[str] | None = None
    metadata: dict[str, Any] | None = None
    messages: list[LoggedMessage] = []
    output: LoggedOutput | None = None
    scores: dict[str, LoggedScore] | None = None
    error: LoggedError | None = None
    limit: LoggedLimit | None = None
    model_usage: dict[str, LoggedUsage] = {}
    role_usage: dict[str, LoggedUsage] = {}
    total_time: float | None = None
    working_time: float | None = None
    attachments: dict[str, str] = {}
    message_refs: list[tuple[int, int]] | UnsetType = UNSET


class LoggedScores(Struct, frozen=True):
    """The scores of a sample only."""

    epoch: Epoch
    scores: dict[str, LoggedScore] | None = None


class LoggedScorer(Struct, frozen=True):
    name: str
    options: dict[str, Any] | None = None


class LoggedConfig(Struct, frozen=True):
    epochs: Epoch | None = None


class LoggedDataset(Struct, frozen=True):
    name: str | None = None
    sample_ids: list[int | str] | None = None


class LoggedSpec(Struct, frozen=True):
    """The task that was evaluated."""

    task: str
    model: str = "unknown"
    created: str | None = None
    task_version: int | str | None = None
    solver: str | None = None
    revision: dict[str, Any] | None = None
    packages: dict[str, str] = {}
    model_roles: dict[str, Any] | None = None
    config: LoggedConfig = LoggedConfig()
    dataset: LoggedDataset = LoggedDataset()
    scorers: list[LoggedScorer] | None = None


class LoggedStats(Struct, frozen=True):
    started_at: str | None = None
    completed_at: str | None = None


class LogHeader(Struct, frozen=True):
    """A log without its samples. The status of a log that was not finished is ``started``."""

    eval: LoggedSpec
    status: str = "started"
    stats: LoggedStats | None = None
    error: LoggedError | None = None


class LogStart(Struct, frozen=True):
    """The start of a log, written when the run begins."""

    eval: LoggedSpec


class LogDocument(Struct, frozen=True):
    """A whole log in one JSON document, in parts that are parsed later."""

    eval: Raw
    samples: Raw = Raw(b"null")
    status: str = "started"
    stats: LoggedStats | None = None
    error: LoggedError | None = None


def decode(raw: bytes | Raw | memoryview, kind: type[T]) -> T:
    """Read a part of a log; `DataError` names the fault.

    NaN becomes null; the infinite numbers become strings.
    """
    try:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return msgspec.json.decode(b"".join(valid_json(memoryview(raw))), type=kind)
    except RecursionError:
        raise DataError("is nested too deeply") from None
    except ValueError as error:
        raise DataError(f"is not a part of an Inspect log: {quote(str(error), 200)[1:-1]}") from None


def valid_json(raw: memoryview) -> Iterator[memoryview | bytes]:
    """The pieces of a text with NaN and infinite numbers replaced."""
    position = 0
    while found := _NOT_JSON.match(raw, position):
        yield raw[position : found.start("word")]
        yield _REPLACED[found["word"]]
        position = found.end()
    yield raw[position:]

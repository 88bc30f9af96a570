"""What the engine and a worker process say to each other: length-prefixed msgpack frames."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gradeline.model.grade import GradeResult
from gradeline.model.response import ErrorInfo, Response
from gradeline.model.sample import Sample
from gradeline.usercode.loader import CodeSpec, Manifest
from gradeline.usercode.memory import GRADER_MEMORY

MAX_FRAME = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One call of user code on a sample.

    ``role`` is ``grader``, ``extractor`` or ``target`` (which is asked all turns of the sample), or
    ``builtin-grader``, ``builtin-extractor`` or ``builtin-search`` (a JMESPath) for those of ours that
    need a process which can be killed. A grader's submission is given, or made by the job's task at index
    ``extract``. A target's ``timeout`` is that of each turn.
    """

    role: str
    reference: str
    submission: str = ""
    extract: int | None = None
    config: dict[str, Any] = {}
    timeout: float = 5.0
    memory: int = GRADER_MEMORY
    """Bytes that its process may take; 0: no limit."""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A sample with all the user code that looks at it; the results come back together."""

    sample: Sample
    tasks: tuple[Task, ...]
    response: Response | None = None

    def part(self, indices: Sequence[int]) -> Job:
        """The job with only these tasks; what a task reads from must be one of them."""
        places = {index: place for place, index in enumerate(indices)}
        tasks = (self.tasks[index] for index in indices)
        moved = (
            task if task.extract is None else msgspec.structs.replace(task, extract=places[task.extract])
            for task in tasks
        )
        return Job(self.sample, tuple(moved), self.response)


class TaskResult(msgspec.Struct, frozen=True, array_like=True):
    """What became of a task: a grade, an extracted text, an answer, or an error."""

    result: GradeResult | None = None
    text: str | None = None
    error: ErrorInfo | None = None
    output: str | None = None
    """What the code printed, as far as it is kept."""
    latency_ms: float | None = None
    response: Response | None = None
    """What a target answered."""


class Boot(msgspec.Struct, frozen=True, tag="boot", array_like=True):
    """Load a suite's code; answered by `Booted`."""

    spec: CodeSpec | None


class Setup(msgspec.Struct, frozen=True, tag="setup", array_like=True):
    """Call the setup function; answered by `SetUp`."""

    suite: dict[str, Any]


class Batch(msgspec.Struct, frozen=True, tag="batch", array_like=True):
    """Jobs to run in order; answered by one or more `Done`."""

    id: int
    jobs: list[Job]


Request = Boot | Setup | Batch


class Booted(msgspec.Struct, frozen=True, tag="booted", array_like=True):
    manifest: Manifest


class SetUp(msgspec.Struct, frozen=True, tag="set_up", array_like=True):
    error: ErrorInfo | None = None
    output: str | None = None


class Done(msgspec.Struct, frozen=True, tag="done", array_like=True):
    """The results of the next jobs of a batch."""

    batch: int
    results: list[list[TaskResult]]


class RawDone(msgspec.Struct, frozen=True, tag="done", array_like=True):
    """`Done` as the worker writes it: each result was encoded, and measured, when it was made."""

    batch: int
    results: list[list[msgspec.Raw]]


Reply = Booted | SetUp | Done

encode = msgspec.msgpack.Encoder().encode
decode_request = msgspec.msgpack.Decoder(Request).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def frame(message: object) -> bytes:
    """A message ready for the pipe."""
    body = encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameError(ValueError):
    """The pipe holds something that is no frame."""


class FrameBuffer:
    """Bytes as they arrive, frames as they are whole."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add what was read; gives the bodies of the frames that are complete."""
        self._data += data
        position = 0
        while len(self._data) - position >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data, position)
            if length > MAX_FRAME:
                raise FrameError(f"a frame of {length:,} bytes is too large (at most {MAX_FRAME:,})")
            end = position + _LENGTH.size + length
            if len(self._data) < end:
                break
            yield bytes(self._data[position + _LENGTH.size : end])
            position = end
        if position:
            del self._data[:position]

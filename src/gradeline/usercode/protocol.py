"""What the engine and a worker process exchange: msgpack frames over pipes, and progress in shared memory."""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from gradeline.model.grade import GradeResult
from gradeline.model.response import ErrorInfo, Response
from gradeline.model.sample import Sample
from gradeline.usercode.loader import CodeSpec, Manifest
from gradeline.usercode.process_control import GRADER_MEMORY

MAX_FRAME = 256 * 1024 * 1024
_LENGTH = struct.Struct("<I")


class Task(msgspec.Struct, frozen=True, array_like=True):
    """One call of user code on a sample.

    ``role`` is ``grader``, ``extractor``, ``target`` (called for all turns of the sample), ``reward_composer`` or
    ``agent_factory``; or ``builtin-grader``, ``builtin-extractor`` or ``builtin-search`` (a JMESPath) for built-ins
    that need a process which can be killed. A grader's submission is ``submission``, or the text that the job's task
    at index ``extract`` returns. A target's ``timeout`` is that of each turn.
    """

    role: str
    reference: str
    submission: str = ""
    extract: int | None = None
    config: dict[str, Any] = {}
    timeout: float = 5.0
    memory: int = GRADER_MEMORY
    """Memory limit of its process in bytes; 0: no limit."""


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A sample with all tasks for it; their results come back together."""

    sample: Sample
    tasks: tuple[Task, ...]
    response: Response | None = None

    def part(self, indices: Sequence[int]) -> Job:
        """The job with only these tasks; a task that another one reads from must be among them."""
        positions = {index: position for position, index in enumerate(indices)}
        tasks = (self.tasks[index] for index in indices)
        moved = (
            task if task.extract is None else msgspec.structs.replace(task, extract=positions[task.extract])
            for task in tasks
        )
        return Job(self.sample, tuple(moved), self.response)


class TaskResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a task: a grade, an extracted text, a response, or an error."""

    result: GradeResult | None = None
    text: str | None = None
    error: ErrorInfo | None = None
    output: str | None = None
    """What the code printed, cut to the maximum."""
    latency_ms: float | None = None
    response: Response | None = None
    """The response of a target."""


class LoadCode(msgspec.Struct, frozen=True, tag="load_code", array_like=True):
    """Load a suite's code; answered by `CodeLoaded`."""

    spec: CodeSpec | None


class RunSetup(msgspec.Struct, frozen=True, tag="run_setup", array_like=True):
    """Call the setup function; answered by `SetupDone`."""

    suite: dict[str, Any]


class RunBatch(msgspec.Struct, frozen=True, tag="run_batch", array_like=True):
    """Jobs to run in order; answered by one or more `BatchResults`."""

    id: int
    jobs: list[Job]


EngineRequest = LoadCode | RunSetup | RunBatch


class CodeLoaded(msgspec.Struct, frozen=True, tag="code_loaded", array_like=True):
    manifest: Manifest


class SetupDone(msgspec.Struct, frozen=True, tag="setup_done", array_like=True):
    error: ErrorInfo | None = None
    output: str | None = None


class BatchResults(msgspec.Struct, frozen=True, tag="batch_results", array_like=True):
    """The results of the next jobs of a batch."""

    batch: int
    results: list[list[TaskResult]]


class EncodedBatchResults(msgspec.Struct, frozen=True, tag="batch_results", array_like=True):
    """`BatchResults` as the worker writes it: each result is encoded, and its size checked, one by one."""

    batch: int
    results: list[list[msgspec.Raw]]


WorkerReply = CodeLoaded | SetupDone | BatchResults

encode = msgspec.msgpack.Encoder().encode


@cache
def _decoder(message: object) -> msgspec.msgpack.Decoder[Any]:
    """Made on first use: it takes a millisecond, and each side of the pipe needs one."""
    return msgspec.msgpack.Decoder(message)


def decode_request(frame: bytes | bytearray | memoryview) -> EngineRequest:
    """A message of the engine; raises `msgspec.DecodeError`."""
    request: EngineRequest = _decoder(EngineRequest).decode(frame)
    return request


def decode_reply(frame: bytes | bytearray | memoryview) -> WorkerReply:
    """A message of a worker; raises `msgspec.DecodeError`."""
    reply: WorkerReply = _decoder(WorkerReply).decode(frame)
    return reply


def frame(message: object) -> bytes:
    """A message with its length, as the pipe carries it."""
    body = encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameError(ValueError):
    """The pipe holds something that is not a frame."""


class FrameBuffer:
    """Splits the bytes that arrive into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Add what was read; returns the bodies of the frames that are complete."""
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


_LAYOUT = struct.Struct("<qqqdq")
_NUMBER = struct.Struct("<q")
_BEGIN = _LAYOUT.size
_CUT = _BEGIN + _NUMBER.size
_LOADING = _CUT + _NUMBER.size
_PATH = struct.Struct("<H1022s")
"""The file that is being loaded: its length and its bytes."""
SIZE = _LOADING + _PATH.size


class Position(NamedTuple):
    """The task that a worker runs and when it began (on the monotonic clock that processes share); -1: none.

    ``turn`` is that of the conversation with a target, from 0; each turn has its own ``since``.
    """

    batch: int
    job: int
    task: int
    since: float
    turn: int = 0


class LoadingPosition(NamedTuple):
    """What a worker loads: a file or a module, and the line where its code ended the process, if known."""

    source: str
    location: str = ""

    @classmethod
    def parse(cls, text: str) -> LoadingPosition:
        """Read the text that the worker wrote with `Progress.write_loading`."""
        source, _, location = text.partition("\n")
        return cls(source, location)

    def __str__(self) -> str:
        return f"{self.source}\n{self.location}" if self.location else self.source


IDLE = Position(-1, -1, -1, 0.0)


class Progress:
    """A record in shared memory that the worker writes before each task and the engine reads."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SIZE)

    def write(self, batch: int, job: int, task: int, since: float, turn: int = 0) -> None:
        # one assignment: pack_into clears the bytes first, and a reader would see a task that began at zero
        self._memory[: _LAYOUT.size] = _LAYOUT.pack(batch, job, task, since, turn)

    def read(self) -> Position:
        """The current position; read twice, to detect a write at the same moment."""
        while True:
            first, second = self._memory[: _LAYOUT.size], self._memory[: _LAYOUT.size]
            if first == second:
                return Position(*_LAYOUT.unpack(first))

    def write_loading(self, file: str) -> None:
        """Record the file that is being loaded; an empty string: none."""
        raw = file.encode(errors="replace")[:1022]
        self._memory[_LOADING:] = _PATH.pack(len(raw), raw)

    def read_loading(self) -> str:
        """The text that `write_loading` wrote last."""
        length, raw = _PATH.unpack(self._memory[_LOADING:])
        file: str = raw[:length].decode(errors="replace")
        return file

    @property
    def output_begin(self) -> int:
        """The offset in the output file at which the current call's output begins; see `OutputFile`."""
        return self._number(_BEGIN)

    @output_begin.setter
    def output_begin(self, offset: int) -> None:
        self._memory[_BEGIN : _BEGIN + _NUMBER.size] = _NUMBER.pack(offset)

    @property
    def output_cut(self) -> int:
        """The number of bytes of the current call's output that were dropped."""
        return self._number(_CUT)

    @output_cut.setter
    def output_cut(self, count: int) -> None:
        self._memory[_CUT : _CUT + _NUMBER.size] = _NUMBER.pack(count)

    def _number(self, offset: int) -> int:
        (number,) = _NUMBER.unpack_from(self._memory, offset)
        return int(number)

    def close(self) -> None:
        self._memory.close()


def progress_file() -> int:
    """A file descriptor for a `Progress` record, which a child process inherits."""
    fd = anonymous_file("gradeline-progress")
    os.ftruncate(fd, SIZE)
    return fd


def anonymous_file(name: str) -> int:
    """A file descriptor of memory that a child process inherits."""
    if sys.platform == "linux":
        return os.memfd_create(name)
    import tempfile  # 2 ms, and not for Linux

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())

"""Where a worker is: shared memory that the engine reads when the worker hangs or dies."""

from __future__ import annotations

import mmap
import os
import struct
import sys
from typing import NamedTuple

_LAYOUT = struct.Struct("<qqqdq")
_NUMBER = struct.Struct("<q")
_BEGIN = _LAYOUT.size
_CUT = _BEGIN + _NUMBER.size
_LOADING = _CUT + _NUMBER.size
_PATH = struct.Struct("<H1022s")
"""The file that is being loaded: its length and its bytes."""
SIZE = _LOADING + _PATH.size


class Position(NamedTuple):
    """The task a worker is at, and since when (of the monotonic clock that processes share); -1 is none.

    ``turn`` is that of the conversation with a target, from 0; each turn has its own ``since``.
    """

    batch: int
    job: int
    task: int
    since: float
    turn: int = 0


IDLE = Position(-1, -1, -1, 0.0)


class Progress:
    """Written by the worker before each task, read by the engine."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SIZE)

    def write(self, batch: int, job: int, task: int, since: float, turn: int = 0) -> None:
        # in one piece: pack_into clears the place first, and a reader would see a task that began at zero
        self._memory[: _LAYOUT.size] = _LAYOUT.pack(batch, job, task, since, turn)

    def read(self) -> Position:
        """The same twice, so that half a write is not taken for one."""
        while True:
            first, second = self._memory[: _LAYOUT.size], self._memory[: _LAYOUT.size]
            if first == second:
                return Position(*_LAYOUT.unpack(first))

    def write_loading(self, file: str) -> None:
        """The file whose code runs because it is loaded; an empty string where none is."""
        raw = file.encode(errors="replace")[:1022]
        self._memory[_LOADING:] = _PATH.pack(len(raw), raw)

    def read_loading(self) -> str:
        """What `write_loading` wrote last."""
        length, raw = _PATH.unpack(self._memory[_LOADING:])
        file: str = raw[:length].decode(errors="replace")
        return file

    @property
    def output_begin(self) -> int:
        """Where in its file the output of the current call begins; see `gradeline.usercode.output`."""
        return self._number(_BEGIN)

    @output_begin.setter
    def output_begin(self, place: int) -> None:
        self._memory[_BEGIN : _BEGIN + _NUMBER.size] = _NUMBER.pack(place)

    @property
    def output_cut(self) -> int:
        """Bytes of the current call's output that were dropped."""
        return self._number(_CUT)

    @output_cut.setter
    def output_cut(self, count: int) -> None:
        self._memory[_CUT : _CUT + _NUMBER.size] = _NUMBER.pack(count)

    def _number(self, place: int) -> int:
        (number,) = _NUMBER.unpack_from(self._memory, place)
        return int(number)

    def close(self) -> None:
        self._memory.close()


def shared_file() -> int:
    """A file descriptor of memory that a child process can be given."""
    if sys.platform == "linux":
        fd = os.memfd_create("gradeline-progress")
    else:
        import tempfile  # 2 ms, and not for Linux

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, SIZE)
    return fd

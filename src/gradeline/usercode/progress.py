"""Where a worker is: a few bytes of shared memory, read when it hangs or dies."""

from __future__ import annotations

import mmap
import os
import struct
import sys
from typing import NamedTuple

_LAYOUT = struct.Struct("<qqqd")
SIZE = _LAYOUT.size


class Position(NamedTuple):
    """The task a worker is at, and since when (of the monotonic clock that processes share); -1 is none."""

    batch: int
    job: int
    task: int
    since: float


IDLE = Position(-1, -1, -1, 0.0)


class Progress:
    """Written by the worker before each task, read by the engine."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, SIZE)

    def write(self, batch: int, job: int, task: int, since: float) -> None:
        # in one piece: pack_into clears the place first, and a reader would see a task that began at zero
        self._memory[:SIZE] = _LAYOUT.pack(batch, job, task, since)

    def read(self) -> Position:
        """The same twice, so that half a write is not taken for one."""
        while True:
            first, second = self._memory[:SIZE], self._memory[:SIZE]
            if first == second:
                return Position(*_LAYOUT.unpack(first))

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

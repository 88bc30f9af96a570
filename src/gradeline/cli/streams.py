"""Standard output and standard error of a command, safe to write to when their reader is gone.

``gradeline run suite.yaml | head -1`` closes standard output in the middle of a command. Writing to it then must not
end the command (a run is stored in any case) nor change its exit code. A full disk is different: the output is lost,
so the command reports it and exits with 4.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CLOSED = frozenset({errno.EPIPE, errno.ECONNRESET})


class GuardedOutput(io.RawIOBase):
    """A file descriptor that discards what is written after its reader closed it."""

    def __init__(self, descriptor: int, *, required: bool) -> None:
        """``required``: errors other than a closed reader are raised, once."""
        self._descriptor = descriptor
        self._required = required
        self._terminal = os.isatty(descriptor)
        self._discarding = False
        self.raise_when_closed = False
        """Raise `BrokenPipeError` too: a stream of data has no purpose without its reader."""

    def write(self, data: ReadableBuffer, /) -> int:
        size = memoryview(data).nbytes
        if self._discarding:
            if self.raise_when_closed:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            return size
        try:
            return self._write_blocking(data)
        except OSError as error:
            self._discarding = True
            closed = error.errno in _CLOSED or (self._terminal and error.errno == errno.EIO)
            if closed and self.raise_when_closed:
                raise
            if self._required and not closed:
                reason = f"{error.strerror}; the output is lost, write it elsewhere"
                raise OSError(error.errno, reason, "standard output") from None
            return size

    def _write_blocking(self, data: ReadableBuffer) -> int:
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # another program made the shared terminal or pipe non-blocking
                import select

                select.select([], [self._descriptor], [])

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return self._terminal

    def writable(self) -> bool:
        return True


def guard_standard_streams() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` with guarded ones; reopen what the caller closed."""
    for descriptor in range(3):
        _open_if_closed(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process lives
    sys.stdout = _guarded(sys.stdout, 1, required=True)
    sys.stderr = _guarded(sys.stderr, 2, required=False)


def _open_if_closed(descriptor: int) -> None:
    """Otherwise the next opened file, such as the store, gets this descriptor and everything that is printed."""
    try:
        os.fstat(descriptor)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)


def _guarded(stream: TextIO | None, descriptor: int, *, required: bool) -> TextIOWrapper:
    if stream is not None:
        stream.flush()
    raw = GuardedOutput(descriptor, required=required)
    return TextIOWrapper(
        io.BufferedWriter(raw),
        encoding="utf-8" if stream is None else stream.encoding,
        # a terminal that cannot show a character must not end the command; in JSON this is the right escape too
        errors="backslashreplace",
        line_buffering=raw.isatty() or not required,
    )


@contextmanager
def streaming_output() -> Iterator[TextIOWrapper]:
    """Standard output for a stream of data: UTF-8, line ends as written. Ends quietly when the reader is gone."""
    sys.stdout.flush()
    stream = TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
    guarded = getattr(sys.stdout.buffer, "raw", None)
    if isinstance(guarded, GuardedOutput):
        guarded.raise_when_closed = True
    try:
        yield stream
        stream.flush()
    except BrokenPipeError:
        pass
    finally:
        if isinstance(guarded, GuardedOutput):
            guarded.raise_when_closed = False
        stream.detach()  # must not close the underlying buffer

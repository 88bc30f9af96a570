"""Capture what user code prints.

In a worker, standard output and error are descriptors of one file. The worker reads what a call printed when the call
ends. The engine truncates the file when a call floods it, and reads it when the worker dies. For code that runs in this
process, `captured_output` keeps what is written to ``sys.stdout`` and ``sys.stderr``, which still appears there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from threading import Lock
from typing import Any, Self, TextIO

from gradeline.model import clean_text
from gradeline.usercode.protocol import Progress, anonymous_file

if sys.platform != "win32":  # there no worker is ever started
    import fcntl

MAX_OUTPUT = 1024 * 1024
"""Bytes of one call's output that are stored; the rest is dropped."""
_TRUNCATE_ABOVE = 4 * 1024 * 1024
_CUT_ABOVE = 16 * 1024 * 1024
"""Well above `_TRUNCATE_ABOVE`, from which on the worker locks the file to take its output."""
_TAIL = 8 * 1024


def output_file() -> int:
    """A file descriptor of memory for a worker's output; all writes to it append."""
    fd = anonymous_file("gradeline-output")
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


class OutputFile:
    """The output file of a worker, which the worker and the engine share.

    It is truncated rarely, since that costs more than a write. ``progress`` holds the offset at which the current
    call's output begins, and the number of its bytes that were dropped.
    """

    def __init__(self, fd: int, progress: Progress) -> None:
        self._fd = fd
        self._progress = progress
        self._begin = 0

    def take(self) -> str | None:
        """The output since the last call of `take`, cut to the maximum."""
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if size == self._begin:
            return None
        if size < _TRUNCATE_ABOVE and not self._progress.output_cut:
            text = self._text(self._begin, size)
            self._begin = self._progress.output_begin = size
            return text
        fcntl.lockf(self._fd, fcntl.LOCK_EX)  # against `cut` in the engine at the same moment
        try:
            text = self.text()
            os.ftruncate(self._fd, 0)
            self._begin = self._progress.output_begin = 0
            self._progress.output_cut = 0
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return text

    def text(self) -> str | None:
        """The output of the current call, cut to the maximum."""
        size = os.fstat(self._fd).st_size
        return self._text(self._begin_in(size), size)

    def tail(self) -> str:
        """The end of the current call's output."""
        size = os.fstat(self._fd).st_size
        begin = max(self._begin_in(size), size - _TAIL)
        return clean_text(os.pread(self._fd, size - begin, begin)).text.strip()

    def cut(self) -> None:
        """Drop what exceeds the maximum while a call prints without end."""
        if os.fstat(self._fd).st_size <= _CUT_ABOVE:
            return
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # the worker takes its output at this moment
            return
        try:
            size = os.fstat(self._fd).st_size
            begin = self._begin_in(size)
            if size > max(_CUT_ABOVE, begin + MAX_OUTPUT):
                self._progress.output_cut += size - (begin + MAX_OUTPUT)
                os.ftruncate(self._fd, begin + MAX_OUTPUT)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)

    def _begin_in(self, size: int) -> int:
        """Where the current call's output begins; checked, since user code can write into the shared memory."""
        begin = self._progress.output_begin
        return begin if 0 <= begin <= size else 0

    def _text(self, begin: int, size: int) -> str | None:
        if size <= begin:
            return None
        kept = os.pread(self._fd, min(size - begin, MAX_OUTPUT), begin)
        cut = max(0, self._progress.output_cut)
        dropped = size - begin - len(kept) + cut
        # what was written during a cut is not counted
        more = f"\n… and {'at least ' if cut else ''}{dropped:,} bytes more" if dropped else ""
        return clean_text(kept).text + more


_current_capture: ContextVar[captured_output | None] = ContextVar("gradeline_current_capture", default=None)


class _Tee:
    """A stream of this process that also stores what is written to it during a call of user code.

    A live display may write through a second tee below this one, which then does not store or redirect the text again.
    """

    __slots__ = ("__weakref__", "stream")

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        capture = _current_capture.get()
        if capture is None or not isinstance(text, str):
            return self.stream.write(text)
        capture.add(text)
        outer = _current_capture.set(None)
        try:
            return (_inner(sys.stderr) if capture.to_stderr else self.stream).write(text)
        finally:
            _current_capture.reset(outer)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _inner(stream: Any) -> TextIO:
    found: TextIO = stream.stream if type(stream) is _Tee else stream
    return found


class _OutputCapture:
    """Wraps ``sys.stdout`` and ``sys.stderr`` while at least one call runs, also where a live display replaces them."""

    def __init__(self) -> None:
        self._calls = 0
        self._lock = Lock()

    def install(self) -> None:
        with self._lock:
            self._calls += 1
            self._wrap()

    def uninstall(self) -> None:
        with self._lock:
            self._calls -= 1
            if not self._calls:
                sys.stdout, sys.stderr = _inner(sys.stdout), _inner(sys.stderr)

    def reinstall(self) -> None:
        """Wrap the streams again where a display has replaced them; call between `install` and `uninstall`."""
        if type(sys.stdout) is not _Tee or type(sys.stderr) is not _Tee:
            with self._lock:
                self._wrap()

    def _wrap(self) -> None:
        out: Any = sys.stdout
        err: Any = sys.stderr
        if type(out) is not _Tee:
            sys.stdout = _Tee(out)
        if type(err) is not _Tee:
            sys.stderr = _Tee(err)


OUTPUT_CAPTURE = _OutputCapture()


class captured_output:  # noqa: N801 - used as a function is
    """Capture what the code in the ``with`` block prints, in tasks and threads of its context too.

    With ``to_stderr`` all of it also appears on standard error, which leaves standard output to this program; otherwise
    it appears where it was printed. ``installed``: the caller has called `OUTPUT_CAPTURE.install`, once for many calls.
    """

    __slots__ = ("_dropped", "_installed", "_kept", "_room", "_token", "to_stderr")

    def __init__(self, *, to_stderr: bool = False, installed: bool = False) -> None:
        self._kept: list[str] | None = None
        self._installed = installed
        self.to_stderr = to_stderr

    def __enter__(self) -> Self:
        if self._installed:
            OUTPUT_CAPTURE.reinstall()
        else:
            OUTPUT_CAPTURE.install()
        self._token = _current_capture.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _current_capture.reset(self._token)
        if not self._installed:
            OUTPUT_CAPTURE.uninstall()

    def add(self, text: str) -> None:
        if self._kept is None:
            self._kept, self._room, self._dropped = [], MAX_OUTPUT, 0
        kept = text[: self._room]
        if kept:
            self._kept.append(kept)
            self._room -= len(kept)
        self._dropped += len(text) - len(kept)

    def text(self) -> str | None:
        """What was printed, cut to the maximum."""
        if not self._kept:
            return None
        more = f"\n… and {self._dropped:,} characters more" if self._dropped else ""
        return clean_text("".join(self._kept)).text + more

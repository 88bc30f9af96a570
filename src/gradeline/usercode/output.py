"""What user code prints.

In a worker, standard output and error are real descriptors of one file. The worker takes what a call printed when the
call ends. The engine cuts the file while a call floods it, and reads it when the worker dies. What code in this process
writes to ``sys.stdout`` and ``sys.stderr`` is kept and still appears.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from threading import Lock
from typing import Any, Self, TextIO

from gradeline.model import clean_text
from gradeline.usercode.protocol import Progress

if sys.platform != "win32":  # there no worker is ever started
    import fcntl

KEPT = 1024 * 1024
"""Bytes of one call's output that are kept."""
_TRUNCATE_ABOVE = 4 * 1024 * 1024
_CUT_ABOVE = 16 * 1024 * 1024
"""Well above the size from which on the worker takes its output under a lock."""
_TAIL = 8 * 1024


def output_file() -> int:
    """A descriptor of a file without a name; whatever writes to it appends."""
    if sys.platform == "linux":
        fd = os.memfd_create("gradeline-output")
    else:
        import tempfile  # 2 ms, and not for Linux

        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_APPEND)
    return fd


class Output:
    """The file as a worker and its engine share it.

    It is appended to and rarely truncated, which costs more than a write. ``progress`` holds where the current call's
    output begins, and how many bytes of it were cut out.
    """

    def __init__(self, fd: int, progress: Progress) -> None:
        self._fd = fd
        self._progress = progress
        self._begin = 0

    def take(self) -> str | None:
        """What was written since the last time, as far as it is kept."""
        size = os.lseek(self._fd, 0, os.SEEK_END)
        if size == self._begin:
            return None
        if size < _TRUNCATE_ABOVE and not self._progress.output_cut:
            text = self._text(self._begin, size)
            self._begin = self._progress.output_begin = size
            return text
        fcntl.lockf(self._fd, fcntl.LOCK_EX)  # against a cut at the same moment
        try:
            text = self.text()
            os.ftruncate(self._fd, 0)
            self._begin = self._progress.output_begin = 0
            self._progress.output_cut = 0
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
        return text

    def text(self) -> str | None:
        """What the current call wrote, as far as it is kept."""
        size = os.fstat(self._fd).st_size
        return self._text(self._begin_in(size), size)

    def tail(self) -> str:
        """The end of what the current call wrote."""
        size = os.fstat(self._fd).st_size
        begin = max(self._begin_in(size), size - _TAIL)
        return clean_text(os.pread(self._fd, size - begin, begin)).text.strip()

    def cut(self) -> None:
        """Drop what will not be read while a call prints without end."""
        if os.fstat(self._fd).st_size <= _CUT_ABOVE:
            return
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # the worker takes it right now
            return
        try:
            size = os.fstat(self._fd).st_size
            begin = self._begin_in(size)
            if size > max(_CUT_ABOVE, begin + KEPT):
                self._progress.output_cut += size - (begin + KEPT)
                os.ftruncate(self._fd, begin + KEPT)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._fd)

    def _begin_in(self, size: int) -> int:
        """Where the current call's output begins; user code can write anything into the shared memory."""
        begin = self._progress.output_begin
        return begin if 0 <= begin <= size else 0

    def _text(self, begin: int, size: int) -> str | None:
        if size <= begin:
            return None
        kept = os.pread(self._fd, min(size - begin, KEPT), begin)
        cut = max(0, self._progress.output_cut)
        dropped = size - begin - len(kept) + cut
        # what was written while it was cut is not counted
        more = f"\n… and {'at least ' if cut else ''}{dropped:,} bytes more" if dropped else ""
        return clean_text(kept).text + more


_printing: ContextVar[captured_output | None] = ContextVar("gradeline_printing", default=None)


class _Tee:
    """A stream of this process that also keeps what is written to it during a call of user code.

    A live display may write through a second tee below it: what is kept once is not kept, or redirected, again.
    """

    __slots__ = ("__weakref__", "stream")

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        printed = _printing.get()
        if printed is None or not isinstance(text, str):
            return self.stream.write(text)
        printed.add(text)
        outer = _printing.set(None)
        try:
            return (_inner(sys.stderr) if printed.to_stderr else self.stream).write(text)
        finally:
            _printing.reset(outer)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _inner(stream: Any) -> TextIO:
    found: TextIO = stream.stream if type(stream) is _Tee else stream
    return found


class _OutputCapture:
    """Wraps the streams while at least one call runs, whatever a live display has put in their place."""

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
    """Keep what the code within prints; tasks and threads that run in its context are included.

    With ``to_stderr`` all of it also appears on standard error, so that standard output has only what this program
    writes there; otherwise it appears where it was printed to. ``placed``: the caller has placed `OUTPUT_CAPTURE`, once for many
    calls.
    """

    __slots__ = ("_dropped", "_kept", "_placed", "_room", "_token", "to_stderr")

    def __init__(self, *, to_stderr: bool = False, placed: bool = False) -> None:
        self._kept: list[str] | None = None
        self._placed = placed
        self.to_stderr = to_stderr

    def __enter__(self) -> Self:
        if self._placed:
            OUTPUT_CAPTURE.reinstall()
        else:
            OUTPUT_CAPTURE.install()
        self._token = _printing.set(self)
        return self

    def __exit__(self, *error: object) -> None:
        _printing.reset(self._token)
        if not self._placed:
            OUTPUT_CAPTURE.uninstall()

    def add(self, text: str) -> None:
        if self._kept is None:
            self._kept, self._room, self._dropped = [], KEPT, 0
        kept = text[: self._room]
        if kept:
            self._kept.append(kept)
            self._room -= len(kept)
        self._dropped += len(text) - len(kept)

    def text(self) -> str | None:
        """What was printed, as far as it is kept."""
        if not self._kept:
            return None
        more = f"\n… and {self._dropped:,} characters more" if self._dropped else ""
        return clean_text("".join(self._kept)).text + more

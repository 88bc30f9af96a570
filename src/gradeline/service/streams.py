"""Renderers that write to a file, turned into chunks for whoever reads them, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from io import TextIOBase
from queue import Empty, Full, Queue
from threading import Event, Thread
from time import monotonic
from typing import IO, cast

CHUNK = 64 * 1024
"""Characters that are handed over together."""
_WAITING = 8
"""Chunks that may wait for a slow reader."""
_POLL_SECONDS = 0.5
STALL_SECONDS = 120.0
"""A reader that takes nothing for so long is gone."""


class ReaderGoneError(Exception):
    """Nobody reads what is written: there is no use in going on."""


class Chunks(Iterator[bytes]):
    """The bytes of a file, of which the first are there already. Read them to their end, or close them."""

    def __init__(self, chunks: Generator[bytes, None, None]) -> None:
        # a generator that was begun tidies up when it is closed; one that was not would do nothing
        self._first: bytes | None = next(chunks, b"")
        self._chunks = chunks

    def __next__(self) -> bytes:
        first, self._first = self._first, None
        return next(self._chunks) if first is None else first

    def close(self) -> None:
        """Let go of whatever makes them; nothing is wrong with closing twice."""
        self._chunks.close()


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


_END = object()


class _Pipe(TextIOBase):
    """The file that a renderer writes to, in a thread of its own."""

    def __init__(self) -> None:
        self.chunks: Queue[object] = Queue(_WAITING)
        self.gone = Event()
        self._parts: list[str] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._parts.append(text)
        self._size += len(text)
        if self._size >= CHUNK:
            self.hand_over()
        return len(text)

    def hand_over(self) -> None:
        if self._parts:
            # half a surrogate pair cannot be written as UTF-8, and nothing that is stored has one
            self.put("".join(self._parts).encode(errors="replace"))
            self._parts.clear()
            self._size = 0

    def put(self, item: object) -> None:
        deadline = monotonic() + STALL_SECONDS
        while True:
            if self.gone.is_set() or monotonic() > deadline:
                raise ReaderGoneError
            try:
                return self.chunks.put(item, timeout=_POLL_SECONDS)
            except Full:
                continue


def streamed(write: Callable[[IO[str]], None], done: Callable[[], None]) -> Chunks:
    """What ``write`` writes, as UTF-8, while it writes it; ``done`` is called at the end, whatever that is.

    An error of ``write`` is raised here, after all that came before it. The first chunk is there when this returns,
    so that what fails at once fails before anything was sent.
    """
    pipe = _Pipe()
    Thread(target=_written, args=(pipe, write, done), name="export", daemon=True).start()
    return Chunks(_chunks(pipe))


def _chunks(pipe: _Pipe) -> Generator[bytes, None, None]:
    try:
        while (item := pipe.chunks.get()) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            if isinstance(item, bytes):
                yield item
    finally:
        pipe.gone.set()
        _drain(pipe)


def _drain(pipe: _Pipe) -> None:
    """Makes room for a writer that waits, so that it sees at once that nobody reads."""
    try:
        while True:
            pipe.chunks.get_nowait()
    except Empty:
        pass


def _written(pipe: _Pipe, write: Callable[[IO[str]], None], done: Callable[[], None]) -> None:
    end: object = _END
    try:
        write(cast("IO[str]", pipe))
        pipe.hand_over()
    except ReaderGoneError:
        return
    except BaseException as error:
        end = _Failed(error)
    finally:
        done()
    try:
        pipe.put(end)
    except ReaderGoneError:
        return

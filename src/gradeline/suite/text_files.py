"""Text files of a dataset: bytes read in blocks, unpacked within bounds, and cut into lines or the items of a list."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from gradeline.suite.cases import DatasetError
from gradeline.suite.problems import PositionOf, SourcePosition, SuiteProblem, problem_at

MAX_TEXT = 10_000_000
_MAX_ROW = 6 * MAX_TEXT + 1_000_000
"""JSON can write a character in six bytes."""
_CHUNK = 1 << 16
BOM = b"\xef\xbb\xbf"
GZIP = ".gz"
_MAX_RATIO = 200
_RATIO_FROM = 100_000_000
"""Unpacked bytes from which the ratio counts: gzip packs at most a thousand to one, and real text far below that."""


class DatasetFile:
    """A file that is open for reading, unpacked if its name ends in ``.gz``."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._unpacked = gzip.GzipFile(fileobj=file) if path.suffix.lower() == GZIP else None
        self._read = 0
        self._before = _version(file)

    def chunks(self) -> Iterator[bytes]:
        """The content. A file that changes meanwhile is refused: its rows may be mixed from two versions."""
        while chunk := self._next():
            if _version(self._file) != self._before:
                raise DatasetError(of_file(self._path, "changed while it was being read"))
            yield chunk

    def _next(self) -> bytes:
        if self._unpacked is None:
            return self._file.read(_CHUNK)
        try:
            chunk = self._unpacked.read(_CHUNK)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            reason = f"is not a complete gzip file: {error}; pack it again with gzip"
            raise DatasetError(of_file(self._path, reason)) from None
        self._read += len(chunk)
        if self._read > _RATIO_FROM and self._read > _MAX_RATIO * self._file.tell():
            reason = (
                f"unpacks to more than {_MAX_RATIO} times its size, as no dataset does; if it is one, unpack it with"
                " gunzip and name that file"
            )
            raise DatasetError(of_file(self._path, reason))
        return chunk


def split_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file."""
    with open_file(path) as file:
        number, begun, size = 1, list[bytes](), 0
        for chunk in file.chunks():
            first, *others = chunk.split(b"\n")
            begun.append(first)
            size += len(first)
            if size > _MAX_ROW:
                raise DatasetError(problem_at(SourcePosition(str(path), number), (), too_long()))
            if others:
                yield b"".join((*begun, b"\n"))
                *whole, last = others  # a line within one block is never too long
                for line in whole:
                    yield line + b"\n"
                number, begun, size = number + len(others), [last], len(last)
        if size:
            yield b"".join(begun)


def _version(file: BinaryIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    # reading changes a pipe
    return (found.st_size, found.st_mtime_ns) if S_ISREG(found.st_mode) else (0, 0)


def of_file(path: Path, message: str) -> SuiteProblem:
    """A problem of the whole file."""
    return problem_at(SourcePosition(str(path)), (), message)


def at_line(path: Path, line: int) -> PositionOf:
    """The position of everything in one line."""
    return lambda _: SourcePosition(str(path), line)


@contextmanager
def open_file(path: Path) -> Iterator[DatasetFile]:
    try:
        with path.open("rb") as file:
            yield DatasetFile(path, file)
    except OSError as error:
        raise DatasetError(of_file(path, f"cannot be read: {error.strerror}")) from None


def decode(raw: bytes, position: SourcePosition) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte 0x{raw[error.start]:02x}; save the file as UTF-8"
        raise DatasetError(problem_at(position, (), reason)) from None


def too_long() -> str:
    return f"contains a string of more than {MAX_TEXT:,} characters; leave it out, or split it into turns"


_OUTSIDE = re.compile(rb'["\[\]{},]')
_IN_TEXT = re.compile(rb'["\\]')


def array_items(chunks: Iterator[bytes], file: str) -> Iterator[tuple[int, bytes]]:
    """The items of a JSON array as written, each with its line; the file is never in memory as a whole."""
    buffer = bytearray()
    line = 1

    def refill() -> bool:
        chunk = next(chunks, b"")
        buffer.extend(chunk)
        return bool(chunk)

    def error(reason: str, number: int) -> DatasetError:
        return DatasetError(SuiteProblem(file, number, 0, "", reason))

    def take(end: int) -> tuple[int, bytes]:
        """Cut off everything before ``end``; its line is that of its first character that is not whitespace."""
        nonlocal line
        raw = bytes(buffer[:end])
        del buffer[: end + 1]
        number = line + raw[: len(raw) - len(raw.lstrip())].count(b"\n")
        line += raw.count(b"\n")
        return number, raw.strip()

    while not buffer.removeprefix(BOM).strip():
        if not refill():
            raise error("is empty", 0)
    start = len(buffer) - len(buffer.removeprefix(BOM).lstrip())
    if buffer[start : start + 1] != b"[":
        raise error('expected a list of rows: [{"input": …}, …]', 1 + buffer[:start].count(b"\n"))
    take(start)
    at = depth = count = 0
    in_text = False
    while True:
        mark = (_IN_TEXT if in_text else _OUTSIDE).search(buffer, at)
        if mark is None:
            at = max(at, len(buffer))  # an escape at the very end extends into the next chunk
            if not refill():
                raise error("not JSON: the list ends too early", line + buffer.count(b"\n"))
            if len(buffer) > _MAX_ROW + _CHUNK:
                raise error(too_long(), line)
            continue
        at = mark.end()
        character = mark[0]
        if in_text:
            in_text = character != b'"'
            at += in_text
        elif character == b'"':
            in_text = True
        elif character in b"[{":
            depth += 1
        elif depth and character in b"]}":
            depth -= 1
        elif not depth:
            number, raw = take(mark.start())
            at = 0
            if character == b"]" and not raw and not count:
                break
            if not raw:
                raise error("not JSON: a row is missing next to a comma", number)
            yield number, raw
            count += 1
            if character == b"]":
                break
    while not buffer.strip():
        line += buffer.count(b"\n")
        buffer.clear()
        if not refill():
            return
    raise error("not JSON: unexpected text after the list", take(len(buffer))[0])

"""A run in the formats that others read, made while it is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from enum import StrEnum
from io import TextIOBase
from pathlib import Path
from queue import Empty, Full, Queue
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import monotonic
from typing import IO, NamedTuple, cast

import msgspec

from gradeline.engine.aggregate import RunReport, conclude
from gradeline.errors import ConfigError
from gradeline.model import Record, Run, RunGrader, Storage, to_json
from gradeline.report.html import write_html
from gradeline.report.junit import write_junit
from gradeline.report.table import require_duckdb, write_csv, write_parquet
from gradeline.service.errors import Code, ServiceError
from gradeline.service.labels import Labels, labelled
from gradeline.service.results import EXPORTS_AT_ONCE, Results

CHUNK = 64 * 1024
"""Characters that are handed over together."""
_WAITING = 8
"""Chunks that may wait for a slow reader."""
_POLL_SECONDS = 0.5
STALL_SECONDS = 120.0
"""A reader that takes nothing for so long is gone."""


class ReaderGoneError(Exception):
    """Nobody reads what is written: there is no use in going on."""


class ByteStream(Iterator[bytes]):
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


def streamed(write: Callable[[IO[str]], None], done: Callable[[], None]) -> ByteStream:
    """What ``write`` writes, as UTF-8, while it writes it; ``done`` is called at the end, whatever that is.

    An error of ``write`` is raised here, after all that came before it. The first chunk is there when this returns,
    so that what fails at once fails before anything was sent.
    """
    pipe = _Pipe()
    Thread(target=_written, args=(pipe, write, done), name="export", daemon=True).start()
    return ByteStream(_chunks(pipe))


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


_CHUNK = 256 * 1024


def parquet_chunks(records: Iterable[Record], graders: Mapping[str, RunGrader], done: Callable[[], None]) -> ByteStream:
    """The bytes of the file (`gradeline.report.table`).

    It is whole on disk before the first byte is given; ``done`` is called at the end, whatever that is.
    """
    with ExitStack() as opened:
        opened.callback(done)
        _require_duckdb()
        made = Path(opened.enter_context(TemporaryDirectory(prefix="gradeline-parquet-"))) / "results.parquet"
        write_parquet(made, records, graders)
        return ByteStream(_read(made, opened.pop_all()))


def _require_duckdb() -> None:
    try:
        require_duckdb()
    except ConfigError:
        raise ServiceError(
            Code.INVALID_INPUT,
            "Parameter 'format' is 'parquet', which this server cannot write: install DuckDB there with"
            " pip install 'gradeline[export]', or take another format",
        ) from None


def _read(path: Path, opened: ExitStack) -> Generator[bytes, None, None]:
    with opened, path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 60
_RETRY_SECONDS = "5"


class Format(StrEnum):
    """What a run is exported as."""

    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"
    JUNIT = "junit"
    HTML = "html"
    PARQUET = "parquet"


class _Kind(NamedTuple):
    content_type: str
    suffix: str


KINDS: Mapping[Format, _Kind] = {
    Format.JSON: _Kind("application/json", "json"),
    Format.CSV: _Kind("text/csv; charset=utf-8", "csv"),
    Format.JSONL: _Kind("application/x-ndjson", "jsonl"),
    Format.JUNIT: _Kind("application/xml", "xml"),
    Format.HTML: _Kind("text/html; charset=utf-8", "html"),
    Format.PARQUET: _Kind("application/vnd.apache.parquet", "parquet"),
}


class Export(NamedTuple):
    """A file on its way."""

    name: str
    content_type: str
    chunks: ByteStream


class Exports:
    """Makes exports, some at a time."""

    def __init__(self, storage: Storage, results: Results, labels: Labels) -> None:
        self._storage = storage
        self._results = results
        self._labels = labels
        self._slots = results.export_slots

    def export(self, evaluation_id: str, wanted: Format) -> Export:
        """A run as a file; its chunks must be read to their end or closed.

        What fails before the first chunk is raised here; what fails later is raised by the chunks.
        """
        run = self._results.run(evaluation_id)
        if not self._slots.acquire(blocking=False):
            raise ServiceError(
                Code.RATE_LIMITED,
                f"{EXPORTS_AT_ONCE} exports are being made; try again when one of them is done",
                headers={"Retry-After": _RETRY_SECONDS},
            )
        kind = KINDS[wanted]
        if wanted is Format.PARQUET:
            chunks = parquet_chunks(self._records(run), run.graders, self._slots.release)
        else:
            chunks = streamed(self._writer(run, wanted), self._slots.release)
        return Export(_file_name(run, kind.suffix), kind.content_type, chunks)

    def _writer(self, run: Run, wanted: Format) -> Callable[[IO[str]], None]:
        if wanted is Format.JSON:
            return lambda file: self._write_json(file, run)
        if wanted is Format.JSONL:
            return lambda file: file.writelines(f"{to_json(record)}\n" for record in self._records(run))
        if wanted is Format.CSV:
            return lambda file: write_csv(file, self._records(run), run.graders)
        if wanted is Format.JUNIT:
            return lambda file: write_junit(file, self._report(run))
        return lambda file: write_html(file, self._report(run))

    def _report(self, run: Run) -> RunReport:
        return conclude(self._storage, run)._replace(records=lambda: self._records(run))

    def _records(self, run: Run) -> Iterator[Record]:
        return map(self._results.tracebacks.in_record, self._storage.records(run.id))

    def _write_json(self, file: IO[str], run: Run) -> None:
        """One object: the run, what it comes to, and every result with all that is stored of it."""
        # the process that had the run is nothing a reader could use
        told = msgspec.to_builtins(msgspec.structs.replace(run, owner=None))
        report = conclude(self._storage, run)
        parts = {
            "evaluation": told,
            "summary": self._results.summaries.of(run),
            "verdict": report.verdict._asdict(),
        }
        for name, part in parts.items():
            file.write(f'{"{" if name == "evaluation" else ","}"{name}":{_json(part)}')
        file.write(',"results":[')
        names, replaced = self._results.names(run), self._results.has_history(run)
        labels = self._labels.of_run(run.id)
        separator = "\n"
        for record in self._storage.records(run.id):
            detail = self._results.of_record(run, record, names, with_history=replaced)
            file.write(f"{separator}{_json(labelled(detail, labels.get((record.case, record.repeat), [])))}")
            separator = ",\n"
        file.write("\n]}\n")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _file_name(run: Run, suffix: str) -> str:
    """A name that is safe in a header and on every file system, whatever the run is called."""
    name = _UNSAFE.sub("-", run.name)[:_LONGEST_NAME].strip("-.") or "evaluation"
    return f"{name}-{_UNSAFE.sub('-', run.id)[:8]}.{suffix}"

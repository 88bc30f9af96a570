"""Exports of runs in several file formats, written while they are sent."""

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
from gradeline.model import Record, Run, Storage
from gradeline.report.html import write_html
from gradeline.report.junit import write_junit
from gradeline.report.labelled_records import grader_labels, record_lines
from gradeline.report.table import TableLabels, require_duckdb, write_csv, write_parquet
from gradeline.service.errors import Code, ServiceError
from gradeline.service.labels import Labels, with_labels
from gradeline.service.results import EXPORTS_AT_ONCE, Results

CHUNK = 64 * 1024
"""Size of a chunk, in characters."""
_MAX_BUFFERED = 8
"""Chunks that are buffered for a slow reader."""
_POLL_SECONDS = 0.5
STALL_SECONDS = 120.0
"""Time after which a reader that reads nothing is considered gone."""


class ReaderGoneError(Exception):
    """The reader is gone, so writing stops."""


class ByteStream(Iterator[bytes]):
    """The bytes of a file; the first chunk exists already. Must be read to the end or closed."""

    def __init__(self, chunks: Generator[bytes, None, None]) -> None:
        # only a generator that was started runs its clean-up when it is closed
        self._first: bytes | None = next(chunks, b"")
        self._chunks = chunks

    def __next__(self) -> bytes:
        first, self._first = self._first, None
        return next(self._chunks) if first is None else first

    def close(self) -> None:
        """Stop the writer. May be called twice."""
        self._chunks.close()


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error


_END = object()


class _Pipe(TextIOBase):
    """The file that a renderer writes to, in its own thread."""

    def __init__(self) -> None:
        self.chunks: Queue[object] = Queue(_MAX_BUFFERED)
        self.gone = Event()
        self._parts: list[str] = []
        self._size = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._parts.append(text)
        self._size += len(text)
        if self._size >= CHUNK:
            self.flush_chunk()
        return len(text)

    def flush_chunk(self) -> None:
        if self._parts:
            # nothing stored has half a surrogate pair, which cannot be encoded as UTF-8
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


def stream_text(write: Callable[[IO[str]], None], done: Callable[[], None]) -> ByteStream:
    """Stream what ``write`` writes, as UTF-8; ``done`` is called at the end, also after an error.

    An error of ``write`` is raised by the stream, after the data before it. The first chunk exists when this returns,
    so that an early error is raised before anything is sent.
    """
    pipe = _Pipe()
    Thread(target=_run_writer, args=(pipe, write, done), name="export", daemon=True).start()
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
    """Make room for a waiting writer, so that it notices at once that the reader is gone."""
    try:
        while True:
            pipe.chunks.get_nowait()
    except Empty:
        pass


def _run_writer(pipe: _Pipe, write: Callable[[IO[str]], None], done: Callable[[], None]) -> None:
    end: object = _END
    try:
        write(cast("IO[str]", pipe))
        pipe.flush_chunk()
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


def parquet_chunks(
    records: Iterable[Record], run: Run, done: Callable[[], None], labels: Callable[[], TableLabels]
) -> ByteStream:
    """The bytes of the file (`gradeline.report.table`).

    It is complete on disk before the first byte is returned; ``done`` is called at the end, also after an error.
    """
    with ExitStack() as opened:
        opened.callback(done)
        _require_duckdb()
        path = Path(opened.enter_context(TemporaryDirectory(prefix="gradeline-parquet-"))) / "results.parquet"
        write_parquet(path, records, run.graders, run.variant, labels())
        return ByteStream(_read(path, opened.pop_all()))


def _require_duckdb() -> None:
    try:
        require_duckdb()
    except ConfigError:
        raise ServiceError(
            Code.INVALID_INPUT,
            "Parameter 'format' is 'parquet', which this server cannot write: install DuckDB with"
            " pip install 'gradeline[export]', or use another format",
        ) from None


def _read(path: Path, opened: ExitStack) -> Generator[bytes, None, None]:
    with opened, path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 60
_RETRY_SECONDS = "5"


class Format(StrEnum):
    """The format of an export."""

    JSON = "json"
    CSV = "csv"
    JSONL = "jsonl"
    JUNIT = "junit"
    HTML = "html"
    PARQUET = "parquet"


class _FileKind(NamedTuple):
    content_type: str
    suffix: str


KINDS: Mapping[Format, _FileKind] = {
    Format.JSON: _FileKind("application/json", "json"),
    Format.CSV: _FileKind("text/csv; charset=utf-8", "csv"),
    Format.JSONL: _FileKind("application/x-ndjson", "jsonl"),
    Format.JUNIT: _FileKind("application/xml", "xml"),
    Format.HTML: _FileKind("text/html; charset=utf-8", "html"),
    Format.PARQUET: _FileKind("application/vnd.apache.parquet", "parquet"),
}


class ExportFile(NamedTuple):
    """A file that is being sent."""

    name: str
    content_type: str
    chunks: ByteStream


class Exports:
    """Creates exports, a limited number at the same time."""

    def __init__(self, storage: Storage, results: Results, labels: Labels) -> None:
        self._storage = storage
        self._results = results
        self._labels = labels
        self._slots = results.export_slots

    def export(self, evaluation_id: str, format_: Format) -> ExportFile:
        """A run as a file; its chunks must be read to their end or closed.

        Errors before the first chunk are raised here, later ones by the chunks.
        """
        run = self._results.run(evaluation_id)
        if not self._slots.acquire(blocking=False):
            raise ServiceError(
                Code.RATE_LIMITED,
                f"{EXPORTS_AT_ONCE} exports are in progress; try again when one of them is done",
                headers={"Retry-After": _RETRY_SECONDS},
            )
        kind = KINDS[format_]
        if format_ is Format.PARQUET:
            chunks = parquet_chunks(
                self._records(run), run, self._slots.release, lambda: grader_labels(self._storage, run)
            )
        else:
            chunks = stream_text(self._writer(run, format_), self._slots.release)
        return ExportFile(_file_name(run, kind.suffix), kind.content_type, chunks)

    def _writer(self, run: Run, format_: Format) -> Callable[[IO[str]], None]:
        if format_ is Format.JSON:
            return lambda file: self._write_json(file, run)
        if format_ is Format.JSONL:
            lines = record_lines(self._storage, run, self._records(run))
            return lambda file: file.writelines(f"{line}\n" for line in lines)
        if format_ is Format.CSV:
            return lambda file: write_csv(
                file, self._records(run), run.graders, run.variant, grader_labels(self._storage, run)
            )
        if format_ is Format.JUNIT:
            return lambda file: write_junit(file, self._report(run))
        return lambda file: write_html(file, self._report(run))

    def _report(self, run: Run) -> RunReport:
        return conclude(self._storage, run)._replace(records=lambda: self._records(run))

    def _records(self, run: Run) -> Iterator[Record]:
        return map(self._results.tracebacks.in_record, self._storage.records(run.id))

    def _write_json(self, file: IO[str], run: Run) -> None:
        """Write one object: the run, its summary and verdict, and every result with everything stored about it."""
        # the owner of the run is of no use to a reader
        evaluation = msgspec.to_builtins(msgspec.structs.replace(run, owner=None))
        report = conclude(self._storage, run)
        parts = {
            "evaluation": evaluation,
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
            file.write(f"{separator}{_json(with_labels(detail, labels.get((record.case, record.repeat), [])))}")
            separator = ",\n"
        file.write("\n]}\n")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _file_name(run: Run, suffix: str) -> str:
    """A file name that is safe in a header and on every file system."""
    name = _UNSAFE.sub("-", run.name)[:_LONGEST_NAME].strip("-.") or "evaluation"
    return f"{name}-{_UNSAFE.sub('-', run.id)[:8]}.{suffix}"

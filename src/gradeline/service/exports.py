"""A run in the formats that others read, made while it is sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import IO, NamedTuple

import msgspec

from gradeline.engine.conclude import RunReport, conclude
from gradeline.model import Record, Run, Storage, to_json
from gradeline.report.csv_table import write_csv
from gradeline.report.html import write_html
from gradeline.report.junit import write_junit
from gradeline.service.failures import ApiError, Code
from gradeline.service.labels import Labels, labelled
from gradeline.service.parquet import parquet_chunks
from gradeline.service.results import EXPORTS_AT_ONCE, Results
from gradeline.service.streams import Chunks, streamed

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
    chunks: Chunks


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
            raise ApiError(
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

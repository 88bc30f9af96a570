"""Rows and documents of imported files: JSON, JSON Lines and CSV, also gzipped, read in constant memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gradeline.errors import ConfigError, Problem
from gradeline.importers.report import ImportReport
from gradeline.model import quote
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.suite.problems import SourcePosition
from gradeline.suite.text_files import BOM, MAX_TEXT, array_items, decode, open_file, split_lines

MAX_DOCUMENT_BYTES = 512 * 1024 * 1024
"""Maximum size of a JSON document that is read as a whole."""


class ImportedRow(NamedTuple):
    """An object of a file, and its place as ``file:line``."""

    place: str
    data: Mapping[str, Any]


def read_rows(path: Path, report: ImportReport) -> Iterator[ImportedRow]:
    """The objects of a JSON Lines file or a JSON list. Rows that cannot be read are reported as not mapped.

    A file that was cut off is read up to the last complete row.
    """
    numbered = _lines(path) if _is_lines(path) else _items(path, report)
    for number, raw in numbered:
        place = f"{path.name}:{number}"
        try:
            data = parse_json(decode(raw, SourcePosition(path.name, number)))
        except NotJsonError as error:
            report.not_mapped(place, "row", f"is not JSON ({error}); export it again")
        except ConfigError as error:
            report.not_mapped(place, "row", f"{error.problems[0].message}")
        else:
            if isinstance(data, Mapping):
                yield ImportedRow(place, data)
            else:
                report.not_mapped(place, "row", f"is not an object: {quote(data, 60)}")


def read_csv_rows(path: Path) -> Iterator[ImportedRow]:
    """The rows of a CSV file with a header, as text."""
    csv.field_size_limit(max(csv.field_size_limit(), MAX_TEXT))
    lines = (
        decode(raw.removeprefix(BOM), SourcePosition(path.name, number))
        for number, raw in enumerate(split_lines(path), 1)
    )
    reader = csv.DictReader(lines, strict=True)
    try:
        for row in reader:
            yield ImportedRow(f"{path.name}:{reader.line_num}", {key: text for key, text in row.items() if key})
    except csv.Error as error:
        raise ConfigError(Problem(f"{path}:{reader.line_num}", f"is not valid CSV: {error}")) from None


def read_json_document(path: Path) -> Any:
    """A JSON document; `ConfigError` if it is invalid or too large to be read as a whole."""
    try:
        size = path.stat().st_size
        if size > MAX_DOCUMENT_BYTES:
            most = MAX_DOCUMENT_BYTES // 1024**2
            raise ConfigError(
                Problem(
                    str(path),
                    f"has {size // 1024**2:,} MiB; at most {most} MiB are read as a whole; export it as JSON Lines",
                )
            )
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(Problem(str(path), f"cannot be read: {error.strerror}")) from None
    try:
        return parse_json(decode(raw.removeprefix(BOM), SourcePosition(str(path))))
    except NotJsonError as error:
        raise ConfigError(Problem(str(path), f"is not JSON: {error}; export it again")) from None


def _is_lines(path: Path) -> bool:
    with open_file(path) as file:
        start = next(file.chunks(), b"")
    return not start.removeprefix(BOM).lstrip().startswith(b"[")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    for number, raw in enumerate(split_lines(path), 1):
        line = (raw.removeprefix(BOM) if number == 1 else raw).strip()
        if line:
            yield number, line


def _items(path: Path, report: ImportReport) -> Iterator[tuple[int, bytes]]:
    with open_file(path) as file:
        try:
            yield from array_items(file.chunks(), path.name)
        except ConfigError as error:
            problem = error.problems[0]
            report.not_mapped(problem.path or path.name, "rest of the file", problem.message)

"""Objects of exported files, and the values of their fields.

The files are JSON Lines, JSON lists, single documents, pages of a REST API with objects in them, or Parquet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from gradeline.errors import ConfigError, Problem
from gradeline.importers.kinds import Source
from gradeline.importers.report import ImportReport
from gradeline.importers.rows import ImportedRow, read_json_document, read_rows
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.rest_types import utc_timestamp
from gradeline.suite.parquet import PARQUET, parquet_rows
from gradeline.suite.text_files import BOM, GZIP, split_lines

ENDINGS = (".json", ".jsonl", ".ndjson", PARQUET)
_MAX_FILES = 10_000
_NO_ROW = ImportedRow("", {})
_DETECTED_FILES = 5
"""Maximum number of files in a folder that detection reads."""
_MAX_FOLDERS = 3
"""Depth of the folders of an export."""


def export_files(path: Path) -> list[Path]:
    """The files of an export, sorted by name; a source that is a file is the only one.

    `ConfigError` for a folder without any, or with too many.
    """
    if not path.is_dir():
        return [path]
    try:
        found = sorted(islice(_files(path, _MAX_FOLDERS), _MAX_FILES + 1))
    except OSError as error:
        raise ConfigError(Problem("SOURCE", f"cannot read {error.filename}: {error.strerror}")) from None
    if not found:
        raise ConfigError(Problem("SOURCE", f"{path} has no files {', '.join(f'*{ending}' for ending in ENDINGS)}"))
    if len(found) > _MAX_FILES:
        raise ConfigError(Problem("SOURCE", f"{path} has more than {_MAX_FILES:,} files; import fewer at a time"))
    return found


def _files(folder: Path, depth: int) -> Iterator[Path]:
    """Files below a folder. Links to folders are not followed."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            if depth > 1:
                yield from _files(entry, depth - 1)
        elif entry.is_file() and entry.name.removesuffix(GZIP).endswith(ENDINGS):
            yield entry


def first_keys(source: Source, page_keys: Collection[str]) -> Iterator[frozenset[str]]:
    """The keys of the first object of an export, for detection; of a folder those of its first files."""
    if source.path.is_dir():
        for file in sorted(islice(_files(source.path, _MAX_FOLDERS), _MAX_FILES))[:_DETECTED_FILES]:
            yield from first_keys(Source(file), page_keys)
        return
    row = source.first_row if source.path.suffix != PARQUET else next(_table_rows(source.path), _NO_ROW).data
    page = next((row[key] for key in page_keys if isinstance(row.get(key), list) and row[key]), None)
    if page is None:
        yield frozenset(row) or source.keys
    elif isinstance(page[0], Mapping):
        yield frozenset(map(str, page[0]))


def read_objects(path: Path, report: ImportReport, page_keys: Collection[str]) -> Iterator[ImportedRow]:
    """The objects of a file. An object with a list under one of ``page_keys`` is a page of such objects."""
    for row in _rows(path, report):
        yield from _unpacked(row, page_keys, report)


def _rows(path: Path, report: ImportReport) -> Iterator[ImportedRow]:
    if path.suffix == PARQUET:
        return _table_rows(path)
    return iter([ImportedRow(path.name, read_json_document(path))]) if _is_document(path) else read_rows(path, report)


def _table_rows(path: Path) -> Iterator[ImportedRow]:
    return (ImportedRow(f"{path.name}:{number}", data) for number, data in parquet_rows(path))


def _unpacked(row: ImportedRow, page_keys: Collection[str], report: ImportReport) -> Iterator[ImportedRow]:
    key = next((key for key in page_keys if isinstance(row.data.get(key), list)), None)
    if key is None:
        yield row
        return
    for index, item in enumerate(row.data[key]):
        place = f"{row.place} {key}[{index}]"
        if isinstance(item, Mapping):
            yield ImportedRow(place, item)
        else:
            report.not_mapped(place, "row", "is not an object; export it again")


def _is_document(path: Path) -> bool:
    """Whether a file is one JSON object on several lines."""
    first, second = _first_lines(path)
    if not first.startswith(b"{") or not second or second.startswith(b"{"):
        return False
    try:
        parse_json(first.decode())
    except (NotJsonError, UnicodeDecodeError):
        return True
    return False


def _first_lines(path: Path) -> tuple[bytes, bytes]:
    """The first two lines that are not blank; empty where there are none."""
    lines = (line.removeprefix(BOM).strip() for line in split_lines(path))
    found = filter(None, lines)
    return next(found, b""), next(found, b"")


def field(data: Mapping[str, Any], name: str) -> Any:
    """A value under its name in camel case, as REST APIs write it, or in snake case, as database exports do."""
    value = data.get(name)
    return data.get(_snake(name)) if value is None else value


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def text_field(data: Mapping[str, Any], name: str) -> str | None:
    """A value that is a non-empty string; None for anything else."""
    value = field(data, name)
    return value if isinstance(value, str) and value else None


def mapping(value: object) -> dict[str, Any]:
    """A value that is an object; empty for anything else."""
    return {str(key): item for key, item in value.items()} if isinstance(value, Mapping) else {}


def texts(value: object) -> tuple[str, ...]:
    """The strings of a list; empty for anything else."""
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def number(value: object) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if isfinite(found) else None


def count(value: object) -> int | None:
    """A number of tokens; None if it is not one."""
    found = number(value)
    return int(found) if found is not None and 0 <= found < 2**53 else None


def seconds(value: object) -> float | None:
    """A time in seconds since the epoch: ISO 8601, or a number of seconds; None for anything else."""
    if not isinstance(value, str):
        return number(value)
    try:
        time = datetime.fromisoformat(value)
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def timestamp(value: object) -> str | None:
    """A time in ISO 8601 and UTC; None if it is not a time."""
    found = seconds(value)
    try:
        return None if found is None else utc_timestamp(found)
    except (ValueError, OverflowError, OSError):
        return None

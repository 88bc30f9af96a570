"""Test cases as files: JSON Lines and CSV, read and written in constant memory.

In CSV, a text that a spreadsheet would read as a formula is prefixed with an apostrophe, and so is one that begins with
an apostrophe; one leading apostrophe is removed when the file is read.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from io import StringIO
from itertools import islice
from tempfile import TemporaryFile
from typing import BinaryIO, NamedTuple, TypeAlias

import msgspec

from gradeline.model.record import to_json
from gradeline.model.sample import TestCase
from gradeline.model.text import escape_formula, quote
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.errors import Code, ServiceError
from gradeline.service.test_cases import FIELDS, REQUIRED, TestCases, case_to_json, faults_of, new_case
from gradeline.store.database import Transaction

MAX_FAULTS = 100
"""Maximum number of faults in an error; all are counted."""
MAX_ROW = 1_000_000
"""Maximum size of a row in bytes; the longest valid case is far below."""

_OWN = ("id", "created_at", "modified_at")
"""Fields of an export that an import ignores: an imported case gets new ones."""
_TAG_SEPARATOR = ";"
_BLOCK = 65_536
_ROWS_PER_CHUNK = 200
_ID_LENGTH = 36
_BOM = b"\xef\xbb\xbf"


class FileKind(StrEnum):
    """The format of a file of test cases."""

    JSONL = "jsonl"
    CSV = "csv"


class RowFault(NamedTuple):
    """A fault of a row; ``line`` is the physical line at which the row begins, counted from 1."""

    line: int
    field: str | None
    message: str


class CaseRow(NamedTuple):
    """The unchecked fields of a case in a file."""

    line: int
    fields: Mapping[str, object]


_Read: TypeAlias = CaseRow | RowFault


def import_cases(
    cases: TestCases,
    file: BinaryIO,
    kind: FileKind,
    created_by: str | None = None,
    record: Recorder = unrecorded,
) -> int:
    """Store all cases of a file and return their number, or raise `ServiceError` with all invalid rows."""
    faults: list[RowFault] = []
    invalid = 0
    with TemporaryFile() as staged:
        for read in _rows(file, kind):
            found = [read] if isinstance(read, RowFault) else _faults(read)
            invalid += len(found)
            faults += found[: MAX_FAULTS - len(faults)]
            if isinstance(read, CaseRow) and not invalid:
                case = new_case(read.fields)
                staged.write(f"{case.id}{to_json(case)}\n".encode())
        if invalid:
            raise _import_error(faults, invalid)

        def recorded(transaction: Transaction, imported: int) -> None:
            record(transaction, "test_cases", {"imported": imported, "format": kind.value})

        return cases.add_rows(_staged_rows(staged), created_by, recorded)


def export_cases(cases: Iterable[TestCase], kind: FileKind) -> Iterator[bytes]:
    """The cases as a file, in chunks."""
    source = iter(cases)
    if kind is FileKind.CSV:
        yield _csv_text([FIELDS])
    while chunk := list(islice(source, _ROWS_PER_CHUNK)):
        if kind is FileKind.CSV:
            yield _csv_text([_cells(case) for case in chunk])
        else:
            yield b"".join(msgspec.json.encode(case_to_json(case)) + b"\n" for case in chunk)


def _import_error(faults: Sequence[RowFault], invalid: int) -> ServiceError:
    first = faults[0]
    rest = "" if invalid == 1 else f"; {invalid:,} faults in total"
    if invalid > MAX_FAULTS:
        rest += f" (the first {MAX_FAULTS} are listed)"
    return ServiceError(
        Code.INVALID_INPUT,
        f"Nothing was imported; line {first.line:,}: {first.message}{rest}",
        details={"errors": [fault._asdict() for fault in faults]},
    )


def _faults(row: CaseRow) -> list[RowFault]:
    return [RowFault(row.line, fault.field, fault.message) for fault in faults_of(row.fields)]


def _staged_rows(staged: BinaryIO) -> Iterator[tuple[str, str]]:
    staged.seek(0)
    for line in staged:
        text = line.decode()
        yield text[:_ID_LENGTH], text[_ID_LENGTH:-1]


def _rows(file: BinaryIO, kind: FileKind) -> Iterator[_Read]:
    lines = _PhysicalLines(file)
    try:
        yield from _csv_rows(lines) if kind is FileKind.CSV else _jsonl_rows(lines)
    except _UnreadableError as error:
        yield RowFault(error.line, None, str(error))


class _UnreadableError(Exception):
    """The file cannot be read beyond this line."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class _PhysicalLines:
    """The physical lines of a file, with their line ends and a maximum size of rows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.begun = 1
        """The line at which the current row begins."""
        self.number = 0
        self._row_bytes = 0

    def next_row(self) -> None:
        """Start the next row."""
        self.begun = self.number + 1
        self._row_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        first = True
        while line := self._file.readline(MAX_ROW + 1):
            self.number += 1
            self._row_bytes += len(line)
            if self._row_bytes > MAX_ROW:
                reason = f"the row has over {MAX_ROW:,} bytes; is a quote or a line end missing?"
                raise _UnreadableError(self.begun, reason)
            yield line.removeprefix(_BOM) if first else line
            first = False

    def texts(self) -> Iterator[str]:
        """The lines as text, up to one that is not UTF-8."""
        for line in self:
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise _UnreadableError(
                    self.number, f"is not valid UTF-8 at byte {error.start + 1} of the line"
                ) from None


def _jsonl_rows(lines: _PhysicalLines) -> Iterator[_Read]:
    for line in lines:
        lines.next_row()
        text = line.strip()
        if text:
            yield _json_row(text, lines.number)


def _json_row(text: bytes, line: int) -> _Read:
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError) as error:
        return RowFault(line, None, f"is not valid JSON: {error}")
    if not isinstance(value, dict):
        return RowFault(line, None, f"must be a JSON object, got {quote(value, 60)}")
    return CaseRow(line, {name: item for name, item in value.items() if name not in _OWN})


def _csv_rows(lines: _PhysicalLines) -> Iterator[_Read]:
    reader = csv.reader(lines.texts(), strict=True)
    try:
        names = next(reader, [])
        faults = list(_header_faults(names))
        if faults:
            yield from faults
            return
        lines.next_row()
        for cells in reader:
            if cells:
                yield _csv_row(names, cells, lines.begun)
            lines.next_row()
    except csv.Error as error:
        raise _UnreadableError(lines.begun, f"is not valid CSV: {error}") from None


def _header_faults(names: Sequence[str]) -> Iterator[RowFault]:
    known = (*FIELDS, *_OWN)
    for name in dict.fromkeys(names):
        if name not in known:
            yield RowFault(1, name, f"Column {quote(name, 60)} is unknown; use one of {', '.join(FIELDS)}")
        elif names.count(name) > 1:
            yield RowFault(1, name, f"Column '{name}' occurs twice; keep one")
    for name in REQUIRED:
        if name not in names:
            yield RowFault(1, name, f"Column '{name}' is required in the first line")


def _csv_row(names: Sequence[str], cells: Sequence[str], line: int) -> _Read:
    if len(cells) != len(names):
        return RowFault(line, None, f"has {len(cells)} cells, the first line has {len(names)}")
    fields: dict[str, object] = {
        name: cell.removeprefix("'") for name, cell in zip(names, cells, strict=True) if name not in _OWN
    }
    if not fields.get("description"):
        fields.pop("description", None)
    if "tags" in fields:
        tags = str(fields["tags"])
        fields["tags"] = [tag.strip() for tag in tags.split(_TAG_SEPARATOR)] if tags else []
    if checks := str(fields.pop("checks", "")).strip():
        try:
            fields["checks"] = msgspec.json.decode(checks)
        except (ValueError, RecursionError) as error:
            return RowFault(line, "checks", f"Field 'checks' is not valid JSON: {error}")
    return CaseRow(line, fields)


def _cells(case: TestCase) -> tuple[str, ...]:
    tags = _TAG_SEPARATOR.join(case.tags)
    checks = "" if case.checks is None else msgspec.json.encode(case.checks).decode()
    return tuple(_escaped(text) for text in (case.input, case.expected_output, case.description or "", tags, checks))


def _escaped(text: str) -> str:
    """Reversible: a text that begins with an apostrophe gets another one."""
    return f"'{text}" if text.startswith(("'", "\n")) else escape_formula(text)


def _csv_text(rows: Iterable[Sequence[str]]) -> bytes:
    text = StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()

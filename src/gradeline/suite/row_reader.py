"""The rows of a dataset: one stream, whatever the format of its files."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gradeline.errors import DataError, Problem
from gradeline.model import canonical_json, clean_data, quote
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.suite.cases import DatasetError, Row, needs_cleaning, plain_sample
from gradeline.suite.columns import ColumnMap
from gradeline.suite.document import read_document
from gradeline.suite.letta_dialects import CASE_VARIABLES, key_names
from gradeline.suite.parquet import PARQUET, parquet_rows
from gradeline.suite.problems import DocumentError, KeyPath, PositionOf, SourcePosition, SuiteProblem, problem_at
from gradeline.suite.text_files import (
    BOM,
    GZIP,
    MAX_TEXT,
    array_items,
    at_line,
    decode,
    of_file,
    open_file,
    split_lines,
    too_long,
)

FORMATS = (".jsonl", ".csv", ".json", ".yaml", ".yml", PARQUET, ".jsonl.gz", ".csv.gz", ".json.gz")
"""The endings of dataset files."""
_MAX_WARNINGS = 100


class RowReader:
    """The rows of files or of a list, in order, without blank ones."""

    def __init__(
        self,
        source: Sequence[Path] | Sequence[object],
        *,
        columns: ColumnMap | None = None,
        position_of: PositionOf | None = None,
        path: KeyPath = ("dataset",),
        otherwise: str | None = None,
    ) -> None:
        """``otherwise`` is the ending that decides the format of a file with an unknown one."""
        self._hash = sha256()
        self._columns = columns or ColumnMap()
        self._unchecked = False
        self._otherwise = otherwise
        self.warnings: list[Problem] = []
        files = [item for item in source if isinstance(item, Path)]
        if files:
            readers = [(file, self._reader(file)) for file in files]  # a file that is missing is reported now
            rows = (row for file, read in readers for row in self._of_file(read(file)))
        else:
            listed = self._read_list(source, position_of or (lambda _: SourcePosition("")), path)
            rows = self._of_file(listed)
        self._rows = self._numbered(rows)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    @property
    def digest(self) -> str:
        """SHA-256 of the data read so far: the bytes of text files, the values of other sources."""
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the files early."""
        self._rows.close()

    def _numbered(self, rows: Generator[Row, None, None]) -> Generator[Row, None, None]:
        """Rows are numbered through all files."""
        try:
            for number, row in enumerate(rows):
                yield row if row.number == number else replace(row, number=number)
        finally:
            rows.close()

    def _of_file(self, rows: Generator[Row, None, None]) -> Generator[Row, None, None]:
        """The rows with the keys of a case."""
        self._unchecked = bool(self._columns)
        try:
            for row in rows:
                yield self._with_keys(row) if self._columns else row
        finally:
            rows.close()

    def _with_keys(self, row: Row) -> Row:
        if not isinstance(row.data, dict):
            return row
        self._check_columns(row.data, row, "; where only some rows have it, write NAME || null")
        try:
            return replace(row, data=self._columns.apply(row.data))
        except ValueError as error:
            raise DatasetError(row.problem(f"columns: {error}")) from None

    def _check_columns(self, names: Collection[str], row: Row, remedy: str = "") -> None:
        """Refuse columns that the table does not have, by its header or the first row of a file."""
        if self._unchecked:
            self._unchecked = False
            faults = [row.problem(f"{fault}{remedy}") for fault in self._columns.problems(names)]
            if faults:
                raise DatasetError(faults)

    def _reader(self, path: Path) -> Callable[[Path], Generator[Row, None, None]]:
        readers = {
            ".jsonl": self._read_jsonl,
            ".csv": self._read_csv,
            ".json": self._read_json,
            ".yaml": self._read_yaml,
            ".yml": self._read_yaml,
            PARQUET: self._read_parquet,
        }
        ending = path.suffix.lower()
        if ending == GZIP:
            inner = Path(path.stem).suffix.lower()
            ending = inner if f"{inner}{GZIP}" in FORMATS else ""
        reader = readers.get(ending) or readers.get(self._otherwise or "")
        if reader is None:
            raise DatasetError(of_file(path, f"unknown file format; use one of {', '.join(FORMATS)}"))
        if not path.exists():
            raise DatasetError(of_file(path, "no such file"))
        if path.is_dir():
            raise DatasetError(of_file(path, f"is a folder; name a file, or its files with {path.name}/*.jsonl"))
        return reader

    def _read_list(self, rows: Sequence[object], position_of: PositionOf, path: KeyPath) -> Generator[Row, None, None]:
        for index, data in enumerate(rows):
            row = _clean(Row(index, data, (*path, index), position_of))
            self._hash.update(canonical_json(row.data) + b"\n")
            yield row

    def _read_yaml(self, path: Path) -> Generator[Row, None, None]:
        try:
            document = read_document(path, top="list")
        except DocumentError as error:
            raise DatasetError(error.suite_problems) from None
        self._hash.update(path.read_bytes())
        for index, data in enumerate(document.data):
            yield _clean(Row(index, data, (index,), document.position))

    def _read_parquet(self, path: Path) -> Generator[Row, None, None]:
        def choose(names: Sequence[str]) -> Sequence[str]:
            self._check_columns(names, Row(0, None, (), at_line(path, 1)))
            return self._columns.needed(names) if self._columns else names

        for number, data in parquet_rows(path, choose):
            row = _clean(Row(number - 1, data, (), at_line(path, number)))
            self._hash.update(canonical_json(row.data) + b"\n")
            yield replace(row, data={name: value for name, value in data.items() if value is not None})

    def _read_jsonl(self, path: Path) -> Generator[Row, None, None]:
        index = 0
        for number, line in self._raw_lines(path):
            position_of = at_line(path, number)
            sample = None if self._columns else plain_sample(line)
            if sample is not None:
                yield Row(index, None, (), position_of, sample)
                index += 1
                continue
            text = decode(line, position_of(())).strip()
            if text:
                yield _parse_row(text, index, position_of, clean=needs_cleaning(line))
                index += 1

    def _read_csv(self, path: Path) -> Generator[Row, None, None]:
        # the limit of the csv module is for the whole process, and far below the maximum here
        csv.field_size_limit(max(csv.field_size_limit(), MAX_TEXT))
        reader = csv.reader((text for _, text in self._lines(path)), strict=True)
        header: list[str] = []
        index = 0
        while True:
            position_of = at_line(path, reader.line_num + 1)
            try:
                cells = next(reader, None)
            except csv.Error as error:
                raise DatasetError(problem_at(position_of(()), (), f"not CSV: {error}")) from None
            if cells is None:
                return
            if not any(cells):
                continue
            if not header:
                header = _header(cells, position_of(()))
                self._check_columns(header, Row(0, None, (), position_of))
                continue
            yield self._csv_row(header, cells, index, position_of)
            index += 1

    def _csv_row(self, header: list[str], cells: list[str], index: int, position_of: PositionOf) -> Row:
        row = Row(index, None, (), position_of)
        if len(cells) != len(header):
            reason = f"has {len(cells)} cells, but the header has {len(header)}; put a string with commas in quotes"
            raise DatasetError(row.problem(reason))
        # a column without a name is the index that pandas writes
        data = {name: self._cell(row, name, text) for name, text in zip(header, cells, strict=True) if text and name}
        return _clean(replace(row, data=data))

    def _cell(self, row: Row, name: str, text: str) -> object:
        if self._columns.is_searched(name):
            return _json_or_text(text) if text[0] in "[{" else text
        key = self._columns.key_of(name)
        if key in ("metadata", *CASE_VARIABLES):
            value = _json_or_text(text)
            if not isinstance(value, dict):
                raise DatasetError(row.problem(f"must be a JSON object, got {quote(text)}", name))
            return value
        is_list = text.startswith("[") and text.endswith("]")
        if key == "checks":
            return _json_or_text(text)
        if key == "tags":
            return _json_or_text(text) if is_list else [tag.strip() for tag in text.split(",") if tag.strip()]
        if is_list and key in (*key_names("case", "input"), "ground_truth"):
            value = _json_or_text(text)
            if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
                return value
            self._warn(row.problem(f"is not a JSON list of strings, so it is used as a string: {quote(text)}", name))
        return text

    def _read_json(self, path: Path) -> Generator[Row, None, None]:
        with open_file(path) as file:
            for index, (number, raw) in enumerate(array_items(self._hashed(file.chunks()), str(path))):
                position_of = at_line(path, number)
                yield _parse_row(decode(raw, position_of(())), index, position_of)

    def _lines(self, path: Path) -> Iterator[tuple[int, str]]:
        for number, line in self._raw_lines(path):
            yield number, decode(line, SourcePosition(str(path), number))

    def _raw_lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(split_lines(path), 1):
            self._hash.update(line)
            yield number, line.removeprefix(BOM) if number == 1 else line

    def _hashed(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._hash.update(chunk)
            yield chunk

    def _warn(self, problem: SuiteProblem) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(Problem(problem.where, problem.message))
        elif len(self.warnings) == _MAX_WARNINGS:
            self.warnings.append(Problem(problem.file, "more such rows are not listed"))


def _parse_row(text: str, index: int, position_of: PositionOf, *, clean: bool = True) -> Row:
    row = Row(index, None, (), position_of)
    try:
        data = parse_json(text)
    except NotJsonError as error:
        raise DatasetError(row.problem(f"not JSON: {error}, got {quote(text)}")) from None
    row = replace(row, data=data)
    return _clean(row, measure=len(text) > MAX_TEXT) if clean or len(text) > MAX_TEXT else row


def _clean(row: Row, *, measure: bool = True) -> Row:
    try:
        data = clean_data(row.data)
    except DataError as error:
        raise DatasetError(row.problem(str(error))) from None
    if measure and _longest(data) > MAX_TEXT:
        raise DatasetError(row.problem(too_long()))
    return replace(row, data=data)


def _longest(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return max(map(_longest, value.values()), default=0)
    return max(map(_longest, value), default=0) if isinstance(value, list) else 0


def _json_or_text(text: str) -> Any:
    try:
        return parse_json(text)
    except NotJsonError:
        return text


def _header(cells: list[str], position: SourcePosition) -> list[str]:
    names = [cell.strip() for cell in cells]
    duplicate = next((name for index, name in enumerate(names) if name and name in names[:index]), None)
    if duplicate is not None:
        raise DatasetError(problem_at(position, (), f"two columns are named {duplicate!r}; rename one"))
    if len(names) == 1 and re.search(r"[;\t]", names[0]):
        raise DatasetError(
            problem_at(position, (), f"the only column is {quote(names[0])}; separate columns with commas")
        )
    return names

"""Datasets: samples read row by row, in constant memory even where the file is larger than memory."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO

from msgspec.structs import replace

from gradeline.errors import DataError, Problem
from gradeline.model import Sample, canonical_json, clean_data, quote
from gradeline.parsing.json_text import NotJsonError, parse_json
from gradeline.suite.cases import CaseKeySet, CaseRubrics, DatasetError, Row, plain_sample, read_sample
from gradeline.suite.clusters import ClusterPath
from gradeline.suite.document import read_document
from gradeline.suite.letta_dialects import CASE_VARIABLES, key_names
from gradeline.suite.problems import DocumentError, KeyPath, PositionOf, SourcePosition, SuiteProblem, problem_at

_MAX_TEXT = 10_000_000
_MAX_ROW = 6 * _MAX_TEXT + 1_000_000
"""JSON can write a character in six bytes."""
_MAX_WARNINGS = 100
_CHUNK = 1 << 16
_BOM = b"\xef\xbb\xbf"


class Dataset(Iterator[Sample]):
    """An iterator over the samples of a dataset.

    ``warnings`` grows during the iteration. ``digest`` is set after the last sample: SHA-256 of the bytes read, which
    with a limit are not the whole file.
    """

    def __init__(
        self,
        rows: RowReader,
        tags: Collection[str],
        limit: int,
        folder: Path | None = None,
        cluster: ClusterPath | None = None,
    ) -> None:
        self._rows = rows
        self._cluster = cluster
        self._rubrics = None if folder is None else CaseRubrics(folder)
        self._samples = self._read(frozenset(tags), limit)
        self.digest: str | None = None

    @property
    def warnings(self) -> list[Problem]:
        return self._rows.warnings

    def __iter__(self) -> Iterator[Sample]:
        return self._samples

    def __next__(self) -> Sample:
        return next(self._samples)

    def _read(self, tags: frozenset[str], limit: int) -> Iterator[Sample]:
        seen = CaseKeySet()
        count = 0
        for row in self._rows:
            plain = row.sample
            sample = plain if plain is not None and seen.add(plain.case_key) else read_sample(row, seen)
            if not tags or tags.issubset(sample.tags):
                if sample.rubric_path and self._rubrics is not None:
                    sample = self._rubrics.with_rubric(row, sample)
                yield sample if self._cluster is None else self._with_cluster(row, sample, self._cluster)
                count += 1
                if count == limit:
                    break
        self._rows.close()
        self.digest = self._rows.digest

    def _with_cluster(self, row: Row, sample: Sample, path: ClusterPath) -> Sample:
        try:
            return path.with_cluster(sample)
        except ValueError as error:
            raise DatasetError(row.problem(f"case {quote(sample.case_key)}: {error}")) from None


def open_dataset(
    source: Path | Sequence[object],
    *,
    tags: Collection[str] = (),
    limit: int = 0,
    position_of: PositionOf | None = None,
    path: KeyPath = ("dataset",),
    folder: Path | None = None,
    cluster: ClusterPath | None = None,
) -> Dataset:
    """Open a file, whose format is that of its ending, or a list of cases in the suite file.

    Yields only samples with all ``tags``, and at most ``limit`` (0: no limit). ``path`` and ``position_of`` give the
    positions of a list. With ``folder``, the folder of the suite, files named by ``rubric_path`` are read into the
    cases' rubrics. ``cluster`` is the field of a case that names its cluster. Raises `DatasetError` here for a source
    that cannot be opened, and during the iteration for a faulty row.
    """
    return Dataset(RowReader(source, position_of=position_of, path=path), tags, limit, folder, cluster)


class RowReader:
    """The rows of a file or list, in order, without blank ones."""

    def __init__(
        self,
        source: Path | Sequence[object],
        *,
        position_of: PositionOf | None = None,
        path: KeyPath = ("dataset",),
        otherwise: str | None = None,
    ) -> None:
        """``otherwise`` is the ending that decides the format of a file with an unknown one."""
        self._hash = sha256()
        self._whole: str | None = None
        self.warnings: list[Problem] = []
        self._rows: Generator[Row, None, None]
        if isinstance(source, Path):
            self._rows = self._reader(source, otherwise)(source)
        else:
            self._rows = self._read_list(source, position_of or (lambda _: SourcePosition("")), path)

    def __iter__(self) -> Iterator[Row]:
        return self._rows

    @property
    def digest(self) -> str:
        """SHA-256 of the bytes read so far."""
        return self._whole or self._hash.hexdigest()

    def close(self) -> None:
        """Close the file before its end."""
        self._rows.close()

    def _reader(self, path: Path, otherwise: str | None) -> Callable[[Path], Generator[Row, None, None]]:
        readers = {
            ".jsonl": self._read_jsonl,
            ".csv": self._read_csv,
            ".json": self._read_json,
            ".yaml": self._read_yaml,
            ".yml": self._read_yaml,
        }
        ending = path.suffix.lower()
        if ending == ".parquet":
            reason = "Parquet datasets are not supported, not even with gradeline[export]; convert the file to .jsonl"
            raise DatasetError(_of_file(path, reason))
        reader = readers.get(ending) or readers.get(otherwise or "")
        if reader is None:
            raise DatasetError(_of_file(path, f"unknown file format; use one of {', '.join(readers)}"))
        if not path.exists():
            raise DatasetError(_of_file(path, "no such file"))
        if path.is_dir():
            raise DatasetError(_of_file(path, "is a folder; name a file"))
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
        self._whole = document.digest
        for index, data in enumerate(document.data):
            yield _clean(Row(index, data, (index,), document.position))

    def _read_jsonl(self, path: Path) -> Generator[Row, None, None]:
        index = 0
        for number, line in self._raw_lines(path):
            position_of = _at(path, number)
            sample = plain_sample(line)
            if sample is not None:
                yield Row(index, None, (), position_of, sample)
                index += 1
                continue
            text = _decode(line, position_of(())).strip()
            if text:
                yield _parse_row(text, index, position_of)
                index += 1

    def _read_csv(self, path: Path) -> Generator[Row, None, None]:
        # the limit of the csv module is for the whole process, and far below the maximum here
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_TEXT))
        reader = csv.reader((text for _, text in self._lines(path)), strict=True)
        header: list[str] = []
        index = 0
        while True:
            position_of = _at(path, reader.line_num + 1)
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
        if name in ("metadata", *CASE_VARIABLES):
            value = _json_or_text(text)
            if not isinstance(value, dict):
                raise DatasetError(row.problem(f"must be a JSON object, got {quote(text)}", name))
            return value
        is_list = text.startswith("[") and text.endswith("]")
        if name == "tags":
            return _json_or_text(text) if is_list else [tag.strip() for tag in text.split(",") if tag.strip()]
        if is_list and name in (*key_names("case", "input"), "ground_truth"):
            value = _json_or_text(text)
            if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
                return value
            self._warn(row.problem(f"is not a JSON list of strings, so it is used as a string: {quote(text)}", name))
        return text

    def _read_json(self, path: Path) -> Generator[Row, None, None]:
        with _open(path) as file:
            for index, (number, raw) in enumerate(_array_items(self._chunks(file), str(path))):
                position_of = _at(path, number)
                yield _parse_row(_decode(raw, position_of(())), index, position_of)

    def _lines(self, path: Path) -> Iterator[tuple[int, str]]:
        for number, line in self._raw_lines(path):
            yield number, _decode(line, SourcePosition(str(path), number))

    def _raw_lines(self, path: Path) -> Iterator[tuple[int, bytes]]:
        for number, line in enumerate(_split(path), 1):
            self._hash.update(line)
            yield number, line.removeprefix(_BOM) if number == 1 else line

    def _chunks(self, file: BinaryIO) -> Iterator[bytes]:
        while chunk := file.read(_CHUNK):
            self._hash.update(chunk)
            yield chunk

    def _warn(self, problem: SuiteProblem) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(Problem(problem.where, problem.message))
        elif len(self.warnings) == _MAX_WARNINGS:
            self.warnings.append(Problem(problem.file, "more such rows are not is_list"))


def _split(path: Path) -> Iterator[bytes]:
    """The lines of a file. A file that changes meanwhile is refused: its lines may be mixed from two versions."""
    with _open(path) as file:
        before = _version(file)
        number, begun, size = 1, list[bytes](), 0
        while chunk := file.read(_CHUNK):
            if _version(file) != before:
                raise DatasetError(_of_file(path, "changed while it was being read"))
            first, *others = chunk.split(b"\n")
            begun.append(first)
            size += len(first)
            if size > _MAX_ROW:
                raise DatasetError(problem_at(SourcePosition(str(path), number), (), _too_long()))
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


def _of_file(path: Path, message: str) -> SuiteProblem:
    return problem_at(SourcePosition(str(path)), (), message)


def _at(path: Path, line: int) -> PositionOf:
    return lambda _: SourcePosition(str(path), line)


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise DatasetError(_of_file(path, f"cannot be read: {error.strerror}")) from None


def _decode(raw: bytes, position: SourcePosition) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8: byte 0x{raw[error.start]:02x}; save the file as UTF-8"
        raise DatasetError(problem_at(position, (), reason)) from None


def _too_long() -> str:
    return f"contains a string of more than {_MAX_TEXT:,} characters; leave it out, or split it into turns"


def _parse_row(text: str, index: int, position_of: PositionOf) -> Row:
    row = Row(index, None, (), position_of)
    try:
        data = parse_json(text)
    except NotJsonError as error:
        raise DatasetError(row.problem(f"not JSON: {error}, got {quote(text)}")) from None
    return _clean(replace(row, data=data), measure=len(text) > _MAX_TEXT)


def _clean(row: Row, *, measure: bool = True) -> Row:
    try:
        data = clean_data(row.data)
    except DataError as error:
        raise DatasetError(row.problem(str(error))) from None
    if measure and _longest(data) > _MAX_TEXT:
        raise DatasetError(row.problem(_too_long()))
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


_OUTSIDE = re.compile(rb'["\[\]{},]')
_IN_TEXT = re.compile(rb'["\\]')


def _array_items(chunks: Iterator[bytes], file: str) -> Iterator[tuple[int, bytes]]:
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

    while not buffer.removeprefix(_BOM).strip():
        if not refill():
            raise error("is empty", 0)
    start = len(buffer) - len(buffer.removeprefix(_BOM).lstrip())
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
                raise error(_too_long(), line)
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


def read_cases(path: Path) -> Iterator[tuple[Sample, str]]:
    """Graded cases: samples and their submissions, read lazily.

    A row is that of a dataset with a ``submission``, the only required key. A file with an unknown ending is read as
    JSONL. `ConfigError` has file and line.
    """
    seen = CaseKeySet()
    for row in RowReader(path, otherwise=".jsonl"):
        yield _read_case(row, seen)


def _read_case(row: Row, seen: CaseKeySet) -> tuple[Sample, str]:
    if not isinstance(row.data, dict):
        raise DatasetError(row.problem(f'expected {{"input": …, "submission": …}}, got {quote(row.data)}'))
    rest = dict(row.data)
    submission = rest.pop("submission", None)
    faults = []
    if not isinstance(submission, str):
        faults.append(row.problem(f"must be the text to grade, got {quote(submission)}", "submission"))
    try:
        sample = read_sample(replace(row, data=rest), seen, needs_input=False)
    except DatasetError as error:
        raise DatasetError([*faults, *error.suite_problems]) from None
    if faults:
        raise DatasetError(faults)
    return sample, str(submission)

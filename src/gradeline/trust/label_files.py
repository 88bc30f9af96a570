"""Labels as files: CSV for spreadsheets, and JSON lines.

A file that was exported can be imported again and changes nothing. An import stores all labels of a file or none.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model import ResponseKey, Run, Storage
from gradeline.model.label import LabelRow
from gradeline.model.sample import join_turns
from gradeline.model.text import escape_formula, quote
from gradeline.store.database import SharedStorage
from gradeline.store.labels import (
    has_label_tables,
    history_of_run,
    labels_of_run_and_parents,
)
from gradeline.store.sql_storage import response_chain
from gradeline.trust.label_samples import LabelSample
from gradeline.trust.label_view import answer_text

LABEL_COLUMNS = (
    "case",
    "repeat",
    "question",
    "verdict",
    "score",
    "category",
    "comment",
    "rater",
    "role",
    "probability",
    "sample",
    "at",
    "response_digest",
)
"""The columns of a file of labels. Required are ``case`` and one of ``verdict``, ``score`` and ``category``."""
CONTEXT_COLUMNS = ("input", "expected", "answer")
"""Further columns of a template; an import ignores them."""
VALUE_COLUMNS = ("verdict", "score", "category")
_TEMPLATE = (
    "case",
    "repeat",
    *CONTEXT_COLUMNS,
    "question",
    *VALUE_COLUMNS,
    "comment",
    "rater",
    "probability",
    "sample",
)
_HISTORY = "withdrawn"
_MAX_BYTES = 200_000_000

Cells: TypeAlias = Mapping[str, object]
"""The values of a row by column; None and the empty string are unknown."""


class LabelFileRow(NamedTuple):
    """A row of a file that can be read."""

    line: int
    cells: Cells


def export_labels(storage: Storage, run: Run, file: IO[str], kind: str = "csv", *, history: bool = False) -> int:
    """Write the current labels of all raters, and of the runs that this one regrades; returns their number.

    ``kind`` is ``csv`` or ``jsonl``. With ``history`` all changes are written, in the order in which they were made.
    Open a CSV file with ``newline=""``.
    """
    columns = (*LABEL_COLUMNS, _HISTORY) if history else LABEL_COLUMNS
    rows = list(_history_cells(storage, run) if history else _label_cells(storage, run))
    _write(file, kind, columns, rows)
    return len(rows)


def write_template(storage: Storage, run: Run, sample: LabelSample, file: IO[str], kind: str = "csv") -> int:
    """Write the results of a sample with empty labels, to fill in and import; returns their number."""
    rows = []
    for draw in sample.draws:
        record = storage.get_record(ResponseKey(run.id, draw.case, draw.repeat))
        if record is not None:
            expected = record.sample.ground_truth
            shown = {
                "input": join_turns(record.sample.input),
                "expected": None if expected is None else join_turns(expected),
                "answer": answer_text(record),
            }
            rows.append({**shown, **{name: getattr(draw, name, None) for name in _TEMPLATE if name not in shown}})
    _write(file, kind, _TEMPLATE, rows)
    return len(rows)


def _label_cells(storage: Storage, run: Run) -> Iterator[Cells]:
    return map(_cells, labels_of_run_and_parents(storage, run))


def _history_cells(storage: Storage, run: Run) -> Iterator[Cells]:
    if isinstance(storage, SharedStorage) and has_label_tables(storage.database.read):
        read = storage.database.read
        changes = (change for one in response_chain(read, run.id) for change in history_of_run(read, one))
        for row, withdrawn in sorted(changes, key=lambda change: change[0].n):
            yield {**_cells(row), _HISTORY: withdrawn}


def _cells(row: LabelRow) -> Cells:
    return {name: getattr(row, name) for name in LABEL_COLUMNS}


def _write(file: IO[str], kind: str, columns: Sequence[str], rows: Iterable[Cells]) -> None:
    if kind == "jsonl":
        for row in rows:
            file.write(json.dumps({name: row[name] for name in columns}, ensure_ascii=False) + "\n")
        return
    table = csv.writer(file, lineterminator="\r\n")
    table.writerow(columns)
    table.writerows([_escaped(row[name]) for name in columns] for row in rows)


def _escaped(value: object) -> str:
    """A cell that no spreadsheet runs as a formula. Reversible: an apostrophe at the beginning gets another one."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    text = str(value)
    return f"'{text}" if text.startswith("'") else escape_formula(text)


def _unescaped(cell: str) -> str:
    return cell[1:] if cell.startswith("'") and _escaped(cell[1:]) == cell else cell


def rows_of(path: Path) -> Iterator[LabelFileRow | tuple[int, str]]:
    """The rows of a file with their lines; for one that cannot be read, its line and the problem."""
    size = path.stat().st_size
    if size > _MAX_BYTES:
        raise ConfigError(Problem(str(path), f"the file has {size:,} bytes; split it, {_MAX_BYTES:,} are the maximum"))
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            Problem(str(path), f"not valid UTF-8 at byte {error.start + 1:,}; save the file as UTF-8")
        ) from None
    if path.suffix.casefold() in (".jsonl", ".ndjson"):
        return _json_rows(text)
    if path.suffix.casefold() == ".csv":
        return _csv_rows(text)
    raise ConfigError(Problem(str(path), f"unknown kind of file {quote(path.suffix)}: use .csv or .jsonl"))


def _json_rows(text: str) -> Iterator[LabelFileRow | tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield number, f"not valid JSON: {error}"
            continue
        if not isinstance(value, dict):
            yield number, f"expected a JSON object, got {quote(value, 60)}"
            continue
        problems = list(_column_problems(list(value)))
        yield from ((number, problem) for problem in problems)
        if not problems:
            yield LabelFileRow(number, value)


def _csv_rows(text: str) -> Iterator[LabelFileRow | tuple[int, str]]:
    first = text.partition("\n")[0]
    delimiter = max(",;\t", key=first.count)  # a spreadsheet may use another one than the comma
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # a template has whole answers
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        names = [name.strip() for name in next(reader, [])]
        problems = list(_column_problems(names))
        if problems:
            yield from ((1, problem) for problem in problems)
            return
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) > len(names):
                yield line, f"has {len(cells)} cells, the first line has {len(names)}"
            elif any(cells):
                yield LabelFileRow(line, {name: _unescaped(cell) for name, cell in zip(names, cells, strict=False)})
            line = reader.line_num + 1
    except csv.Error as error:
        yield line, f"not valid CSV: {error}"


def _column_problems(names: Sequence[str]) -> Iterator[str]:
    known = (*LABEL_COLUMNS, *CONTEXT_COLUMNS)
    for name in dict.fromkeys(names):
        if name == _HISTORY:
            yield "the file has the history of labels; import one that was exported without --history"
        elif name not in known:
            close = closest_match(name, known)
            hint = f"did you mean {close}?" if close else f"use {', '.join(LABEL_COLUMNS)}"
            yield f"unknown column {quote(name, 60)}; {hint}"
        elif names.count(name) > 1:
            yield f"the column {name} occurs twice; keep one"
    if "case" not in names:
        yield "the column case is missing"
    if not any(name in names for name in VALUE_COLUMNS):
        yield f"no column with labels: write {', '.join(VALUE_COLUMNS[:-1])} or {VALUE_COLUMNS[-1]}"

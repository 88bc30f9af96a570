"""Cases: rows of a dataset as samples, with all faults of a row reported at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from gradeline.errors import ConfigError, Problem
from gradeline.model import Sample, clean_text, quote, read_struct
from gradeline.model.text import scalar_text
from gradeline.suite.case_ids import CaseIds
from gradeline.suite.clusters import cluster_name
from gradeline.suite.declaration import CaseEntry, keys_of
from gradeline.suite.letta_dialects import CASE_VARIABLES, case_spelling, case_variables, key_names
from gradeline.suite.problems import KeyPath, PositionOf, SourceError, SuiteProblem, path_steps, problem_at

_SPELLINGS = frozenset((*key_names("case", "input"), *key_names("case", "id")))
_NOT_METADATA = frozenset(keys_of(CaseEntry)) - _SPELLINGS


class DatasetError(SourceError):
    """A dataset that cannot be read: file, line and reason."""


class Row(msgspec.Struct, frozen=True):
    """One row as parsed, before it is a sample."""

    number: int
    """From zero, through all files."""
    data: object
    path: KeyPath
    position_of: PositionOf
    sample: Sample | None = None
    """Set where the row is so plain that it was decoded as one."""

    def problem(self, message: str, *key: str | int) -> SuiteProblem:
        """A problem of this row, or of the value at a key."""
        path = (*self.path, *key)
        return problem_at(self.position_of(path), path, message)


def read_sample(row: Row, ids: CaseIds, *, needs_input: bool = True) -> Sample:
    """The row's sample, or `DatasetError` with all faults of the row; ``ids`` has those so far."""
    if row.sample is not None:
        return _new(row, row.sample, ids, named=True)
    data = row.data
    if not isinstance(data, dict):
        raise DatasetError(row.problem(f'expected {{"input": …, "ground_truth": …}}, got {quote(data)}'))
    names = {"input": case_spelling(data, "input"), "id": case_spelling(data, "id")}
    metadata = dict(data["metadata"]) if isinstance(data.get("metadata"), dict) else {}
    variables = {key: case_variables(data, metadata, key) for key in CASE_VARIABLES}
    values = {key: data[key] for key in data if key in _NOT_METADATA}
    values |= {key: data.get(name) for key, name in names.items()} | variables
    entry, faults = _check(values, needs_input)
    if entry is None or faults:
        raise DatasetError(_placed(row, data, names, fault) for fault in faults)
    # the other name of the input or the id is metadata, unless it is null
    metadata |= {
        key: value
        for key, value in data.items()
        if key not in _NOT_METADATA and key not in names.values() and not (value is None and key in _SPELLINGS)
    }
    return _new(
        row,
        Sample(
            id=row.number if entry.id is None else entry.id,
            # as written: in the entry, a number may have become a float
            input="" if (given := values["input"]) is None else _text(given),
            ground_truth=None if (truth := values.get("ground_truth")) is None else _text(truth),
            metadata=metadata,
            tags=tuple(entry.tags or ()),
            rubric=entry.rubric or None,
            rubric_path=entry.rubric_path or None,
            cluster=cluster_name(values.get("cluster")),
            checks=entry.checks or UNSET,
            **variables,
        ),
        ids,
        named=entry.id is not None,
    )


def _new(row: Row, sample: Sample, ids: CaseIds, *, named: bool) -> Sample:
    if named:
        if not ids.add(sample.case_key):
            raise DatasetError(row.problem(f"another case above has the id {sample.id!r}"))
        return sample
    numbered = ids.name(sample)
    if numbered is None:
        reason = f"another case above has the id {sample.id!r} (a row without an id is named by its number, from 0)"
        raise DatasetError(row.problem(reason))
    return numbered


class _PlainRow(msgspec.Struct, forbid_unknown_fields=True):
    """The most common form of a row: strings, and checks."""

    id: int | str
    input: str
    ground_truth: str | None = None
    tags: tuple[str, ...] = ()
    cluster: str | None = None
    checks: list[Any] | msgspec.UnsetType = UNSET


_decode_plain = msgspec.json.Decoder(_PlainRow).decode
_PLAIN_BYTES = 100_000
_MOST_BRACKETS = 100
"""More of them may be nested too deeply."""
_LONG_NUMBER = re.compile(rb"\d{1000}")


def needs_cleaning(line: bytes) -> bool:
    """Whether JSON may contain what cannot be stored: NUL, deep nesting, integers of thousands of digits."""
    if b"\\u0000" in line or b"\0" in line:
        return True
    if len(line) <= _MOST_BRACKETS:  # too short for the rest
        return False
    if line.count(b"[") + line.count(b"{") > _MOST_BRACKETS:
        return True
    return len(line) > 1_000 and _LONG_NUMBER.search(line) is not None


def plain_sample(line: bytes) -> Sample | None:
    """The sample of a line of JSON in the most common form; None for other forms, which `read_sample` reads."""
    if len(line) > _PLAIN_BYTES or needs_cleaning(line):
        return None
    try:
        row = _decode_plain(line)
    except (ValueError, RecursionError):
        return None
    if not row.input or row.id == "" or (row.checks is not UNSET and not _valid_checks(row.checks)):
        return None
    return Sample(row.id, row.input, row.ground_truth, tags=row.tags, cluster=row.cluster or None, checks=row.checks)


def _valid_checks(checks: Sequence[Any]) -> bool:
    from gradeline.graders.checks import checks_of_case  # loads all rules, and few datasets have checks

    return bool(checks) and not checks_of_case(checks)[1]


def _check(values: dict[str, Any], needs_input: bool) -> tuple[CaseEntry | None, list[Problem]]:
    """The case, and all its faults."""
    faults = []
    given = values["input"]
    if given is None:
        if needs_input:
            faults.append(Problem("input", "is required: the message to the agent"))
    elif given in ("", []) or (isinstance(given, list) and "" in given):
        if needs_input:
            faults.append(Problem("input", f"must not be empty, got {quote(given)}"))
        values = {**values, "input": None}
    try:
        entry = msgspec.convert(values, CaseEntry)
    except msgspec.ValidationError:
        return None, [*faults, *read_struct(CaseEntry, values, "").problems]
    return entry, [*faults, *entry.faults()]


def _placed(row: Row, data: dict[str, Any], names: dict[str, str], fault: Problem) -> SuiteProblem:
    key, *inner = path_steps(fault.path)
    if key in CASE_VARIABLES and data.get(str(key)) is None:
        return row.problem(fault.message, "metadata", key)
    place = inner if key == "checks" else ()
    return row.problem(fault.message, names.get(str(key), key), *place)


def _text(value: Any) -> str | list[str]:
    return [scalar_text(item) for item in value] if isinstance(value, list) else scalar_text(value)


_KEPT = 16
"""Files in the cache: cases mostly share a few, and each may be large."""


class CaseRubrics:
    """Reads the rubric files of cases, which must be in the suite's folder: their text is sent to the judge."""

    def __init__(self, folder: Path) -> None:
        self._home = folder.resolve()
        self._text = lru_cache(_KEPT)(self._read)

    def with_rubric(self, row: Row, sample: Sample) -> Sample:
        """The sample with the text of its rubric file; `DatasetError` where that cannot be read."""
        if not sample.rubric_path:
            return sample
        try:
            return replace(sample, rubric=self._text(sample.rubric_path))
        except ConfigError as error:
            raise DatasetError([row.problem(problem.message, "rubric_path") for problem in error.problems]) from None

    def _read(self, path: str) -> str:
        from gradeline.judges.options import file_text  # few datasets name rubrics, and judges are slow to import

        if not (self._home / path).resolve().is_relative_to(self._home):
            reason = f"{quote(path)} is outside the suite's folder; move the file into it"
            raise ConfigError(Problem("rubric_path", reason))
        return clean_text(file_text(self._home, path, "rubric_path")).text

"""Cases: rows of a dataset as samples, with all faults of a row reported at once."""

from __future__ import annotations

from array import array
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gradeline.errors import ConfigError, Problem
from gradeline.model import Sample, clean_text, quote, read_struct
from gradeline.model.text import scalar_text
from gradeline.suite.clusters import cluster_name
from gradeline.suite.declaration import CaseEntry, keys_of
from gradeline.suite.letta_dialects import CASE_VARIABLES, case_spelling, case_variables, key_names
from gradeline.suite.problems import KeyPath, PositionOf, SourceError, SuiteProblem, problem_at

_SPELLINGS = frozenset((*key_names("case", "input"), *key_names("case", "id")))
_NOT_METADATA = frozenset(keys_of(CaseEntry)) - _SPELLINGS


class DatasetError(SourceError):
    """A dataset that cannot be read: file, line and reason."""


class Row(msgspec.Struct, frozen=True):
    """One row as parsed, before it is a sample."""

    number: int
    """From zero; the id of a row without one."""
    data: object
    path: KeyPath
    position_of: PositionOf
    sample: Sample | None = None
    """Set where the row is so plain that it was decoded as one."""

    def problem(self, message: str, *key: str) -> SuiteProblem:
        """A problem of this row, or of one of its keys."""
        path = (*self.path, *key)
        return problem_at(self.position_of(path), path, message)


def read_sample(row: Row, seen: CaseKeySet, *, needs_input: bool = True) -> Sample:
    """The row's sample, or `DatasetError` with all faults of the row; ``seen`` has the ids so far."""
    if row.sample is not None:
        return _new(row, row.sample, seen, named=True)
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
            **variables,
        ),
        seen,
        named=entry.id is not None,
    )


def _new(row: Row, sample: Sample, seen: CaseKeySet, *, named: bool) -> Sample:
    if not seen.add(sample.case_key):
        hint = "" if named else " (a row without an id is named by its number, from 0)"
        raise DatasetError(row.problem(f"another case above has the id {sample.id!r}{hint}"))
    return sample


class _PlainRow(msgspec.Struct, forbid_unknown_fields=True):
    """The most common form of a row: strings only."""

    id: int | str
    input: str
    ground_truth: str | None = None
    tags: tuple[str, ...] = ()
    cluster: str | None = None


_decode_plain = msgspec.json.Decoder(_PlainRow).decode
_PLAIN_BYTES = 100_000


def plain_sample(line: bytes) -> Sample | None:
    """The sample of a line of JSON in the most common form; None for other forms, which `read_sample` reads."""
    if len(line) > _PLAIN_BYTES or b"\\u0000" in line or b"\0" in line:
        return None
    try:
        row = _decode_plain(line)
    except (ValueError, RecursionError):
        return None
    if not row.input or row.id == "":
        return None
    return Sample(row.id, row.input, row.ground_truth, tags=row.tags, cluster=row.cluster or None)


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
    key = fault.path.lstrip(".").partition("[")[0]
    if key in CASE_VARIABLES and data.get(key) is None:
        return row.problem(fault.message, "metadata", key)
    return row.problem(fault.message, names.get(key, key))


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


_FIRST_SLOTS = 1 << 10
_ROTATE = 40
_DIGITS = "0123456789"
_LONGEST = 18


class CaseKeySet:
    """A set of case keys in eight bytes each: their hashes, in a hash table with open addressing.

    A dataset may be larger than memory, and so may its ids. Two keys with the same 64-bit hash would count as one;
    among ten million ids the probability is one in three hundred thousand. Ids that count up from the first one, as
    most do (``7``, ``case-7``), need no memory.
    """

    def __init__(self) -> None:
        self._prefix: str | None = None
        self._first = self._next = 0
        self._slots = _free(_FIRST_SLOTS)
        self._used = 0

    def add(self, key: str) -> bool:
        """Add the key; false if it was in the set before."""
        if self._prefix is None:
            self._prefix, self._first = _counter(key) or ("", 0)
            self._next = self._first
        if key == f"{self._prefix}{self._next}":
            if self._used and self._find(_hash(key)) is None:
                return False
            self._next += 1
            return True
        if self._was_counted(key):
            return False
        if 3 * self._used >= 2 * len(self._slots):
            self._grow()
        value = _hash(key)
        slot = self._find(value)
        if slot is None:
            return False
        self._slots[slot] = value
        self._used += 1
        return True

    def _was_counted(self, key: str) -> bool:
        counter = _counter(key)
        return counter is not None and counter[0] == self._prefix and self._first <= counter[1] < self._next

    def _find(self, value: int) -> int | None:
        """The free slot for a hash; None if it is in the table."""
        slots, mask = self._slots, len(self._slots) - 1
        slot = (value ^ (value >> _ROTATE)) & mask
        while slots[slot]:
            if slots[slot] == value:
                return None
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        before = self._slots
        self._slots = _free(2 * len(before))
        for value in before:
            if value:
                slot = self._find(value)
                if slot is not None:
                    self._slots[slot] = value


def _counter(key: str) -> tuple[str, int] | None:
    """Prefix and number of a key that ends in a number; None for other keys and numbers with leading zeros."""
    prefix = key.rstrip(_DIGITS)
    number = key[len(prefix) :]
    # a limited number of digits, because int() of many is slow
    if not number or len(number) > _LONGEST or (number[0] == "0" and number != "0"):
        return None
    return prefix, int(number)


def _free(slots: int) -> array[int]:
    return array("Q", (0,)) * slots


def _hash(key: str) -> int:
    """Never zero, which marks a free slot."""
    return (hash(key) & 0xFFFF_FFFF_FFFF_FFFF) or 1

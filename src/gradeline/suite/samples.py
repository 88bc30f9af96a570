"""A row of a dataset as a sample, with all its faults reported at once."""

from __future__ import annotations

from typing import Any

import msgspec

from gradeline.errors import Problem
from gradeline.model import Sample, quote, read_struct
from gradeline.model.text import scalar_text
from gradeline.suite.case_keys import CaseKeys
from gradeline.suite.clusters import cluster_name
from gradeline.suite.declaration import CaseEntry, keys_of
from gradeline.suite.letta_dialects import CASE_VARIABLES, case_spelling, case_variables, spellings
from gradeline.suite.places import KeyPath, PlacedError, PlaceOf, SuiteProblem, problem_at

_SPELLINGS = frozenset((*spellings("case", "input"), *spellings("case", "id")))
_NOT_METADATA = frozenset(keys_of(CaseEntry)) - _SPELLINGS


class DatasetError(PlacedError):
    """A dataset that cannot be read: file, line and reason."""


class Row(msgspec.Struct, frozen=True):
    """One row as parsed, before it is a sample."""

    number: int
    """From zero; the id of a row without one."""
    data: object
    path: KeyPath
    place_of: PlaceOf
    sample: Sample | None = None
    """Set where the row is so plain that it was decoded as one."""

    def problem(self, message: str, *key: str) -> SuiteProblem:
        """A problem of this row, or of one of its keys."""
        path = (*self.path, *key)
        return problem_at(self.place_of(path), path, message)


def read_sample(row: Row, seen: CaseKeys, *, needs_input: bool = True) -> Sample:
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


def _new(row: Row, sample: Sample, seen: CaseKeys, *, named: bool) -> Sample:
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

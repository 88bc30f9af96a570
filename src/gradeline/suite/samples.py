"""A row of a dataset as a sample, with all that is wrong in it told at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from gradeline.model import Sample, quote
from gradeline.model.text import scalar_text
from gradeline.suite.case_keys import CaseKeys
from gradeline.suite.clusters import cluster_name
from gradeline.suite.places import KeyPath, PlacedError, PlaceOf, SuiteProblem, problem_at

VARIABLES = ("agent_args", "rubric_vars", "extra_vars")
_NAMED = frozenset({"input", "prompt", "id", "sample_id"})
_USED = frozenset({"ground_truth", "metadata", "tags", "rubric", "rubric_path", "cluster", *VARIABLES})


class DatasetError(PlacedError):
    """A dataset that cannot be read: file, line and reason."""


class Row(msgspec.Struct, frozen=True):
    """One row as it was read, before it is a sample."""

    number: int
    """Counted from zero; it names a row without an id."""
    data: object
    path: KeyPath
    place_of: PlaceOf
    sample: Sample | None = None
    """Where the row was plain enough to be one at once."""

    def problem(self, message: str, *key: str) -> SuiteProblem:
        """A problem of this row, or of one key of it."""
        path = (*self.path, *key)
        return problem_at(self.place_of(path), path, message)


def read_sample(row: Row, seen: CaseKeys, *, needs_input: bool = True) -> Sample:
    """The row's sample, or `DatasetError` with all that is wrong in the row; ``seen`` holds the ids so far."""
    if row.sample is not None:
        return _new(row, row.sample, seen, named=True)
    data = row.data
    if not isinstance(data, dict):
        raise DatasetError(row.problem(f'expected {{"input": …, "ground_truth": …}}, got {quote(data)}'))
    keys = _Keys(_first(data, "input", "prompt"), _first(data, "sample_id", "id"))
    faults = list(_faults(row, data, keys, needs_input))
    if faults:
        raise DatasetError(faults)
    metadata = dict(data.get("metadata") or {})
    variables = {name: _variables(data, metadata, name) for name in VARIABLES}
    # A second name of the input or the id is data like any other; an empty one says nothing.
    metadata |= {
        key: value
        for key, value in data.items()
        if key not in _USED and key not in keys and not (value is None and key in _NAMED)
    }
    given = data.get(keys.id)
    sample = Sample(
        id=row.number if given is None else given,
        input=_text(data[keys.input]) if data.get(keys.input) is not None else "",
        ground_truth=_text(data["ground_truth"]) if data.get("ground_truth") is not None else None,
        metadata=metadata,
        tags=tuple(data.get("tags") or ()),
        rubric=data.get("rubric") or None,
        rubric_path=data.get("rubric_path") or None,
        cluster=cluster_name(data.get("cluster")),
        **variables,
    )
    return _new(row, sample, seen, named=given is not None)


def _new(row: Row, sample: Sample, seen: CaseKeys, *, named: bool) -> Sample:
    if not seen.add(sample.case_key):
        hint = "" if named else " (a row without an id is named by its number, from 0)"
        raise DatasetError(row.problem(f"a case with the id {sample.id!r} stands above already{hint}"))
    return sample


class _PlainRow(msgspec.Struct, forbid_unknown_fields=True):
    """A row as most are: texts, and nothing that has to be looked at closely."""

    id: int | str
    input: str
    ground_truth: str | None = None
    tags: tuple[str, ...] = ()
    cluster: str | None = None


_decode_plain = msgspec.json.Decoder(_PlainRow).decode
_PLAIN_BYTES = 100_000


def plain_sample(line: bytes) -> Sample | None:
    """The sample of a line of JSON that is plain; None where the whole reading has to look at it."""
    if len(line) > _PLAIN_BYTES or b"\\u0000" in line or b"\0" in line:
        return None
    try:
        row = _decode_plain(line)
    except (ValueError, RecursionError):
        return None
    if not row.input or row.id == "":
        return None
    return Sample(row.id, row.input, row.ground_truth, tags=row.tags, cluster=row.cluster or None)


class _Keys(NamedTuple):
    """Which of two names a row uses."""

    input: str
    id: str


def _first(data: dict[str, Any], name: str, other: str) -> str:
    return other if data.get(name) is None and data.get(other) is not None else name


def _variables(data: dict[str, Any], metadata: dict[str, Any], name: str) -> Any:
    """Letta also takes them from inside the metadata."""
    inside = metadata.pop(name, None)
    return inside if data.get(name) is None else data[name]


def _faults(row: Row, data: dict[str, Any], keys: _Keys, needs_input: bool) -> Iterator[SuiteProblem]:
    yield from _input_faults(row, data.get(keys.input), keys.input, needs_input)
    truth = data.get("ground_truth")
    if truth is not None and not _is_text(truth):
        yield row.problem(f"must be a text or a list of texts, got {quote(truth)}", "ground_truth")
    elif isinstance(truth, list) and data.get(keys.input) is not None:
        turns = data[keys.input]
        if not isinstance(turns, list):
            yield row.problem("is a list, so the input must be a list of as many turns", "ground_truth")
        elif len(turns) != len(truth):
            yield row.problem(f"has {len(truth)} texts for {len(turns)} turns of input", "ground_truth")
    metadata = data.get("metadata")
    for name in ("metadata", *VARIABLES):
        if not isinstance(data.get(name, {}), dict | None):
            yield row.problem(f"must be a mapping, got {quote(data[name])}", name)
        elif isinstance(metadata, dict) and name in VARIABLES and not isinstance(metadata.get(name), dict | None):
            yield row.problem(f"must be a mapping, got {quote(metadata[name])}", "metadata", name)
    tags = [] if data.get("tags") is None else data["tags"]
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        yield row.problem(f"must be a list of texts, got {quote(tags)}", "tags")
    for name in ("rubric", "rubric_path"):
        if not isinstance(data.get(name), str | None):
            yield row.problem(f"must be a text, got {quote(data[name])}", name)
    if data.get("rubric") and data.get("rubric_path"):
        yield row.problem("conflicts with rubric; keep one of them", "rubric_path")
    try:
        cluster_name(data.get("cluster"))
    except ValueError as error:
        yield row.problem(str(error), "cluster")
    identity = data.get(keys.id)
    if identity == "" or isinstance(identity, bool) or not isinstance(identity, str | int | None):
        yield row.problem(f"must be a text or a whole number, got {quote(identity)}", keys.id)


def _input_faults(row: Row, value: object, key: str, needed: bool) -> Iterator[SuiteProblem]:
    if value is None:
        if needed:
            yield row.problem("is required: what the agent is asked", key)
    elif not _is_text(value):
        yield row.problem(f"must be a text or a list of texts, got {quote(value)}", key)
    elif needed and (value in ("", []) or (isinstance(value, list) and "" in value)):
        yield row.problem(f"must not be empty, got {quote(value)}", key)


def _is_text(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str | int | float) for item in value)
    return isinstance(value, str | int | float)


def _text(value: Any) -> str | list[str]:
    return [scalar_text(item) for item in value] if isinstance(value, list) else scalar_text(value)

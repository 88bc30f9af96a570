"""Checks a dataset for problems that a run would not report, in one pass and in constant memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from gradeline.model import Sample, quote
from gradeline.model.fingerprint import case_digest
from gradeline.model.sample import join_turns
from gradeline.suite.case_ids import CaseIds, CaseKeySet
from gradeline.suite.cases import DatasetError, Row, read_sample
from gradeline.suite.clusters import COMPARED_CASES, near_duplicate_warning
from gradeline.suite.columns import ColumnMap
from gradeline.suite.dataset_source import DatasetSource
from gradeline.suite.row_reader import RowReader

_EXAMPLES = 5
_MAX_COLUMNS = 500
_SHORTEST_LEAK = 4
"""Characters; shorter values are in many inputs by chance."""
_SPACES = re.compile(r"\s+")


class DatasetFinding(msgspec.Struct, frozen=True):
    """A problem that a person should look at."""

    kind: str
    """invalid, duplicate_id, duplicate, near_duplicate, empty, leak or mixed_types."""
    message: str
    count: int
    """Number of cases, or of the values of the rarer type."""
    examples: tuple[str, ...] = ()
    """The first few, by file and line."""


class DatasetReport(msgspec.Struct, frozen=True):
    """The result of `check_dataset`."""

    dataset: str
    cases: int
    without_id: int
    """Cases that are named by their content or their number."""
    complete: bool
    """False if reading stopped at an invalid row."""
    findings: tuple[DatasetFinding, ...]


def check_dataset(source: DatasetSource, progress: Callable[[int], None] = lambda _: None) -> DatasetReport:
    """Read all rows; `DatasetError` only for a source that cannot be opened. ``progress`` is called for each row."""
    rows = RowReader(source.files or source.rows, columns=ColumnMap(source.columns))
    check = _Check(_Ids(source.scheme))
    complete = True
    try:
        for number, row in enumerate(rows, 1):
            check.row(row)
            progress(number)
    except DatasetError as error:
        complete = False
        check.add("invalid", *map(str, error.suite_problems))
    return DatasetReport(str(source), check.cases, check.ids.unnamed, complete, tuple(check.findings()))


class _Ids(CaseIds):
    """Counts rows without an id, and accepts an id that another case has."""

    unnamed = 0
    duplicate = False

    def add(self, key: str) -> bool:
        self.duplicate = not super().add(key)
        return True

    def name(self, sample: Sample) -> Sample | None:
        self.unnamed += 1
        return super().name(sample)


class _Check:
    def __init__(self, ids: _Ids) -> None:
        self.ids = ids
        self.cases = 0
        self._contents = CaseKeySet()
        self._first: list[Sample] = []
        self._found: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._without_truth = 0
        self._types: dict[str, Counter[str]] = {}
        self._empty: Counter[str] = Counter()

    def add(self, kind: str, *examples: str) -> None:
        """Count a case, and remember what is wrong with it."""
        self._found[kind] += 1
        known = self._examples.setdefault(kind, [])
        known.extend(examples[: _EXAMPLES - len(known)])

    def row(self, row: Row) -> None:
        place = str(row.position_of(row.path)) or f"row {row.number + 1}"
        self._columns(row)
        self.ids.duplicate = False
        try:
            sample = read_sample(row, self.ids)
        except DatasetError as error:
            self.add("invalid", *map(str, error.suite_problems))
            return
        self.cases += 1
        if self.ids.duplicate:
            self.add("duplicate_id", f"{place}: {quote(sample.case_key, 60)}")
        elif not self._contents.add(case_digest(sample)):
            self.add("duplicate", f"{place}: {quote(sample.case_key, 60)}")
        if len(self._first) < COMPARED_CASES:
            self._first.append(sample)
        if not join_turns(sample.input).strip():
            self.add("empty input", place)
        if sample.ground_truth is None or not join_turns(sample.ground_truth).strip():
            self._without_truth += 1
            self.add("empty ground_truth", place)
        elif _leaks(sample):
            self.add("leak", f"{place}: {quote(sample.ground_truth, 60)}")

    def _columns(self, row: Row) -> None:
        data = row.data
        if row.sample is not None:
            data = {"id": row.sample.id, "input": row.sample.input, "ground_truth": row.sample.ground_truth}
        if not isinstance(data, dict):
            return
        metadata = data.get("metadata")
        inside = metadata if isinstance(metadata, dict) else {}
        values = {**data, **{f"metadata.{key}": value for key, value in inside.items()}}
        for name, value in values.items():
            if name not in self._types and len(self._types) >= _MAX_COLUMNS:
                continue
            counts = self._types.setdefault(name, Counter())
            if value is not None:
                counts[_type(value)] += 1
            if isinstance(value, str) and not value.strip() and name not in ("input", "ground_truth"):
                self._empty[name] += 1

    def findings(self) -> Iterator[DatasetFinding]:
        """All findings, the most severe first."""
        yield from self._finding("invalid", "a run would refuse the dataset")
        yield from self._finding("duplicate_id", "the id of another case; a run would refuse the dataset")
        yield from self._finding("duplicate", "the content of an earlier case, which counts twice")
        near = near_duplicate_warning(self._first)
        if near is not None:
            yield DatasetFinding("near_duplicate", near.removeprefix("dataset: "), len(self._first))
        yield from self._finding("empty input", "the input is empty")
        if self._without_truth < self.cases:
            yield from self._finding("empty ground_truth", "no expected value, though other cases have one")
        for name, count in self._empty.items():
            yield DatasetFinding("empty", f"{_cases(count)}: an empty {quote(name)}", count)
        yield from self._finding("leak", "the expected value is in the input")
        for name, counts in self._types.items():
            if len(counts) > 1:
                kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common())
                rarer = counts.total() - max(counts.values())
                yield DatasetFinding("mixed_types", f"{quote(name)} has mixed types: {kinds}", rarer)

    def _finding(self, kind: str, what: str) -> Iterator[DatasetFinding]:
        count = self._found[kind]
        if count:
            yield DatasetFinding(kind.partition(" ")[0], f"{_cases(count)}: {what}", count, tuple(self._examples[kind]))


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count:,} cases"


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "list" if isinstance(value, list) else "mapping"


def _leaks(sample: Sample) -> bool:
    """True if the expected value is in the input, as whole words; numbers and short words are there by chance."""
    if not isinstance(sample.ground_truth, str):
        return False
    texts = (sample.ground_truth, join_turns(sample.input))
    truth, text = (_SPACES.sub(" ", part).strip().casefold() for part in texts)
    if len(truth) < _SHORTEST_LEAK or len(truth) > len(text):
        return False
    at = text.find(truth)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(truth) : at + len(truth) + 1]
        if not (before.isalnum() and truth[0].isalnum()) and not (after.isalnum() and truth[-1].isalnum()):
            return True
        at = text.find(truth, at + 1)
    return False

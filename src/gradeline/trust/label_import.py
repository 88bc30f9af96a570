"""Import labels from a file: all of them or none, with every problem of the file at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

from gradeline.errors import ConfigError, Problem, closest_match
from gradeline.model import ResponseKey, Run, Storage, clean_text
from gradeline.model.label import MAX_COMMENT, HumanVerdict, LabelRow, RaterRole, Verdict
from gradeline.model.text import quote
from gradeline.rest_types import utc_timestamp
from gradeline.store.database import SharedStorage, Transaction
from gradeline.store.labels import (
    LabelDraw,
    create_label_tables,
    fresh_labels,
    has_label_tables,
    insert_labels,
    labels_of_run_and_parents,
    questions_of_run,
)
from gradeline.store.sql_storage import response_chain
from gradeline.store.trust_records import database_of
from gradeline.trust.label_files import VALUE_COLUMNS, Cells, LabelFileRow, rows_of
from gradeline.trust.label_samples import samples_of
from gradeline.trust.labelling import is_label_name, label_of

_MAX_PROBLEMS = 100
_RECORDS_AT_ONCE = 500
_Slot: TypeAlias = tuple[str, int, str, str, RaterRole]
"""Case, repeat, question, rater and role: a rater has one current label of it."""


class LabelImport(NamedTuple):
    """What an import did with the rows of a file."""

    stored: int
    unchanged: int
    """Labels that the store already has."""
    unlabelled: int
    """Rows without verdict, score and category."""


class FileLabel(NamedTuple):
    """A label in a file."""

    line: int
    case: str
    repeat: int
    question: str
    value: HumanVerdict
    rater: str
    at: str | None
    response_digest: str | None

    @property
    def slot(self) -> _Slot:
        return self.case, self.repeat, self.question, self.rater, self.value.role

    @property
    def content(self) -> tuple[Verdict | None, float | None, str | None, str]:
        return self.value.verdict, self.value.score, self.value.category, self.value.comment


def import_labels(
    storage: Storage,
    run: Run,
    path: Path,
    *,
    rater: str,
    question: str | None = None,
    new_question: str | None = None,
    replace: bool = False,
    progress: Callable[[int], None] = lambda _: None,
    rows: Iterable[LabelFileRow | tuple[int, str]] | None = None,
    unit: str = "line",
) -> LabelImport:
    """Store the labels of a CSV or JSON lines file, all or none.

    ``rows`` are those of a file of another format; ``unit`` is what their numbers count.
    ``rater`` and ``question`` are for rows that name none; ``new_question`` may be one that no grader answers. A label
    that differs from the rater's stored one is a problem unless ``replace`` is set. `ConfigError` lists every problem
    of the file with its line.
    """
    reading = _RowReading(storage, run, rater, question, new_question, unit)
    found = reading.labels(rows_of(path) if rows is None else rows)
    existing = reading.check_results(found)
    stored = fresh_labels(storage, run)
    current = _by_slot(stored.labels)
    replaced = _by_slot(stored.replaced)
    fresh = [label for label in existing if not _is_stored(label, current, replaced)]
    if not replace:
        reading.check_stored(fresh, current)
    stored_rows = reading.label_rows(fresh, progress)
    reading.raise_problems(path)
    _store(storage, run, stored_rows)
    return LabelImport(len(stored_rows), len(found) - len(stored_rows), reading.unlabelled)


def _by_slot(rows: Iterable[LabelRow]) -> dict[_Slot, LabelRow]:
    return {(row.case, row.repeat, row.question, row.rater, row.role): row for row in rows}


def _is_stored(label: FileLabel, current: Mapping[_Slot, LabelRow], replaced: Mapping[_Slot, LabelRow]) -> bool:
    """Whether the store has this label of the same response."""
    for row in (current.get(label.slot), replaced.get(label.slot)):
        if row is not None and label.content == (*row.value, row.comment):
            if label.response_digest == row.response_digest:
                return True
            if label.response_digest is None and label.slot in current:
                return True
    return False


class _RowReading:
    """Reads the labels of a file and collects its problems."""

    def __init__(
        self, storage: Storage, run: Run, rater: str, question: str | None, new_question: str | None, unit: str
    ) -> None:
        self._storage, self._run, self._unit = storage, run, unit
        self._rater, self._question = rater, new_question or question
        self._questions = {*run.graders, *([] if new_question is None else [new_question]), *questions_of(storage, run)}
        self._problems: list[tuple[int, str]] = []
        self._draws: dict[str, dict[tuple[str, int, str], LabelDraw]] = {}
        self.unlabelled = 0

    def labels(self, rows: Iterable[LabelFileRow | tuple[int, str]]) -> list[FileLabel]:
        """The labels of the rows; the same label twice counts once."""
        found: dict[_Slot, FileLabel] = {}
        for row in rows:
            if not isinstance(row, LabelFileRow):
                self._problems.append(row)
                continue
            label = self._label(row)
            if label is None:
                continue
            first = found.setdefault(label.slot, label)
            if first.content != label.content:
                self._report(
                    label.line,
                    f"{quote(label.rater, 60)} labels case {quote(label.case, 60)}, repeat {label.repeat},"
                    f" question {quote(label.question, 60)} differently in {self._unit} {first.line}; keep one of them",
                )
        return list(found.values())

    def check_results(self, labels: Sequence[FileLabel]) -> list[FileLabel]:
        """Report cases and repeats that the run does not have; returns the other labels."""
        known = self._repeats(sorted({label.case for label in labels}))
        cases: list[str] | None = None
        existing: list[FileLabel] = []
        for label in labels:
            if label.case not in known:
                cases = _case_keys(self._storage, self._run) if cases is None else cases
                close = closest_match(label.case, cases)
                hint = f"did you mean {quote(close, 60)}?" if close else f"it has {len(cases):,} cases"
                self._report(label.line, f"no case {quote(label.case, 60)} in run {self._run.id}; {hint}")
            elif label.repeat not in known[label.case]:
                repeats = ", ".join(map(str, sorted(known[label.case])))
                self._report(label.line, f"no repeat {label.repeat} of case {quote(label.case, 60)}; it has {repeats}")
            else:
                existing.append(label)
        return existing

    def check_stored(self, labels: Sequence[FileLabel], current: Mapping[_Slot, LabelRow]) -> None:
        """Report labels that would replace one with another value."""
        for label in labels:
            row = current.get(label.slot)
            if row is not None:
                self._report(
                    label.line,
                    f"{quote(label.rater, 60)} has labelled case {quote(label.case, 60)}, repeat {label.repeat}"
                    f" {_value_text(row)} before, here it is {_content_text(label)}; replace it with --replace",
                )

    def label_rows(self, labels: Sequence[FileLabel], progress: Callable[[int], None]) -> list[LabelRow]:
        """The labels as they are stored; those of another response than the run's are reported."""
        now = utc_timestamp(time.time())
        rows: list[LabelRow] = []
        for number, label in enumerate(labels, 1):
            record = self._storage.get_record(ResponseKey(self._run.id, label.case, label.repeat))
            if record is None:
                self._report(label.line, f"case {quote(label.case, 60)} was deleted meanwhile")
                continue
            row = label_of(record, label.question, label.value, label.rater, label.at or now)
            if label.response_digest not in (None, row.response_digest):
                reason = f"the label is about another response to case {quote(label.case, 60)} than that of this run"
                self._report(label.line, f"{reason}; import it into the run that it was exported from")
            rows.append(row)
            progress(number)
        return rows

    def raise_problems(self, path: Path) -> None:
        """`ConfigError` with all problems, if there are any."""
        if not self._problems:
            return
        ordered = sorted(self._problems)
        listed = [Problem(f"{self._unit} {line}", message) for line, message in ordered[:_MAX_PROBLEMS]]
        if len(ordered) > _MAX_PROBLEMS:
            listed.append(Problem("", f"and {len(ordered) - _MAX_PROBLEMS:,} more problems"))
        raise ConfigError(listed, f"no label of {path} was stored")

    def _label(self, row: LabelFileRow) -> FileLabel | None:
        before = len(self._problems)
        cells = {name: value for name, value in row.cells.items() if value is not None and value != ""}
        if not any(name in cells for name in VALUE_COLUMNS):
            self.unlabelled += 1
            return None
        cell = _CellReader(cells, lambda message: self._report(row.line, message))
        case = cell.text("case", required=True)
        repeat = cell.whole("repeat", 0)
        question = cell.text("question") or self._question
        rater = cell.name("rater") or self._rater
        value = HumanVerdict(
            verdict=cast("Verdict | None", cell.choice("verdict", ("pass", "fail"))),
            comment=cell.text("comment", most=MAX_COMMENT) or "",
            score=cell.number("score"),
            category=cell.name("category"),
            probability=cell.number("probability", above_zero=True),
            sample=cell.name("sample"),
            role=cast("RaterRole", cell.choice("role", ("rater", "adjudicator")) or "rater"),
        )
        at = cell.time("at")
        if question is None:
            self._report(row.line, "no question: fill the column question, or use --grader or --question")
        elif question not in self._questions:
            close = closest_match(question, self._questions)
            hint = f"did you mean {quote(close, 60)}?" if close else "write --question to add a question of people only"
            self._report(row.line, f"no grader {quote(question, 60)} in run {self._run.id}; {hint}")
        if len(self._problems) > before or case is None or question is None or repeat is None:
            return None
        value = self._with_probability(value, case, repeat, question)
        return FileLabel(row.line, case, repeat, question, value, rater, at, cell.text("response_digest"))

    def _with_probability(self, value: HumanVerdict, case: str, repeat: int, question: str) -> HumanVerdict:
        """With the probability of the sample that the label names, if the row has none."""
        if value.sample is None or value.probability is not None:
            return value
        if question not in self._draws:
            samples = samples_of(self._storage, self._run, question)
            self._draws[question] = {(one.case, one.repeat, one.sample): one for s in samples for one in s.draws}
        draw = self._draws[question].get((case, repeat, value.sample))
        return value if draw is None else value._replace(probability=draw.probability)

    def _repeats(self, cases: Sequence[str]) -> dict[str, set[int]]:
        known: dict[str, set[int]] = {}
        for start in range(0, len(cases), _RECORDS_AT_ONCE):
            for one in self._storage.keys_of(self._run.id, cases[start : start + _RECORDS_AT_ONCE]):
                known.setdefault(one.key.case, set()).add(one.key.repeat)
        return known

    def _report(self, line: int, message: str) -> None:
        self._problems.append((line, message))


class _CellReader:
    """Reads the values of one row; a wrong one is reported and becomes None."""

    def __init__(self, cells: Cells, report: Callable[[str], None]) -> None:
        self._cells = cells
        self._report = report

    def text(self, name: str, most: int = 10_000, *, required: bool = False) -> str | None:
        value = self._cells.get(name)
        if value is None:
            if required:
                self._report(f"the {name} is missing")
            return None
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self._report(f"invalid {name} {quote(value, 60)}: write a text")
            return None
        if len(value) > most:
            self._report(f"the {name} has {len(value):,} characters; use at most {most:,}")
            return None
        return clean_text(value).text

    def name(self, name: str) -> str | None:
        text = self.text(name)
        if text is not None and not is_label_name(text):
            self._report(f"invalid {name} {quote(text, 60)}: use 1 to 200 characters on one line, trimmed")
            return None
        return text

    def choice(self, name: str, known: Sequence[str]) -> str | None:
        text = self.text(name)
        if text is None:
            return None
        folded = text.strip().casefold()
        if folded not in known:
            self._report(f"invalid {name} {quote(text, 60)}: use {' or '.join(known)}")
            return None
        return folded

    def number(self, name: str, *, above_zero: bool = False) -> float | None:
        value = self._cells.get(name)
        if value is None:
            return None
        number = _number(value)
        if number is None or not 0 <= number <= 1 or (above_zero and number == 0):
            least = "above 0 and at most 1" if above_zero else "from 0 to 1"
            self._report(f"invalid {name} {quote(value, 60)}: use a number {least}")
            return None
        return number

    def whole(self, name: str, default: int) -> int | None:
        value = self._cells.get(name, default)
        text = str(value).strip()
        if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or len(text) > 9:
            self._report(f"invalid {name} {quote(value, 60)}: use a whole number from 0")
            return None
        return int(text)

    def time(self, name: str) -> str | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            when = datetime.fromisoformat(text)
            return utc_timestamp((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())
        except (ValueError, OverflowError):
            self._report(f"invalid {name} {quote(text, 60)}: use a time such as 2026-01-31T12:00:00Z")
            return None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    text = str(value).strip()
    try:
        number = float(text)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) and "_" not in text else None


def _store(storage: Storage, run: Run, rows: Sequence[LabelRow]) -> None:
    if not rows:
        return
    database = database_of(storage)
    create_label_tables(database)

    def work(transaction: Transaction) -> None:
        insert_labels(transaction, run.id, rows)

    database.transact(work)


def number_of_labels(storage: Storage, run: Run) -> int:
    """The number of current labels of a run and of the runs that it regrades."""
    return len(labels_of_run_and_parents(storage, run))


def questions_of(storage: Storage, run: Run) -> list[str]:
    """The questions about a run that have labels or a sample."""
    if not isinstance(storage, SharedStorage) or not has_label_tables(storage.database.read):
        return []
    read = storage.database.read
    return sorted({name for one in response_chain(read, run.id) for name in questions_of_run(read, one)})


def _case_keys(storage: Storage, run: Run) -> list[str]:
    return list(dict.fromkeys(one.key.case for one in storage.keys_of(run.id)))


def _value_text(row: LabelRow) -> str:
    return _texts(*row.value, row.comment)


def _content_text(label: FileLabel) -> str:
    return _texts(*label.content)


def _texts(verdict: str | None, score: float | None, category: str | None, comment: str) -> str:
    parts = [
        *([] if verdict is None else [verdict]),
        *([] if score is None else [f"{score:g}"]),
        *([] if category is None else [quote(category, 60)]),
        *([f"({quote(comment, 40)})"] if comment else []),
    ]
    return " ".join(parts)

"""One rater at work: labels of the results of a run, each stored before the next one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

from gradeline.errors import ConfigError, Problem
from gradeline.model import Record, ResponseKey, Run, Storage, clean_text
from gradeline.model.label import MAX_COMMENT, MAX_NAME, HumanVerdict, LabelKey, LabelRow, RaterRole
from gradeline.model.text import quote
from gradeline.rest_types import utc_timestamp
from gradeline.store.database import Database, Transaction
from gradeline.store.labels import create_label_tables, fresh_labels, insert_label, label_row, withdraw_label
from gradeline.store.sql_storage import response_chain
from gradeline.store.trust_records import database_of


class LabelScale(NamedTuple):
    """What a rater answers with: pass or fail, a rating, or one of several categories."""

    low: int | None = None
    high: int = 0
    categories: tuple[str, ...] = ()

    def value(self, choice: int) -> HumanVerdict:
        """The label of the choice: a rating of the scale, or the number of a category, from 1."""
        if self.low is None:
            return HumanVerdict(category=self.categories[choice - 1])
        return HumanVerdict(score=(choice - self.low) / (self.high - self.low))

    @property
    def choices(self) -> range:
        """The numbers that can be chosen; empty for pass or fail."""
        return range(1, len(self.categories) + 1) if self.low is None else range(self.low, self.high + 1)


def read_scale(scale: str | None, categories: str | None) -> LabelScale:
    """Read ``1-5`` or ``a,b,c``; `ConfigError` for what has no key on a keyboard."""
    if scale is not None and categories is not None:
        raise ConfigError(Problem("scale", "use a scale or categories, not both"))
    if scale is not None:
        low, dash, high = scale.strip().partition("-")
        if not (
            scale.isascii() and dash and low.isdecimal() and high.isdecimal() and len(low + high) == 2 and low < high
        ):
            raise ConfigError(Problem("scale", f"invalid scale {quote(scale)}: use two digits such as 1-5 or 0-9"))
        return LabelScale(int(low), int(high))
    if categories is None:
        return LabelScale()
    names = tuple(name.strip() for name in categories.split(","))
    if len(set(names)) != len(names) or not 2 <= len(names) <= 9 or not all(map(is_label_name, names)):
        raise ConfigError(
            Problem(
                "categories",
                f"invalid categories {quote(categories)}: use 2 to 9 different names, separated by commas,"
                f" each of 1 to {MAX_NAME} characters on one line",
            )
        )
    return LabelScale(categories=names)


def is_label_name(name: str) -> bool:
    """Whether this can name a rater, a question or a category."""
    return 0 < len(name) <= MAX_NAME and name.isprintable() and name == name.strip()


def check_label_name(name: str, what: str) -> str:
    """The name; `ConfigError` if it is not valid."""
    if not is_label_name(name):
        reason = f"invalid {what} {quote(name)}: use 1 to {MAX_NAME} characters on one line, trimmed"
        raise ConfigError(Problem(what, reason))
    return name


class Labelling:
    """The labels of one rater for one question about a run. Each call is durable when it returns."""

    def __init__(
        self,
        storage: Storage,
        run: Run,
        question: str,
        rater: str,
        role: RaterRole = "rater",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.run, self.question = run, check_label_name(question, "question")
        self.rater, self.role = check_label_name(rater, "rater"), role
        self._storage = storage
        self._clock = clock

    @cached_property
    def _database(self) -> Database:
        database = database_of(self._storage)
        create_label_tables(database)
        return database

    def record(self, case: str, repeat: int) -> Record:
        """A result to label; `ConfigError` if it was deleted."""
        record = self._storage.get_record(ResponseKey(self.run.id, case, repeat))
        if record is None:
            raise ConfigError(Problem("", f"run {self.run.id} has no result of case {quote(case)}, repeat {repeat}"))
        return record

    def labels(self) -> dict[tuple[str, int], LabelRow]:
        """The rater's own current labels by case and repeat, without those of replaced responses."""
        rows = fresh_labels(self._storage, self.run, self.question).labels
        return {(row.case, row.repeat): row for row in rows if (row.rater, row.role) == (self.rater, self.role)}

    def put(self, record: Record, value: HumanVerdict) -> LabelRow:
        """Store the rater's label of a result, instead of an earlier one."""
        return self.put_all([(record, value)])[0]

    def put_all(self, labelled: Sequence[tuple[Record, HumanVerdict]]) -> list[LabelRow]:
        """Store labels in one transaction."""
        at = utc_timestamp(self._clock())
        rows = [
            label_of(record, self.question, value._replace(role=self.role), self.rater, at)
            for record, value in labelled
        ]

        def work(transaction: Transaction) -> list[LabelRow]:
            return [insert_label(transaction, self.run.id, row) for row in rows]

        return self._database.transact(work)

    def withdraw(self, case: str, repeat: int) -> bool:
        """Withdraw the rater's label of a result, also in the runs that this one regrades; False if there is none."""
        at, runs = utc_timestamp(self._clock()), response_chain(self._database.read, self.run.id)
        keys = [LabelKey(run, case, repeat, self.question) for run in runs]

        def work(transaction: Transaction) -> bool:
            withdrawn = [withdraw_label(transaction, key, self.rater, at, self.role) for key in keys]
            return any(withdrawn)

        return self._database.transact(work)


def label_of(record: Record, question: str, value: HumanVerdict, rater: str, at: str) -> LabelRow:
    """The label of a result as it is stored."""
    key = LabelKey(record.run, record.case, record.repeat, question)
    comment = clean_text(value.comment).text[:MAX_COMMENT]
    grade = record.grades.get(question)
    return label_row(key, record.sample, record.response, grade, value._replace(comment=comment), rater, at)

"""Labels: a person's verdicts on the grades of a run, stored next to the grades, which they never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from gradeline.errors import Outcome
from gradeline.model.fingerprint import case_digest
from gradeline.model.grade import Grade
from gradeline.model.record import digest_of, to_json
from gradeline.model.response import Response
from gradeline.model.sample import Sample
from gradeline.store.database import Database, Dialect, Row, Transaction, migrate, parts_of
from gradeline.store.leases import Query

Verdict: TypeAlias = Literal["pass", "fail"]

PART = "labels"
"""The part of the store that these tables are, for `migrate`."""
_WRITTEN = (
    "case_key, repeat, grader, verdict, score, reason, author, at, grade_outcome, grade_score, grader_fingerprint,"
    " case_digest, response_digest"
)
_LATEST = (
    "NOT EXISTS (SELECT 1 FROM labels later WHERE later.run = labels.run AND later.case_key = labels.case_key"
    " AND later.repeat = labels.repeat AND later.grader = labels.grader AND later.n > labels.n)"
)
_CURRENT = f"FROM labels WHERE run = ? AND verdict IS NOT NULL AND {_LATEST}"
_SELECT = f"SELECT {_WRITTEN}, n {_CURRENT}"
_INSERT = f"INSERT INTO labels (run, {_WRITTEN}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - constants


def _tables(transaction: Transaction, dialect: Dialect) -> None:
    """Each change is a new row; one without a verdict withdraws the label."""
    transaction.run(
        f"CREATE TABLE labels (n {dialect.serial}, run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,"
        " case_key TEXT NOT NULL, repeat INTEGER NOT NULL, grader TEXT NOT NULL, verdict TEXT,"
        " score DOUBLE PRECISION, reason TEXT, author TEXT, at TEXT NOT NULL, grade_outcome TEXT,"
        " grade_score DOUBLE PRECISION, grader_fingerprint TEXT, case_digest TEXT, response_digest TEXT)"
    )
    transaction.run("CREATE INDEX labels_of_result ON labels (run, case_key, repeat, grader, n)")
    transaction.run("CREATE INDEX labels_of_run ON labels (run, n)")


LABEL_STEPS = (_tables,)


class HumanVerdict(NamedTuple):
    """A person's verdict on a response, to be stored as a label."""

    verdict: Verdict
    reason: str
    score: float | None = None


class LabelRow(NamedTuple):
    """A label, with the grade, the case and the response as they were when it was made."""

    case: str
    repeat: int
    grader: str
    verdict: Verdict
    score: float | None
    reason: str
    author: str | None
    at: str
    grade_outcome: str
    grade_score: float | None
    grader_fingerprint: str
    case_digest: str
    response_digest: str
    n: int = 0
    """Its number in the store, in the order of changes; 0 before it is stored."""


class ChangeRow(NamedTuple):
    """One change of a label; without a verdict, its withdrawal."""

    grader: str
    verdict: Verdict | None
    score: float | None
    reason: str | None
    author: str | None
    at: str


class LabelKey(NamedTuple):
    """What a label is about: one grade of a run."""

    run: str
    case: str
    repeat: int
    grader: str


def create_label_tables(database: Database) -> None:
    """Migrate the tables of labels to the latest version."""
    migrate(database, PART, LABEL_STEPS)


def has_label_tables(read: Query) -> bool:
    """Whether the store has tables for labels; one that never had a label may lack them."""
    return PART in parts_of(read)


def label_row(
    key: LabelKey, sample: Sample, response: Response, grade: Grade, label: HumanVerdict, author: str | None, at: str
) -> LabelRow:
    """The label as it is stored."""
    return LabelRow(
        case=key.case,
        repeat=key.repeat,
        grader=key.grader,
        verdict=label.verdict,
        score=label.score,
        reason=label.reason,
        author=author,
        at=at,
        grade_outcome=Outcome(grade.outcome).value,
        grade_score=grade.score,
        grader_fingerprint=grade.fingerprint,
        case_digest=case_digest(sample),
        response_digest=digest_of(to_json(response)),
    )


def insert_label(transaction: Transaction, run: str, label: LabelRow) -> LabelRow:
    """Store a label, which replaces the current one of the same grade; returns it with its number."""
    ((number,),) = transaction.run(f"{_INSERT} RETURNING n", run, *label[:-1])
    return label._replace(n=number)


def withdraw_label(transaction: Transaction, key: LabelKey, author: str | None, at: str) -> bool:
    """Withdraw the current label of a grade; False if it has none. The history keeps both."""
    if not transaction.run(f"{_SELECT} AND case_key = ? AND repeat = ? AND grader = ?", *key):
        return False
    transaction.run(
        "INSERT INTO labels (run, case_key, repeat, grader, author, at) VALUES (?, ?, ?, ?, ?, ?)", *key, author, at
    )
    return True


def labels_of_result(read: Query, run: str, case: str, repeat: int) -> list[LabelRow]:
    """The current labels of a result, oldest first."""
    return _labels(read(f"{_SELECT} AND case_key = ? AND repeat = ? ORDER BY n", run, case, repeat))


def labels_of_run(read: Query, run: str) -> list[LabelRow]:
    """The current labels of a run, latest change last."""
    return _labels(read(f"{_SELECT} ORDER BY n", run))


def label_page(read: Query, run: str, after: int, limit: int, skip: int) -> list[LabelRow]:
    """Current labels of a run whose number is above ``after``."""
    return _labels(read(f"{_SELECT} AND n > ? ORDER BY n LIMIT ? OFFSET ?", run, after, limit, skip))


def count_labels(read: Query, run: str) -> int:
    """The number of current labels of a run."""
    return int(read(f"SELECT count(*) {_CURRENT}", run)[0][0])


def label_history(read: Query, run: str, case: str, repeat: int) -> list[ChangeRow]:
    """All changes to the labels of a result, oldest first."""
    rows = read(
        "SELECT grader, verdict, score, reason, author, at FROM labels"
        " WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY n",
        run,
        case,
        repeat,
    )
    return [ChangeRow(*row) for row in rows]


def has_labels(read: Query, run: str) -> bool:
    """Whether anyone has ever labelled a result of the run."""
    return bool(read("SELECT 1 FROM labels WHERE run = ? LIMIT 1", run))


def _labels(rows: Sequence[Row]) -> list[LabelRow]:
    return [LabelRow(*row) for row in rows]

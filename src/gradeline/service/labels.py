"""Labels: human verdicts on the grade of a result. They are stored next to grades and never change them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict

from gradeline.errors import Outcome
from gradeline.model import Grade, Record, Run, case_digest, clean_text, digest_of, to_json
from gradeline.rest_types import ResultDetail, result_id, utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.store.database import Database, Dialect, Row, Transaction, migrate
from gradeline.store.queries import run_exists

Verdict = Literal["pass", "fail"]

_WRITTEN = (
    "case_key, repeat, grader, verdict, score, reason, author, at, grade_outcome, grade_score, grader_fingerprint,"
    " case_digest, response_digest"
)
_LATEST = (
    "NOT EXISTS (SELECT 1 FROM labels later WHERE later.run = labels.run AND later.case_key = labels.case_key"
    " AND later.repeat = labels.repeat AND later.grader = labels.grader AND later.n > labels.n)"
)
_CURRENT = f"FROM labels WHERE run = ? AND verdict IS NOT NULL AND {_LATEST}"
_SELECT = f"SELECT n, {_WRITTEN} {_CURRENT}"


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


class Label(Struct, frozen=True, kw_only=True):
    """The current human verdict on a grade, with the grade as it was at that time."""

    result_id: str
    test_case_id: str
    repeat: int
    grader_id: str
    verdict: Verdict
    score: float | None
    reason: str
    author: str | None
    """The id of the key; null in local mode, which has no keys."""
    labelled_at: str
    grade_outcome: Outcome
    """The outcome by the grader at that time."""
    grade_score: float | None
    grader_fingerprint: str
    case_digest: str
    response_digest: str
    """Shows whether the response was replaced since."""


class LabelChange(Struct, frozen=True, kw_only=True):
    """One change of a label; without a verdict, its withdrawal."""

    grader_id: str
    verdict: Verdict | None
    score: float | None
    reason: str | None
    author: str | None
    at: str


class ResultLabels(Struct, frozen=True, kw_only=True):
    """The labels of one result, and all changes to them, oldest first."""

    labels: list[Label]
    history: list[LabelChange]


class LabelledResult(ResultDetail, frozen=True, kw_only=True):
    """A result with everything that is stored of it, and its labels."""

    labels: list[Label]


class LabelPage(Struct, frozen=True, kw_only=True):
    """A page of the labels of a run, latest change last."""

    labels: list[Label]
    count: int
    total: int
    next_cursor: str | None


class Labels:
    """The labels of a store. They are deleted with their run."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        migrate(database, "labels", LABEL_STEPS)

    def put(
        self,
        run: Run,
        record: Record,
        grader: str,
        label: HumanVerdict,
        author: str | None,
        record_act: Recorder = unrecorded,
    ) -> Label:
        """Store a label for a grade, or replace it; the former one stays in the history."""
        grade = _graded(run, record, grader)
        values = (
            label.verdict,
            label.score,
            label.reason,
            author,
            utc_timestamp(self._clock()),
            grade.outcome.value,
            grade.score,
            grade.fingerprint,
            case_digest(record.sample),
            digest_of(to_json(record.response)),
        )
        key = (run.id, record.case, record.repeat, grader)
        places = ", ".join("?" * (len(key) + len(values)))

        def add(transaction: Transaction) -> Label:
            if not run_exists(transaction.run, run.id):
                raise not_found("evaluation", run.id)
            rows = transaction.run(
                f"INSERT INTO labels (run, {_WRITTEN}) VALUES ({places}) RETURNING n, {_WRITTEN}",  # noqa: S608
                *key,
                *values,
            )
            stored = _label(rows[0])
            record_act(
                transaction,
                run.id,
                {"result_id": stored.result_id, "grader_id": grader, "verdict": stored.verdict, "score": stored.score},
            )
            return stored

        return self._database.transact(add)

    def withdraw(
        self, run: Run, record: Record, grader: str, author: str | None, record_act: Recorder = unrecorded
    ) -> None:
        """Withdraw a label; `ServiceError` NOT_FOUND if there is none. Both stay in the history."""
        key = (run.id, record.case, record.repeat, grader)
        now = utc_timestamp(self._clock())

        def add(transaction: Transaction) -> bool:
            found = transaction.run(f"{_SELECT} AND case_key = ? AND repeat = ? AND grader = ?", *key)
            if found:
                transaction.run(
                    "INSERT INTO labels (run, case_key, repeat, grader, author, at) VALUES (?, ?, ?, ?, ?, ?)",
                    *key,
                    author,
                    now,
                )
                details = {"result_id": result_id(record.case, record.repeat), "grader_id": grader}
                record_act(transaction, run.id, details)
            return bool(found)

        if clean_text(grader).changed or not self._database.transact(add):
            raise not_found("label of the grader", grader)

    def of_result(self, run: str, case: str, repeat: int) -> list[Label]:
        """The current labels of a result, oldest first."""
        rows = self._database.read(f"{_SELECT} AND case_key = ? AND repeat = ? ORDER BY n", run, case, repeat)
        return [_label(row) for row in rows]

    def of_run(self, run: str) -> dict[tuple[str, int], list[Label]]:
        """The current labels of a run by case and repeat: people make them one by one, so they are few."""
        found: dict[tuple[str, int], list[Label]] = {}
        for row in self._database.read(f"{_SELECT} ORDER BY n", run):
            label = _label(row)
            found.setdefault((label.test_case_id, label.repeat), []).append(label)
        return found

    def history(self, run: str, case: str, repeat: int) -> list[LabelChange]:
        """All changes to the labels of a result, oldest first."""
        rows = self._database.read(
            "SELECT grader, verdict, score, reason, author, at FROM labels"
            " WHERE run = ? AND case_key = ? AND repeat = ? ORDER BY n",
            run,
            case,
            repeat,
        )
        return [
            LabelChange(grader_id=grader, verdict=verdict, score=score, reason=reason, author=author, at=at)
            for grader, verdict, score, reason, author, at in rows
        ]

    def page(self, run: str, page: PageRequest) -> LabelPage:
        """A page of the current labels of a run; a changed label moves to the end."""
        after = decode_cursor(page.cursor, int)[0] if page.cursor is not None else 0
        rows = self._database.read(
            f"{_SELECT} AND n > ? ORDER BY n LIMIT ? OFFSET ?",
            run,
            after,
            page.limit + 1,
            page.skip,
        )
        shown = rows[: page.limit]
        # people make labels one by one, so counting them is cheap
        ((total,),) = self._database.read(f"SELECT count(*) {_CURRENT}", run)
        following = encode_cursor(shown[-1][0]) if len(rows) > page.limit else None
        labels = [_label(row) for row in shown]
        return LabelPage(labels=labels, count=len(labels), total=total, next_cursor=following)


def with_labels(detail: ResultDetail, labels: list[Label]) -> LabelledResult:
    """A result with its labels."""
    return LabelledResult(**asdict(detail), labels=labels)


def _graded(run: Run, record: Record, grader: str) -> Grade:
    grade = record.grades.get(grader)
    if grade is not None:
        return grade
    if grader not in run.graders:
        raise not_found("grader of this evaluation", grader)
    raise ServiceError(
        Code.CONFLICT, f"The grader {grader!r} has not graded this result yet; label it when the evaluation has ended"
    )


def _label(row: Row) -> Label:
    _, case, repeat, grader, verdict, score, reason, author, at, outcome, grade_score, fingerprint, digest, answer = row
    return Label(
        result_id=result_id(case, repeat),
        test_case_id=case,
        repeat=repeat,
        grader_id=grader,
        verdict=verdict,
        score=score,
        reason=reason,
        author=author,
        labelled_at=at,
        grade_outcome=Outcome(outcome),
        grade_score=grade_score,
        grader_fingerprint=fingerprint,
        case_digest=digest,
        response_digest=answer,
    )

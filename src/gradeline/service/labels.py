"""Labels: human verdicts on the grade of a result. They are stored next to grades and never change them."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import asdict

from gradeline.errors import Outcome
from gradeline.model import Grade, Record, Run, clean_text
from gradeline.model.label import ChangeRow, HumanVerdict, LabelKey, LabelRow, RaterRole, Verdict
from gradeline.rest_types import ResultDetail, result_id, utc_timestamp
from gradeline.service.audit import Recorder, unrecorded
from gradeline.service.errors import Code, ServiceError, not_found
from gradeline.service.requests import PageRequest, decode_cursor, encode_cursor
from gradeline.store.database import Database, Transaction
from gradeline.store.labels import (
    count_labels,
    create_label_tables,
    insert_label,
    label_history,
    label_page,
    label_row,
    labels_of_result,
    labels_of_run,
    withdraw_label,
)
from gradeline.store.queries import run_exists


class Label(Struct, frozen=True, kw_only=True):
    """A rater's current verdict on a result, with the grade as it was at that time."""

    result_id: str
    test_case_id: str
    repeat: int
    grader_id: str
    """The question: the grader that answers it too, or another name."""
    verdict: Verdict | None
    score: float | None
    category: str | None
    reason: str
    role: RaterRole
    probability: float | None
    """The probability with which the result was drawn for labelling; null if that is not known."""
    sample: str | None
    """The id of the sample that was drawn for labelling."""
    author: str | None
    """The id of the key; null in local mode, which has no keys. Of an imported label, the author in its source."""
    labelled_at: str
    grade_outcome: Outcome | None
    """The outcome by the grader at that time; null if no grader answers the question."""
    grade_score: float | None
    grader_fingerprint: str
    case_digest: str
    response_digest: str
    """Shows whether the response was replaced since."""


class LabelChange(Struct, frozen=True, kw_only=True):
    """One change of a label, or its withdrawal."""

    grader_id: str
    verdict: Verdict | None
    score: float | None
    category: str | None
    reason: str | None
    role: RaterRole
    withdrawn: bool
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
        create_label_tables(database)

    def put(
        self,
        run: Run,
        record: Record,
        grader: str,
        label: HumanVerdict,
        author: str | None,
        record_act: Recorder = unrecorded,
    ) -> Label:
        """Store a rater's label for a grade, or replace it; the former one stays in the history."""
        grade = _graded(run, record, grader)
        key = LabelKey(run.id, record.case, record.repeat, grader)
        row = label_row(key, record.sample, record.response, grade, label, author or "", self._now())

        def add(transaction: Transaction) -> Label:
            if not run_exists(transaction.run, run.id):
                raise not_found("evaluation", run.id)
            stored = _label(insert_label(transaction, run.id, row))
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
        """Withdraw the caller's label; `ServiceError` NOT_FOUND if there is none. Both stay in the history."""
        key = LabelKey(run.id, record.case, record.repeat, grader)
        now = self._now()

        def remove(transaction: Transaction) -> bool:
            withdrawn = withdraw_label(transaction, key, author or "", now)
            if withdrawn:
                details = {"result_id": result_id(record.case, record.repeat), "grader_id": grader}
                record_act(transaction, run.id, details)
            return withdrawn

        if clean_text(grader).changed or not self._database.transact(remove):
            raise not_found("label of the grader", grader)

    def of_result(self, run: str, case: str, repeat: int) -> list[Label]:
        """The current labels of a result, oldest first."""
        return [_label(row) for row in labels_of_result(self._database.read, run, case, repeat)]

    def of_run(self, run: str) -> dict[tuple[str, int], list[Label]]:
        """The current labels of a run by case and repeat: people make them one by one, so they are few."""
        found: dict[tuple[str, int], list[Label]] = {}
        for row in labels_of_run(self._database.read, run):
            found.setdefault((row.case, row.repeat), []).append(_label(row))
        return found

    def history(self, run: str, case: str, repeat: int) -> list[LabelChange]:
        """All changes to the labels of a result, oldest first."""
        return [_change(row) for row in label_history(self._database.read, run, case, repeat)]

    def page(self, run: str, page: PageRequest) -> LabelPage:
        """A page of the current labels of a run; a changed label moves to the end."""
        after = int(decode_cursor(page.cursor, int)[0]) if page.cursor is not None else 0
        rows = label_page(self._database.read, run, after, page.limit + 1, page.skip)
        shown = rows[: page.limit]
        # people make labels one by one, so counting them is cheap
        total = count_labels(self._database.read, run)
        following = encode_cursor(shown[-1].n) if len(rows) > page.limit else None
        labels = [_label(row) for row in shown]
        return LabelPage(labels=labels, count=len(labels), total=total, next_cursor=following)

    def _now(self) -> str:
        return utc_timestamp(self._clock())


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


def _change(row: ChangeRow) -> LabelChange:
    return LabelChange(
        grader_id=row.question,
        verdict=row.verdict,
        score=row.score,
        category=row.category,
        reason=row.comment,
        role=row.role,
        withdrawn=row.withdrawn,
        author=row.rater or None,
        at=row.at,
    )


def _label(row: LabelRow) -> Label:
    return Label(
        result_id=result_id(row.case, row.repeat),
        test_case_id=row.case,
        repeat=row.repeat,
        grader_id=row.question,
        verdict=row.verdict,
        score=row.score,
        category=row.category,
        reason=row.comment,
        role=row.role,
        probability=row.probability,
        sample=row.sample,
        author=row.rater or None,
        labelled_at=row.at,
        grade_outcome=None if row.grade_outcome is None else Outcome(row.grade_outcome),
        grade_score=row.grade_score,
        grader_fingerprint=row.grader_fingerprint,
        case_digest=row.case_digest,
        response_digest=row.response_digest,
    )

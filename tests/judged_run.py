"""Stores a run with a judge's verdicts, and people's labels of its results, without calling anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gradeline.model import (
    ErrorInfo,
    Fault,
    Grade,
    GradeKey,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    Usage,
)
from gradeline.model.label import HumanVerdict, LabelKey, RaterRole
from gradeline.store.database import SharedStorage
from gradeline.store.labels import create_label_tables, insert_label, label_row

AT = "2026-11-19T10:00:00Z"
JUDGE = RunGrader("model_judge", "f1", ("openai:m",), prompt_hash="p1")


class JudgedCase(NamedTuple):
    """A result, what each judge says of it (None: an error of the judge), and what a person says."""

    verdicts: Mapping[str, bool | float | None]
    label: bool | None = None
    text: str = "an answer"
    tags: tuple[str, ...] = ()
    cost: float | None = None
    probability: float | None = None


def store_run(
    storage: SharedStorage,
    cases: Sequence[JudgedCase],
    graders: Mapping[str, RunGrader] | None = None,
    *,
    question: str | None = None,
    suite: str = "support",
    expected: str | None = None,
) -> Run:
    """A completed run of these cases; the labels answer ``question``, by default that of the first grader."""
    graders = {"quality": JUDGE} if graders is None else graders
    run = Run(name="judged", suite=suite, status="completed", total=len(cases), graders=dict(graders), started_at=AT)
    run = storage.get_run(storage.save_run(run)) or run
    for number, case in enumerate(cases):
        sample = Sample(f"c{number}", f"question {number}", expected, tags=case.tags)
        key = ResponseKey(run.id, sample.case_key, 0)
        storage.put_response(key, Response(text=case.text), sample, number)
        for name, verdict in case.verdicts.items():
            storage.put_grade(GradeKey(*key, name), _grade(graders[name], verdict, case.cost))
    labelled = [(number, case) for number, case in enumerate(cases) if case.label is not None]
    put_labels(
        storage,
        run,
        question or next(iter(graders)),
        [
            (f"c{number}", HumanVerdict("pass" if case.label else "fail", probability=case.probability))
            for number, case in labelled
        ],
    )
    return run


def put_labels(
    storage: SharedStorage,
    run: Run,
    question: str,
    labels: Iterable[tuple[str, HumanVerdict]],
    rater: str = "ada",
    role: RaterRole = "rater",
) -> None:
    """Labels of a rater by case."""
    rows = []
    for case, verdict in labels:
        record = storage.get_record(ResponseKey(run.id, case, 0))
        assert record is not None
        key = LabelKey(run.id, case, 0, question)
        grade = record.grades.get(question)
        rows.append(label_row(key, record.sample, record.response, grade, verdict._replace(role=role), rater, AT))
    create_label_tables(storage.database)
    storage.database.transact(lambda transaction: [insert_label(transaction, run.id, row) for row in rows])


def _grade(grader: RunGrader, verdict: bool | float | None, cost: float | None) -> Grade:
    usage = None if cost is None else Usage(cost=cost)
    if verdict is None:
        error = ErrorInfo("invalid_reply", "no verdict", Fault.INFRASTRUCTURE)
        return Grade(grader.kind, grader.fingerprint, Outcome.ERROR, error=error, usage=usage)
    passed = verdict >= 0.5
    outcome = Outcome.PASS if passed else Outcome.FAIL
    return Grade(grader.kind, grader.fingerprint, outcome, float(verdict), passed, usage=usage)

"""Labels and drawn samples in the lines that copy a run into another store."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gradeline.errors import DataError
from gradeline.model import Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.model.label import HumanVerdict, LabelKey
from gradeline.store import InMemoryStorage
from gradeline.store.labels import (
    LabelDraw,
    create_label_tables,
    draws_of_run,
    insert_label,
    label_row,
    labels_of_run,
    put_draws,
    withdraw_label,
)
from gradeline.store.transfer import case_lines, put_cases, read_line

AT = "2026-01-15T10:00:00.000Z"
SAMPLE, RESPONSE = Sample("a", "q"), Response(text="x")
GRADE = Grade("exact", "f1", Outcome.PASS, 1.0, True)


@pytest.fixture
def store() -> Iterator[InMemoryStorage]:
    with InMemoryStorage() as storage:
        create_label_tables(storage.database)
        yield storage


@pytest.fixture
def run(store: InMemoryStorage) -> str:
    run = store.save_run(Run(name="r", suite="s", graders={"exact": RunGrader("exact", "f1")}))
    store.put_response(ResponseKey(run, "a"), RESPONSE, SAMPLE)
    store.put_grade(GradeKey(run, "a", 0, "exact"), GRADE)
    put(store, run, "exact", HumanVerdict("fail", "no", 0.25, "rude", 0.5, "random-1"), "ada")
    put(store, run, "exact", HumanVerdict("pass"), "eve")
    put(store, run, "exact", HumanVerdict("pass"), "gone")
    key = LabelKey(run, "a", 0, "exact")
    store.database.transact(lambda transaction: withdraw_label(transaction, key, "gone", AT))
    put(store, run, "exact", HumanVerdict("pass", role="adjudicator"), "eve")
    put(store, run, "tone", HumanVerdict(category="rude"), "ada")
    draw = LabelDraw("random-1", "exact", 0, "a", 0, "random", 1, 0.5, "pass", 1, 2, AT)
    store.database.transact(lambda transaction: put_draws(transaction, run, [draw]))
    return run


def put(store: InMemoryStorage, run: str, question: str, value: HumanVerdict, rater: str) -> None:
    grade = GRADE if question == "exact" else None
    row = label_row(LabelKey(run, "a", 0, question), SAMPLE, RESPONSE, grade, value, rater, AT)
    store.database.transact(lambda transaction: insert_label(transaction, run, row))


def copied(store: InMemoryStorage, run: str, into: InMemoryStorage, parent: str | None = None) -> str:
    lines = [line.decode() for line in case_lines(store.database, run)]
    copy = into.save_run(Run(id=run, name="r", suite="s", graders={"exact": RunGrader("exact", "f1")}, parent=parent))
    put_cases(into, copy, lines)
    return copy


def test_all_raters_and_samples_are_copied(store: InMemoryStorage, run: str) -> None:
    with InMemoryStorage() as other:
        copied(store, run, other)
        rows = [row._replace(n=0) for row in labels_of_run(other.database.read, run)]
        assert rows == [row._replace(n=0) for row in labels_of_run(store.database.read, run)]
        assert [(row.rater, row.role, row.question) for row in rows] == [
            ("ada", "rater", "exact"),
            ("eve", "rater", "exact"),
            ("eve", "adjudicator", "exact"),
            ("ada", "rater", "tone"),
        ]
        assert draws_of_run(other.database.read, run, "exact") == draws_of_run(store.database.read, run, "exact")


def test_labels_of_a_regrade_without_grades_are_copied(store: InMemoryStorage, run: str) -> None:
    child = store.save_run(Run(name="again", suite="s", graders={"exact": RunGrader("exact", "f1")}, parent=run))
    put(store, child, "exact", HumanVerdict("fail"), "bob")
    with InMemoryStorage() as other:
        copied(store, run, other)
        copied(store, child, other, parent=run)
        assert [row.rater for row in labels_of_run(other.database.read, child)] == ["bob"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": 1.5}, "<= 1"),
        ({"probability": -0.1}, ">= 0"),
        ({"verdict": "maybe"}, "maybe"),
        ({"role": "boss"}, "boss"),
        ({"question": ""}, "length >= 1"),
        ({"comment": "a\x00b"}, "the comment of a label contains NUL"),
        ({"rater": "\ud800"}, "surrogate"),
    ],
)
def test_an_invalid_label_is_refused(store: InMemoryStorage, run: str, change: dict[str, object], message: str) -> None:
    line = json.loads(next(case_lines(store.database, run)))
    line["results"][0]["labels"][0].update(change)
    with pytest.raises(DataError) as caught:
        read_line(json.dumps(line).encode(), run)
    assert message in str(caught.value)


@pytest.mark.parametrize("change", [{"place": -1}, {"seed": 2**53}, {"method": "guess"}, {"probability": 2}])
def test_an_invalid_draw_is_refused(store: InMemoryStorage, run: str, change: dict[str, object]) -> None:
    line = json.loads(next(case_lines(store.database, run)))
    line["results"][0]["draws"][0].update(change)
    with pytest.raises(DataError, match="not a case of a run"):
        read_line(json.dumps(line).encode(), run)

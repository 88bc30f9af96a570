"""Labels next to the grades of a run, in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gradeline.model import Grade, Outcome, Response, Run, RunGrader, Sample, case_digest, digest_of, to_json
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.labels import (
    ChangeRow,
    HumanVerdict,
    LabelKey,
    LabelRow,
    count_labels,
    create_label_tables,
    has_label_tables,
    has_labels,
    insert_label,
    label_history,
    label_page,
    label_row,
    labels_of_result,
    labels_of_run,
    withdraw_label,
)

STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}
SAMPLE = Sample("a ☃", "q", "y")
RESPONSE = Response(text="x")
GRADE = Grade("exact", "f1", Outcome.FAIL, 0.0, False)
AT = "2026-01-15T10:00:00.000Z"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


@pytest.fixture
def run(store: SharedStorage) -> str:
    create_label_tables(store.database)
    return store.save_run(Run(name="r", suite="s", graders={"exact": RunGrader("exact", "f1")}))


def put(store: SharedStorage, run: str, verdict: HumanVerdict, case: str = "a ☃", repeat: int = 0) -> LabelRow:
    row = label_row(LabelKey(run, case, repeat, "exact"), SAMPLE, RESPONSE, GRADE, verdict, "ada", AT)
    return store.database.transact(lambda transaction: insert_label(transaction, run, row))


def test_a_label_has_the_grade_and_the_response_of_its_time(store: SharedStorage, run: str) -> None:
    stored = put(store, run, HumanVerdict("pass", "right, in words", 0.75))
    assert stored == LabelRow(
        case="a ☃",
        repeat=0,
        grader="exact",
        verdict="pass",
        score=0.75,
        reason="right, in words",
        author="ada",
        at=AT,
        grade_outcome="fail",
        grade_score=0.0,
        grader_fingerprint="f1",
        case_digest=case_digest(SAMPLE),
        response_digest=digest_of(to_json(RESPONSE)),
        n=stored.n,
    )
    assert labels_of_result(store.database.read, run, "a ☃", 0) == [stored] == labels_of_run(store.database.read, run)


def test_the_latest_label_of_a_grade_is_the_current_one(store: SharedStorage, run: str) -> None:
    read = store.database.read
    put(store, run, HumanVerdict("pass", "good"))
    other = put(store, run, HumanVerdict("pass", "good"), repeat=1)
    changed = put(store, run, HumanVerdict("fail", "on second thought"))
    assert labels_of_run(read, run) == [other, changed]
    assert count_labels(read, run) == 2
    assert label_page(read, run, 0, 1, 0) == [other]
    assert label_page(read, run, other.n, 10, 0) == [changed]


def test_a_withdrawn_label_stays_in_the_history(store: SharedStorage, run: str) -> None:
    put(store, run, HumanVerdict("pass", "good"))
    key = LabelKey(run, "a ☃", 0, "exact")

    def withdraw() -> bool:
        return store.database.transact(lambda transaction: withdraw_label(transaction, key, None, AT))

    assert (withdraw(), withdraw()) == (True, False)
    assert labels_of_run(store.database.read, run) == []
    assert has_labels(store.database.read, run)
    assert label_history(store.database.read, run, "a ☃", 0) == [
        ChangeRow("exact", "pass", None, "good", "ada", AT),
        ChangeRow("exact", None, None, None, None, AT),
    ]


def test_a_store_without_labels_is_only_read(store: SharedStorage) -> None:
    assert not has_label_tables(store.database.read)
    create_label_tables(store.database)
    assert has_label_tables(store.database.read)


def test_labels_are_deleted_with_their_run(store: SharedStorage, run: str) -> None:
    put(store, run, HumanVerdict("pass", "good"))
    assert store.delete_run(run)
    assert not has_labels(store.database.read, run)

"""Labels next to the grades of a run, in every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradeline.model import (
    Grade,
    Outcome,
    Response,
    ResponseKey,
    Run,
    RunGrader,
    Sample,
    case_digest,
    digest_of,
    to_json,
)
from gradeline.model.label import (
    ChangeRow,
    HumanVerdict,
    LabelKey,
    LabelRow,
    RaterRole,
    ReferenceLabel,
    ReferenceLabels,
)
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.labels import (
    LabelDraw,
    count_labels,
    create_label_tables,
    draws_of_run,
    has_label_tables,
    has_labels,
    insert_label,
    label_history,
    label_page,
    label_row,
    labels_of_result,
    labels_of_run,
    put_draws,
    reference_labels,
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
QUESTION = "exact"


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    storage = STORES[request.param](request)
    yield storage
    storage.close()


@pytest.fixture
def run(store: SharedStorage) -> str:
    create_label_tables(store.database)
    return store.save_run(Run(name="r", suite="s", graders={"exact": RunGrader("exact", "f1")}))


def put(
    store: SharedStorage,
    run: str,
    verdict: HumanVerdict,
    case: str = "a ☃",
    repeat: int = 0,
    rater: str = "ada",
    response: Response = RESPONSE,
) -> LabelRow:
    row = label_row(LabelKey(run, case, repeat, QUESTION), SAMPLE, response, GRADE, verdict, rater, AT)
    return store.database.transact(lambda transaction: insert_label(transaction, run, row))


def withdraw(store: SharedStorage, run: str, rater: str, case: str = "a ☃", role: RaterRole = "rater") -> bool:
    key = LabelKey(run, case, 0, QUESTION)
    return store.database.transact(lambda transaction: withdraw_label(transaction, key, rater, AT, role))


def test_a_label_has_the_grade_and_the_response_of_its_time(store: SharedStorage, run: str) -> None:
    stored = put(store, run, HumanVerdict("pass", "right, in words", 0.75, "polite", 0.1, "random-1"))
    assert stored == LabelRow(
        case="a ☃",
        repeat=0,
        question="exact",
        verdict="pass",
        score=0.75,
        category="polite",
        comment="right, in words",
        rater="ada",
        role="rater",
        probability=0.1,
        sample="random-1",
        at=AT,
        grade_outcome="fail",
        grade_score=0.0,
        grader_fingerprint="f1",
        case_digest=case_digest(SAMPLE),
        response_digest=digest_of(to_json(RESPONSE)),
        n=stored.n,
    )
    assert labels_of_result(store.database.read, run, "a ☃", 0) == [stored] == labels_of_run(store.database.read, run)


def test_a_question_without_a_grader_has_no_grade(store: SharedStorage, run: str) -> None:
    row = label_row(LabelKey(run, "a", 0, "tone"), SAMPLE, RESPONSE, None, HumanVerdict(category="rude"), "", AT)
    stored = store.database.transact(lambda transaction: insert_label(transaction, run, row))
    assert labels_of_run(store.database.read, run, "tone") == [stored]
    assert (stored.grade_outcome, stored.grade_score, stored.grader_fingerprint) == (None, None, "")
    assert labels_of_run(store.database.read, run, "exact") == []


def test_the_latest_label_of_a_rater_is_the_current_one(store: SharedStorage, run: str) -> None:
    read = store.database.read
    put(store, run, HumanVerdict("pass", "good"))
    other = put(store, run, HumanVerdict("pass", "good"), repeat=1)
    changed = put(store, run, HumanVerdict("fail", "on second thought"))
    assert labels_of_run(read, run) == [other, changed]
    assert count_labels(read, run) == 2
    assert label_page(read, run, 0, 1, 0) == [other]
    assert label_page(read, run, other.n, 10, 0) == [changed]


def test_each_rater_has_a_label_and_so_has_an_adjudicator(store: SharedStorage, run: str) -> None:
    ada = put(store, run, HumanVerdict("pass"))
    eve = put(store, run, HumanVerdict("fail"), rater="eve")
    decided = put(store, run, HumanVerdict("fail", role="adjudicator"))
    assert labels_of_result(store.database.read, run, "a ☃", 0) == [ada, eve, decided]


def test_a_withdrawn_label_stays_in_the_history(store: SharedStorage, run: str) -> None:
    put(store, run, HumanVerdict("pass", "good"))
    eve = put(store, run, HumanVerdict("fail", score=0.5, category="c"), rater="eve")
    assert (withdraw(store, run, "ada"), withdraw(store, run, "ada")) == (True, False)
    assert not withdraw(store, run, "eve", role="adjudicator")
    assert labels_of_run(store.database.read, run) == [eve]
    assert has_labels(store.database.read, run)
    assert label_history(store.database.read, run, "a ☃", 0) == [
        ChangeRow("exact", "pass", None, None, "good", "ada", "rater", False, AT),
        ChangeRow("exact", "fail", 0.5, "c", "", "eve", "rater", False, AT),
        ChangeRow("exact", None, None, None, None, "ada", "rater", True, AT),
    ]


def test_a_store_without_labels_is_only_read(store: SharedStorage) -> None:
    assert not has_label_tables(store.database.read)
    run = Run(id=store.save_run(Run(name="r", suite="s")), name="r", suite="s")
    assert reference_labels(store, run, "exact") == ReferenceLabels([])
    assert not has_label_tables(store.database.read)
    create_label_tables(store.database)
    assert has_label_tables(store.database.read)
    assert labels_of_run(store.database.read, "nothing") == []


def test_labels_and_draws_are_deleted_with_their_run(store: SharedStorage, run: str) -> None:
    put(store, run, HumanVerdict("pass"))
    store.database.transact(lambda transaction: put_draws(transaction, run, [draw("a ☃", 0)]))
    assert store.delete_run(run)
    for table in ("labels", "label_draws"):
        assert store.database.read(f"SELECT count(*) FROM {table}") == [(0,)]


def test_two_raters_at_once_lose_nothing(store: SharedStorage, run: str) -> None:
    def label(rater: str) -> None:
        for repeat in range(20):
            put(store, run, HumanVerdict("pass"), repeat=repeat, rater=rater)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(label, ["ada", "eve"]))
    found = {(row.rater, row.repeat) for row in labels_of_run(store.database.read, run)}
    assert found == {(rater, repeat) for rater in ("ada", "eve") for repeat in range(20)}
    assert count_labels(store.database.read, run) == 40


def draw(
    case: str, place: int, probability: float | None = 0.5, stratum: str = "pass", size: int = 4, **fields: str
) -> LabelDraw:
    method = fields.get("method", "random")
    return LabelDraw(
        sample=f"{method}-1",
        question=QUESTION,
        place=place,
        case=case,
        repeat=0,
        method=method,  # type: ignore[arg-type]
        seed=1,
        probability=probability,
        stratum=stratum,
        stratum_size=size,
        population=8,
        at=AT,
    )


def test_a_sample_that_is_extended_keeps_its_places(store: SharedStorage, run: str) -> None:
    create_label_tables(store.database)
    store.database.transact(lambda transaction: put_draws(transaction, run, [draw("a", 0), draw("b", 1)]))
    longer = [draw("b", 1, 0.75), draw("c", 2, 0.75)]
    store.database.transact(lambda transaction: put_draws(transaction, run, longer))
    assert draws_of_run(store.database.read, run, QUESTION) == [draw("a", 0), *longer]
    assert draws_of_run(store.database.read, run, "other") == []


@pytest.fixture
def graded(store: SharedStorage) -> Run:
    """A run of eight answered cases, tagged by their number."""
    create_label_tables(store.database)
    run = store.save_run(Run(name="r", suite="s", graders={QUESTION: RunGrader("exact", "f1", pass_threshold=0.7)}))
    for number in range(8):
        sample = Sample(f"c{number}", "q", tags=("even" if number % 2 == 0 else "odd",))
        store.put_response(ResponseKey(run, sample.case_key), RESPONSE, sample, number)
    found = store.get_run(run)
    assert found is not None
    return found


def reference(case: str, passed: bool | None, **fields: object) -> ReferenceLabel:
    tags = ("even" if int(case[1:]) % 2 == 0 else "odd",)
    whole = {"score": None, "category": None, "probability": None, "raters": 1, "tags": tags, **fields}
    return ReferenceLabel(case=case, repeat=0, passed=passed, **whole)  # type: ignore[arg-type]


def test_reference_labels_are_the_majority_or_the_adjudication(store: SharedStorage, graded: Run) -> None:
    run = graded.id
    put(store, run, HumanVerdict("pass"), "c5", rater="ada")
    for rater, verdict in (("ada", "pass"), ("bob", "fail"), ("eve", "fail")):
        put(store, run, HumanVerdict(verdict), "c0", rater=rater)  # type: ignore[arg-type]
    for rater, verdict in (("ada", "pass"), ("bob", "fail")):
        put(store, run, HumanVerdict(verdict), "c1", rater=rater)  # type: ignore[arg-type]
        put(store, run, HumanVerdict(verdict), "c2", rater=rater)  # type: ignore[arg-type]
    put(store, run, HumanVerdict("fail", role="adjudicator"), "c2", rater="ada")
    put(store, run, HumanVerdict(score=0.75), "c3")
    put(store, run, HumanVerdict(score=0.5), "c4")
    put(store, run, HumanVerdict(category="rude"), "c6")
    assert reference_labels(store, graded, QUESTION) == ReferenceLabels(
        [
            reference("c0", False, raters=3),
            reference("c2", False, raters=2),
            reference("c3", True, score=0.75),
            reference("c4", False, score=0.5),
            reference("c5", True),
            reference("c6", None, category="rude"),
        ],
        unresolved=1,
    )
    assert [label.value for label in reference_labels(store, graded, QUESTION).labels] == [0, 0, 0.75, 0.5, 1, None]


def test_labels_of_a_replaced_response_are_stale(store: SharedStorage, graded: Run) -> None:
    put(store, graded.id, HumanVerdict("pass"), "c0", response=Response(text="before"))
    put(store, graded.id, HumanVerdict("pass"), "c1", response=Response(text="before"), rater="bob")
    put(store, graded.id, HumanVerdict("fail"), "c1")
    assert reference_labels(store, graded, QUESTION) == ReferenceLabels([reference("c1", False)], stale=1)


def test_a_regrade_has_the_labels_of_the_run_it_regrades(store: SharedStorage, graded: Run) -> None:
    again = Run(name="again", suite="s", parent=graded.id, graders=graded.graders)
    child = store.get_run(store.save_run(again))
    assert child is not None
    put(store, graded.id, HumanVerdict("pass"), "c0")
    put(store, graded.id, HumanVerdict("pass"), "c1")
    put(store, child.id, HumanVerdict("fail"), "c1")
    expected = [reference("c0", True), reference("c1", False)]
    assert reference_labels(store, child, QUESTION).labels == expected
    assert reference_labels(store, graded, QUESTION).labels == [reference("c0", True), reference("c1", True)]


def label_places(store: SharedStorage, run: Run, draws: list[LabelDraw], labelled: int) -> None:
    store.database.transact(lambda transaction: put_draws(transaction, run.id, draws))
    for one in draws[:labelled]:
        put(store, run.id, HumanVerdict("pass", probability=one.probability, sample=one.sample), one.case)


def test_the_probability_of_a_random_sample_is_its_labelled_share(store: SharedStorage, graded: Run) -> None:
    label_places(store, graded, [draw(f"c{number}", number) for number in range(4)], labelled=2)
    put(store, graded.id, HumanVerdict("fail"), "c3")  # labelled for another reason, further on in the sample
    found = reference_labels(store, graded, QUESTION).labels
    assert [(one.case, one.probability) for one in found] == [("c0", 0.25), ("c1", 0.25), ("c3", None)]


def test_a_sample_that_is_labelled_elsewhere_counts_as_far_as_it_is_complete(store: SharedStorage, graded: Run) -> None:
    drawn = [draw(f"c{number}", number) for number in range(5)]
    store.database.transact(lambda transaction: put_draws(transaction, graded.id, drawn))
    for case in ("c0", "c1", "c3"):
        put(store, graded.id, HumanVerdict("pass"), case)
    found = reference_labels(store, graded, QUESTION).labels
    assert [(one.case, one.probability) for one in found] == [("c0", 0.25), ("c1", 0.25), ("c3", None)]


def test_a_random_and_a_stratified_sample_count_together(store: SharedStorage, graded: Run) -> None:
    random = [draw("c0", 0, 0.25, "fail", 2), draw("c2", 1, 0.25, "pass", 6)]
    stratified = [
        draw("c0", 0, 0.5, "fail", 2, method="stratified"),
        draw("c1", 1, 0.5, "fail", 2, method="stratified"),
    ]
    label_places(store, graded, random, labelled=2)
    label_places(store, graded, stratified, labelled=2)
    found = reference_labels(store, graded, QUESTION).labels
    assert [(one.case, one.probability) for one in found] == [("c0", 1.0), ("c1", 1.0), ("c2", 1 / 6)]


def test_the_probability_of_a_stratified_sample_is_that_of_the_stratum(store: SharedStorage, graded: Run) -> None:
    strata = {"c0": ("fail", 2, 1.0), "c1": ("pass", 6, 0.5), "c2": ("pass", 6, 0.5), "c3": ("pass", 6, 0.5)}
    drawn = [
        draw(case, place, probability, stratum, size, method="stratified")
        for place, (case, (stratum, size, probability)) in enumerate(strata.items())
    ]
    label_places(store, graded, drawn, labelled=3)
    found = reference_labels(store, graded, QUESTION).labels
    assert [(one.case, one.probability) for one in found] == [("c0", 1 / 2), ("c1", 2 / 6), ("c2", 2 / 6)]


def test_results_drawn_because_judges_disagree_have_no_probability(store: SharedStorage, graded: Run) -> None:
    label_places(store, graded, [draw(f"c{n}", n, None, method="disagreement") for n in range(3)], labelled=3)
    put(store, graded.id, HumanVerdict("pass", probability=0.125), "c5")  # as given by an imported file
    found = reference_labels(store, graded, QUESTION).labels
    assert [(one.case, one.probability) for one in found] == [("c0", None), ("c1", None), ("c2", None), ("c5", 0.125)]

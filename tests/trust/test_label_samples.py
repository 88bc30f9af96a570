"""Samples of a stored run: drawn once, continued, and the same for every rater."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from labelled_runs import judged_run

import gradeline.trust
from gradeline.errors import UNSURE, ConfigError
from gradeline.model import ErrorInfo, Fault, Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.model.label import HumanVerdict
from gradeline.store import PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.trust import draw_sample, label_status, reference_labels
from gradeline.trust.label_samples import candidates, samples_of
from gradeline.trust.labelling import Labelling

STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    with STORES[request.param](request) as storage:
        yield storage


def test_a_failed_call_has_nothing_to_label(store: SharedStorage) -> None:
    found = candidates(store, judged_run(store, cases=5, failing=2), "quality")
    assert [(one.case, one.stratum) for one in found] == [
        *(("c0", "fail"), ("c1", "fail"), ("c2", "pass"), ("c3", "pass"), ("c4", "pass")),
    ]


def test_a_question_of_people_only_has_no_strata(store: SharedStorage) -> None:
    assert {one.stratum for one in candidates(store, judged_run(store), "tone")} == {""}


def test_a_grader_that_only_people_answer_can_be_labelled(store: SharedStorage) -> None:
    run = store.save_run(Run(name="r", suite="s", graders={"review": RunGrader("imported", "f")}))
    key = ResponseKey(run, "a")
    store.put_response(key, Response(text="x"), Sample("a", "q"))
    store.put_grade(GradeKey(*key, "review"), Grade("imported", "f", Outcome.NOT_APPLICABLE))
    found = store.get_run(run)
    assert found is not None
    assert [one.case for one in candidates(store, found, "review")] == ["a"]


def test_a_sample_is_stored_and_continued(store: SharedStorage) -> None:
    run = judged_run(store, cases=20, failing=10)
    first = draw_sample(store, run, "quality", 5, 1)
    assert (first.method, first.seed, len(first.draws)) == ("random", 1, 5)
    assert {one.probability for one in first.draws} == {0.25}
    assert draw_sample(store, run, "quality") == first
    longer = draw_sample(store, run, "quality", 10, 1)
    assert [one.case for one in longer.draws[:5]] == [one.case for one in first.draws]
    assert {one.probability for one in longer.draws} == {0.5}
    assert draw_sample(store, run, "quality", 3, 1).draws == longer.draws[:3]
    assert len(samples_of(store, run, "quality")) == 1
    assert draw_sample(store, run, "quality", 5, 2).id != first.id
    assert draw_sample(store, run, "tone", 5, 1).id != first.id


def test_a_rare_verdict_is_drawn_more_often(store: SharedStorage) -> None:
    run = judged_run(store, cases=40, failing=4)
    sample = draw_sample(store, run, "quality", 8, 1)
    assert sample.method == "stratified"
    assert sorted((one.stratum, one.probability) for one in sample.draws) == [
        *[("fail", 1.0)] * 4,
        *[("pass", 4 / 36)] * 4,
    ]
    assert draw_sample(store, run, "quality", 8, 2, "random").method == "random"


def test_judges_that_disagree_come_first(store: SharedStorage) -> None:
    graders = {name: RunGrader("model_judge", name, judges=(name,)) for name in ("one", "two")}
    run = store.get_run(store.save_run(Run(name="r", suite="s", graders=graders)))
    assert run is not None
    for number in range(10):
        key = ResponseKey(run.id, f"c{number}")
        store.put_response(key, Response(text="x"), Sample(key.case, "q"), number)
        for name in graders:
            passed = name == "one" or number != 7
            outcome = Outcome.PASS if passed else Outcome.FAIL
            store.put_grade(GradeKey(*key, name), Grade("model_judge", name, outcome, float(passed), passed))
    sample = draw_sample(store, run, "one", 3, 1, "disagreement")
    assert sample.draws[0].case == "c7"
    assert {one.probability for one in sample.draws} == {None}


def test_what_a_selective_judge_is_unsure_of_is_a_queue(store: SharedStorage) -> None:
    run = judged_run(store, cases=6, failing=3)

    def leave_to_people(case: str) -> None:
        error = ErrorInfo(UNSURE, "confidence 0.6", Fault.GRADER)
        store.put_grade(GradeKey(run.id, case, 0, "quality"), Grade("model_judge", "f1", Outcome.ERROR, error=error))

    with pytest.raises(ConfigError, match="has no result that 'quality' is unsure of"):
        draw_sample(store, run, "quality", method="unsure")
    leave_to_people("c4")
    first = draw_sample(store, run, "quality", method="unsure")
    assert [(one.case, one.probability, one.stratum) for one in first.draws] == [("c4", None, "none")]
    for case in ("c0", "c2"):
        leave_to_people(case)
    queue = draw_sample(store, run, "quality", method="unsure").draws
    assert [one.case for one in queue[:1]] == ["c4"]
    assert sorted(one.case for one in queue) == ["c0", "c2", "c4"]


def test_a_panel_whose_members_disagree_comes_first(store: SharedStorage) -> None:
    run = judged_run(store, cases=10, failing=0)
    grade = Grade("panel", "f1", Outcome.PASS, 0.5, True, metadata={"disagreement": {"range": 0.8, "sd": 0.4}})
    store.put_grade(GradeKey(run.id, "c4", 0, "quality"), grade)
    assert draw_sample(store, run, "quality", 3, 1, "disagreement").draws[0].case == "c4"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "sample: invalid sample size 0: use 1 or more"),
        ({"seed": -1}, "seed: invalid seed -1"),
        ({"seed": 2**53}, "seed: invalid seed"),
    ],
)
def test_an_invalid_sample_is_refused(store: SharedStorage, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        draw_sample(store, judged_run(store), "quality", **arguments)


def test_a_question_has_a_name_that_a_terminal_can_show(store: SharedStorage) -> None:
    with pytest.raises(ConfigError, match="invalid question"):
        draw_sample(store, judged_run(store), "\x1b[2Jtone", 5, 1)


def test_a_run_without_responses_has_nothing_to_label(store: SharedStorage) -> None:
    run = store.get_run(store.save_run(Run(name="r", suite="s", graders={"quality": RunGrader("k", "f")})))
    assert run is not None
    with pytest.raises(ConfigError, match=r"has no response to label for 'quality'"):
        draw_sample(store, run, "quality")


def test_two_who_draw_at_once_get_one_sample(store: SharedStorage) -> None:
    run = judged_run(store, cases=30, failing=15)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: draw_sample(store, run, "quality", 10, 1), range(4)))
    assert {tuple((one.case, one.place) for one in sample.draws) for sample in found} == {
        tuple((one.case, one.place) for one in found[0].draws)
    }
    assert len(samples_of(store, run, "quality")[0].draws) == 10


def test_a_corrected_rate_can_use_the_probabilities_of_what_was_labelled(store: SharedStorage) -> None:
    run = judged_run(store, cases=40, failing=4)
    sample = draw_sample(store, run, "quality", 8, 1)
    ada = Labelling(store, run, "quality", "ada")
    for one in sample.draws:
        record = ada.record(one.case, one.repeat)
        ada.put(record, HumanVerdict("pass", probability=one.probability, sample=one.sample))
    found = reference_labels(store, run, "quality")
    assert sum(1 / one.probability for one in found.labels if one.probability) == pytest.approx(40)


def test_a_sample_of_a_part_of_the_run_is_drawn_again_when_the_run_is_whole(store: SharedStorage) -> None:
    run = judged_run(store, cases=20, failing=10)
    messages: list[str] = []
    first = draw_sample(store, store.update_run(run.id, status="running"), "quality", 8, 1, progress=messages.append)
    assert f"run {run.id} has not ended: when it has, draw the sample again from all of its results" in messages
    ada = Labelling(store, run, "quality", "ada")
    for one in first.draws:
        value = HumanVerdict("pass", probability=one.probability, sample=one.sample)
        ada.put(ada.record(one.case, one.repeat), value)
    assert {one.probability for one in reference_labels(store, run, "quality").labels} == {0.4}
    for number in range(20, 80):
        store.put_response(ResponseKey(run.id, f"c{number}"), Response(text="x"), Sample(f"c{number}", "q"), number)
    assert {one.probability for one in reference_labels(store, run, "quality").labels} == {None}
    again = draw_sample(store, run, "quality", 8, 1, progress=messages.append)
    assert "the run has more results than when this sample was drawn: drawing from all of them" in messages
    assert [(len(again.draws), {one.probability for one in again.draws})] == [(8, {0.1})]
    for one in again.draws:
        value = HumanVerdict("fail", probability=one.probability, sample=one.sample)
        ada.put(ada.record(one.case, one.repeat), value)
    drawn = {one.case for one in again.draws}
    found = {one.case: one.probability for one in reference_labels(store, run, "quality").labels}
    assert found == {one.case: 0.1 if one.case in drawn else None for one in (*first.draws, *again.draws)}
    assert draw_sample(store, run, "quality", 8, 1) == again


def test_a_regrade_continues_the_sample_of_its_responses(store: SharedStorage) -> None:
    run = judged_run(store, cases=20, failing=10)
    first = draw_sample(store, run, "quality", 5, 1)
    again = store.save_run(Run(name="again", suite="s", parent=run.id, graders=run.graders))
    child = store.get_run(again)
    assert child is not None
    assert draw_sample(store, child, "quality") == first
    longer = draw_sample(store, child, "quality", 8, 1)
    assert [one.place for one in longer.draws] == list(range(8))
    assert [one.case for one in longer.draws[:5]] == [one.case for one in first.draws]


def test_a_label_of_the_regraded_run_is_withdrawn_too(store: SharedStorage) -> None:
    run = judged_run(store, cases=5, failing=2)
    ada = Labelling(store, run, "quality", "ada")
    ada.put(ada.record("c1", 0), HumanVerdict("pass"))
    child = store.get_run(store.save_run(Run(name="again", suite="s", parent=run.id, graders=run.graders)))
    assert child is not None
    again = Labelling(store, child, "quality", "ada")
    again.put(again.record("c1", 0), HumanVerdict("fail"))
    assert [one.passed for one in reference_labels(store, child, "quality").labels] == [False]
    assert again.withdraw("c1", 0)
    assert reference_labels(store, child, "quality").labels == []
    assert not again.withdraw("c1", 0)


def test_the_status_shows_agreement_and_what_is_left(store: SharedStorage) -> None:
    run = judged_run(store, cases=10, failing=5)
    sample = draw_sample(store, run, "quality", 6, 1)
    raters = {name: Labelling(store, run, "quality", name) for name in ("ada", "eve")}
    for number, one in enumerate(sample.draws[:4]):
        record = raters["ada"].record(one.case, one.repeat)
        raters["ada"].put(record, HumanVerdict("pass" if number % 2 else "fail", sample=sample.id))
        if number < 3:
            raters["eve"].put(record, HumanVerdict("pass" if number else "fail", sample=sample.id))
    status = label_status(store, run, "quality")
    assert [(one.rater, one.labels, one.adjudications) for one in status.raters] == [("ada", 4, 0), ("eve", 3, 0)]
    (progress,) = status.samples
    assert (progress.size, progress.labelled, progress.by_rater) == (6, 4, {"ada": 4, "eve": 3})
    (pair,) = status.pairs
    assert (pair.first, pair.second, pair.results, pair.same) == ("ada", "eve", 3, 2)
    assert pair.kappa is not None
    assert pair.kappa.estimate == pytest.approx(0.4)
    assert status.alpha is not None
    third = sample.draws[2]
    assert [(one.case, one.values, one.resolved) for one in status.disagreements] == [
        (third.case, {"ada": "fail", "eve": "pass"}, False)
    ]
    assert (status.results, status.unresolved, status.stale) == (4, 1, 0)
    judge = Labelling(store, run, "quality", "eve", "adjudicator")
    judge.put(judge.record(third.case, third.repeat), HumanVerdict("pass"))
    after = label_status(store, run, "quality")
    assert (after.unresolved, after.disagreements[0].resolved) == (0, True)
    assert {one.case: one.passed for one in reference_labels(store, run, "quality").labels}[third.case] is True


def test_no_public_name_is_that_of_a_module() -> None:
    """Importing the module would replace the name."""
    folder = Path(gradeline.trust.__file__).parent
    assert {path.stem for path in folder.glob("*.py")} & set(gradeline.trust.__all__) == set()

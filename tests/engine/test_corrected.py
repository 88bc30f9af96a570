"""Labels in the store next to grades: what a run's rates and two runs' differences are corrected by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from gradeline.engine.aggregate import conclude
from gradeline.engine.comparison import compare, paired
from gradeline.engine.corrected import labelled_scores
from gradeline.engine.definition import Rules
from gradeline.engine.judge_trust import trust_version
from gradeline.errors import Fault, Outcome
from gradeline.model import ErrorInfo, Grade, GradeKey, Response, ResponseKey, Run, RunGrader, Sample
from gradeline.model.label import HumanVerdict, LabelKey, SamplingMethod
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.store.labels import LabelDraw, create_label_tables, insert_label, label_row, put_draws
from gradeline.verdict.corrected import JudgedLabel
from gradeline.verdict.corrected_difference import LabelledPairs
from gradeline.verdict.evidence import Clustering

STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}
AT = "2026-11-19T10:00:00Z"
JUDGE = RunGrader("model_judge", "f1", ("m",))
NO_CALL = "failed call"
ERROR = "judge failed"
ELSEWHERE = "not applicable"
Verdicts = Mapping[str, Sequence[float | str]]
"""The judge's score of each repeat of a case, or why there is none."""


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[SharedStorage]:
    storage = STORES[request.param](request)
    create_label_tables(storage.database)
    yield storage
    storage.close()


@pytest.fixture
def memory() -> SharedStorage:
    storage = InMemoryStorage()
    create_label_tables(storage.database)
    return storage


def stored(store: SharedStorage, verdicts: Verdicts, *, parent: str | None = None, **fields: object) -> Run:
    repeats = max(map(len, verdicts.values()))
    total = sum(map(len, verdicts.values()))
    run = Run(
        name="r", suite="s", status="completed", graders={"judged": JUDGE}, repeats=repeats, total=total, parent=parent,
        **fields,  # type: ignore[arg-type]
    )  # fmt: skip
    found = store.get_run(store.save_run(run))
    assert found is not None
    for case, results in verdicts.items():
        for repeat, one in enumerate(results):
            key = ResponseKey(found.id, case, repeat)
            if parent is None:
                error = ErrorInfo("status", "503", Fault.AGENT)
                response = Response(status="error", error=error) if one == NO_CALL else Response(text=f"{case}")
                store.put_response(key, response, Sample(case, "q", None))
            store.put_grade(GradeKey(*key, "judged"), grade_of(one))
    return found


def grade_of(one: float | str) -> Grade:
    if isinstance(one, str):
        error = ErrorInfo("invalid_reply", "no number", Fault.GRADER) if one == ERROR else None
        outcome = {NO_CALL: Outcome.SKIPPED, ERROR: Outcome.ERROR, ELSEWHERE: Outcome.NOT_APPLICABLE}[one]
        return Grade("model_judge", "f1", outcome, error=error)
    return Grade("model_judge", "f1", Outcome.PASS if one >= 0.5 else Outcome.FAIL, one, one >= 0.5)


def label(
    store: SharedStorage, run: Run, case: str, passed: bool, repeat: int = 0, *, score: float | None = None,
    probability: float | None = 0.5,
) -> None:  # fmt: skip
    record = store.get_record(ResponseKey(run.id, case, repeat))
    assert record is not None
    verdict = HumanVerdict("pass" if passed else "fail", score=score, probability=probability)
    key = LabelKey(run.id, case, repeat, "judged")
    row = label_row(key, record.sample, record.response, record.grades["judged"], verdict, "ann", AT)
    store.database.transact(lambda transaction: insert_label(transaction, run.id, row))


def draw(store: SharedStorage, run: Run, cases: Sequence[str], seed: int, method: SamplingMethod = "random") -> None:
    draws = [
        LabelDraw(
            f"{method}-{seed}", "judged", place, case, 0, method, seed, 0.5, "", 2 * len(cases), 2 * len(cases), AT
        )
        for place, case in enumerate(cases)
    ]
    store.database.transact(lambda transaction: put_draws(transaction, run.id, draws))


def test_the_scores_of_a_run_come_with_its_labels(store: SharedStorage) -> None:
    run = stored(store, {"a": [1.0], "b": [0.2], "c": [0.9], "d": [ERROR], "e": [NO_CALL], "f": [ELSEWHERE]})
    label(store, run, "a", passed=False)
    label(store, run, "b", passed=False, score=0.1, probability=None)
    label(store, run, "d", passed=True)
    found = labelled_scores(store, run)["judged"]
    assert found._replace(labelled=sorted(found.labelled)) == found._replace(
        labelled=sorted([JudgedLabel(0, 1.0, True, False, None, 0.5), JudgedLabel(1, 0.2, False, False, 0.1, None)]),
        scores=[0.9],
        passes=[1],
        total=5,
        unjudged=1,
        unresolved=0,
        stale=0,
        has_judge=True,
        cases=None,
    )
    assert (len(found.failed_calls), found.judged, found.corrects) == (1, 3, True)
    assert found.command == f"gradeline label {run.id}"


def test_categories_are_neither_pass_nor_fail(memory: SharedStorage) -> None:
    run = stored(memory, {"a": [1.0], "b": [0.0]})
    record = memory.get_record(ResponseKey(run.id, "a", 0))
    assert record is not None
    key, verdict = LabelKey(run.id, "a", 0, "judged"), HumanVerdict(category="rude", probability=0.5)
    row = label_row(key, record.sample, record.response, record.grades["judged"], verdict, "ann", AT)
    memory.database.transact(lambda transaction: insert_label(transaction, run.id, row))
    found = labelled_scores(memory, run)["judged"]
    assert (found.labelled, found.scores, found.unjudged, found.categories) == ([], [1.0, 0.0], 0, 1)
    rate = conclude(memory, run).summary.graders["judged"].corrected
    assert rate is not None
    assert rate.refusal == "1 label with only a category, without pass or fail"


def test_without_labels_no_row_is_read(memory: SharedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored(memory, {"a": [1.0]})
    monkeypatch.setattr(memory, "measures", None)
    found = labelled_scores(memory, run)["judged"]
    assert (found.judged, found.has_judge, found.corrects) == (0, True, True)
    assert conclude(memory, run).summary.graders["judged"].corrected is None


def test_repeats_of_a_case_and_cases_of_a_cluster_are_one_group(store: SharedStorage) -> None:
    run = stored(store, {"a": [1.0, 1.0], "b": [1.0, 0.0], "c": [0.0, 0.0]})
    store.put_clusters(run.id, [("a", "x"), ("b", "x")])
    for case in ("a", "c"):
        label(store, run, case, passed=True, repeat=1)
    found = labelled_scores(store, run)["judged"]
    assert len({one.group for one in found.labelled}) == 2
    assert len(set(found.groups)) == 2
    assert found.cases == Clustering(2, 2)
    assert len(found.scores) == 4


def test_a_regrade_uses_the_labels_of_the_responses_that_it_grades_again(store: SharedStorage) -> None:
    first = stored(store, {f"c{n}": [1.0] for n in range(80)})
    again = stored(store, {f"c{n}": [float(n % 2)] for n in range(80)}, parent=first.id)
    for n in range(40):
        label(store, first, f"c{n}", passed=n % 2 == 1)
    found = conclude(store, again).summary.graders["judged"].corrected
    assert found is not None
    assert (found.judge, found.estimate, found.labels) == (0.5, pytest.approx(0.5), 40)
    assert labelled_scores(store, again)["judged"].command == f"gradeline label {again.id}"


def test_failed_calls_count_as_0_where_the_suite_says_so(memory: SharedStorage) -> None:
    run = stored(memory, {f"c{n}": [float(n % 2)] for n in range(80)} | {f"x{n}": [NO_CALL] for n in range(20)})
    for n in range(40):
        label(memory, run, f"c{n}", passed=n % 2 == 1)
    excluded = conclude(memory, run, Rules(coverage_floor=0.5)).summary.graders["judged"].corrected
    failing = conclude(memory, run, Rules(agent_errors="fail")).summary.graders["judged"].corrected
    assert excluded is not None
    assert failing is not None
    assert (excluded.estimate, failing.estimate) == (pytest.approx(0.5), pytest.approx(0.4))
    assert excluded.notes == ("over the 80 of 100 results that the judge scored",)


def test_the_version_of_a_verdict_changes_with_labels_of_the_run_and_of_its_baseline(store: SharedStorage) -> None:
    baseline, other = (stored(store, {"a": [1.0]}) for _ in range(2))
    gate = {"kind": "regression", "baseline": baseline.id}
    run = stored(store, {"a": [1.0]}, definition=json.dumps({"rules": {"gate": gate}}))
    before = trust_version(store, run)
    label(store, other, "a", passed=True)
    assert trust_version(store, run) == before
    label(store, baseline, "a", passed=True)
    after = trust_version(store, run)
    label(store, run, "a", passed=True)
    assert before != after != trust_version(store, run)


class TestPairs:
    def pairs(self, store: SharedStorage, before: Run, after: Run) -> LabelledPairs:
        found = paired(store, before, after, ["judged"])["judged"].labels
        assert found is not None
        return found

    def test_cases_with_labels_in_both_runs_are_paired(self, store: SharedStorage) -> None:
        before = stored(store, {"a": [1.0], "b": [0.0], "c": [1.0], "d": [ERROR]})
        after = stored(store, {"a": [0.0], "b": [0.0], "c": [1.0], "d": [1.0]})
        for run, passed in ((before, True), (after, False)):
            label(store, run, "a", passed=passed)
            label(store, run, "d", passed=passed)
        label(store, before, "b", passed=True)
        found = self.pairs(store, before, after)
        assert (found.baseline_labels, found.candidate_labels, found.measure) == (3, 2, "pass_rate")
        assert sorted(found.pairs)[0][1:] == (-1.0, -1.0, -1.0, 0.25)
        assert [pair.label for pair in found.pairs].count(None) == 2
        assert found.baseline_command == f"gradeline label {before.id}"

    def test_repeats_are_means(self, store: SharedStorage) -> None:
        before = stored(store, {"a": [1.0, 0.0], "b": [1.0, 1.0]})
        after = stored(store, {"a": [1.0, 1.0], "b": [0.0, 0.0]})
        label(store, before, "a", passed=False, repeat=0)
        label(store, after, "a", passed=True, repeat=1)
        (pair, other) = self.pairs(store, before, after).pairs
        assert (pair.judged, pair.label, pair.judged_labelled, pair.probability) == (0.5, 1.0, 0.0, 0.25)
        assert (other.judged, other.label) == (-1.0, None)

    def test_scores_of_all_labels_compare_means(self, memory: SharedStorage) -> None:
        before, after = (stored(memory, {"a": [score]}) for score in (0.4, 0.6))
        label(memory, before, "a", passed=False, score=0.3)
        label(memory, after, "a", passed=False, score=0.1)
        found = self.pairs(memory, before, after)
        assert found.measure == "mean_score"
        assert found.pairs[0].label == pytest.approx(-0.2)
        assert found.pairs[0].judged == pytest.approx(0.2)

    @pytest.mark.parametrize(
        ("seeds", "probability"), [((1, 1), 0.5), ((1, 2), 0.25), ((), 0.25)], ids=["same", "other", "imported"]
    )
    def test_one_seed_draws_the_same_cases_in_both_runs(
        self, memory: SharedStorage, seeds: tuple[int, ...], probability: float
    ) -> None:
        runs = [stored(memory, {"a": [1.0], "b": [1.0]}) for _ in range(2)]
        for run, seed in zip(runs, seeds, strict=False):
            draw(memory, run, ["a"], seed)
        for run in runs:
            label(memory, run, "a", passed=True)
        assert self.pairs(memory, *runs).pairs[0].probability == probability

    def test_another_sample_of_one_run_does_not_change_which_cases_both_have(self, memory: SharedStorage) -> None:
        runs = [stored(memory, {"a": [1.0], "b": [1.0], "c": [0.0]}) for _ in range(2)]
        draw(memory, runs[0], ["b", "c"], 5)
        for run in runs:
            draw(memory, run, ["a", "c"], 1)
            for case in ("a", "b"):
                label(memory, run, case, passed=True)
        found = {pair.group: pair.probability for pair in self.pairs(memory, *runs).pairs if pair.label is not None}
        assert found == {0: 0.25, 1: None}

    def test_a_run_that_is_labelled_completely_needs_no_sample(self, memory: SharedStorage) -> None:
        before, after = (stored(memory, {"a": [1.0], "b": [1.0]}) for _ in range(2))
        for case in ("a", "b"):
            label(memory, before, case, passed=True, probability=None)
        label(memory, after, "a", passed=True)
        assert [pair.probability for pair in self.pairs(memory, before, after).pairs if pair.label is not None] == [0.5]

    def test_failed_calls_of_the_agent_are_failures_for_certain(self, memory: SharedStorage) -> None:
        before = stored(memory, {"a": [1.0], "b": [1.0]})
        excluding, failing = (
            stored(memory, {"a": [NO_CALL], "b": [1.0]}, definition=f'{{"rules": {{"agent_errors": "{rule}"}}}}')
            for rule in ("exclude", "fail")
        )
        label(memory, before, "a", passed=True)
        for after in (excluding, failing):
            label(memory, after, "b", passed=True)
        assert [pair.label for pair in self.pairs(memory, before, excluding).pairs] == [None]
        (failed, other) = self.pairs(memory, before, failing).pairs
        assert (failed.judged, failed.label, failed.probability) == (-1.0, -1.0, 0.5)
        assert other.label is None

    def test_a_run_compared_with_itself_does_not_differ(self, memory: SharedStorage) -> None:
        run = stored(memory, {f"c{n}": [float(n % 3 > 0)] for n in range(100)})
        for n in range(50):
            label(memory, run, f"c{n}", passed=n % 2 == 0)
        found = compare(memory, run, run).graders["judged"].corrected
        assert found is not None
        assert (found.estimate, found.judge, found.labels) == (0.0, 0.0, 50)

"""Anchors: which answers are frozen, which are judged again by a run, and what failures of a judge do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gradeline.engine.anchor_records import anchors_in_use, checks_of
from gradeline.engine.anchors import limited_reference, next_anchors
from gradeline.engine.definition import RunOptions
from gradeline.engine.lifecycle import run_event_loop
from gradeline.engine.orchestrate import RunRequest, resume_run, run_suite
from gradeline.errors import ConfigError, ProviderRefusedError
from gradeline.model import Run, Sample
from gradeline.model.anchors import Anchor, AnchorCheck, AnchorScore, AnchorSet
from gradeline.model.response import Response
from gradeline.store import InMemoryStorage, PostgresStorage, SqliteStorage
from gradeline.store.database import SharedStorage
from gradeline.testing.fake_judge import Behaviour, FakeJudge, with_mark
from gradeline.testing.fake_judge.server import BehaviourRule
from gradeline.trust import anchors as trust
from gradeline.trust.anchors import ScoredResult, choose_results

T = TypeVar("T")

CASES = 40
STORES: dict[str, Callable[[pytest.FixtureRequest], SharedStorage]] = {
    "memory": lambda request: InMemoryStorage(),
    "sqlite": lambda request: SqliteStorage(request.getfixturevalue("tmp_path") / "store.db"),
    "postgresql": lambda request: PostgresStorage(request.getfixturevalue("postgres_url")),
}


def results(*scores: float, repeats: int = 1) -> list[ScoredResult]:
    return [
        ScoredResult(f"c{number}", repeat, score) for number, score in enumerate(scores) for repeat in range(repeats)
    ]


def test_anchors_are_spread_over_the_scores_in_proportion_but_rare_scores_have_a_tenth() -> None:
    chosen = choose_results(results(*[1.0] * 190, *[0.0] * 10), 60, seed=1)
    counts = Counter(one.result.score for one in chosen)
    assert counts == {1.0: 54, 0.0: 6}
    weights = {one.result.score: one.weight for one in chosen}
    assert weights == {1.0: pytest.approx(0.95 / 0.9), 0.0: pytest.approx(0.05 / 0.1)}
    assert sum(one.weight for one in chosen) == pytest.approx(60)


def test_a_case_is_chosen_once_and_the_seed_decides() -> None:
    every = results(*[number / 99 for number in range(100)], repeats=3)
    chosen = choose_results(every, 60, seed=1)
    assert len({one.result.case for one in chosen}) == 60
    assert chosen == choose_results(every[::-1], 60, seed=1) != choose_results(every, 60, seed=2)
    assert len({one.result.repeat for one in chosen}) == 3
    assert len(choose_results(results(0.5, 0.7), 60, seed=1)) == 2


def anchor(name: str) -> Anchor:
    response = Response(text="a")
    return Anchor(name=name, case=name, repeat=0, sample=Sample(name, "q"), response=response, response_digest="d")


def test_every_anchor_has_its_turn_before_any_comes_again() -> None:
    frozen = AnchorSet(
        id="a",
        suite="s",
        grader="g",
        run="r",
        judge=("j",),
        judge_fingerprint="f",
        fingerprint="f",
        at="t",
        seed=4,
        requested=12,
        repeats=3,
        anchors=tuple(anchor(str(number)) for number in range(12)),
    )
    checks: list[AnchorCheck] = []
    for _ in range(5):
        chosen = next_anchors(frozen, checks, 5)
        # one without a score has had its turn too
        checks.append(AnchorCheck(set="a", at="t", scores=tuple(AnchorScore(name=one.name) for one in chosen)))
    turns = Counter(score.name for check in checks for score in check.scores)
    assert sorted(turns.values()) == [2] * 11 + [3]


def test_a_large_reference_is_a_random_part() -> None:
    scores = {str(number): 0.5 for number in range(6_000)}
    assert len(limited_reference(scores, 1)) == 5_000
    assert limited_reference(scores, 1) == limited_reference(dict(reversed(scores.items())), 1)
    assert limited_reference({"a": 1.0}, 1) == {"a": 1.0}


class Suite:
    """A suite whose judge is a `FakeJudge`, in a store."""

    def __init__(self, folder: Path, storage: SharedStorage, judge: FakeJudge) -> None:
        self.folder, self.storage, self.judge = folder, storage, judge
        rows = [{"id": f"c{number}", "input": f"Question {number}?"} for number in range(CASES)]
        (folder / "cases.jsonl").write_text("\n".join(map(json.dumps, rows)))
        self.answer("old")
        grader = {
            "kind": "model_judge",
            "prompt": "Good? {submission}",
            "model": "fake-judge",
            "base_url": judge.base_url(),
            "max_retries": 0,
        }
        (folder / "suite.json").write_text(
            json.dumps(
                {
                    "name": "s",
                    "dataset": "cases.jsonl",
                    "target": {"kind": "replay", "responses": "answers.jsonl"},
                    "graders": {"g": grader},
                }
            )
        )

    def answer(self, version: str) -> None:
        rows = [
            {"id": f"c{number}", "text": with_mark("Text.", f"{version}-{number}", quality=0.2 + 0.6 * (number % 2))}
            for number in range(CASES)
        ]
        (self.folder / "answers.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return run_event_loop(work)

    def run(self) -> Run:
        request = RunRequest(self.folder / "suite.json", RunOptions())
        return self.do(run_suite(self.storage, request)).runs[0].report.run

    def freeze(self, run: Run, **options: Any) -> AnchorSet:
        return self.do(trust.freeze(self.storage, run, number=20, **options))

    @property
    def checks(self) -> list[AnchorCheck]:
        found = anchors_in_use(self.storage, "s", "g")
        assert found is not None
        return checks_of(self.storage, found)


@pytest.fixture(scope="module")
def judge() -> Iterator[FakeJudge]:
    with FakeJudge(seed=5).in_thread() as server:
        yield server


@pytest.fixture(params=STORES)
def suite(request: pytest.FixtureRequest, tmp_path: Path, judge: FakeJudge) -> Iterator[Suite]:
    storage = STORES[request.param](request)
    judge.behaviour, judge.rules = Behaviour(), []
    yield Suite(tmp_path, storage, judge)
    storage.close()


sqlite_only = pytest.mark.parametrize("suite", ["sqlite"], indirect=True)


def test_runs_judge_a_twentieth_again_once_each(suite: Suite) -> None:
    first = suite.run()
    frozen = suite.freeze(first)
    assert (len(frozen.anchors), frozen.calls, len(frozen.reference)) == (20, 60, CASES)
    assert {one.scores for one in frozen.anchors} == {(0.2,) * 3, (0.8,) * 3}
    second = suite.run()
    before = len(suite.judge.requests)
    suite.do(resume_run(suite.storage, second.id))
    assert len(suite.judge.requests) == before
    (check,) = suite.checks
    assert (check.run, check.calls, check.answer, check.cases) == (second.id, CASES // 20, "none", ((0.0, CASES),))
    assert check.judge_fingerprint == frozen.judge_fingerprint


@sqlite_only
def test_a_judge_that_refuses_the_anchors_does_not_stop_the_run(suite: Suite) -> None:
    suite.freeze(suite.run())
    suite.answer("new")
    suite.judge.rules = [BehaviourRule(behaviour="401", item="old-*")]
    run = suite.run()
    assert run.status == "completed"
    (check,) = suite.checks
    assert (check.scores, check.answer) == ((), "none")
    with pytest.raises(ProviderRefusedError, match="does not accept this key"):
        suite.do(trust.check(suite.storage))
    assert len(suite.checks) == 1


@sqlite_only
def test_answers_that_the_judge_cannot_score_are_left_out(suite: Suite) -> None:
    run = suite.run()
    suite.judge.rules = [BehaviourRule(behaviour="refusal", item=f"old-{number}") for number in range(0, CASES, 4)]
    frozen = suite.freeze(run)
    assert 10 <= len(frozen.anchors) < 20
    assert all(len(one.scores) == 3 for one in frozen.anchors)
    suite.judge.rules = [BehaviourRule(behaviour="refusal")]
    with pytest.raises(ConfigError, match="the judge gave 0 of 20 answers a score; first error: refused"):
        suite.freeze(run, seed=2)
    found = anchors_in_use(suite.storage, "s", "g")
    assert found is not None
    assert found.id == frozen.id


@sqlite_only
def test_only_completed_runs_of_the_same_grader_are_frozen(suite: Suite) -> None:
    run = suite.run()
    stopped = suite.storage.update_run(run.id, status="failed")
    with pytest.raises(ConfigError, match="is failed; freeze answers of a completed run"):
        suite.freeze(stopped)
    suite.storage.update_run(run.id, status="completed")
    text = (suite.folder / "suite.json").read_text()
    (suite.folder / "suite.json").write_text(text.replace("Good?", "Really good?"))
    with pytest.raises(ConfigError, match="'g' changed since the run: run the suite again"):
        suite.freeze(run)


@sqlite_only
def test_runs_with_another_prompt_judge_no_anchors(suite: Suite) -> None:
    suite.freeze(suite.run())
    text = (suite.folder / "suite.json").read_text()
    (suite.folder / "suite.json").write_text(text.replace("Good?", "Really good?"))
    suite.run()
    assert suite.checks == []
    (outcome,) = suite.do(trust.check(suite.storage))
    assert outcome.changed_since == "the prompt or an option of the judge changed"
    assert suite.checks == []

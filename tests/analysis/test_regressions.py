"""The cases that became worse: the largest loss first, then those that lost their score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from gradeline.analysis.regressions import RegressedCase, Regressions, ScoreChange, find_regressions
from gradeline.engine.comparison import compare
from gradeline.errors import Fault
from gradeline.model import ErrorInfo, Grade, GradeKey, Outcome, Response, ResponseKey, Run, RunGrader, Sample, Storage
from gradeline.store import open_storage


@pytest.fixture
def storage() -> Iterator[Storage]:
    with open_storage("memory://") as opened:
        yield opened


def stored(storage: Storage, graders: Mapping[str, Mapping[str, float | None]]) -> Run:
    """A run with these scores by grader and case; None is an error of the grader."""
    new = Run(name="r", suite="s", status="completed", graders={key: RunGrader("k", "f") for key in graders})
    run = storage.get_run(storage.save_run(new))
    assert run is not None
    for case in dict.fromkeys(case for scores in graders.values() for case in scores):
        storage.put_response(ResponseKey(run.id, case), Response(text="a"), Sample(case, "q"))
        for key, scores in graders.items():
            score = scores[case]
            if score is None:
                grade = Grade("k", "f", Outcome.ERROR, None, error=ErrorInfo("bad_reply", "?", Fault.GRADER))
            else:
                grade = Grade("k", "f", Outcome.PASS if score == 1.0 else Outcome.FAIL, score, score == 1.0)
            storage.put_grade(GradeKey(run.id, case, 0, key), grade)
    return run


def find(
    storage: Storage, before: Mapping[str, Mapping[str, float | None]], after: Mapping[str, Mapping[str, float | None]]
) -> Regressions:
    comparison = compare(storage, stored(storage, before), stored(storage, after))
    return find_regressions(storage, comparison, most=3)


def test_the_largest_loss_comes_first_and_equal_ones_in_the_order_of_the_cases(storage: Storage) -> None:
    before = {"right": dict.fromkeys("abcde", 1.0)}
    after = {"right": {"a": 0.5, "b": 0.0, "c": 1.0, "d": 0.5, "e": 0.5}}
    assert find(storage, before, after) == Regressions(
        (
            RegressedCase("b", (ScoreChange("right", 1.0, 0.0),)),
            RegressedCase("a", (ScoreChange("right", 1.0, 0.5),)),
            RegressedCase("d", (ScoreChange("right", 1.0, 0.5),)),
        ),
        total=4,
    )


def test_a_case_has_the_changes_of_all_graders_that_count_it_as_worse(storage: Storage) -> None:
    before = {"right": {"a": 1.0, "b": 1.0}, "short": {"a": 1.0, "b": 0.5}}
    after = {"right": {"a": 0.5, "b": 1.0}, "short": {"a": 0.25, "b": 0.75}}
    found = find(storage, before, after)
    changes = (ScoreChange("right", 1.0, 0.5), ScoreChange("short", 1.0, 0.25))
    assert found == Regressions((RegressedCase("a", changes),), total=1)
    assert found.cases[0].loss == 0.75


def test_a_lost_score_is_shown_last_and_not_counted_as_worse(storage: Storage) -> None:
    before = {"right": {"a": 1.0, "b": 1.0, "c": None}}
    after = {"right": {"a": None, "b": 0.5, "c": None}}
    assert find(storage, before, after) == Regressions(
        (
            RegressedCase("b", (ScoreChange("right", 1.0, 0.5),)),
            RegressedCase("a", (ScoreChange("right", 1.0, None),)),
        ),
        total=1,
    )


def test_a_case_that_was_removed_or_added_is_not_a_regression(storage: Storage) -> None:
    before = {"right": {"a": 1.0, "removed": 1.0}}
    after = {"right": {"a": 1.0, "added": 0.0}}
    assert find(storage, before, after) == Regressions()


def test_runs_that_are_not_comparable_have_no_regressions(storage: Storage) -> None:
    assert find(storage, {"right": {"a": 1.0}}, {"other": {"a": 0.0}}) == Regressions()

"""The cost grader: known sums are compared, unknown ones are errors."""

from __future__ import annotations

import pytest

from gradeline import GradeContext, GradeResult, Response, Sample
from gradeline.errors import ConfigError
from gradeline.graders import create, run_grader
from gradeline.model import Usage

SAMPLE = Sample(0, "q")


def context(cost: float | None) -> GradeContext:
    return GradeContext(SAMPLE, "answer", Response(text="answer", usage=Usage(cost=cost)))


@pytest.mark.parametrize(
    ("cost", "score", "rationale"),
    [
        (0.0, 1.0, "0, at most 0.05"),
        (0.05, 1.0, "0.05, at most 0.05"),
        (0.0512345678, 0.0, "0.0512346, at most 0.05"),
    ],
)
def test_an_answer_passes_up_to_the_maximum_cost(cost: float, score: float, rationale: str) -> None:
    result = create("cost", {"max_cost": 0.05}).grade(context(cost))
    assert result == GradeResult(score, rationale, {"cost": cost}, score == 1.0)


@pytest.mark.parametrize(
    ("ctx", "message"),
    [
        (GradeContext(SAMPLE, "answer"), "the context has no response"),
        (GradeContext(SAMPLE, "answer", Response(text="answer")), "the response reports no cost"),
        (context(None), "the response reports no cost"),
    ],
)
def test_an_unknown_cost_is_an_error_and_not_a_cheap_answer(ctx: GradeContext, message: str) -> None:
    error = run_grader(create("cost", {"max_cost": 1}), ctx).error
    assert error is not None
    assert (error.type, error.message.partition(";")[0], error.fault) == ("missing", message, "infrastructure")


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_an_invalid_cost_cannot_be_graded(cost: float) -> None:
    error = run_grader(create("cost", {"max_cost": 1}), context(cost)).error
    assert error is not None
    assert error.type == "ungradable"


def test_an_empty_answer_has_its_cost_too() -> None:
    empty = GradeContext(SAMPLE, "", Response(text="", usage=Usage(cost=2.0)))
    assert run_grader(create("cost", {"max_cost": 1}), empty).score == 0.0


@pytest.mark.parametrize("config", [{}, {"max_cost": -1}, {"max_cost": "cheap"}, {"max_cost": float("inf")}])
def test_a_wrong_limit_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"cost: config\.max_cost: "):
        create("cost", config)

from __future__ import annotations

from math import inf, nan

import pytest

from gradeline.errors import ConfigError, MissingDataError, Outcome, UngradableError
from gradeline.graders import create, run_grader
from gradeline.graders.limits import LatencyGrader
from gradeline.model import GradeContext, GradeResult, Response, Sample


def context(latency_ms: float | None) -> GradeContext:
    return GradeContext(Sample(id=0, input=""), "", Response(text="", latency_ms=latency_ms))


def test_an_answer_in_time_scores_one() -> None:
    assert create("latency").grade(context(812)) == GradeResult(
        1.0, "812 ms, at most 10,000 ms", {"latency_ms": 812}, True
    )


def test_a_late_answer_scores_zero() -> None:
    assert create("latency", {"max_ms": 500}).grade(context(1812.25)) == GradeResult(
        0.0, "1,812.25 ms, at most 500 ms", {"latency_ms": 1812.25}, False
    )


def test_the_limit_itself_is_in_time() -> None:
    assert create("latency", {"max_ms": 500}).grade(context(500)).passed


def test_the_smallest_excess_is_visible() -> None:
    assert create("latency").grade(context(10_000.4)).rationale == "10,000.4 ms, at most 10,000 ms"


def test_an_unknown_latency_is_missing_and_not_zero() -> None:
    with pytest.raises(MissingDataError, match="the response has no latency_ms"):
        create("latency").grade(context(None))


def test_no_response_is_missing() -> None:
    with pytest.raises(MissingDataError, match="the context has no response"):
        create("latency").grade(GradeContext(Sample(id=0, input=""), "text"))


@pytest.mark.parametrize("latency_ms", [nan, inf, -1.0])
def test_an_impossible_latency_is_ungradable(latency_ms: float) -> None:
    with pytest.raises(UngradableError, match=r"response\.latency_ms must be a number of milliseconds, got"):
        create("latency").grade(context(latency_ms))


def test_a_missing_latency_is_an_error_outcome_of_the_infrastructure() -> None:
    grade = run_grader(create("latency"), context(None))
    assert (grade.outcome, grade.score, grade.error and (grade.error.type, grade.error.fault)) == (
        Outcome.ERROR,
        None,
        ("missing", "infrastructure"),
    )


def test_an_empty_answer_in_time_passes() -> None:
    assert run_grader(create("latency"), context(1)).outcome is Outcome.PASS


@pytest.mark.parametrize("max_ms", [0, -5, nan, inf, "fast"])
def test_an_invalid_limit_is_refused(max_ms: object) -> None:
    with pytest.raises(ConfigError, match=r"config\.max_ms"):
        create("latency", {"max_ms": max_ms})


def test_the_listing_describes_the_limit() -> None:
    listed = LatencyGrader.describe()
    assert (
        listed["description"] == "Checks the latency of the agent's call. An unknown latency is an error, not a pass."
    )
    assert listed["config_schema"]["properties"] == {
        "max_ms": {
            "description": "Maximum latency in milliseconds (default 10,000).",
            "type": "number",
            "exclusiveMinimum": 0,
            "default": 10_000,
        }
    }

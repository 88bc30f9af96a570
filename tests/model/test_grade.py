from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import GradeResult
from gradeline.model import ErrorInfo, Fault, Grade, Outcome


class TestGradeResult:
    def test_a_score_is_all_it_needs(self) -> None:
        result = GradeResult(0.85)
        assert (result.score, result.rationale, result.metadata, result.passed, result.status) == (
            0.85,
            None,
            {},
            True,
            "pass",
        )

    @pytest.mark.parametrize("score", [0, 1, 0.0, 1.0, 0.5, Fraction(1, 2)])
    def test_any_number_from_0_to_1_is_a_score(self, score: Any) -> None:
        assert type(GradeResult(score).score) is float
        assert GradeResult(score).score == score

    @pytest.mark.parametrize(
        ("score", "named"),
        [
            (True, "True"),
            (False, "False"),
            (float("nan"), "nan"),
            (float("inf"), "inf"),
            (-0.1, "-0.1"),
            (1.7, "1.7"),
            ("0.5", "'0.5'"),
            (None, "None"),
            ([1], r"\[1\]"),
            pytest.param(10**5000, "an integer of", id="huge"),
        ],
    )
    def test_anything_else_is_refused_by_name(self, score: Any, named: str) -> None:
        with pytest.raises(ValueError, match=named):
            GradeResult(score=score)

    def test_it_is_immutable(self) -> None:
        with pytest.raises(AttributeError):
            GradeResult(1.0).score = 0.0  # type: ignore[misc]

    @pytest.mark.parametrize(("score", "passed"), [(0.5, True), (0.4999, False)])
    def test_half_passes_unless_told_otherwise(self, score: float, passed: bool) -> None:
        assert GradeResult(score).passed is passed
        assert GradeResult(score, passed=not passed).passed is (not passed)

    def test_none_means_the_default_as_in_the_seed(self) -> None:
        assert GradeResult(score=1.0, rationale=None, metadata=None, passed=None) == GradeResult(1.0)  # type: ignore[arg-type]

    def test_metadata_is_not_shared_between_results(self) -> None:
        assert GradeResult(1.0).metadata is not GradeResult(1.0).metadata

    def test_an_error_in_the_metadata_is_only_metadata(self) -> None:
        result = GradeResult(0.0, metadata={"error": "json_decode"})
        assert (result.score, result.status) == (0.0, "fail")

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
    def test_non_finite_numbers_in_metadata_are_refused_with_their_place(self, bad: float) -> None:
        with pytest.raises(ValueError, match=r"metadata\.a\[1\]\.b is"):
            GradeResult(1.0, metadata={"a": [0, {"b": bad}]})

    @given(st.floats(0, 1), st.none() | st.text(), st.dictionaries(st.text(), st.integers()), st.booleans())
    def test_json_round_trip_is_exact(
        self, score: float, rationale: str | None, metadata: dict[str, int], passed: bool
    ) -> None:
        result = GradeResult(score, rationale, metadata, passed)
        encoded = msgspec.json.encode(result)
        assert msgspec.json.decode(encoded, type=GradeResult) == result
        assert msgspec.json.encode(msgspec.json.decode(encoded, type=GradeResult)) == encoded


ERROR = ErrorInfo("timeout", "5 s", Fault.GRADER)


class TestGrade:
    @pytest.mark.parametrize(
        "fields",
        [
            {"outcome": Outcome.PASS, "score": 1.0, "passed": True},
            {"outcome": Outcome.FAIL, "score": 0.9, "passed": False},
            {"outcome": Outcome.ERROR, "error": ERROR},
            {"outcome": Outcome.SKIPPED},
        ],
    )
    def test_the_four_outcomes(self, fields: dict[str, Any]) -> None:
        grade = Grade("numeric", "f", **fields)
        assert msgspec.json.decode(msgspec.json.encode(grade), type=Grade) == grade

    @pytest.mark.parametrize(
        "fields",
        [
            {"outcome": Outcome.PASS, "passed": True},
            {"outcome": Outcome.PASS, "score": 1.0, "passed": False},
            {"outcome": Outcome.FAIL, "score": 1.0},
            {"outcome": Outcome.ERROR, "score": 0.0, "error": ERROR},
            {"outcome": Outcome.ERROR},
            {"outcome": Outcome.SKIPPED, "score": 0.0},
            {"outcome": Outcome.SKIPPED, "error": ERROR},
        ],
    )
    def test_what_is_neither_cannot_be_made(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="a grade with outcome"):
            Grade("numeric", "f", **fields)

    def test_a_scored_grade_may_report_an_error_of_its_own(self) -> None:
        grade = Grade("tool", "f", Outcome.FAIL, 0.0, False, metadata={"error": "json_decode"})
        assert grade.self_reported_error is True
        assert Grade("tool", "f", Outcome.SKIPPED).self_reported_error is False

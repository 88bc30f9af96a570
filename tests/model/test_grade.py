from __future__ import annotations

import re
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import GradeResult
from gradeline.model import ErrorInfo, Fault, Grade, Outcome


class TestGradeResult:
    def test_only_a_score_is_required(self) -> None:
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
    def test_the_default_threshold_is_half(self, score: float, passed: bool) -> None:
        assert GradeResult(score).passed is passed
        assert GradeResult(score, passed=not passed).passed is (not passed)

    def test_none_means_the_default_as_in_the_seed(self) -> None:
        assert GradeResult(score=1.0, rationale=None, metadata=None, passed=None) == GradeResult(1.0)

    def test_metadata_is_not_shared_between_results(self) -> None:
        assert GradeResult(1.0).metadata is not GradeResult(1.0).metadata

    def test_an_error_in_the_metadata_is_only_metadata(self) -> None:
        result = GradeResult(0.0, metadata={"error": "json_decode"})
        assert (result.score, result.status) == (0.0, "fail")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((0.5, None, None, 1), "passed must be True, False or None, got 1 (int)"),
            ((0.5, None, None, "yes"), "passed must be True, False or None, got 'yes' (str)"),
            ((0.5, None, []), "metadata must be a mapping or None, got [] (list)"),
            ((0.5, None, "why"), "metadata must be a mapping or None, got 'why' (str)"),
            ((0.5, 3), "rationale must be a string or None, got 3 (int)"),
            ((0.5, b"why"), "rationale must be a string or None, got b'why' (bytes)"),
            ((True,), "score must be a number from 0.0 to 1.0, got True (bool)"),
            (
                ("why", 0.5),
                "score must be a number from 0.0 to 1.0, got 'why' (str); "
                "the score comes first: GradeResult(0.5, 'why')",
            ),
            ((None, "no key", None, False), "passed must be None if score is None, got False"),
        ],
    )
    def test_a_wrong_field_is_refused_with_its_name_its_value_and_its_type(
        self, arguments: tuple[Any, ...], message: str
    ) -> None:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            GradeResult(*arguments)

    def test_without_a_score_it_is_neither_pass_nor_fail(self) -> None:
        result = GradeResult(None, "the reference is empty")
        assert (result.score, result.passed, result.status) == (None, None, "error")
        assert msgspec.json.decode(msgspec.json.encode(result), type=GradeResult) == result

    def test_numpy_scalars_are_converted(self) -> None:
        np = pytest.importorskip("numpy")
        result = GradeResult(
            np.float32(0.5), np.str_("near"), {"n": np.int64(3), "all": [np.bool_(True), {"x": np.float64(0.25)}]},
            np.bool_(False),
        )  # fmt: skip
        assert (result.score, result.rationale, result.passed) == (0.5, "near", False)
        assert [type(value) for value in (result.score, result.rationale, result.passed)] == [float, str, bool]
        assert result.metadata == {"n": 3, "all": [True, {"x": 0.25}]}
        assert msgspec.json.decode(msgspec.json.encode(result), type=GradeResult) == result

    def test_a_numpy_bool_is_not_a_score(self) -> None:
        np = pytest.importorskip("numpy")
        with pytest.raises(ValueError, match=r"score must be a number from 0\.0 to 1\.0, got True \(bool\)"):
            GradeResult(np.bool_(True))

    def test_metadata_that_contains_itself_is_refused(self) -> None:
        metadata: dict[str, Any] = {}
        metadata["self"] = metadata
        with pytest.raises(ValueError, match="contains itself"):
            GradeResult(1.0, metadata=metadata)

    def test_any_mapping_becomes_a_dict(self) -> None:
        assert GradeResult(1.0, metadata=MappingProxyType({"a": 1})).metadata == {"a": 1}
        assert type(GradeResult(1.0, metadata=MappingProxyType({})).metadata) is dict

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
    def test_a_grade_without_score_or_error_is_refused(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="invalid grade: outcome"):
            Grade("numeric", "f", **fields)

    def test_a_scored_grade_may_report_an_error_of_its_own(self) -> None:
        grade = Grade("tool", "f", Outcome.FAIL, 0.0, False, metadata={"error": "json_decode"})
        assert grade.self_reported_error is True
        assert Grade("tool", "f", Outcome.SKIPPED).self_reported_error is False

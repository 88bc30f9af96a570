from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradeline import StringMatchGrader
from gradeline.graders import create, grade, run_grader
from gradeline.model import GradeContext, Sample


@pytest.mark.parametrize(
    ("mode", "actual", "expected", "passed"),
    [
        ("exact", "Paris", "paris", True),
        ("exact", "Paris.", "paris", False),
        ("exact", "", "", True),
        ("contains", "It is Paris.", "paris", True),
        ("contains", "It is London.", "paris", False),
        ("contains", "anything", "", False),
        ("starts_with", "Paris, France", "paris", True),
        ("starts_with", "In Paris", "paris", False),
        ("starts_with", "anything", "", False),
        ("ends_with", "In Paris", "paris", True),
        ("ends_with", "Paris.", "paris", False),
        ("ends_with", "anything", "", False),
    ],
)
def test_modes(mode: str, actual: str, expected: str, passed: bool) -> None:
    result = StringMatchGrader({"mode": mode}).grade(actual, expected)
    assert (result["passed"], result["score"]) == (passed, 1.0 if passed else 0.0)


def test_fuzzy_scores_the_similarity_and_passes_from_the_threshold_on() -> None:
    result = StringMatchGrader({"mode": "fuzzy"}).grade("colour", "color")
    assert result["score"] == pytest.approx(10 / 11)
    assert result["passed"] is True
    assert StringMatchGrader({"mode": "fuzzy", "threshold": 0.95}).grade("colour", "color")["passed"] is False


def test_unicode_is_compared_after_nfc_and_case_by_casefold() -> None:
    assert StringMatchGrader().grade("cafe\u0301", "CAF\u00c9")["passed"] is True
    assert StringMatchGrader().grade("STRASSE", "straße")["passed"] is True
    assert StringMatchGrader({"case_sensitive": True}).grade("cafe\u0301", "caf\u00e9")["passed"] is True


def test_the_complete_result() -> None:
    assert StringMatchGrader().grade("a", "b") == {
        "passed": False,
        "score": 0.0,
        "details": {
            "mode": "exact",
            "reason": "Response differs from the expected value",
            "expected_original": "b",
            "actual_original": "a",
        },
    }


@pytest.mark.parametrize(
    ("actual", "expected", "reason"),
    [
        (None, "a", "Empty or null response"),
        ("a", None, "No expected value"),
        (3, "a", "Response 3 is a int, not text"),
        ("a", b"a", "Expected value b'a' is a bytes, not text"),
    ],
)
def test_values_that_are_not_strings_are_explained(actual: Any, expected: Any, reason: str) -> None:
    result = StringMatchGrader().grade(actual, expected)
    assert (result["passed"], result["score"], result["details"]["reason"]) == (False, 0.0, reason)


def test_fuzzy_refuses_texts_over_its_limit() -> None:
    grade = run_grader(create("string-match", {"mode": "fuzzy"}), GradeContext(Sample(0, "", "a"), "x" * 100_001))
    assert grade.error is not None
    assert (grade.outcome, grade.error.type) == ("error", "too_large")
    assert StringMatchGrader({"mode": "fuzzy"}).grade("x" * 100_001, "a")["passed"] is False


@given(st.text(), st.text())
def test_every_mode_matches_a_text_with_itself(text: str, other: str) -> None:
    for mode in ("exact", "contains", "starts_with", "ends_with", "fuzzy"):
        grader = StringMatchGrader({"mode": mode})
        assert grader.grade(text, text)["passed"] is (bool(text) or mode in ("exact", "fuzzy"))
        result = grader.grade(text, other)
        assert result == grader.grade(text, other)
        assert 0.0 <= result["score"] <= 1.0


@pytest.mark.parametrize(
    ("mode", "response", "expected", "message"),
    [
        ("exact", "Paris\n", "Paris", True),
        ("exact", "New  York", "new york", True),
        ("exact", "NewYork", "New York", False),
        ("exact", " ", "Paris", False),
        ("contains", "in New\nYork.", "New York", True),
        ("contains", "in York", "New York", False),
        ("starts_with", "\nParis it is", "Paris", True),
        ("ends_with", "it is Paris ", "Paris", True),
    ],
)
def test_a_mismatch_in_whitespace_only_is_named_with_the_remedy(
    mode: str, response: str, expected: str, message: bool
) -> None:
    result = grade("string-match", response, expected, {"mode": mode})
    assert not result.passed
    assert result.rationale is not None
    remedy = "; they differ only in whitespace (normalize_whitespace: true ignores it)"
    assert result.rationale.endswith(remedy) is message
    assert grade("string-match", response, expected, {"mode": mode, "normalize_whitespace": True}).passed is message
